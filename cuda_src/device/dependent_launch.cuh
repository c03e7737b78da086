// A kernel and the one that needs its results, launched so that the second may begin before the first has
// ended: its blocks are then in place when the results are (programmatic dependent launch, sm_90 and later).
//
// In a kernel that waits, no pointer to what it reads is `const __restrict__`. For such a pointer the
// compiler takes loads of the read-only path (ld.global.nc). They are for data that nobody writes while the
// kernel runs, and the compiler moves them before the wait: the "memory" of the asm below does not hold them
// back.
//
// A kernel that needs no results of the one before it can begin early, too: it fills the multiprocessors on
// which the last blocks of that one do not run. What is launched next waits only for it, so it must not end
// before the other: its blocks wait once they are done.
#pragma once

// In the first kernel: once every block has said so, the second may begin.
__device__ __forceinline__ void let_dependents_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// In the second: wait until the first has ended and all that it wrote can be read.
__device__ __forceinline__ void wait_for_results() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// In a second kernel that needs no results, at its end: end after the first.
__device__ __forceinline__ void end_after_launch_before() {
    wait_for_results();
}
