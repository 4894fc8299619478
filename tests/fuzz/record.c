/* The record decoder beside jansson: what it takes is JSON and has the values
 * that jansson reads there, what it refuses jansson refuses too or does not fit
 * the description. A decoder that has seen other lines answers like a new one.
 *
 * Input: a character that chooses description and rules, then lines. */
#include <math.h>
#include "fuzz.h"
#include "schema/json_read.h"
#include "schema/record.h"

static const char *const descriptions[] = {
    /* all kinds, a short max_length */
    "{\"state\":{\"kind\":\"tokens\",\"dim\":\"S\",\"vocab\":64},"
    "\"weight\":{\"kind\":\"numbers\",\"dim\":\"S\"},"
    "\"legal\":{\"kind\":\"rows\",\"dim\":\"A\",\"columns\":[{\"vocab\":64},"
    "{\"scale\":2},{\"vocab\":5}]},"
    "\"pair\":{\"kind\":\"numbers\",\"size\":2},"
    "\"policy\":{\"kind\":\"target\",\"over\":\"legal\",\"loss\":"
    "\"cross_entropy\"},"
    "\"value\":{\"kind\":\"target\",\"loss\":\"mse\"}}",
    /* indices alone, as in chess */
    "{\"state\":{\"kind\":\"tokens\",\"dim\":\"S\",\"vocab\":4096},"
    "\"objects\":{\"kind\":\"rows\",\"dim\":\"O\",\"columns\":[{\"vocab\":64},"
    "{\"vocab\":12}]},"
    "\"legal\":{\"kind\":\"rows\",\"dim\":\"A\",\"columns\":[{\"vocab\":64},"
    "{\"vocab\":64}]},"
    "\"policy\":{\"kind\":\"target\",\"over\":\"legal\",\"loss\":"
    "\"cross_entropy\"},"
    "\"value\":{\"kind\":\"target\",\"loss\":\"mse\"}}",
    /* names that need care */
    "{\"x\":{\"kind\":\"numbers\",\"dim\":\"X\"},"
    "\"xx\":{\"kind\":\"numbers\",\"size\":1},"
    "\"value\":{\"kind\":\"target\",\"loss\":\"mse\"}}",
    /* boards and moves: many numbers of one digit or two */
    "{\"state\":{\"kind\":\"tokens\",\"dim\":\"S\",\"vocab\":64},"
    "\"objects\":{\"kind\":\"rows\",\"dim\":\"O\",\"columns\":[{\"vocab\":6},"
    "{\"vocab\":2},{\"vocab\":8},{\"vocab\":8}]},"
    "\"pairs\":{\"kind\":\"rows\",\"dim\":\"P\",\"columns\":[{\"vocab\":100},"
    "{\"vocab\":10}]},"
    "\"legal\":{\"kind\":\"rows\",\"dim\":\"A\",\"columns\":[{\"vocab\":64},"
    "{\"vocab\":64},{\"vocab\":5}]},"
    "\"long\":{\"kind\":\"rows\",\"dim\":\"L\",\"columns\":[{\"vocab\":64},"
    "{\"vocab\":64},{\"vocab\":5},{\"vocab\":2},{\"vocab\":99},{\"vocab\":3}]},"
    "\"policy\":{\"kind\":\"target\",\"over\":\"legal\",\"loss\":"
    "\"cross_entropy\"},"
    "\"value\":{\"kind\":\"target\",\"loss\":\"mse\"}}",
};
#define N_DESC (sizeof descriptions / sizeof *descriptions)
static struct record_desc descs[N_DESC];

static void prepare(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    for (size_t i = 0; i < N_DESC; i++) {
        AUTO_JSON json_t *json = NULL;
        struct err err;
        MUST(json_parse_strict(descriptions[i], strlen(descriptions[i]), &json,
                               &err) == 0,
             "%s", err.text);
        MUST(record_desc_parse(json, "/record", &descs[i], &err) == 0, "%s",
             err.text);
    }
    descs[0].max_length = 8;
}

/* ---- the second reading ---- */

enum verdict { TAKEN, REFUSED, EITHER };

static bool fits_float(const json_t *v)
{
    return json_is_number(v) && isfinite((float)json_number_value(v));
}

static enum verdict entry(const struct column *c, const json_t *v)
{
    if (c->vocab)
        return json_is_integer(v) && json_integer_value(v) >= 0 &&
                       json_integer_value(v) < c->vocab
                   ? TAKEN
                   : REFUSED;
    return fits_float(v) && isfinite((float)(json_number_value(v) / c->scale))
               ? TAKEN
               : REFUSED;
}

static enum verdict policy(const json_t *v, double tolerance)
{
    double sum = 0;
    size_t i;
    json_t *x;
    json_array_foreach(v, i, x)
    {
        if (!fits_float(x) || json_number_value(x) < 0)
            return REFUSED;
        sum += json_number_value(x);
    }
    double off = fabs(sum - 1) - tolerance;
    return fabs(off) < 1e-6 ? EITHER : off < 0 ? TAKEN : REFUSED;
}

static enum verdict field(const struct field *f, const json_t *v,
                          double tolerance)
{
    size_t i, k;
    json_t *row, *x;
    if (f->kind == FIELD_TARGET && f->over < 0)
        return json_is_number(v) && fabs(json_number_value(v)) <= 1 ? TAKEN
                                                                    : REFUSED;
    if (!json_is_array(v))
        return REFUSED;
    if (f->kind == FIELD_TARGET)
        return policy(v, tolerance);
    if (f->kind == FIELD_NUMBERS && f->dim < 0 &&
        json_array_size(v) != (size_t)f->size)
        return REFUSED;
    struct column tokens = {.vocab = f->vocab}, numbers = {.scale = 1};
    json_array_foreach(v, i, row)
    {
        if (f->kind != FIELD_ROWS) {
            if (entry(f->kind == FIELD_TOKENS ? &tokens : &numbers, row) !=
                TAKEN)
                return REFUSED;
            continue;
        }
        if (json_array_size(row) != (size_t)f->n_columns)
            return REFUSED;
        json_array_foreach(row, k, x) if (entry(&f->columns[k], x) !=
                                          TAKEN) return REFUSED;
    }
    return TAKEN;
}

static enum verdict judge(const struct record_desc *d, const json_t *record,
                          double tolerance, bool inputs_only)
{
    enum verdict all = TAKEN;
    size_t lengths[8];
    bool known[8] = {0};
    if (!json_is_object(record))
        return REFUSED;
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        const json_t *v = json_object_get(record, f->name);
        if (!v && inputs_only && f->kind == FIELD_TARGET)
            continue;
        enum verdict here = v ? field(f, v, tolerance) : REFUSED;
        if (here == REFUSED)
            return REFUSED;
        if (here == EITHER)
            all = EITHER;
        size_t n = json_array_size(v);
        if (f->kind == FIELD_TARGET && f->over >= 0 &&
            n != json_array_size(
                     json_object_get(record, d->fields[f->over].name)))
            return REFUSED;
        if (f->kind == FIELD_TARGET || f->dim < 0)
            continue;
        if (f->kind != FIELD_ROWS && d->max_length && n > (size_t)d->max_length)
            return REFUSED;
        if (known[f->dim] && lengths[f->dim] != n)
            return REFUSED;
        known[f->dim] = true;
        lengths[f->dim] = n;
    }
    for (int i = 0; i < d->n_fields; i++) { /* something to choose from */
        const struct field *f = &d->fields[i];
        if (f->kind == FIELD_TARGET && f->over >= 0 &&
            !json_array_size(json_object_get(record, d->fields[f->over].name)))
            return REFUSED;
    }
    return all;
}

/* ---- are the values those? ---- */

static void same_float(float got, double want, const char *name)
{
    MUST(got == (float)want, "%s: %.9g, but %.17g was written", name,
         (double)got, want);
}

static void check_field(const struct field *f, const struct field_values *v,
                        const json_t *in)
{
    size_t i, k;
    json_t *row, *x;
    if (f->kind == FIELD_TARGET && f->over < 0) {
        MUST(v->rows == 1, "%d rows", v->rows);
        same_float(v->nums[0], json_number_value(in), f->name);
        return;
    }
    MUST((size_t)v->rows == json_array_size(in), "%s: %d rows, not %zu",
         f->name, v->rows, json_array_size(in));
    if (f->kind == FIELD_TARGET) {
        double sum = 0, now = 0;
        json_array_foreach(in, i, x) sum += json_number_value(x);
        json_array_foreach(in, i, x)
        {
            MUST(fabs((double)v->nums[i] - json_number_value(x) / sum) < 1e-6,
                 "%s[%zu] is %g", f->name, i, (double)v->nums[i]);
            now += (double)v->nums[i];
        }
        MUST(fabs(now - 1) < 1e-5, "%s sums to %.9g", f->name, now);
        return;
    }
    const int32_t *ints = v->ints;
    const float *nums = v->nums;
    json_array_foreach(in, i, row)
    {
        if (f->kind == FIELD_TOKENS)
            MUST(*ints++ == json_integer_value(row), "%s[%zu]", f->name, i);
        else if (f->kind == FIELD_NUMBERS)
            same_float(*nums++, json_number_value(row), f->name);
        else
            json_array_foreach(row, k, x)
            {
                if (f->columns[k].vocab)
                    MUST(*ints++ == json_integer_value(x), "%s[%zu][%zu]",
                         f->name, i, k);
                else
                    same_float(*nums++,
                               json_number_value(x) / f->columns[k].scale,
                               f->name);
            }
    }
}

static void check_values(const struct record_desc *d, const struct record *r,
                         const json_t *in)
{
    MUST(r->n_fields == d->n_fields, "%d fields", r->n_fields);
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        const struct field_values *v = &r->fields[i];
        const json_t *x = json_object_get(in, f->name);
        if (x)
            check_field(f, v, x);
        else /* a target of a record that is asked about */
            for (int k = 0; k < v->rows; k++)
                MUST(v->nums[k] == 0, "%s[%d]", f->name, k);
        if (f->dim >= 0)
            MUST(r->lengths[f->dim] == v->rows, "%s has %d rows, not %d",
                 f->name, v->rows, r->lengths[f->dim]);
    }
}

static void same(const struct record_desc *d, const struct record *a,
                 const struct record *b)
{
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        const struct field_values *x = &a->fields[i], *y = &b->fields[i];
        size_t rows = (size_t)x->rows, ints = 0, nums = 0;
        MUST(x->rows == y->rows, "%s: %d and %d rows", f->name, x->rows,
             y->rows);
        if (f->kind == FIELD_TOKENS)
            ints = rows;
        else if (f->kind == FIELD_ROWS)
            ints = rows * (size_t)f->n_ints, nums = rows * (size_t)f->n_nums;
        else
            nums = rows;
        MUST(!ints || !memcmp(x->ints, y->ints, ints * sizeof *x->ints),
             "%s: other indices", f->name);
        MUST(!nums || !memcmp(x->nums, y->nums, nums * sizeof *x->nums),
             "%s: other numbers", f->name);
    }
}

/* How deep it is nested, whatever its brackets enclose, and how many keys the
 * outermost object has; strings left out. */
static int depth_of(const char *s, size_t len, size_t *ret_keys)
{
    int depth = 0, most = 0;
    *ret_keys = 0;
    bool string = false;
    for (size_t i = 0; i < len; i++) {
        if (string) {
            i += s[i] == '\\';
            string = i >= len || s[i] != '"';
        } else if (s[i] == '"') {
            string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            most = ++depth > most ? depth : most;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
        *ret_keys += !string && depth == 1 && s[i] == ':';
    }
    return most;
}

static void one_line(struct record_decoder *used, const struct record_desc *d,
                     double tolerance, bool inputs_only, const void *data,
                     size_t len)
{
    AUTO_FREE char *line = alone(data, len);
    struct record_decoder *fresh = NULL;
    const struct record *r = NULL, *r_fresh = NULL;
    struct err err, err_fresh;
    MUST(record_decoder_new(d, tolerance, &fresh, &err) == 0, "%s", err.text);
    if (inputs_only)
        record_decoder_inputs_only(fresh);
    int got = record_decode(used, line, len, &r, &err);
    int again = record_decode(fresh, line, len, &r_fresh, &err_fresh);
    MUST(got == again,
         "%d of one that has seen lines (%s), %d of a new one (%s)", got,
         got ? err.text : "", again, again ? err_fresh.text : "");
    if (got < 0) {
        is_refusal(got, &err, ERR_DATA, ERR_DATA);
        MUST(!strcmp(err.text, err_fresh.text) &&
                 !strcmp(err.field, err_fresh.field),
             "%s, and: %s", err.text, err_fresh.text);
        MUST(!err.field[0] || record_desc_field(d, err.field) >= 0,
             "a field '%s' that there is not", err.field);
    } else {
        same(d, r, r_fresh);
    }

    size_t keys;
    int depth = depth_of(line, len, &keys);
    MUST(got < 0 || depth <= JSON_DEPTH_MAX, "taken, but nested %d deep",
         depth);
    json_error_t why;
    AUTO_JSON json_t *json =
        json_loadb(line, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    int code = json ? -1 : (int)json_error_code(&why);
    if (got == 0 && !json) {
        /* integers of any size, and a key with \u0000, are JSON all the same */
        MUST(code == json_error_numeric_overflow ||
                 code == json_error_null_byte_in_key,
             "taken, but %s", why.text);
        if (code == json_error_null_byte_in_key)
            goto done;
        json = json_loadb(line, len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL,
                          &why);
        MUST(json || json_error_code(&why) == json_error_null_byte_in_key,
             "taken, but %s", why.text);
        if (!json)
            goto done;
        check_values(d, r, json);
    } else if (got == 0) {
        MUST(json_object_size(json) == keys, "taken, but a key is repeated");
        MUST(judge(d, json, tolerance, inputs_only) != REFUSED,
             "taken, but it does not fit the description");
        check_values(d, r, json);
    } else if (json) {
        AUTO_JSON json_t *unique = json_loadb(
            line, len,
            JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
        bool mark = len >= 3 && !memcmp(line, "\xef\xbb\xbf", 3);
        MUST(!unique || mark || depth > JSON_DEPTH_MAX ||
                 judge(d, unique, tolerance, inputs_only) != TAKEN,
             "refused (%s), but there is nothing wrong with it", err.text);
    }
done:
    record_decoder_free(fresh);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = {data, size};
    prepare();
    unsigned how = in_byte(&in) & 31;
    const struct record_desc *d = &descs[how % N_DESC];
    bool inputs_only = how & 4;
    double tolerance = how & 8 ? 0 : 0.01;
    struct record_decoder *used;
    struct err err;
    MUST(record_decoder_new(d, tolerance, &used, &err) == 0, "%s", err.text);
    if (inputs_only)
        record_decoder_inputs_only(used);
    while (in.n) {
        const uint8_t *end = memchr(in.p, '\n', in.n);
        size_t len = end ? (size_t)(end - in.p) : in.n;
        one_line(used, d, tolerance, inputs_only, in.p, len);
        in.p += len + (end != NULL);
        in.n -= len + (end != NULL);
    }
    record_decoder_free(used);
    return 0;
}
