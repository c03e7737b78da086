// Tensor cores by warps (sm_80 and later): 8 x 8 matrices from shared memory to registers (ldmatrix), and the
// product of 16 x 16 and 16 x 8 FP16 tiles (mma). Shared memory by 32-bit addresses.
#pragma once

// Load four 8 x 8 matrices of FP16. Lane l passes the address of row l % 8 of matrix l / 8, and receives of
// each matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&value)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(row)
                 : "memory");
}

// d <- a b + c, 16 x 8 in FP32. Lane l has row l / 4, columns 2 (l % 4) and the next, and then the row 8
// below.
__device__ __forceinline__ void mma_m16n8k16(float *d, const unsigned (&a)[4], const unsigned *b,
                                             const float *c) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
          "f"(c[3]));
}
