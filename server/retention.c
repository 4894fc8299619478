#include "server/retention.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "server/checkpoint.h"
#include "server/event.h"

#define PRUNE_JOBS 32 /* looked at in one call */
#define PRUNE_CHECKPOINTS                                                      \
    64 /* let go in one call: of each up to thousands of
                              * rows that name its chunks */
#define STEPS_NAMED 8

static const char *const words[] = {"latest", "best",  "unjudged", "model",
                                    "pinned", "lease", "evidence"};
#define WORDS (sizeof(words) / sizeof(*words))

/* ---- the plan ---- */

struct policy {
    int64_t keep, best;
    char series[80];
    bool max;
};

/* 1, or 0: there is no such job. */
static int read_policy(struct store *st, int64_t job, struct policy *ret,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_RETENTION_JOB);
    stmt_int(&q, ":job", job);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    AUTO_JSON json_t *runtime = col_json(&q, 0);
    const json_t *best = json_object_get(runtime, "keep_best");
    const char *series = json_string_value(json_object_get(best, "series"));
    const char *order = json_string_value(json_object_get(best, "order"));
    *ret = (struct policy){
        .keep = json_integer_value(json_object_get(runtime, "keep")),
        .best = json_integer_value(json_object_get(best, "count")),
        .max = order && !strcmp(order, "max"),
    };
    snprintf(ret->series, sizeof(ret->series), "%s", series ? series : "");
    if (ret->keep < 2)
        ret->keep = 2;
    return 1;
}

static int add(struct retention *p, const struct kept *k, struct err *err)
{
    if (p->n % 64 == 0) {
        struct kept *more = realloc(p->all, (p->n + 64) * sizeof(*more));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for checkpoints");
        p->all = more;
    }
    p->all[p->n++] = *k;
    return 0;
}

static int read_all(struct store *st, int64_t job, const struct policy *policy,
                    struct retention *p, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_RETENTION_LIST);
    stmt_int(&q, ":job", job);
    stmt_text(&q, ":series", policy->best ? policy->series : NULL);
    int64_t good = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        struct kept k = {
            .id = col_int(&q, 0),
            .step = col_int(&q, 1),
            .cycle = col_int(&q, 2),
            .good = col_int(&q, 3),
            .cycle_done = col_int(&q, 5),
            .value = col_null(&q, 9) ? NAN : col_real(&q, 9),
        };
        good += k.good;
        k.why = (k.good && good <= policy->keep ? KEPT_LATEST : 0) |
                (k.good ? 0 : KEPT_EVIDENCE) |
                (col_int(&q, 4) ? KEPT_PINNED : 0) |
                (col_int(&q, 6) ? KEPT_MODEL : 0) |
                (col_null(&q, 7) ? 0 : KEPT_LEASE) |
                (k.good && policy->best && col_int(&q, 8) ? KEPT_UNJUDGED : 0);
        r = add(p, &k, err);
        if (r < 0)
            return r;
    }
    return r;
}

struct rank {
    double value; /* least first */
    struct kept *k;
};

/* Of equals the newer one, which was trained on for longer. */
static int by_rank(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->k->id > y->k->id ? -1 : x->k->id < y->k->id;
}

static int mark_best(struct retention *p, const struct policy *policy,
                     struct err *err)
{
    if (!policy->best || !p->n)
        return 0;
    AUTO_FREE struct rank *ranks = malloc(p->n * sizeof(*ranks));
    if (!ranks)
        return err_set(err, ERR_NOMEM, "no memory for checkpoints");
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        struct kept *k = &p->all[i];
        if (k->good && !isnan(k->value) && !(k->why & KEPT_UNJUDGED))
            ranks[n++] = (struct rank){policy->max ? -k->value : k->value, k};
    }
    qsort(ranks, n, sizeof(*ranks), by_rank);
    for (size_t i = 0; i < n && i < (size_t)policy->best; i++)
        ranks[i].k->why |= KEPT_BEST;
    return 0;
}

int retention_plan(struct store *st, int64_t job, struct retention *ret,
                   struct err *err)
{
    CLEANUP(retention_release) struct retention p = {0};
    struct policy policy;
    int r = read_policy(st, job, &policy, err);
    if (r > 0)
        r = read_all(st, job, &policy, &p, err);
    if (r >= 0)
        r = mark_best(&p, &policy, err);
    if (r < 0)
        return r;
    int n = snprintf(p.kept_in_words, sizeof(p.kept_in_words),
                     "the newest %" PRId64, policy.keep);
    if (policy.best)
        snprintf(p.kept_in_words + n, sizeof(p.kept_in_words) - (size_t)n,
                 " and the %s %" PRId64 " by %s",
                 policy.max ? "greatest" : "least", policy.best, policy.series);
    *ret = p;
    p = (struct retention){0};
    return 0;
}

void retention_release(struct retention *p)
{
    free(p->all);
    p->all = NULL;
    p->n = 0;
}

static int by_id_down(const void *key, const void *element)
{
    int64_t id = *(const int64_t *)key;
    int64_t other = ((const struct kept *)element)->id;
    return id > other ? -1 : id < other;
}

static const struct kept *find(const struct retention *p, int64_t id)
{
    return p->n ? bsearch(&id, p->all, p->n, sizeof(*p->all), by_id_down)
                : NULL;
}

json_t *retention_words(const struct retention *p, int64_t id)
{
    const struct kept *k = find(p, id);
    json_t *out = json_array();
    for (size_t i = 0; k && i < WORDS; i++)
        if (k->why >> i & 1)
            json_array_append_new(out, json_string(words[i]));
    return out;
}

/* ---- letting go ---- */

static int drop(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_DROP);
    stmt_int(&q, ":id", id);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int unmark(struct store *st, int64_t job, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_PRUNABLE_DROP);
    stmt_int(&q, ":job", job);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* "steps 2, 4 and 6" */
static void name_steps(struct buf *out, const int64_t *steps, int n)
{
    buf_addf(out, n == 1 ? "step " : "steps ");
    int named = n <= STEPS_NAMED ? n : STEPS_NAMED - 1;
    for (int i = 0; i < named; i++)
        buf_addf(out, "%s%" PRId64,
                 i == 0       ? ""
                 : i == n - 1 ? " and "
                              : ", ",
                 steps[i]);
    if (named < n)
        buf_addf(out, " and %d more", n - named);
}

/* One event for all of them: what stays is known by its own. */
static int say_pruned(struct store *st, int64_t job, const struct retention *p,
                      const int64_t *steps, int n, int64_t cycle,
                      int64_t now_ms, struct err *err)
{
    CLEANUP(buf_release) struct buf text = {0};
    name_steps(&text, steps, n);
    struct event e = {.job = job,
                      .cycle = cycle,
                      .step = -1,
                      .kind = "pruned",
                      .actor = "server"};
    return event_add(
        st, &e, now_ms, err, "let go of %d checkpoint%s (%.200s): kept are %s",
        n, n == 1 ? "" : "s", text.data ? text.data : "", p->kept_in_words);
}

/* At most `max`. The count. */
static int prune_job(struct store *st, int64_t job, int max, int64_t now_ms,
                     struct err *err)
{
    CLEANUP(retention_release) struct retention p = {0};
    int r = retention_plan(st, job, &p, err);
    if (r < 0)
        return r;
    int64_t steps[PRUNE_CHECKPOINTS], cycle = 0;
    int n = 0;
    bool again = false;              /* what is unjudged, or more than max */
    for (size_t i = p.n; i-- > 0;) { /* oldest first */
        const struct kept *k = &p.all[i];
        again |= k->why & KEPT_UNJUDGED;
        if (k->why)
            continue;
        if (n == max) {
            again = true;
            break;
        }
        r = drop(st, k->id, err);
        if (r < 0)
            return r;
        cycle = n && cycle != k->cycle ? 0 : k->cycle;
        steps[n++] = k->step;
    }
    if (n)
        r = say_pruned(st, job, &p, steps, n, cycle, now_ms, err);
    if (r >= 0 && !again)
        r = unmark(st, job, err);
    return r < 0 ? r : n;
}

static int marked_jobs(struct store *st, int64_t after,
                       int64_t jobs[PRUNE_JOBS], struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_PRUNABLE_LIST);
    stmt_int(&q, ":after", after);
    stmt_int(&q, ":limit", PRUNE_JOBS);
    int n = 0, r;
    while ((r = stmt_row(&q, err)) > 0 && n < PRUNE_JOBS)
        jobs[n++] = col_int(&q, 0);
    return r < 0 ? r : n;
}

int retention_prune(struct store *st, int64_t *after, int64_t now_ms,
                    struct err *err)
{
    int64_t jobs[PRUNE_JOBS], last = *after;
    int done = 0;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    int n = marked_jobs(st, last, jobs, err);
    if (n < 0)
        return n;
    for (int i = 0; i < n && done < PRUNE_CHECKPOINTS; i++) {
        r = prune_job(st, jobs[i], PRUNE_CHECKPOINTS - done, now_ms, err);
        if (r < 0)
            return r;
        done += r;
        last = jobs[i];
    }
    r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *after = n == PRUNE_JOBS || done >= PRUNE_CHECKPOINTS ? last : 0;
    return done;
}

/* ---- what clients ask for ---- */

int retention_pin(struct store *st, int64_t id, bool pinned, int64_t now_ms,
                  struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = checkpoint_load(st, id, &c, err);
    if (r < 0)
        return r;
    int64_t n;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_PIN);
        stmt_int(&q, ":id", id);
        stmt_int(&q, ":pinned", pinned);
        n = stmt_run(&q, err);
    }
    if (n < 0)
        return (int)n;
    struct event e = {.job = c.job,
                      .step = c.step,
                      .kind = pinned ? "pinned" : "unpinned",
                      .actor = "client"};
    if (n > 0)
        r = event_add(st, &e, now_ms, err,
                      "checkpoint %" PRId64 " (step %" PRId64 ") is %s", id,
                      c.step,
                      pinned ? "pinned: it stays until it is unpinned"
                             : "no longer pinned");
    return r < 0 ? r : txn_commit(&txn, err);
}

static int refuse_loading(struct store *st, const struct checkpoint *c,
                          struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_RETENTION_LOADING);
    stmt_int(&q, ":job", c->job);
    stmt_int(&q, ":id", c->id);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    return err_set(err, ERR_CONFLICT,
                   "worker %s is loading checkpoint %" PRId64 " (lease %" PRId64
                   "): try again once it trains",
                   col_text(&q, 1), c->id, col_int(&q, 0));
}

static int refuse_needed(const struct retention *p, const struct checkpoint *c,
                         struct err *err)
{
    const struct kept *k = find(p, c->id);
    if (!k)
        return 0;
    if (k->why & KEPT_PINNED)
        return err_set(err, ERR_CONFLICT,
                       "checkpoint %" PRId64 " is pinned: PATCH it with "
                       "{\"pinned\": false} first",
                       c->id);
    if (k->why & KEPT_MODEL)
        return err_set(err, ERR_CONFLICT,
                       "checkpoint %" PRId64
                       " holds the model of cycle %" PRId64
                       "; DELETE /v1/jobs/%" PRId64 " removes it with the job",
                       c->id, k->cycle, c->job);
    if (!k->good || k->cycle_done)
        return 0;
    for (size_t i = 0; i < p->n; i++)
        if (&p->all[i] != k && p->all[i].good && p->all[i].cycle == k->cycle)
            return 0;
    return err_set(err, ERR_CONFLICT,
                   "checkpoint %" PRId64 " is the only one from which cycle "
                   "%" PRId64 " can go on; cancel and DELETE /v1/jobs/%" PRId64
                   " removes it with the job",
                   c->id, k->cycle, c->job);
}

int retention_delete(struct store *st, int64_t id, int64_t now_ms,
                     struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    CLEANUP(retention_release) struct retention p = {0};
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = checkpoint_load(st, id, &c, err);
    if (r >= 0)
        r = retention_plan(st, c.job, &p, err);
    if (r >= 0)
        r = refuse_needed(&p, &c, err);
    if (r >= 0)
        r = refuse_loading(st, &c, err);
    if (r >= 0)
        r = drop(st, id, err);
    if (r < 0)
        return r;
    const struct kept *k = find(&p, id);
    struct event e = {.job = c.job,
                      .cycle = k ? k->cycle : 0,
                      .step = c.step,
                      .kind = "deleted",
                      .actor = "client"};
    r = event_add(st, &e, now_ms, err,
                  "checkpoint %" PRId64 " (step %" PRId64
                  ") is removed by request",
                  id, c.step);
    return r < 0 ? r : txn_commit(&txn, err);
}
