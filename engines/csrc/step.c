/* All layers of a decode step in one call. A kernel of a small model takes less time than Python needs to call it, as
 * streaming the weights has swept the interpreter out of the caches each time. */
#include "kernels.h"

#include <string.h>

typedef struct {
    const float *norm;
    const char *qkv;
    const float *qkv_bias, *q_norm, *k_norm; /* or null */
    const char *out;
    const float *out_bias; /* or null */
    const float *mlp_norm;
    const char *gate_up, *down;
} Layer;

/* Mirrored by engines/step.py. Strides are in elements; `mass` may be null. */
typedef struct {
    int64_t L, B, hidden, H, G, d, ffn, S, span, threads, bf16;
    float eps, scale;
    const Layer *layers;
    float *x; /* [B, hidden], in and out */
    const float *cosine, *sine;
    char *keys, *values;
    int64_t k_layer, k0, k1, k2, v_layer, v0, v1, v2;
    const int64_t *block, *offset; /* [L, B, G] by these strides */
    int64_t block_layer, block_b, block_g, offset_layer, offset_b, offset_g;
    const int32_t *tables, *lengths;
    int64_t tables_stride;
    float *mass; /* [L, B, G, span] */
    int64_t mass_layer, mass_b, mass_g;
    float *scratch; /* qkv [B, H + 2G, d], normalised heads [B, H, d], attended [B, H, d], and the kernels' own */
} Step;

/* heads [B, count, d], whose rows lie `row` apart, in place. */
static void norm_heads(float *heads, int64_t row, const float *weight, float eps, float *normed, int64_t B,
                       int64_t count, int64_t d) {
    kvtui_rms_norm(heads, row, d, weight, eps, normed, B, count, d, 1);
    for (int64_t b = 0; b < B; b++) memcpy(heads + b * row, normed + b * count * d, (size_t)(count * d) * 4);
}

void kvtui_decode_step(const Step *s) {
    const int64_t B = s->B, H = s->H, G = s->G, d = s->d, n = s->hidden, row = (H + 2 * G) * d, width = s->bf16 ? 2 : 4;
    const int threads = (int)s->threads, bf16 = (int)s->bf16;
    float *q = s->scratch, *k = q + H * d, *v = k + G * d;
    float *normed = q + B * row, *attended = normed + B * H * d, *scratch = attended + B * H * d;
    for (int64_t i = 0; i < s->L; i++) {
        const Layer *w = s->layers + i;
        char *keys = s->keys + i * s->k_layer * width, *values = s->values + i * s->v_layer * width;
        kvtui_linear(s->x, n, w->norm, s->eps, w->qkv, w->qkv_bias, q, row, B, n, row, 0, scratch, threads);
        if (w->q_norm) {
            norm_heads(q, row, w->q_norm, s->eps, normed, B, H, d);
            norm_heads(k, row, w->k_norm, s->eps, normed, B, G, d);
        }
        kvtui_rope(q, row, d, s->cosine, s->sine, B, H + G, d, 1);
        kvtui_store_kv(k, row, v, row, keys, s->k0, s->k1, s->k2, values, s->v0, s->v1, s->v2, bf16,
                       s->block + i * s->block_layer, s->block_b, s->block_g, s->offset + i * s->offset_layer,
                       s->offset_b, s->offset_g, B, G, d);
        kvtui_decode_attention(q, row, keys, s->k0, s->k1, s->k2, values, s->v0, s->v1, s->v2, bf16, s->tables,
                               s->tables_stride, s->lengths, s->scale, s->mass ? s->mass + i * s->mass_layer : 0,
                               s->mass_b, s->mass_g, s->span, attended, B, H, G, s->S, d, scratch, threads);
        kvtui_linear(attended, H * d, 0, 0, w->out, w->out_bias, s->x, n, B, H * d, n, 1, scratch, threads);
        kvtui_gated_mlp(s->x, n, w->mlp_norm, s->eps, w->gate_up, w->down, B, n, s->ffn, scratch, threads);
    }
}
