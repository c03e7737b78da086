// Rung 10: the operands of a product of few rows, on their way from global memory to where they are used: A
// through registers to shared memory, B to the registers of the thread that uses it. Included after the
// rung's constants, which it computes with. What is past the matrix is not read: its last row or column is,
// in its place.
#pragma once

// VEC floats that are read once and need no place in L1, where `inside`, else zeros; see load_or_zero.
template <int VEC>
__device__ __forceinline__ void load_once_or_zero(float (&value)[VEC], const float *p, bool inside) {
#pragma unroll
    for (int j = 0; j < VEC; ++j) value[j] = 0.0f;
    const unsigned long long address = __cvta_generic_to_global(p);
    if constexpr (VEC == 4) {
        asm volatile(
            "{ .reg .pred q; setp.ne.s32 q, %5, 0; "
            "@q ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4]; }"
            : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3])
            : "l"(address), "r"(int(inside)));
    } else {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.nc.L1::no_allocate.f32 %0, [%1]; }"
                     : "+f"(value[0])
                     : "l"(address), "r"(int(inside)));
    }
}

// Where row m of a tile of A lies in shared memory, at a step of k in a group of a slice: what the slices
// read together are neighbours. It is a sum of what the bits of its arguments add.
__device__ __forceinline__ int place_of(int m, int group, int step, int slice) {
    const int line = (group * ROWS_A + step / STEPS_A) * (BM / ROWS_A) + m / ROWS_A;
    return line * LD_SLICES_A + slice * QUAD + step % STEPS_A * ROWS_A + m % ROWS_A;
}

// The same for step k of the tile.
__device__ __forceinline__ int place_of(int m, int k) {
    const int rest = k % SPAN;
    return SCATTERED ? place_of(m, k / SPAN, rest / SLICES, rest % SLICES)
                     : place_of(m, k / SPAN, rest % QUAD, rest / QUAD);
}

// A thread's share of a tile of A, on its way through registers to shared memory: all of it in one row, or
// in WIDE_A of them, so that one address is enough.
struct Rows {
    static constexpr int LINE = BM / (TRANS_A ? WIDE_A : 1);             // threads that differ in m
    static constexpr int FAR = THREADS / LINE * (TRANS_A ? 1 : WIDE_A);  // k between two vectors of a thread
    static constexpr int COUNT = (BK + FAR - 1) / FAR;

    const float *from;
    long long far, next;  // from one vector to the next, from one tile to the next
    int m, k;             // of the first, in the tile
    int place;            // in shared memory
    float value[COUNT][WIDE_A];

    __device__ __forceinline__ Rows(const float *A, long long lda, int m0, int M, int k0)
        : far(TRANS_A ? FAR * lda : FAR),
          next(TRANS_A ? BK * lda : BK),
          m(TRANS_A ? threadIdx.x % LINE * WIDE_A
                    : threadIdx.x / (THREADS / LINE * ROWS_A) * ROWS_A + threadIdx.x % ROWS_A),
          k(TRANS_A ? threadIdx.x / LINE : threadIdx.x / ROWS_A % (THREADS / LINE) * WIDE_A),
          place(place_of(m, k)) {
        const long long down = min(m0 + m, M - (TRANS_A ? WIDE_A : 1)), right = k0 + k;
        from = A + (TRANS_A ? right * lda + down : down * lda + right);
    }

    // Read the next tile, of which the first `depth` steps exist; WHOLE says that all do.
    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int depth) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool whole = WHOLE && (i + 1) * FAR <= BK;
            load_or_zero(value[i], from + i * far, whole || k + i * FAR < (WHOLE ? BK : min(depth, BK)));
        }
        from += next;
    }

    __device__ __forceinline__ void store(float *As) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if ((i + 1) * FAR > BK && k + i * FAR >= BK) continue;
            float *to = As + place + place_of(0, i * FAR);
            if constexpr (WIDE_A == 4 && (TRANS_A || (BM == 1 && !SCATTERED))) {
                *reinterpret_cast<float4 *>(to) =
                    make_float4(value[i][0], value[i][1], value[i][2], value[i][3]);
            } else {
#pragma unroll
                for (int j = 0; j < WIDE_A; ++j) to[TRANS_A ? place_of(j, 0) : place_of(0, j)] = value[i][j];
            }
        }
    }
};

// A thread's share of B: its TN columns, TK steps of k in groups of four.
struct Columns {
    static constexpr int WIDE_N = TRANS_B ? 1 : WIDE_B;  // columns and steps of k a load
    static constexpr int WIDE_K = TRANS_B ? WIDE_B : 1;
    static constexpr int LOADS = TN / WIDE_N;

    const float *from[LOADS];
    long long ld;  // from one k to the next
    int first_k;
    float value[TK / QUAD][QUAD][TN];

    // This thread's place among those that share its k, and among those that share its columns.
    static __device__ __forceinline__ int thread() {
        return TRANS_B ? threadIdx.x / (PAIR * SLICES) * PAIR + threadIdx.x % PAIR : threadIdx.x % COLUMNS;
    }
    static __device__ __forceinline__ int slice() {
        return TRANS_B ? threadIdx.x / PAIR % SLICES : threadIdx.x / COLUMNS;
    }
    static __device__ __forceinline__ int column(int j) {
        return (j / WIDE_N * COLUMNS + thread()) * WIDE_N + j % WIDE_N;
    }

    __device__ __forceinline__ Columns(const float *B, long long ldb, int n0, int N, int k0)
        : ld(TRANS_B ? 1 : ldb), first_k(SCATTERED ? slice() : slice() * QUAD) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const long long n = min(n0 + column(i * WIDE_N), N - WIDE_N);
            const long long k = k0 + first_k;
            from[i] = B + (TRANS_B ? n * ldb + k : k * ldb + n);
        }
    }

    // Read a group of the next tile, of which the first `depth` steps exist; WHOLE says that all do.
    template <bool WHOLE>
    __device__ __forceinline__ void fetch(int group, int depth) {
#pragma unroll
        for (int q = 0; q < QUAD; q += WIDE_K) {
            const int k = group * SPAN + q * (SCATTERED ? SLICES : 1);
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                float vector[WIDE_B];
                const float *p = TRANS_B ? from[i] + k : from[i];
                load_once_or_zero(vector, p, WHOLE || first_k + k < depth);
#pragma unroll
                for (int j = 0; j < WIDE_B; ++j)
                    value[group][q + (TRANS_B ? j : 0)][i * WIDE_N + (TRANS_B ? 0 : j)] = vector[j];
                if (!TRANS_B) walk(from[i], q == QUAD - 1 ? (SPAN - QUAD + 1) * ld : ld);
            }
        }
        if (TRANS_B && group == TK / QUAD - 1) {
#pragma unroll
            for (int i = 0; i < LOADS; ++i) from[i] += BK;
        }
    }

    // Go on by `step`. The compiler must not see through it: it would keep every multiple of ld in registers.
    static __device__ __forceinline__ void walk(const float *&p, long long step) {
        p += step;
        asm volatile("" : "+l"(p));
    }
};
