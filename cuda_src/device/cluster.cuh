// Clusters of blocks (sm_90 and later): blocks that run together and read each other's shared memory.
#pragma once

#if __CUDA_ARCH__ >= 900
constexpr bool HAS_CLUSTERS = true;
#else
constexpr bool HAS_CLUSTERS = false;
#endif

// A barrier of all threads of the cluster, in two halves (barrier.cluster): what a thread wrote before it
// arrives is visible to the threads that have waited.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// Read the word that lies in the shared memory of block `rank` of the cluster where `own` lies in this
// block's.
__device__ __forceinline__ unsigned ld_shared_cluster(const unsigned *own, int rank) {
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
