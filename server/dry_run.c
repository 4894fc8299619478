#include "server/dry_run.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "schema/memory_need.h"
#include "server/job.h"
#include "server/match.h"
#include "server/sample.h"
#include "server/snapshot.h"
#include "server/worker.h"

/* ---- memory ---- */

/* A sum of n records that are drawn at random is hardly ever more than three
 * deviations above its mean. */
static double high(double sum, double squares, double records, double n)
{
    double mean = sum / records;
    double variance = squares / records - mean * mean;
    return n * mean + 3 * sqrt(variance > 0 ? variance * n : 0);
}

/* A micro-batch as large as they come: on the CPU its real rows; elsewhere all
 * records are as long as the longest is padded to. */
static struct batch_shape micro_batch(const struct spec *spec,
                                      const struct sample *s,
                                      const struct padding *p, bool packed)
{
    double n = spec->runtime.micro_batch;
    struct batch_shape b = {0};
    if (packed && s->records) {
        double more, of = (double)s->records;
        b.rows = high(s->sum.rows, s->rows_squared, of, n);
        b.pairs = high(s->sum.pairs, s->pairs_squared, of, n);
        more = b.rows / (n * s->sum.rows / of);
        b.candidates = n * s->sum.candidates / of * more;
        b.cross = n * s->sum.cross / of * more;
        return b;
    }
    AUTO_FREE int *padded =
        calloc((size_t)spec->record.n_dims + 1, sizeof(int));
    for (int d = 0; padded && d < spec->record.n_dims; d++)
        padded[d] = padding_length(p, d, s->lengths[d].max);
    if (padded)
        batch_shape_add(spec, padded, &b);
    b.rows *= n;
    b.pairs *= n;
    b.candidates *= n;
    b.cross *= n;
    return b;
}

static json_t *lengths_json(const struct spec *spec, const struct sample *s,
                            const struct padding *p)
{
    json_t *out = json_object();
    for (int d = 0; d < spec->record.n_dims; d++) {
        json_t *one = json_pack("{si si}", "longest", s->lengths[d].max,
                                "minimum", p->minimum[d]);
        json_t *sizes = p->mode == PADDING_LADDER ? json_array() : NULL;
        for (int i = 0; sizes && i < p->sizes[d].n; i++)
            json_array_append_new(sizes, json_integer(p->sizes[d].v[i]));
        if (sizes)
            json_object_set_new(one, "sizes", sizes);
        json_object_set_new(out, spec->record.dims[d], one);
    }
    return out;
}

static json_t *memory_json(const struct spec *spec, const struct sample *s,
                           const struct padding *p, const char *device,
                           struct memory_need *ret)
{
    struct batch_shape b = micro_batch(spec, s, p, !strcmp(device, "cpu"));
    memory_need(spec, &b, device, ret);
    return json_pack(
        "{ss sI sI sI sI sI sI sI sI so sI}", "device", device, "total_bytes",
        (json_int_t)ret->total, "weights_bytes", (json_int_t)ret->weights,
        "gradients_bytes", (json_int_t)ret->gradients, "optimizer_bytes",
        (json_int_t)ret->optimizer, "activations_bytes",
        (json_int_t)ret->activations, "snapshot_bytes",
        (json_int_t)ret->snapshot, "library_bytes", (json_int_t)ret->library,
        "host_bytes", (json_int_t)ret->host, "lengths",
        lengths_json(spec, s, p), "sampled_records", (json_int_t)s->records);
}

/* ---- workers ---- */

struct fits {
    const json_t *runtime;
    json_t *able, *others; /* names; {"worker", "reason"} */
    json_t *seen;          /* names that were told of */
    char device[16];       /* what the first able one would train on */
    json_t *memory;        /* {name: [host bytes, device bytes]} of the able */
};

/* The device that a policy's word means for this worker. */
static const json_t *device_of(const struct worker_claim *w, const char *wanted)
{
    size_t i;
    json_t *d;
    json_array_foreach((json_t *)w->devices, i, d)
    {
        const char *kind = json_string_value(json_object_get(d, "kind"));
        if (kind && (!strcmp(wanted, "auto") || !strcmp(wanted, kind)))
            return d;
    }
    return NULL;
}

static int judge(void *arg, const struct worker_claim *w, struct err *err)
{
    struct fits *f = arg;
    char why[300];
    if (json_object_get(f->seen, w->name))
        return 0; /* its next process is like the one before */
    json_object_set_new(f->seen, w->name, json_true());
    if (!match_worker(f->runtime, w, why, sizeof(why))) {
        json_array_append_new(
            f->others, json_pack("{ss ss}", "worker", w->name, "reason", why));
        return 0;
    }
    const json_t *d = device_of(w, policy_text(f->runtime, "device"));
    const char *kind = json_string_value(json_object_get(d, "kind"));
    json_array_append_new(f->able, json_string(w->name));
    if (!f->device[0] && kind)
        snprintf(f->device, sizeof(f->device), "%s", kind);
    json_object_set_new(
        f->memory, w->name,
        json_pack("[I, I]", (json_int_t)w->memory_bytes,
                  json_integer_value(json_object_get(d, "memory_bytes"))));
    return 0;
}

/* ---- what it comes to ---- */

static void warn(json_t *to, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void warn(json_t *to, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    json_array_append_new(to, json_string(text));
}

static void warn_of_memory(json_t *to, const struct fits *f,
                           const struct memory_need *need)
{
    bool host = !strcmp(f->device, "cpu");
    const char *name;
    json_t *pair;
    json_object_foreach(f->memory, name, pair)
    {
        int64_t has = json_integer_value(json_array_get(pair, host ? 0 : 1));
        if (has > 0 && has < need->total)
            warn(to,
                 "worker %.128s has %" PRId64
                 " MB of memory, and about %" PRId64 " will be needed",
                 name, has >> 20, need->total >> 20);
    }
}

/* How many records it will be validated with; null: not known yet. */
static json_t *validation_records(const struct spec *spec, const json_t *data,
                                  bool known)
{
    const json_t *own =
        json_object_get(json_object_get(data, "validation"), "shards");
    const char *count = own ? "records" : "held_out";
    int64_t n = 0;
    size_t i;
    json_t *shard;
    if (!known)
        return json_null();
    json_array_foreach((json_t *)(own ? own : json_object_get(data, "shards")),
                       i, shard) n +=
        json_integer_value(json_object_get(shard, count));
    int64_t most = spec->training.validation.records;
    return json_integer(n < most ? n : most);
}

int dry_run(struct store *st, const struct spec *spec, int64_t now_ms,
            json_t **ret, struct err *err)
{
    CLEANUP(snapshot_release) struct snapshot frozen = {0};
    AUTO_JSON json_t *able = json_array(), *others = json_array();
    AUTO_JSON json_t *seen = json_object(), *memory = json_object();
    AUTO_JSON json_t *warnings = json_array();
    int r = job_check(st, spec, err);
    if (r >= 0)
        r = snapshot_guess(st, spec, &frozen, err);
    if (r == ERR_IO && spec->data.root) { /* a job would wait for it */
        struct err why = *err;
        return err_set(err, ERR_BUSY, "%s", why.text);
    }
    if (r < 0)
        return r;
    bool known = r > 0;
    snapshot_place(st, frozen.data);

    CLEANUP(sample_release) struct sample s = {0};
    CLEANUP(padding_release) struct padding padding = {0};
    r = sample_read(spec, frozen.data, &s, err);
    if (r >= 0)
        r = padding_copy(&spec->runtime.padding, &padding, err);
    if (r >= 0) /* as the first freeze will, with the data of then */
        r = sample_choose(&s, spec->runtime.micro_batch, &padding, err);
    if (r < 0)
        return r;
    struct fits f = {.runtime = json_object_get(spec->resolved, "runtime"),
                     .able = able,
                     .others = others,
                     .seen = seen,
                     .memory = memory};
    r = worker_each_known(st, true, now_ms, judge, &f, err);
    if (r < 0)
        return r;
    if (!f.device[0]) {
        const char *wanted = policy_text(f.runtime, "device");
        snprintf(f.device, sizeof(f.device), "%s",
                 strcmp(wanted, "auto") ? wanted : "cpu");
    }
    struct memory_need need;
    json_t *estimate = memory_json(spec, &s, &padding, f.device, &need);
    if (s.bad)
        warn(warnings,
             "%" PRId64 " of %" PRId64 " records that were looked at do not "
             "fit the spec; the first: %s",
             s.bad, s.bad + s.records, s.first_bad);
    warn_of_memory(warnings, &f, &need);
    if (!known)
        warn(warnings, "some of the data is yet to be read: its records are "
                       "counted when it is frozen for a cycle");
    if (!json_array_size(able) && json_array_size(others))
        warn(warnings, "none of the workers there can train it");
    else if (!json_array_size(able))
        warn(warnings, "no worker is there");
    /* what has to be read first is not known before */
    *ret = json_pack(
        "{sO ss sI so so so ss? so sO sO sO}", "spec", spec->resolved,
        "signature", spec->signature, "parameters", spec_parameters(spec),
        "records", known ? json_integer(frozen.records) : json_null(),
        "validation_records", validation_records(spec, frozen.data, known),
        "steps", known ? json_integer(frozen.steps) : json_null(),
        "data_digest", known ? frozen.digest : NULL, "memory", estimate,
        "workers", able, "others", others, "warnings", warnings);
    return *ret ? 0 : err_set(err, ERR_NOMEM, "no memory for a dry run");
}
