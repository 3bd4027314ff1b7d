/* Attention of one query a sequence over its paged KV, and the softmax of prefill. native.py documents the arguments.
 *
 * Paged decode attention: the slots of all sequences, in units of 16, form one line that is cut into equal parts. A
 * sequence that is cut leaves one partial result a part: the maximum, the sum of exponentials and the weighted values
 * of each query head. What part p holds of sequence b is partial b + p, which is unique because both only grow along the
 * line. Then the partials are merged by their maxima and sums (Flash-Decoding, Dao et al. 2023).
 *
 * Strides are in elements. B: sequences, H: query heads, G: KV heads, S: slots a block, d: head dimension, a multiple of
 * 16. */
#include "threads.h"
#include "vectors.h"

/* Slots a unit, slots worked on together, parts of the line a thread, rows of softmax an item. */
enum { UNIT = 16, TILE = 32, PARTS = 3, ROWS = 8 };

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

typedef struct {
    Blocks kv;
    const float *q;
    const int32_t *lengths;
    float *mass, *out, *queries, *partials, *scores;
    int64_t q_stride, mass_b, mass_g, span, B, H, G, units, parts;
    float scale;
} Decode;

INLINE int64_t units_of(int64_t length) { return (length + UNIT - 1) / UNIT; }

static void score_part(const Decode *k, int64_t b, int64_t part, int64_t begin, int64_t end, int thread) {
    const int64_t d = k->kv.d;
    float *mine = k->queries + thread * k->H * d, *state = k->partials + (b + part) * k->H * (d + 2);
    begin_heads(k->q + b * k->q_stride, k->scale, k->H, d, k->kv.bf16, mine, state);
    attend(&k->kv, b, begin, end, k->H, k->G, mine, state, k->mass ? k->scores + b * k->H * k->span : 0, k->span);
}

/* `line` is where the sequence's units begin. */
static void merge_part(const Decode *k, int64_t b, int64_t line, int64_t begin, int64_t end) {
    const int64_t d = k->kv.d, step = k->H * (d + 2), group = k->H / k->G, length = k->lengths[b];
    int64_t first = 0, count = 0;
    while (k->units * (first + 1) / k->parts <= line) first++;
    while (first + count < k->parts && k->units * (first + count) / k->parts < line + units_of(length)) count++;
    for (int64_t h = 0; h < k->H; h++) {
        const float *part = k->partials + (b + first) * step + h * (d + 2);
        float top, total;
        merge(part, step, count, &top, &total);
        if (begin == 0) combine(part, step, count, top, total, d, k->kv.bf16, k->out + (b * k->H + h) * d);
        if (!k->mass) continue;
        float *mass = k->mass + b * k->mass_b + h / group * k->mass_g;
        add_mass(k->scores + (b * k->H + h) * k->span, begin, end, top, total, h % group > 0, mass);
        if (end == length) memset(mass + length, 0, (size_t)(k->span - length) * 4);
    }
}

/* What part `item` of the line holds of each sequence. */
INLINE void walk(const Decode *k, int64_t item, int thread, int merging) {
    const int64_t from = k->units * item / k->parts, to = k->units * (item + 1) / k->parts;
    for (int64_t b = 0, line = 0; b < k->B && line < to; line += units_of(k->lengths[b++])) {
        const int64_t begin = MAX(from - line, 0) * UNIT, end = MIN((to - line) * UNIT, k->lengths[b]);
        if (begin >= end) continue;
        if (merging) merge_part(k, b, line, begin, end);
        else score_part(k, b, item, begin, end, thread);
    }
}

static void score_item(const void *kernel, int64_t item, int thread) { walk(kernel, item, thread, 0); }
static void merge_item(const void *kernel, int64_t item, int thread) { walk(kernel, item, thread, 1); }

/* mass [B, G, span] may be null. Scratch: the queries of each thread [threads, H, d], the partials
 * [B + PARTS * threads, H, d + 2] and, for mass, every score [B, H, span]. */
void kvtui_decode_attention(const float *q, int64_t q_stride, const char *keys, int64_t k0, int64_t k1, int64_t k2,
                            const char *values, int64_t v0, int64_t v1, int64_t v2, int bf16, const int32_t *tables,
                            int64_t tables_stride, const int32_t *lengths, float scale, float *mass, int64_t mass_b,
                            int64_t mass_g, int64_t span, float *out, int64_t B, int64_t H, int64_t G, int64_t S,
                            int64_t d, float *scratch, int threads) {
    Decode k = {.kv = {keys, values, {k0, k1, k2}, {v0, v1, v2}, tables, tables_stride, S, d, bf16},
                .q = q, .lengths = lengths, .mass = mass, .out = out, .q_stride = q_stride,
                .mass_b = mass_b, .mass_g = mass_g, .span = span, .B = B, .H = H, .G = G, .scale = scale};
    for (int64_t b = 0; b < B; b++) k.units += units_of(lengths[b]);
    k.parts = threads > 1 ? MIN(k.units, PARTS * threads) : 1;
    k.queries = scratch;
    k.partials = k.queries + threads * H * d;
    k.scores = k.partials + (B + k.parts) * H * (d + 2);
    share(score_item, &k, k.parts, threads, 1);
    share(merge_item, &k, k.parts, mass || B > 1 ? threads : 1, 1);
}

/* ---- Causal softmax of a tile of scores -------------------------------------------------------------------------- */

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

typedef struct {
    float *scores, *lse, *sums;
    int64_t stride, T, first, n;
    float scale;
} Softmax;

static void softmax_item(const void *kernel, int64_t item, int thread) {
    const Softmax *k = kernel;
    float *sums = k->sums ? k->sums + thread * k->n : 0;
    for (int64_t r = item * ROWS; r < MIN((item + 1) * ROWS, k->T); r++) {
        float *row = k->scores + r * k->stride;
        const int64_t seen = MIN(k->first + r + 1, k->n);
        f8 peak = all(-INFINITY), total = all(0);
        for (int64_t i = 0; i < seen; i += 8) peak = larger(peak, load_some(row + i, seen - i, -INFINITY));
        const float top = max_lanes(peak);
        for (int64_t i = 0; i < seen; i += 8) {
            const f8 e = exp8((load_some(row + i, seen - i, -INFINITY) - all(top)) * k->scale);
            total += e;
            store_some(row + i, seen - i, e);
        }
        const float sum = sum_lanes(total), inverse = 1.0f / sum;
        if (k->lse) k->lse[r] = top * k->scale + logf(sum);
        int64_t i = 0;
        for (; i + 8 <= seen; i += 8) {
            const f8 p = load(row + i) * inverse;
            store(row + i, p);
            if (sums) store(sums + i, load(sums + i) + p);
        }
        for (; i < seen; i++) {
            row[i] *= inverse;
            if (sums) sums[i] += row[i];
        }
        memset(row + seen, 0, (size_t)(k->n - seen) * 4);
    }
}

/* Row r sees columns 0..first+r. In place: probabilities, zero beyond; lse[r]; mass[column] += the sum over rows. Both
 * may be null. Scratch: [threads, n]. */
void kvtui_causal_softmax(float *scores, int64_t stride, int64_t T, int64_t first, int64_t n, float scale, float *lse,
                          float *mass, float *scratch, int threads) {
    const Softmax k = {scores, lse, mass ? scratch : 0, stride, T, first, n, scale};
    if (mass) memset(scratch, 0, (size_t)(threads * n) * 4);
    share(softmax_item, &k, (T + ROWS - 1) / ROWS, threads, 0);
    for (int t = 0; mass && t < threads; t++)
        for (int64_t i = 0; i < n; i++) mass[i] += scratch[t * n + i];
}

/* ---- Column sums of a tile of scores ----------------------------------------------------------------------------- */

typedef struct {
    const float *scores, *lse;
    float *sums;
    int64_t stride, T, first, every, n;
    float scale;
} Columns;

static void columns_item(const void *kernel, int64_t item, int thread) {
    const Columns *k = kernel;
    float *sums = k->sums + thread * k->n;
    for (int64_t r = item * ROWS; r < MIN((item + 1) * ROWS, k->T); r++) {
        const float *row = k->scores + r * k->stride;
        const int64_t seen = MIN(k->first + r * k->every + 1, k->n);
        const f8 lse = all(k->lse[r]);
        for (int64_t i = 0; i < seen; i += 8) {
            const f8 p = exp8(load_some(row + i, seen - i, -INFINITY) * k->scale - lse);
            store_some(sums + i, seen - i, load_some(sums + i, seen - i, 0) + p);
        }
    }
}

/* Row r sees columns 0..first + r * every: mass[column] += weight * the sum over rows of exp(scale * score - lse[r]).
 * Scratch: [threads, n]. */
void kvtui_column_mass(const float *scores, int64_t stride, int64_t T, int64_t first, int64_t every, int64_t n,
                       float scale, const float *lse, float weight, float *mass, float *scratch, int threads) {
    const Columns k = {scores, lse, scratch, stride, T, first, every, n, scale};
    memset(scratch, 0, (size_t)(threads * n) * 4);
    share(columns_item, &k, (T + ROWS - 1) / ROWS, threads, 0);
    for (int t = 0; t < threads; t++)
        for (int64_t i = 0; i < n; i++) mass[i] += weight * scratch[t * n + i];
}
