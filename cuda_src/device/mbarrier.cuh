// Memory barriers in shared memory (sm_90): how the copy engine and the warps tell each other that a stage of
// shared memory is full or empty. A barrier counts arrivals and, where expected, bytes; when all are there
// its phase ends and the next begins. A thread waits for the end of a phase by its parity: 0 for the first
// phase, 1 for the second, 0 for the third. Waiting with parity 1 on a new barrier returns at once. Barriers
// are named by their 32-bit addresses in shared memory, 8 bytes each.
#pragma once

// Nanoseconds. A wait that takes longer is a fault of the kernel, which then traps instead of hanging the
// device.
constexpr unsigned long long WAIT_LIMIT = 10000000000ull;

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Show the new barriers to the copy engine. By the thread that made them; a block-wide barrier follows.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Order what this warp has read and written in shared memory before what the copy engine writes there later.
// An arrival at a barrier follows.
__device__ __forceinline__ void show_copy_engine() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and let the phase last until so many bytes have been copied, too.
__device__ __forceinline__ void barrier_arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Return whether the phase of this parity has ended. The hardware waits a little before it says no.
__device__ __forceinline__ bool barrier_try(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}

// Wait until the phase of this parity has ended.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    if (barrier_try(barrier, parity)) return;
    const unsigned long long start = nanoseconds();
    while (!barrier_try(barrier, parity))
        // The clock runs on while a debugger or a checkpoint stops the block, so what it waits for may be
        // there.
        if (nanoseconds() - start > WAIT_LIMIT && !barrier_try(barrier, parity)) asm volatile("trap;");
}
