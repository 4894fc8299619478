#include "server/handle.h"
#include "server/sweep.h"

int handle_sweep_list(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    int64_t limit, cursor;
    json_t *page = NULL;
    int r = page_params(req, &limit, &cursor, err);
    if (r >= 0)
        r = sweep_list(ctx->st, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_sweep_get(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    int64_t id, wait;
    bool ended;
    AUTO_JSON json_t *sweep = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = wait_param(req, &wait, err);
    if (r >= 0)
        r = sweep_get(ctx->st, id, &sweep, &ended, err);
    if (r < 0)
        return r;
    if (wait > 0 && !ended && !req->last_wait)
        return reply_wait(ret, NOTIFY_JOB, req_deadline(req, ctx, wait));
    return reply_json(ret, 200, json_incref(sweep));
}

typedef int ask_fn(struct store *st, int64_t id, int64_t now_ms,
                   struct err *err);

static int ask(struct ctx *ctx, struct request *req, struct reply *ret,
               ask_fn *fn, struct err *err)
{
    int64_t id;
    bool ended;
    json_t *sweep = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = no_body(req, err);
    if (r >= 0)
        r = fn(ctx->st, id, ctx->now_ms, err);
    if (r >= 0)
        r = sweep_get(ctx->st, id, &sweep, &ended, err);
    return r < 0 ? r : reply_json(ret, 200, sweep);
}

int handle_sweep_pause(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    return ask(ctx, req, ret, sweep_pause, err);
}

int handle_sweep_resume(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    return ask(ctx, req, ret, sweep_resume, err);
}

int handle_sweep_cancel(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    return ask(ctx, req, ret, sweep_cancel, err);
}

int handle_sweep_retry(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    return ask(ctx, req, ret, sweep_retry, err);
}
