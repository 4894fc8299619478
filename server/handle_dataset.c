#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "server/dataset.h"
#include "server/handle.h"
#include "server/partial.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/shard_text.h"
#include "server/transfer.h"
#include "server/upload.h"

/* How long it takes until it is known how much came of an upload that broke
 * off. */
#define SETTLE_S 5
#define SETTLE_POLL_MS 100

/* ---- uploads: before the body, after it, and in the database ---- */

/* If-None-Match: * is "only if there is none of that name". */
static int check_new(struct ctx *ctx, const struct request *req,
                     struct err *err)
{
    const char *match = req_header(req, "If-None-Match");
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    char sha256[DIGEST_HEX], etag[DIGEST_HEX + 2];
    if (!match || !*shard)
        return 0;
    int r = dataset_shard_sha256(ctx->st, name, shard, sha256, err);
    if (r <= 0)
        return r;
    snprintf(etag, sizeof(etag), "\"%s\"", sha256);
    return etag_matches(match, etag)
               ? err_set(err, ERR_PRECONDITION,
                         "shard '%s' of dataset '%s' exists", shard, name)
               : 0;
}

static int says_offset(struct request *req, int64_t offset, const char *why,
                       struct err *err)
{
    req->says_offset = true;
    req->upload_offset = offset;
    return err_set(err, ERR_RANGE,
                   "%s: go on at byte %" PRId64 " (Upload-Offset), or send the "
                   "whole body without Content-Range",
                   why, offset);
}

/* Does what came before fit what comes now? */
static int check_part(struct request *req, struct upload *u,
                      enum packing packing, int64_t first, int64_t total,
                      const struct intake_rules *rules, struct err *err)
{
    if (u->received != first)
        return says_offset(req, u->received, "the upload stopped elsewhere",
                           err);
    if (u->total >= 0 && u->total != total)
        return err_set(err, ERR_INVALID,
                       "the upload was begun as one of %" PRId64
                       " bytes, not of %" PRId64,
                       u->total, total);
    if (u->plan.packing != packing)
        return err_set(err, ERR_INVALID,
                       "the upload was begun with another Content-Encoding");
    if (strcmp(u->plan.rules ? u->plan.rules->digest : "",
               rules ? rules->digest : "")) {
        u->failed = true; /* its records were checked against something else */
        return says_offset(req, 0, "the dataset's description has changed",
                           err);
    }
    u->total = total;
    return upload_part(u, err);
}

/* Go on with an upload that broke off. */
static int resume(struct ctx *ctx, struct request *req, enum packing packing,
                  int64_t first, int64_t total,
                  const struct intake_rules *rules, struct err *err)
{
    struct partials *p = ctx->server->partials;
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    struct upload *u = partials_take(p, name, shard, ctx->mono_ms);
    if (!u && partials_under_way(p, name, shard))
        return err_set(err, ERR_BUSY,
                       "what came of it before is still being taken in");
    if (!u)
        return says_offset(req, 0, "nothing is kept of such an upload", err);
    int r = check_part(req, u, packing, first, total, rules, err);
    if (r < 0)
        partials_keep(p, name, shard, u, ctx->mono_ms);
    else
        req->upload = u;
    return r;
}

static int begin(struct ctx *ctx, struct request *req, enum packing packing,
                 bool by_name, struct err *err)
{
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    const char *length = req_header(req, "Content-Length");
    struct upload_plan plan = {
        .shard = *shard ? shard : NULL, .packing = packing, .by_name = by_name};
    int64_t first = 0, total = length ? strtoll(length, NULL, 10) : -1;
    int64_t comes = total;
    int r =
        transfer_range(req_header(req, "Content-Range"), &first, &total, err);
    if (r > 0 && !*shard)
        return err_set(err, ERR_INVALID,
                       "records are appended whole: Content-Range is for a "
                       "shard that has a name");
    if (r > 0 && comes >= 0 && comes != total - first)
        return err_set(err, ERR_INVALID,
                       "Content-Range and Content-Length disagree");
    if (r >= 0)
        r = dataset_rules(ctx->st, name, &plan.rules, err);
    if (r < 0)
        return r;
    if (first > 0) {
        r = resume(ctx, req, packing, first, total, plan.rules, err);
        intake_rules_free(plan.rules);
        return r;
    }
    upload_free(
        partials_take(ctx->server->partials, name, shard, ctx->mono_ms));
    r = upload_new(ctx->server->tmp_dir, &plan, &req->upload, err);
    if (r >= 0)
        req->upload->total = total;
    return r;
}

int handle_upload_begin(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    enum packing packing;
    bool by_name;
    uint8_t sum[DIGEST_BYTES];
    int r = dataset_name_check(name, "dataset", err);
    if (r >= 0 && *shard)
        r = dataset_name_check(shard, "shard", err);
    if (r >= 0)
        r = transfer_packing(req_header(req, "Content-Encoding"),
                             *shard ? shard : NULL, &packing, &by_name, err);
    if (r >= 0)
        r = transfer_digest(req_header(req, "Content-Digest"), sum, err);
    if (r >= 0)
        r = check_new(ctx, req, err);
    if (r >= 0)
        r = begin(ctx, req, packing, by_name, err);
    if (r >= 0 && *shard)
        partials_begin(ctx->server->partials, name, shard);
    return r;
}

int handle_upload_prepare(struct ctx *ctx, struct request *req,
                          struct reply *ret, struct err *err)
{
    const struct upload *u = req->upload;
    uint8_t sum[DIGEST_BYTES];
    if (u->total >= 0 && u->received != u->total)
        return err_set(err, ERR_INVALID,
                       "the body has %" PRId64 " bytes, not the %" PRId64
                       " that were announced",
                       u->received, u->total);
    int r = transfer_digest(req_header(req, "Content-Digest"), sum, err);
    if (r > 0 && memcmp(sum, u->sha256, DIGEST_BYTES) &&
        !(u->in_parts && !memcmp(sum, u->part_sha256, DIGEST_BYTES)))
        return err_set(err, ERR_INVALID,
                       "the bytes that came are not those of Content-Digest: "
                       "they were changed on the way");
    return r < 0 ? r : 0;
}

int handle_shard_put(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    const char *match = req_header(req, "If-None-Match");
    bool made = false;
    json_t *out = NULL;
    int r = dataset_put(
        ctx->st, req_param(req, "name"), req_param(req, "shard"), req->upload,
        match && !strcmp(match, "*"), ctx->now_ms, &made, &out, err);
    return r < 0 ? r : reply_json(ret, made ? 201 : 200, out);
}

int handle_records_post(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    char hex[DIGEST_HEX];
    json_t *out = NULL;
    digest_hex(req->upload->sha256, hex);
    if (!req->json) /* what Idempotency-Key takes for the body */
        req->json = json_string(hex);
    int r = handle_once(ctx, req, ret, err);
    if (r != 0)
        return r;
    r = dataset_append(ctx->st, req_param(req, "name"), req->upload,
                       ctx->now_ms, &out, err);
    return r < 0 ? r : reply_once(ctx, req, ret, 201, out, err);
}

int handle_dataset_put(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    const char *name = req_param(req, "name");
    bool made = false;
    json_t *out = NULL;
    int r = need_body(req, err);
    if (r >= 0)
        r = dataset_describe(ctx->st, name, req->json, ctx->now_ms, &made, err);
    if (r >= 0)
        r = dataset_get(ctx->st, name, &out, err);
    return r < 0 ? r : reply_json(ret, made ? 201 : 200, out);
}

/* ---- what there is ---- */

static void text_free(void *p)
{
    shard_text_close(p);
}

static int64_t text_read(struct ctx *ctx, void *source, int64_t offset,
                         char *out, size_t len, struct err *err)
{
    return shard_text_read(source, offset, out, len, err);
}

int handle_shard_get(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    const char *name = req_param(req, "name"), *shard = req_param(req, "shard");
    struct shard_file s;
    struct shard_text *text = NULL;
    int r = dataset_shard(ctx->st, name, shard, &s, err);
    if (r == ERR_NOT_FOUND && !strcmp(req->method, "HEAD") &&
        partials_under_way(ctx->server->partials, name, shard)) {
        /* it may have broken off just now, with much to be taken in still */
        if (ctx->mono_ms < req_deadline(req, ctx, SETTLE_S))
            return reply_wait(ret, 0, ctx->mono_ms + SETTLE_POLL_MS);
        return err_set(err, ERR_BUSY, "an upload of it is under way");
    }
    if (r == ERR_NOT_FOUND) { /* how far an upload came that broke off */
        req->says_offset = true;
        req->upload_offset =
            partials_offset(ctx->server->partials, name, shard, ctx->mono_ms);
    }
    if (r >= 0)
        r = shard_text_open(s.path, s.form, s.bytes, &text, err);
    return r < 0 ? r
                 : reply_body(ret, "application/x-ndjson", s.sha256, NULL,
                              s.bytes, text_read, text, text_free);
}

int handle_shard_delete(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    int r = dataset_delete(ctx->st, req_param(req, "name"),
                           req_param(req, "shard"), err);
    return r < 0 ? r : reply_empty(ret, 204);
}

int handle_dataset_delete(struct ctx *ctx, struct request *req,
                          struct reply *ret, struct err *err)
{
    int r = dataset_delete(ctx->st, req_param(req, "name"), NULL, err);
    return r < 0 ? r : reply_empty(ret, 204);
}

int handle_dataset_list(struct ctx *ctx, struct request *req, struct reply *ret,
                        struct err *err)
{
    int64_t limit, cursor;
    json_t *page = NULL;
    int r = page_params(req, &limit, &cursor, err);
    if (r >= 0)
        r = dataset_list(ctx->st, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_dataset_get(struct ctx *ctx, struct request *req, struct reply *ret,
                       struct err *err)
{
    json_t *out = NULL;
    int r = dataset_get(ctx->st, req_param(req, "name"), &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
