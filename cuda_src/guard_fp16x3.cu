// Rung 11: what pairs of FP16 numbers cannot express (device/split_format.cuh) is computed here by FP32
// arithmetic from the operands themselves, after the product, and without asking the host.
// - Elements of C whose row of A or column of B is dense in exceptions: one chain of FMAs in ascending k, as
//   on rungs 1 to 8. The product has not touched them, so beta finds the old C, or the source.
// - All other elements of C whose row or column had elements left out: their products are added.
// A tile of C with neither costs a look at one word. The SIDE x SIDE blocks of the others are dealt out to
// all blocks of the grid in turn. Every element of C is written by one thread, in a fixed order of additions.
//
// Of several parts of K, whose sums lie part_stride apart from C on, this is done in the first one, and the
// others have zeros where a line is dense.
//
// With SYM, this is done for the elements on and below the diagonal, whose results are stored, or added, in
// the triangles that SYM names. No word was written for a tile that does not meet the lower triangle.
//
// Grid: any number of blocks; about one an SM. Block: THREADS. A(m, k) lies at m * a_m + k * a_k, B(k, n) at
// k * b_k + n * b_n, C is row-major. `exceptions` has a word for each TILE_M x TILE_N tile of C, row by row.
#include "device/split_format.cuh"
#include "device/dependent_launch.cuh"
#include "device/grouped_rows.cuh"
#include "device/outer_product.cuh"
#include "device/shared_memory.cuh"
#include "device/source.cuh"
#include "device/triangle.cuh"

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int SOURCE = 0;   // 0: beta multiplies C; 1: the source, see device/source.cuh
constexpr int SYM = 0;      // 1: C is symmetric; 2, 3: one triangle is stored; see device/triangle.cuh
constexpr int TYPE_A = 0;   // of the elements of A: 0: float32, 1: bfloat16, 2: float16
constexpr int TYPE_B = 0;   // of the elements of B
constexpr int GROUPED = 0;  // 1: the rows are in groups, each with its own B; see device/grouped_rows.cuh
// constants:end
constexpr int SIDE = 128;            // rows and columns of a block
constexpr int BK = 16;               // steps of k of a stage in shared memory
constexpr int PITCH = SIDE + 4;      // floats from one k to the next: spreads the stores over the banks
constexpr int EACH = 8;              // a thread computes EACH x EACH elements, in four groups of 4 x 4
constexpr int ACROSS = SIDE / EACH;  // threads
constexpr int THREADS = ACROSS * ACROSS;
constexpr int COPIED = SIDE * BK / THREADS;  // elements of A, and of B, that a thread copies for BK steps
constexpr int WORDS = 4;                     // of the exceptions that a thread looks at together
constexpr int WARPS = THREADS / 32;
static_assert(THREADS == 2 * SIDE, "a thread reads what was left out of one line of a block");

// The i-th of the rows, or columns, of a block that a thread computes: EACH / 2 in each half of the block.
__device__ __forceinline__ int own_line(int thread, int i) {
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
    int parts;
    long long part_stride;
    const Line *rows;
    const int *row_where;
    const Line *columns;
    const int *column_where;
    OldValues<SOURCE> old;
    long long first_b;  // the place of a group's B in that of all groups, and of its first line
    int first_column;

    __device__ __forceinline__ float a(long long m, long long k) const {
        return to_float<TYPE_A>(A[m * a_m + k * a_k]);
    }
    __device__ __forceinline__ float b(long long k, long long n) const {
        return to_float<TYPE_B>(B[first_b + k * b_k + n * b_n]);
    }
};

// A block of C: rows from m, columns from n, up to m_end and n_end.
struct Block {
    int m, n, m_end, n_end;
};

// What was left out of the lines of a block: of each line how many elements and, of a sparse one, where they
// are, in ascending order, and the elements themselves. `sparse` lists the lines that lack some.
struct LeftOut {
    unsigned count[SIDE];
    int where[SIDE][SPARSE];
    float x[SIDE][SPARSE];
    int sparse[SIDE], sparse_lines;

    // Read line `own` of a block, which exists if it is `inside`; element(k) reads its k-th element. Return
    // whether it is dense.
    template <class Element>
    __device__ __forceinline__ bool read(int own, bool inside, long long line, const Line *lines,
                                         const int *places, unsigned most, Element element) {
        const unsigned left_out = inside ? lines[line].left_out : 0;
        count[own] = left_out;
        if (left_out > most) return true;
        if (left_out == 0) return false;
        int k = -1;
        for (int i = 0; i < int(left_out); ++i) {
            int next = 0x7fffffff;
            for (int slot = 0; slot < int(left_out); ++slot) {
                const int at = places[line * SPARSE + slot];
                if (at > k) next = min(next, at);
            }
            k = next;
            where[own][i] = k;
            x[own][i] = element(k);
        }
        sparse[atomicAdd(&sparse_lines, 1)] = own;
        return false;
    }
};

// The products of the elements left out of row m and of column n, which are the row-th and the column-th of
// their block.
__device__ __forceinline__ float left_out_products(const Problem &p, const LeftOut &rows, int row, int m,
                                                   const LeftOut &columns, int column, int n) {
    const int in_row = int(rows.count[row]), in_column = int(columns.count[column]);
    float sum = 0.0f;
    for (int i = 0; i < in_row; ++i) sum = __fmaf_rn(rows.x[row][i], p.b(rows.where[row][i], n), sum);
    for (int i = 0; i < in_column; ++i) {
        const int k = columns.where[column][i];
        bool counted = false;  // with the row
        for (int slot = 0; slot < in_row; ++slot) counted = counted || rows.where[row][slot] == k;
        if (!counted) sum = __fmaf_rn(p.a(m, k), columns.x[column][i], sum);
    }
    return sum;
}

// How a thread copies an operand to shared memory: COPIED elements at a time, of the lines (rows of A or
// columns of B) from `first` to `end`. Neighbouring threads read neighbours in memory. What lies past the end
// of the lines is a copy of a line that exists: it reaches no element of C.
template <int TYPE>
struct Copy {
    const ElementType<TYPE> *x;  // the thread's first element at k = 0
    long long stride_k, offset[COPIED];
    int k, k_step, place, place_step;

    __device__ __forceinline__ Copy(const ElementType<TYPE> *X, long long stride_line, long long stride_k,
                                    int first, int end)
        : stride_k(stride_k) {
        const bool along_k = stride_k == 1;
        const int line = along_k ? threadIdx.x / BK : threadIdx.x % SIDE;
        const int line_step = along_k ? THREADS / BK : 0;
        k = along_k ? threadIdx.x % BK : threadIdx.x / SIDE, k_step = along_k ? 0 : THREADS / SIDE;
        place = k * PITCH + line, place_step = k_step * PITCH + line_step;
        const int inside = first + line < end ? line : 0, most = end - first - 1 - inside;
        x = X + (first + inside) * stride_line + k * stride_k;
#pragma unroll
        for (int i = 0; i < COPIED; ++i) {
            const int lines = i * line_step <= most ? i * line_step : 0;
            offset[i] = lines * stride_line + i * k_step * stride_k;
        }
    }

    // Read BK steps from k0 on.
    __device__ __forceinline__ void read(float (&values)[COPIED], int k0) const {
#pragma unroll
        for (int i = 0; i < COPIED; ++i) values[i] = to_float<TYPE>(x[k0 * stride_k + offset[i]]);
    }
    // Read the steps from k0 up to K, of which there are less than BK.
    __device__ __forceinline__ void read_end(float (&values)[COPIED], int k0, int K) const {
#pragma unroll
        for (int i = 0; i < COPIED; ++i)
            values[i] = k0 + k + i * k_step < K ? to_float<TYPE>(x[k0 * stride_k + offset[i]]) : 0.0f;
    }
    __device__ __forceinline__ void write(const float (&values)[COPIED], float (&tile)[BK][PITCH]) const {
#pragma unroll
        for (int i = 0; i < COPIED; ++i) (&tile[0][0])[place + i * place_step] = values[i];
    }
};

// One step of k for a thread.
__device__ __forceinline__ void multiply_step(const float (&a)[PITCH], const float (&b)[PITCH],
                                              float (&acc)[EACH][EACH]) {
    const int ty = threadIdx.x / ACROSS, tx = threadIdx.x % ACROSS;
    float l[EACH], r[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        load_fragment<4>(&l[i], &a[own_line(ty, i)]);
        load_fragment<4>(&r[i], &b[own_line(tx, i)]);
    }
    outer_product<1>(acc, l, r);
}

// acc[i][j] = a row of A times a column of B, in FP32: those at own_line(ty, i) and own_line(tx, j) of the
// block. The elements for the next BK steps are copied to the other of two stages while these are multiplied.
__device__ __forceinline__ void multiply(const Problem &p, const Block &block, float (&a)[2][BK][PITCH],
                                         float (&b)[2][BK][PITCH], float (&acc)[EACH][EACH]) {
    const Copy<TYPE_A> copy_a(p.A, p.a_m, p.a_k, block.m, block.m_end);
    const Copy<TYPE_B> copy_b(p.B + p.first_b, p.b_n, p.b_k, block.n, block.n_end);
    float next_a[COPIED], next_b[COPIED];
    const auto read = [&](int k0) {
        if (k0 + BK <= p.K) {
            copy_a.read(next_a, k0), copy_b.read(next_b, k0);
        } else {
            copy_a.read_end(next_a, k0, p.K), copy_b.read_end(next_b, k0, p.K);
        }
    };
    read(0);
    copy_a.write(next_a, a[0]);
    copy_b.write(next_b, b[0]);
    __syncthreads();
    int stage = 0, k0 = 0;
#pragma unroll 1
    for (; k0 + BK <= p.K; k0 += BK, stage ^= 1) {
        read(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) multiply_step(a[stage][k], b[stage][k], acc);
        copy_a.write(next_a, a[stage ^ 1]);
        copy_b.write(next_b, b[stage ^ 1]);
        __syncthreads();
    }
#pragma unroll 1
    for (int k = 0; k < p.K - k0; ++k) multiply_step(a[stage][k], b[stage][k], acc);
}

// Call store(c, old value) wherever the result of (m, n), with SYM on or below the diagonal, is stored.
template <class Store>
__device__ __forceinline__ void store_element(const Problem &p, int m, int n, Store store) {
    const auto store_at = [&](int row, int column) {
        float *c = p.C + row * p.ldc + column;
        const float *old = c;
        p.old.find(old, row, column);
        store(c, old);
    };
    if (stores_lower(SYM)) store_at(m, n);
    if (stores_upper(SYM) && is_inside<upper_of(SYM)>(n, m)) store_at(n, m);
}

// What the threads of a block share.
struct Shared {
    float a[2][BK][PITCH], b[2][BK][PITCH];
    LeftOut rows, columns;
};

// Lay the i-th of the rows of each thread in `stage`, one below the other. Registers need fixed numbers, so
// this is written out for each row, and what follows is a loop. ROW is a template argument, because the
// compiler would replace a loop variable by `i`.
template <int ROW = 0>
__device__ __forceinline__ void write_rows(const float (&acc)[EACH][EACH], float *stage, int i) {
    if constexpr (ROW < EACH) {
        const unsigned mine = shared_address(stage) + 4 * (threadIdx.x / ACROSS * PITCH);
        if (i == ROW) {
#pragma unroll
            for (int j = 0; j < EACH; j += 4) {
                const float values[4] = {acc[ROW][j], acc[ROW][j + 1], acc[ROW][j + 2], acc[ROW][j + 3]};
                store_shared<4>(mine + 4 * own_line(threadIdx.x % ACROSS, j), values);
            }
        }
        write_rows<ROW + 1>(acc, stage, i);
    }
}

// Compute the elements of a block whose row or column is dense.
__device__ __forceinline__ void compute_dense(const Problem &p, const Block &block, unsigned most,
                                              Shared &shared) {
    float acc[EACH][EACH] = {};
    multiply(p, block, shared.a, shared.b, acc);
    float *const stage = &shared.a[0][0][0];
    static_assert(sizeof(shared.a) >= 4 * ACROSS * PITCH, "one row of each thread fits");
#pragma unroll 1
    for (int i = 0; i < EACH; ++i) {
        __syncthreads();  // all have read what the stage held
        write_rows(acc, stage, i);
        __syncthreads();
#pragma unroll 1
        for (int e = threadIdx.x; e < ACROSS * SIDE; e += THREADS) {
            const int row = own_line(e / SIDE, i), column = e % SIDE, m = block.m + row, n = block.n + column;
            if (m >= block.m_end || n >= block.n_end || (SYM && n > m)) continue;
            if (max(shared.rows.count[row], shared.columns.count[column]) <= most) continue;
            const float sum = stage[e / SIDE * PITCH + column];
            store_element(p, m, n, [&](float *c, const float *old) {
                *c = epilogue(p.alpha, sum, p.beta, old);
                if constexpr (!SOURCE && SYM != 1)  // else there is one part
#pragma unroll 1
                    for (int part = 1; part < p.parts; ++part) c[part * p.part_stride] = 0.0f;
            });
        }
    }
}

// Add the products of what was left out of sparse lines: first those of the rows that lack elements, then
// those of the columns, with the other rows.
__device__ __forceinline__ void add_left_out(const Problem &p, const Block &block, unsigned most,
                                             const LeftOut &rows, const LeftOut &columns) {
    const int of_rows = rows.sparse_lines * SIDE, all = of_rows + columns.sparse_lines * SIDE;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += THREADS) {
        const bool by_row = i < of_rows;
        const int row = by_row ? rows.sparse[i / SIDE] : i % SIDE;
        const int column = by_row ? i % SIDE : columns.sparse[(i - of_rows) / SIDE];
        const int m = block.m + row, n = block.n + column;
        if (m >= block.m_end || n >= block.n_end || (SYM && n > m)) continue;
        if (by_row ? columns.count[column] > most : rows.count[row] > 0) continue;
        constexpr bool lower = stores_lower(SYM);
        const bool upper = stores_upper(SYM) && is_inside<upper_of(SYM)>(n, m);
        float *const c = p.C + m * p.ldc + n, *const mirrored = p.C + n * p.ldc + m;
        // They are on their way while the products are computed.
        const float sum = lower ? *c : 0.0f, mirrored_sum = upper ? *mirrored : 0.0f;
        const float products = left_out_products(p, rows, row, m, columns, column, n);
        if (lower) *c = __fmaf_rn(p.alpha, products, sum);
        if (upper) *mirrored = __fmaf_rn(p.alpha, products, mirrored_sum);
    }
}

__device__ __forceinline__ void repair(const Problem &p, const Block &block, Shared &shared) {
    const unsigned most = most_left_out(p.alpha);
    const int own = threadIdx.x % SIDE;
    __syncthreads();  // the block before was repaired
    if (own == 0) (threadIdx.x < SIDE ? shared.rows : shared.columns).sparse_lines = 0;
    __syncthreads();
    bool dense;
    if (threadIdx.x < SIDE) {
        const int m = block.m + own;
        dense = shared.rows.read(own, m < block.m_end, m, p.rows, p.row_where, most,
                                 [&](int k) { return p.a(m, k); });
    } else {
        const int n = block.n + own;
        dense = shared.columns.read(own, n < block.n_end, n, p.columns + p.first_column,
                                    p.column_where + p.first_column * SPARSE, most,
                                    [&](int k) { return p.b(k, n); });
    }
    if (__syncthreads_or(dense)) compute_dense(p, block, most, shared);
    add_left_out(p, block, most, shared.rows, shared.columns);
}

using Table = GroupTable<THREADS, SWIZZLED_LINES>;

// The problem whose B is that of a group.
__device__ __forceinline__ Problem of_group(Problem p, const Group &group, long long step_b) {
    p.first_b = group.number * step_b;
    p.first_column = int(first_line_of_b(group.number, p.N));
    return p;
}

// A block of C whose rows were counted as if all tiles lay one below the other, where it lies: only rows of
// its group.
__device__ __forceinline__ Block in_group(Block block, const Group &group, int TILE_M) {
    const int up = group.tiles_before * TILE_M - group.first / SWIZZLED_LINES * SWIZZLED_LINES;
    const int end = group.first + group.extent;
    return {max(block.m - up, group.first), block.n, min(block.m_end - up, end), block.n_end};
}

// Return which of the bits of `found` is the number-th that is set.
__device__ __forceinline__ int find_bit(const unsigned *found, int number) {
    int i = 0;
    for (; number >= __popc(found[i]); ++i) number -= __popc(found[i]);
    unsigned bits = found[i];
    for (; number > 0; --number) bits &= bits - 1;
    return i * 32 + __ffs(bits) - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fastsgemm_guard_fp16x3(int M, int N, int K, float alpha, const ElementType<TYPE_A> *A, long long a_m,
                           long long a_k, const ElementType<TYPE_B> *B, long long b_k, long long b_n,
                           float beta, float *C, long long ldc, int parts, long long part_stride,
                           const Line *rows, const int *row_where, const Line *columns,
                           const int *column_where, const int *exceptions, int TILE_M, int TILE_N,
                           const float *source, long long source_row, LastArgument<GROUPED>::Type last) {
    __shared__ __align__(16) Shared shared;
    __shared__ unsigned found[WORDS * WARPS];  // a bit for each tile that was looked at, in their order
    const GroupedRows grouped = LastArgument<GROUPED>::rows(last);
    const OldValues<SOURCE> old(source, source_row, grouped.source_column);
    const Problem problem{M,    N, K,   alpha, A,           a_m,  a_k,       B,       b_k,          b_n,
                          beta, C, ldc, parts, part_stride, rows, row_where, columns, column_where, old,
                          0,    0};
    const int tiles_n = (N + TILE_N - 1) / TILE_N;
    long long tiles = static_cast<long long>((M + TILE_M - 1) / TILE_M) * tiles_n;
    const int down = (TILE_M + SIDE - 1) / SIDE, right = (TILE_N + SIDE - 1) / SIDE;
    launch_dependents();  // reduce_parts, which adds up the parts
    griddepcontrol_wait();
    const Table table{grouped.groups, int(grouped.count), M};
    int *const scratch = reinterpret_cast<int *>(&shared);
    if constexpr (GROUPED) tiles = static_cast<long long>(table.count_tiles(scratch, TILE_M)) * tiles_n;

    // This block of the grid takes every gridDim.x-th of the blocks of C: from `next` on, of `before` so far.
    unsigned next = blockIdx.x, before = 0;
    for (long long first = 0; first < tiles; first += WORDS * THREADS) {
        int word[WORDS], any = 0;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const long long tile = first + i * THREADS + threadIdx.x;
            const bool exists =
                tile < tiles && (!SYM || (tile / tiles_n + 1) * TILE_M > tile % tiles_n * TILE_N);
            word[i] = exists ? exceptions[tile] : 0;
            any |= word[i];
        }
        if (!__syncthreads_or(any)) continue;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const unsigned bits = __ballot_sync(0xffffffffu, word[i] != 0);
            if (threadIdx.x % 32 == 0) found[i * WARPS + threadIdx.x / 32] = bits;
        }
        __syncthreads();
        unsigned blocks = 0;
        for (int i = 0; i < WORDS * WARPS; ++i) blocks += __popc(found[i]) * down * right;
        for (; next < before + blocks; next += gridDim.x) {
            const long long tile = first + find_bit(found, (next - before) / (down * right));
            const int m = static_cast<int>(tile / tiles_n) * TILE_M,
                      n = static_cast<int>(tile % tiles_n) * TILE_N;
            const int in_tile = (next - before) % (down * right);
            const int block_m = m + in_tile / right * SIDE, block_n = n + in_tile % right * SIDE;
            const int most_m = GROUPED ? m + TILE_M : min(M, m + TILE_M);  // rows of groups are cut below
            const Block block{block_m, block_n, min(most_m, block_m + SIDE),
                              min(min(N, n + TILE_N), block_n + SIDE)};
            if constexpr (GROUPED) {
                __syncthreads();  // the block before was repaired
                const Group group = table.of_tile(scratch, static_cast<int>(tile / tiles_n), TILE_M);
                repair(of_group(problem, group, grouped.step_b), in_group(block, group, TILE_M), shared);
            } else {
                repair(problem, block, shared);
            }
        }
        before += blocks;
        __syncthreads();
    }
}
