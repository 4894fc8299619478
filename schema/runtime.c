#include <float.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/spec.h"

#define AT "/runtime"
#define BATCH_MAX (1 << 20)
#define LENGTH_MAX (1 << 16)
#define COUNT 8 /* of a ladder's sizes, unless given */

static const char *const devices[] = {"auto", "cpu", "cuda", "mps", NULL};
static const char *const padding_modes[] = {"dynamic", "stable", "ladder",
                                            NULL};
static const char *const oom_words[] = {"fail", "split", NULL};
static const char *const orders[] = {"min", "max", NULL};
static const char *const exact_words[] = {"report", "require", NULL};

int mps_ratios(double high, double low, bool unified, const char *at,
               double *ret_high, double *ret_low, struct err *err)
{
    char where[JSON_POINTER_MAX];
    double default_low = unified ? 1.4 : 1.0;
    double h = high == -1 ? 1.7 : high, l = low == -1 ? default_low : low;

    if (!(h >= 0 && h <= 2)) {
        json_pointer(where, at, "high_watermark_ratio");
        return err_at(err, ERR_INVALID, where,
                      "high_watermark_ratio is %g, must be between 0 and 2", h);
    }
    double l_max = h == 0 ? 2 : h;
    if (l >= 0 && l <= l_max) {
        *ret_high = h;
        *ret_low = l;
        return 0;
    }
    json_pointer(where, at, "low_watermark_ratio");
    if (low != -1)
        return err_at(err, ERR_INVALID, where,
                      "low_watermark_ratio is %g, must be between 0 and %g%s",
                      l, l_max,
                      h == 0       ? ""
                      : high == -1 ? ", the default of high_watermark_ratio"
                                   : ", the high_watermark_ratio");
    return err_at(err, ERR_INVALID, where,
                  "high_watermark_ratio is %g, below %g, which "
                  "low_watermark_ratio is when it is not set: add "
                  "low_watermark_ratio (at most %g) or remove "
                  "high_watermark_ratio",
                  h, l, h);
}

/* 0 is off, absent the device's default. */
static double read_threshold(struct json_read *r, const char *name)
{
    return json_read_real(r, name, 0, 1e12, -1);
}

static int read_restart(const json_t *in, struct runtime_policy *p,
                        struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, AT "/restart", err, "device_memory_mb", "rss_mb",
                   "seconds", "every_micro_batches", NULL);
    p->restart.device_memory_mb = read_threshold(&r, "device_memory_mb");
    p->restart.rss_mb = read_threshold(&r, "rss_mb");
    p->restart.seconds = read_threshold(&r, "seconds");
    p->restart.every_micro_batches =
        json_read_int(&r, "every_micro_batches", 0, JSON_INT_MAX, -1);
    return r.r;
}

/* Room for every dimension of a record. */
static int padding_init(struct padding *p, int n_dims, struct err *err)
{
    size_t n = n_dims ? (size_t)n_dims : 1;
    *p = (struct padding){.n_dims = n_dims,
                          .minimum = calloc(n, sizeof *p->minimum),
                          .sizes = calloc(n, sizeof *p->sizes)};
    if (p->minimum && p->sizes)
        return 0;
    padding_release(p);
    return err_set(err, ERR_NOMEM, "no memory for a runtime policy");
}

void padding_release(struct padding *p)
{
    for (int d = 0; p->sizes && d < p->n_dims; d++)
        free(p->sizes[d].v);
    free(p->sizes);
    free(p->minimum);
    *p = (struct padding){0};
}

int padding_copy(const struct padding *p, struct padding *ret, struct err *err)
{
    CLEANUP(padding_release) struct padding to = {0};
    int r = padding_init(&to, p->n_dims, err);
    if (r < 0)
        return r;
    to.mode = p->mode;
    to.count = p->count;
    for (int d = 0; d < p->n_dims; d++) {
        to.minimum[d] = p->minimum[d];
        if (!p->sizes[d].n)
            continue;
        size_t bytes = (size_t)p->sizes[d].n * sizeof(int);
        to.sizes[d].v = malloc(bytes);
        if (!to.sizes[d].v)
            return err_set(err, ERR_NOMEM, "no memory for a runtime policy");
        memcpy(to.sizes[d].v, p->sizes[d].v, bytes);
        to.sizes[d].n = p->sizes[d].n;
    }
    *ret = to;
    to = (struct padding){0};
    return 0;
}

int padding_length(const struct padding *p, int dim, int longest)
{
    if (p->mode == PADDING_STABLE && p->minimum[dim] > longest)
        return p->minimum[dim];
    const struct sizes *s = &p->sizes[dim];
    for (int i = 0; p->mode == PADDING_LADDER && i < s->n; i++)
        if (s->v[i] >= longest)
            return s->v[i];
    return longest;
}

int padding_top(const struct padding *p, int dim)
{
    const struct sizes *s = &p->sizes[dim];
    if (p->mode == PADDING_STABLE)
        return p->minimum[dim];
    return p->mode == PADDING_LADDER && s->n ? s->v[s->n - 1] : 0;
}

/* The dimension that a key of minimum or sizes names. */
static int dim_of(struct json_read *r, const struct record_desc *record,
                  const char *key)
{
    int dim = record_desc_dim(record, key);
    return dim >= 0
               ? dim
               : json_read_fail(
                     r, key, "\"%.64s\" is not a dimension of the record", key);
}

static int read_minimum(const json_t *in, const struct record_desc *record,
                        struct padding *p, struct err *err)
{
    struct json_read m;
    json_read_open_any(&m, in, AT "/padding/minimum", err);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)m.object, key, value)
    {
        int dim = dim_of(&m, record, key);
        if (dim < 0)
            return dim;
        p->minimum[dim] = (int)json_read_int(&m, key, 0, LENGTH_MAX, 0);
    }
    return m.r;
}

static int read_sizes(const json_t *in, const struct record_desc *record,
                      struct padding *p, struct err *err)
{
    struct json_read m;
    json_read_open_any(&m, in, AT "/padding/sizes", err);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)m.object, key, value)
    {
        int dim = dim_of(&m, record, key);
        if (dim < 0)
            return dim;
        const json_t *list = json_read_array(&m, key, SIZES_MAX);
        size_t n = json_array_size(list);
        if (m.r < 0)
            return m.r;
        if (!n)
            return json_read_fail(&m, key, "%.64s has no sizes", key);
        struct sizes *to = &p->sizes[dim];
        to->v = calloc(n, sizeof *to->v);
        if (!to->v)
            return err_set(err, ERR_NOMEM, "no memory for a runtime policy");
        for (; (size_t)to->n < n; to->n++) {
            const json_t *v = json_array_get(list, (size_t)to->n);
            json_int_t size = json_integer_value(v);
            if (json_is_integer(v) && size >= 1 && size <= LENGTH_MAX &&
                (!to->n || size > to->v[to->n - 1])) {
                to->v[to->n] = (int)size;
                continue;
            }
            char at[JSON_POINTER_MAX], where[JSON_POINTER_MAX];
            json_pointer(at, AT "/padding/sizes", key);
            json_pointer_index(where, at, (size_t)to->n);
            return err_at(err, ERR_INVALID, where,
                          "sizes are integers from 1 to %d, each greater than "
                          "the one before",
                          LENGTH_MAX);
        }
    }
    return m.r;
}

static int read_padding(const json_t *in, const struct record_desc *record,
                        struct padding *p, struct err *err)
{
    int q = padding_init(p, record->n_dims, err);
    if (q < 0)
        return q;
    struct json_read r;
    json_read_open(&r, in, AT "/padding", err, "mode", "minimum", "sizes",
                   "count", NULL);
    const json_t *minimum = json_read_object(&r, "minimum");
    const json_t *sizes = json_read_object(&r, "sizes");
    bool ladder = json_object_size(sizes) || json_read_get(&r, "count");
    p->mode = (enum padding_mode)json_read_word(&r, "mode", padding_modes,
                                                ladder ? PADDING_LADDER
                                                : json_object_size(minimum)
                                                    ? PADDING_STABLE
                                                    : PADDING_DYNAMIC);
    p->count = (int)json_read_int(&r, "count", 1, SIZES_MAX, 0);
    if (r.r < 0)
        return r.r;
    if (ladder && p->mode != PADDING_LADDER)
        return json_read_fail(&r, p->count ? "count" : "sizes",
                              "%s belongs to the mode ladder, and the mode is "
                              "%s",
                              p->count ? "count" : "sizes",
                              padding_modes[p->mode]);
    if (p->count && sizes)
        return json_read_fail(&r, "count",
                              "the sizes are given: there is no count of them "
                              "to choose");
    if (p->mode == PADDING_LADDER && !sizes && !p->count)
        p->count = COUNT;
    q = read_minimum(minimum, record, p, err);
    return q < 0 ? q : read_sizes(sizes, record, p, err);
}

static int read_mps(const json_t *in, struct runtime_policy *p, struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, AT "/mps", err, "high_watermark_ratio",
                   "low_watermark_ratio", "no_limit", NULL);
    double high = json_read_real(&r, "high_watermark_ratio", 0, 2, -1);
    double low = json_read_real(&r, "low_watermark_ratio", 0, 2, -1);
    bool no_limit = json_read_bool(&r, "no_limit", false);
    if (r.r == 0 && high == 0 && !no_limit)
        json_read_fail(&r, "high_watermark_ratio",
                       "a high_watermark_ratio of 0 takes away the limit, "
                       "which may freeze the machine: set no_limit to true as "
                       "well if that is meant");
    if (r.r < 0)
        return r.r;
    p->mps.high_watermark_ratio = high;
    p->mps.low_watermark_ratio = low;
    p->mps.no_limit = no_limit;
    /* Whether memory is unified only the worker knows; it checks again. */
    return mps_ratios(high, low, false, AT "/mps", &high, &low, err);
}

static int read_resources(const json_t *in, struct runtime_policy *p,
                          struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, AT "/resources", err, "memory_mb", "labels", NULL);
    p->resources.memory_mb = read_threshold(&r, "memory_mb");
    const json_t *labels = json_read_object(&r, "labels");
    return r.r < 0 ? r.r
                   : json_read_labels(labels, AT "/resources/labels",
                                      &p->resources.labels, err);
}

static int read_keep_best(const json_t *in, struct runtime_policy *p,
                          struct err *err)
{
    if (!in)
        return 0;
    struct json_read r;
    json_read_open(&r, in, AT "/keep_best", err, "series", "count", "order",
                   NULL);
    json_read_need(&r, "series");
    const char *series =
        json_read_string(&r, "series", sizeof(p->keep_best.series) - 1, "");
    p->keep_best.count = (int)json_read_int(&r, "count", 1, 10000, 1);
    p->keep_best.max = json_read_word(&r, "order", orders, 0) == 1;
    if (r.r == 0)
        strcpy(p->keep_best.series, series);
    return r.r;
}

int runtime_parse(const json_t *in, const struct record_desc *record,
                  int effective_batch, struct runtime_policy *ret,
                  struct err *err)
{
    CLEANUP(runtime_release) struct runtime_policy p = {0};
    struct json_read r;
    json_read_open(&r, in, AT, err, "device", "micro_batch", "threads",
                   "checkpoint_every", "keep", "keep_best", "empty_cache_every",
                   "restart", "padding", "mps", "on_oom", "exact", "resources",
                   NULL);
    strcpy(p.device, devices[json_read_word(&r, "device", devices, 0)]);
    p.micro_batch =
        (int)json_read_int(&r, "micro_batch", 1, BATCH_MAX,
                           effective_batch < 16 ? effective_batch : 16);
    if (r.r == 0 && p.micro_batch > effective_batch)
        json_read_fail(&r, "micro_batch",
                       "micro_batch is %d, more than the effective_batch of %d",
                       p.micro_batch, effective_batch);
    p.threads = (int)json_read_int(&r, "threads", 0, 1024, 0);
    p.checkpoint_every =
        (int)json_read_int(&r, "checkpoint_every", 0, 1000000000, 1000);
    p.keep = (int)json_read_int(&r, "keep", 2, 10000, 2);
    p.empty_cache_every =
        (int)json_read_int(&r, "empty_cache_every", 0, 1000000000, -1);
    p.on_oom = (enum on_oom)json_read_word(&r, "on_oom", oom_words, OOM_FAIL);
    p.exact_require = json_read_word(&r, "exact", exact_words, 0) == 1;
    if (r.r < 0)
        return r.r;

    int q = read_restart(json_read_get(&r, "restart"), &p, err);
    if (q == 0)
        q = read_keep_best(json_read_get(&r, "keep_best"), &p, err);
    if (q == 0)
        q = read_padding(json_read_get(&r, "padding"), record, &p.padding, err);
    if (q == 0)
        q = read_mps(json_read_get(&r, "mps"), &p, err);
    if (q == 0)
        q = read_resources(json_read_get(&r, "resources"), &p, err);
    if (q < 0)
        return q;

    *ret = p;
    p = (struct runtime_policy){0};
    return 0;
}

void runtime_release(struct runtime_policy *r)
{
    if (!r)
        return;
    padding_release(&r->padding);
    json_decref(r->resources.labels);
    r->resources.labels = NULL;
}

static json_t *real_or_null(double v)
{
    return v < 0 ? json_null() : json_real(v);
}

static json_t *int_or_null(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

static json_t *keep_best_json(const struct runtime_policy *r)
{
    return r->keep_best.count
               ? json_pack("{s:s, s:i, s:s}", "series", r->keep_best.series,
                           "count", r->keep_best.count, "order",
                           orders[r->keep_best.max])
               : json_null();
}

/* The modes that were there before the ladder look as they did: fingerprints
 * hold this. */
static json_t *padding_json(const struct padding *p,
                            const struct record_desc *record)
{
    json_t *minimum = json_object(), *sizes = json_object();
    for (int i = 0; i < record->n_dims; i++) {
        if (p->minimum[i] > 0)
            json_object_set_new(minimum, record->dims[i],
                                json_integer(p->minimum[i]));
        json_t *list = p->sizes[i].n ? json_array() : NULL;
        for (int k = 0; k < p->sizes[i].n; k++)
            json_array_append_new(list, json_integer(p->sizes[i].v[k]));
        if (list)
            json_object_set_new(sizes, record->dims[i], list);
    }
    json_t *out = json_pack("{s:s, s:o}", "mode", padding_modes[p->mode],
                            "minimum", minimum);
    if (p->mode == PADDING_LADDER && p->count)
        json_object_set_new(out, "count", json_integer(p->count));
    else if (p->mode == PADDING_LADDER)
        json_object_set(out, "sizes", sizes);
    json_decref(sizes);
    return out;
}

json_t *runtime_json(const struct runtime_policy *r,
                     const struct record_desc *record)
{
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:{s:o, s:o, s:o, s:o}, "
        "s:o, s:{s:o, s:o, s:b}, s:s, s:s, s:{s:o, s:O}}",
        "device", r->device, "micro_batch", r->micro_batch, "threads",
        r->threads, "checkpoint_every", r->checkpoint_every, "keep", r->keep,
        "keep_best", keep_best_json(r), "empty_cache_every",
        int_or_null(r->empty_cache_every), "restart", "device_memory_mb",
        real_or_null(r->restart.device_memory_mb), "rss_mb",
        real_or_null(r->restart.rss_mb), "seconds",
        real_or_null(r->restart.seconds), "every_micro_batches",
        int_or_null(r->restart.every_micro_batches), "padding",
        padding_json(&r->padding, record), "mps", "high_watermark_ratio",
        real_or_null(r->mps.high_watermark_ratio), "low_watermark_ratio",
        real_or_null(r->mps.low_watermark_ratio), "no_limit", r->mps.no_limit,
        "on_oom", oom_words[r->on_oom], "exact", exact_words[r->exact_require],
        "resources", "memory_mb", real_or_null(r->resources.memory_mb),
        "labels", r->resources.labels);
}

/* RFC 7396: members of a patch replace, null removes, objects merge. */
static json_t *merge(const json_t *target, const json_t *patch)
{
    if (!json_is_object(patch))
        return json_deep_copy(patch);
    json_t *out =
        json_is_object(target) ? json_copy((json_t *)target) : json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)patch, key, value)
    {
        if (json_is_null(value))
            json_object_del(out, key);
        else
            json_object_set_new(out, key,
                                merge(json_object_get(out, key), value));
    }
    return out;
}

void runtime_make_way(json_t *runtime, const json_t *patch)
{
    json_t *now = json_object_get(runtime, "padding");
    const json_t *new = json_object_get(patch, "padding");
    const char *mode = json_string_value(json_object_get(new, "mode"));
    bool other = mode && strcmp(mode, padding_modes[PADDING_LADDER]);
    if (other || json_object_get(new, "count"))
        json_object_del(now, "sizes");
    if (other || json_object_get(new, "sizes"))
        json_object_del(now, "count");
}

int runtime_patch(const struct spec *s, const json_t *current,
                  const json_t *patch, json_t **ret_json, struct err *err)
{
    if (!json_is_object(patch))
        return err_at(err, ERR_INVALID, AT, "runtime must be an object");
    AUTO_JSON json_t *old = json_deep_copy(current);
    runtime_make_way(old, patch);
    AUTO_JSON json_t *merged = merge(old, patch);
    if (!merged)
        return err_set(err, ERR_NOMEM, "no memory for a runtime policy");
    CLEANUP(runtime_release) struct runtime_policy p = {0};
    int r =
        runtime_parse(merged, &s->record, s->training.effective_batch, &p, err);
    if (r == 0)
        r = spec_runtime_fits(s, &p, err);
    if (r < 0)
        return r;
    *ret_json = runtime_json(&p, &s->record);
    return *ret_json
               ? 0
               : err_set(err, ERR_NOMEM, "no memory for a runtime policy");
}
