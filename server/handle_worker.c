#include "server/handle.h"
#include "server/worker.h"

int handle_worker_list(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    int64_t limit, cursor;
    json_t *page = NULL;
    int r = page_params(req, &limit, &cursor, err);
    if (r >= 0)
        r = worker_list(ctx->st, cursor, limit, ctx->now_ms, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_worker_drain(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    int64_t id;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = no_body(req, err);
    if (r >= 0)
        r = worker_drain(ctx->st, id, ctx->now_ms, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
