/* What the kernels of 16-bit and of 8-bit weights have in common. */
#include "vectors.h"

INLINE float inverse_rms(const float *x, int64_t n, float eps) {
    f8 squares = all(0);
    for (int64_t i = 0; i < n; i += 8) squares += load(x + i) * load(x + i);
    return 1.0f / sqrtf(sum_lanes(squares) / (float)n + eps);
}

/* Rows an item, a multiple of `grain`: equal shares for the threads, of some 256 KiB each as far as there are that many
 * bytes (smaller ones would cut the streams short that the hardware prefetches). */
INLINE int64_t portion(int64_t m, int64_t bytes_per_row, int64_t grain, int threads) {
    const int64_t items = MAX(m * bytes_per_row / (threads * 262144), 1) * threads;
    return (m + items * grain - 1) / (items * grain) * grain;
}

INLINE f8 silu(f8 x) { return x / (exp8(-x) + 1.0f); }

INLINE void silu_mul16(const float *gate, const float *up, float *out) {
    for (int j = 0; j < 16; j += 8) store(out + j, silu(load(gate + j)) * load(up + j));
}
