#include "server/inspect.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/line_index.h"
#include "schema/spec.h"
#include "server/census.h"
#include "server/duplicates.h"
#include "server/shard_text.h"
#include "server/survey.h"
#include "server/when.h"

#define COUNTED_AS 1   /* goes up when the same records get another census */
#define MICRO_BATCH 16 /* of a job that does not say */
#define PIECE ((size_t)256 * 1024)

void inspect_free(struct inspect *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n; i++) {
        free(x->v[i].name);
        free(x->v[i].path);
        free(x->v[i].index);
    }
    free(x->v);
    free(x->dir);
    free(x->name);
    record_desc_release(&x->desc);
    free(x);
}

static void inspect_ptr(struct inspect **x)
{
    inspect_free(*x);
}

/* ---- what there is ---- */

static int by_dataset(struct store *st, struct inspect *x, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_INSPECT_DATASET);
    stmt_text(&q, ":name", x->name);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no dataset '%s'", x->name);
    x->dataset = col_int(&q, 0);
    x->policy_tolerance = col_real(&q, 2);
    x->micro_batch = MICRO_BATCH;
    if (col_null(&q, 1))
        return 0;
    AUTO_JSON json_t *record = col_json(&q, 1);
    r = record_desc_parse(record, "/record", &x->desc, err);
    if (r >= 0)
        x->described_by = "dataset";
    return r;
}

static int by_job(struct store *st, struct inspect *x, int64_t job,
                  struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_INSPECT_JOB);
    stmt_int(&q, ":id", job);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_at(err, ERR_INVALID, "job", "there is no job %" PRId64, job);
    AUTO_JSON json_t *in = col_json(&q, 0);
    AUTO_JSON json_t *policy = col_json(&q, 1);
    CLEANUP(spec_release) struct spec spec = {0};
    CLEANUP(runtime_release) struct runtime_policy runtime = {0};
    r = spec_parse(in, &spec, err);
    if (r >= 0)
        r = runtime_parse(policy, &spec.record, spec.training.effective_batch,
                          &runtime, err);
    if (r < 0)
        return r;
    record_desc_release(&x->desc);
    x->desc = spec.record;
    spec.record = (struct record_desc){0};
    x->described_by = "job";
    x->policy_tolerance = spec.data.policy_tolerance;
    x->micro_batch = runtime.micro_batch;
    return 0;
}

static int add_shard(struct inspect *x, const struct stmt *q, struct err *err)
{
    struct inspect_shard *more =
        realloc(x->v, (size_t)(x->n + 1) * sizeof(*more));
    if (!more)
        return err_set(err, ERR_NOMEM, "no memory for a list of shards");
    x->v = more;
    struct inspect_shard *s = &x->v[x->n++];
    *s = (struct inspect_shard){.bytes = col_int(q, 1),
                                .records = col_int(q, 2)};
    snprintf(s->sha256, sizeof(s->sha256), "%s", col_text(q, 3));
    snprintf(s->form, sizeof(s->form), "%s", col_text(q, 4));
    s->name = strdup(col_text(q, 0));
    if (!s->name ||
        asprintf(&s->path, "%s/datasets/%s/%s", x->dir, x->name, s->name) < 0 ||
        asprintf(&s->index, "%s/index/%s", x->dir, s->sha256) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a list of shards");
    x->bytes += s->bytes;
    x->records += s->records;
    return 0;
}

static int list_shards(struct store *st, struct inspect *x, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_INSPECT_SHARDS);
    stmt_int(&q, ":dataset", x->dataset);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        r = add_shard(x, &q, err);
        if (r < 0)
            return r;
    }
    return r;
}

static void name_it(struct inspect *x)
{
    AUTO_JSON json_t *shards = json_array();
    for (int i = 0; i < x->n; i++)
        json_array_append_new(shards,
                              json_pack("[ss]", x->v[i].name, x->v[i].sha256));
    AUTO_JSON json_t *all = json_pack(
        "{si si si sf so sO}", "counted_as", COUNTED_AS, "micro_batch",
        x->micro_batch, "max_length", x->desc.max_length, "policy_tolerance",
        x->policy_tolerance, "record",
        x->described_by ? record_desc_json(&x->desc) : json_null(), "shards",
        shards);
    digest_of_json(all, x->of);
}

int inspect_new(struct store *st, const char *dataset, int64_t job,
                struct inspect **ret, struct err *err)
{
    CLEANUP(inspect_ptr) struct inspect *x = calloc(1, sizeof(*x));
    if (!x)
        return err_set(err, ERR_NOMEM, "no memory to look at a dataset");
    x->dir = strdup(store_dir(st));
    x->name = strdup(dataset);
    if (!x->dir || !x->name)
        return err_set(err, ERR_NOMEM, "no memory to look at a dataset");
    int r = by_dataset(st, x, err);
    if (r >= 0 && job)
        r = by_job(st, x, job, err);
    if (r >= 0)
        r = list_shards(st, x, err);
    if (r < 0)
        return r;
    name_it(x);
    *ret = x;
    x = NULL;
    return 0;
}

/* ---- kept ---- */

int inspect_kept(struct store *st, const struct inspect *x, json_t **ret,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CENSUS_FIND);
    stmt_int(&q, ":dataset", x->dataset);
    stmt_text(&q, ":of", x->of);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    *ret = col_json(&q, 0);
    json_object_set_new(*ret, "counted_at", when_json(col_int(&q, 1)));
    return 1;
}

int inspect_keep(struct store *st, const struct inspect *x,
                 const json_t *census, int64_t now_ms, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CENSUS_KEEP);
        stmt_int(&q, ":dataset", x->dataset);
        stmt_text(&q, ":of", x->of);
        stmt_json(&q, ":result", census);
        stmt_int(&q, ":now", now_ms);
        r = (int)stmt_run(&q, err);
    }
    if (r >= 0) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CENSUS_TRIM);
        stmt_int(&q, ":dataset", x->dataset);
        r = (int)stmt_run(&q, err);
    }
    return r < 0 ? r : txn_commit(&txn, err);
}

/* ---- the count ---- */

struct count {
    const struct inspect *x;
    struct census *census;
    inspect_step_fn *step;
    void *arg;
    int64_t before, done, all; /* bytes: of what came before, of this */
    char *piece;
};

static void count_release(struct count *c)
{
    census_free(c->census);
    free(c->piece);
}

static int count_new(struct count *c, struct err *err)
{
    c->piece = malloc(PIECE);
    if (!c->piece)
        return err_set(err, ERR_NOMEM, "no memory to look at a dataset");
    return census_new(c->x->described_by ? &c->x->desc : NULL,
                      c->x->policy_tolerance, &c->census, err);
}

static int step(struct count *c, struct err *err)
{
    if (c->step && !c->step(c->arg, c->before + c->done, c->all))
        return err_set(err, ERR_BUSY, "the count was stopped");
    return 0;
}

/* The first `bytes` of a shard's text. */
static int count_shard(struct count *c, const struct inspect_shard *s,
                       int64_t bytes, struct err *err)
{
    struct shard_text *t = NULL;
    int r = shard_text_open(s->path, s->form, s->bytes, &t, err);
    if (r >= 0)
        r = census_begin(c->census, s->name, err);
    for (int64_t at = 0; r >= 0 && at < bytes;) {
        size_t want =
            bytes - at < (int64_t)PIECE ? (size_t)(bytes - at) : PIECE;
        int64_t n = shard_text_read(t, at, c->piece, want, err);
        if (n <= 0) {
            r = n < 0 ? (int)n
                      : err_set(err, ERR_CORRUPT, "shard %s is cut", s->name);
            break;
        }
        at += n;
        c->done += n;
        r = census_add(c->census, c->piece, (size_t)n, err);
        if (r >= 0)
            r = step(c, err);
    }
    if (r >= 0)
        r = census_end(c->census, bytes < s->bytes, err);
    shard_text_close(t);
    return r;
}

static int answer(const struct count *c, bool complete, json_t **ret,
                  struct err *err)
{
    const struct inspect *x = c->x;
    AUTO_JSON json_t *census = NULL;
    int r = census_json(c->census, x->micro_batch, &census, err);
    if (r < 0)
        return r;
    json_t *out = json_pack("{ss sb ss? sI sI}", "dataset", x->name, "complete",
                            complete, "described_by", x->described_by, "shards",
                            (json_int_t)x->n, "bytes", x->bytes);
    json_object_update(out, census);
    *ret = out;
    return 0;
}

/* ---- duplicates ---- */

static bool duplicates_step(void *arg, int64_t bytes)
{
    struct count *c = arg;
    c->done = bytes;
    return !c->step || c->step(c->arg, c->before + c->done, c->all);
}

static int find_duplicates(struct count *c, struct duplicates *ret,
                           struct err *err)
{
    const struct inspect *x = c->x;
    AUTO_FREE struct duplicates_shard *v =
        calloc((size_t)(x->n ? x->n : 1), sizeof(*v));
    if (!v)
        return err_set(err, ERR_NOMEM, "no memory to search for duplicates");
    for (int i = 0; i < x->n; i++)
        v[i] = (struct duplicates_shard){x->v[i].index, x->v[i].sha256,
                                         x->v[i].records};
    c->done = 0;
    int r = duplicates_find(v, x->n, duplicates_step, c, ret, err);
    c->before += c->done;
    c->done = 0;
    return r;
}

/* Their places in the order of the text, so that the census finds the line
 * numbers: those of v[i] are mark[2i] and mark[2i + 1] before sorting. */
struct marks {
    struct census_mark v[2 * DUPLICATES_SHOWN];
    int n;
};

static int by_place(const void *a, const void *b)
{
    const struct census_mark *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void marks_fill(struct marks *m, const struct duplicates *d)
{
    for (int i = 0; i < d->n; i++) {
        m->v[m->n++] =
            (struct census_mark){d->v[i].at.shard, d->v[i].at.offset, 0};
        m->v[m->n++] =
            (struct census_mark){d->v[i].first.shard, d->v[i].first.offset, 0};
    }
    qsort(m->v, (size_t)m->n, sizeof(*m->v), by_place);
}

static json_t *place_json(const struct inspect *x, const struct marks *m,
                          const struct duplicate_place *p)
{
    const struct census_mark key = {p->shard, p->offset, 0};
    const struct census_mark *found =
        bsearch(&key, m->v, (size_t)m->n, sizeof(*m->v), by_place);
    return json_pack("{ss sI sI}", "shard", x->v[p->shard].name, "line",
                     found ? found->line : 0, "offset", p->offset);
}

static json_t *duplicates_json(const struct inspect *x,
                               const struct duplicates *d,
                               const struct marks *m)
{
    json_t *first = json_array();
    for (int i = 0; i < d->n; i++) {
        json_t *one = place_json(x, m, &d->v[i].at);
        json_object_set_new(one, "same_as", place_json(x, m, &d->v[i].first));
        json_array_append_new(first, one);
    }
    return json_pack("{sI so}", "records", d->records, "first", first);
}

/* All shards, their duplicates known. */
static int count_all(struct count *c, const struct duplicates *d, json_t **ret,
                     struct err *err)
{
    const struct inspect *x = c->x;
    struct marks marks = {0};
    marks_fill(&marks, d);
    census_mark(c->census, marks.v, marks.n);
    int r = 0;
    for (int i = 0; r >= 0 && i < x->n; i++)
        r = count_shard(c, &x->v[i], x->v[i].bytes, err);
    if (r >= 0)
        r = answer(c, true, ret, err);
    if (r < 0)
        return r;
    json_object_set_new(*ret, "duplicates", duplicates_json(x, d, &marks));
    return 0;
}

/* ---- an index that is missing ---- */

static int index_check(const struct inspect_shard *s, struct err *err)
{
    uint8_t sha256[DIGEST_BYTES];
    CLEANUP(line_index_close) struct line_index index = {0};
    if (digest_parse(s->sha256, sha256) < 0)
        return err_set(err, ERR_CORRUPT, "shard %s has no digest", s->name);
    int r = line_index_open(s->index, sha256, s->records, &index, err);
    return r < 0 ? r : line_index_check(&index, 0, index.n, NULL, err);
}

static bool index_stop(void *arg)
{
    struct count *c = arg;
    return c->step && !c->step(c->arg, c->before, c->all);
}

static int index_all(struct count *c, struct err *err)
{
    for (int i = 0; i < c->x->n; i++) {
        const struct inspect_shard *s = &c->x->v[i];
        struct err why = {0};
        int r = index_check(s, &why);
        if (r == ERR_NOT_FOUND || r == ERR_CORRUPT)
            r = survey_index(c->x->dir, s->path, s->form, s->bytes, s->sha256,
                             index_stop, c, &why);
        if (r < 0) {
            *err = why;
            return r;
        }
    }
    return 0;
}

/* ---- a look ---- */

int inspect_whole(const struct inspect *x, inspect_step_fn *fn, void *arg,
                  json_t **ret, struct err *err)
{
    CLEANUP(count_release)
    struct count c = {.x = x,
                      .step = fn,
                      .arg = arg,
                      .all = x->bytes + duplicates_bytes(x->records)};
    struct duplicates d;
    int r = count_new(&c, err);
    if (r >= 0)
        r = index_all(&c, err);
    if (r >= 0)
        r = find_duplicates(&c, &d, err);
    return r < 0 ? r : count_all(&c, &d, ret, err);
}

int inspect_sample(const struct inspect *x, json_t **ret, struct err *err)
{
    CLEANUP(count_release) struct count c = {.x = x};
    struct duplicates d;
    int r = count_new(&c, err);
    if (r < 0)
        return r;
    /* with an index each, a few records need no sample */
    if (x->bytes <= INSPECT_SAMPLE_BYTES &&
        find_duplicates(&c, &d, &(struct err){0}) >= 0)
        return count_all(&c, &d, ret, err);

    int n = x->n < INSPECT_SAMPLE_SHARDS ? x->n : INSPECT_SAMPLE_SHARDS;
    int64_t bytes = 0;
    for (int i = 0; r >= 0 && i < n; i++) {
        int at = n < 2 ? 0 : (int)((int64_t)i * (x->n - 1) / (n - 1));
        int64_t some = INSPECT_SAMPLE_BYTES / n;
        if (some > x->v[at].bytes)
            some = x->v[at].bytes;
        bytes += some;
        r = count_shard(&c, &x->v[at], some, err);
    }
    if (r >= 0)
        r = answer(&c, false, ret, err);
    if (r < 0)
        return r;
    json_object_set_new(*ret, "duplicates", json_null());
    json_object_set_new(*ret, "sampled",
                        json_pack("{si sI s{si sI sI}}", "shards", n, "bytes",
                                  bytes, "of", "shards", x->n, "bytes",
                                  x->bytes, "records", x->records));
    return 0;
}
