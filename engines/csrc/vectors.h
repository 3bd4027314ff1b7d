/* Eight float32 lanes in plain C, by GCC's and Clang's vector extensions, and bfloat16 rows.
 *
 * One trick runs through the kernels. Sixteen bfloat16 values are loaded as eight 32-bit words; the low halves shifted
 * up are the even elements and the high halves masked are the odd ones, so widening costs two instructions for 32
 * bytes. Their partners must lie in the same order: `spread` moves the even elements of every sixteen before the odd. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float f8 __attribute__((vector_size(32)));
typedef uint32_t u8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef f8 f8_any __attribute__((aligned(4), may_alias));
typedef u8 u8_any __attribute__((aligned(2), may_alias));

INLINE f8 load(const float *p) { return *(const f8_any *)p; }
INLINE void store(float *p, f8 v) { *(f8_any *)p = v; }
INLINE f8 all(float x) { return (f8){x, x, x, x, x, x, x, x}; }

INLINE f8 larger(f8 a, f8 b) {
#ifdef __AVX__
    return (f8)_mm256_max_ps((__m256)a, (__m256)b);
#else
    i8 wins = a > b;
    return (f8)(((i8)a & wins) | ((i8)b & ~wins));
#endif
}

INLINE float sum_lanes(f8 v) {
#ifdef __AVX__
    __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
#else
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
#endif
}

/* out[0..4] = the sums of the lanes of four vectors. */
INLINE void sum_lanes4(const f8 *v, float *out) {
#ifdef __AVX__
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[0], (__m256)v[1]), _mm256_hadd_ps((__m256)v[2], (__m256)v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
#else
    for (int i = 0; i < 4; i++) out[i] = sum_lanes(v[i]);
#endif
}

INLINE float max_lanes(f8 v) {
#ifdef __AVX__
    __m128 s = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
#else
    float m = v[0];
    for (int i = 1; i < 8; i++) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

/* e^x within 2 ulp from -87 to 88; exactly 0 below, e^88 above. Cephes' polynomial after x = n ln 2 + r. */
INLINE f8 exp8(f8 x) {
    const f8 magic = all(12582912.0f); /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    i8 alive = x > all(-87.0f);
    x = -larger(-x, all(-88.0f));
    f8 shifted = x * 1.44269504f + magic;
    f8 n = shifted - magic;
    f8 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    i8 power = ((i8)shifted - (i8)magic + 127) << 23;
    return (f8)((i8)(p * (f8)power) & alive);
}

/* Elements 16i..16i+15 of a row: in order for float32, evens and odds for bfloat16. */
INLINE void load16(const char *row, int64_t i, int bf16, f8 *a, f8 *b) {
    if (bf16) {
        u8 pairs = *(const u8_any *)(row + 32 * i);
        *a = (f8)(pairs << 16);
        *b = (f8)(pairs & 0xffff0000u);
    } else {
        *a = load((const float *)row + 16 * i);
        *b = load((const float *)row + 16 * i + 8);
    }
}

INLINE void spread(const float *x, float *y) {
    for (int i = 0; i < 8; i++) y[i] = x[2 * i], y[i + 8] = x[2 * i + 1];
}
