#include "server/handle.h"
#include <stdlib.h>
#include <string.h>
#include "schema/wire.h"
#include "server/once.h"

#define LIMIT_DEFAULT 50
#define LIMIT_MAX 1000

int page_params(const struct request *req, int64_t *ret_limit,
                int64_t *ret_cursor, struct err *err)
{
    const char *cursor = req_query(req, "cursor");
    *ret_cursor = 0;
    if (cursor) {
        size_t n = strspn(cursor, "0123456789");
        if (!n || cursor[n] || n > 18)
            return err_at(err, ERR_INVALID, "cursor",
                          "'cursor' is what a list before said as \"next\"");
        *ret_cursor = strtoll(cursor, NULL, 10);
    }
    return req_query_int(req, "limit", 1, LIMIT_MAX, LIMIT_DEFAULT, ret_limit,
                         err);
}

int wait_param(const struct request *req, int64_t *ret_s, struct err *err)
{
    return req_query_int(req, "wait", 0, WIRE_WAIT_MAX_S, 0, ret_s, err);
}

int no_body(const struct request *req, struct err *err)
{
    if (!req->json ||
        (json_is_object(req->json) && !json_object_size(req->json)))
        return 0;
    return err_at(err, ERR_INVALID, "", "this takes no body");
}

int need_body(const struct request *req, struct err *err)
{
    if (json_is_object(req->json))
        return 0;
    return err_at(err, ERR_INVALID, "", "the body must be a JSON object");
}

int handle_once(struct ctx *ctx, struct request *req, struct reply *ret,
                struct err *err)
{
    const char *key = req_header(req, "Idempotency-Key");
    if (!key)
        return 0;
    int status;
    json_t *answer = NULL;
    int r =
        once_find(ctx->st, req->path, key, req->json, &status, &answer, err);
    if (r <= 0)
        return r;
    reply_header(ret, "Idempotent-Replayed", "true");
    r = reply_json(ret, status, answer);
    return r < 0 ? r : 1;
}

int reply_once(struct ctx *ctx, struct request *req, struct reply *ret,
               int status, json_t *body, struct err *err)
{
    const char *key = req_header(req, "Idempotency-Key");
    if (key) {
        int r = once_keep(ctx->st, req->path, key, req->json, status, body,
                          ctx->now_ms, err);
        if (r < 0) {
            json_decref(body);
            return r;
        }
    }
    return reply_json(ret, status, body);
}
