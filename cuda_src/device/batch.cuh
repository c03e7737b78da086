// A batch: products of one shape, whose operands lie at even distances along up to three dimensions. A grid
// has the blocks of one product along x, and one product for each block along y and z.
#pragma once

struct Batch {
    unsigned count;              // of products
    unsigned middle, inner;      // extents of the last two dimensions
    long long a[3], b[3], c[3];  // elements from one product to the next along each dimension
};

// Elements from the first product to another, by its number.
__device__ __forceinline__ long long batch_offset(const Batch &batch, const long long (&steps)[3],
                                                  unsigned product) {
    const unsigned row = product / batch.inner;
    return row / batch.middle * steps[0] + row % batch.middle * steps[1] + product % batch.inner * steps[2];
}

// Elements from the first product to the one that this block works on.
__device__ __forceinline__ long long batch_offset(const Batch &batch, const long long (&steps)[3]) {
    return batch_offset(batch, steps, blockIdx.z * gridDim.y + blockIdx.y);
}

// Whether this block has a product: a grid may have more blocks along y and z than there are products.
__device__ __forceinline__ bool is_in_batch(const Batch &batch) {
    return blockIdx.z * gridDim.y + blockIdx.y < batch.count;
}

// Move the operands to the product that this block works on; return whether there is one. For kernels with
// the constant BATCHED, which call it only where that is 1.
template <class A, class B, class C>
__device__ __forceinline__ bool move_to_product(const Batch &batch, A &a, B &b, C &c) {
    a += batch_offset(batch, batch.a);
    b += batch_offset(batch, batch.b);
    c += batch_offset(batch, batch.c);
    return is_in_batch(batch);
}

// The same for a kernel without BATCHED, which reads one array and writes one: `from` is moved by the
// distances of A, `to` by those of C.
template <class From, class To>
__device__ __forceinline__ bool move_to_product(const Batch &batch, From &from, To &to) {
    if (batch.count > 1) {
        if (!is_in_batch(batch)) return false;
        from += batch_offset(batch, batch.a);
        to += batch_offset(batch, batch.c);
    }
    return true;
}
