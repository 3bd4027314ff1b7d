/* Weights against few rows of activations, and what lies between: norms, SiLU, RoPE, storing keys and values.
 *
 * Weights are bfloat16 and are read once; everything else is float32. native.py documents the arguments. Strides are in
 * elements; T: rows (tokens), n and m: a weight's columns and rows. n, ffn and d are multiples of 16. */
#include "rows.h"
#include "threads.h"

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

typedef struct {
    const char *weight;
    const float *x, *bias;
    float *out;
    int64_t stride, T, n, m, portion;
    int add;
} Linear;

static void linear_item(const void *kernel, int64_t item, int thread) {
    const Linear *k = kernel;
    (void)thread;
    rows(k->weight, item * k->portion, MIN((item + 1) * k->portion, k->m), k->x, k->T, k->n, k->out, k->stride, k->bias,
         k->add);
}

/* norm and bias may be null. Scratch: [T, n]. */
void kvtui_linear(const float *x, int64_t x_stride, const float *norm, float eps, const char *weight, const float *bias,
                  float *out, int64_t out_stride, int64_t T, int64_t n, int64_t m, int add, float *scratch,
                  int threads) {
    const Linear k = {weight, scratch, bias, out, out_stride, T, n, m, portion(m, 2 * n, 4, threads), add};
    prepare(x, x_stride, norm, eps, T, n, scratch);
    share(linear_item, &k, (m + k.portion - 1) / k.portion, threads, 1);
}

typedef struct {
    const char *weight;
    const float *x;
    float *both, *hidden; /* [T, 2 ffn], [T, ffn] */
    int64_t T, n, ffn, portion;
} GateUp;

static void gate_up_item(const void *kernel, int64_t item, int thread) {
    const GateUp *k = kernel;
    const int64_t ffn = k->ffn, begin = item * k->portion, end = MIN(begin + k->portion, ffn);
    (void)thread;
    rows(k->weight, begin, end, k->x, k->T, k->n, k->both, 2 * ffn, 0, 0);
    rows(k->weight, ffn + begin, ffn + end, k->x, k->T, k->n, k->both, 2 * ffn, 0, 0);
    for (int64_t t = 0; t < k->T; t++)
        for (int64_t i = begin; i < end; i += 16) {
            float part[16];
            silu_mul16(k->both + t * 2 * ffn + i, k->both + t * 2 * ffn + ffn + i, part);
            spread(part, k->hidden + t * ffn + i);
        }
}

/* Scratch: [T, 2 ffn], [T, ffn] and [T, n]. */
void kvtui_gated_mlp(float *residual, int64_t stride, const float *norm, float eps, const char *gate_up,
                     const char *down, int64_t T, int64_t n, int64_t ffn, float *scratch, int threads) {
    float *both = scratch, *hidden = both + T * 2 * ffn, *x = hidden + T * ffn;
    const GateUp first = {gate_up, x, both, hidden, T, n, ffn, portion(ffn, 4 * n, 16, threads)};
    const Linear second = {down, hidden, 0, residual, stride, T, ffn, n, portion(n, 2 * ffn, 4, threads), 1};
    prepare(residual, stride, norm, eps, T, n, x);
    share(gate_up_item, &first, (ffn + first.portion - 1) / first.portion, threads, 1);
    share(linear_item, &second, (n + second.portion - 1) / second.portion, threads, 1);
}

/* ---- Element by element, a few rows an item --------------------------------------------------------------------- */

enum { ROWS = 16 };

typedef struct {
    const float *gate_up;
    float *out;
    int64_t T, ffn;
} SiluMul;

static void silu_mul_item(const void *kernel, int64_t item, int thread) {
    const SiluMul *k = kernel;
    (void)thread;
    for (int64_t t = item * ROWS; t < MIN((item + 1) * ROWS, k->T); t++)
        for (int64_t i = 0; i < k->ffn; i += 16)
            silu_mul16(k->gate_up + t * 2 * k->ffn + i, k->gate_up + t * 2 * k->ffn + k->ffn + i, k->out + t * k->ffn + i);
}

void kvtui_silu_mul(const float *gate_up, float *out, int64_t T, int64_t ffn, int threads) {
    const SiluMul k = {gate_up, out, T, ffn};
    share(silu_mul_item, &k, (T + ROWS - 1) / ROWS, threads, 0);
}

typedef struct {
    const float *x, *weight;
    float *out;
    int64_t x0, x1, A, B, n;
    float eps;
} Norm;

static void norm_item(const void *kernel, int64_t item, int thread) {
    const Norm *k = kernel;
    (void)thread;
    for (int64_t a = item * ROWS; a < MIN((item + 1) * ROWS, k->A); a++)
        for (int64_t b = 0; b < k->B; b++) {
            const float *row = k->x + a * k->x0 + b * k->x1;
            const f8 scale = all(inverse_rms(row, k->n, k->eps));
            for (int64_t i = 0; i < k->n; i += 8)
                store(k->out + (a * k->B + b) * k->n + i, load(row + i) * scale * load(k->weight + i));
        }
}

/* x [A, B, n] -> out, contiguous. */
void kvtui_rms_norm(const float *x, int64_t x0, int64_t x1, const float *weight, float eps, float *out, int64_t A,
                    int64_t B, int64_t n, int threads) {
    const Norm k = {x, weight, out, x0, x1, A, B, n, eps};
    share(norm_item, &k, (A + ROWS - 1) / ROWS, threads, 0);
}

typedef struct {
    float *x;
    const float *cosine, *sine;
    int64_t row_stride, head_stride, T, heads, d;
} Rope;

static void rope_item(const void *kernel, int64_t item, int thread) {
    const Rope *k = kernel;
    const int64_t half = k->d / 2;
    (void)thread;
    for (int64_t t = item * ROWS; t < MIN((item + 1) * ROWS, k->T); t++)
        for (int64_t h = 0; h < k->heads; h++) {
            float *low = k->x + t * k->row_stride + h * k->head_stride, *high = low + half;
            const float *c = k->cosine + t * half, *s = k->sine + t * half;
            for (int64_t i = 0; i < half; i += 8) {
                const f8 a = load(low + i), b = load(high + i);
                store(low + i, a * load(c + i) - b * load(s + i));
                store(high + i, b * load(c + i) + a * load(s + i));
            }
        }
}

void kvtui_rope(float *x, int64_t row_stride, int64_t head_stride, const float *cosine, const float *sine, int64_t T,
                int64_t heads, int64_t d, int threads) {
    const Rope k = {x, cosine, sine, row_stride, head_stride, T, heads, d};
    share(rope_item, &k, (T + ROWS - 1) / ROWS, threads, 0);
}

INLINE uint16_t narrow(float x) { /* to bfloat16, to nearest even */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
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

