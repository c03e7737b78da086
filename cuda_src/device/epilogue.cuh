// C <- alpha * acc + beta * old, with the roundings spelled out so that every rung gives the same bits. The
// old value is that of C or, see device/source.cuh, of another array. beta = 0 never reads it: a NaN there
// must not spread.
#pragma once

__device__ __forceinline__ float epilogue(float alpha, float acc, float beta, const float *old) {
    return beta == 0.0f ? __fmul_rn(alpha, acc) : __fmaf_rn(alpha, acc, __fmul_rn(beta, *old));
}

// Where the old values lie: in C.
struct OldC {
    static constexpr int VEC = 4;  // floats that can be read together if so many are stored together

    // `old` points to element (m, n) of C; let it point to the old value. The pointer is not returned: with
    // one that a function returned, the compiler orders a kernel's instructions differently.
    __device__ __forceinline__ void find(const float *&old, long long m, long long n) const {}

    // Elements from one old value to the next along a line of C.
    __device__ __forceinline__ long long step() const { return 1; }
};

// Four old values, `step` apart.
template <int VEC>
__device__ __forceinline__ float4 four_values(const float *old, long long step) {
    if constexpr (VEC == 4)
        return *reinterpret_cast<const float4 *>(old);
    else
        return make_float4(old[0], old[step], old[2 * step], old[3 * step]);
}

// COUNT neighbouring elements of one line of C from (m, n) on, of which the first `skip` are another block's
// and those from `left` on lie past the matrix. VEC = 4 needs 16-byte alignment and multiples of 4 for both;
// the host chooses VEC so that they are.
template <int COUNT, int VEC, class Old>
__device__ __forceinline__ void store_row(float *c, const float *acc, int left, float alpha, float beta,
                                          int skip, const Old &values, long long m, long long n) {
    static_assert(VEC == 1 || VEC == 4, "C is stored 4 or 16 bytes at a time");
    static_assert(COUNT % VEC == 0, "a row of the thread tile is whole vectors");
    const float *old = c;
    values.find(old, m, n);
    const long long step = values.step();
#pragma unroll
    for (int j = 0; j < COUNT; j += VEC) {
        if (j < skip || j >= left) continue;
        if constexpr (VEC == 4) {
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (beta != 0.0f) four = four_values<Old::VEC>(old + j * step, step);
            *reinterpret_cast<float4 *>(c + j) = make_float4(
                epilogue(alpha, acc[j], beta, &four.x), epilogue(alpha, acc[j + 1], beta, &four.y),
                epilogue(alpha, acc[j + 2], beta, &four.z), epilogue(alpha, acc[j + 3], beta, &four.w));
        } else {
            c[j] = epilogue(alpha, acc[j], beta, old + j * step);
        }
    }
}

// The same for whole lines whose old values are those of C.
template <int COUNT, int VEC>
__device__ __forceinline__ void store_row(float *c, const float *acc, int left, float alpha, float beta) {
    store_row<COUNT, VEC>(c, acc, left, alpha, beta, 0, OldC(), 0, 0);
}
