// Pack an operand: copy it into lines of whole 16-byte vectors, with the lines along m or n, as rung 9 reads
// them fastest. An operand whose lines run along k is transposed on the way, through shared memory, so that
// neighbouring threads read neighbours and write neighbours. The floats between the end of a line and the end
// of its last vector become zeros: a kernel may read them, but does not use them. 16-bit elements become
// float32.
//
// There are `lines` lines of `length` floats. Element j of a line is read at line * from_line + j * from_step
// and written at line * to_line + j, where to_line is a multiple of VECTOR.
// Grid: ceil(lines / TILE) * ceil(length / TILE).

// constants:begin (defaults; the host replaces the values, see cuda_src/README.md)
constexpr int THREADS = 256;  // of a block: a multiple of TILE
constexpr int TILE = 64;      // lines, and floats of a line, that a block copies: a multiple of VECTOR
constexpr int VECTOR = 4;     // floats: lines are padded to a multiple of it
constexpr int FROM = 0;       // type of what is read: 0: float32, 1: bfloat16, 2: float16
// constants:end

#include "device/element.cuh"

constexpr int PITCH = TILE + 1;  // floats per line, so that a warp uses all banks along lines and across them
constexpr int COUNT = TILE * TILE / THREADS;  // floats per thread, all of them read before one is written
constexpr int ROWS = THREADS / TILE;          // of the tile, that the block copies at a time
static_assert(THREADS % TILE == 0 && TILE % ROWS == 0, "threads share a tile out evenly");
static_assert(TILE % VECTOR == 0, "the last vector of a line is in one tile");

extern "C" __global__ void __launch_bounds__(THREADS)
    fastsgemm_pack(int lines, int length, const ElementType<FROM> *__restrict__ from, long long from_line,
                   long long from_step, float *__restrict__ to, long long to_line) {
    __shared__ float tile[TILE * PITCH];
    const unsigned tiles_along = (length + TILE - 1u) / TILE;
    const int first_line = blockIdx.x / tiles_along * TILE, first_step = blockIdx.x % tiles_along * TILE;
    const int lines_left = lines - first_line, steps_left = length - first_step;
    const int padded_left = (steps_left + VECTOR - 1) / VECTOR * VECTOR;
    // Neighbouring threads differ in `side`: along what is contiguous in memory, on reading and on writing.
    const int side = threadIdx.x % TILE, row = threadIdx.x / TILE;
    const bool transposed = from_step != 1;
    from += first_line * from_line + first_step * from_step;
    to += first_line * to_line + first_step;
    ElementType<FROM> element[COUNT];
    float value[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int line = transposed ? side : row + i * ROWS, step = transposed ? row + i * ROWS : side;
        const bool inside = line < lines_left && step < steps_left;
        element[i] = inside ? from[line * from_line + step * from_step] : ElementType<FROM>(0);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) value[i] = to_float<FROM>(element[i]);
    if (transposed) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) tile[side * PITCH + row + i * ROWS] = value[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) value[i] = tile[(row + i * ROWS) * PITCH + side];
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int line = row + i * ROWS;
        if (line < lines_left && side < padded_left) to[line * to_line + side] = value[i];
    }
}
