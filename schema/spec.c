#include "schema/spec.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/rfc3339.h"
#include "schema/spec_data.h"
#include "schema/spec_training.h"

static const char *const kinds[] = {"train", "selfplay", NULL};
static const char *const model_types[] = {"policy_value_transformer",
                                          "torchscript", NULL};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for a job spec");
}

/* A field that a later version will understand. */
static void not_yet(struct json_read *r, const char *name)
{
    if (json_read_get(r, name))
        json_read_fail(r, name, "%s is not supported yet", name);
}

static int read_model(const json_t *in, struct model_spec *m, struct err *err)
{
    struct json_read r;
    json_read_open_any(&r, in, "/model", err);
    int type = json_read_word(&r, "type", model_types, 0);
    if (r.r == 0 && type != 0)
        json_read_fail(&r, "type", "model type %s is not supported yet",
                       model_types[type]);
    if (r.r < 0)
        return r.r;

    json_read_open(&r, in, "/model", err, "type", "d_model", "layers", "heads",
                   "ff", "max_length", "dropout", NULL);
    m->d_model = (int)json_read_int(&r, "d_model", 1, 16384, 128);
    m->layers = (int)json_read_int(&r, "layers", 1, 256, 4);
    int heads = m->d_model % 4 == 0 ? 4 : m->d_model % 2 == 0 ? 2 : 1;
    m->heads = (int)json_read_int(&r, "heads", 1, 1024, heads);
    if (r.r == 0 && m->d_model % m->heads)
        json_read_fail(&r, "heads",
                       "heads is %d, which does not divide the "
                       "d_model of %d",
                       m->heads, m->d_model);
    m->ff = (int)json_read_int(&r, "ff", 1, 65536, 4 * m->d_model);
    m->max_length = (int)json_read_int(&r, "max_length", 1, 65536, 512);
    m->dropout = json_read_real(&r, "dropout", 0, 1, 0);
    if (r.r == 0 && m->dropout == 1)
        json_read_fail(&r, "dropout", "dropout is 1, must be below 1");
    return r.r;
}

static json_t *model_json(const struct model_spec *m)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "type",
                     model_types[0], "d_model", m->d_model, "layers", m->layers,
                     "heads", m->heads, "ff", m->ff, "max_length",
                     m->max_length, "dropout", m->dropout);
}

/* What the model needs of a record. */
static int check_record(const struct record_desc *d, struct err *err)
{
    int inputs = 0;
    for (int i = 0; i < d->n_fields; i++)
        inputs += d->fields[i].kind != FIELD_TARGET;
    if (!inputs)
        return err_at(err, ERR_INVALID, "/record",
                      "the record has no input field: tokens, rows or numbers");
    if (inputs == d->n_fields)
        return err_at(err, ERR_INVALID, "/record",
                      "the record has no target: nothing to learn");
    return 0;
}

static int read_limits(const json_t *in, struct limits *l, struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/limits", err, "failures", "lost", "no_progress",
                   NULL);
    l->failures = (int)json_read_int(&r, "failures", 0, 1000000, 3);
    l->lost = (int)json_read_int(&r, "lost", 0, 1000000, 20);
    l->no_progress = (int)json_read_int(&r, "no_progress", 1, 1000000, 10);
    return r.r;
}

int64_t spec_after(const json_t *item, bool *ret_ended)
{
    if (ret_ended)
        *ret_ended = json_is_object(item);
    return json_integer_value(
        json_is_object(item) ? json_object_get(item, "job") : item);
}

/* One item: an id, or {"job", "when"}. As it stands resolved, in *ret. */
static int read_after_item(const json_t *in, const char *at, json_t **ret,
                           struct err *err)
{
    static const char *const ends[] = {"completed", "ended", NULL};
    if (json_is_integer(in)) {
        json_int_t n = json_integer_value(in);
        if (n < 1 || n > JSON_INT_MAX)
            return err_at(err, ERR_INVALID, at, "after lists ids of jobs");
        *ret = json_integer(n);
        return *ret ? 0 : no_memory(err);
    }
    if (!json_is_object(in))
        return err_at(
            err, ERR_INVALID, at,
            "after lists ids of jobs, or objects such as {\"job\": 1, "
            "\"when\": \"ended\"}");
    struct json_read r;
    json_read_open(&r, in, at, err, "job", "when", NULL);
    json_read_need(&r, "job");
    int64_t id = json_read_int(&r, "job", 1, JSON_INT_MAX, 0);
    int ended = json_read_word(&r, "when", ends, 0);
    if (r.r < 0)
        return r.r;
    *ret = ended
               ? json_pack("{s:I, s:s}", "job", (json_int_t)id, "when", ends[1])
               : json_integer(id);
    return *ret ? 0 : no_memory(err);
}

static int read_after(const json_t *in, struct spec *s, struct err *err)
{
    s->after = json_array();
    if (!s->after)
        return no_memory(err);
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *item = NULL;
        char at[JSON_POINTER_MAX];
        json_pointer_index(at, "/after", i);
        int r = read_after_item(json_array_get(in, i), at, &item, err);
        if (r < 0)
            return r;
        json_array_append_new(s->after, item);
        int64_t n = spec_after(item, NULL);
        for (size_t j = 0; j < i; j++)
            if (spec_after(json_array_get(s->after, j), NULL) == n)
                return err_at(err, ERR_INVALID, at,
                              "job %lld stands here twice", (long long)n);
    }
    return 0;
}

static int read_not_before(struct json_read *r, struct spec *s)
{
    const char *text = json_read_string(r, "not_before", 64, NULL);
    if (text && rfc3339_parse(text, &s->not_before_ms) < 0)
        json_read_fail(r, "not_before",
                       "not_before is \"%s\", not a time of RFC 3339 with its "
                       "zone, such as 2026-07-01T08:00:00Z or "
                       "2026-07-01T10:00:00+02:00",
                       text);
    return r->r;
}

static json_t *not_before_json(const struct spec *s)
{
    char text[RFC3339_MAX];
    if (!s->not_before_ms)
        return json_null();
    rfc3339_text(s->not_before_ms, text);
    return json_string(text);
}

/* Positions are learned up to max_length: no batch may be padded beyond. */
int spec_runtime_fits(const struct spec *s, const struct runtime_policy *p,
                      struct err *err)
{
    for (int i = 0; i < s->record.n_fields; i++) {
        const struct field *f = &s->record.fields[i];
        if ((f->kind != FIELD_TOKENS && f->kind != FIELD_NUMBERS) || f->dim < 0)
            continue;
        const struct sizes *sizes = &p->padding.sizes[f->dim];
        int last = sizes->n ? sizes->v[sizes->n - 1] : 0;
        bool ladder = last > s->model.max_length;
        int most = ladder ? last : p->padding.minimum[f->dim];
        if (most <= s->model.max_length)
            continue;
        char at[JSON_POINTER_MAX];
        json_pointer(
            at, ladder ? "/runtime/padding/sizes" : "/runtime/padding/minimum",
            s->record.dims[f->dim]);
        return err_at(err, ERR_INVALID, at,
                      "the %s of %d is more than the model's max_length of %d, "
                      "and %s lies along it",
                      ladder ? "size" : "minimum", most, s->model.max_length,
                      f->name);
    }
    return 0;
}

static int resolve(struct spec *s, struct err *err)
{
    s->resolved = json_pack(
        "{s:s, s:s, s:i, s:i, s:O, s:O, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:{s:i, s:i, s:i}}",
        "name", s->name, "kind", s->kind, "cycles", s->cycles, "priority",
        s->priority, "labels", s->labels, "after", s->after, "not_before",
        not_before_json(s), "model", model_json(&s->model), "record",
        record_desc_json(&s->record), "data", data_spec_json(&s->data),
        "training", training_spec_json(&s->training, &s->record), "runtime",
        runtime_json(&s->runtime, &s->record), "limits", "failures",
        s->limits.failures, "lost", s->limits.lost, "no_progress",
        s->limits.no_progress);
    if (!s->resolved)
        return no_memory(err);
    spec_cycle_signature(s, NULL, s->signature);
    return 0;
}

int spec_parse(const json_t *in, struct spec *ret, struct err *err)
{
    CLEANUP(spec_release)
    struct spec s = {.record = {.policy = -1, .value = -1}};
    struct json_read r;
    if (!json_is_object(in))
        return err_set(err, ERR_INVALID, "a job spec is a JSON object");
    json_read_open(&r, in, "", err, "name", "kind", "labels", "priority",
                   "after", "cycles", "model", "record", "data", "training",
                   "runtime", "limits", "game", "selfplay", "window", "gate",
                   "not_before", "sweep", NULL);
    int kind = json_read_word(&r, "kind", kinds, 0);
    if (kind != 0)
        json_read_fail(&r, "kind", "kind %s is not supported yet", kinds[kind]);
    static const char *const later[] = {"game", "selfplay", "window", "gate",
                                        NULL};
    for (int i = 0; later[i]; i++)
        not_yet(&r, later[i]);
    if (json_read_get(&r, "sweep"))
        json_read_fail(&r, "sweep",
                       "a sweep makes jobs when it is submitted; a job that is "
                       "there has none");
    const char *name = json_read_string(&r, "name", 200, kinds[kind]);
    for (const char *p = name; *p && r.r == 0; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            json_read_fail(&r, "name", "a name has no control characters");
    s.cycles = (int)json_read_int(&r, "cycles", 0, 1000000, 1);
    s.priority = (int)json_read_int(&r, "priority", -100, 100, 0);
    const json_t *after = json_read_array(&r, "after", 100);
    if (read_not_before(&r, &s) < 0)
        return r.r;
    s.name = strdup(name);
    s.kind = strdup(kinds[kind]);
    if (!s.name || !s.kind)
        return no_memory(err);

    int q = json_read_labels(json_read_get(&r, "labels"), "/labels", &s.labels,
                             err);
    if (q == 0)
        q = read_after(after, &s, err);
    if (q == 0)
        q = read_model(json_read_get(&r, "model"), &s.model, err);
    if (q == 0) {
        json_read_need(&r, "record");
        json_read_need(&r, "data");
        q = r.r;
    }
    if (q == 0)
        q = record_desc_parse(json_read_get(&r, "record"), "/record", &s.record,
                              err);
    if (q == 0) {
        s.record.max_length = s.model.max_length;
        q = check_record(&s.record, err);
    }
    if (q == 0)
        q = data_spec_parse(json_read_get(&r, "data"), &s.data, err);
    if (q == 0)
        q = training_spec_parse(json_read_get(&r, "training"), &s.record,
                                &s.training, err);
    if (q == 0)
        q = data_spec_fits(&s.data, &s.training, err);
    if (q == 0)
        q = runtime_parse(json_read_get(&r, "runtime"), &s.record,
                          s.training.effective_batch, &s.runtime, err);
    if (q == 0)
        q = spec_runtime_fits(&s, &s.runtime, err);
    if (q == 0)
        q = read_limits(json_read_get(&r, "limits"), &s.limits, err);
    if (q == 0)
        q = resolve(&s, err);
    if (q < 0)
        return q;

    *ret = s;
    s = (struct spec){0};
    return 0;
}

void spec_release(struct spec *s)
{
    if (!s)
        return;
    free(s->name);
    free(s->kind);
    json_decref(s->labels);
    json_decref(s->after);
    record_desc_release(&s->record);
    data_spec_release(&s->data);
    training_spec_release(&s->training);
    runtime_release(&s->runtime);
    json_decref(s->resolved);
    *s = (struct spec){0};
}

void spec_cycle_signature(const struct spec *s, const char *data_digest,
                          char out[DIGEST_HEX])
{
    json_t *data = data_spec_semantics(&s->data);
    if (data_digest)
        json_object_set_new(data, "snapshot", json_string(data_digest));
    AUTO_JSON json_t *semantics = json_pack(
        "{s:s, s:o, s:o, s:o, s:o}", "kind", s->kind, "model",
        model_json(&s->model), "record", record_desc_json(&s->record), "data",
        data, "training", training_spec_semantics(&s->training, &s->record));
    digest_of_json(semantics, out);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The keys of both objects, sorted; a key of both stands there twice. */
static const char **all_keys(const json_t *a, const json_t *b, size_t *ret_n)
{
    size_t n = 0, max = json_object_size(a) + json_object_size(b);
    const char **keys = calloc(max ? max : 1, sizeof *keys);
    const char *key;
    json_t *value;
    if (!keys)
        return NULL;
    json_object_foreach((json_t *)a, key, value) keys[n++] = key;
    json_object_foreach((json_t *)b, key, value) keys[n++] = key;
    qsort(keys, n, sizeof *keys, by_bytes);
    *ret_n = n;
    return keys;
}

static bool differ(const json_t *a, const json_t *b, const char *at,
                   char out[JSON_POINTER_MAX])
{
    char below[JSON_POINTER_MAX];
    if (json_is_object(a) && json_is_object(b)) {
        size_t n = 0;
        AUTO_FREE const char **keys = all_keys(a, b, &n);
        for (size_t i = 0; i < n; i++) {
            json_pointer(below, at, keys[i]);
            if (differ(json_object_get(a, keys[i]), json_object_get(b, keys[i]),
                       below, out))
                return true;
        }
        if (keys)
            return false;
    } else if (json_is_array(a) && json_is_array(b) &&
               json_array_size(a) == json_array_size(b)) {
        for (size_t i = 0; i < json_array_size(a); i++) {
            json_pointer_index(below, at, i);
            if (differ(json_array_get(a, i), json_array_get(b, i), below, out))
                return true;
        }
        return false;
    }
    if ((!a && !b) || (a && b && json_equal(a, b)))
        return false;
    snprintf(out, JSON_POINTER_MAX, "%s", at);
    return true;
}

int spec_semantics_diff(const json_t *a, const json_t *b, char *ret, size_t cap)
{
    static const char *const parts[] = {"kind", "model", "record", "data",
                                        "training"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char at[JSON_POINTER_MAX], found[JSON_POINTER_MAX];
        json_pointer(at, "", parts[i]);
        if (differ(json_object_get(a, parts[i]), json_object_get(b, parts[i]),
                   at, found)) {
            snprintf(ret, cap, "%s", found);
            return 1;
        }
    }
    return 0;
}
