#include "schema/record_desc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

#define FIELDS_MAX 64
#define COLUMNS_MAX 256
#define VOCAB_MAX (1 << 24)
#define SIZE_MAX_NUMBERS (1 << 16)
#define NAME_LEN_MAX 64

static const char *const kinds[] = {"tokens", "rows", "numbers", "target",
                                    NULL};
static const char *const loss_words[] = {"cross_entropy", "mse", NULL};

/* Names of fields and dimensions become parts of tensor names and pointers. */
static bool name_is_plain(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "abcdefghijklmnopqrstuvwxyz0123456789_-");
    return n > 0 && n <= NAME_LEN_MAX && !s[n];
}

static const char *read_dim(struct json_read *r)
{
    const char *dim = json_read_string(r, "dim", NAME_LEN_MAX, NULL);
    if (dim && !name_is_plain(dim))
        json_read_fail(r, "dim",
                       "a dimension's name has letters, digits, _ and - only");
    return dim;
}

static int read_columns(struct json_read *r, struct field *f, struct err *err)
{
    json_read_need(r, "columns");
    const json_t *list = json_read_array(r, "columns", COLUMNS_MAX);
    if (r->r < 0)
        return r->r;
    size_t n = json_array_size(list);
    if (n == 0)
        return json_read_fail(r, "columns", "%s has no columns", f->name);
    f->columns = calloc(n, sizeof *f->columns);
    if (!f->columns)
        return err_set(err, ERR_NOMEM, "no memory for a record description");
    f->n_columns = (int)n;

    char list_at[JSON_POINTER_MAX], at[JSON_POINTER_MAX];
    json_pointer(list_at, r->at, "columns");
    for (size_t i = 0; i < n; i++) {
        struct column *c = &f->columns[i];
        struct json_read in;
        json_pointer_index(at, list_at, i);
        json_read_open(&in, json_array_get(list, i), at, err, "vocab", "scale",
                       NULL);
        bool vocab = json_read_get(&in, "vocab");
        bool scale = json_read_get(&in, "scale");
        if (vocab == scale)
            json_read_fail(&in, "",
                           "a column has either vocab (an index) or scale (a "
                           "number)");
        c->vocab = (int)json_read_int(&in, "vocab", 1, VOCAB_MAX, 0);
        c->scale = json_read_real(&in, "scale", 1e-30, 1e30, 0);
        if (in.r < 0)
            return in.r;
        if (vocab)
            f->n_ints++;
        else
            f->n_nums++;
    }
    return 0;
}

/* One field but for what it has to do with others: `*ret_dim` and `*ret_over`
 * are borrowed names, or NULL. */
static int read_field(const json_t *in, const char *at, struct field *f,
                      const char **ret_dim, const char **ret_over,
                      struct err *err)
{
    struct json_read r;
    json_read_open_any(&r, in, at, err);
    json_read_need(&r, "kind");
    f->kind = (enum field_kind)json_read_word(&r, "kind", kinds, 0);
    if (r.r < 0)
        return r.r;

    switch (f->kind) {
    case FIELD_TOKENS:
        json_read_open(&r, in, at, err, "kind", "dim", "vocab", NULL);
        json_read_need(&r, "dim");
        json_read_need(&r, "vocab");
        *ret_dim = read_dim(&r);
        f->vocab = (int)json_read_int(&r, "vocab", 1, VOCAB_MAX, 0);
        break;
    case FIELD_ROWS:
        json_read_open(&r, in, at, err, "kind", "dim", "columns", NULL);
        json_read_need(&r, "dim");
        *ret_dim = read_dim(&r);
        if (r.r < 0)
            return r.r;
        return read_columns(&r, f, err);
    case FIELD_NUMBERS:
        json_read_open(&r, in, at, err, "kind", "dim", "size", NULL);
        *ret_dim = read_dim(&r);
        f->size = (int)json_read_int(&r, "size", 1, SIZE_MAX_NUMBERS, 0);
        if (r.r == 0 && !*ret_dim == !f->size)
            json_read_fail(&r, "",
                           "%s has either dim (a length of its own) or size "
                           "(a fixed one)",
                           f->name);
        break;
    case FIELD_TARGET:
        json_read_open(&r, in, at, err, "kind", "over", "dim", "loss", NULL);
        if (json_read_get(&r, "dim"))
            json_read_fail(&r, "dim",
                           "a target with a dimension of its own is not "
                           "supported yet");
        *ret_over = json_read_string(&r, "over", NAME_LEN_MAX, NULL);
        f->loss = (enum field_loss)json_read_word(
            &r, "loss", loss_words, *ret_over ? LOSS_CROSS_ENTROPY : LOSS_MSE);
        if (r.r == 0 && f->loss != (*ret_over ? LOSS_CROSS_ENTROPY : LOSS_MSE))
            json_read_fail(&r, "loss", "a %s has loss %s",
                           *ret_over ? "target over rows" : "scalar target",
                           *ret_over ? "cross_entropy" : "mse");
        break;
    }
    return r.r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int record_desc_dim(const struct record_desc *d, const char *name)
{
    for (int i = 0; i < d->n_dims; i++)
        if (!strcmp(d->dims[i], name))
            return i;
    return -1;
}

int record_desc_field(const struct record_desc *d, const char *name)
{
    for (int i = 0; i < d->n_fields; i++)
        if (!strcmp(d->fields[i].name, name))
            return i;
    return -1;
}

/* Sort the dimensions that fields named, then number them. */
static int link_dims(struct record_desc *d, const char *const *dims,
                     struct err *err)
{
    d->dims = calloc((size_t)d->n_fields, sizeof *d->dims);
    if (!d->dims)
        return err_set(err, ERR_NOMEM, "no memory for a record description");
    for (int i = 0; i < d->n_fields; i++) {
        if (!dims[i] || record_desc_dim(d, dims[i]) >= 0)
            continue;
        d->dims[d->n_dims] = strdup(dims[i]);
        if (!d->dims[d->n_dims])
            return err_set(err, ERR_NOMEM,
                           "no memory for a record description");
        d->n_dims++;
    }
    qsort(d->dims, (size_t)d->n_dims, sizeof *d->dims, by_name);
    for (int i = 0; i < d->n_fields; i++)
        d->fields[i].dim = dims[i] ? record_desc_dim(d, dims[i]) : -1;
    return 0;
}

static int link_targets(struct record_desc *d, const char *const *overs,
                        const char *at, struct err *err)
{
    char field_at[JSON_POINTER_MAX], over_at[JSON_POINTER_MAX];
    for (int i = 0; i < d->n_fields; i++) {
        struct field *f = &d->fields[i];
        f->over = -1;
        if (f->kind != FIELD_TARGET)
            continue;
        json_pointer(field_at, at, f->name);
        int *slot = overs[i] ? &d->policy : &d->value;
        if (*slot >= 0)
            return err_at(err, ERR_INVALID, field_at,
                          "%s is a second %s, after %s; a record has one",
                          f->name,
                          overs[i] ? "target over rows" : "scalar target",
                          d->fields[*slot].name);
        *slot = i;
        if (!overs[i])
            continue;
        json_pointer(over_at, field_at, "over");
        f->over = record_desc_field(d, overs[i]);
        if (f->over < 0 || d->fields[f->over].kind != FIELD_ROWS)
            return err_at(err, ERR_INVALID, over_at,
                          "%s is over \"%s\", which is not a rows field of "
                          "this record",
                          f->name, overs[i]);
        f->dim = d->fields[f->over].dim;
    }
    return 0;
}

int record_desc_parse(const json_t *in, const char *at, struct record_desc *ret,
                      struct err *err)
{
    struct json_read r;
    if (json_read_open_any(&r, in, at, err) < 0)
        return r.r;
    size_t n = r.object ? json_object_size(r.object) : 0;
    if (n == 0)
        return json_read_fail(&r, "", "the record has no fields");
    if (n > FIELDS_MAX)
        return json_read_fail(&r, "", "the record has %zu fields, at most %d",
                              n, FIELDS_MAX);

    CLEANUP(record_desc_release)
    struct record_desc d = {.policy = -1, .value = -1};
    const char *names[FIELDS_MAX], *dims[FIELDS_MAX] = {0},
                                   *overs[FIELDS_MAX] = {0};
    d.fields = calloc(n, sizeof *d.fields);
    if (!d.fields)
        return err_set(err, ERR_NOMEM, "no memory for a record description");
    const char *key;
    json_t *value;
    n = 0;
    json_object_foreach((json_t *)in, key, value) names[n++] = key;
    qsort(names, n, sizeof *names, by_name);

    char field_at[JSON_POINTER_MAX];
    for (size_t i = 0; i < n; i++) {
        struct field *f = &d.fields[i];
        value = json_object_get(in, names[i]);
        if (!name_is_plain(names[i]))
            return json_read_fail(&r, names[i],
                                  "a field's name has 1 to %d letters, digits, "
                                  "_ and -",
                                  NAME_LEN_MAX);
        json_pointer(field_at, at, names[i]);
        if (!json_is_object(value))
            return json_read_fail(&r, names[i],
                                  "%s must be an object that describes the "
                                  "field",
                                  names[i]);
        d.n_fields++;
        f->name = strdup(names[i]);
        if (!f->name)
            return err_set(err, ERR_NOMEM,
                           "no memory for a record description");
        int q = read_field(value, field_at, f, &dims[i], &overs[i], err);
        if (q < 0)
            return q;
    }
    int q = link_dims(&d, dims, err);
    if (q == 0)
        q = link_targets(&d, overs, at, err);
    if (q < 0)
        return q;

    *ret = d;
    d = (struct record_desc){0};
    return 0;
}

json_t *record_desc_json(const struct record_desc *d)
{
    json_t *out = json_object();
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        json_t *o = json_object();
        json_object_set_new(o, "kind", json_string(kinds[f->kind]));
        if (f->kind == FIELD_TARGET) {
            if (f->over >= 0)
                json_object_set_new(o, "over",
                                    json_string(d->fields[f->over].name));
            json_object_set_new(o, "loss", json_string(loss_words[f->loss]));
        } else if (f->dim >= 0) {
            json_object_set_new(o, "dim", json_string(d->dims[f->dim]));
        } else {
            json_object_set_new(o, "size", json_integer(f->size));
        }
        if (f->kind == FIELD_TOKENS)
            json_object_set_new(o, "vocab", json_integer(f->vocab));
        if (f->kind == FIELD_ROWS) {
            json_t *columns = json_array();
            for (int c = 0; c < f->n_columns; c++)
                json_array_append_new(
                    columns,
                    f->columns[c].vocab
                        ? json_pack("{s:i}", "vocab", f->columns[c].vocab)
                        : json_pack("{s:f}", "scale", f->columns[c].scale));
            json_object_set_new(o, "columns", columns);
        }
        json_object_set_new(out, f->name, o);
    }
    return out;
}

void record_desc_release(struct record_desc *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_fields; i++) {
        free(d->fields[i].name);
        free(d->fields[i].columns);
    }
    free(d->fields);
    for (int i = 0; i < d->n_dims; i++)
        free(d->dims[i]);
    free(d->dims);
    *d = (struct record_desc){.policy = -1, .value = -1};
}
