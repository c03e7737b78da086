// Programmatic dependent launch (sm_90 and later): a kernel begins before the one launched before it has
// completed, so that its blocks are resident by the time they are needed.
//
// A kernel that reads results of the first waits before it reads them. None of its pointers to them is `const
// __restrict__`: for such a pointer the compiler chooses loads by the read-only path (ld.global.nc), which
// require that nobody writes the data while the kernel runs, and moves them before the wait. The "memory"
// clobber of the wait does not hold them back.
#pragma once

// In the first kernel: the second may begin once every block has executed this or exited.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// In the second kernel: wait until the first has completed and its writes are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
