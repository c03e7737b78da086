// Rung 9: the stages of shared memory, each of which holds a tile of A and one of B. While the block
// multiplies the tile in one stage, the next tiles are copied to the others.
//
//   issue    start copying a later tile into the stage that is free
//   wait     until the next tile is complete: the copies of this thread first, then all threads at a barrier
//   release  move on: the next stage is read, and the one that was read is free
//
// One barrier per tile suffices. A thread arrives at it once its own copies of the next tile are complete, so
// the whole tile is complete behind the barrier, and no thread reads too early. A thread arrives only after
// it has read its last fragments of this tile, so the stage of this tile is free behind the barrier, and no
// thread writes too early: `issue` writes to no other stage before the next barrier. Where fragments are read
// some steps ahead, the last ones of a tile are read that much earlier, so the barrier can stand before these
// steps.
//
// Traits: A, B (of device/pipelined_copy.cuh), STAGES, STAGE_BYTES, TILE_A_BYTES, STEPS, SLICED_K, FRAGMENTS,
// SPREAD, TM, TN, WSUBM, WSUBN, ROWS, COLS.
#pragma once
#include "device/fragments.cuh"
#include "device/pipelined_copy.cuh"
#include "device/shared_memory.cuh"

// The base of both kinds of stages: the addresses that this thread reads and writes, and its fragments.
template <class Traits>
struct Stages {
    using CopyA = PipelinedCopy<typename Traits::A>;
    using CopyB = PipelinedCopy<typename Traits::B>;
    static constexpr bool ASYNC = CopyA::ASYNC || CopyB::ASYNC;
    using FragmentsA = Fragments<CopyA, Traits::FRAGMENTS, Traits::TM, Traits::WSUBM, Traits::ROWS>;
    using FragmentsB = Fragments<CopyB, Traits::FRAGMENTS, Traits::TN, Traits::WSUBN, Traits::COLS>;

    CopyA &copy_a;
    CopyB &copy_b;
    int slice, row, col;        // of this thread: its share of k, and its first element in the block tile
    unsigned first_a, first_b;  // the tiles of the first stage, as shared-memory addresses
    unsigned read_a, read_b;    // where this thread reads fragments
    unsigned write_a, write_b;  // where it writes what it copies, from `fill` on
    FragmentsA a;
    FragmentsB b;

    __device__ __forceinline__ Stages(const float *shared, CopyA &copy_a, CopyB &copy_b, int slice, int row,
                                      int col)
        : copy_a(copy_a), copy_b(copy_b), slice(slice), row(row), col(col) {
        first_a = shared_address(shared), first_b = first_a + Traits::TILE_A_BYTES;
        read_first(slice * Traits::STEPS);
    }

    // Read fragments from step k of the first stage on.
    __device__ __forceinline__ void read_first(int k) {
        read_a = FragmentsA::place(first_a, k, row), read_b = FragmentsB::place(first_b, k, col);
    }

    // Read the fragments of this thread that are read ahead of step k.
    __device__ __forceinline__ void load_fragments(int k) { b.load(read_b, k), a.load(read_a, k); }

    // Read the fragments of one step as those of step 0, and advance by `skip` steps.
    __device__ __forceinline__ void load_one_step(int skip) {
        b.load_one(read_b), a.load_one(read_a);
        read_a += skip * FragmentsA::STEP, read_b += skip * FragmentsB::STEP;
    }
};

// Two stages: the copy of the next tile is spread over the steps of this one. Operands that go through
// registers are read and written at different steps.
template <class Traits>
struct TwoStages : Stages<Traits> {
    using Base = Stages<Traits>;
    using Base::Base, Base::ASYNC, Base::copy_a, Base::copy_b;
    using Base::read_a, Base::read_b, Base::write_a, Base::write_b;

    int to_other = Traits::STAGE_BYTES;  // from the stage that is read to the one that is written

    // Copy the first tile, and wait for it. With `peel` it holds the `end` of K, and the whole tiles follow.
    __device__ __forceinline__ void fill(int k_tiles, bool peel, int) {
        write_a = Base::first_a + copy_a.place, write_b = Base::first_b + copy_b.place;
        copy_a.begin(write_a);
        copy_b.begin(write_b);
        finish_next(!peel && k_tiles > 1);
        write_a += to_other, write_b += to_other;
        wait();
    }

    // Copy a tile outside the main loop, which begins `steps` of k after `source`.
    __device__ __forceinline__ void begin_next(int steps) {
        copy_a.begin(write_a, steps);
        copy_b.begin(write_b, steps);
    }
    __device__ __forceinline__ void finish_next(bool more) {
        copy_a.finish(write_a, more);
        copy_b.finish(write_b, more);
    }

    // Issue the part of the next tile's copy that comes before the fragments of step k are read, and the part
    // that comes after. During the last tile, the same tile is copied again, to a stage that is never read:
    // this is cheaper than a branch.
    __device__ __forceinline__ void issue_before_fragments(int k, bool more) {
        if (Traits::SPREAD != 1) read_at(k, more);
        if (Traits::SPREAD == 0) write_at(k);
    }
    __device__ __forceinline__ void issue_after_fragments(int k, bool more) {
        if (Traits::SPREAD == 1) read_at(k, more);
        if (Traits::SPREAD != 0) write_at(k);
    }

    __device__ __forceinline__ void wait() {
        if (ASYNC) cp_async_wait_all();
        __syncthreads();
    }

    __device__ __forceinline__ void release(bool) {
        read_a += to_other, read_b += to_other;
        write_a -= to_other, write_b -= to_other;
        to_other = -to_other;
    }

private:
    __device__ __forceinline__ void read_at(int k, bool more) {
        copy_a.read_at(write_a, k, more);
        copy_b.read_at(write_b, k, more);
    }
    __device__ __forceinline__ void write_at(int k) const {
        copy_a.write_at(write_a, k);
        copy_b.write_at(write_b, k);
    }
};

// More than two stages: all operands go by cp.async, STAGES - 1 tiles are on their way, each a group of
// copies.
template <class Traits>
struct ManyStages : Stages<Traits> {
    using Base = Stages<Traits>;
    using Base::Base, Base::copy_a, Base::copy_b;
    using Base::read_a, Base::read_b, Base::write_a, Base::write_b;
    static constexpr int STAGES = Traits::STAGES;

    int read_stage = 0, write_stage = 0;  // in bytes from the first stage
    int issued = 0;                       // tiles whose copies were started
    int tiles;                            // in all
    bool peel;                            // the second tile begins `end` steps after the first, see TwoStages
    int end;

    __device__ __forceinline__ void fill(int k_tiles, bool with_peel, int end_of_k) {
        write_a = Base::first_a + copy_a.place, write_b = Base::first_b + copy_b.place;
        tiles = k_tiles + with_peel, peel = with_peel, end = end_of_k;
#pragma unroll 1
        for (int ahead = 1; ahead < STAGES; ++ahead) issue();
        wait();
    }
    __device__ __forceinline__ void begin_next(int) { issue(); }
    __device__ __forceinline__ void finish_next(bool) {}

    // Start copying the next tile, if there is one. The group is committed even if it is empty, so that
    // `wait` always waits for all but the same number of groups.
    __device__ __forceinline__ void issue() {
        if (issued < tiles) {
            const int steps = issued == 0 ? 0 : issued == 1 && peel ? end : Traits::BK;
            copy_a.begin(write_a, steps);
            copy_b.begin(write_b, steps);
            ++issued;
        }
        cp_async_commit_group();
        const int distance = advance(write_stage);
        write_a += distance, write_b += distance;
    }

    __device__ __forceinline__ void wait() {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
    }

    // Without `more` tiles the next stage may never have been written: stay.
    __device__ __forceinline__ void release(bool more) {
        const int distance = more ? advance(read_stage) : 0;
        read_a += distance, read_b += distance;
    }

private:
    // Go on to the next stage, in a ring; return the distance in bytes.
    static __device__ __forceinline__ int advance(int &stage) {
        const int distance = stage == (STAGES - 1) * Traits::STAGE_BYTES ? -stage : Traits::STAGE_BYTES;
        stage += distance;
        return distance;
    }
};

// The pipeline for a number of stages.
template <class Traits, bool MANY>
struct ChooseStages {
    using Type = TwoStages<Traits>;
};
template <class Traits>
struct ChooseStages<Traits, true> {
    using Type = ManyStages<Traits>;
};
