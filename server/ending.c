#include "server/ending.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/spec.h"
#include "server/checkpoint.h"
#include "server/event.h"
#include "server/evidence.h"
#include "server/job.h"
#include "server/match.h"
#include "server/owner.h"
#include "server/room.h"
#include "server/start.h"

#define BACKOFF_FIRST_MS 1000
#define BACKOFF_MAX_MS 60000
#define LOAD_DEATHS_MAX 2

struct ending {
    const char *outcome, *reason, *detail, *evidence;
    const json_t *error, *answer, *death;
    bool expired;
    int64_t counted;
};

static int end_lease(struct store *st, struct lease *l, const struct ending *e,
                     int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_END);
    stmt_int(&q, ":id", l->id);
    stmt_text(&q, ":outcome", e->outcome);
    stmt_text(&q, ":reason", e->reason);
    stmt_text(&q, ":detail", e->detail);
    stmt_text(&q, ":evidence", e->evidence);
    stmt_json(&q, ":error", e->error);
    stmt_json(&q, ":answer", e->answer);
    stmt_json(&q, ":death", e->death);
    stmt_int(&q, ":expired", e->expired);
    stmt_int(&q, ":counted", e->counted);
    stmt_int(&q, ":now", now_ms);
    store_notify(st, NOTIFY_JOB | NOTIFY_WORKER);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    int r = owner_ended(st, l->cycle, now_ms, err);
    return r < 0 ? r : worker_let_go(st, l->id, now_ms, err);
}

/* ---- budgets ---- */

/* The first retry is immediate, then 1 s doubling to 60 s, and up to a quarter
 * more so that jobs that fell together do not rise together. */
static int64_t backoff_ms(int64_t n, int64_t seed)
{
    if (n <= 1)
        return 0;
    int64_t ms = BACKOFF_MAX_MS;
    if (n - 2 < 6)
        ms = (int64_t)BACKOFF_FIRST_MS << (n - 2);
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    uint64_t h = (uint64_t)seed * 0x9e3779b97f4a7c15u;
    return ms + (int64_t)((h >> 33) % (uint64_t)(ms / 4 + 1));
}

/* 0: none, or < 0. One figure: the whole spec would take longer to parse than
 * all else of a release. */
static int limit_of(struct store *st, const struct job *j, const char *name,
                    int64_t *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_LIMIT);
    stmt_int(&q, ":id", j->id);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    *ret = r > 0 ? col_int(&q, 0) : 0;
    return r < 0 ? r : 0;
}

/* Why the job is failed, with what its lost leases left behind. */
static int fail_with_evidence(struct store *st, const struct cycle *c,
                              const char *code, const char *why, int64_t now_ms,
                              struct err *err)
{
    AUTO_JSON json_t *evidence = NULL;
    int r = evidence_of(st, c->id, &evidence, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *error = json_pack("{ss ss sO}", "code", code, "detail",
                                        why, "evidence", evidence);
    return job_fail(st, c->job, why, error, now_ms, err);
}

/* Has the lease come further than any before it? Counts it when not. */
static int64_t count_progress(const struct lease *l, struct cycle *c)
{
    if (c->best_step > l->best_before) {
        c->no_progress = 0;
        return 0;
    }
    c->no_progress++;
    return COUNTED_NO_PROGRESS;
}

/* Too many leases in a row without progress: the job fails. 1 when so. */
static int check_no_progress(struct store *st, const struct job *j,
                             const struct cycle *c, const char *last,
                             int64_t now_ms, struct err *err)
{
    int64_t limit = 0;
    int r = limit_of(st, j, "no_progress", &limit, err);
    if (r < 0 || limit <= 0 || c->no_progress < limit)
        return r;
    char why[1024];
    snprintf(why, sizeof(why),
             "%" PRId64 " leases in a row got no further than step %" PRId64
             "; the last one: %.700s",
             c->no_progress, c->best_step, last);
    r = fail_with_evidence(st, c, "no_progress", why, now_ms, err);
    return r < 0 ? r : 1;
}

/* ---- lost ---- */

/* After a death while loading: a state that kills whoever loads it twice in a
 * row is set aside. */
static int blame_loading(struct store *st, const struct lease *l,
                         const struct cycle *c, int64_t now_ms,
                         int64_t *counted, struct err *err)
{
    if (!l->checkpoint || strcmp(l->stage, "load"))
        return 0;
    int64_t deaths = 0;
    bool good = false;
    int r = checkpoint_load_died(st, l->checkpoint, &deaths, &good, err);
    if (r < 0)
        return r;
    *counted |= COUNTED_LOAD;
    if (deaths < LOAD_DEATHS_MAX || !good)
        return 0;
    *counted |= COUNTED_SET_ASIDE;
    char why[200];
    snprintf(why, sizeof(why), "%" PRId64 " workers in a row died loading it",
             deaths);
    CLEANUP(start_release) struct start start = {0};
    r = checkpoint_quarantine(st, l->checkpoint, why, err);
    if (r >= 0)
        r = start_find(st, c, &start, err);
    if (r < 0)
        return r;
    return event_add(st,
                     &(struct event){.job = l->job,
                                     .lease = l->id,
                                     .cycle = c->number,
                                     .step = l->from_step,
                                     .kind = "quarantined",
                                     .actor = "server"},
                     now_ms, err,
                     "checkpoint %" PRId64 " (step %" PRId64
                     ") is set aside: %s; goes on from step %" PRId64
                     ", %" PRId64 " steps are repeated",
                     l->checkpoint, l->from_step, why, start.step,
                     l->from_step - start.step);
}

/* how: "was killed by signal 9, cause unknown" */
int ending_lost(struct store *st, struct lease *l, const char *how,
                const char *evidence, const json_t *death, bool expired,
                int64_t now_ms, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(job_release) struct job j = {0};
    CLEANUP(start_release) struct start start = {0};
    struct cycle c;
    int64_t counted = COUNTED_LOST;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = job_load_part(st, l->job, 0, &j, err);
    if (r >= 0)
        r = cycle_load(st, l->cycle, &c, err);
    if (r >= 0)
        r = blame_loading(st, l, &c, now_ms, &counted, err);
    if (r >= 0)
        r = start_find(st, &c, &start, err);
    if (r < 0)
        return r;

    counted |= count_progress(l, &c);
    c.lost++;
    if (c.saved_step > start.step)
        c.saved_step = start.step; /* a newer one was set aside */
    char what[512], why[768];
    snprintf(what, sizeof(what), "worker %s %s at step %" PRId64 "%s",
             l->worker, how, l->step,
             strcmp(l->stage, "load") ? "" : " while loading");
    int64_t wait = backoff_ms(c.lost, c.id ^ now_ms);
    snprintf(why, sizeof(why),
             "worker lost: %s; waits for a worker to go on at step %" PRId64
             "%s",
             what, start.step, wait ? " after a pause" : "");

    struct ending e = {.outcome = "lost",
                       .reason = what,
                       .evidence = evidence,
                       .death = death,
                       .expired = expired,
                       .counted = counted};
    r = end_lease(st, l, &e, now_ms, err);
    if (r >= 0)
        r = event_add(st,
                      &(struct event){.job = l->job,
                                      .lease = l->id,
                                      .cycle = c.number,
                                      .step = l->step,
                                      .kind = "lost",
                                      .actor = "server"},
                      now_ms, err, "%s%s%s%s", why, evidence ? " [" : "",
                      evidence ? evidence : "", evidence ? "]" : "");
    if (r >= 0)
        r = cycle_again(st, &c, why, false, wait ? now_ms + wait : 0,
                        start.step, start.epoch, start.records, err);
    if (r < 0)
        return r;
    int64_t limit = 0;
    r = limit_of(st, &j, "lost", &limit, err);
    if (r < 0)
        return r;
    if (j.cancel) {
        r = 0;
    } else if (limit > 0 && c.lost >= limit) {
        char last[1024];
        snprintf(last, sizeof(last),
                 "%" PRId64 " workers were lost without a new checkpoint: it "
                 "kills its workers; the last one: %s",
                 c.lost, what);
        r = fail_with_evidence(st, &c, "lost", last, now_ms, err);
    } else {
        r = check_no_progress(st, &j, &c, what, now_ms, err);
    }
    if (r >= 0)
        r = job_settle(st, l->job, false, now_ms, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

/* ---- finished, yielded ---- */

static int finish(struct store *st, struct lease *l, struct cycle *c,
                  const struct release *in, int64_t now_ms, struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint last = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    int64_t id = l->saved ? l->saved : l->checkpoint;
    int r = id ? checkpoint_load(st, id, &last, err) : 0;
    if (r == ERR_NOT_FOUND) /* a client removed it */
        id = r = 0;
    if (r >= 0)
        r = cycle_spec(st, c, &spec, err);
    if (r < 0)
        return r;
    /* records that were skipped leave fewer steps than were counted */
    bool fewer = spec.data.bad_records == BAD_SKIP && in->report.skipped > 0 &&
                 last.step <= c->steps;
    if (!id || !last.good || (last.step != c->steps && !fewer))
        return err_set(err, ERR_CONFLICT,
                       "a cycle is finished with a checkpoint at its last "
                       "step, %" PRId64,
                       c->steps);
    r = cycle_done(st, c, id, last.model_sha256, last.step, now_ms, err);
    if (r < 0)
        return r;
    struct event e = lease_event(l, c, "finished");
    e.step = last.step;
    return event_add(st, &e, now_ms, err,
                     "cycle %" PRId64 " is done after %" PRId64
                     " steps: model %.12s…",
                     c->number, last.step, last.model_sha256);
}

static int yield_lease(struct store *st, struct lease *l, struct cycle *c,
                       const struct job *j, const struct release *in,
                       int64_t now_ms, struct err *err)
{
    CLEANUP(start_release) struct start start = {0};
    int r = start_find(st, c, &start, err);
    if (r < 0)
        return r;
    char why[768];
    count_progress(l, c);
    snprintf(why, sizeof(why),
             "yielded at step %" PRId64 " (%s%s%.400s); waits for a worker",
             start.step, in->reason, in->detail ? ": " : "",
             in->detail ? in->detail : "");
    struct event e = lease_event(l, c, "yielded");
    r = event_add(st, &e, now_ms, err,
                  "worker %s saved step %" PRId64 " and yielded: %s%s%.700s",
                  l->worker, start.step, in->reason, in->detail ? ": " : "",
                  in->detail ? in->detail : "");
    if (r >= 0)
        r = cycle_again(st, c, why, true, 0, start.step, start.epoch,
                        start.records, err);
    if (r < 0 || j->cancel || j->pause)
        return r;
    return check_no_progress(st, j, c, why, now_ms, err);
}

/* ---- failed ---- */

/* One sentence with the place, for people. */
static void failure_text(const struct release *in, const struct lease *l,
                         char *ret, size_t cap)
{
    const char *detail = in->error.given && in->error.detail[0]
                             ? in->error.detail
                         : in->reason ? in->reason
                                      : "the worker gave no reason";
    char place[512] = "";
    if (in->error.shard && !strstr(detail, in->error.shard)) {
        int n = snprintf(place, sizeof(place), "shard %s", in->error.shard);
        if (in->error.line >= 1)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", line %" PRId64, in->error.line);
        if (in->error.offset >= 0)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", offset %" PRId64, in->error.offset);
        if (in->error.field)
            n += snprintf(place + n, sizeof(place) - (size_t)n,
                          ", field %.100s", in->error.field);
        snprintf(place + n, sizeof(place) - (size_t)n, ": ");
    }
    snprintf(ret, cap, "%s%.1500s", place, detail);
}

static int quarantine(struct store *st, struct lease *l, struct cycle *c,
                      const struct job *j, const struct release *in,
                      const char *text, int64_t now_ms, struct err *err)
{
    int64_t id = in->error.checkpoint;
    if (id != l->checkpoint && id != l->initial)
        return err_at(err, ERR_INVALID, "/error/checkpoint",
                      "this lease did not start from checkpoint %" PRId64, id);
    CLEANUP(start_release) struct start start = {0};
    int r = checkpoint_quarantine(st, id, text, err);
    if (r >= 0)
        r = start_find(st, c, &start, err);
    if (r < 0)
        return r;
    if (id == l->initial) {
        if (j->cancel)
            return 0;
        char why[1024];
        snprintf(why, sizeof(why),
                 "the end of the cycle before (checkpoint %" PRId64
                 ") does not verify: %.800s",
                 id, text);
        return job_fail(st, l->job, why, in->error_json, now_ms, err);
    }
    char why[768];
    int64_t again = l->from_step - start.step;
    snprintf(why, sizeof(why),
             "checkpoint %" PRId64 " (step %" PRId64
             ") is set aside: %.400s; goes on from step %" PRId64 ", %" PRId64
             " steps are repeated",
             id, l->from_step, text, start.step, again);
    if (c->saved_step > start.step)
        c->saved_step = start.step;
    struct event e = lease_event(l, c, "quarantined");
    r = event_add(st, &e, now_ms, err, "%s", why);
    return r < 0 ? r
                 : cycle_again(st, c, why, true, 0, start.step, start.epoch,
                               start.records, err);
}

/* "on_oom": "split" halves the micro-batch. 1: done so. */
static int split(struct store *st, struct lease *l, struct cycle *c,
                 const struct job *j, const char *text, int64_t now_ms,
                 struct err *err)
{
    int64_t micro =
        json_integer_value(json_object_get(j->runtime, "micro_batch"));
    if (strcmp(policy_text(j->runtime, "on_oom"), "split") || micro < 2)
        return 0;
    CLEANUP(start_release) struct start start = {0};
    int r = start_find(st, c, &start, err);
    if (r < 0)
        return r;
    if (!strcmp(policy_text(j->runtime, "exact"), "require") && start.from.id)
        return 0;
    AUTO_JSON json_t *runtime = json_copy(j->runtime);
    json_object_set_new(runtime, "micro_batch", json_integer(micro / 2));
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_PATCH);
        stmt_int(&q, ":id", j->id);
        stmt_json(&q, ":runtime", runtime);
        stmt_int(&q, ":newer", 1);
        stmt_int(&q, ":priority", j->priority);
        stmt_json(&q, ":labels", j->labels);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    char why[768];
    snprintf(why, sizeof(why),
             "out of memory (%.400s); the micro-batch is halved to %" PRId64
             "; waits for a worker to go on at step %" PRId64,
             text, micro / 2, start.step);
    struct event e = lease_event(l, c, "failed");
    r = event_add(st, &e, now_ms, err, "%s", why);
    if (r >= 0)
        r = cycle_again(st, c, why, true, 0, start.step, start.epoch,
                        start.records, err);
    return r < 0 ? r : 1;
}

static bool is_final(const struct release *in)
{
    return in->error.given &&
           (in->error.final || !strcmp(in->error.code, "data") ||
            !strcmp(in->error.code, "invalid") ||
            !strcmp(in->error.code, "not_finite"));
}

static int retry_later(struct store *st, struct lease *l, struct cycle *c,
                       const struct job *j, const struct release *in,
                       const char *text, int64_t now_ms, struct err *err)
{
    CLEANUP(start_release) struct start start = {0};
    int r = start_find(st, c, &start, err);
    if (r < 0)
        return r;
    char why[768];
    count_progress(l, c);
    c->failures++;
    int64_t limit = 0;
    r = limit_of(st, j, "failures", &limit, err);
    if (r < 0)
        return r;
    bool spent = limit > 0 && c->failures >= limit && !j->cancel;
    int64_t wait = spent ? 0 : backoff_ms(c->failures, c->id ^ now_ms);
    struct event e = lease_event(l, c, "failed");
    r = event_add(st, &e, now_ms, err,
                  "worker %s failed at step %" PRId64 " (%" PRId64
                  " of %" PRId64 "): %.800s",
                  l->worker, l->step, c->failures, limit, text);
    if (r < 0)
        return r;
    if (spent) {
        char last[1024];
        snprintf(last, sizeof(last),
                 "failed %" PRId64 " times without progress; the last time at "
                 "step %" PRId64 ": %.800s",
                 c->failures, l->step, text);
        return job_fail(st, l->job, last, in->error_json, now_ms, err);
    }
    snprintf(why, sizeof(why),
             "failed at step %" PRId64 ": %.400s; tries again at step %" PRId64
             "%s",
             l->step, text, start.step, wait ? " after a pause" : "");
    r = cycle_again(st, c, why, false, wait ? now_ms + wait : 0, start.step,
                    start.epoch, start.records, err);
    if (r < 0 || j->cancel)
        return r;
    return check_no_progress(st, j, c, text, now_ms, err);
}

static int fail(struct store *st, struct lease *l, struct cycle *c,
                const struct job *j, const struct release *in, int64_t now_ms,
                struct err *err)
{
    char text[2100];
    failure_text(in, l, text, sizeof(text));
    if (in->error.checkpoint)
        return quarantine(st, l, c, j, in, text, now_ms, err);
    if (is_final(in)) {
        struct event e = lease_event(l, c, "failed");
        int r = event_add(st, &e, now_ms, err, "worker %s: %.900s", l->worker,
                          text);
        return r < 0 || j->cancel
                   ? r
                   : job_fail(st, l->job, text, in->error_json, now_ms, err);
    }
    if (in->error.given && in->error.bytes > 0 &&
        !strcmp(in->error.code, err_word(ERR_NOSPACE)))
        return room_park(st, l, c, in, now_ms, err);
    if (in->error.given && !strcmp(in->error.code, "oom") && !j->cancel) {
        int r = split(st, l, c, j, text, now_ms, err);
        if (r)
            return r < 0 ? r : 0;
    }
    return retry_later(st, l, c, j, in, text, now_ms, err);
}

/* ---- released ---- */

int ending_release(struct store *st, struct lease *l, struct cycle *c,
                   const struct release *in, int64_t now_ms, json_t **ret,
                   struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    const char *word = outcome_word(in->outcome);
    char text[2100] = "";
    int r = job_load_part(
        st, l->job,
        in->outcome == OUTCOME_FAILED ? JOB_RUNTIME | JOB_LABELS : 0, &j, err);
    if (r < 0)
        return r;
    if (in->outcome == OUTCOME_FAILED)
        failure_text(in, l, text, sizeof(text));
    AUTO_JSON json_t *answer = json_pack("{ss}", "outcome", word);
    struct ending e = {.outcome = word,
                       .reason =
                           in->outcome == OUTCOME_FAILED ? text : in->reason,
                       .detail = in->detail,
                       .error = in->error_json,
                       .answer = answer};
    r = end_lease(st, l, &e, now_ms, err);
    if (r < 0)
        return r;
    switch (in->outcome) {
    case OUTCOME_FINISHED:
        r = finish(st, l, c, in, now_ms, err);
        break;
    case OUTCOME_YIELDED:
        r = yield_lease(st, l, c, &j, in, now_ms, err);
        break;
    case OUTCOME_FAILED:
        r = fail(st, l, c, &j, in, now_ms, err);
        break;
    }
    if (r >= 0 && j.cancel) /* whatever came of it: it was asked for before */
        r = job_canceled(st, l->job, now_ms, err);
    if (r >= 0)
        r = job_settle(st, l->job, false, now_ms, err);
    if (r >= 0)
        r = job_touch(st, l->job, err);
    if (r < 0)
        return r;
    *ret = json_incref(answer);
    return 0;
}
