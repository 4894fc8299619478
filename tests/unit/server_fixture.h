/* server_fixture.h - a state folder of its own, a worker that only talks, and
 * time as an argument. */
#pragma once
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/spec.h"
#include "schema/state.h"
#include "server/checkpoint.h"
#include "server/chunk.h"
#include "server/cycle.h"
#include "server/dataset.h"
#include "server/event.h"
#include "server/job.h"
#include "server/lease.h"
#include "server/memory.h"
#include "server/metric.h"
#include "server/retention.h"
#include "server/upload.h"

struct world {
    char dir[64];
    struct store *st, *chunks;
    int64_t now, mono; /* ms */
    struct err err;
};

#define must(call)                                                             \
    do {                                                                       \
        if ((call) < 0)                                                        \
            fail_msg("%s: %s (%s)", #call, w->err.text, w->err.pointer);       \
    } while (0)

static inline int unlink_one(const char *path, const struct stat *sb, int type,
                             struct FTW *ftw)
{
    return remove(path);
}

static inline void world_open(struct world *w)
{
    must(store_open(w->dir, false, &w->st, &w->err));
    must(store_open(w->dir, true, &w->chunks, &w->err));
}

static inline void world_close(struct world *w)
{
    store_close(w->st);
    store_close(w->chunks);
    w->st = w->chunks = NULL;
}

static inline int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    strcpy(w->dir, "/tmp/pawl-unit-XXXXXX");
    if (!mkdtemp(w->dir))
        return -1;
    char sets[96];
    snprintf(sets, sizeof(sets), "%s/datasets", w->dir);
    mkdir(sets, 0700);
    w->now = 1700000000000;
    w->mono = 5000000;
    world_open(w);
    *state = w;
    return 0;
}

static inline int teardown(void **state)
{
    struct world *w = *state;
    world_close(w);
    nftw(w->dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
    free(w);
    return 0;
}

static inline json_t *json_of(const char *text)
{
    struct err err;
    json_t *v = NULL;
    if (json_parse_strict(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return v;
}

static inline json_t *json_fmt(const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return json_of(text);
}

static inline int64_t int_of(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static inline const char *str_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

/* ---- data and jobs ---- */

static inline int try_shard(struct world *w, const char *set, const char *shard,
                            const char *text)
{
    struct upload *u = NULL;
    bool made;
    AUTO_JSON json_t *out = NULL;
    struct upload_plan plan = {.shard = shard};
    must(dataset_rules(w->st, set, &plan.rules, &w->err));
    must(upload_new(w->dir, &plan, &u, &w->err));
    int r = upload_add(u, text, strlen(text), &w->err);
    if (r >= 0)
        r = upload_end(u, &w->err);
    if (r >= 0)
        r = dataset_put(w->st, set, shard, u, false, w->now, &made, &out,
                        &w->err);
    if (r >= 0)
        upload_settle(u);
    upload_free(u);
    return r < 0 ? r : made;
}

/* 24 records: with effective batches of 4, 6 steps. */
static inline void put_records(struct world *w)
{
    CLEANUP(buf_release) struct buf b = {0};
    for (int i = 0; i < 24; i++)
        buf_addf(&b, "{\"x\":[%d],\"v\":0.5}\n", i % 8);
    must(try_shard(w, "set", "a.jsonl", b.data));
}

static inline json_t *spec_json(const char *more)
{
    json_t *spec = json_of(
        "{\"name\": \"tiny\", \"kind\": \"train\", \"model\": {\"type\":"
        " \"policy_value_transformer\", \"d_model\": 8, \"layers\": 1,"
        " \"heads\": 2, \"ff\": 16, \"dropout\": 0.1}, \"record\": {\"x\":"
        " {\"kind\": \"tokens\", \"dim\": \"X\", \"vocab\": 8}, \"v\":"
        " {\"kind\": \"target\", \"loss\": \"mse\"}}, \"data\": {\"dataset\":"
        " \"set\"}, \"training\": {\"effective_batch\": 4, \"optimizer\":"
        " {\"type\": \"adamw\", \"lr\": 0.001}}, \"runtime\": {\"device\":"
        " \"cpu\", \"micro_batch\": 2, \"threads\": 1}}");
    if (more) {
        AUTO_JSON json_t *m = json_of(more);
        json_object_update(spec, m);
    }
    return spec;
}

static inline int try_submit(struct world *w, const char *more, int64_t *ret)
{
    AUTO_JSON json_t *in = spec_json(more);
    CLEANUP(spec_release) struct spec spec = {0};
    int r = spec_parse(in, &spec, &w->err);
    return r < 0 ? r : job_submit(w->st, &spec, w->now, ret, &w->err);
}

static inline int64_t submit(struct world *w, const char *more)
{
    int64_t id = 0;
    must(try_submit(w, more, &id));
    return id;
}

static inline json_t *job(struct world *w, int64_t id)
{
    json_t *j = NULL;
    must(job_get(w->st, id, true, &j, &w->err));
    return j;
}

static inline void expect_job(struct world *w, int64_t id, const char *state,
                              const char *reason_has)
{
    AUTO_JSON json_t *j = job(w, id);
    if (strcmp(str_of(j, "state"), state) ||
        (reason_has && !strstr(str_of(j, "reason"), reason_has)))
        fail_msg("job %" PRId64 " is %s: %s", id, str_of(j, "state"),
                 str_of(j, "reason"));
}

static inline int64_t job_step(struct world *w, int64_t id)
{
    AUTO_JSON json_t *j = job(w, id);
    return int_of(json_object_get(j, "progress"), "step");
}

static inline int events(struct world *w, int64_t id, const char *kind,
                         const char *cause_has)
{
    AUTO_JSON json_t *page = NULL;
    int n = 0;
    must(event_list(w->st, id, 0, 1000, &page, &w->err));
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(page, "items"), i, e)
    {
        n += !strcmp(str_of(e, "kind"), kind) &&
             (!cause_has || strstr(str_of(e, "cause"), cause_has));
    }
    return n;
}

/* ---- a worker ---- */

struct worker {
    const char *name;
    const char *library; /* JSON, or NULL */
    int64_t pid;
    json_t *claim; /* the answer */
    int64_t id, token, job, step;
    char digest[DIGEST_HEX]; /* of its newest checkpoint */
    int seq, claims;
    const char *offer; /* JSON members instead of its devices, or NULL */
};

static inline void worker_drop(struct worker *k)
{
    json_decref(k->claim);
    k->claim = NULL;
}

/* Asks for work under the same claim id unless `again`: 1, 0 or < 0. */
static inline int worker_claims(struct world *w, struct worker *k)
{
    char uuid[64];
    struct worker_claim in = {0};
    snprintf(uuid, sizeof(uuid), "%s-%d", k->name, k->claims);
    AUTO_JSON json_t *body = json_fmt(
        "{\"worker\": {\"name\": \"%s\", \"host\": \"h\", \"pid\": %d,"
        " \"started\": %d, \"boot\": \"b\", \"local\": true, %s,"
        " \"cpus\": 3, \"version\": \"1\", \"library\": %s},"
        " \"claim\": \"%s\"}",
        k->name, (int)(k->pid ? k->pid : 100), k->claims,
        k->offer ? k->offer : "\"devices\": [{\"kind\": \"cpu\"}]",
        k->library ? k->library : "{\"libtorch\": \"1\"}", uuid);
    must(worker_claim_parse(body, &in, &w->err));
    json_t *a = NULL;
    int r = lease_claim(w->st, &in, w->now, w->mono, &a, &w->err);
    if (r <= 0)
        return r;
    worker_drop(k);
    k->claim = a;
    const json_t *l = json_object_get(a, "lease");
    k->id = int_of(l, "id");
    k->token = int_of(l, "token");
    k->job = int_of(l, "job");
    const json_t *from = json_object_get(a, "checkpoint");
    k->step = int_of(json_object_get(from, "manifest"), "step");
    if (!from)
        from = json_object_get(a, "initial");
    snprintf(k->digest, sizeof(k->digest), "%s", str_of(from, "digest"));
    k->seq = 0;
    return 1;
}

/* A new process of that name asks. */
static inline int claims(struct world *w, struct worker *k)
{
    k->claims++;
    return worker_claims(w, k);
}

static inline int beats(struct world *w, struct worker *k, const char *more,
                        json_t **ret)
{
    struct report in;
    int64_t token;
    AUTO_JSON json_t *body = json_fmt(
        "{\"token\": %d, \"stage\": \"train\", \"seq\": %d, \"position\":"
        " {\"step\": %d, \"records\": %d}%s%s}",
        (int)k->token, ++k->seq, (int)k->step, (int)k->step * 4,
        more ? ", " : "", more ? more : "");
    must(report_parse(body, &token, &in, &w->err));
    json_t *a = NULL;
    int r = lease_heartbeat(w->st, k->id, token, &in, false, w->now, w->mono,
                            &a, &w->err);
    if (ret && r >= 0)
        *ret = a;
    else
        json_decref(a);
    return r;
}

/* A state of one tensor whose value is `value`. */
static inline json_t *manifest_at(struct world *w, struct worker *k,
                                  float value)
{
    uint8_t sum[DIGEST_BYTES];
    char chunk[DIGEST_HEX], model[DIGEST_HEX];
    digest_of(&value, sizeof(value), sum);
    digest_hex(sum, chunk);
    must(chunk_put(w->chunks, k->id, chunk, &value, sizeof(value), &w->err));
    json_t *m = json_pack(
        "{ss si sI sI si sI sO sO s{} s{} s[{ss ss s[i] si si}] si s[s]}",
        "format", "pawl-state", "version", 1, "cycle",
        int_of(json_object_get(k->claim, "lease"), "cycle"), "step", k->step,
        "epoch", 0, "records", k->step * 4, "signature",
        json_object_get(k->claim, "signature"), "fingerprint",
        json_object_get(k->claim, "fingerprint"), "feed", "totals", "tensors",
        "name", "model.w", "dtype", "F32", "shape", 1, "begin", 0, "end", 4,
        "bytes", 4, "chunks", chunk);
    json_object_set_new(m, "previous",
                        k->digest[0] ? json_string(k->digest) : json_null());
    CLEANUP(buf_release) struct buf file = {0};
    int64_t payload;
    must(state_model_header(m, json_object_get(k->claim, "spec"), &file,
                            &payload, &w->err));
    buf_add(&file, &value, sizeof(value));
    digest_of(file.data, file.len, sum);
    digest_hex(sum, model);
    json_object_set_new(m, "model_bytes", json_integer((json_int_t)file.len));
    json_object_set_new(m, "model_sha256", json_string(model));
    return m;
}

/* Post the checkpoint, with `release` (JSON) or NULL. */
static inline int posts(struct world *w, struct worker *k, const json_t *m,
                        const char *release, int64_t *ret_id)
{
    struct checkpoint_in in;
    struct release out = {0};
    AUTO_JSON json_t *body = release ? json_of(release) : NULL;
    if (body)
        must(release_parse(body, "/release", NULL, &out, &w->err));
    int r = checkpoint_prepare(w->st, w->chunks, k->id, k->token, m,
                               body && out.outcome == OUTCOME_FINISHED, &in,
                               &w->err);
    AUTO_JSON json_t *a = NULL;
    if (r >= 0)
        r = lease_checkpoint(w->st, k->id, k->token, &in, body ? &out : NULL,
                             w->now, w->mono, &a, &w->err);
    if (r < 0)
        return r;
    snprintf(k->digest, sizeof(k->digest), "%s", str_of(a, "digest"));
    if (ret_id)
        *ret_id = int_of(a, "id");
    return 0;
}

static inline int saves(struct world *w, struct worker *k, int64_t step,
                        const char *release, int64_t *ret_id)
{
    k->step = step;
    AUTO_JSON json_t *m = manifest_at(w, k, (float)step);
    return posts(w, k, m, release, ret_id);
}

static inline int releases(struct world *w, struct worker *k, const char *text)
{
    struct release in;
    int64_t token;
    AUTO_JSON json_t *body = json_of(text);
    json_object_set_new(body, "token", json_integer(k->token));
    must(release_parse(body, "", &token, &in, &w->err));
    AUTO_JSON json_t *a = NULL;
    return lease_release(w->st, k->id, token, &in, w->now, w->mono, &a,
                         &w->err);
}

/* Let go of what need not stay: the count. */
static inline int prunes(struct world *w)
{
    int64_t after = 0;
    return retention_prune(w->st, &after, w->now, &w->err);
}

#define YIELD_STEPS "{\"outcome\": \"yielded\", \"reason\": \"steps\"}"
#define FINISHED "{\"outcome\": \"finished\"}"
#define FAILED(code, final)                                                    \
    "{\"outcome\": \"failed\", \"error\": {\"code\": \"" code                  \
    "\", \"detail\": \"it broke\", \"final\": " final "}}"

/* All that a refused call could have changed: pawl.db as text. */
static inline char *dump(struct world *w)
{
    char cmd[160];
    CLEANUP(buf_release) struct buf b = {0};
    snprintf(cmd, sizeof(cmd), "sqlite3 %s/pawl.db .dump", w->dir);
    FILE *f = popen(cmd, "r");
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        buf_add(&b, part, n);
    assert_int_equal(pclose(f), 0);
    assert_true(b.len > 1000);
    char *s = b.data;
    b = (struct buf){0};
    return s;
}
