#include "worker/shapes.h"
#include <stdlib.h>
#include <string.h>
#include "schema/line_hash.h"

int shapes_init(struct shapes *s, const struct record_desc *desc,
                struct err *err)
{
    *s = (struct shapes){.desc = desc};
    size_t n = (size_t)desc->n_dims + 1;
    s->exceeded = calloc(n, sizeof *s->exceeded);
    s->step = calloc(n, sizeof *s->step);
    if (s->exceeded && s->step)
        return 0;
    shapes_release(s);
    return err_set(err, ERR_NOMEM, "no memory for shapes");
}

void shapes_release(struct shapes *s)
{
    free(s->v);
    free(s->exceeded);
    free(s->step);
    *s = (struct shapes){0};
}

/* Put a hash into the set: 1 when it is new. */
static int add(struct shapes *s, uint64_t hash, struct err *err)
{
    hash |= 1;
    if (2 * (s->n + 1) > s->cap) {
        struct shapes bigger = {.cap = s->cap ? 2 * s->cap : 256};
        bigger.v = calloc(bigger.cap, sizeof *bigger.v);
        if (!bigger.v)
            return err_set(err, ERR_NOMEM, "no memory for shapes");
        for (size_t i = 0; i < s->cap; i++)
            if (s->v[i])
                add(&bigger, s->v[i], err);
        free(s->v);
        s->v = bigger.v;
        s->cap = bigger.cap;
    }
    size_t i = hash & (s->cap - 1);
    for (; s->v[i]; i = (i + 1) & (s->cap - 1))
        if (s->v[i] == hash)
            return 0;
    s->v[i] = hash;
    s->n++;
    return 1;
}

static void count_entries(struct shapes *s, const struct batch *b, int d)
{
    int fields = 0;
    for (int f = 0; f < s->desc->n_fields; f++)
        fields += s->desc->fields[f].dim == d;
    int64_t sum = 0;
    for (int i = 0; i < b->records; i++)
        sum += b->lengths[d][i];
    s->held += fields * sum;
    s->padded += (int64_t)fields * b->records * b->padded[d];
}

static void count_exceeded(struct shapes *s, const struct batch *b, int d,
                           int top)
{
    struct exceeded *e = &s->step[d];
    if (!top || b->padded[d] <= top)
        return;
    for (int i = 0; i < b->records; i++) {
        int length = b->lengths[d][i];
        e->count += length > top;
        if (length > top && length > e->longest)
            e->longest = length;
    }
}

int shapes_note(struct shapes *s, const struct batch *b,
                const struct padding *padding, struct err *err)
{
    for (int d = 0; d < s->desc->n_dims; d++) {
        count_entries(s, b, d);
        count_exceeded(s, b, d, padding_top(padding, d));
    }
    uint64_t h = line_hash(b->padded, sizeof(int) * (size_t)s->desc->n_dims);
    h = (h ^ (uint64_t)b->records) * 0x9E3779B97F4A7C15u;
    return add(s, h ^ h >> 32, err);
}

void shapes_trained(struct shapes *s)
{
    for (int d = 0; d < s->desc->n_dims; d++) {
        s->exceeded[d].count += s->step[d].count;
        if (s->step[d].longest > s->exceeded[d].longest)
            s->exceeded[d].longest = s->step[d].longest;
        s->step[d] = (struct exceeded){0};
    }
}

json_t *shapes_exceeded_json(const struct shapes *s)
{
    json_t *out = NULL;
    for (int d = 0; d < s->desc->n_dims; d++) {
        if (!s->exceeded[d].count)
            continue;
        out = out ? out : json_object();
        json_object_set_new(out, s->desc->dims[d],
                            json_pack("{s:I, s:i}", "count",
                                      (json_int_t)s->exceeded[d].count,
                                      "longest", s->exceeded[d].longest));
    }
    return out;
}

void shapes_exceeded_restore(struct shapes *s, const json_t *in)
{
    for (int d = 0; d < s->desc->n_dims; d++) {
        const json_t *one = json_object_get(in, s->desc->dims[d]);
        s->exceeded[d] = (struct exceeded){
            .count = json_integer_value(json_object_get(one, "count")),
            .longest = (int)json_integer_value(json_object_get(one, "longest")),
        };
    }
}
