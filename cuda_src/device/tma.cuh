// The tensor memory accelerator (sm_90): one thread has a whole box of a tensor in global memory copied to
// shared memory. The host describes the tensor and the box in a tensor map, a kernel parameter marked
// __grid_constant__. What lies outside the tensor arrives as zeros.
#pragma once

struct alignas(64) TensorMap {
    unsigned long long opaque[16];  // as cuTensorMapEncodeTiled writes it
};

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copy the box at (x, y, z) of a three-dimensional tensor to shared memory. The bytes are counted by
// `barrier`.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap &map, unsigned barrier, int x, int y,
                                         int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
        "%5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
