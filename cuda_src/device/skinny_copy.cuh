// Rung 10: the operands of a product of few rows, on their way from global memory to where they are used: A
// through registers to shared memory, B to the registers of the thread that uses it. Nothing past the matrix
// is read: threads there read its last row or column instead, and store nothing.
//
// Traits: BM, BN, BK, TN, TK, TRANS_A, TRANS_B, LOAD_A and LOAD_B (elements per read), K_GROUP, THREADS,
// SLICED_K, TYPE_A and TYPE_B (see device/element.cuh). A 16-bit A is converted when it is written to shared
// memory, a 16-bit B when its group is used.
#pragma once
#include "device/element.cuh"

// B is read float by float along k: neighbouring lanes take neighbouring k, and A is stored to match.
template <class Traits>
constexpr bool SCATTERED = Traits::TRANS_B && Traits::LOAD_B == 1;

// A thread's share of a tile of A, which goes through registers to shared memory. It lies in one row, or in
// LOAD_A rows, so that one address suffices.
template <class Traits>
struct SkinnyTileA {
    static constexpr int BM = Traits::BM, BK = Traits::BK, TRANS_A = Traits::TRANS_A, VEC = Traits::LOAD_A;
    static constexpr int K_GROUP = Traits::K_GROUP, SLICES = Traits::SLICED_K, THREADS = Traits::THREADS;

    // In shared memory 16 bytes are one step of k of QUAD_ROWS rows, or QUAD_STEPS steps where there are
    // fewer rows.
    static constexpr int QUAD_ROWS = BM < K_GROUP ? BM : K_GROUP;
    static constexpr int QUAD_STEPS = K_GROUP / QUAD_ROWS;
    // Floats from one line to the next: 16 bytes per slice, and 16 of padding, so that the stores of
    // different rows go to different banks.
    static constexpr int LD = K_GROUP * (SLICES + (BM > K_GROUP));
    static constexpr int FLOATS = BM * Traits::TK * (LD / K_GROUP);  // of shared memory, per tile

    static constexpr int THREADS_M = BM / (TRANS_A ? VEC : 1);  // threads that differ in m
    static constexpr int K_DISTANCE =
        THREADS / THREADS_M * (TRANS_A ? 1 : VEC);  // between vectors of a thread
    static constexpr int COUNT = (BK + K_DISTANCE - 1) / K_DISTANCE;

    using T = ElementType<Traits::TYPE_A>;
    const T *source;
    long long next_vector, next_tile;  // in elements
    int m, k;                          // of the first vector, in the tile
    int first_place;                   // of the first vector, in shared memory
    Elements<Traits::TYPE_A, VEC> value[COUNT];

    // Return the offset of row m in shared memory, for a step of k in a group of a slice. What the slices
    // read at the same time lies side by side. The extents are powers of two, so place(m, ...) of a sum whose
    // terms have no bits in common is the sum of the places.
    static __device__ __forceinline__ int place(int m, int group, int step, int slice) {
        const int line = (group * QUAD_ROWS + step / QUAD_STEPS) * (BM / QUAD_ROWS) + m / QUAD_ROWS;
        return line * LD + slice * K_GROUP + step % QUAD_STEPS * QUAD_ROWS + m % QUAD_ROWS;
    }

    // The same for step k of the tile.
    static __device__ __forceinline__ int place(int m, int k) {
        const int group = k / (K_GROUP * SLICES), rest = k % (K_GROUP * SLICES);
        return SCATTERED<Traits> ? place(m, group, rest / SLICES, rest % SLICES)
                                 : place(m, group, rest % K_GROUP, rest / K_GROUP);
    }

    __device__ __forceinline__ SkinnyTileA(const T *A, long long lda, int m0, int M, int k0)
        : next_vector(TRANS_A ? K_DISTANCE * lda : K_DISTANCE),
          next_tile(TRANS_A ? BK * lda : BK),
          m(TRANS_A ? threadIdx.x % THREADS_M * VEC
                    : threadIdx.x / (THREADS / THREADS_M * QUAD_ROWS) * QUAD_ROWS + threadIdx.x % QUAD_ROWS),
          k(TRANS_A ? threadIdx.x / THREADS_M : threadIdx.x / QUAD_ROWS % (THREADS / THREADS_M) * VEC),
          first_place(place(m, k)) {
        const long long row = min(m0 + m, M - (TRANS_A ? VEC : 1)), step = k0 + k;
        source = A + (TRANS_A ? step * lda + row : row * lda + step);
    }

    // Read the next tile, of which only the first `depth` steps exist unless it is WHOLE.
    template <bool WHOLE>
    __device__ __forceinline__ void read(int depth) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool whole = WHOLE && (i + 1) * K_DISTANCE <= BK;
            value[i].read_or_zero(source + i * next_vector,
                                  whole || k + i * K_DISTANCE < (WHOLE ? BK : min(depth, BK)));
        }
        source += next_tile;
    }

    // Write what was read to the tile at As.
    __device__ __forceinline__ void write(float *As) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if ((i + 1) * K_DISTANCE > BK && k + i * K_DISTANCE >= BK) continue;
            float *to = As + first_place + place(0, i * K_DISTANCE);
            if constexpr (VEC == 4 && (TRANS_A || (BM == 1 && !SCATTERED<Traits>))) {
                *reinterpret_cast<float4 *>(to) =
                    make_float4(value[i][0], value[i][1], value[i][2], value[i][3]);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) to[TRANS_A ? place(j, 0) : place(0, j)] = value[i][j];
            }
        }
    }
};

// A thread's share of B: its TN columns, TK steps of k in groups of K_GROUP.
template <class Traits>
struct SkinnyColumnsB {
    static constexpr int BK = Traits::BK, TN = Traits::TN, TK = Traits::TK, TRANS_B = Traits::TRANS_B;
    static constexpr int VEC = Traits::LOAD_B, K_GROUP = Traits::K_GROUP, SLICES = Traits::SLICED_K;
    static constexpr int THREADS_N = Traits::BN / TN;        // threads along n
    static constexpr int VEC_N = TRANS_B ? 1 : VEC;          // columns per read
    static constexpr int VEC_K = TRANS_B ? VEC : 1;          // steps of k per read
    static constexpr int READS = TN / VEC_N;                 // for one step of k, or VEC_K of them
    static constexpr int GROUP_DISTANCE = K_GROUP * SLICES;  // steps of k between two groups of a thread
    // Pairs of lanes have the same k, because equal addresses halve the wavefronts of a 16-byte load of A
    // from shared memory.
    static constexpr int PAIR = THREADS_N > 1 ? 2 : 1;

    using T = ElementType<Traits::TYPE_B>;
    const T *source[READS];
    long long ld;  // from one k to the next
    int first_k;   // of this thread, in the tile
    Elements<Traits::TYPE_B, VEC> vector[TK / K_GROUP][K_GROUP / VEC_K][READS];

    // Column j of this thread in step q of a group.
    __device__ __forceinline__ float value(int group, int q, int j) const {
        return vector[group][q / VEC_K][j / VEC_N][TRANS_B ? q % VEC_K : j % VEC_N];
    }

    // This thread's place among those that share its k, and among those that share its columns.
    static __device__ __forceinline__ int thread_n() {
        return TRANS_B ? threadIdx.x / (PAIR * SLICES) * PAIR + threadIdx.x % PAIR : threadIdx.x % THREADS_N;
    }
    static __device__ __forceinline__ int slice() {
        return TRANS_B ? threadIdx.x / PAIR % SLICES : threadIdx.x / THREADS_N;
    }
    // Column j of this thread, in the tile.
    static __device__ __forceinline__ int column(int j) {
        return (j / VEC_N * THREADS_N + thread_n()) * VEC_N + j % VEC_N;
    }

    __device__ __forceinline__ SkinnyColumnsB(const T *B, long long ldb, int n0, int N, int k0)
        : ld(TRANS_B ? 1 : ldb), first_k(SCATTERED<Traits> ? slice() : slice() * K_GROUP) {
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            const long long n = min(n0 + column(i * VEC_N), N - VEC_N);
            const long long k = k0 + first_k;
            source[i] = B + (TRANS_B ? n * ldb + k : k * ldb + n);
        }
    }

    // Read a group of the next tile, of which only the first `depth` steps exist unless it is WHOLE.
    template <bool WHOLE>
    __device__ __forceinline__ void read(int group, int depth) {
#pragma unroll
        for (int q = 0; q < K_GROUP; q += VEC_K) {
            const int k = group * GROUP_DISTANCE + q * (SCATTERED<Traits> ? SLICES : 1);
#pragma unroll
            for (int i = 0; i < READS; ++i) {
                const T *p = TRANS_B ? source[i] + k : source[i];
                vector[group][q / VEC_K][i].template read_or_zero<L1::NO_ALLOCATE>(
                    p, WHOLE || first_k + k < depth);
                if (!TRANS_B) walk(source[i], q == K_GROUP - 1 ? (GROUP_DISTANCE - K_GROUP + 1) * ld : ld);
            }
        }
        if (TRANS_B && group == TK / K_GROUP - 1) {
#pragma unroll
            for (int i = 0; i < READS; ++i) source[i] += BK;
        }
    }

    // Advance p by `distance`. The asm hides the sum from the compiler, which would otherwise keep every
    // multiple of ld in registers.
    static __device__ __forceinline__ void walk(const T *&p, long long distance) {
        p += distance;
        asm volatile("" : "+l"(p));
    }
};
