/* What native.py calls. Each is described where it is defined. */
#include <stdint.h>

void kvtui_linear(const float *x, int64_t x_stride, const float *norm, float eps, const char *weight, const float *bias,
                  float *out, int64_t out_stride, int64_t T, int64_t n, int64_t m, int add, float *scratch, int threads);
void kvtui_gated_mlp(float *residual, int64_t stride, const float *norm, float eps, const char *gate_up,
                     const char *down, int64_t T, int64_t n, int64_t ffn, float *scratch, int threads);
void kvtui_silu_mul(const float *gate_up, float *out, int64_t T, int64_t ffn, int threads);
void kvtui_rms_norm(const float *x, int64_t x0, int64_t x1, const float *weight, float eps, float *out, int64_t A,
                    int64_t B, int64_t n, int threads);
void kvtui_rope(float *x, int64_t row_stride, int64_t head_stride, const float *cosine, const float *sine, int64_t T,
                int64_t heads, int64_t d, int threads);
void kvtui_store_kv(const float *k, int64_t kt, const float *v, int64_t vt, char *keys, int64_t k0, int64_t k1,
                    int64_t k2, char *values, int64_t v0, int64_t v1, int64_t v2, int bf16, const int64_t *block,
                    int64_t bt, int64_t bg, const int64_t *offset, int64_t ot, int64_t og, int64_t T, int64_t G,
                    int64_t d);
void kvtui_decode_attention(const float *q, int64_t q_stride, const char *keys, int64_t k0, int64_t k1, int64_t k2,
                            const char *values, int64_t v0, int64_t v1, int64_t v2, int bf16, const int32_t *tables,
                            int64_t tables_stride, const int32_t *lengths, float scale, float *mass, int64_t mass_b,
                            int64_t mass_g, int64_t span, float *out, int64_t B, int64_t H, int64_t G, int64_t S,
                            int64_t d, float *scratch, int threads);
void kvtui_causal_softmax(float *scores, int64_t stride, int64_t T, int64_t first, int64_t n, float scale, float *lse,
                          float *mass, float *scratch, int threads);
