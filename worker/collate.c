#include "worker/collate.h"
#include <stdlib.h>
#include <string.h>

static size_t field_ints(const struct field *f)
{
    switch (f->kind) {
    case FIELD_TOKENS:
        return 1;
    case FIELD_ROWS:
        return (size_t)f->n_ints;
    default:
        return 0;
    }
}

static size_t field_nums(const struct field *f)
{
    switch (f->kind) {
    case FIELD_ROWS:
        return (size_t)f->n_nums;
    case FIELD_NUMBERS:
    case FIELD_TARGET:
        return 1;
    default:
        return 0;
    }
}

int sample_new(const struct record_desc *desc, const struct record *record,
               const struct ref *ref, struct arena *arena, struct sample **ret,
               struct err *err)
{
    size_t fields = (size_t)desc->n_fields * sizeof(struct field_values);
    size_t words = (size_t)desc->n_dims; /* of 4 bytes, after the fields */
    for (int f = 0; f < desc->n_fields; f++)
        words += (size_t)record->fields[f].rows *
                 (field_ints(&desc->fields[f]) + field_nums(&desc->fields[f]));
    size_t bytes = sizeof(struct sample) + fields + 4 * words;
    struct sample *s = arena_get(arena, bytes);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a record");
    s->ref = *ref;
    s->bytes = bytes;
    s->fields = (struct field_values *)(s + 1);
    char *at = (char *)(s + 1) + fields;
    s->lengths = (int *)at;
    at += sizeof(int) * (size_t)desc->n_dims;
    if (desc->n_dims)
        memcpy(s->lengths, record->lengths, sizeof(int) * (size_t)desc->n_dims);
    for (int f = 0; f < desc->n_fields; f++) {
        const struct field_values *in = &record->fields[f];
        struct field_values *out = &s->fields[f];
        size_t ints = (size_t)in->rows * field_ints(&desc->fields[f]);
        size_t nums = (size_t)in->rows * field_nums(&desc->fields[f]);
        out->rows = in->rows;
        out->ints = (int32_t *)at;
        if (ints)
            memcpy(at, in->ints, 4 * ints);
        at += 4 * ints;
        out->nums = (float *)at;
        if (nums)
            memcpy(at, in->nums, 4 * nums);
        at += 4 * nums;
    }
    *ret = s;
    return 0;
}

int collator_init(struct collator *c, const struct record_desc *desc,
                  struct err *err)
{
    size_t fields = (size_t)desc->n_fields + 1, dims = (size_t)desc->n_dims + 1;
    *c = (struct collator){.batch.desc = desc};
    c->batch.padded = calloc(dims, sizeof *c->batch.padded);
    c->batch.lengths = calloc(dims, sizeof *c->batch.lengths);
    c->batch.ints = calloc(fields, sizeof *c->batch.ints);
    c->batch.nums = calloc(fields, sizeof *c->batch.nums);
    c->ints_cap = calloc(fields, sizeof *c->ints_cap);
    c->nums_cap = calloc(fields, sizeof *c->nums_cap);
    if (c->batch.padded && c->batch.lengths && c->batch.ints && c->batch.nums &&
        c->ints_cap && c->nums_cap)
        return 0;
    collator_release(c);
    return err_set(err, ERR_NOMEM, "no memory for a batch");
}

void collator_release(struct collator *c)
{
    const struct record_desc *desc = c->batch.desc;
    for (int d = 0; desc && c->batch.lengths && d < desc->n_dims; d++)
        free(c->batch.lengths[d]);
    for (int f = 0; desc && c->batch.ints && f < desc->n_fields; f++)
        free(c->batch.ints[f]);
    for (int f = 0; desc && c->batch.nums && f < desc->n_fields; f++)
        free(c->batch.nums[f]);
    free(c->batch.padded);
    free(c->batch.lengths);
    free(c->batch.ints);
    free(c->batch.nums);
    free(c->ints_cap);
    free(c->nums_cap);
    *c = (struct collator){0};
}

/* Room for `want` elements of 4 bytes, all zero. */
static int room(void **p, size_t *cap, size_t want, struct err *err)
{
    if (want > *cap) {
        free(*p);
        *cap = 0;
        *p = malloc(4 * want);
        if (!*p)
            return err_set(err, ERR_NOMEM, "no memory for a batch");
        *cap = want;
    }
    if (want)
        memset(*p, 0, 4 * want);
    return 0;
}

static int room_ints(struct collator *c, int f, size_t want, struct err *err)
{
    void *p = c->batch.ints[f];
    int r = room(&p, &c->ints_cap[f], want, err);
    c->batch.ints[f] = p;
    return r;
}

static int room_nums(struct collator *c, int f, size_t want, struct err *err)
{
    void *p = c->batch.nums[f];
    int r = room(&p, &c->nums_cap[f], want, err);
    c->batch.nums[f] = p;
    return r;
}

static int fill_lengths(struct collator *c, struct sample *const *v, int n,
                        const struct padding *padding, struct err *err)
{
    struct batch *b = &c->batch;
    if (n > c->records_cap) {
        for (int d = 0; d < b->desc->n_dims; d++) {
            free(b->lengths[d]);
            b->lengths[d] = malloc((size_t)n * sizeof(int32_t));
            if (!b->lengths[d]) {
                c->records_cap = 0;
                return err_set(err, ERR_NOMEM, "no memory for a batch");
            }
        }
        c->records_cap = n;
    }
    for (int d = 0; d < b->desc->n_dims; d++) {
        int longest = 1;
        for (int i = 0; i < n; i++) {
            b->lengths[d][i] = v[i]->lengths[d];
            if (v[i]->lengths[d] > longest)
                longest = v[i]->lengths[d];
        }
        b->padded[d] = padding ? padding_length(padding, d, longest) : longest;
    }
    return 0;
}

int collator_fill(struct collator *c, struct sample *const *v, int n, int first,
                  const struct padding *padding, struct err *err)
{
    struct batch *b = &c->batch;
    b->records = n;
    b->first = first;
    int r = fill_lengths(c, v, n, padding, err);
    for (int f = 0; f < b->desc->n_fields && r == 0; f++) {
        const struct field *field = &b->desc->fields[f];
        size_t ints = field_ints(field), nums = field_nums(field);
        size_t rows = field->dim >= 0 ? (size_t)b->padded[field->dim]
                      : field->kind == FIELD_NUMBERS ? (size_t)field->size
                                                     : 1;
        r = room_ints(c, f, (size_t)n * rows * ints, err);
        if (r == 0)
            r = room_nums(c, f, (size_t)n * rows * nums, err);
        for (int i = 0; i < n && r == 0; i++) {
            const struct field_values *in = &v[i]->fields[f];
            if (ints && in->rows)
                memcpy(b->ints[f] + (size_t)i * rows * ints, in->ints,
                       4 * ints * (size_t)in->rows);
            if (nums && in->rows)
                memcpy(b->nums[f] + (size_t)i * rows * nums, in->nums,
                       4 * nums * (size_t)in->rows);
        }
    }
    return r;
}
