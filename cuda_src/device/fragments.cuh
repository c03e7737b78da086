// Rung 9: one operand's fragments, what a thread needs of a tile for its outer products, on their way from
// shared memory to registers.
//
//   place     where a thread reads from, in bytes: a step of k, and its first row or column
//   STEP      bytes from one step to the next
//   load      read the fragments that are read ahead of a step; the steps come in order
//   of_step   the fragments of a step, which `load` has read; called once per step, in order
//   load_one  read the fragments of any one step, as those of step 0
//
// Template parameters: Copy (of device/pipelined_copy.cuh), FRAGMENTS (1 more than the steps that `load` is
// ahead of `of_step`), T (neighbouring rows or columns of a thread), WSUB (from its first T to its next),
// COUNT (all of its rows or columns).
#pragma once
#include "device/divisors.cuh"
#include "device/pipelined_copy.cuh"
#include "device/shared_memory.cuh"

// A k-major tile: a thread reads each step separately, 16 bytes at a time or a whole small thread tile.
template <class Copy, int FRAGMENTS, int T, int WSUB, int COUNT, bool IN_LINES = Copy::IN_LINES>
struct Fragments {
    static constexpr int STEP = 4 * Copy::LD, VEC = smaller(T, 4);
    using Step = float[COUNT];

    Step value[FRAGMENTS];

    static __device__ __forceinline__ unsigned place(unsigned tile, int k, int mn) {
        return tile + k * STEP + 4 * mn;
    }
    __device__ __forceinline__ void load(unsigned from, int k) {
#pragma unroll
        for (int i = 0; i < COUNT; i += VEC)
            load_shared<VEC>(value[k % FRAGMENTS] + i, from + k * STEP + 4 * (i / T * WSUB + i % T));
    }
    __device__ __forceinline__ void load_one(unsigned from) { load(from, 0); }
    __device__ __forceinline__ const Step &of_step(int k) { return value[k % FRAGMENTS]; }
};

// A tile in lines: a thread reads four steps of each row or column at a time. The four steps before stay
// valid until the last of them has been used.
template <class Copy, int FRAGMENTS, int T, int WSUB, int COUNT>
struct Fragments<Copy, FRAGMENTS, T, WSUB, COUNT, true> {
    static_assert(FRAGMENTS <= 4, "fragments are read less than four steps ahead");

    static constexpr int STEP = 4;
    using Step = float[COUNT];

    Step next[4], value[4];

    static __device__ __forceinline__ unsigned place(unsigned tile, int k, int mn) {
        return tile + k * STEP + 4 * (mn / T * Copy::PITCH);
    }
    // Row or column i of this thread, in bytes from its first.
    static __device__ __forceinline__ int line(int i) { return 4 * Copy::line_place(i / T * WSUB + i % T); }

    __device__ __forceinline__ void load(unsigned from, int k) {
        if (k % 4 != 0) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float steps[4];
            load_shared<4>(steps, from + k * STEP + line(i));
#pragma unroll
            for (int j = 0; j < 4; ++j) next[j][i] = steps[j];
        }
    }
    __device__ __forceinline__ void load_one(unsigned from) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) next[0][i] = load_shared(from + line(i));
    }
    __device__ __forceinline__ const Step &of_step(int k) {
#pragma unroll
        for (int i = 0; i < 4 * COUNT; ++i)
            if (k % 4 == 0) value[i / COUNT][i % COUNT] = next[i / COUNT][i % COUNT];
        return value[k % 4];
    }
};
