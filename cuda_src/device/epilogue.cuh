// C <- alpha * acc + beta * C, with the roundings spelled out so that every rung gives the same bits.
// beta = 0 never reads C: a NaN there must not spread.
#pragma once

__device__ __forceinline__ float epilogue(float alpha, float acc, float beta, const float *c) {
    return beta == 0.0f ? __fmul_rn(alpha, acc) : __fmaf_rn(alpha, acc, __fmul_rn(beta, *c));
}

// COUNT neighbouring elements of one row of C, of which those from `left` on lie past the matrix. VEC = 4
// needs 16-byte alignment and a multiple of 4 for `left`; the host chooses VEC so that it is.
template <int COUNT, int VEC>
__device__ __forceinline__ void store_row(float *c, const float *acc, int left, float alpha, float beta) {
    static_assert(VEC == 1 || VEC == 4, "C is stored 4 or 16 bytes at a time");
    static_assert(COUNT % VEC == 0, "a row of the thread tile is whole vectors");
#pragma unroll
    for (int j = 0; j < COUNT; j += VEC) {
        if (j >= left) continue;
        if constexpr (VEC == 4) {
            float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (beta != 0.0f) old = *reinterpret_cast<const float4 *>(c + j);
            *reinterpret_cast<float4 *>(c + j) = make_float4(
                epilogue(alpha, acc[j], beta, &old.x), epilogue(alpha, acc[j + 1], beta, &old.y),
                epilogue(alpha, acc[j + 2], beta, &old.z), epilogue(alpha, acc[j + 3], beta, &old.w));
        } else {
            c[j] = epilogue(alpha, acc[j], beta, c + j);
        }
    }
}
