/* The worker protocol of schema/wire.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "schema/wire.h"
#include "server/checkpoint.h"
#include "server/chunk.h"
#include "server/handle.h"
#include "server/job.h"
#include "server/lease.h"
#include "server/room.h"
#include "server/server.h"

int handle_lease_list(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
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
        r = lease_list(ctx->st, id, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

static bool stopping(const struct ctx *ctx)
{
    return ctx->server && atomic_load(&ctx->server->shutting_down);
}

int handle_lease_claim(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    struct worker_claim in = {0};
    json_t *out = NULL;
    int r = need_body(req, err);
    if (r >= 0)
        r = worker_claim_parse(req->json, &in, err);
    if (r < 0)
        return r;
    if (stopping(ctx))
        return reply_empty(ret, 204);
    r = lease_claim(ctx->st, &in, ctx->now_ms, ctx->mono_ms, &out, err);
    if (r < 0)
        return r;
    if (r > 0)
        return reply_json(ret, 201, out);
    int64_t until = req_deadline(req, ctx, 0) + (int64_t)(in.wait_s * 1000);
    if (req->last_wait || in.wait_s <= 0)
        return reply_empty(ret, 204);
    return reply_wait(ret, NOTIFY_QUEUE, until);
}

int handle_lease_heartbeat(struct ctx *ctx, struct request *req,
                           struct reply *ret, struct err *err)
{
    int64_t id, token;
    struct report in;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    if (r >= 0)
        r = report_parse(req->json, &token, &in, err);
    if (r >= 0)
        r = lease_heartbeat(ctx->st, id, token, &in, stopping(ctx), ctx->now_ms,
                            ctx->mono_ms, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}

/* ---- chunks ---- */

/* Is the lease live and the token its own? On READ, with pawl.db. */
int handle_chunk_head_prepare(struct ctx *ctx, struct request *req,
                              struct reply *ret, struct err *err)
{
    int64_t id, token = 0;
    int r = req_id(req, "id", &id, err);
    if (r < 0)
        return r;
    const char *text = req_header(req, WIRE_TOKEN_HEADER);
    char *end;
    if (!text)
        return err_set(err, ERR_INVALID, "the header %s is missing",
                       WIRE_TOKEN_HEADER);
    token = strtoll(text, &end, 10);
    if (!*text || *end)
        return err_set(err, ERR_INVALID, "the header %s is no integer",
                       WIRE_TOKEN_HEADER);
    return lease_check(ctx->st, id, token, err);
}

/* And are the bytes those that the name says? */
int handle_chunk_prepare(struct ctx *ctx, struct request *req,
                         struct reply *ret, struct err *err)
{
    int r = handle_chunk_head_prepare(ctx, req, ret, err);
    if (r < 0)
        return r;
    struct chunk *in = malloc(sizeof(*in));
    if (!in)
        return err_set(err, ERR_NOMEM, "no memory for a chunk");
    req->prepared = in;
    req->prepared_free = free;
    return chunk_check(req_param(req, "sha256"), req->body.data, req->body.len,
                       in, err);
}

int handle_chunk_put(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = room_check(ctx->server->room, ctx->st, id, (int64_t)req->body.len,
                       ctx->mono_ms, err);
    if (r >= 0)
        r = chunk_store(ctx->st, id, req->prepared, err);
    if (r < 0)
        return r;
    room_used(ctx->server->room, id, (int64_t)req->body.len, ctx->mono_ms);
    return reply_empty(ret, 204);
}

/* It is a write: the lease holds the chunk from then on. */
int handle_chunk_head(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = chunk_hold(ctx->st, id, req_param(req, "sha256"), err);
    return r < 0 ? r : reply_empty(ret, r ? 200 : 404);
}

/* ---- checkpoint ---- */

struct checkpoint_request {
    int64_t token;
    struct checkpoint_in in;
    struct release release;
    bool releases;
};

int handle_lease_checkpoint_prepare(struct ctx *ctx, struct request *req,
                                    struct reply *ret, struct err *err)
{
    int64_t id;
    struct json_read in;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    if (r < 0)
        return r;
    struct checkpoint_request *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    req->prepared = c;
    req->prepared_free = free;
    json_read_open(&in, req->json, "", err, "token", "manifest", "release",
                   NULL);
    json_read_need(&in, "token");
    json_read_need(&in, "manifest");
    c->token = json_read_int(&in, "token", 0, JSON_INT_MAX, 0);
    const json_t *manifest = json_read_object(&in, "manifest");
    const json_t *release = json_read_object(&in, "release");
    if (in.r < 0)
        return in.r;
    c->releases = release != NULL;
    if (release) {
        r = release_parse(release, "/release", NULL, &c->release, err);
        if (r < 0)
            return r;
    }
    return checkpoint_prepare(ctx->st, ctx->chunks, id, c->token, manifest,
                              release && c->release.outcome == OUTCOME_FINISHED,
                              &c->in, err);
}

int handle_lease_checkpoint(struct ctx *ctx, struct request *req,
                            struct reply *ret, struct err *err)
{
    const struct checkpoint_request *c = req->prepared;
    int64_t id;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = lease_checkpoint(ctx->st, id, c->token, &c->in,
                             c->releases ? &c->release : NULL, ctx->now_ms,
                             ctx->mono_ms, &out, err);
    if (r < 0)
        return r;
    room_drop(ctx->server->room, id);
    return reply_json(ret, 201, out);
}

/* ---- release ---- */

struct release_request {
    int64_t token;
    struct release in;
};

int handle_lease_release_prepare(struct ctx *ctx, struct request *req,
                                 struct reply *ret, struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    if (r < 0)
        return r;
    struct release_request *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a release");
    req->prepared = c;
    req->prepared_free = free;
    r = release_parse(req->json, "", &c->token, &c->in, err);
    if (r >= 0 && c->in.outcome == OUTCOME_FINISHED)
        r = checkpoint_verify_saved(ctx->st, ctx->chunks, id, err);
    return r < 0 ? r : 0;
}

int handle_lease_release(struct ctx *ctx, struct request *req,
                         struct reply *ret, struct err *err)
{
    const struct release_request *c = req->prepared;
    int64_t id;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = lease_release(ctx->st, id, c->token, &c->in, ctx->now_ms,
                          ctx->mono_ms, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
