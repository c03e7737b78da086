// Pack up to two operands: copy each into lines of whole 16-byte vectors, with the lines along m or n, as
// rung 9 reads them fastest. An operand whose lines run along k is transposed on the way, through shared
// memory, so that neighbouring threads read neighbours and write neighbours. The floats between the end of a
// line and the end of its last vector are zeros: a kernel may read them, but does not use them.
//
// An operand has `lines` lines of `length` floats. Element j of a line is read at
// line * from_line + j * from_step and written at line * to_line + j; to_line is a multiple of VECTOR.
// Grid: blocks_of(lines, length) for the first operand, then for the second. Block: THREADS.

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block: a multiple of TILE
constexpr int TILE = 64;      // lines, and floats of a line, that a block copies
constexpr int VECTOR = 4;     // floats: lines are padded to a multiple of it
// constants:end

constexpr int PITCH = TILE + 1;  // floats: lanes along a line and lanes across lines meet no bank conflicts
constexpr int COUNT = TILE * TILE / THREADS;  // floats of a thread, all of them read before any is written
constexpr int ROWS = THREADS / TILE;          // of the tile, that the block copies at a time
static_assert(THREADS % TILE == 0 && TILE % ROWS == 0, "threads share a tile out evenly");

struct Operand {
    int lines, length;
    const float *from;
    long long from_line, from_step;
    float *to;
    long long to_line;
};

__device__ __forceinline__ void pack(const Operand &x, unsigned block, float *shared) {
    const unsigned along = (x.length + TILE - 1u) / TILE;
    const int line0 = block / along * TILE, step0 = block % along * TILE;
    const int lines = min(TILE, x.lines - line0), steps = min(TILE, x.length - step0);
    const int padded = min(TILE, (x.length + VECTOR - 1) / VECTOR * VECTOR - step0);
    const int side = threadIdx.x % TILE, first = threadIdx.x / TILE;  // neighbours in memory, and the others
    const bool transposed = x.from_step != 1;
    const float *from = x.from + line0 * x.from_line + step0 * x.from_step;
    float *to = x.to + line0 * x.to_line + step0;
    float value[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int row = first + i * ROWS;
        const int line = transposed ? side : row, step = transposed ? row : side;
        value[i] = line < lines && step < steps ? from[line * x.from_line + step * x.from_step] : 0.0f;
    }
    if (transposed) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) shared[side * PITCH + first + i * ROWS] = value[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) value[i] = shared[(first + i * ROWS) * PITCH + side];
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int line = first + i * ROWS;
        if (line < lines && side < padded) to[line * x.to_line + side] = value[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_pack(int blocks, int lines, int length, const float *from, long long from_line,
                   long long from_step, float *to, long long to_line, int lines2, int length2,
                   const float *from2, long long from_line2, long long from_step2, float *to2,
                   long long to_line2) {
    __shared__ float shared[TILE * PITCH];
    const Operand first{lines, length, from, from_line, from_step, to, to_line};
    const Operand second{lines2, length2, from2, from_line2, from_step2, to2, to_line2};
    if (blockIdx.x < blocks)
        pack(first, blockIdx.x, shared);
    else
        pack(second, blockIdx.x - blocks, shared);
}
