/* kernels.h - the few loops that the CPU spends its time in and that ATen has
 * no single operator for.
 *
 * kernels.inc is compiled once per instruction set; kernels() picks the best
 * that this CPU has. Records come packed (no padding), so that a record costs
 * what it holds. No loop's order of additions depends on the thread count or on
 * padding; it does depend on the instruction set, which is therefore part of
 * the fingerprint. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Attention of one record and head: nq queries over nk keys, width w. Rows
 * lie ld_… floats apart. */
struct attention_one {
    const float *q, *k, *v;
    float *out;
    ptrdiff_t ld_q, ld_kv, ld_out;
    int nq, nk, width;
    float scale;
    /* Weights after the softmax, nq × attention_stride(nk); the sign bit marks
     * those that dropout drops. Written forward, read backward. */
    float *weights;
    /* Dropout: thresholds above 0 drop draws below it. Queries and keys lie in
     * segments; see dropout.h. */
    uint32_t threshold;
    float keep_scale;
    uint32_t key[2], record, head;
    const uint32_t *q_field, *q_index; /* nq each */
    const uint32_t *k_block; /* the counter word of each block of 8 keys */
    int n_blocks;
    const int *k_seg; /* n_segs pairs: first block, keys */
    int n_segs;
    /* backward */
    const float *d_out;
    float *dq, *dk, *dv;
    ptrdiff_t ld_dq, ld_dkv;
};

struct adamw_chunk {
    float *p, *m, *v;
    const float *g; /* NULL: zeros */
    int64_t n;
};
struct adamw_rates {
    float grad_scale, decay; /* decay: 1 - lr·weight_decay */
    float beta1, beta2;
    float step_size;   /* lr / (1 - beta1^t) */
    float correction2; /* 1 / sqrt(1 - beta2^t) */
    float eps;
};

struct kernel_set {
    const char *name;
    /* n counters (c0[i], c1[i], c2[i], c3) → 8 draws of 16 bits each. */
    void (*philox)(const uint32_t *c0, const uint32_t *c1, const uint32_t *c2,
                   uint32_t c3, const uint32_t key[2], int n, uint16_t *draws);
    /* keep[i] = draws[i] >= threshold */
    void (*keep)(const uint16_t *draws, uint32_t threshold, int64_t n,
                 uint8_t *keep);
    /* out = (base or 0) + x · keep · scale; keep may be NULL: all kept. */
    void (*drop_add)(const float *base, const float *x, const uint8_t *keep,
                     float scale, int64_t n, float *out);
    size_t (*attention_scratch)(int nq, int nk, int width,
                                int n_blocks); /* floats */
    void (*attention_forward)(const struct attention_one *a, float *scratch);
    void (*attention_backward)(const struct attention_one *a, float *scratch);
    double (*sum_squares)(const float *x, int64_t n);
    void (*adamw)(const struct adamw_chunk *c, const struct adamw_rates *r);
};

/* The best set for this CPU; and all that it can run, ending with NULL. */
const struct kernel_set *kernels(void);
const struct kernel_set *const *kernels_all(void);

static inline int attention_stride(int nk)
{
    return (nk + 7) & ~7;
}

#ifdef __cplusplus
}
#endif
