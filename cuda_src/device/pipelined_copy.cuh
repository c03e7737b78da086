// Rung 9: one thread's share of a tile of A or B, on its way from global to shared memory. In the main loop
// it has one address per operand to advance and no bounds to check. In shared memory the tile is k-major,
// Xs[k][mn], in lines of TILE_MN + PAD floats, or with IN_LINES line by line, Xs[mn][k].
//
// An operand whose k is contiguous goes through registers and is transposed on the way: a thread has
// neighbouring lines, so that what it holds of one k is contiguous in shared memory, up to 16 bytes per
// store. The other kind goes the same way or, with ASYNC, by cp.async past the registers. With ASYNC the
// first kind bypasses them, too, one float at a time (VEC = 1): cp.async can write each float to any address,
// which transposes without a store. A team of neighbouring threads shares a line of the tile, so that the
// vectors of a thread lie at fixed distances. Threads that are left over, where teams cannot share the lines
// out, copy nothing.
//
// With IN_LINES the first kind is not transposed, and cp.async copies whole vectors of it. Neighbouring
// threads then read 16 bytes each of lines that are T apart. So the lines are not kept in their order: first
// comes every T-th, then those next to them, and so on (`line_place`). What the threads read together lies a
// PITCH apart, an odd number of 16 bytes, in different banks. What they copy does too where TILE_K is a power
// of two and T lines fill the 32 banks (T * TILE_K >= 32), because a group begins at the bank at which the
// line before, in the order of the matrix, ends. With other tiles, two or three of them may share a bank.
//
// Traits:
//   TILE_MN, TILE_K  extent of the tile in m (or n) and k
//   K_CONTIGUOUS     neighbours in k are neighbours in global memory, else neighbours in m (or n) are
//   VEC              floats per read, 1, 2 or 4: address, ld and contiguous extent are multiples of VEC
//   GUARDED          the tile may reach past the matrix in m (or n), and what is past it is not read
//   ASYNC            copy by cp.async
//   IN_LINES         keep the lines of global memory, with K_CONTIGUOUS and ASYNC
//   T                neighbouring lines that a thread reads, with IN_LINES
//   THREADS          threads of the block
//   PAD              floats at the end of each line in shared memory
//   STEPS            steps of arithmetic that a thread has for each tile, among which a copy can be spread
//   LAST             steps at the end of a tile during which the stage of the next tile is read already
//   SPREAD           when a tile is read from global memory, and when it is written to shared memory:
//                    0: all read at the first step, all written at the last step but one
//                    1: read during the first half of the steps, written during the second half
//                    2: all read at the first step, written during the second half
//                    With ASYNC only the reads matter: float by float they are spread unless this is 0.
#pragma once
#include "device/divisors.cuh"
#include "device/global_memory.cuh"
#include "device/shared_memory.cuh"

template <class Traits>
struct PipelinedCopy {
    static constexpr int TILE_MN = Traits::TILE_MN, TILE_K = Traits::TILE_K, VEC = Traits::VEC;
    static constexpr bool K_CONTIGUOUS = Traits::K_CONTIGUOUS, GUARDED = Traits::GUARDED;
    static constexpr bool ASYNC = Traits::ASYNC, IN_LINES = Traits::IN_LINES;
    static constexpr int STEPS = Traits::STEPS, LAST = Traits::LAST, SPREAD = Traits::SPREAD;
    static constexpr bool TO_K_MAJOR = K_CONTIGUOUS && !IN_LINES;            // transposed on the way
    static constexpr int LINES = K_CONTIGUOUS ? TILE_MN : TILE_K;            // in global memory
    static constexpr int VECTORS = (K_CONTIGUOUS ? TILE_K : TILE_MN) / VEC;  // per line
    // A team reads at least a sector of each line and writes shared memory without conflicts: in a transposed
    // tile, neighbours in k are PAD banks apart. It is smaller where so many threads do not divide a line.
    static constexpr int TEAM = divisor(VECTORS, larger(smaller(Traits::THREADS, LINES *VECTORS) / LINES,
                                                        32 / (TO_K_MAJOR ? Traits::PAD : 1) / VEC));
    static constexpr int TEAMS = IN_LINES ? aligned_divisor(LINES, Traits::THREADS / TEAM, Traits::T)
                                          : divisor(LINES, Traits::THREADS / TEAM);
    static constexpr int THREADS = TEAMS * TEAM;                  // those with a share
    static constexpr int COUNT = LINES * VECTORS / THREADS;       // vectors per thread
    static constexpr int PER_LINE = VECTORS / TEAM;               // vectors of a thread on one line
    static constexpr int OWN_LINES = COUNT / PER_LINE;            // lines of a thread
    static constexpr bool TRANSPOSED = K_CONTIGUOUS && !ASYNC;    // in registers
    static constexpr int LINE_DISTANCE = TRANSPOSED ? 1 : TEAMS;  // from one of its lines to its next
    static constexpr int LD = TILE_MN + Traits::PAD;              // floats from one k to the next
    // With IN_LINES: every T-th line, floats from one of them to the next, and to those next to them.
    static constexpr int GROUP_LINES = TILE_MN / Traits::T, PITCH = TILE_K + (TILE_K % 8 ? 0 : 4);
    static constexpr int GROUP = GROUP_LINES * PITCH + (TILE_K + 31 * GROUP_LINES * PITCH) % 32;
    static constexpr int FLOATS = IN_LINES ? (Traits::T - 1) * GROUP + GROUP_LINES * PITCH : TILE_K * LD;
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "operands are read 4, 8 or 16 bytes at a time");
    static_assert(!(ASYNC && K_CONTIGUOUS && VEC > 1) || IN_LINES, "a vector is transposed in registers");

    const float *source;  // this thread's first vector of the next tile
    const float *line;    // its first vector of the line that is read, in the main loop
    long long ld;
    long long next_tile;  // floats from one tile to the next
    int left;             // rows (or columns) of the matrix from this thread's first on
    int first_k;          // of this thread's first vector, in the tile
    unsigned place;       // of its first vector in a stage, in bytes
    float value[COUNT][VEC];

    __device__ __forceinline__ PipelinedCopy(const float *X, long long ld, int mn0, int MN)
        : ld(ld), next_tile(K_CONTIGUOUS ? TILE_K : TILE_K * ld), value() {
        const int along = threadIdx.x % TEAM * VEC,
                  across = threadIdx.x / TEAM * (TRANSPOSED ? OWN_LINES : 1);
        const int mn = K_CONTIGUOUS ? across : along;
        first_k = K_CONTIGUOUS ? along : across;
        source = X + mn0 * (K_CONTIGUOUS ? ld : 1) + across * ld + along;
        left = MN - mn0 - mn;
        place = IN_LINES ? 4 * (first_k + line_place(mn)) : 4 * (first_k * LD + mn);
    }

    // Return the first row (or column) of a tile that would begin at mn and that, unless it is GUARDED, is
    // moved back inside the matrix. The lines of a packed operand are padded to whole vectors.
    static __device__ __forceinline__ int first(int mn, int MN) {
        const int readable = K_CONTIGUOUS ? MN : (MN + VEC - 1) / VEC * VEC;
        return GUARDED ? mn : min(mn, readable - TILE_MN);
    }

    // Where line mn of a tile in lines begins, in floats.
    static __device__ __forceinline__ int line_place(int mn) {
        return mn % Traits::T * GROUP + mn / Traits::T * PITCH;
    }

    // Vector i of this thread, as distances from its first: along a line, and across lines.
    static __device__ __forceinline__ int along(int i) { return i % PER_LINE * TEAM * VEC; }
    static __device__ __forceinline__ int across(int i) { return i / PER_LINE * LINE_DISTANCE; }
    static __device__ __forceinline__ int k_of(int i) { return K_CONTIGUOUS ? along(i) : across(i); }
    static __device__ __forceinline__ int mn_of(int i) { return K_CONTIGUOUS ? across(i) : along(i); }
    static __device__ __forceinline__ unsigned offset(int i) {
        return IN_LINES ? 4 * (k_of(i) + line_place(mn_of(i))) : 4 * (k_of(i) * LD + mn_of(i));
    }
    __device__ __forceinline__ const float *vector(int i) const { return source + across(i) * ld + along(i); }

    // Whether this thread has a share of the tile.
    static __device__ __forceinline__ bool has_share() {
        return THREADS == Traits::THREADS || threadIdx.x < THREADS;
    }

    // Read vector i, which lies at `from`, or, with ASYNC, start copying it to the shared-memory address
    // `to`.
    __device__ __forceinline__ void read(unsigned to, int i, const float *from) {
        if (!has_share()) return;
        const bool inside = !GUARDED || mn_of(i) < left;
        if constexpr (ASYNC)
            cp_async_zfill<VEC>(to + offset(i), from, inside);
        else if constexpr (GUARDED)
            load_global_if<VEC>(value[i], from, inside);
        else
            load_global<VEC>(value[i], from);
    }

    // What was read is written in STORES pieces, each contiguous in shared memory: a vector, or one k of all
    // lines.
    static constexpr int STORES = TRANSPOSED ? PER_LINE * VEC : COUNT;

    static __device__ __forceinline__ void write(unsigned to, const float (&v)[COUNT][VEC], int piece) {
        if (!has_share()) return;
        if constexpr (TRANSPOSED) {
            const int e = piece / VEC, j = piece % VEC;
            float line[OWN_LINES];
#pragma unroll
            for (int i = 0; i < OWN_LINES; ++i) line[i] = v[i * PER_LINE + e][j];
            store_shared<OWN_LINES>(to + offset(e) + 4 * j * LD, line);
        } else {
            store_shared<VEC>(to + offset(piece), v[piece]);
        }
    }

    // Vector i, where the vectors are read in order. The compiler would compute the address of each line
    // anew, for which it needs more instructions and registers.
    __device__ __forceinline__ const float *next_vector(int i) {
        if (i == 0)
            line = source;
        else if (i % PER_LINE == 0)
            asm volatile("add.s64 %0, %0, %1;" : "+l"(line) : "l"(4 * LINE_DISTANCE * ld));
        return line + along(i);
    }

    // Issue the reads of the next tile that belong to step k of this one: early, and with SPREAD a few per
    // step, so that the reads of fragments do not queue behind them. After the last of them, `source` moves
    // on to the tile after the next, if there is one.
    __device__ __forceinline__ void read_at(unsigned to, int k, bool more) {
        constexpr bool AT_ONCE = ASYNC ? !K_CONTIGUOUS || SPREAD == 0 : SPREAD != 1;
        constexpr int SHARES = AT_ONCE ? 1 : STEPS / 2;
        constexpr int PER_SHARE = (COUNT + SHARES - 1) / SHARES;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (k == (ASYNC ? i / PER_SHARE : smaller(i, SHARES - 1))) read(to, i, next_vector(i));
        if (k == SHARES - 1) source += more ? next_tile : 0;
    }

    // Write the vectors that belong to step k to shared memory: late, because reads take long to complete.
    __device__ __forceinline__ void write_at(unsigned to, int k) const {
        constexpr int HALF = STEPS / 2;
        if constexpr (!ASYNC) {
#pragma unroll
            for (int piece = 0; piece < STORES; ++piece)
                if (k == (SPREAD ? HALF + piece * (HALF - LAST) / STORES : STEPS - 1 - LAST))
                    write(to, value, piece);
        }
    }

    // Issue all reads of the tile that begins `steps` of k after `source`. Begin both operands before either
    // is finished, so that their reads are in flight together.
    __device__ __forceinline__ void begin(unsigned to, int steps = 0) {
        source += K_CONTIGUOUS ? steps : steps * ld;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) read(to, i, vector(i));
    }

    // Write what `begin` has read to shared memory; `source` moves on to the next tile, if there is one.
    __device__ __forceinline__ void finish(unsigned to, bool more) {
        source += more ? next_tile : 0;
        if constexpr (!ASYNC) {
#pragma unroll
            for (int piece = 0; piece < STORES; ++piece) write(to, value, piece);
        }
    }

    // Copy the first `depth` steps of k of the tile at `source`, the end of K. The other steps are zeros.
    __device__ __forceinline__ void copy_end(unsigned to, int depth) {
        float v[COUNT][VEC] = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            load_global_if<VEC>(v[i], vector(i),
                                has_share() && (!GUARDED || mn_of(i) < left) && first_k + k_of(i) < depth);
#pragma unroll
        for (int piece = 0; piece < STORES; ++piece) write(to, v, piece);
    }
};
