// Tensor copies (sm_90): one thread has the tensor memory accelerator copy a box of a matrix to shared
// memory. What lies outside of the matrix arrives as zeros, and the 128-byte swizzle is that of wgmma.
//
// A tensor map, which describes the matrix and the box, usually holds the address of the matrix, so that each
// address needs a map of its own. These maps begin at address 0. They have four dimensions: k, the line, and
// two that a matrix does not have, with steps of 16 bytes and of 2^34 bytes: their coordinates are the
// address. So a map depends on nothing but shape, stride and box, and can be a constant of a CUDA graph or of
// XLA.
#pragma once

struct alignas(64) TensorMap {
    unsigned long long words[16];  // see fastsgemm.geometry.tensor_map
};

// A matrix of K-major lines that begins at a multiple of 16 bytes, with its map. The map is a kernel
// parameter that is __grid_constant__, since the accelerator reads it where it lies.
struct Boxes {
    const TensorMap &map;
    int near, far;  // coordinates that are the address

    __device__ __forceinline__ Boxes(const TensorMap &map, const void *first)
        : map(map),
          near(int(reinterpret_cast<unsigned long long>(first) >> 4 & 0x3fffffff)),
          far(int(reinterpret_cast<unsigned long long>(first) >> 34)) {}

    // Copy the box that begins at this step of k of this line. `mbarrier` counts all its bytes, zeros too.
    // The box begins at a multiple of 1024 bytes of shared memory, with which the swizzle begins. Its first
    // element exists: for a box without any, the accelerator would access address 0.
    __device__ __forceinline__ void copy(unsigned to, int k, int line, unsigned mbarrier) const {
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
            "{%2, %3, %4, %5}], [%6];" ::"r"(to),
            "l"(&map), "r"(k), "r"(line), "r"(near), "r"(far), "r"(mbarrier)
            : "memory");
    }
};
