/* 8-bit weights against few rows of activations.
 *
 * A weight's row is stored as `groups` groups of 32 codes, and for each a bfloat16 scale and offset side by side: a weight
 * is code * scale + offset. Behind its last column a row has zeros. The activations of a group become whole numbers of 14
 * bits with a float32 scale, so that products are exact in 32 bits, and their sum meets the offset: what is lost is what
 * storing the weights lost. native.py documents the other arguments; n: a weight's columns, a multiple of 16 except in
 * kvtui_widen.
 *
 * Thirty-two codes are loaded as sixteen 16-bit words. Shifted up, a word is its even code times 256, and masked its odd
 * one: widening costs two instructions. As in bfloat16 rows, the partners lie evens first, here of every thirty-two. */
#include "rows.h"
#include "threads.h"

/* Codes a group; the largest activation (products with 128 * 256 fit into 32 bits, four in a lane); groups whose scales
 * are multiplied in advance. */
enum { GROUP = 32, MOST = 8191, TOGETHER = 32 };

typedef int16_t h16 __attribute__((vector_size(32)));
typedef i8 i8_any __attribute__((aligned(2), may_alias));
typedef int8_t b8 __attribute__((vector_size(8), aligned(1), may_alias));

/* Each lane: the products of its two 16-bit halves, summed. */
INLINE i8 pair_products(i8 a, i8 b) {
#ifdef __AVX2__
    return (i8)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return ((i8)((u8)a << 16) >> 16) * ((i8)((u8)b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

INLINE i8 codes32(const void *p) { return *(const i8_any *)p; }
INLINE i8 even(i8 codes) { return (i8)((h16)codes << 8); }
INLINE i8 odd(i8 codes) { return codes & (int32_t)0xff00ff00; }

/* Scale and offset of a group, side by side. */
typedef uint32_t Pair;

INLINE float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE float scale_of(Pair pair) { return from_bits(pair << 16); }
INLINE float offset_of(Pair pair) { return from_bits(pair & 0xffff0000u); }

typedef struct {
    int16_t *numbers; /* [T, 32 groups] */
    float *scales, *sums; /* [T, groups]: what a number is worth beside a word, and the sum of a group's activations */
} Rows;

/* x [32] -> group g of the rows, numbers in the order of the codes' partners. */
INLINE void whole_numbers(const float *x, Rows rows, int64_t g) {
    const f8 magic = all(12582912.0f); /* as in exp8 */
    f8 peak = all(0), sum = all(0);
    for (int i = 0; i < GROUP; i += 8) {
        peak = larger(peak, larger(load(x + i), -load(x + i)));
        sum += load(x + i);
    }
    const float top = max_lanes(peak);
    const f8 scale = all(top > 0 ? MOST / top : 0);
    int32_t whole[GROUP];
    for (int i = 0; i < GROUP; i += 8) {
        const i8 rounded = (i8)(load(x + i) * scale + magic) - (i8)magic;
        memcpy(whole + i, &rounded, sizeof rounded);
    }
    int16_t *out = rows.numbers + g * GROUP;
    for (int j = 0; j < GROUP / 2; j++)
        out[j] = (int16_t)whole[2 * j], out[GROUP / 2 + j] = (int16_t)whole[2 * j + 1];
    rows.scales[g] = top / (MOST * 256.0f);
    rows.sums[g] = sum_lanes(sum);
}

/* The rows of x [T, n], or of its RMS norm. */
static void prepare(const float *x, int64_t stride, const float *norm, float eps, int64_t T, int64_t n, Rows rows) {
    for (int64_t t = 0, g = 0; t < T; t++, x += stride) {
        const f8 scale = all(norm ? inverse_rms(x, n, eps) : 1.0f);
        for (int64_t i = 0; i < n; i += GROUP) {
            float part[GROUP] = {0};
            for (int64_t j = 0; j < MIN(GROUP, n - i); j += 8)
                store(part + j, norm ? load(x + i + j) * scale * load(norm + i + j) : load(x + i + j));
            whole_numbers(part, rows, g++);
        }
    }
}

typedef struct {
    const int8_t *codes;
    const Pair *pairs; /* [m, groups] */
    int64_t groups;
} Weight;

/* out[t][r] (+)= w[r] . x[t] + bias[r] for a register tile of R weight rows and C activation rows. */
INLINE void tile(int R, int C, Weight w, Rows x, float *out, int64_t stride, const float *bias, int add) {
    const int64_t groups = w.groups, width = GROUP * groups;
    f8 acc[4][2];
    float rest[4][2] = {{0}};
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) acc[r][c] = all(0);
    for (int64_t first = 0; first < groups; first += TOGETHER) {
        const int64_t count = MIN(groups - first, TOGETHER);
        float scale[4][2][TOGETHER];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                const Pair *pairs = w.pairs + r * groups + first;
                const float *scales = x.scales + c * groups + first, *sums = x.sums + c * groups + first;
                int64_t g = 0;
                for (; g + 8 <= count; g += 8) {
                    const u8 both = *(const u8_any *)(pairs + g);
                    store(scale[r][c] + g, (f8)(both << 16) * load(scales + g));
                    acc[r][c] += (f8)(both & 0xffff0000u) * load(sums + g);
                }
                for (; g < count; g++) {
                    scale[r][c][g] = scale_of(pairs[g]) * scales[g];
                    rest[r][c] += offset_of(pairs[g]) * sums[g];
                }
            }
        for (int64_t g = 0; g < count; g++) {
            const int64_t at = GROUP * (first + g);
            for (int r = 0; r < R; r += 2) __builtin_prefetch(w.codes + R * width + R * at + GROUP * r);
            for (int r = 0; r < R; r++) {
                const i8 codes = codes32(w.codes + r * width + at);
                for (int c = 0; c < C; c++) {
                    const int16_t *with = x.numbers + c * width + at;
                    const i8 sum = pair_products(even(codes), codes32(with)) +
                                   pair_products(odd(codes), codes32(with + GROUP / 2));
                    acc[r][c] += __builtin_convertvector(sum, f8) * all(scale[r][c][g]);
                }
            }
        }
    }
    for (int c = 0; c < C; c++)
        for (int r = 0; r < R; r++) {
            float sum = sum_lanes(acc[r][c]) + rest[r][c] + (bias ? bias[r] : 0);
            out[c * stride + r] = add ? out[c * stride + r] + sum : sum;
        }
}

INLINE Weight from_row(Weight w, int64_t r) {
    return (Weight){w.codes + r * w.groups * GROUP, w.pairs + r * w.groups, w.groups};
}

INLINE Rows from_activations(Rows x, int64_t t, int64_t groups) {
    return (Rows){x.numbers + t * groups * GROUP, x.scales + t * groups, x.sums + t * groups};
}

/* Rows begin..end of a weight against all T rows of x; a few weight rows stay in L1 while x passes by. */
static void rows(Weight weight, int64_t begin, int64_t end, Rows x, int64_t T, float *out, int64_t stride,
                 const float *bias, int add) {
    for (int64_t r = begin; r < end;) {
        const int R = end - r >= 4 ? 4 : 1;
        const Weight w = from_row(weight, r);
        const float *b = bias ? bias + r : 0;
        for (int64_t t = 0; t < T;) {
            const int C = T - t >= 2 ? 2 : 1;
            const Rows y = from_activations(x, t, w.groups);
            float *o = out + t * stride + r;
            if (R == 4 && C == 2) tile(4, 2, w, y, o, stride, b, add);
            else if (R == 4) tile(4, 1, w, y, o, stride, b, add);
            else if (C == 2) tile(1, 2, w, y, o, stride, b, add);
            else tile(1, 1, w, y, o, stride, b, add);
            t += C;
        }
        r += R;
    }
}

typedef struct {
    Weight weight;
    Rows x;
    const float *bias;
    float *out;
    int64_t stride, T, m, portion;
    int add;
} Linear;

static void linear_item(const void *kernel, int64_t item, int thread) {
    const Linear *k = kernel;
    (void)thread;
    rows(k->weight, item * k->portion, MIN((item + 1) * k->portion, k->m), k->x, k->T, k->out, k->stride, k->bias, k->add);
}

/* Takes what T rows of that many groups need from the scratch: 18 values a group. */
static Rows room(float **scratch, int64_t T, int64_t groups) {
    float *scales = *scratch + T * groups * (GROUP / 2);
    const Rows found = {(int16_t *)*scratch, scales, scales + T * groups};
    *scratch = found.sums + T * groups;
    return found;
}

/* norm and bias may be null. Scratch: 18 T groups. */
void kvtui_linear8(const float *x, int64_t x_stride, const float *norm, float eps, const int8_t *codes,
                   const Pair *pairs, int64_t groups, const float *bias, float *out, int64_t out_stride, int64_t T,
                   int64_t n, int64_t m, int add, float *scratch, int threads) {
    const Rows prepared = room(&scratch, T, groups);
    const Linear k = {{codes, pairs, groups}, prepared, bias, out, out_stride, T, m,
                      portion(m, (GROUP + 4) * groups, 4, threads), add};
    prepare(x, x_stride, norm, eps, T, n, prepared);
    share(linear_item, &k, (m + k.portion - 1) / k.portion, threads, 1);
}

typedef struct {
    Weight weight;
    Rows x, hidden;
    float *both; /* [T, 2 ffn] */
    int64_t T, ffn, portion;
} GateUp;

static void gate_up_item(const void *kernel, int64_t item, int thread) {
    const GateUp *k = kernel;
    const int64_t ffn = k->ffn, begin = item * k->portion, end = MIN(begin + k->portion, ffn);
    const int64_t groups = (ffn + GROUP - 1) / GROUP;
    (void)thread;
    rows(k->weight, begin, end, k->x, k->T, k->both, 2 * ffn, 0, 0);
    rows(k->weight, ffn + begin, ffn + end, k->x, k->T, k->both, 2 * ffn, 0, 0);
    for (int64_t t = 0; t < k->T; t++)
        for (int64_t i = begin; i < end; i += GROUP) {
            const float *gate = k->both + t * 2 * ffn + i;
            float part[GROUP] = {0};
            for (int64_t j = 0; j < MIN(GROUP, end - i); j += 16) silu_mul16(gate + j, gate + ffn + j, part + j);
            whole_numbers(part, k->hidden, t * groups + i / GROUP);
        }
}

/* Scratch: [T, 2 ffn], 18 T groups and 18 T down_groups. */
void kvtui_gated_mlp8(float *residual, int64_t stride, const float *norm, float eps, const int8_t *gate_up,
                      const Pair *gate_up_pairs, int64_t groups, const int8_t *down, const Pair *down_pairs,
                      int64_t down_groups, int64_t T, int64_t n, int64_t ffn, float *scratch, int threads) {
    const Rows x = room(&scratch, T, groups), hidden = room(&scratch, T, down_groups);
    const GateUp first = {{gate_up, gate_up_pairs, groups}, x, hidden, scratch, T, ffn,
                          portion(ffn, 2 * (GROUP + 4) * groups, GROUP, threads)};
    const Linear second = {{down, down_pairs, down_groups}, hidden, 0, residual, stride, T, n,
                           portion(n, (GROUP + 4) * down_groups, 4, threads), 1};
    prepare(residual, stride, norm, eps, T, n, x);
    share(gate_up_item, &first, (ffn + first.portion - 1) / first.portion, threads, 1);
    share(linear_item, &second, (n + second.portion - 1) / second.portion, threads, 1);
}

enum { WIDENED = 32 };

typedef struct {
    Weight weight;
    float *out;
    int64_t m, n;
} Widen;

static void widen_item(const void *kernel, int64_t item, int thread) {
    const Widen *k = kernel;
    (void)thread;
    for (int64_t r = item * WIDENED; r < MIN((item + 1) * WIDENED, k->m); r++)
        for (int64_t g = 0; g < k->weight.groups; g++) {
            const int8_t *codes = k->weight.codes + (r * k->weight.groups + g) * GROUP;
            const Pair pair = k->weight.pairs[r * k->weight.groups + g];
            const float scale = scale_of(pair), offset = offset_of(pair);
            float *out = k->out + r * k->n + g * GROUP;
            const int64_t count = MIN(GROUP, k->n - g * GROUP);
            int64_t i = 0;
            for (; i + 8 <= count; i += 8)
                store(out + i, __builtin_convertvector(*(const b8 *)(codes + i), f8) * all(scale) + all(offset));
            for (; i < count; i++) out[i] = (float)codes[i] * scale + offset;
        }
}

/* The weight itself, out [m, n]. */
void kvtui_widen(const int8_t *codes, const Pair *pairs, int64_t groups, float *out, int64_t m, int64_t n,
                 int threads) {
    const Widen k = {{codes, pairs, groups}, out, m, n};
    share(widen_item, &k, (m + WIDENED - 1) / WIDENED, threads, 0);
}
