#include <inttypes.h>
#include <stdio.h>
#include "server/checkpoint.h"
#include "server/cycle.h"
#include "server/handle.h"
#include "server/job.h"
#include "server/reply.h"
#include "server/retention.h"
#include "server/server.h"
#include "schema/json_read.h"

int handle_checkpoint_list(struct ctx *ctx, struct request *req,
                           struct reply *ret, struct err *err)
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
        r = checkpoint_list(ctx->st, id, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_checkpoint_get(struct ctx *ctx, struct request *req,
                          struct reply *ret, struct err *err)
{
    int64_t id;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = checkpoint_get(ctx->st, id, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}

int handle_checkpoint_patch(struct ctx *ctx, struct request *req,
                            struct reply *ret, struct err *err)
{
    int64_t id;
    struct json_read in;
    json_t *out = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = need_body(req, err);
    if (r < 0)
        return r;
    json_read_open(&in, req->json, "", err, "pinned", NULL);
    json_read_need(&in, "pinned");
    bool pinned = json_read_bool(&in, "pinned", false);
    r = in.r;
    if (r >= 0)
        r = retention_pin(ctx->st, id, pinned, ctx->now_ms, err);
    if (r >= 0)
        r = checkpoint_get(ctx->st, id, &out, err);
    if (r < 0)
        return r;
    json_object_del(out, "manifest");
    return reply_json(ret, 200, out);
}

int handle_checkpoint_delete(struct ctx *ctx, struct request *req,
                             struct reply *ret, struct err *err)
{
    int64_t id;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = no_body(req, err);
    if (r >= 0)
        r = retention_delete(ctx->st, id, ctx->now_ms, err);
    return r < 0 ? r : reply_empty(ret, 204);
}

/* ---- bytes ---- */

struct damage {
    int64_t id;
    const char *why;
};

static int set_aside(void *arg, struct ctx *ctx, struct err *err)
{
    const struct damage *d = arg;
    return checkpoint_set_aside(ctx->st, d->id, "server", d->why, ctx->now_ms,
                                err);
}

/* Whoever finds damage says so, a reader, too: no claim shall go on from there.
 * The answer is about the damage, whatever becomes of this. */
static int tell(struct ctx *ctx, int64_t id, int r, const struct err *err)
{
    if (r == ERR_CORRUPT) {
        struct damage d = {id, err->text};
        struct err own;
        if (lanes_call(ctx->server->lanes, LANE_WRITE, set_aside, &d, &own) < 0)
            fprintf(stderr, "pawld: checkpoint %" PRId64 ": %s\n", id,
                    own.text);
    }
    return r;
}

static int64_t read_body(struct ctx *ctx, void *source, int64_t offset,
                         char *out, size_t len, struct err *err)
{
    int64_t n =
        checkpoint_body_read(source, ctx->chunks, offset, out, len, err);
    return n < 0 ? tell(ctx, checkpoint_body_id(source), (int)n, err) : n;
}

static int reply_checkpoint(struct ctx *ctx, struct request *req,
                            struct reply *ret, const struct checkpoint *c,
                            bool model, const char *filename, struct err *err)
{
    struct checkpoint_body *body = NULL;
    int r = checkpoint_is_whole(c)
                ? checkpoint_body_new(ctx->st, c, model, &body, err)
                : err_set(err, ERR_CORRUPT,
                          "the manifest of checkpoint %" PRId64
                          " is damaged in pawl.db",
                          c->id);
    if (r < 0)
        return tell(ctx, c->id, r, err);
    const char *digest = model ? c->model_sha256 : c->digest;
    char etag[DIGEST_HEX + 2];
    snprintf(etag, sizeof(etag), "\"%s\"", digest);
    if (!etag_matches(req_header(req, "If-None-Match"), etag)) {
        /* damage is an answer, not a transfer that breaks off */
        int64_t first = 0, count, whole = checkpoint_body_bytes(body);
        if (range_parse(req_header(req, "Range"), whole, &first, &count) <= 0)
            first = 0;
        r = checkpoint_body_check(body, ctx->chunks, first, err);
        if (r < 0) {
            checkpoint_body_free(body);
            return tell(ctx, c->id, r, err);
        }
    }
    return reply_body(ret, "application/octet-stream", digest, filename,
                      checkpoint_body_bytes(body), read_body, body,
                      checkpoint_body_free);
}

int handle_checkpoint_state(struct ctx *ctx, struct request *req,
                            struct reply *ret, struct err *err)
{
    int64_t id;
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = checkpoint_load(ctx->st, id, &c, err);
    if (r < 0)
        return r;
    char name[64];
    snprintf(name, sizeof(name), "checkpoint-%" PRId64 ".safetensors", id);
    return reply_checkpoint(ctx, req, ret, &c, false, name, err);
}

/* The checkpoint that holds a job's model: the one asked for, or the last that
 * finished a cycle. */
static int model_of(struct ctx *ctx, int64_t job, int64_t asked,
                    struct checkpoint *ret, struct err *err)
{
    struct cycle c;
    int r;
    if (asked) {
        r = checkpoint_load(ctx->st, asked, ret, err);
        if (r >= 0 && ret->job != job)
            return err_set(err, ERR_NOT_FOUND,
                           "checkpoint %" PRId64 " is not of job %" PRId64,
                           asked, job);
        return r;
    }
    r = cycle_last_done(ctx->st, job, &c, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "job %" PRId64 " has finished no cycle yet; "
                       "?checkpoint=ID gives the model of a checkpoint",
                       job);
    return checkpoint_load(ctx->st, c.checkpoint, ret, err);
}

int handle_model(struct ctx *ctx, struct request *req, struct reply *ret,
                 struct err *err)
{
    int64_t id, asked;
    CLEANUP(job_release) struct job j = {0};
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = req_query_int(req, "checkpoint", 1, INT64_MAX, 0, &asked, err);
    if (r >= 0)
        r = job_load_part(ctx->st, id, 0, &j, err);
    if (r >= 0)
        r = model_of(ctx, id, asked, &c, err);
    if (r < 0)
        return r;
    char name[64];
    snprintf(name, sizeof(name), "model-%" PRId64 ".safetensors", id);
    return reply_checkpoint(ctx, req, ret, &c, true, name, err);
}
