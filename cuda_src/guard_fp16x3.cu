// Rung 11: what pairs of FP16 numbers cannot express (device/split_format.cuh) is computed here by FP32
// arithmetic from the operands themselves, after the product, and without asking the host.
// - Elements of C whose row of A or column of B is dense in exceptions: one chain of FMAs in ascending k, as
//   on rungs 1 to 8. The product has not touched them, so beta finds the old C, or the source.
// - All other elements of C whose row or column had elements left out: their products are added.
// A tile of C with neither costs a look at one word. The SIDE x SIDE blocks of the others are dealt out to
// all blocks of the grid in turn. Every element of C is written by one thread, in a fixed order of additions.
//
// With SYM, this is done for the elements on and below the diagonal, whose results are stored, or added, in
// the triangles that SYM names. No word was written for a tile that does not meet the lower triangle.
//
// Grid: any number of blocks; about one an SM. Block: THREADS. A(m, k) lies at m * a_m + k * a_k, B(k, n) at
// k * b_k + n * b_n, C is row-major. `exceptions` has a word for each TILE_M x TILE_N tile of C, row by row.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"
#include "device/source.cuh"
#include "device/triangle.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int SOURCE = 0;  // 0: beta multiplies C; 1: the source, see device/source.cuh
constexpr int SYM = 0;     // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int TYPE_A = 0;  // of the elements of A: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_B = 0;  // of the elements of B
// constants:end
constexpr int SIDE = 128;            // rows and columns of a block
constexpr int BK = 8;                // steps of k in shared memory
constexpr int PITCH = SIDE + 4;      // floats from one k to the next: spreads the stores over the banks
constexpr int EACH = 8;              // a thread computes EACH x EACH elements, in four groups of 4 x 4
constexpr int ACROSS = SIDE / EACH;  // threads
constexpr int THREADS = ACROSS * ACROSS;
constexpr int COPIED = SIDE * BK / THREADS;  // elements of A, and of B, that a thread copies for BK steps
constexpr int WORDS = 4;                     // of the exceptions that a thread looks at together
constexpr int WARPS = THREADS / 32;

// The rows, or columns, of a block that a thread computes: EACH / 2 in each half of the block.
__device__ __forceinline__ int place(int thread, int i) {
    return i / 4 * (SIDE / 2) + thread * 4 + i % 4;
}

struct Problem {
    int M, N, K;
    float alpha;
    const ElementType<TYPE_A> *A;
    long long a_m, a_k;
    const ElementType<TYPE_B> *B;
    long long b_k, b_n;
    float beta;
    float *C;
    long long ldc;
    const Line *rows;
    const int *row_where;
    const Line *columns;
    const int *column_where;
    OldValues<SOURCE> old;

    __device__ __forceinline__ float a(long long m, long long k) const {
        return to_float<TYPE_A>(A[m * a_m + k * a_k]);
    }
    __device__ __forceinline__ float b(long long k, long long n) const {
        return to_float<TYPE_B>(B[k * b_k + n * b_n]);
    }
};

// A block of C: rows from m, columns from n, up to m_end and n_end.
struct Block {
    int m, n, m_end, n_end;
};

// Call visit(k) for the elements left out of a sparse line, in ascending order.
template <class Visit>
__device__ __forceinline__ void for_each_left_out(const int *where, int count, Visit visit) {
    int k = -1;
    for (int i = 0; i < count; ++i) {
        int next = 0x7fffffff;
        for (int slot = 0; slot < count; ++slot)
            if (where[slot] > k) next = min(next, where[slot]);
        k = next;
        visit(k);
    }
}

// The products of the elements left out of row m and of column n.
__device__ __forceinline__ float left_out_products(const Problem &p, int m, int row_count, int n,
                                                   int column_count) {
    const int *row_where = p.row_where + static_cast<long long>(m) * SPARSE;
    const int *column_where = p.column_where + static_cast<long long>(n) * SPARSE;
    float sum = 0.0f;
    for_each_left_out(row_where, row_count, [&](int k) { sum = __fmaf_rn(p.a(m, k), p.b(k, n), sum); });
    for_each_left_out(column_where, column_count, [&](int k) {
        bool counted = false;  // with the row
        for (int slot = 0; slot < row_count; ++slot) counted = counted || row_where[slot] == k;
        if (!counted) sum = __fmaf_rn(p.a(m, k), p.b(k, n), sum);
    });
    return sum;
}

// How a thread copies an operand to shared memory: COPIED elements at a time, of the lines (rows of A or
// columns of B) from `first` to `end`. Neighbouring threads read neighbours in memory.
template <int TYPE>
struct Copy {
    const ElementType<TYPE> *x;  // the thread's first element at k = 0
    long long stride_k, step;
    int line, k, line_step, k_step, lines;

    __device__ __forceinline__ Copy(const ElementType<TYPE> *X, long long stride_line, long long stride_k,
                                    int first, int end)
        : stride_k(stride_k), lines(end - first) {
        const bool along_k = stride_k == 1;
        line = along_k ? threadIdx.x / BK : threadIdx.x % SIDE, line_step = along_k ? THREADS / BK : 0;
        k = along_k ? threadIdx.x % BK : threadIdx.x / SIDE, k_step = along_k ? 0 : THREADS / SIDE;
        x = X + (first + line) * stride_line + k * stride_k;
        step = line_step * stride_line + k_step * stride_k;
    }
    __device__ __forceinline__ void read(float (&values)[COPIED], int k0, int K) const {
        const ElementType<TYPE> *from = x + k0 * stride_k;
#pragma unroll
        for (int i = 0; i < COPIED; ++i, from += step)
            values[i] =
                line + i * line_step < lines && k0 + k + i * k_step < K ? to_float<TYPE>(*from) : 0.0f;
    }
    __device__ __forceinline__ void write(const float (&values)[COPIED], float (&tile)[BK][PITCH]) const {
#pragma unroll
        for (int i = 0; i < COPIED; ++i) tile[k + i * k_step][line + i * line_step] = values[i];
    }
};

// acc[i][j] = a row of A times a column of B, in FP32: those at place(ty, i) and place(tx, j) of the block.
// The elements for the next BK steps are read while these are multiplied.
__device__ __forceinline__ void multiply(const Problem &p, const Block &block, float (&a)[BK][PITCH],
                                         float (&b)[BK][PITCH], float (&acc)[EACH][EACH]) {
    const int ty = threadIdx.x / ACROSS, tx = threadIdx.x % ACROSS;
    const Copy<TYPE_A> copy_a(p.A, p.a_m, p.a_k, block.m, block.m_end);
    const Copy<TYPE_B> copy_b(p.B, p.b_n, p.b_k, block.n, block.n_end);
    float next_a[COPIED], next_b[COPIED];
    copy_a.read(next_a, 0, p.K);
    copy_b.read(next_b, 0, p.K);
#pragma unroll 1
    for (int k0 = 0; k0 < p.K; k0 += BK) {
        copy_a.write(next_a, a);
        copy_b.write(next_b, b);
        __syncthreads();
        copy_a.read(next_a, k0 + BK, p.K);
        copy_b.read(next_b, k0 + BK, p.K);
        const int steps = min(BK, p.K - k0);  // zeros after the end could change the sign of a zero
#pragma unroll 2
        for (int k = 0; k < steps; ++k) {
            float l[EACH], r[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i += 4) {
                const float4 left = *reinterpret_cast<const float4 *>(&a[k][place(ty, i)]);
                const float4 right = *reinterpret_cast<const float4 *>(&b[k][place(tx, i)]);
                l[i] = left.x, l[i + 1] = left.y, l[i + 2] = left.z, l[i + 3] = left.w;
                r[i] = right.x, r[i + 1] = right.y, r[i + 2] = right.z, r[i + 3] = right.w;
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) acc[i][j] = __fmaf_rn(l[i], r[j], acc[i][j]);
        }
        __syncthreads();
    }
}

// Call store(c, old value) wherever the result of (m, n) is stored.
template <class Store>
__device__ __forceinline__ void store_element(const Problem &p, int m, int n, Store store) {
    const auto store_at = [&](int row, int column) {
        float *c = p.C + row * p.ldc + column;
        const float *old = c;
        p.old.find(old, row, column);
        store(c, old);
    };
    if (SYM == 0 || (stores_lower(SYM) && is_inside<Triangle::LOWER>(m, n))) store_at(m, n);
    if (stores_upper(SYM) && is_inside<upper_of(SYM)>(n, m)) store_at(n, m);
}

__device__ __forceinline__ void repair(const Problem &p, const Block &block, float (&a)[BK][PITCH],
                                       float (&b)[BK][PITCH]) {
    const int ty = threadIdx.x / ACROSS, tx = threadIdx.x % ACROSS;
    auto row = [&](int i) { return block.m + place(ty, i); };
    auto column = [&](int j) { return block.n + place(tx, j); };
    unsigned row_count[EACH], column_count[EACH];
    const unsigned most = most_left_out(p.alpha);
    bool dense = false;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        row_count[i] = row(i) < block.m_end ? p.rows[row(i)].left_out : 0;
        column_count[i] = column(i) < block.n_end ? p.columns[column(i)].left_out : 0;
        dense = dense || max(row_count[i], column_count[i]) > most;
    }
    float acc[EACH][EACH] = {};
    if (__syncthreads_or(dense)) multiply(p, block, a, b, acc);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            if (row(i) >= block.m_end || column(j) >= block.n_end) continue;
            float *c = p.C + row(i) * p.ldc + column(j);
            if (SYM && max(row_count[i], column_count[j]) > most) {
                store_element(p, row(i), column(j), [&](float *to, const float *old) {
                    *to = epilogue(p.alpha, acc[i][j], p.beta, old);
                });
            } else if (max(row_count[i], column_count[j]) > most) {
                const float *old = c;
                p.old.find(old, row(i), column(j));
                *c = epilogue(p.alpha, acc[i][j], p.beta, old);
            }
        }
    // Not unrolled: the code for one element compiles in a fraction of the time that the code for all takes.
#pragma unroll 1
    for (int i = 0; i < EACH * EACH; ++i) {
        const int m = row(i / EACH), n = column(i % EACH);
        if (m >= block.m_end || n >= block.n_end) continue;
        const unsigned in_row = p.rows[m].left_out, in_column = p.columns[n].left_out;
        if (max(in_row, in_column) > most || in_row + in_column == 0) continue;
        if (SYM && n > m) continue;
        store_element(p, m, n, [&](float *c, const float *) {
            *c = __fmaf_rn(p.alpha, left_out_products(p, m, int(in_row), n, int(in_column)), *c);
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_guard_fp16x3(int M, int N, int K, float alpha, const ElementType<TYPE_A> *A, long long a_m,
                           long long a_k, const ElementType<TYPE_B> *B, long long b_k, long long b_n,
                           float beta, float *C, long long ldc, const Line *rows, const int *row_where,
                           const Line *columns, const int *column_where, const int *exceptions, int TILE_M,
                           int TILE_N, const float *source, long long source_row, long long source_column) {
    __shared__ __align__(16) float a[BK][PITCH], b[BK][PITCH];
    __shared__ unsigned found[WORDS * WARPS];  // a bit for each tile that was looked at, in their order
    const OldValues<SOURCE> old(source, source_row, source_column);
    const Problem problem{M,    N, K,   alpha, A,         a_m,     a_k,          B,  b_k, b_n,
                          beta, C, ldc, rows,  row_where, columns, column_where, old};
    const int tiles_n = (N + TILE_N - 1) / TILE_N;
    const long long tiles = static_cast<long long>((M + TILE_M - 1) / TILE_M) * tiles_n;
    const int down = (TILE_M + SIDE - 1) / SIDE, right = (TILE_N + SIDE - 1) / SIDE;
    griddepcontrol_wait();

    unsigned turn = 0;  // blocks of C so far
    for (long long first = 0; first < tiles; first += WORDS * THREADS) {
        int word[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const long long tile = first + i * THREADS + threadIdx.x;
            const bool exists =
                tile < tiles && (!SYM || (tile / tiles_n + 1) * TILE_M > tile % tiles_n * TILE_N);
            word[i] = exists ? exceptions[tile] : 0;
        }
        if (!__syncthreads_or(word[0] | word[1] | word[2] | word[3])) continue;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const unsigned bits = __ballot_sync(0xffffffffu, word[i] != 0);
            if (threadIdx.x % 32 == 0) found[i * WARPS + threadIdx.x / 32] = bits;
        }
        __syncthreads();
        for (int i = 0; i < WORDS * WARPS; ++i)
            for (unsigned bits = found[i]; bits; bits &= bits - 1) {
                const long long tile = first + i * 32 + __ffs(bits) - 1;
                const int m = static_cast<int>(tile / tiles_n) * TILE_M,
                          n = static_cast<int>(tile % tiles_n) * TILE_N;
                for (int s = 0; s < down * right; ++s) {
                    if (turn++ % gridDim.x != blockIdx.x) continue;
                    const int bm = m + s / right * SIDE, bn = n + s % right * SIDE;
                    const Block block{bm, bn, min(min(M, m + TILE_M), bm + SIDE),
                                      min(min(N, n + TILE_N), bn + SIDE)};
                    repair(problem, block, a, b);
                }
            }
        __syncthreads();
    }
}
