// wgmma (sm_90a): a warpgroup, four warps, multiplies two tiles that lie in shared memory. D, 64 x N in FP32,
// is spread over the registers of its 128 threads: thread t holds, for j = 0 .. N / 8 - 1,
//     d[4 j], d[4 j + 1]          row 16 (t / 32) + t % 32 / 4,        columns 8 j + 2 (t % 4) and the next
//     d[4 j + 2], d[4 j + 3]      the row 8 below,                     the same columns
// A is 64 x 16 and B is 16 x N, FP16 or bfloat16; A may lie in registers. In memory both have k contiguous
// ("K-major") in rows of 128 or 64 bytes, with the swizzle of that width: the 16-byte pieces of a row change
// places by an exclusive or with its number modulo 8, or with half of that. A tile begins at a multiple of
// 1024 bytes. The products are asynchronous. The order of use: wgmma_fence, any number of wgmma_mma_async,
// wgmma_commit_group, and later wgmma_wait_group before D or the tiles are accessed.
#pragma once

// Return the matrix descriptor of a tile of K-major rows of so many bytes at this shared address: swizzled,
// and from eight rows to the next eight the bytes of eight rows.
template <int ROW_BYTES = 128>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "the swizzle is as wide as a row");
    constexpr unsigned long long SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
    return SWIZZLE << 62 | (8ull * ROW_BYTES >> 4) << 32 | 1ull << 16 | address >> 4;
}

// Keep the compiler from moving reads and writes of the accumulators across this point.
template <int COUNT>
__device__ __forceinline__ void warpgroup_fence_operand(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most the last PENDING groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Release registers, so that each thread of this warpgroup keeps COUNT.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Wait until enough registers have been released, and take them, so that each thread has COUNT.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Inline assembly names every register: the names, and the operands to go with them, in eights.
#define NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_8 "%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_16 "%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_24 "%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_32 "%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_40 "%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_48 "%48,%49,%50,%51,%52,%53,%54,%55"
#define NAMES_56 "%56,%57,%58,%59,%60,%61,%62,%63"
#define EIGHT(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define LISTED(...) __VA_ARGS__
// D <- A B + (accumulate ? D : 0); `a`, `b` and `p` name the operands that follow those of D, `of_a` lists
// A's, and `plain` says that nothing is negated or transposed.
#define WGMMA_OF(types, plain, of_a, n, names, a, b, p, ...)                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                             \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" names "}, " a ", " b \
                 ", p, " plain ";\n}"                                                              \
                 : __VA_ARGS__                                                                     \
                 : LISTED of_a, "l"(tile_b), "r"(int(accumulate)))
#define WGMMA(...)                                                           \
    do {                                                                     \
        if constexpr (TYPE == 1)                                             \
            WGMMA_OF("bf16.bf16", "1, 1, 0, 0", ("l"(tile_a)), __VA_ARGS__); \
        else                                                                 \
            WGMMA_OF("f16.f16", "1, 1, 0, 0", ("l"(tile_a)), __VA_ARGS__);   \
    } while (false)
#define WGMMA_REGISTERS(...) \
    WGMMA_OF("bf16.bf16", "1, 1, 0", ("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])), __VA_ARGS__)

// TYPE is that of the elements: 1: bfloat16, 2: FP16.
template <int N, int TYPE = 2>
__device__ __forceinline__ void wgmma_mma_async(float (&d)[N / 2], unsigned long long tile_a,
                                                unsigned long long tile_b, bool accumulate) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 128, "written out for these widths");
    if constexpr (N == 16)
        WGMMA(16, NAMES_0, "%8", "%9", "%10", EIGHT(d, 0));
    else if constexpr (N == 32)
        WGMMA(32, NAMES_0 "," NAMES_8, "%16", "%17", "%18", EIGHT(d, 0), EIGHT(d, 8));
    else if constexpr (N == 64)
        WGMMA(64, NAMES_0 "," NAMES_8 "," NAMES_16 "," NAMES_24, "%32", "%33", "%34", EIGHT(d, 0),
              EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24));
    else if constexpr (N == 128)
        WGMMA(128,
              NAMES_0 "," NAMES_8 "," NAMES_16 "," NAMES_24 "," NAMES_32 "," NAMES_40 "," NAMES_48
                      "," NAMES_56,
              "%64", "%65", "%66", EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32),
              EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56));
}

// The same of bfloat16 with A in registers, as device/bfloat16_pieces.cuh says. They keep their values until
// the product is complete.
template <int N>
__device__ __forceinline__ void wgmma_mma_async(float (&d)[N / 2], const unsigned (&a)[4],
                                                unsigned long long tile_b, bool accumulate) {
    static_assert(N == 16 || N == 32 || N == 64, "written out for these widths");
    if constexpr (N == 16)
        WGMMA_REGISTERS(16, NAMES_0, "{%8,%9,%10,%11}", "%12", "%13", EIGHT(d, 0));
    else if constexpr (N == 32)
        WGMMA_REGISTERS(32, NAMES_0 "," NAMES_8, "{%16,%17,%18,%19}", "%20", "%21", EIGHT(d, 0), EIGHT(d, 8));
    else if constexpr (N == 64)
        WGMMA_REGISTERS(64, NAMES_0 "," NAMES_8 "," NAMES_16 "," NAMES_24, "{%32,%33,%34,%35}", "%36", "%37",
                        EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24));
}
