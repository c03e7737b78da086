// Rung 9: one step of k for a thread, ROWS x COLS fused multiply-adds. The order decides which operands stay
// in the register reuse cache and which registers the compiler picks; the results do not depend on it. An
// FFMA reads three registers and each of the two register banks delivers one per cycle, so one operand should
// be the same as in the instruction before.
//   ORDER 0  row by row                        1  serpentine by rows: every second row backwards
//         2  serpentine by columns             3  strips of up to four rows, serpentine by columns inside
//         4  as 1, the last row first          5  as 0, the last row first
#pragma once

template <int ORDER, int ROWS, int COLS>
__device__ __forceinline__ void outer_product(float (&acc)[ROWS][COLS], const float (&a)[ROWS],
                                              const float (&b)[COLS]) {
    constexpr int STRIP = ORDER == 3 ? 4 : ORDER == 2 ? ROWS : 1;  // rows walked together, down each column
    constexpr bool TURNS = ORDER != 0 && ORDER != 5;
    // One loop, because three nested ones take NVRTC a tenth longer.
#pragma unroll
    for (int place = 0; place < (ROWS + STRIP - 1) / STRIP * STRIP * COLS; ++place) {
        const int s = place / (STRIP * COLS), jj = place / STRIP % COLS, ii = place % STRIP;
        const int strip = ORDER >= 4 ? ROWS - 1 - s : s;
        const int j = TURNS && strip % 2 ? COLS - 1 - jj : jj;
        const int i = strip * STRIP + (jj % 2 ? STRIP - 1 - ii : ii);
        // Volatile, or NVVM would take two steps of k together and leave less of the order to ptxas.
        if (i < ROWS) asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(acc[i][j]) : "f"(a[i]), "f"(b[j]));
    }
}
