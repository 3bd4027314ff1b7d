/* InfiniGen's bookkeeping of a decode step: which keys a query will want, and where on the device they are. native.py
 * documents the arguments. Strides are in elements. G: KV heads, n: keys, p: columns of the partial keys. */
#include "threads.h"
#include "vectors.h"

/* ---- Speculation ------------------------------------------------------------------------------------------------ */

enum { SPAN = 64, DIGITS = 11, BUCKETS = 1 << DIGITS };

INLINE float element(const char *row, int64_t i, int bf16) {
    if (!bf16) return ((const float *)row)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)row)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* out[0..n] = the products of q [p] with the keys, whose columns lie `stride` apart. */
INLINE void products(int bf16, const float *q, const char *keys, int64_t stride, int64_t p, int64_t n, float *out) {
    const int64_t width = bf16 ? 2 : 4;
    int64_t at = 0;
    for (; at + SPAN <= n; at += SPAN) {
        f8 acc[SPAN / 8];
        for (int i = 0; i < SPAN / 8; i++) acc[i] = all(0);
        for (int64_t j = 0; j < p; j++) {
            const f8 weight = all(q[j]);
            for (int i = 0; i < SPAN / 16; i++) {
                f8 a, b;
                load16(keys + width * (j * stride + at), i, bf16, &a, &b);
                acc[2 * i] += a * weight;
                acc[2 * i + 1] += b * weight;
            }
        }
        for (int i = 0; i < SPAN / 16; i++)
            for (int k = 0; k < 8; k++) {
                out[at + 16 * i + (bf16 ? 2 * k : k)] = acc[2 * i][k];
                out[at + 16 * i + (bf16 ? 2 * k + 1 : k + 8)] = acc[2 * i + 1][k];
            }
    }
    for (; at < n; at++) {
        float sum = 0;
        for (int64_t j = 0; j < p; j++) sum += q[j] * element(keys + width * j * stride, at, bf16);
        out[at] = sum;
    }
}

typedef struct {
    const float *q;
    const char *keys;
    float *scratch; /* two lines of n a KV head: scores, shares */
    int64_t *within, *slots;
    int64_t head_stride, column_stride, n, group, p, chosen, row;
    float scale, alpha;
    int bf16;
} Speculation;

/* shares[0..n] = the softmax of the head's queries, summed; within[g] = how many scores lie within alpha of their top. */
static void speculate_item(const void *kernel, int64_t g, int thread) {
    const Speculation *k = kernel;
    const int64_t n = k->n;
    float *scores = k->scratch + 2 * g * n, *shares = scores + n;
    const char *keys = k->keys + (k->bf16 ? 2 : 4) * g * k->head_stride;
    int64_t within = 0;
    (void)thread;
    memset(shares, 0, (size_t)n * 4);
    for (int64_t c = 0; c < k->group; c++) {
        const float *q = k->q + (g * k->group + c) * k->p;
        if (k->bf16) products(1, q, keys, k->column_stride, k->p, n, scores);
        else products(0, q, keys, k->column_stride, k->p, n, scores);
        f8 peak = all(-INFINITY), sum = all(0);
        float top, total = 0;
        int64_t i = 0, tail = n & ~(int64_t)7;
        for (; i < tail; i += 8) {
            const f8 s = load(scores + i) * all(k->scale);
            store(scores + i, s);
            peak = larger(peak, s);
        }
        top = max_lanes(peak);
        for (; i < n; i++) scores[i] *= k->scale, top = fmaxf(top, scores[i]);
        const float least = top - k->alpha;
        i8 counts = {0};
        for (i = 0; i < tail; i += 8) {
            const f8 s = load(scores + i), e = exp8(s - all(top));
            counts -= s >= all(least);
            store(scores + i, e);
            sum += e;
        }
        for (int j = 0; j < 8; j++) within += counts[j];
        for (; i < n; i++) {
            within += scores[i] >= least;
            total += scores[i] = expf(scores[i] - top);
        }
        total += sum_lanes(sum);
        for (i = 0; i < tail; i += 8) store(shares + i, load(shares + i) + load(scores + i) / all(total));
        for (; i < n; i++) shares[i] += scores[i] / total;
    }
    k->within[g] = within;
}

/* The `chosen` largest shares of a head, in the order of their places. Shares are not negative, so their bits sort as
 * they do: three rounds of counting by digits find the least of them. */
static void choose_item(const void *kernel, int64_t g, int thread) {
    const Speculation *k = kernel;
    const uint32_t *bits = (const uint32_t *)(k->scratch + (2 * g + 1) * k->n);
    int64_t *slots = k->slots + g * k->row;
    int64_t left = k->chosen;
    uint32_t least = 0, known = 0;
    (void)thread;
    for (int shift = 32 - DIGITS; known != UINT32_MAX; shift = MAX(shift - DIGITS, 0)) {
        uint32_t counts[BUCKETS] = {0};
        const uint32_t mask = (shift ? BUCKETS - 1 : (1u << (32 - 2 * DIGITS)) - 1) << shift;
        for (int64_t i = 0; i < k->n; i++)
            if ((bits[i] & known) == least) counts[(bits[i] & mask) >> shift]++;
        int64_t digit = BUCKETS - 1;
        for (; digit > 0 && counts[digit] < left; digit--) left -= counts[digit];
        least |= (uint32_t)digit << shift;
        known |= mask;
    }
    for (int64_t i = 0, found = 0; found < k->chosen; i++)
        if (bits[i] > least || (bits[i] == least && left-- > 0)) slots[found++] = i;
}

/* Returns how many slots [G, most] were chosen of each head. Scratch: [G, 2, n]. */
int64_t kvtui_speculate(const float *q, const char *keys, int64_t head_stride, int64_t column_stride, int bf16,
                        float scale, float alpha, int64_t G, int64_t group, int64_t p, int64_t n, int64_t most,
                        int64_t *slots, float *scratch, int threads) {
    int64_t within[G], all_within = 0;
    Speculation k = {q, keys, scratch, within, slots, head_stride, column_stride, n, group, p, 0, most, scale, alpha,
                     bf16};
    share(speculate_item, &k, G, threads, 1);
    for (int64_t g = 0; g < G; g++) all_within += within[g];
    k.chosen = MIN(MAX((int64_t)rint((double)all_within / (double)(G * group)), 1), most);
    share(choose_item, &k, G, threads, 1);
    return k.chosen;
}

/* ---- The working set -------------------------------------------------------------------------------------------- */

enum { EMPTY = -1, PLACE_BITS = 24 };

/* Moves the `count` least of keys[0..n] to the front. */
static void least_first(int64_t *keys, int64_t n, int64_t count) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const int64_t pivot = keys[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (keys[i] < pivot) i++;
            while (keys[j] > pivot) j--;
            if (i <= j) {
                const int64_t swap = keys[i];
                keys[i++] = keys[j], keys[j--] = swap;
            }
        }
        if (count <= j) high = j;
        else if (count >= i) low = i;
        else return;
    }
}

/* One layer. place_of [G, capacity + 1], slot_of and used [G, places + 1], slots [G, m], own [G], rows [G, m + 1];
 * heads, absent and into get the missing entries, whose number is returned. `first`: row of the layer's first place,
 * `beyond`: of the area for what has none, `overflow` rows a head. Scratch: [places]. */
int64_t kvtui_take(int32_t *place_of, int64_t capacity, int32_t *slot_of, int64_t *used, int64_t places,
                   const int64_t *slots, int64_t slots_stride, const int64_t *own, int64_t own_stride, int64_t G,
                   int64_t m, int64_t now, int64_t first, int64_t beyond, int64_t overflow, int32_t *rows,
                   int64_t *heads, int64_t *absent, int64_t *into, int64_t *scratch) {
    int64_t total = 0;
    for (int64_t g = 0; g < G; g++) {
        int64_t missing = 0, free = 0, taken = 0, spilled = 0;
        for (int64_t j = 0; j < m; j++) {
            const int32_t place = place_of[slots[j]];
            rows[j] = place < 0 ? EMPTY : (int32_t)(first + place);
            if (place < 0) missing++;
            else used[place] = now;
        }
        for (int64_t i = 0; i < places; i++)
            if (used[i] < now) scratch[free++] = (used[i] + 1) << PLACE_BITS | i;
        const int64_t count = MIN(missing + 1, free);
        if (count < free) least_first(scratch, free, count);
        for (int64_t i = 0; i < count; i++) {
            scratch[i] &= (1 << PLACE_BITS) - 1;
            const int32_t gone = slot_of[scratch[i]];
            if (gone >= 0) place_of[gone] = EMPTY;
        }
        const int64_t own_place = count ? scratch[taken++] : EMPTY; /* the step's own comes first */
        for (int64_t j = 0; j < m && missing; j++) {
            if (rows[j] >= 0) continue;
            if (taken < count) {
                const int64_t place = scratch[taken++];
                place_of[slots[j]] = (int32_t)place, slot_of[place] = (int32_t)slots[j], used[place] = now;
                rows[j] = (int32_t)(first + place);
            } else rows[j] = (int32_t)(beyond + spilled++);
            heads[total] = g, absent[total] = slots[j], into[total++] = rows[j];
        }
        const int32_t stale = place_of[*own];
        if (stale >= 0) slot_of[stale] = EMPTY, used[stale] = EMPTY;
        place_of[*own] = (int32_t)own_place;
        if (own_place >= 0) slot_of[own_place] = (int32_t)*own, used[own_place] = now;
        rows[m] = (int32_t)(own_place >= 0 ? first + own_place : beyond + spilled);
        place_of += capacity + 1, slot_of += places + 1, used += places + 1;
        slots += slots_stride, own += own_stride, rows += m + 1;
        first += places, beyond += overflow;
    }
    return total;
}
