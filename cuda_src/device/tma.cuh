// The tensor memory accelerator (sm_90): one thread starts the copy of a whole box of a tensor from global to
// shared memory. The host describes the tensor and the box in a tensor map, a kernel parameter marked
// __grid_constant__. What lies outside the tensor arrives as zeros.
#pragma once

struct alignas(64) TensorMap {
    unsigned long long opaque[16];  // as cuTensorMapEncodeTiled writes it
};

__device__ __forceinline__ void prefetch_tensormap(const TensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Start copying the box at (x, y, z) of a three-dimensional tensor to shared memory. The copy completes on
// the mbarrier `barrier`, which counts its bytes.
__device__ __forceinline__ void cp_async_bulk_tensor_3d(unsigned to, const TensorMap &map, unsigned barrier,
                                                        int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
        "%5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
