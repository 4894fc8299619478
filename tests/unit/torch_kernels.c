/* Every instruction set's loops against the plain definition. */
#include "tests/unit/torch_batch.h"
#include "worker/kernels.h"

static uint32_t draw_at;

static float noise(void)
{
    uint32_t c[4] = {draw_at++, 7, 7, 7}, k[2] = {5, 6}, o[4];
    philox4x32(c, k, o);
    return 2 * philox_unit(o[0]) - 1;
}

static float *noises(int n)
{
    float *x = malloc(sizeof *x * (size_t)(n + 1));
    for (int i = 0; i < n; i++)
        x[i] = noise();
    return x;
}

static void philox_gives_the_published_numbers(void **state)
{
    (void)state;
    /* Random123's known answers. */
    const uint32_t in[3][6] = {{0, 0, 0, 0, 0, 0},
                               {~0u, ~0u, ~0u, ~0u, ~0u, ~0u},
                               {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344,
                                0xa4093822, 0x299f31d0}};
    const uint32_t want[3][4] = {
        {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(in[i], in[i] + 4, out);
        assert_memory_equal(out, want[i], sizeof out);
    }
}

static void draws_are_the_same_on_every_set(void **state)
{
    (void)state;
    enum { N = 45 };
    uint32_t c[3][N], key[2] = {0x12345678, 0x9abcdef0};
    for (int i = 0; i < N; i++) {
        c[0][i] = (uint32_t)i * 2654435761u;
        c[1][i] = ~(uint32_t)i;
        c[2][i] = (uint32_t)i << 20;
    }
    for (const struct kernel_set *const *k = kernels_all(); *k; k++)
        for (int n = 1; n <= N; n++) {
            uint16_t draws[8 * N + 1];
            draws[8 * n] = 0xabcd;
            (*k)->philox(c[0], c[1], c[2], 77, key, n, draws);
            assert_int_equal(draws[8 * n], 0xabcd); /* and no further */
            for (int i = 0; i < n; i++) {
                uint32_t ctr[4] = {c[0][i], c[1][i], c[2][i], 77}, out[4];
                philox4x32(ctr, key, out);
                for (int j = 0; j < 4; j++) {
                    assert_int_equal(draws[8 * i + 2 * j], out[j] & 0xffff);
                    assert_int_equal(draws[8 * i + 2 * j + 1], out[j] >> 16);
                }
            }
        }
}

static void about_p_of_the_draws_are_dropped(void **state)
{
    (void)state;
    enum { N = 20000 };
    uint32_t *c = calloc(3 * N, sizeof *c), key[2] = {1, 2};
    uint16_t *draws = malloc(sizeof *draws * 8 * N);
    uint8_t *keep = malloc(8 * N);
    for (int i = 0; i < N; i++)
        c[i] = (uint32_t)i;
    for (const struct kernel_set *const *k = kernels_all(); *k; k++) {
        int64_t kept = 0;
        (*k)->philox(c, c + N, c + 2 * N, 0, key, N, draws);
        (*k)->keep(draws, 6554, 8 * N, keep);
        for (int i = 0; i < 8 * N; i++)
            kept += keep[i];
        assert_true(fabs((double)kept / (8.0 * N) - 0.9) < 0.004);
    }
    free(c);
    free(draws);
    free(keep);
}

static void drop_add_is_exact(void **state)
{
    (void)state;
    for (int n = 1; n < 70; n += 3) {
        float *x = noises(n), *base = noises(n), *out = noises(n + 1);
        uint8_t keep[70];
        for (int i = 0; i < n; i++)
            keep[i] = i % 3 != 1;
        for (const struct kernel_set *const *k = kernels_all(); *k; k++) {
            out[n] = 42;
            (*k)->drop_add(base, x, keep, 1.25f, n, out);
            for (int i = 0; i < n; i++)
                assert_true(fabsf(out[i] - (base[i] + (keep[i] ? x[i] * 1.25f
                                                               : 0))) <= 1e-6f);
            (*k)->drop_add(NULL, x, keep, 1.25f, n, out);
            for (int i = 0; i < n; i++)
                assert_true(out[i] == (keep[i] ? x[i] * 1.25f : 0));
            (*k)->drop_add(base, x, NULL, 1, n, out);
            for (int i = 0; i < n; i++)
                assert_true(out[i] == base[i] + x[i]);
            assert_true(out[n] == 42);
        }
        free(x);
        free(base);
        free(out);
    }
}

/* Attention by its definition, in double, for every shape near the edges of
 * vectors and tiles; the gradient from the weights that came out. */
static void attention_one_shape(const struct kernel_set *k, int nq, int nk,
                                int w, uint32_t threshold)
{
    const int ldq = w + 3, ldk = 2 * w + 1, ldo = w + 2;
    float *q = noises(nq * ldq), *kv = noises(nk * ldk), *go = noises(nq * ldo);
    float *out = noises(nq * ldo), *dq = noises(nq * ldq);
    float *dkv = noises(nk * ldk);
    int stride = attention_stride(nk);
    float *weights = noises(nq * stride);
    uint32_t *field = calloc((size_t)nq * 2, sizeof *field);
    /* Keys in two segments, as two fields would be. */
    int first = nk / 3, blocks = 0, pairs[4];
    uint32_t *block = calloc((size_t)nk / 8 + 3, sizeof *block);
    for (int s = 0; s < 2; s++) {
        int n = s ? nk - first : first;
        pairs[2 * s] = blocks;
        pairs[2 * s + 1] = n;
        for (int i = 0; i < n; i += 8)
            block[blocks++] = (uint32_t)s << 20 | (uint32_t)i / 8;
    }
    for (int i = 0; i < nq; i++) {
        field[i] = 9;
        field[nq + i] = (uint32_t)i;
    }
    struct attention_one a = {.q = q,
                              .k = kv,
                              .v = kv + w,
                              .out = out,
                              .ld_q = ldq,
                              .ld_kv = ldk,
                              .ld_out = ldo,
                              .nq = nq,
                              .nk = nk,
                              .width = w,
                              .scale = 1 / sqrtf((float)w),
                              .weights = weights,
                              .threshold = threshold,
                              .keep_scale =
                                  (float)(65536.0 / (65536.0 - threshold)),
                              .key = {3, 4},
                              .record = 5,
                              .head = 6,
                              .q_field = field,
                              .q_index = field + nq,
                              .k_block = block,
                              .n_blocks = blocks,
                              .k_seg = pairs,
                              .n_segs = 2,
                              .d_out = go,
                              .dq = dq,
                              .dk = dkv,
                              .dv = dkv + w,
                              .ld_dq = ldq,
                              .ld_dkv = ldk};
    float *scratch =
        malloc(sizeof *scratch * k->attention_scratch(nq, nk, w, blocks));
    k->attention_forward(&a, scratch);
    k->attention_backward(&a, scratch);

    double *p = calloc((size_t)nk, sizeof *p),
           *wk = calloc((size_t)(nk * w), sizeof *wk);
    double *wv = calloc((size_t)(nk * w), sizeof *wv);
    double keep = threshold ? a.keep_scale : 1, worst = 0;
    for (int i = 0; i < nq; i++) {
        double top = -INFINITY, sum = 0, dot = 0;
        for (int j = 0; j < nk; j++) {
            p[j] = 0;
            for (int d = 0; d < w; d++)
                p[j] += (double)q[i * ldq + d] * kv[j * ldk + d] / sqrt(w);
            top = fmax(top, p[j]);
        }
        for (int j = 0; j < nk; j++)
            sum += p[j] = exp(p[j] - top);
        for (int j = 0; j < nk; j++) {
            p[j] /= sum;
            int s = j >= first, at = s ? j - first : j;
            uint32_t ctr[4] = {(uint32_t)s << 20 | (uint32_t)at / 8,
                               (uint32_t)i, 9 | 6 << 16, 5},
                     o[4];
            philox4x32(ctr, a.key, o);
            uint16_t draw = (uint16_t)(o[at % 8 / 2] >> (at % 2 * 16));
            bool dropped = signbit(weights[i * stride + j]);
            assert_int_equal(dropped, draw < threshold);
            worst = fmax(worst, fabs(fabs(weights[i * stride + j]) - p[j]));
        }
        for (int d = 0; d < w; d++) {
            double y = 0;
            for (int j = 0; j < nk; j++)
                if (!signbit(weights[i * stride + j]))
                    y += p[j] * keep * kv[j * ldk + w + d];
            worst = fmax(worst, fabs(y - out[i * ldo + d]));
        }
        double *g = calloc((size_t)nk, sizeof *g);
        for (int j = 0; j < nk; j++) {
            bool live = !signbit(weights[i * stride + j]);
            for (int d = 0; d < w; d++) {
                g[j] += live * keep * go[i * ldo + d] * kv[j * ldk + w + d];
                wv[j * w + d] += live * keep * p[j] * go[i * ldo + d];
            }
            dot += p[j] * g[j];
        }
        for (int j = 0; j < nk; j++)
            g[j] = p[j] * (g[j] - dot) / sqrt(w);
        for (int d = 0; d < w; d++) {
            double y = 0;
            for (int j = 0; j < nk; j++) {
                y += g[j] * kv[j * ldk + d];
                wk[j * w + d] += g[j] * q[i * ldq + d];
            }
            worst = fmax(worst, fabs(y - dq[i * ldq + d]));
        }
        free(g);
    }
    for (int j = 0; j < nk; j++)
        for (int d = 0; d < w; d++) {
            worst = fmax(worst, fabs(wk[j * w + d] - dkv[j * ldk + d]));
            worst = fmax(worst, fabs(wv[j * w + d] - dkv[j * ldk + w + d]));
        }
    if (!(worst < 2e-5))
        fail_msg("%s: %d queries, %d keys, width %d: off by %g", k->name, nq,
                 nk, w, worst);
    free(p);
    free(wk);
    free(wv);
    free(scratch);
    free(q);
    free(kv);
    free(go);
    free(out);
    free(dq);
    free(dkv);
    free(weights);
    free(field);
    free(block);
}

static void attention_follows_its_definition(void **state)
{
    (void)state;
    const int sizes[] = {1, 2, 7, 8, 9, 16, 17, 31, 47, 48, 49, 100};
    const int n = sizeof sizes / sizeof *sizes;
    for (const struct kernel_set *const *k = kernels_all(); *k; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                int width = (int[]){4, 5, 8, 16, 24, 33}[(i + j) % 6];
                attention_one_shape(*k, sizes[i], sizes[j], width, 0);
                attention_one_shape(*k, sizes[i], sizes[j], width, 20000);
            }
}

static void sums_of_squares_are_exact_enough(void **state)
{
    (void)state;
    for (int n = 0; n < 100; n += 7) {
        float *x = noises(n);
        double want = 0;
        for (int i = 0; i < n; i++)
            want += (double)x[i] * x[i];
        for (const struct kernel_set *const *k = kernels_all(); *k; k++)
            assert_true(fabs((*k)->sum_squares(x, n) - want) <= 1e-12 * n);
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(draws_are_the_same_on_every_set),
        cmocka_unit_test(about_p_of_the_draws_are_dropped),
        cmocka_unit_test(drop_add_is_exact),
        cmocka_unit_test(attention_follows_its_definition),
        cmocka_unit_test(sums_of_squares_are_exact_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
