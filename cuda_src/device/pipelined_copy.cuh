// Rung 9: a tile of A or B on its way from global to shared memory, with next to nothing to do in the main
// loop: one address an operand to advance, no bounds to look at. The tile is k-major in shared memory,
// Xs[k][mn], in lines of TILE_MN + PAD floats.
//
// An operand whose k is contiguous goes through registers and is transposed on the way: a thread has
// neighbouring lines, so that what it holds of one k is contiguous in shared memory, up to 16 bytes a store.
// The other kind goes the same way or, with ASYNC, by cp.async past the registers (sm_80 and later). With
// ASYNC the first kind goes past them too, a float at a time (VEC = 1), which transposes without a store. A
// team of neighbouring threads shares a line of the tile, so that the vectors of a thread lie at fixed
// distances.
//
// GUARDED says that the tile may reach past the matrix in rows (or columns): then those are not read. Without
// it all of them exist. VEC = 4 needs 16-byte alignment, ld % 4 == 0 and an extent that is a multiple of 4;
// VEC = 2 half of that.
#pragma once
#include "device/shared_memory.cuh"

__device__ constexpr int larger(int x, int y) {
    return x > y ? x : y;
}
__device__ constexpr int smaller(int x, int y) {
    return x < y ? x : y;
}

// Read VEC floats where `inside`, else leave `value` as it is. Volatile, so that the compiler does not sink a
// prefetch down to its use.
template <int VEC>
__device__ __forceinline__ void load_where(float (&value)[VEC], const float *p, bool inside) {
    const unsigned long long address = __cvta_generic_to_global(p);
    if constexpr (VEC == 4) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %5, 0; @q ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                     : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3])
                     : "l"(address), "r"(int(inside)));
    } else if constexpr (VEC == 2) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %3, 0; @q ld.global.nc.v2.f32 {%0, %1}, [%2]; }"
                     : "+f"(value[0]), "+f"(value[1])
                     : "l"(address), "r"(int(inside)));
    } else {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.nc.f32 %0, [%1]; }"
                     : "+f"(value[0])
                     : "l"(address), "r"(int(inside)));
    }
}

template <int VEC>
__device__ __forceinline__ void load_now(float (&value)[VEC], const float *p) {
    const unsigned long long address = __cvta_generic_to_global(p);
    if constexpr (VEC == 4) {
        asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                     : "l"(address));
    } else if constexpr (VEC == 2) {
        asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(value[0]), "=f"(value[1]) : "l"(address));
    } else {
        asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value[0]) : "l"(address));
    }
}

// Start copying VEC floats past the registers; zeros where not `inside`.
template <int VEC>
__device__ __forceinline__ void copy_async(unsigned to, const float *from, bool inside) {
    const unsigned long long address = __cvta_generic_to_global(from);
    const int present = inside ? 4 * VEC : 0;  // bytes
    if constexpr (VEC == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(address), "r"(present)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(address), "r"(present),
                     "n"(4 * VEC)
                     : "memory");
    }
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// What was started since the last call is a group.
__device__ __forceinline__ void end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait for all but the last PENDING groups.
template <int PENDING>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// STEPS is how many steps of arithmetic a thread has a tile, for the copy to be spread over.
template <int TILE_MN, int TILE_K, bool K_CONTIGUOUS, int VEC, bool GUARDED, bool ASYNC, int THREADS, int PAD,
          int STEPS>
struct PipelinedCopy {
    static constexpr int LINES = K_CONTIGUOUS ? TILE_MN : TILE_K;
    static constexpr int VECTORS = (K_CONTIGUOUS ? TILE_K : TILE_MN) / VEC;  // a line
    static constexpr int COUNT = TILE_MN * TILE_K / (VEC * THREADS);         // vectors a thread
    // A team reads at least a sector of each line and writes shared memory without conflicts.
    static constexpr int TEAM = smaller(VECTORS, larger(THREADS / LINES, (K_CONTIGUOUS ? 8 : 32) / VEC));
    static constexpr int EACH = VECTORS / TEAM;                   // vectors of a thread on one line
    static constexpr int OWN = COUNT / EACH;                      // lines of a thread
    static constexpr bool TRANSPOSED = K_CONTIGUOUS && !ASYNC;    // in registers
    static constexpr int STEP = TRANSPOSED ? 1 : THREADS / TEAM;  // lines from one of its lines to its next
    static constexpr int LD = TILE_MN + PAD;
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "operands are read 4, 8 or 16 bytes at a time");
    static_assert(COUNT * VEC * THREADS == TILE_MN * TILE_K,
                  "every thread copies the same number of vectors");
    static_assert(VECTORS % TEAM == 0 && THREADS % TEAM == 0 && OWN * (THREADS / TEAM) == LINES,
                  "teams share the lines of the tile out");
    static_assert(!(ASYNC && K_CONTIGUOUS && VEC > 1), "a vector is transposed in registers");

    const float *source;  // this thread's first vector of the next tile
    long long ld;
    long long step;  // floats from tile to tile
    int left;        // rows (or columns) of the matrix from this thread's first on
    int first_k;     // of this thread's first vector
    unsigned place;  // of its first vector in a stage, in bytes
    float value[COUNT][VEC];

    __device__ __forceinline__ PipelinedCopy(const float *X, long long ld, int mn0, int MN)
        : ld(ld), step(K_CONTIGUOUS ? TILE_K : TILE_K * ld), value() {
        const int along = threadIdx.x % TEAM * VEC, across = threadIdx.x / TEAM * (TRANSPOSED ? OWN : 1);
        const int mn = K_CONTIGUOUS ? across : along;
        first_k = K_CONTIGUOUS ? along : across;
        source = X + mn0 * (K_CONTIGUOUS ? ld : 1) + across * ld + along;
        left = MN - mn0 - mn;
        place = 4 * (first_k * LD + mn);
    }

    // Vector i of this thread, as distances from its first.
    static __device__ __forceinline__ int along(int i) { return i % EACH * TEAM * VEC; }
    static __device__ __forceinline__ int across(int i) { return i / EACH * STEP; }
    static __device__ __forceinline__ int k_of(int i) { return K_CONTIGUOUS ? along(i) : across(i); }
    static __device__ __forceinline__ int mn_of(int i) { return K_CONTIGUOUS ? across(i) : along(i); }
    static __device__ __forceinline__ unsigned offset(int i) { return 4 * (k_of(i) * LD + mn_of(i)); }
    __device__ __forceinline__ const float *vector(int i) const { return source + across(i) * ld + along(i); }

    // Read vector i of the next whole tile, or with ASYNC start copying it to `to`.
    __device__ __forceinline__ void fetch(unsigned to, int i) {
        const bool inside = !GUARDED || mn_of(i) < left;
        if constexpr (ASYNC)
            copy_async<VEC>(to + offset(i), vector(i), inside);
        else if constexpr (GUARDED)
            load_where<VEC>(value[i], vector(i), inside);
        else
            load_now<VEC>(value[i], vector(i));
    }

    // Writing takes STORES turns, each of what is contiguous in shared memory: a vector, or one k of all
    // lines.
    static constexpr int STORES = TRANSPOSED ? EACH * VEC : COUNT;

    static __device__ __forceinline__ void store(unsigned to, const float (&v)[COUNT][VEC], int turn) {
        if constexpr (TRANSPOSED) {
            const int e = turn / VEC, j = turn % VEC;
            float line[OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) line[i] = v[i * EACH + e][j];
            store_shared<OWN>(to + offset(e) + 4 * j * LD, line);
        } else {
            store_shared<VEC>(to + offset(turn), v[turn]);
        }
    }

    // What of the copy of the next tile is due at step k of a thread in this one. The reading early, the
    // writing late; with SPREAD little at a time, so that the fragments of this tile do not queue behind it.
    // `source` goes on to the tile after the next if there is `more`, else it stays.
    __device__ __forceinline__ void fetch_at(unsigned to, int k, bool more) {
        constexpr bool AT_ONCE = ASYNC ? !K_CONTIGUOUS || SPREAD == 0 : SPREAD != 1;
        constexpr int TURNS = AT_ONCE ? 1 : STEPS / 2;
        constexpr int A_TURN = (COUNT + TURNS - 1) / TURNS;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (k == (ASYNC ? i / A_TURN : smaller(i, TURNS - 1))) fetch(to, i);
        if (k == TURNS - 1) source += more ? step : 0;
    }

    __device__ __forceinline__ void store_at(unsigned to, int k) const {
        constexpr int HALF = STEPS / 2;
        if constexpr (!ASYNC) {
#pragma unroll
            for (int turn = 0; turn < STORES; ++turn)
                if (k == (SPREAD ? HALF + turn * (HALF - 1) / STORES : STEPS - 2)) store(to, value, turn);
        }
    }

    // A tile all at once, that begins `steps` of k after `source`: begin both operands before either is
    // finished, so that their copies are under way together. `more` as above.
    __device__ __forceinline__ void begin(unsigned to, int steps = 0) {
        source += K_CONTIGUOUS ? steps : steps * ld;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) fetch(to, i);
    }

    __device__ __forceinline__ void finish(unsigned to, bool more) {
        source += more ? step : 0;
        if constexpr (!ASYNC) {
#pragma unroll
            for (int turn = 0; turn < STORES; ++turn) store(to, value, turn);
        }
    }

    // Copy the first `depth` steps of k of the tile, the end of K. What it leaves out is zeros.
    __device__ __forceinline__ void copy_end(unsigned to, int depth) {
        float v[COUNT][VEC] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            load_where<VEC>(v[i], vector(i), (!GUARDED || mn_of(i) < left) && first_k + k_of(i) < depth);
#pragma unroll
        for (int turn = 0; turn < STORES; ++turn) store(to, v, turn);
    }
};
