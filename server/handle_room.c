/* A worker asks for room on disk before it saves (room.h, schema/wire.h). */
#include <inttypes.h>
#include "schema/json_read.h"
#include "server/handle.h"
#include "server/lease.h"
#include "server/reply.h"
#include "server/room.h"
#include "server/server.h"

int handle_lease_room(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    int64_t id, missing = 0;
    struct json_read in;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    if (r < 0)
        return r;
    json_read_open(&in, req->json, "", err, "token", "bytes", "step", NULL);
    json_read_need(&in, "token");
    json_read_need(&in, "bytes");
    int64_t token = json_read_int(&in, "token", 0, JSON_INT_MAX, 0);
    int64_t bytes = json_read_int(&in, "bytes", 0, (int64_t)1 << 50, 0);
    int64_t step = json_read_int(&in, "step", 0, JSON_INT_MAX, 0);
    if (in.r < 0)
        return in.r;
    r = lease_check(ctx->st, id, token, err);
    if (r >= 0)
        r = room_ask(ctx->server->room, ctx->chunks, id, bytes, ctx->mono_ms,
                     &missing, err);
    if (r >= 0)
        r = room_told(ctx->st, id, token, step, missing, ctx->now_ms, err);
    if (r < 0 && r != ERR_NOSPACE)
        return r;
    if (r >= 0 && !missing)
        return reply_empty(ret, 204);
    if (r < 0) { /* not even that could be written down */
        if (err)
            err->missing_bytes = missing;
        return r;
    }
    struct err refusal;
    err_set(&refusal, ERR_NOSPACE,
            "a checkpoint of %" PRId64 " bytes finds no room in %s: %" PRId64
            " bytes are missing",
            bytes, ctx->server->dir, missing);
    refusal.missing_bytes = missing;
    return reply_problem(ret, &refusal, 507);
}
