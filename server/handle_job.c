#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/spec.h"
#include "server/dry_run.h"
#include "server/event.h"
#include "server/handle.h"
#include "server/job.h"
#include "server/metric.h"
#include "server/root.h"
#include "server/sweep.h"
#include "server/when.h"

/* A POST that was read: a spec, or a sweep of them. */
struct submission {
    bool many;
    struct spec spec;
    struct sweep sweep;
};

static void free_submission(void *p)
{
    struct submission *s = p;
    spec_release(&s->spec);
    sweep_release(&s->sweep);
    free(s);
}

static int reply_dry_run(struct ctx *ctx, struct reply *ret,
                         const struct submission *s, struct err *err)
{
    json_t *out = NULL;
    int r = s->many ? sweep_dry_run(ctx->st, &s->sweep, ctx->now_ms, &out, err)
                    : dry_run(ctx->st, &s->spec, ctx->now_ms, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}

/* Of a job that would begin now: is there a file below the root? To list it may
 * take long, and needs no writer. */
static int check_root(const struct spec *spec, struct err *err)
{
    if (!spec->data.root)
        return 0;
    int r = root_check(spec->data.root, err);
    if (r < 0 || !spec->cycles || json_array_size(spec->after) ||
        spec->not_before_ms || spec->data.max_uses > 0)
        return r;
    r = root_has_data(&spec->data, err);
    return r == ERR_IO ? 0 : r; /* a disk that is away is waited for */
}

/* Reading, and a dry run is no more than that, needs no writer. */
int handle_job_prepare(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    int64_t dry;
    int r = need_body(req, err);
    if (r >= 0)
        r = req_query_int(req, "dry_run", 0, 1, 0, &dry, err);
    if (r < 0)
        return r;
    struct submission *s = calloc(1, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for a spec");
    req->prepared = s;
    req->prepared_free = free_submission;
    s->many = sweep_is(req->json);
    r = s->many ? sweep_parse(req->json, &s->sweep, err)
                : spec_parse(req->json, &s->spec, err);
    if (r >= 0 && !s->many)
        r = check_root(&s->spec, err);
    if (r == ERR_INVALID && !dry) { /* answered when there was one? */
        struct err none, why = *err;
        int once = handle_once(ctx, req, ret, &none);
        if (once > 0)
            return 0;
        *err = why;
    }
    return r < 0 || !dry ? r : reply_dry_run(ctx, ret, s, err);
}

static void tag(struct reply *ret, const json_t *job)
{
    char etag[JOB_ETAG_MAX];
    job_etag(json_integer_value(json_object_get(job, "edit")), etag);
    reply_header(ret, "ETag", etag);
}

static int reply_job(struct ctx *ctx, struct reply *ret, int64_t id,
                     struct err *err)
{
    json_t *job = NULL;
    int r = job_get(ctx->st, id, true, &job, err);
    if (r < 0)
        return r;
    r = job_add_place(ctx->st, job, err);
    if (r < 0) {
        json_decref(job);
        return r;
    }
    tag(ret, job);
    return reply_json(ret, 200, job);
}

static int post_sweep(struct ctx *ctx, struct request *req, struct reply *ret,
                      const struct sweep *sweep, struct err *err)
{
    AUTO_JSON json_t *own = NULL, *items = NULL;
    bool ended;
    int64_t id;
    int r = sweep_submit(ctx->st, sweep, ctx->now_ms, &id, err);
    if (r >= 0)
        r = sweep_get(ctx->st, id, &own, &ended, err);
    if (r >= 0)
        r = sweep_jobs(ctx->st, id, &items, err);
    if (r < 0)
        return r;
    char at[48];
    snprintf(at, sizeof(at), "/v1/sweeps/%" PRId64, id);
    reply_header(ret, "Location", at);
    return reply_once(ctx, req, ret, 201,
                      json_pack("{sO sO}", "sweep", own, "items", items), err);
}

int handle_job_post(struct ctx *ctx, struct request *req, struct reply *ret,
                    struct err *err)
{
    const struct submission *s = req->prepared;
    json_t *out = NULL;
    int64_t id;
    int r = handle_once(ctx, req, ret, err);
    if (r)
        return r;
    if (s->many)
        return post_sweep(ctx, req, ret, &s->sweep, err);
    r = job_submit(ctx->st, &s->spec, ctx->now_ms, &id, err);
    if (r >= 0)
        r = job_get(ctx->st, id, true, &out, err);
    if (r >= 0)
        r = job_add_place(ctx->st, out, err);
    if (r < 0) {
        json_decref(out);
        return r;
    }
    char at[48];
    snprintf(at, sizeof(at), "/v1/jobs/%" PRId64, id);
    reply_header(ret, "Location", at);
    tag(ret, out);
    return reply_once(ctx, req, ret, 201, out, err);
}

/* ?label=key or ?label=key=value; `key` takes the copy of the first. */
static int filter(const struct request *req, struct job_filter *f, char *key,
                  size_t cap, struct err *err)
{
    static const char *const states[] = {"queued", "running",  "paused",
                                         "failed", "canceled", "completed"};
    int r = page_params(req, &f->limit, &f->before, err);
    if (r < 0)
        return r;
    f->state = req_query(req, "state");
    f->kind = req_query(req, "kind");
    f->q = req_query(req, "q");
    r = req_query_int(req, "sweep", 1, INT64_MAX, 0, &f->sweep, err);
    if (r < 0)
        return r;
    const char *label = req_query(req, "label");
    bool known = !f->state;
    for (int i = 0; f->state && i < 6; i++)
        known |= !strcmp(f->state, states[i]);
    if (!known)
        return err_at(err, ERR_INVALID, "state",
                      "'state' is one of queued, running, paused, completed, "
                      "failed, canceled");
    if (f->kind && strcmp(f->kind, "train") && strcmp(f->kind, "selfplay"))
        return err_at(err, ERR_INVALID, "kind", "'kind' is train or selfplay");
    if (label) {
        const char *eq = strchr(label, '=');
        snprintf(key, cap, "%.*s", eq ? (int)(eq - label) : (int)strlen(label),
                 label);
        f->label = key;
        f->label_value = eq ? eq + 1 : NULL;
    }
    return 0;
}

/* What fits a terminal's width of each job of a page. */
static json_t *for_eyes(const json_t *page)
{
    static const char *const columns[] = {"id", "name", "state"};
    static const char *const of_progress[] = {"step", "steps", "records_per_s",
                                              "eta_s"};
    json_t *items = json_array(), *job;
    size_t i;
    json_array_foreach(json_object_get(page, "items"), i, job)
    {
        json_t *row = json_object();
        const json_t *progress = json_object_get(job, "progress");
        for (size_t c = 0; c < sizeof(columns) / sizeof(*columns); c++)
            json_object_set(row, columns[c], json_object_get(job, columns[c]));
        for (size_t c = 0; c < sizeof(of_progress) / sizeof(*of_progress);
             c++) {
            json_t *v = json_object_get(progress, of_progress[c]);
            json_object_set_new(row, of_progress[c],
                                json_is_real(v)
                                    ? json_integer(llround(json_real_value(v)))
                                    : json_incref(v));
        }
        json_object_set(row, "reason", json_object_get(job, "reason"));
        json_array_append_new(items, row);
    }
    json_t *out = json_pack("{s:o}", "items", items);
    if (out && json_object_get(page, "next"))
        json_object_set(out, "next", json_object_get(page, "next"));
    return out;
}

int handle_job_list(struct ctx *ctx, struct request *req, struct reply *ret,
                    struct err *err)
{
    struct job_filter f = {0};
    char key[256];
    json_t *page = NULL;
    int r = filter(req, &f, key, sizeof(key), err);
    if (r >= 0)
        r = job_list(ctx->st, &f, &page, err);
    if (r >= 0 && req_as(req) == AS_TEXT) {
        json_t *rows = for_eyes(page);
        json_decref(page);
        page = rows;
    }
    return r < 0 ? r : reply_json(ret, 200, page);
}

/* ---- ?follow=1 ---- */

#define FOLLOW_EVENTS 100
#define FOLLOW_EVERY_MS 1000 /* a progress line at most so often */

struct follow {
    int64_t id, event, step, cycle, printed_mono_ms;
};

static const char *clock_of(const char *at)
{
    return at && strlen(at) > 19 ? at + 11 : "";
}

static int follow_events(struct ctx *ctx, struct follow *f, struct buf *out,
                         struct err *err)
{
    AUTO_JSON json_t *page = NULL;
    int r = event_list(ctx->st, f->id, f->event, FOLLOW_EVENTS, &page, err);
    if (r < 0)
        return r;
    size_t i;
    json_t *e;
    int bad = 0;
    json_array_foreach(json_object_get(page, "items"), i, e)
    {
        const char *at = json_string_value(json_object_get(e, "at"));
        f->event = json_integer_value(json_object_get(e, "id"));
        const char *cause = json_string_value(json_object_get(e, "cause"));
        /* a line an event: what follows the first is evidence */
        bad |= buf_addf(out, "%.8s  %s: %.*s\n", clock_of(at),
                        json_string_value(json_object_get(e, "kind")),
                        (int)strcspn(cause ? cause : "", "\n"),
                        cause ? cause : "");
    }
    if (bad)
        return err_set(err, ERR_NOMEM, "no memory for a line");
    return json_object_get(page, "next") ? 1 : 0;
}

static int follow_progress(struct ctx *ctx, struct follow *f,
                           const json_t *progress, struct buf *out,
                           struct err *err)
{
    int64_t step = json_integer_value(json_object_get(progress, "step"));
    int64_t steps = json_integer_value(json_object_get(progress, "steps"));
    int64_t cycle = json_integer_value(json_object_get(progress, "cycle"));
    int64_t cycles = json_integer_value(json_object_get(progress, "cycles"));
    if ((step == f->step && cycle == f->cycle) || !step)
        return 0;
    char when[WHEN_MAX];
    when_text(ctx->now_ms, when);
    int bad = buf_addf(out, "%.8s  ", clock_of(when));
    if (cycles != 1)
        bad |= buf_addf(out, "cycle %" PRId64 "  ", cycle);
    bad |= buf_addf(out, "step %" PRId64 "/%" PRId64, step, steps);

    int64_t at;
    double loss;
    int r = metric_last(ctx->st, f->id, cycle, "loss", &at, &loss, err);
    if (r < 0)
        return r;
    if (r > 0 && isfinite(loss))
        bad |= buf_addf(out, "  loss %.4f", loss);
    const json_t *speed = json_object_get(progress, "records_per_s");
    const json_t *eta = json_object_get(progress, "eta_s");
    if (json_is_number(speed))
        bad |= buf_addf(out, "  %.0f records/s", json_number_value(speed));
    if (json_is_number(eta)) {
        int64_t s = (int64_t)ceil(json_number_value(eta));
        bad |= buf_addf(out, "  ETA %" PRId64 ":%02d:%02d", s / 3600,
                        (int)(s / 60 % 60), (int)(s % 60));
    }
    bad |= buf_adds(out, "\n");
    f->step = step;
    f->cycle = cycle;
    f->printed_mono_ms = ctx->mono_ms;
    return bad ? err_set(err, ERR_NOMEM, "no memory for a line") : 0;
}

static int follow_end(const json_t *job, struct buf *out, struct err *err)
{
    const char *state = json_string_value(json_object_get(job, "state"));
    const char *model = json_string_value(json_object_get(job, "model_sha256"));
    const char *reason = json_string_value(json_object_get(job, "reason"));
    int bad = buf_addf(out, "job %" PRId64 " %s%s%s%s%s\n",
                       (int64_t)json_integer_value(json_object_get(job, "id")),
                       state, model ? "  model " : "", model ? model : "",
                       reason ? ": " : "", reason ? reason : "");
    return bad ? err_set(err, ERR_NOMEM, "no memory for a line") : 0;
}

static int follow_next(struct ctx *ctx, void *source, struct buf *out,
                       struct err *err)
{
    struct follow *f = source;
    AUTO_JSON json_t *job = NULL;
    /* the job first: what ended it is among the events read after it */
    int r = job_get(ctx->st, f->id, false, &job, err);
    if (r == ERR_NOT_FOUND)
        return buf_addf(out, "job %" PRId64 " was deleted\n", f->id) ? -1 : 0;
    if (r < 0)
        return r;
    bool ended = !json_is_null(json_object_get(job, "ended_at"));
    bool late = ended && !f->event; /* all of it is over: events tell it */
    if (!late &&
        (ended || ctx->mono_ms - f->printed_mono_ms >= FOLLOW_EVERY_MS)) {
        r = follow_progress(ctx, f, json_object_get(job, "progress"), out, err);
        if (r < 0)
            return r;
    }
    r = follow_events(ctx, f, out, err);
    if (r != 0)
        return r;
    if (!ended)
        return 1;
    r = follow_end(job, out, err);
    return r < 0 ? r : 0;
}

static int follow(struct reply *ret, int64_t id, struct err *err)
{
    struct follow *f = calloc(1, sizeof(*f));
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory to follow a job");
    f->id = id;
    return reply_stream(ret, "text/plain; charset=utf-8", NOTIFY_JOB,
                        follow_next, f, free);
}

int handle_job_get(struct ctx *ctx, struct request *req, struct reply *ret,
                   struct err *err)
{
    int64_t id, wait, version, follows;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = wait_param(req, &wait, err);
    if (r >= 0)
        r = req_query_int(req, "version", 0, INT64_MAX, -1, &version, err);
    if (r >= 0)
        r = req_query_int(req, "follow", 0, 1, 0, &follows, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *job = NULL;
    r = job_get(ctx->st, id, true, &job, err);
    if (r < 0)
        return r;
    if (follows)
        return follow(ret, id, err);
    bool news =
        version >= 0
            ? json_integer_value(json_object_get(job, "version")) > version
            : !json_is_null(json_object_get(job, "ended_at"));
    if (wait > 0 && !news && !req->last_wait)
        return reply_wait(ret, NOTIFY_JOB, req_deadline(req, ctx, wait));
    r = job_add_place(ctx->st, job, err);
    if (r < 0)
        return r;
    if (req_as(req) == AS_TEXT)
        json_object_del(job, "spec"); /* a hundred lines that never change */
    tag(ret, job);
    return reply_json(ret, 200, json_incref(job));
}

int handle_job_patch(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    const char *match = req_header(req, "If-Match");
    if (r >= 0 && match)
        r = job_if_match(ctx->st, id, match, err);
    if (r >= 0)
        r = job_patch(ctx->st, id, req->json, ctx->now_ms, err);
    return r < 0 ? r : reply_job(ctx, ret, id, err);
}

int handle_job_delete(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = job_delete(ctx->st, id, err);
    return r < 0 ? r : reply_empty(ret, 204);
}

typedef int ask_fn(struct store *st, int64_t id, int64_t now_ms,
                   struct err *err);

static int ask(struct ctx *ctx, struct request *req, struct reply *ret,
               ask_fn *fn, struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = no_body(req, err);
    if (r >= 0)
        r = fn(ctx->st, id, ctx->now_ms, err);
    return r < 0 ? r : reply_job(ctx, ret, id, err);
}

int handle_job_pause(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    return ask(ctx, req, ret, job_pause, err);
}

int handle_job_resume(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    return ask(ctx, req, ret, job_resume, err);
}

int handle_job_cancel(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    return ask(ctx, req, ret, job_cancel, err);
}

int handle_job_retry(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    return ask(ctx, req, ret, job_retry, err);
}

int handle_job_complete(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    return ask(ctx, req, ret, job_complete, err);
}

typedef int list_fn(struct store *st, int64_t job, int64_t after, int64_t limit,
                    json_t **ret, struct err *err);

static int list(struct ctx *ctx, struct request *req, struct reply *ret,
                list_fn *fn, struct err *err)
{
    int64_t id, limit, cursor;
    CLEANUP(job_release) struct job j = {0};
    json_t *page = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = page_params(req, &limit, &cursor, err);
    if (r >= 0)
        r = job_load_part(ctx->st, id, 0, &j, err);
    if (r >= 0)
        r = fn(ctx->st, id, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_event_list(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    return list(ctx, req, ret, event_list, err);
}

int handle_log_list(struct ctx *ctx, struct request *req, struct reply *ret,
                    struct err *err)
{
    return list(ctx, req, ret, log_list, err);
}
