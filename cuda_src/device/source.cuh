// The source, which beta multiplies: C itself or, with SOURCE = 1 or 4, an array of its own with any strides.
// SOURCE is a constant, so a kernel that reads C itself has no extra instructions. Kernels with batches get
// the source with the batch; those of rung 11, which compute one product, get it as their last three
// arguments.
#pragma once
#include "device/batch.cuh"
#include "device/element.cuh"
#include "device/epilogue.cuh"

struct Source {
    const float *first;                   // element (0, 0) for the first product
    long long row_stride, column_stride;  // in elements; 0: all rows, or columns, are the same
    long long steps[3];                   // elements from one product to the next, as in Batch
};

// The last argument of a kernel with the constant SOURCE.
template <int SOURCE>
struct BatchAndSource : Batch {
    Source source;
};
template <>
struct BatchAndSource<0> : Batch {};

// The old values lie in C, whose elements are of a TYPE (device/element.cuh).
template <int TYPE_C = 0>
struct OldC {
    static constexpr int TYPE = TYPE_C;
    static constexpr bool IN_C = true;  // for a kernel whose instructions even an empty find() would reorder
    static constexpr int VEC = 4;       // floats that can be read together if so many are stored together

    // `old` points to element (m, n) of C; let it point to the old value. The pointer is not returned: with
    // one that a function returned, the compiler orders a kernel's instructions differently.
    __device__ __forceinline__ void find(const ElementType<TYPE> *&old, long long m, long long n) const {}

    // Elements from one old value to the next along a line of C.
    __device__ __forceinline__ long long step() const { return 1; }

    // Elements from the old values of a line of C to those of the next, where the lines of C are ldc apart.
    __device__ __forceinline__ long long line_step(long long ldc) const { return ldc; }
};

// The old values lie in a source: the counterpart of OldC, for the product of this block. With TRANS_C, a
// line of C is a column. Elements are of type TYPE_OLD.
template <int SOURCE, int TRANS_C = 0, int TYPE_OLD = 0>
struct OldValues {
    static constexpr int TYPE = TYPE_OLD;
    using Element = ElementType<TYPE>;
    static_assert(SOURCE == 1 || SOURCE == 4, "the source is read 4 or 16 bytes at a time");
    static constexpr bool IN_C = false;
    static constexpr int VEC = SOURCE;
    const Element *first;
    long long row_stride, column_stride;

    __device__ __forceinline__ OldValues(const Element *first, long long row_stride, long long column_stride)
        : first(first), row_stride(row_stride), column_stride(column_stride) {}
    __device__ __forceinline__ explicit OldValues(const BatchAndSource<SOURCE> &batch)
        : OldValues(first_of(batch.source), batch.source.row_stride, batch.source.column_stride) {
        if (batch.count > 1) first += batch_offset(batch, batch.source.steps);
    }
    // The same for a product with this number.
    __device__ __forceinline__ OldValues(const BatchAndSource<SOURCE> &batch, unsigned product)
        : OldValues(first_of(batch.source) + batch_offset(batch, batch.source.steps, product),
                    batch.source.row_stride, batch.source.column_stride) {}
    static __device__ __forceinline__ const Element *first_of(const Source &source) {
        return reinterpret_cast<const Element *>(source.first);
    }
    __device__ __forceinline__ void find(const Element *&old, long long m, long long n) const {
        old = first + m * row_stride + n * column_stride;
    }
    __device__ __forceinline__ long long step() const { return TRANS_C ? row_stride : column_stride; }
    __device__ __forceinline__ long long line_step(long long) const {
        return TRANS_C ? column_stride : row_stride;
    }

    // The same for a tile that is stored transposed: its element (m, n) is element (n, m) of C.
    __device__ __forceinline__ OldValues<SOURCE, !TRANS_C, TYPE> transposed() const {
        return {first, column_stride, row_stride};
    }
};
template <int TRANS_C, int TYPE_C>
struct OldValues<0, TRANS_C, TYPE_C> : OldC<TYPE_C> {
    __device__ __forceinline__ OldValues(const ElementType<TYPE_C> *, long long, long long) {}
    __device__ __forceinline__ explicit OldValues(const BatchAndSource<0> &) {}
    __device__ __forceinline__ OldValues(const BatchAndSource<0> &, unsigned) {}
    __device__ __forceinline__ OldValues<0, !TRANS_C, TYPE_C> transposed() const { return {nullptr, 0, 0}; }
};

// Four old values, `step` apart.
template <int VEC, int TYPE = 0>
__device__ __forceinline__ float4 four_values(const ElementType<TYPE> *old, long long step) {
    if constexpr (VEC == 4)
        return four_elements<TYPE>(old);
    else
        return make_float4(to_float<TYPE>(old[0]), to_float<TYPE>(old[step]), to_float<TYPE>(old[2 * step]),
                           to_float<TYPE>(old[3 * step]));
}

// The same as device/epilogue.cuh, with an old value of a TYPE.
template <int TYPE>
__device__ __forceinline__ float epilogue(float alpha, float acc, float beta, const ElementType<TYPE> *c) {
    if constexpr (TYPE == 0) return epilogue(alpha, acc, beta, c);
    return beta == 0.0f ? __fmul_rn(alpha, acc) : __fmaf_rn(alpha, acc, __fmul_rn(beta, to_float<TYPE>(*c)));
}

// COUNT neighbouring elements of one line of C from (m, n) on, of which those from `left` on lie past the
// matrix. VEC = 4 needs addresses aligned to four elements and a multiple of 4 for `left`; the host chooses
// VEC so that it is. The store_row of device/epilogue.cuh reads C itself; it does not call this one, because
// the compiler would then order the instructions of rungs 6 and 8 differently.
template <int COUNT, int VEC, int TYPE_C = 0, class Old>
__device__ __forceinline__ void store_row(ElementType<TYPE_C> *c, const float *acc, int left, float alpha,
                                          float beta, const Old &values, long long m, long long n) {
    static_assert(VEC == 1 || VEC == 4, "C is stored 4 or 16 bytes at a time");
    static_assert(COUNT % VEC == 0, "a row of the thread tile is whole vectors");
    const ElementType<Old::TYPE> *old = nullptr;
    if constexpr (Old::IN_C) old = c;
    values.find(old, m, n);
    const long long step = values.step();
#pragma unroll
    for (int j = 0; j < COUNT; j += VEC) {
        if (j >= left) continue;
        if constexpr (VEC == 4) {
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (beta != 0.0f) four = four_values<Old::VEC, Old::TYPE>(old + j * step, step);
            store_four<TYPE_C>(c + j, make_float4(epilogue(alpha, acc[j], beta, &four.x),
                                                  epilogue(alpha, acc[j + 1], beta, &four.y),
                                                  epilogue(alpha, acc[j + 2], beta, &four.z),
                                                  epilogue(alpha, acc[j + 3], beta, &four.w)));
        } else {
            c[j] = from_float<TYPE_C>(epilogue<Old::TYPE>(alpha, acc[j], beta, old + j * step));
        }
    }
}
