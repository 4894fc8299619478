#include "server/dry_run.h"
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schema/json_read.h"
#include "schema/memory_need.h"
#include "schema/record.h"
#include "server/dataset.h"
#include "server/job.h"
#include "server/match.h"
#include "server/worker.h"

/* ---- a look at the data ---- */

#define SHARDS_READ 8
#define BYTES_READ ((size_t)256 << 10) /* of each: its beginning */

struct sample {
    int64_t records, bad;
    int *longest;                 /* per dimension */
    struct batch_shape sum, most; /* of the records, one by one */
    double rows_squared, pairs_squared;
    char first_bad[600];
};

static void count_record(const struct spec *spec, const int *lengths,
                         struct sample *s)
{
    struct batch_shape one = {0};
    batch_shape_add(spec, lengths, &one);
    s->records++;
    s->sum.rows += one.rows;
    s->sum.pairs += one.pairs;
    s->sum.candidates += one.candidates;
    s->sum.cross += one.cross;
    s->rows_squared += one.rows * one.rows;
    s->pairs_squared += one.pairs * one.pairs;
    for (int d = 0; d < spec->record.n_dims; d++)
        if (lengths[d] > s->longest[d])
            s->longest[d] = lengths[d];
}

/* The whole lines of `text`, and its last one if the shard ends with it. */
static void count_lines(const struct spec *spec, struct record_decoder *decoder,
                        const char *shard, const char *text, size_t len,
                        bool whole, struct sample *s)
{
    int64_t number = 0;
    for (size_t at = 0; at < len; number++) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        size_t n = end ? (size_t)(end - line) : len - at;
        at += n + 1;
        if ((!end && !whole) || strspn(line, " \t\r") >= n)
            continue; /* cut, or blank */
        const struct record *r;
        struct err err = {0};
        if (record_decode(decoder, line, n, &r, &err) >= 0) {
            count_record(spec, r->lengths, s);
            continue;
        }
        if (!s->bad++)
            snprintf(s->first_bad, sizeof(s->first_bad),
                     "shard %.128s, line %" PRId64 "%s%s: %.300s", shard,
                     number + 1, err.field[0] ? ", field " : "", err.field,
                     err.text);
    }
}

static void read_shard(const struct spec *spec, struct record_decoder *decoder,
                       const json_t *shard, struct sample *s)
{
    const char *path = json_string_value(json_object_get(shard, "path"));
    const char *name = json_string_value(json_object_get(shard, "name"));
    int64_t bytes = json_integer_value(json_object_get(shard, "bytes"));
    size_t want = bytes < (int64_t)BYTES_READ ? (size_t)bytes : BYTES_READ;
    AUTO_FREE char *text = malloc(want + 1);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = text && fd >= 0 ? pread(fd, text, want, 0) : -1;
    if (n <= 0)
        return; /* the worker will say so, naming it */
    text[n] = 0;
    count_lines(spec, decoder, name, text, (size_t)n, n == bytes, s);
}

static int sample(const struct spec *spec, const json_t *shards,
                  struct sample *s, struct err *err)
{
    struct record_decoder *decoder = NULL;
    int r = record_decoder_new(&spec->record, spec->data.policy_tolerance,
                               &decoder, err);
    if (r < 0)
        return r;
    size_t n = json_array_size(shards);
    size_t read = n < SHARDS_READ ? n : SHARDS_READ;
    for (size_t i = 0; i < read; i++)
        read_shard(spec, decoder, json_array_get(shards, i * n / read), s);
    record_decoder_free(decoder);
    return 0;
}

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
 * records are as long as the longest, or as the padding's minimum. */
static struct batch_shape micro_batch(const struct spec *spec,
                                      const struct sample *s, bool packed)
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
    for (int d = 0; padded && d < spec->record.n_dims; d++) {
        int least = spec->runtime.padding.minimum[d];
        padded[d] = s->longest[d] > least ? s->longest[d] : least;
    }
    if (padded)
        batch_shape_add(spec, padded, &b);
    b.rows *= n;
    b.pairs *= n;
    b.candidates *= n;
    b.cross *= n;
    return b;
}

static json_t *memory_json(const struct spec *spec, const struct sample *s,
                           const char *device, struct memory_need *ret)
{
    struct batch_shape b = micro_batch(spec, s, !strcmp(device, "cpu"));
    memory_need(spec, &b, device, ret);
    json_t *lengths = json_object();
    for (int d = 0; d < spec->record.n_dims; d++)
        json_object_set_new(lengths, spec->record.dims[d],
                            json_pack("{si si}", "longest", s->longest[d],
                                      "minimum",
                                      spec->runtime.padding.minimum[d]));
    return json_pack(
        "{ss sI sI sI sI sI sI sI sI so sI}", "device", device, "total_bytes",
        (json_int_t)ret->total, "weights_bytes", (json_int_t)ret->weights,
        "gradients_bytes", (json_int_t)ret->gradients, "optimizer_bytes",
        (json_int_t)ret->optimizer, "activations_bytes",
        (json_int_t)ret->activations, "snapshot_bytes",
        (json_int_t)ret->snapshot, "library_bytes", (json_int_t)ret->library,
        "host_bytes", (json_int_t)ret->host, "lengths", lengths,
        "sampled_records", (json_int_t)s->records);
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

int dry_run(struct store *st, const struct spec *spec, int64_t now_ms,
            json_t **ret, struct err *err)
{
    AUTO_JSON json_t *data = NULL, *able = json_array(), *others = json_array();
    AUTO_JSON json_t *seen = json_object(), *memory = json_object();
    AUTO_JSON json_t *warnings = json_array();
    char digest[DIGEST_HEX];
    int64_t records = 0;
    int r = job_check(st, spec, err);
    if (r >= 0)
        r = dataset_snapshot(st, &spec->data, &data, digest, &records, err);
    if (r < 0)
        return r;
    dataset_snapshot_place(st, data);

    AUTO_FREE int *longest =
        calloc((size_t)spec->record.n_dims + 1, sizeof(int));
    struct sample s = {.longest = longest};
    if (!longest)
        return err_set(err, ERR_NOMEM, "no memory for a dry run");
    r = sample(spec, json_object_get(data, "shards"), &s, err);
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
    json_t *estimate = memory_json(spec, &s, f.device, &need);
    if (s.bad)
        warn(warnings,
             "%" PRId64 " of %" PRId64 " records that were looked at do not "
             "fit the spec; the first: %s",
             s.bad, s.bad + s.records, s.first_bad);
    warn_of_memory(warnings, &f, &need);
    if (!json_array_size(able) && json_array_size(others))
        warn(warnings, "none of the workers there can train it");
    *ret = json_pack("{sO ss sI sI sI ss so sO sO sO}", "spec", spec->resolved,
                     "signature", spec->signature, "parameters",
                     spec_parameters(spec), "records", records, "steps",
                     spec_steps(spec, records), "data_digest", digest, "memory",
                     estimate, "workers", able, "others", others, "warnings",
                     warnings);
    return *ret ? 0 : err_set(err, ERR_NOMEM, "no memory for a dry run");
}
