/* The decoder's CPU kernels for few rows: weights and KV are read once, in bfloat16, and everything else is float32.
 *
 * Plain C with GCC/Clang vector extensions, called through ctypes from native.py, which documents the arguments.
 * Strides are in elements. T: rows (tokens), B: sequences, H: query heads, G: KV heads, S: slots a block, d: head
 * dimension. Row lengths (in, ffn, d) are multiples of 16; native.py sees to it.
 *
 * One trick runs through the file. Sixteen bfloat16 values are loaded as eight 32-bit words; the low halves shifted up
 * are the even elements and the high halves masked are the odd ones, so widening costs two instructions for 32 bytes.
 * Their partners must lie in the same order: `spread` moves the even elements of every sixteen before the odd ones.
 */
#include <stdint.h>
#include <string.h>
#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif
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

enum { UNIT = 16, TILE = 32 }; /* decode attention: slots a unit of work, slots at a time */
enum { FEW = 4 };              /* rows that are not worth waking the other threads for */

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
    float m = v[0];
    for (int i = 1; i < 8; i++) m = v[i] > m ? v[i] : m;
    return m;
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

INLINE uint16_t narrow(float x) { /* to bfloat16, to nearest even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/* The begin of part t of n items in `parts` parts, in multiples of `grain`. */
INLINE int64_t cut(int64_t n, int64_t grain, int t, int parts) {
    return MIN(n, (n + grain - 1) / grain * t / parts * grain);
}

INLINE float inverse_rms(const float *x, int64_t n, float eps) {
    f8 squares = all(0);
    for (int64_t i = 0; i < n; i += 8) squares += load(x + i) * load(x + i);
    return 1.0f / sqrtf(sum_lanes(squares) / (float)n + eps);
}

/* y [T, n] = x (or its RMS norm), in the order of bfloat16 weights. */
static void prepare(const float *x, int64_t stride, const float *norm, float eps, int64_t T, int64_t n, float *y) {
    for (int64_t t = 0; t < T; t++, x += stride, y += n) {
        f8 scale = all(norm ? inverse_rms(x, n, eps) : 1.0f);
        for (int64_t i = 0; i < n; i += 16) {
            float part[16];
            for (int j = 0; j < 16; j += 8)
                store(part + j, norm ? load(x + i + j) * scale * load(norm + i + j) : load(x + i + j));
            spread(part, y + i);
        }
    }
}

/* out[t][r] (+)= w[r] . x[t] + bias[r] for a register tile of R weight rows and C activation rows. */
INLINE void tile(int R, int C, const char *w, const float *x, int64_t n, float *out, int64_t stride, const float *bias,
                 int add) {
    f8 acc[4][4];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) acc[r][c] = all(0);
    for (int64_t i = 0; i < n / 16; i++) {
        f8 low[4], high[4];
        for (int r = 0; r < R; r += 2) __builtin_prefetch(w + 2 * R * n + 32 * (i * R + r));
        for (int c = 0; c < C; c++) low[c] = load(x + c * n + 16 * i), high[c] = load(x + c * n + 16 * i + 8);
        for (int r = 0; r < R; r++) {
            f8 even, odd;
            load16(w + 2 * r * n, i, 1, &even, &odd);
            for (int c = 0; c < C; c++) acc[r][c] += even * low[c];
            for (int c = 0; c < C; c++) acc[r][c] += odd * high[c];
        }
    }
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++) {
            float sum = sum_lanes(acc[r][c]) + (bias ? bias[r] : 0);
            out[c * stride + r] = add ? out[c * stride + r] + sum : sum;
        }
}

/* Rows begin..end of a weight against all T rows of x; a few weight rows stay in L1 while x passes by. */
static void rows(const char *w, int64_t begin, int64_t end, const float *x, int64_t T, int64_t n, float *out,
                 int64_t stride, const float *bias, int add) {
    for (int64_t r = begin; r < end;) {
        int R = end - r >= 4 ? 4 : 1;
        const char *row = w + 2 * r * n;
        const float *b = bias ? bias + r : 0;
        for (int64_t t = 0; t < T;) {
            const float *y = x + t * n;
            float *o = out + t * stride + r;
            int C = T - t >= 3 ? 3 : T - t >= 2 ? 2 : 1;
            if (R == 4 && C == 3) tile(4, 3, row, y, n, o, stride, b, add);
            else if (R == 4 && C == 2) tile(4, 2, row, y, n, o, stride, b, add);
            else if (R == 4) tile(4, 1, row, y, n, o, stride, b, add);
            else if (C == 3) tile(1, 3, row, y, n, o, stride, b, add);
            else if (C == 2) tile(1, 2, row, y, n, o, stride, b, add);
            else tile(1, 1, row, y, n, o, stride, b, add);
            t += C;
        }
        r += R;
    }
}

void kvtui_linear(const float *x, int64_t x_stride, const float *norm, float eps, const char *w, const float *bias,
                  float *out, int64_t out_stride, int64_t T, int64_t n, int64_t m, int add, float *scratch,
                  int threads) {
#pragma omp parallel num_threads(threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        float *mine = scratch + me * T * n; /* every thread prepares x for itself: cheaper than a barrier */
        prepare(x, x_stride, norm, eps, T, n, mine);
        rows(w, cut(m, 4, me, team), cut(m, 4, me + 1, team), mine, T, n, out, out_stride, bias, add);
    }
}

INLINE f8 silu(f8 x) { return x / (exp8(-x) + 1.0f); }

INLINE void silu_mul16(const float *gate, const float *up, float *out) {
    for (int j = 0; j < 16; j += 8) store(out + j, silu(load(gate + j)) * load(up + j));
}

void kvtui_gated_mlp(float *residual, int64_t stride, const float *norm, float eps, const char *gate_up,
                     const char *down, int64_t T, int64_t n, int64_t ffn, float *scratch, int threads) {
    float *both = scratch, *hidden = both + T * 2 * ffn, *prepared = hidden + T * ffn;
#pragma omp parallel num_threads(threads)
    {
        int me = omp_get_thread_num(), team = omp_get_num_threads();
        float *mine = prepared + me * T * n;
        int64_t begin = cut(ffn, 16, me, team), end = cut(ffn, 16, me + 1, team);
        prepare(residual, stride, norm, eps, T, n, mine);
        rows(gate_up, begin, end, mine, T, n, both, 2 * ffn, 0, 0);
        rows(gate_up, ffn + begin, ffn + end, mine, T, n, both, 2 * ffn, 0, 0);
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = begin; i < end; i += 16) {
                float part[16];
                silu_mul16(both + t * 2 * ffn + i, both + t * 2 * ffn + ffn + i, part);
                spread(part, hidden + t * ffn + i);
            }
#pragma omp barrier
        rows(down, cut(n, 4, me, team), cut(n, 4, me + 1, team), hidden, T, ffn, residual, stride, 0, 1);
    }
}

void kvtui_silu_mul(const float *gate_up, float *out, int64_t T, int64_t ffn, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < ffn; i += 16)
            silu_mul16(gate_up + t * 2 * ffn + i, gate_up + t * 2 * ffn + ffn + i, out + t * ffn + i);
}

/* x [A, B, n] -> out, contiguous. */
void kvtui_rms_norm(const float *x, int64_t x0, int64_t x1, const float *weight, float eps, float *out, int64_t A,
                    int64_t B, int64_t n, int threads) {
#pragma omp parallel for num_threads(threads) if (A > FEW)
    for (int64_t a = 0; a < A; a++)
        for (int64_t b = 0; b < B; b++) {
            const float *row = x + a * x0 + b * x1;
            f8 scale = all(inverse_rms(row, n, eps));
            for (int64_t i = 0; i < n; i += 8)
                store(out + (a * B + b) * n + i, load(row + i) * scale * load(weight + i));
        }
}

void kvtui_rope(float *x, int64_t row_stride, int64_t head_stride, const float *cosine, const float *sine, int64_t T,
                int64_t heads, int64_t d, int threads) {
#pragma omp parallel for num_threads(threads) if (T > FEW)
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            float *low = x + t * row_stride + h * head_stride, *high = low + d / 2;
            const float *c = cosine + t * d / 2, *s = sine + t * d / 2;
            for (int64_t i = 0; i < d / 2; i += 8) {
                f8 a = load(low + i), b = load(high + i);
                store(low + i, a * load(c + i) - b * load(s + i));
                store(high + i, b * load(c + i) + a * load(s + i));
            }
        }
}

INLINE void put(const float *row, char *pool, int64_t at, int bf16, int64_t d) {
    if (bf16)
        for (int64_t i = 0; i < d; i++) ((uint16_t *)pool)[at + i] = narrow(row[i]);
    else memcpy((float *)pool + at, row, (size_t)d * 4);
}

/* Rows of k and v [T, G, d] go to slot offset[t, g] of block block[t, g]. */
void kvtui_store_kv(const float *k, int64_t kt, const float *v, int64_t vt, char *keys, int64_t k0, int64_t k1,
                    int64_t k2, char *values, int64_t v0, int64_t v1, int64_t v2, int bf16, const int64_t *block,
                    int64_t bt, int64_t bg, const int64_t *offset, int64_t ot, int64_t og, int64_t T, int64_t G,
                    int64_t d) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t g = 0; g < G; g++) {
            const int64_t at = block[t * bt + g * bg], slot = offset[t * ot + g * og];
            put(k + t * kt + g * d, keys, at * k0 + g * k1 + slot * k2, bf16, d);
            put(v + t * vt + g * d, values, at * v0 + g * v1 + slot * v2, bf16, d);
        }
}

/* ---- Paged decode attention ------------------------------------------------------------------------------------
 * The slots of all sequences, in units of 16, form one line that is cut evenly among the threads. A sequence that is
 * cut leaves one partial result a thread: the maximum, the sum of exponentials and the weighted values of each query
 * head. Sequence b's part from thread t is partial b + t, which is unique because both only grow along the line. After
 * a barrier the partials are merged by their maxima and sums. */

typedef struct {
    const char *keys, *values;
    int64_t ks[3], vs[3]; /* strides of block, KV head, slot */
    const int32_t *tables; /* [B, blocks] */
    int64_t tables_stride, S, d;
    int bf16;
} Blocks;

/* Slots that are worked on together. Entries from `count` up to the next multiple of four repeat the last. */
typedef struct {
    const char *keys[TILE], *values[TILE];
    int count;
} Tile;

static void find_tile(const Blocks *kv, int64_t b, int64_t g, int64_t slot, int64_t end, Tile *tile) {
    const int64_t width = kv->bf16 ? 2 : 4;
    const int32_t *table = kv->tables + b * kv->tables_stride;
    const int count = tile->count = (int)MIN(end - slot, TILE);
    for (int s = 0; s < count;) {
        const int64_t block = table[(slot + s) / kv->S], within = (slot + s) % kv->S;
        const int here = (int)MIN(kv->S - within, count - s);
        const char *k = kv->keys + width * (block * kv->ks[0] + g * kv->ks[1] + within * kv->ks[2]);
        const char *v = kv->values + width * (block * kv->vs[0] + g * kv->vs[1] + within * kv->vs[2]);
        for (int i = 0; i < here; i++, s++, k += width * kv->ks[2], v += width * kv->vs[2])
            tile->keys[s] = k, tile->values[s] = v;
    }
    for (int s = count; s & 3; s++) tile->keys[s] = tile->keys[s - 1], tile->values[s] = tile->values[s - 1];
}

INLINE void prefetch(const char *row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

/* p[c * TILE + 0..3] = q[c] . keys[0..3], for C heads. */
INLINE void score4(int C, int bf16, int64_t d, const char *const *keys, const float *q, float *p) {
    f8 acc[3][4];
    for (int c = 0; c < C; c++)
        for (int s = 0; s < 4; s++) acc[c][s] = all(0);
    for (int64_t i = 0; i < d / 16; i++)
        for (int s = 0; s < 4; s++) {
            f8 a, b;
            load16(keys[s], i, bf16, &a, &b);
            for (int c = 0; c < C; c++) acc[c][s] += a * load(q + c * d + 16 * i);
            for (int c = 0; c < C; c++) acc[c][s] += b * load(q + c * d + 16 * i + 8);
        }
    for (int c = 0; c < C; c++) sum_lanes4(acc[c], p + c * TILE);
}

/* p[0..count] = exp(p - maximum), with the state (maximum, total, values [d]) brought up to date. */
INLINE void renew(float *p, int count, int64_t d, float *state) {
    const int padded = (count + 7) & ~7;
    for (int s = count; s < padded; s++) p[s] = -INFINITY;
    f8 peak = load(p), sum = all(0);
    for (int s = 8; s < padded; s += 8) peak = larger(peak, load(p + s));
    const float top = max_lanes(peak);
    if (top > state[0]) {
        const f8 shrink = exp8(all(state[0] - top));
        for (int64_t i = 0; i < d; i += 8) store(state + 2 + i, load(state + 2 + i) * shrink);
        state[0] = top;
        state[1] *= shrink[0];
    }
    for (int s = 0; s < padded; s += 8) {
        const f8 e = exp8(load(p + s) - all(state[0]));
        store(p + s, e);
        sum += e;
    }
    state[1] += sum_lanes(sum);
}

/* out[c] += the sum over slots of p[c][s] * values[s], for W sixteens of columns from 16i on. */
INLINE void weigh(int C, int W, int bf16, int64_t d, const Tile *tile, int64_t i, const float *p, float *out) {
    f8 acc[3][4];
    for (int c = 0; c < C; c++)
        for (int w = 0; w < 2 * W; w++) acc[c][w] = load(out + c * (d + 2) + 16 * i + 8 * w);
    for (int s = 0; s < tile->count; s++)
        for (int w = 0; w < W; w++) {
            f8 a, b;
            load16(tile->values[s], i + w, bf16, &a, &b);
            for (int c = 0; c < C; c++) acc[c][2 * w] += a * all(p[c * TILE + s]);
            for (int c = 0; c < C; c++) acc[c][2 * w + 1] += b * all(p[c * TILE + s]);
        }
    for (int c = 0; c < C; c++)
        for (int w = 0; w < 2 * W; w++) store(out + c * (d + 2) + 16 * i + 8 * w, acc[c][w]);
}

/* C <= 3 query heads over a tile: q [C, d] scaled, state [C, d + 2], scores (or null) [C, row]. The next tile is fetched
 * meanwhile: blocks lie anywhere, so the hardware cannot foresee it. */
INLINE void attend_tile(int C, int bf16, int64_t d, const Tile *tile, const Tile *next, const float *q, float *state,
                        float *scores, int64_t row) {
    float p[3 * TILE];
    const int64_t bytes = bf16 ? 2 * d : 4 * d, columns = d / 16;
    for (int s = 0; s < tile->count; s += 4) {
        for (int i = s; i < MIN(s + 4, next->count); i++) prefetch(next->keys[i], bytes);
        score4(C, bf16, d, tile->keys + s, q, p + s);
    }
    for (int c = 0; c < C; c++) {
        if (scores) memcpy(scores + c * row, p + c * TILE, (size_t)tile->count * 4);
        renew(p + c * TILE, tile->count, d, state + c * (d + 2));
    }
    for (int64_t i = 0, s = 0; i < columns;) {
        const int W = C < 3 && i + 2 <= columns ? 2 : 1; /* three heads by two would need too many registers */
        if (W == 2) weigh(C, 2, bf16, d, tile, i, p, state + 2);
        else weigh(C, 1, bf16, d, tile, i, p, state + 2);
        for (i += W; s < next->count * i / columns; s++) prefetch(next->values[s], bytes);
    }
}

/* All H query heads of sequence b over slots begin..end; arguments as above. */
static void attend(const Blocks *kv, int64_t b, int64_t begin, int64_t end, int64_t H, int64_t G, const float *q,
                   float *state, float *scores, int64_t row) {
    const int64_t d = kv->d, group = H / G;
    const int bf16 = kv->bf16;
    Tile tiles[2];
    int turn = 0;
    find_tile(kv, b, 0, begin, end, &tiles[0]);
    for (int64_t slot = begin; slot < end; slot += TILE)
        for (int64_t g = 0; g < G; g++, turn ^= 1) {
            const Tile *tile = &tiles[turn], *next = &tiles[turn ^ 1];
            const int64_t next_slot = g + 1 < G ? slot : MIN(slot + TILE, end);
            find_tile(kv, b, g + 1 < G ? g + 1 : 0, next_slot, end, &tiles[turn ^ 1]);
            for (int64_t h = g * group, parts = (group + 2) / 3; parts; parts--) {
                const int C = (int)(((g + 1) * group - h + parts - 1) / parts); /* 4 heads are 2 + 2, not 3 + 1 */
                const float *heads = q + h * d;
                float *to = state + h * (d + 2), *keep = scores ? scores + h * row + slot : 0;
/* One copy a shape that the compiler should know. */
#define ATTEND(C) \
    (!bf16      ? attend_tile(C, 0, d, tile, next, heads, to, keep, row) \
     : d == 64  ? attend_tile(C, 1, 64, tile, next, heads, to, keep, row) \
     : d == 128 ? attend_tile(C, 1, 128, tile, next, heads, to, keep, row) \
                : attend_tile(C, 1, d, tile, next, heads, to, keep, row))
                if (C == 3) ATTEND(3);
                else if (C == 2) ATTEND(2);
                else ATTEND(1);
                h += C;
            }
        }
}

/* Scales the queries [H, d], in the order of the keys' elements, and empties the state [H, d + 2]. */
static void begin_heads(const float *q, float scale, int64_t H, int64_t d, int bf16, float *scaled, float *state) {
    memset(state, 0, (size_t)(H * (d + 2)) * 4);
    for (int64_t h = 0; h < H; h++) state[h * (d + 2)] = -INFINITY;
    for (int64_t i = 0; i < H * d; i += 16) {
        float part[16];
        for (int j = 0; j < 16; j += 8) store(part + j, load(q + i + j) * scale);
        if (bf16) spread(part, scaled + i);
        else memcpy(scaled + i, part, sizeof part);
    }
}

/* Of one query head: the maximum and the sum of exponentials over all `parts` partials, which lie `step` apart. */
static void merge(const float *part, int64_t step, int64_t parts, float *top, float *total) {
    *top = -INFINITY, *total = 0;
    for (int64_t i = 0; i < parts; i++) *top = fmaxf(*top, part[i * step]);
    for (int64_t i = 0; i < parts; i++) *total += part[i * step + 1] * expf(part[i * step] - *top);
}

/* The merged, normalised values of one query head -> out [d]. */
static void combine(const float *part, int64_t step, int64_t parts, float top, float total, int64_t d, int bf16,
                    float *out) {
    for (int64_t i = 0; i < d; i += 16) {
        float sum[16];
        f8 a = all(0), b = all(0);
        for (int64_t p = 0; p < parts; p++) {
            f8 share = all(expf(part[p * step] - top) / total);
            a += load(part + p * step + 2 + i) * share;
            b += load(part + p * step + 10 + i) * share;
        }
        store(sum, a), store(sum + 8, b);
        for (int j = 0; j < 8; j++) {
            out[i + (bf16 ? 2 * j : j)] = sum[j];
            out[i + (bf16 ? 2 * j + 1 : j + 8)] = sum[j + 8];
        }
    }
}

/* mass[begin..end] (+)= the probabilities of one query head. */
static void add_mass(const float *scores, int64_t begin, int64_t end, float top, float total, int add, float *mass) {
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
        f8 p = exp8(load(scores + i) - all(top)) / all(total);
        store(mass + i, add ? load(mass + i) + p : p);
    }
    for (; i < end; i++) mass[i] = (add ? mass[i] : 0) + expf(scores[i] - top) / total;
}

/* mass [B, G, span] may be null. Scratch: see native.py. */
void kvtui_decode_attention(const float *q, int64_t q_stride, const char *keys, int64_t k0, int64_t k1, int64_t k2,
                            const char *values, int64_t v0, int64_t v1, int64_t v2, int bf16, const int32_t *tables,
                            int64_t tables_stride, const int32_t *lengths, float scale, float *mass, int64_t mb,
                            int64_t mg, int64_t span, float *out, int64_t B, int64_t H, int64_t G, int64_t S,
                            int64_t d, float *scratch, int threads) {
    const Blocks kv = {keys, values, {k0, k1, k2}, {v0, v1, v2}, tables, tables_stride, S, d, bf16};
    const int64_t group = H / G, step = H * (d + 2);
    float *queries = scratch, *partials = queries + threads * H * d, *scores = partials + (B + threads) * step;
    int64_t units = 0;
    for (int64_t b = 0; b < B; b++) units += (lengths[b] + UNIT - 1) / UNIT;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num(), team = (int)MIN(omp_get_num_threads(), units);
        const int64_t from = me < team ? units * me / team : units, to = me < team ? units * (me + 1) / team : units;
        for (int merging = 0; merging < 2; merging++) {
            int64_t line = 0; /* where this sequence's units begin */
            for (int64_t b = 0; b < B; b++) {
                const int64_t length = lengths[b], here = (length + UNIT - 1) / UNIT, before = line;
                const int64_t first = MAX(from - line, 0), last = MIN(to - line, here);
                const int64_t begin = first * UNIT, end = MIN(last * UNIT, length);
                float *raw = mass ? scores + b * H * span : 0;
                line += here;
                if (first >= last) continue;
                if (!merging) {
                    float *mine = queries + me * H * d, *state = partials + (b + me) * step;
                    begin_heads(q + b * q_stride, scale, H, d, bf16, mine, state);
                    attend(&kv, b, begin, end, H, G, mine, state, raw, span);
                    continue;
                }
                int64_t t = 0, parts = 0;
                while (units * (t + 1) / team <= before) t++;
                while (t + parts < team && units * (t + parts) / team < line) parts++;
                for (int64_t h = 0; h < H; h++) {
                    const float *part = partials + (b + t) * step + h * (d + 2);
                    float top, total;
                    merge(part, step, parts, &top, &total);
                    if (first == 0) combine(part, step, parts, top, total, d, bf16, out + (b * H + h) * d);
                    if (!mass) continue;
                    float *slice = mass + b * mb + h / group * mg;
                    add_mass(raw + h * span, begin, end, top, total, h % group > 0, slice);
                    if (last == here) memset(slice + length, 0, (size_t)(span - length) * 4);
                }
            }
#pragma omp barrier
        }
    }
}

/* ---- Causal softmax of a tile of scores -------------------------------------------------------------------------
 * Row r sees columns 0..first+r. In place: probabilities, zero beyond; lse[r]; mass[column] += the sum over rows. */

INLINE f8 load_some(const float *p, int64_t count, float rest) {
    if (count >= 8) return load(p);
    f8 v = all(rest);
    memcpy(&v, p, (size_t)count * 4);
    return v;
}

INLINE void store_some(float *p, int64_t count, f8 v) {
    if (count >= 8) store(p, v);
    else memcpy(p, &v, (size_t)count * 4);
}

void kvtui_causal_softmax(float *scores, int64_t stride, int64_t T, int64_t first, int64_t n, float scale, float *lse,
                          float *mass, float *scratch, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num(), team = omp_get_num_threads();
        float *sums = scratch + me * n;
        if (mass) memset(sums, 0, (size_t)n * 4);
        for (int64_t r = me; r < T; r += team) {
            float *row = scores + r * stride;
            const int64_t seen = MIN(first + r + 1, n);
            f8 peak = all(-INFINITY), total = all(0);
            for (int64_t i = 0; i < seen; i += 8) peak = larger(peak, load_some(row + i, seen - i, -INFINITY));
            const float top = max_lanes(peak);
            for (int64_t i = 0; i < seen; i += 8) {
                f8 e = exp8((load_some(row + i, seen - i, -INFINITY) - all(top)) * scale);
                total += e;
                store_some(row + i, seen - i, e);
            }
            const float sum = sum_lanes(total), share = 1.0f / sum;
            if (lse) lse[r] = top * scale + logf(sum);
            int64_t i = 0;
            for (; i + 8 <= seen; i += 8) {
                f8 p = load(row + i) * share;
                store(row + i, p);
                if (mass) store(sums + i, load(sums + i) + p);
            }
            for (; i < seen; i++) {
                row[i] *= share;
                if (mass) sums[i] += row[i];
            }
            memset(row + seen, 0, (size_t)(n - seen) * 4);
        }
        if (mass) {
#pragma omp barrier
            for (int64_t i = cut(n, 8, me, team); i < cut(n, 8, me + 1, team); i++)
                for (int t = 0; t < team; t++) mass[i] += scratch[t * n + i];
        }
    }
}
