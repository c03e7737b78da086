// Rungs 8 to 10: two FMAs by one instruction, where the device has it. Results have the bits of two FMAs.
// Rung 9: one step of k for a thread, ROWS x COLS fused multiply-adds. The order decides which operands stay
// in the register reuse cache and which registers the compiler picks; the results do not depend on it. An
// FFMA reads three registers and each of the two register banks delivers one per cycle, so one operand should
// be the same as in the instruction before.
//   ORDER 0  row by row                        1  serpentine by rows: every second row backwards
//         2  serpentine by columns             3  strips of up to four rows, serpentine by columns inside
//         4  as 1, the last row first          5  as 0, the last row first
#pragma once

// FMAs per instruction. Other architectures from sm_100 on have fma.rn.f32x2, too, but ptxas makes two FFMAs
// of it.
constexpr int FMA_WIDTH = __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030 ? 2 : 1;

// sum[w * STRIDE] += a * b[w] for each w below WIDTH, by one instruction. ptxas gives two sums a pair of
// registers, and needs no second copy of a. It copies two b, unless one load brought both to such a pair.
template <int WIDTH, int STRIDE = 1>
__device__ __forceinline__ void multiply_add(float *sum, float a, const float *b) {
    if constexpr (WIDTH == 2)
        asm volatile(
            "{.reg .b64 a, b, sums; mov.b64 a, {%2, %2}; mov.b64 b, {%3, %4}; mov.b64 sums, {%0, %1}; "
            "fma.rn.f32x2 sums, a, b, sums; mov.b64 {%0, %1}, sums;}"
            : "+f"(sum[0]), "+f"(sum[STRIDE])
            : "f"(a), "f"(b[0]), "f"(b[1]));
    else
        *sum = __fmaf_rn(a, *b, *sum);
}

// PAIRS: neighbouring columns of b are in neighbouring registers.
template <int ORDER, bool PAIRS = true, int ROWS, int COLS>
__device__ __forceinline__ void outer_product(float (&acc)[ROWS][COLS], const float (&a)[ROWS],
                                              const float (&b)[COLS]) {
    constexpr int WIDTH = PAIRS && COLS % FMA_WIDTH == 0 ? FMA_WIDTH : 1;
    constexpr int PLACES = COLS / WIDTH;                           // of a row: FMAs or pairs of them
    constexpr int STRIP = ORDER == 3 ? 4 : ORDER == 2 ? ROWS : 1;  // rows walked together, down each column
    constexpr bool TURNS = ORDER != 0 && ORDER != 5;
    // One loop, because three nested ones take NVRTC a tenth longer.
#pragma unroll
    for (int place = 0; place < (ROWS + STRIP - 1) / STRIP * STRIP * PLACES; ++place) {
        const int s = place / (STRIP * PLACES), jj = place / STRIP % PLACES, ii = place % STRIP;
        const int strip = ORDER >= 4 ? ROWS - 1 - s : s;
        const int j = (TURNS && strip % 2 ? PLACES - 1 - jj : jj) * WIDTH;
        const int i = strip * STRIP + (jj % 2 ? STRIP - 1 - ii : ii);
        if (i >= ROWS) continue;
        // Volatile, or NVVM would take two steps of k together and leave less of the order to ptxas.
        if constexpr (WIDTH == 2)
            multiply_add<WIDTH>(&acc[i][j], a[i], &b[j]);
        else
            asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(acc[i][j]) : "f"(a[i]), "f"(b[j]));
    }
}
