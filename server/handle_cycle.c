#include <inttypes.h>
#include <stdio.h>
#include "schema/spec.h"
#include "server/cycle.h"
#include "server/handle.h"
#include "server/job.h"
#include "server/root.h"

/* Is there a file below the root, if it is one? To list it may take long, and
 * needs no writer. What else is wrong the handler says. */
int handle_cycle_prepare(struct ctx *ctx, struct request *req,
                         struct reply *ret, struct err *err)
{
    int64_t id;
    CLEANUP(job_release) struct job j = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    AUTO_JSON json_t *own = NULL;
    struct err none;
    const json_t *data = json_object_get(req->json, "data");
    int r = req_id(req, "id", &id, &none);
    if (r >= 0)
        r = job_load_part(ctx->st, id, JOB_SPEC | JOB_RUNTIME | JOB_LABELS, &j,
                          &none);
    if (r >= 0 && json_is_object(data))
        r = job_own_spec(&j, data, NULL, &own, &none);
    if (r >= 0)
        r = spec_parse(own ? own : j.spec, &spec, &none);
    if (r < 0 || !spec.data.root || spec.data.max_uses > 0)
        return 0;
    r = root_has_data(&spec.data, err);
    if (r != ERR_INVALID)
        return 0;
    struct err why = *err; /* unless it was answered when there was one */
    r = handle_once(ctx, req, ret, err);
    if (r == 0)
        *err = why;
    return r == 0 ? why.code : r < 0 ? r : 0;
}

int handle_cycle_post(struct ctx *ctx, struct request *req, struct reply *ret,
                      struct err *err)
{
    int64_t id, number;
    bool ended;
    json_t *cycle = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0 && req->json)
        r = need_body(req, err);
    if (r >= 0)
        r = handle_once(ctx, req, ret, err);
    if (r)
        return r < 0 ? r : 0;
    r = job_add_cycle(ctx->st, id, req->json, ctx->now_ms, &number, err);
    if (r >= 0)
        r = cycle_get(ctx->st, id, number, &cycle, &ended, err);
    if (r < 0)
        return r;
    char at[80];
    snprintf(at, sizeof(at), "/v1/jobs/%" PRId64 "/cycles/%" PRId64, id,
             number);
    reply_header(ret, "Location", at);
    return reply_once(ctx, req, ret, 201, cycle, err);
}

int handle_cycle_list(struct ctx *ctx, struct request *req, struct reply *ret,
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
        r = cycle_list(ctx->st, id, cursor, limit, &page, err);
    return r < 0 ? r : reply_json(ret, 200, page);
}

int handle_cycle_get(struct ctx *ctx, struct request *req, struct reply *ret,
                     struct err *err)
{
    int64_t id, n, wait, data;
    bool ended = false;
    AUTO_JSON json_t *cycle = NULL;
    int r = req_id(req, "id", &id, err);
    if (r >= 0)
        r = req_id(req, "n", &n, err);
    if (r >= 0)
        r = wait_param(req, &wait, err);
    if (r >= 0)
        r = req_query_int(req, "data", 0, 1, 0, &data, err);
    if (r >= 0)
        r = cycle_get(ctx->st, id, n, &cycle, &ended, err);
    if (r < 0)
        return r;
    if (wait > 0 && !ended && !req->last_wait)
        return reply_wait(ret, NOTIFY_JOB, req_deadline(req, ctx, wait));
    json_t *shards = NULL;
    r = data ? cycle_shards(ctx->st, id, n, &shards, err) : 0;
    if (r < 0)
        return r;
    if (data)
        json_object_set_new(cycle, "data", shards ? shards : json_null());
    return reply_json(ret, 200, json_incref(cycle));
}
