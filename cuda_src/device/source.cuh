// What beta multiplies, the source: C itself or, with SOURCE = 1 or 4, an array of its own with any strides.
// SOURCE is a constant, so a kernel that reads C itself has no argument and no instruction more.
#pragma once
#include "device/batch.cuh"
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

// The old values for the product that this block works on; see OldC in device/epilogue.cuh for what its
// members are. With TRANS_C, a line of C is a column.
template <int SOURCE, int TRANS_C = 0>
struct OldValues {
    static_assert(SOURCE == 1 || SOURCE == 4, "the source is read 4 or 16 bytes at a time");
    static constexpr int VEC = SOURCE;
    const float *first;
    long long row_stride, column_stride;

    __device__ __forceinline__ explicit OldValues(const BatchAndSource<SOURCE> &batch)
        : first(batch.source.first),
          row_stride(batch.source.row_stride),
          column_stride(batch.source.column_stride) {
        if (batch.count > 1) first += batch_offset(batch, batch.source.steps);
    }
    __device__ __forceinline__ void find(const float *&old, long long m, long long n) const {
        old = first + m * row_stride + n * column_stride;
    }
    __device__ __forceinline__ long long step() const { return TRANS_C ? row_stride : column_stride; }
};
template <int TRANS_C>
struct OldValues<0, TRANS_C> : OldC {
    __device__ __forceinline__ explicit OldValues(const BatchAndSource<0> &) {}
};
