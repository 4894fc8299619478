/* GET /v1/datasets/{name}/inspect: a sample at once; with ?whole=1 all of it,
 * which is an errand that the request waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "server/errand.h"
#include "server/handle.h"
#include "server/inspect.h"
#include "server/reply.h"
#include "server/server.h"

static void inspect_ptr(struct inspect **x)
{
    inspect_free(*x);
}

static int reply_census(struct reply *ret, const struct request *req,
                        int status, json_t *body)
{
    if (req_as(req) == AS_TEXT) {
        json_t *table = inspect_table(body);
        json_decref(body);
        body = table;
    }
    return reply_json(ret, status, body);
}

/* ---- the errand ---- */

struct look {
    struct inspect *x;
    struct errand *errand;
    json_t *census;
};

static void look_free(void *arg)
{
    struct look *l = arg;
    inspect_free(l->x);
    json_decref(l->census);
    free(l);
}

static bool step(void *arg, int64_t done, int64_t all)
{
    struct look *l = arg;
    errand_progress(l->errand, done, all);
    return !errand_stopped(l->errand);
}

static int keep(void *arg, struct ctx *ctx, struct err *err)
{
    const struct look *l = arg;
    return inspect_keep(ctx->st, l->x, l->census, ctx->now_ms, err);
}

static int run(struct errand *e, void *arg, struct err *err)
{
    struct look *l = arg;
    l->errand = e;
    int r = inspect_whole(l->x, step, l, &l->census, err);
    return r < 0 ? r : lanes_call(errand_lanes(e), LANE_WRITE, keep, l, err);
}

static int begin(struct errands *es, const char *key, struct inspect **x,
                 struct err *err)
{
    struct look *l = calloc(1, sizeof(*l));
    if (!l)
        return err_set(err, ERR_NOMEM, "no memory to look at a dataset");
    l->x = *x;
    *x = NULL;
    return errands_begin(es, ERRAND_LOOK, key, run, l, look_free, err);
}

/* ---- the answer ---- */

static json_t *progress(const struct inspect *x, enum errand_state state,
                        const struct errand_view *v)
{
    int64_t all = v->all ? v->all : x->bytes;
    return json_pack("{ss sI sI sf}", "state",
                     state == ERRAND_RUNS ? "runs" : "waits", "bytes", v->done,
                     "of_bytes", all, "fraction",
                     all > 0 ? (double)v->done / (double)all : 0.0);
}

static int whole(struct ctx *ctx, struct request *req, struct inspect **x,
                 int64_t wait_s, struct reply *ret, struct err *err)
{
    struct errands *es = ctx->server->errands;
    char key[ERRAND_KEY];
    snprintf(key, sizeof(key), "inspect %s %s", (*x)->name, (*x)->of);
    /* first how far it is, then what was kept: it is kept before it is gone */
    struct errand_view view;
    enum errand_state state = errands_look(es, key, &view);
    json_t *out = NULL;
    int r = inspect_kept(ctx->st, *x, &out, err);
    if (r != 0)
        return r < 0 ? r : reply_census(ret, req, 200, out);

    bool begun = req->prepared && !strcmp(req->prepared, key);
    if (state == ERRAND_FAILED && begun) {
        *err = view.err;
        /* what is stored is to blame, not what was asked */
        return err->code == ERR_DATA ? reply_problem(ret, err, 409) : err->code;
    }
    json_t *how_far = progress(*x, ERRAND_WAITS, &view);
    if (state == ERRAND_WAITS || state == ERRAND_RUNS) {
        json_decref(how_far);
        how_far = progress(*x, state, &view);
    }
    out = json_pack("{ss sb so}", "dataset", (*x)->name, "complete", 0,
                    "progress", how_far);
    if (state == ERRAND_NONE || state == ERRAND_FAILED)
        r = begin(es, key, x, err);
    if (r >= 0 && !begun) {
        free(req->prepared);
        req->prepared = strdup(key);
        req->prepared_free = free;
    }
    int64_t until = req_deadline(req, ctx, wait_s);
    if (r >= 0 && !req->last_wait && ctx->mono_ms < until) {
        json_decref(out);
        return reply_wait(ret, NOTIFY_ERRAND, until);
    }
    if (r < 0) {
        json_decref(out);
        return r;
    }
    return reply_census(ret, req, 202, out);
}

static int sample(struct ctx *ctx, const struct request *req,
                  const struct inspect *x, struct reply *ret, struct err *err)
{
    struct errand_view view;
    char key[ERRAND_KEY];
    snprintf(key, sizeof(key), "inspect %s %s", x->name, x->of);
    json_t *out = NULL;
    int r = inspect_kept(ctx->st, x, &out, err);
    if (r == 0) {
        r = inspect_sample(x, &out, err);
        enum errand_state state =
            errands_look(ctx->server->errands, key, &view);
        if (r >= 0 && (state == ERRAND_WAITS || state == ERRAND_RUNS))
            json_object_set_new(out, "progress", progress(x, state, &view));
    }
    return r < 0 ? r : reply_census(ret, req, 200, out);
}

int handle_inspect(struct ctx *ctx, struct request *req, struct reply *ret,
                   struct err *err)
{
    int64_t all, job, wait_s;
    int r = req_query_int(req, "whole", 0, 1, 0, &all, err);
    if (r >= 0)
        r = req_query_int(req, "job", 1, INT64_MAX, 0, &job, err);
    if (r >= 0)
        r = req_query_int(req, "wait", 0, WIRE_WAIT_MAX_S, WIRE_WAIT_MAX_S,
                          &wait_s, err);
    if (r < 0)
        return r;
    CLEANUP(inspect_ptr) struct inspect *x = NULL;
    r = inspect_new(ctx->st, req_param(req, "name"), job, &x, err);
    if (r < 0)
        return r;
    return all ? whole(ctx, req, &x, wait_s, ret, err)
               : sample(ctx, req, x, ret, err);
}
