// Rung 11: the end of a tile of C, once its sums are in registers.
#pragma once
#include "device/split_format.cuh"
#include "device/element.cuh"
#include "device/epilogue.cuh"
#include "device/raster.cuh"
#include "device/shared_memory.cuh"
#include "device/source.cuh"
#include "device/triangle.cuh"

// What a kernel stores: tiles of ROWS x COLUMNS elements, of a C that is column-major with TRANS = 1, VEC
// elements at a time, of type TYPE (device/element.cuh). See device/triangle.cuh for SYMMETRY.
template <int ROWS, int COLUMNS, int TRANS, int VEC, int SYMMETRY, int TYPE = 0, bool LOOP = false>
struct StoreLayout {
    static constexpr int BM = ROWS, BN = COLUMNS, TRANS_C = TRANS, VEC_C = VEC, SYM = SYMMETRY, TYPE_C = TYPE;
    static constexpr Triangle TRIANGLE = SYM ? Triangle::LOWER : Triangle::WHOLE;
    // Whether what is not whole tiles is stored in a loop, because a kernel has other code for these.
    static constexpr bool LOOPS = LOOP || SYM;
    static_assert(VEC_C == 1 || (VEC_C == 4 && !TRANS_C),
                  "C is stored one or four elements at a time, along a row");
    static_assert(SYM >= 0 && SYM <= 3, "see device/triangle.cuh");
    static_assert(!(SYM && TRANS_C), "with SYM, the transpose of what is stored is stored as well");
};

// The layout in which the transpose of a symmetric result is stored: where C has a row, it has a column.
template <class Layout>
struct MirroredLayout {
    static constexpr int TRANS_C = !Layout::TRANS_C, VEC_C = Layout::VEC_C, TYPE_C = Layout::TYPE_C;
    static constexpr Triangle TRIANGLE = upper_of(Layout::SYM);
    static constexpr bool LOOPS = true;
};

// Return whether a tile holds lines with exceptions. By one warp.
template <class Layout>
__device__ __forceinline__ unsigned has_exceptions(Tile tile, int M, int N, const Line *rows,
                                                   const Line *columns) {
    const int lane = threadIdx.x % 32;
    unsigned any = 0;
    for (int i = tile.m + lane; i < min(M, tile.m + Layout::BM); i += 32) any |= rows[i].left_out;
    for (int i = tile.n + lane; i < min(N, tile.n + Layout::BN); i += 32) any |= columns[i].left_out;
    return __any_sync(0xffffffffu, any != 0);
}

// Note for the guard kernel whether a tile holds lines with exceptions. By one warp.
template <class Layout>
__device__ __forceinline__ void note_exceptions(Tile tile, int M, int N, const Line *rows,
                                                const Line *columns, int *exceptions) {
    const int lane = threadIdx.x % 32;
    constexpr int BM = Layout::BM, BN = Layout::BN;
    const unsigned any = has_exceptions<Layout>(tile, M, N, rows, columns);
    const unsigned down = tile.m / BM, right = tile.n / BN;
    // In the order of C's memory: row by row where C is row-major.
    const unsigned place =
        Layout::TRANS_C ? right * ((M + BM - 1u) / BM) + down : down * ((N + BN - 1u) / BN) + right;
    if (lane == 0) exceptions[place] = any;
}

// Shared memory through which a warp lays what it stores, in floats. It begins at a multiple of 16 bytes.
constexpr int STORE_SCRATCH = 320;

// What a store has to know of a line: its exponent, or that its elements of C are not stored here because the
// line is dense in exceptions or outside of C. The code of an element is the sum of its row's and its
// column's.
constexpr int NOT_STORED = 1 << 20;

__device__ __forceinline__ bool is_stored(int code) {
    return code < NOT_STORED / 2;
}

// Rows of C that are stored.
struct RowRange {
    int first, end;
};

// Whether a line, of so many or of a range, is not stored.
__device__ __forceinline__ bool is_outside(int i, int end) {
    return i >= end;
}
__device__ __forceinline__ bool is_outside(int i, RowRange range) {
    return i < range.first || i >= range.end;
}

template <class Lines>
__device__ __forceinline__ int store_code(const Line *lines, int i, Lines all, float alpha) {
    if (is_outside(i, all)) return NOT_STORED;
    if (lines == nullptr) return 0;
    const Line line = lines[i];
    return line.left_out <= most_left_out(alpha) ? line.exponent : NOT_STORED;
}

// VEC values of a TYPE, `apart` from one to the next: those that are stored here. With `all`, TOGETHER
// neighbours are read at once.
template <int TOGETHER, int TYPE = 0, int VEC>
__device__ __forceinline__ void load_vector(float (&value)[VEC], const ElementType<TYPE> *from,
                                            const int (&code)[VEC], bool all, long long apart = 1) {
    if (VEC == 4 && TOGETHER == 4 && all) {
        const float4 v = four_elements<TYPE>(from);
        value[0] = v.x, value[1 % VEC] = v.y, value[2 % VEC] = v.z, value[3 % VEC] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            if (is_stored(code[i])) value[i] = to_float<TYPE>(from[i * apart]);
    }
}

template <int TYPE, int VEC>
__device__ __forceinline__ void store_vector(ElementType<TYPE> *to, const float (&value)[VEC],
                                             const int (&code)[VEC], bool all) {
    if (VEC == 4 && all) {
        store_four<TYPE>(to, make_float4(value[0], value[1 % VEC], value[2 % VEC], value[3 % VEC]));
    } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            if (is_stored(code[i])) to[i] = from_float<TYPE>(value[i]);
    }
}

// Where a warp stores 16 x COLS elements of C in passes of 256. Lanes that store neighbours are neighbours.
template <class Layout, int COLS>
struct StorePass {
    static constexpr bool TRANS_C = Layout::TRANS_C;
    static constexpr int VEC = Layout::VEC_C;
    static constexpr int WIDTH = TRANS_C || COLS % 32 != 0 ? 16 : 32;  // columns
    static constexpr int HEIGHT = 256 / WIDTH;                         // rows
    static constexpr int PITCH = WIDTH + WIDTH / 4;  // floats of a row in shared memory: few bank conflicts
    static constexpr int ABREAST = (TRANS_C ? HEIGHT : WIDTH) / VEC;  // lanes that store neighbours
    static constexpr int STEPS = 8 / VEC;                             // stores of a lane
    static constexpr int PASSES = 16 * COLS / 256;
    // A triangle is stored in a loop over the passes. Its code tests each element: unrolled, it would take
    // longer to fetch than to run, or need too many registers.
    static constexpr bool LOOPS = Layout::LOOPS;
    static constexpr int UNROLLED = LOOPS ? 1 : PASSES;
    static_assert(HEIGHT * PITCH <= STORE_SCRATCH, "a pass fits");

    // Lay the sums of a pass in shared memory. Registers need fixed numbers, so this is written out for each
    // pass, even where what follows is a loop over them. EACH is a template argument, because the compiler
    // would replace a loop variable by `pass` and then put the sums in memory.
    template <int EACH = 0>
    static __device__ __forceinline__ void write(const float (&sum)[COLS / 2], float *scratch, int pass) {
        if constexpr (EACH < PASSES) {
            constexpr int first_row = EACH * HEIGHT % 16, first_column = EACH * HEIGHT / 16 * WIDTH;
            const int lane = threadIdx.x % 32;
            if (pass == EACH) {
#pragma unroll
                for (int h = 0; h < HEIGHT; h += 8)
#pragma unroll
                    for (int e = 0; e < WIDTH; e += 8) {
                        const int i = (first_column + e) / 2 + (first_row + h) / 4;
                        *reinterpret_cast<float2 *>(scratch + (lane / 4 + h) * PITCH + e + lane % 4 * 2) =
                            make_float2(sum[i], sum[i + 1]);
                    }
            }
            write<EACH + 1>(sum, scratch, pass);
        }
    }

    // The row and the column of a lane's first store in a pass; the others lie STRIDE rows, or columns,
    // apart.
    static constexpr int STRIDE = 32 / ABREAST;
    static __device__ __forceinline__ int row(int lane) {
        return TRANS_C ? lane % ABREAST * VEC : lane / ABREAST;
    }
    static __device__ __forceinline__ int column(int lane) {
        return TRANS_C ? lane / ABREAST : lane % ABREAST * VEC;
    }
};

// Write 16 rows of C from m on and 2 PLACES columns from n on: the sums of a warp as mma and wgmma leave
// them, scaled, with alpha and beta, where both lines are sparse in exceptions. Without `rows` and `columns`
// every line has the exponent 0: with alpha = 1 and beta = 0 the sums are stored as they are. Old says where
// the old values lie (device/source.cuh). The sums go through the warp's own shared memory, because a warp
// has only eight neighbours of a row in its registers at a time: stored from there, an unaligned C would be
// written in twice as many sectors.
template <class Layout, class Old, class Rows, int PLACES>
__device__ __forceinline__ void store_sums(const float (&sum)[PLACES], float *scratch, int m, int n, Rows M,
                                           int N, float alpha, const Line *rows, const Line *columns,
                                           float beta, ElementType<Layout::TYPE_C> *C, long long ldc,
                                           const Old &values) {
    constexpr unsigned ALL = 0xffffffffu;
    constexpr int COLS = 2 * PLACES;
    using Pass = StorePass<Layout, COLS>;
    constexpr int VEC = Pass::VEC, STEPS = Pass::STEPS, WIDTH = Pass::WIDTH, HEIGHT = Pass::HEIGHT;
    const int lane = threadIdx.x % 32;
    constexpr bool TRANS_C = Layout::TRANS_C;
    const long long down = TRANS_C ? 1 : ldc, right = TRANS_C ? ldc : 1;
    // From a store of a lane to its next, and so for the old values.
    const long long stride = Pass::STRIDE * ldc, old_stride = Pass::STRIDE * values.line_step(ldc);
    // Of row m + lane, and of the columns of a pass, or of all, from the first on; other lanes ask for them.
    const int row_code = store_code(rows, m + lane % 16, M, alpha);
    constexpr int CODES = Pass::LOOPS ? 1 : (COLS + 31) / 32;
    int column_codes[CODES];
#pragma unroll
    for (int i = 0; i < CODES; ++i)
        column_codes[i] = store_code(columns, n + (Pass::LOOPS ? lane % WIDTH : lane + 32 * i), N, alpha);

#pragma unroll Pass::UNROLLED
    for (int pass = 0; pass < Pass::PASSES; ++pass) {
        const int first_row = pass * HEIGHT % 16, first_column = pass * HEIGHT / 16 * WIDTH;
        __syncwarp();  // the lanes have read the pass before
        Pass::write(sum, scratch, pass);
        __syncwarp();  // the lanes have written
        const int column_code = column_codes[Pass::LOOPS ? 0 : first_column / 32];
        const int before = Pass::LOOPS ? 0 : first_column % 32;  // columns of other passes
        if constexpr (Pass::LOOPS)
            column_codes[0] =
                store_code(columns, n + (pass + 1) * HEIGHT / 16 * WIDTH + lane % WIDTH, N, alpha);
        const int row = Pass::row(lane), column = Pass::column(lane);
        const float *from = scratch + row * Pass::PITCH + column;
        ElementType<Layout::TYPE_C> *to =
            C + (m + first_row + row) * down + (n + first_column + column) * right;
        int own_code[VEC];  // of the columns that the lane has in every step or, with TRANS_C, of the rows
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            own_code[i] = TRANS_C ? __shfl_sync(ALL, row_code, first_row + row + i)
                                  : __shfl_sync(ALL, column_code, before + column + i);
        int code[STEPS][VEC];
        bool all[STEPS];
        float old[STEPS][VEC];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int shift = step * Pass::STRIDE;
            const int down_of_m = first_row + row + (TRANS_C ? 0 : shift);
            const int right_of_n = column + (TRANS_C ? shift : 0);  // in the pass
            const int of_line = TRANS_C ? __shfl_sync(ALL, column_code, before + right_of_n)
                                        : __shfl_sync(ALL, row_code, down_of_m);
            all[step] = true;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                code[step][i] = of_line + own_code[i];
                if constexpr (Layout::TRIANGLE != Triangle::WHOLE) {
                    const int in_m = m + down_of_m, in_n = n + first_column + right_of_n;
                    if (!is_inside<Layout::TRIANGLE>(TRANS_C ? in_n : in_m, (TRANS_C ? in_m : in_n) + i))
                        code[step][i] = NOT_STORED;
                }
                all[step] = all[step] && is_stored(code[step][i]);
            }
        }
        if (beta != 0.0f) {
            const ElementType<Old::TYPE> *old_values;
            if constexpr (Old::IN_C)
                old_values = to;
            else
                values.find(old_values, m + first_row + row, n + first_column + column);
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                load_vector<Old::VEC, Old::TYPE>(old[step], old_values + step * old_stride, code[step],
                                                 all[step], values.step());
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            float value[VEC];
            load_vector<TRANS_C ? 1 : VEC>(value, from + step * Pass::STRIDE * (TRANS_C ? 1 : Pass::PITCH),
                                           code[step], VEC == 4, TRANS_C ? Pass::PITCH : 1);
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                value[i] = epilogue(alpha, scale_by_power(value[i], code[step][i]), beta, &old[step][i]);
            store_vector<Layout::TYPE_C>(to + step * stride, value, code[step], all[step]);
        }
    }
}

// The same for sums that all lie in C, whose lines have no exponents: a third of the code of store_sums,
// which a kernel fetches anew for every tile.
template <class Layout, class Old, int PLACES>
__device__ __forceinline__ void store_whole(const float (&sum)[PLACES], float *scratch, int m, int n,
                                            float alpha, float beta, ElementType<Layout::TYPE_C> *C,
                                            long long ldc, const Old &values) {
    using Pass = StorePass<Layout, 2 * PLACES>;
    constexpr bool TRANS_C = Layout::TRANS_C;
    constexpr int VEC = Pass::VEC, STEPS = Pass::STEPS;
    constexpr int ALL[VEC] = {};  // codes of elements that are stored
    const int lane = threadIdx.x % 32, row = Pass::row(lane), column = Pass::column(lane);
    const long long down = TRANS_C ? 1 : ldc, right = TRANS_C ? ldc : 1;
    const long long stride = Pass::STRIDE * ldc, old_stride = Pass::STRIDE * values.line_step(ldc);
    const float *from = scratch + row * Pass::PITCH + column;
    ElementType<Layout::TYPE_C> *const first = C + (m + row) * down + (n + column) * right;
#pragma unroll
    for (int pass = 0; pass < Pass::PASSES; ++pass) {
        const int first_row = pass * Pass::HEIGHT % 16, first_column = pass * Pass::HEIGHT / 16 * Pass::WIDTH;
        __syncwarp();  // the lanes have read the pass before
        Pass::write(sum, scratch, pass);
        __syncwarp();  // the lanes have written
        ElementType<Layout::TYPE_C> *to = first + first_row * down + first_column * right;
        float value[STEPS][VEC], old[STEPS][VEC];
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            load_vector<TRANS_C ? 1 : VEC>(value[step],
                                           from + step * Pass::STRIDE * (TRANS_C ? 1 : Pass::PITCH), ALL,
                                           true, TRANS_C ? Pass::PITCH : 1);
        if (beta != 0.0f) {
            const ElementType<Old::TYPE> *old_values;
            if constexpr (Old::IN_C)
                old_values = to;
            else
                values.find(old_values, m + first_row + row, n + first_column + column);
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                load_vector<Old::VEC, Old::TYPE>(old[step], old_values + step * old_stride, ALL, true,
                                                 values.step());
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                value[step][i] = epilogue(alpha, value[step][i], beta, &old[step][i]);
            store_vector<Layout::TYPE_C>(to + step * stride, value[step], ALL, true);
        }
    }
}

// Write the sums where SYM says, a constant of the layout (device/triangle.cuh). Otherwise as store_sums.
template <class Layout, class Old, int PLACES>
__device__ __forceinline__ void store_triangles(const float (&sum)[PLACES], float *scratch, int m, int n,
                                                int M, int N, float alpha, const Line *rows,
                                                const Line *columns, float beta,
                                                ElementType<Layout::TYPE_C> *C, long long ldc,
                                                const Old &values) {
    if constexpr (stores_lower(Layout::SYM))
        store_sums<Layout>(sum, scratch, m, n, M, N, alpha, rows, columns, beta, C, ldc, values);
    if constexpr (stores_upper(Layout::SYM))
        store_sums<MirroredLayout<Layout>>(sum, scratch, m, n, M, N, alpha, rows, columns, beta, C, ldc,
                                           values.transposed());
}
