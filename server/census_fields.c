#include "server/census_fields.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

#define BARS_MAX 1024 /* of a distribution, one by one; of a longer one: */
#define BARS 256

struct values {
    int64_t n;
    double sum, min, max;
};

/* What a field may hold, where nothing says what it should. */
enum found { LISTS = 1, NUMBERS = 2, STRINGS = 4, OBJECTS = 8, WORDS = 16 };

struct found_field {
    char *name; /* without escapes */
    size_t name_len;
    unsigned found;
    int64_t records;
    int dim; /* -1: it never was a list */
    struct values values;
};

struct census_fields {
    const struct record_desc *desc; /* NULL: found */
    struct census_dim *dims;
    int n_dims;
    struct values *values; /* by the description: of numbers and scalars */
    struct found_field *found;
    int n_found;
    bool left_out;
};

static void values_add(struct values *v, double x)
{
    v->min = v->n == 0 || x < v->min ? x : v->min;
    v->max = v->n == 0 || x > v->max ? x : v->max;
    v->sum += x;
    v->n++;
}

/* A step of a hash that does not depend on the order of fields. */
static uint64_t mix(int dim, int length)
{
    uint64_t x = (uint64_t)dim << 32 | (uint32_t)length;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93 + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    return x ^ x >> 32;
}

static int fields_along(const struct record_desc *desc, int dim)
{
    int n = 0;
    for (int i = 0; i < desc->n_fields; i++)
        n += desc->fields[i].dim == dim;
    return n;
}

int census_fields_new(const struct record_desc *desc,
                      struct census_fields **ret, struct err *err)
{
    struct census_fields *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for a census");
    f->desc = desc;
    size_t dims = desc ? (size_t)desc->n_dims + 1 : CENSUS_FIELDS;
    f->dims = calloc(dims, sizeof(*f->dims));
    if (desc)
        f->values = calloc((size_t)desc->n_fields + 1, sizeof(*f->values));
    else
        f->found = calloc(CENSUS_FIELDS, sizeof(*f->found));
    if (!f->dims || !(f->values || f->found)) {
        census_fields_free(f);
        return err_set(err, ERR_NOMEM, "no memory for a census");
    }
    for (int i = 0; desc && i < desc->n_dims; i++) {
        f->dims[i].name = desc->dims[i];
        f->dims[i].fields = fields_along(desc, i);
        f->n_dims++;
    }
    *ret = f;
    return 0;
}

void census_fields_free(struct census_fields *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_dims; i++)
        lengths_release(&f->dims[i].lengths);
    for (int i = 0; i < f->n_found; i++) {
        free(f->found[i].name);
    }
    free(f->dims);
    free(f->values);
    free(f->found);
    free(f);
}

static int add_length(struct census_dim *d, int length,
                      const struct census_place *at)
{
    if (lengths_add(&d->lengths, length, 1) < 0)
        return -1;
    int n = d->n_longest;
    if (n == CENSUS_LONGEST && length <= d->longest[n - 1].length)
        return 0;
    if (n < CENSUS_LONGEST)
        d->n_longest++;
    else
        n--;
    for (; n > 0 && d->longest[n - 1].length < length; n--)
        d->longest[n] = d->longest[n - 1];
    d->longest[n].length = length;
    d->longest[n].at = *at;
    return 0;
}

/* ---- by the description ---- */

static bool is_scalar(const struct field *f)
{
    return f->kind == FIELD_TARGET && f->over < 0;
}

int census_fields_add(struct census_fields *f, const struct record *record,
                      const struct census_place *at, uint64_t *ret_shape)
{
    const struct record_desc *desc = f->desc;
    uint64_t shape = 0;
    for (int i = 0; i < desc->n_dims; i++) {
        if (add_length(&f->dims[i], record->lengths[i], at) < 0)
            return -1;
        shape += mix(i, record->lengths[i]);
    }
    for (int i = 0; i < desc->n_fields; i++) {
        const struct field *field = &desc->fields[i];
        if (!is_scalar(field) && field->kind != FIELD_NUMBERS)
            continue;
        const struct field_values *v = &record->fields[i];
        for (int k = 0; k < v->rows; k++)
            values_add(&f->values[i], v->nums[k]);
    }
    *ret_shape = shape;
    return 0;
}

/* ---- by what is found ---- */

static const char *skip_blanks(const char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\r')
        s++;
    return s;
}

/* From behind the opening quote to behind the closing one. */
static const char *skip_string(const char *s)
{
    for (; *s != '"'; s++)
        if (*s == '\\')
            s++;
    return s + 1;
}

/* A list or an object, from its bracket to behind the closing one. *ret: entries
 * of its own. */
static const char *skip_nested(const char *s, int *ret)
{
    int depth = 1, entries = 0;
    const char *first = skip_blanks(++s);
    if (*first != ']' && *first != '}')
        entries = 1;
    while (depth) {
        char c = *s++;
        if (c == '"')
            s = skip_string(s);
        else if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        else if (c == ',' && depth == 1)
            entries++;
    }
    *ret = entries;
    return s;
}

static char *copy_of(const char *s, size_t len)
{
    char *out = malloc(len + 1);
    if (out) {
        memcpy(out, s, len);
        out[len] = '\0';
    }
    return out;
}

/* A number, to behind its last digit; NULL: no memory. The text it stands in has
 * no NUL at its end, as strtod wants one. */
static const char *read_number(const char *s, double *ret)
{
    char some[64], *text = some;
    size_t n = 0;
    while ((s[n] >= '0' && s[n] <= '9') || s[n] == '-' || s[n] == '+' ||
           s[n] == '.' || s[n] == 'e' || s[n] == 'E')
        n++; /* a brace or comma follows */
    if (n < sizeof(some)) {
        memcpy(some, s, n);
        some[n] = '\0';
    } else {
        text = copy_of(s, n);
    }
    if (!text)
        return NULL;
    *ret = strtod(text, NULL);
    if (text != some)
        free(text);
    return s + n;
}

/* A name with escapes, without them; caller frees. */
static char *unescaped(const char *name, size_t len)
{
    json_t *v = json_loadb(name - 1, len + 2, JSON_DECODE_ANY, NULL);
    char *out = strdup(v ? json_string_value(v) : "?"); /* it holds a NUL */
    json_decref(v);
    return out;
}

/* The field of that name, as it stands between the quotes; NULL: one too many.
 * `guess`: where it stood in the record before. -1 when memory is short. */
static int field_of(struct census_fields *f, const char *name, size_t len,
                    int guess, struct found_field **ret)
{
    AUTO_FREE char *plain = NULL;
    if (memchr(name, '\\', len)) {
        plain = unescaped(name, len);
        if (!plain)
            return -1;
        name = plain;
        len = strlen(plain);
    }
    *ret = NULL;
    for (int k = 0; k < f->n_found; k++) {
        struct found_field *x = &f->found[(guess + k) % f->n_found];
        if (x->name_len == len && !memcmp(x->name, name, len)) {
            *ret = x;
            return 0;
        }
    }
    if (f->n_found == CENSUS_FIELDS) {
        f->left_out = true;
        return 0;
    }
    struct found_field *x = &f->found[f->n_found];
    *x = (struct found_field){.name_len = len, .dim = -1};
    x->name = copy_of(name, len);
    if (!x->name)
        return -1;
    f->n_found++;
    *ret = x;
    return 0;
}

static int found_list(struct census_fields *f, struct found_field *x,
                      int length, const struct census_place *at,
                      uint64_t *shape)
{
    if (x->dim < 0) {
        x->dim = f->n_dims++;
        f->dims[x->dim].name = x->name;
        f->dims[x->dim].fields = 1;
    }
    *shape += mix(x->dim, length);
    return add_length(&f->dims[x->dim], length, at);
}

/* A value: from its first byte to behind its last. x NULL: just pass it. */
static int found_value(struct census_fields *f, struct found_field *x,
                       const char **at, const struct census_place *place,
                       uint64_t *shape)
{
    const char *s = *at;
    unsigned found;
    int entries = 0, r = 0;
    double number = 0;
    switch (*s) {
    case '"':
        s = skip_string(s + 1);
        found = STRINGS;
        break;
    case '[':
        s = skip_nested(s, &entries);
        found = LISTS;
        break;
    case '{':
        s = skip_nested(s, &entries);
        found = OBJECTS;
        break;
    case 't':
    case 'n':
        s += 4;
        found = WORDS;
        break;
    case 'f':
        s += 5;
        found = WORDS;
        break;
    default:
        s = read_number(s, &number);
        if (!s)
            return -1;
        found = NUMBERS;
        break;
    }
    *at = s;
    if (!x)
        return 0;
    x->found |= found;
    x->records++;
    if (found == LISTS)
        r = found_list(f, x, entries, place, shape);
    else if (found == NUMBERS)
        values_add(&x->values, number);
    return r;
}

int census_fields_scan(struct census_fields *f, const char *line, size_t len,
                       const struct census_place *at, uint64_t *ret_shape)
{
    uint64_t shape = 0;
    const char *s = skip_blanks(skip_blanks(line) + 1);
    for (int k = 0; *s == '"'; k++) {
        const char *name = s + 1;
        s = skip_string(name);
        struct found_field *x;
        if (field_of(f, name, (size_t)(s - 1 - name), k, &x) < 0)
            return -1;
        s = skip_blanks(skip_blanks(s) + 1); /* the colon */
        if (found_value(f, x, &s, at, &shape) < 0)
            return -1;
        s = skip_blanks(s);
        if (*s != ',')
            break;
        s = skip_blanks(s + 1);
    }
    *ret_shape = shape;
    return 0;
}

/* ---- as JSON ---- */

int census_fields_dims(const struct census_fields *f)
{
    return f->n_dims;
}

const struct census_dim *census_fields_dim(const struct census_fields *f, int i)
{
    return &f->dims[i];
}

static void put_lengths(json_t *out, const struct lengths *l)
{
    if (!l->records)
        return;
    json_object_set_new(out, "min", json_integer(lengths_percentile(l, 0)));
    json_object_set_new(out, "max", json_integer(l->max));
    json_object_set_new(out, "mean",
                        json_real((double)l->sum / (double)l->records));
    json_object_set_new(out, "p50", json_integer(lengths_percentile(l, 0.5)));
    json_object_set_new(out, "p90", json_integer(lengths_percentile(l, 0.9)));
    json_object_set_new(out, "p99", json_integer(lengths_percentile(l, 0.99)));
}

static void put_values(json_t *out, const struct values *v)
{
    if (!v->n)
        return;
    json_object_set_new(out, "min", json_real(v->min));
    json_object_set_new(out, "max", json_real(v->max));
    json_object_set_new(out, "mean", json_real(v->sum / (double)v->n));
    json_object_set_new(out, "sum", json_real(v->sum));
}

static json_t *described(const struct census_fields *f, int i)
{
    static const char *const kinds[] = {"tokens", "rows", "numbers", "target"};
    const struct field *field = &f->desc->fields[i];
    json_t *out = json_pack("{ss}", "kind", kinds[field->kind]);
    if (field->dim >= 0) {
        json_object_set_new(out, "dim", json_string(f->desc->dims[field->dim]));
        put_lengths(out, &f->dims[field->dim].lengths);
    }
    if (is_scalar(field))
        put_values(out, &f->values[i]);
    if (field->kind != FIELD_NUMBERS)
        return out;
    if (field->dim < 0) {
        json_object_set_new(out, "size", json_integer(field->size));
        json_object_set_new(out, "min", json_integer(field->size));
        json_object_set_new(out, "max", json_integer(field->size));
    }
    json_t *values = json_object();
    put_values(values, &f->values[i]);
    json_object_set_new(out, "values", values);
    return out;
}

static const char *found_word(unsigned found)
{
    switch (found) {
    case LISTS:
        return "list";
    case NUMBERS:
        return "number";
    case STRINGS:
        return "string";
    case OBJECTS:
        return "object";
    case WORDS:
        return "word";
    default:
        return "mixed";
    }
}

static json_t *found_json(const struct census_fields *f,
                          const struct found_field *x)
{
    json_t *out = json_pack("{ss sI}", "kind", found_word(x->found), "records",
                            x->records);
    if (x->dim >= 0) {
        put_lengths(out, &f->dims[x->dim].lengths);
        if (x->values.n) {
            json_t *values = json_object();
            put_values(values, &x->values);
            json_object_set_new(out, "values", values);
        }
    } else {
        put_values(out, &x->values);
    }
    return out;
}

bool census_fields_left_out(const struct census_fields *f)
{
    return f->left_out;
}

json_t *census_fields_json(const struct census_fields *f)
{
    json_t *out = json_object();
    for (int i = 0; f->desc && i < f->desc->n_fields; i++)
        json_object_set_new(out, f->desc->fields[i].name, described(f, i));
    for (int i = 0; i < f->n_found; i++)
        json_object_set_new(out, f->found[i].name, found_json(f, &f->found[i]));
    return out;
}

/* [[length, records], …]; of very many lengths, ranges that end with them. */
static json_t *bars(const struct lengths *l)
{
    json_t *out = json_array();
    int distinct = 0;
    for (int i = 0; i < l->n; i++)
        distinct += l->count[i] > 0;
    double width = distinct > BARS_MAX ? (double)l->max / BARS : 0;
    int64_t count = 0;
    int longest = 0, bar = 0;
    for (int i = 0; i < l->n; i++) {
        if (!l->count[i])
            continue;
        int length = lengths_of_bin(l, i);
        int here = width > 0 ? (int)((length - 1) / width) : length;
        if (count && here != bar) {
            json_array_append_new(out, json_pack("[iI]", longest, count));
            count = 0;
        }
        count += l->count[i];
        longest = length;
        bar = here;
    }
    if (count)
        json_array_append_new(out, json_pack("[iI]", longest, count));
    return out;
}

json_t *census_fields_dims_json(const struct census_fields *f)
{
    json_t *out = json_object();
    for (int i = 0; i < f->n_dims; i++) {
        const struct lengths *l = &f->dims[i].lengths;
        json_t *dim = json_pack("{sI}", "records", l->records);
        put_lengths(dim, l);
        if (l->records)
            json_object_set_new(dim, "p100", json_integer(l->max));
        json_object_set_new(dim, "histogram", bars(l));
        json_object_set_new(out, f->dims[i].name, dim);
    }
    return out;
}

json_t *census_fields_value_json(const struct census_fields *f)
{
    int i = f->desc ? f->desc->value : -1;
    if (i < 0 || !f->values[i].n)
        return json_null();
    json_t *out = json_pack("{sI}", "records", f->values[i].n);
    put_values(out, &f->values[i]);
    return out;
}
