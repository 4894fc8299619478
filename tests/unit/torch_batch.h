/* torch_batch.h - specs and padded batches for the trainer's tests, straight
 * from JSON: the feed and the decoder have tests of their own. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/philox.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

#define ASSERT_OK(r, e)                                                        \
    do {                                                                       \
        if ((r) < 0)                                                           \
            fail_msg("%s (%s)", (e).text, err_word((e).code));                 \
    } while (0)

/* One of each kind of field, so that every parameter there can be is there. */
#define SPEC_ALL_KINDS                                                         \
    "{'name': 'kinds', 'kind': 'train',"                                       \
    " 'model': {'type': 'policy_value_transformer', 'd_model': 12,"            \
    "           'layers': 2, 'heads': 3, 'ff': 20, 'dropout': 0.3},"           \
    " 'record': {"                                                             \
    "  'board': {'kind': 'tokens', 'dim': 'S', 'vocab': 5},"                   \
    "  'moves': {'kind': 'rows', 'dim': 'A',"                                  \
    "            'columns': [{'vocab': 4}, {'scale': 2}]},"                    \
    "  'pieces': {'kind': 'rows', 'dim': 'O',"                                 \
    "             'columns': [{'scale': 10}, {'vocab': 3}, {'scale': 1}]},"    \
    "  'clock': {'kind': 'numbers', 'dim': 'T'},"                              \
    "  'extra': {'kind': 'numbers', 'size': 3},"                               \
    "  'policy': {'kind': 'target', 'over': 'moves',"                          \
    "             'loss': 'cross_entropy'},"                                   \
    "  'value': {'kind': 'target', 'loss': 'mse'}},"                           \
    " 'data': {'dataset': 'd'},"                                               \
    " 'training': {'effective_batch': 8, 'seed': 11, 'clip_norm': 0,"          \
    "  'optimizer': {'type': 'adamw', 'lr': 0.01},"                            \
    "  'losses': {'policy': 1.0, 'value': 0.5}}}"

/* Parse JSON text with ' for ". */
static inline json_t *quoted(const char *text)
{
    AUTO_FREE char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    json_error_t e;
    json_t *j = json_loads(copy, 0, &e);
    if (!j)
        fail_msg("%s at %d", e.text, e.position);
    return j;
}

/* The spec with some of its values replaced: path "/model/dropout", JSON. */
static inline void spec_of(struct spec *ret, json_t *from, const char *path,
                           double value)
{
    struct err err;
    if (path) {
        AUTO_FREE char *copy = strdup(path + 1);
        json_t *at = from;
        char *part = strtok(copy, "/");
        for (char *next; (next = strtok(NULL, "/")); part = next)
            at = json_object_get(at, part);
        json_object_set_new(at, part,
                            value == floor(value) && fabs(value) > 0.5
                                ? json_integer((json_int_t)value)
                                : json_real(value));
    }
    int r = spec_parse(from, ret, &err);
    if (r < 0)
        fail_msg("%s: %s", err.pointer, err.text);
}

static inline void chess_spec(struct spec *ret, const char *path, double value)
{
    json_error_t e;
    AUTO_JSON json_t *j = json_load_file(FIXTURES "/chess/job.json", 0, &e);
    assert_non_null(j);
    spec_of(ret, j, path, value);
}

/* JSON records of a shard, count of them from index `from` on. */
static inline json_t *chess_records(int from, int count)
{
    FILE *f = fopen(FIXTURES "/chess/shard-0000.jsonl", "r");
    assert_non_null(f);
    json_t *all = json_array();
    char *line = NULL;
    size_t cap = 0;
    for (int i = 0; i < from + count && getline(&line, &cap, f) > 0; i++)
        if (i >= from)
            json_array_append_new(all, json_loads(line, 0, NULL));
    free(line);
    fclose(f);
    assert_int_equal(json_array_size(all), count);
    return all;
}

/* Random records for any description. */
static inline json_t *random_records(const struct record_desc *d, int count,
                                     uint32_t seed)
{
    json_t *all = json_array();
    uint32_t at = 0;
#define DRAW()                                                                 \
    ({                                                                         \
        uint32_t c_[4] = {at++, 0, 0, 0}, k_[2] = {seed, 1}, o_[4];            \
        philox4x32(c_, k_, o_);                                                \
        (double)philox_unit(o_[0]);                                            \
    })
    for (int n = 0; n < count; n++) {
        json_t *r = json_object();
        int *lengths = calloc((size_t)d->n_dims + 1, sizeof *lengths);
        for (int i = 0; i < d->n_dims; i++)
            lengths[i] = (int)(DRAW() * 9);
        if (d->policy >= 0)
            lengths[d->fields[d->policy].dim] = 1 + (int)(DRAW() * 7);
        for (int i = 0; i < d->n_fields; i++) {
            const struct field *f = &d->fields[i];
            json_t *list = json_array();
            int len = f->dim >= 0 ? lengths[f->dim] : f->size;
            double sum = 0;
            for (int k = 0; k < len; k++) {
                json_t *v;
                if (f->kind == FIELD_TOKENS)
                    v = json_integer((json_int_t)(DRAW() * f->vocab));
                else if (f->kind == FIELD_ROWS) {
                    v = json_array();
                    for (int c = 0; c < f->n_columns; c++)
                        json_array_append_new(
                            v,
                            f->columns[c].vocab > 0
                                ? json_integer((
                                      json_int_t)(DRAW() * f->columns[c].vocab))
                                : json_real((DRAW() * 2 - 1) *
                                            f->columns[c].scale));
                } else
                    v = json_real(f->kind == FIELD_TARGET ? DRAW() + 0.01
                                                          : DRAW() * 2 - 1);
                if (f->kind == FIELD_TARGET)
                    sum += json_real_value(v);
                json_array_append_new(list, v);
            }
            if (f->kind == FIELD_TARGET && f->over < 0) {
                json_decref(list);
                list = json_real(DRAW() * 2 - 1);
            } else if (f->kind == FIELD_TARGET) {
                for (int k = 0; k < len; k++) {
                    json_t *v = json_array_get(list, (size_t)k);
                    json_real_set(v, json_real_value(v) / sum);
                }
            }
            json_object_set_new(r, f->name, list);
        }
        free(lengths);
        json_array_append_new(all, r);
    }
#undef DRAW
    return all;
}

/* Records from…from+count-1 as one micro-batch; padded at least to `minimum`
 * in every dimension; `junk` fills indices of padding. */
static inline struct batch batch_of(const struct record_desc *d,
                                    const json_t *records, int from, int count,
                                    int minimum, int junk)
{
    struct batch b = {.desc = d, .records = count, .first = from};
    size_t nd = (size_t)d->n_dims + 1, nf = (size_t)d->n_fields;
    b.padded = calloc(nd, sizeof *b.padded);
    b.lengths = calloc(nd, sizeof *b.lengths);
    b.ints = calloc(nf, sizeof *b.ints);
    b.nums = calloc(nf, sizeof *b.nums);
    for (int i = 0; i < d->n_dims; i++) {
        b.lengths[i] = calloc((size_t)count, sizeof **b.lengths);
        b.padded[i] = minimum;
    }
    for (int i = 0; i < d->n_fields; i++)
        for (int r = 0; r < count && d->fields[i].dim >= 0; r++) {
            int n = (int)json_array_size(
                json_object_get(json_array_get(records, (size_t)(from + r)),
                                d->fields[i].name));
            int dim = d->fields[i].dim;
            b.lengths[dim][r] = n;
            if (n > b.padded[dim])
                b.padded[dim] = n;
        }
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        int scalar = f->kind == FIELD_TARGET && f->over < 0;
        int N = f->dim >= 0 ? b.padded[f->dim] : scalar ? 1 : f->size;
        int ni = f->kind == FIELD_TOKENS ? 1
                 : f->kind == FIELD_ROWS ? f->n_ints
                                         : 0;
        int nn = f->kind == FIELD_TOKENS ? 0
                 : f->kind == FIELD_ROWS ? f->n_nums
                                         : 1;
        if (ni) {
            b.ints[i] = malloc(sizeof(int32_t) * (size_t)(count * N * ni + 1));
            for (int k = 0; k < count * N * ni; k++)
                b.ints[i][k] = junk;
        }
        if (nn)
            b.nums[i] = calloc((size_t)(count * N * nn + 1), sizeof(float));
        for (int r = 0; r < count; r++) {
            json_t *v = json_object_get(
                json_array_get(records, (size_t)(from + r)), f->name);
            if (scalar) {
                b.nums[i][r] = (float)json_number_value(v);
                continue;
            }
            for (int k = 0; k < (int)json_array_size(v); k++) {
                json_t *x = json_array_get(v, (size_t)k);
                int at = r * N + k;
                if (f->kind == FIELD_TOKENS)
                    b.ints[i][at] = (int32_t)json_integer_value(x);
                else if (f->kind != FIELD_ROWS)
                    b.nums[i][at] = (float)json_number_value(x);
                else
                    for (int c = 0, ci = 0, cn = 0; c < f->n_columns; c++) {
                        json_t *y = json_array_get(x, (size_t)c);
                        if (f->columns[c].vocab > 0)
                            b.ints[i][at * ni + ci++] =
                                (int32_t)json_integer_value(y);
                        else
                            b.nums[i][at * nn + cn++] =
                                (float)(json_number_value(y) /
                                        f->columns[c].scale);
                    }
            }
        }
    }
    return b;
}

static inline void batch_release(struct batch *b)
{
    for (int i = 0; i < b->desc->n_dims; i++)
        free(b->lengths[i]);
    for (int i = 0; i < b->desc->n_fields; i++) {
        free(b->ints[i]);
        free(b->nums[i]);
    }
    free(b->padded);
    free(b->lengths);
    free(b->ints);
    free(b->nums);
}

/* ------------------------------------------------------------- whole states */

struct saved {
    char name[160], dtype[8];
    int64_t shape[8];
    int dims;
    size_t bytes;
    void *data;
};
struct saved_state {
    struct saved *all;
    int n;
};

static inline int saved_put(void *ctx, const char *name, const char *dtype,
                            const int64_t *shape, int dims, const void *data,
                            size_t bytes, struct err *err)
{
    (void)err;
    struct saved_state *s = ctx;
    s->all = realloc(s->all, sizeof *s->all * (size_t)(s->n + 1));
    struct saved *t = &s->all[s->n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    memcpy(t->shape, shape, sizeof *shape * (size_t)dims);
    t->dims = dims;
    t->bytes = bytes;
    t->data = malloc(bytes + 1);
    memcpy(t->data, data, bytes);
    return 0;
}

static inline void saved_release(struct saved_state *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->all[i].data);
    free(s->all);
    *s = (struct saved_state){0};
}

static inline struct saved_state state_of(struct trainer *t)
{
    struct saved_state s = {0};
    struct err err;
    ASSERT_OK(trainer_save(t, saved_put, &s, &err), err);
    return s;
}

static inline struct saved *state_find(struct saved_state *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->all[i].name, name))
            return &s->all[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static inline int state_put_back(struct trainer *t, const struct saved *s,
                                 struct err *err)
{
    return trainer_load(t, s->name, s->dtype, s->shape, s->dims, s->data,
                        s->bytes, err);
}

static inline void state_digest(struct trainer *t, char hex[DIGEST_HEX])
{
    struct saved_state s = state_of(t);
    struct digest *d = digest_new();
    for (int i = 0; i < s.n; i++) {
        digest_add(d, s.all[i].name, strlen(s.all[i].name));
        digest_add(d, s.all[i].data, s.all[i].bytes);
    }
    uint8_t raw[DIGEST_BYTES];
    digest_end(d, raw);
    digest_free(d);
    digest_hex(raw, hex);
    saved_release(&s);
}

/* One optimizer step over `count` records from index 0, in micro-batches. */
static inline struct losses train_step(struct trainer *t,
                                       const struct record_desc *d,
                                       const json_t *records, int count,
                                       int micro, int minimum, int64_t step,
                                       double lr)
{
    struct err err;
    struct losses sum = {0};
    for (int from = 0; from < count; from += micro) {
        int n = count - from < micro ? count - from : micro;
        struct batch b = batch_of(d, records, from, n, minimum, 0);
        ASSERT_OK(trainer_micro(t, &b, step, count, &sum, &err), err);
        batch_release(&b);
    }
    double norm;
    ASSERT_OK(trainer_step(t, lr, &norm, &err), err);
    return sum;
}

/* PAWL_TEST_DEVICE=cuda or mps runs the same tests there. */
static inline const char *test_device(void)
{
    const char *device = getenv("PAWL_TEST_DEVICE");
    return device ? device : "cpu";
}

static inline struct trainer *trainer_of(const struct spec *spec, int threads)
{
    struct trainer *t = NULL;
    struct err err;
    ASSERT_OK(trainer_new(spec, test_device(), threads, &t, &err), err);
    return t;
}
