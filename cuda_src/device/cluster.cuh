// Clusters of blocks (sm_90): blocks that run together and read each other's shared memory.
#pragma once

// A barrier of all threads of the cluster: what was written before it can be read after it.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Read a word at the place of `own` in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ unsigned read_cluster(const unsigned *own, int rank) {
    unsigned value = 0;
#if __CUDA_ARCH__ >= 900
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(own));
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.u32 %0, [there];\n}"
        : "=r"(value)
        : "r"(address), "r"(rank)
        : "memory");
#endif
    return value;
}
