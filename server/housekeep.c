#include "server/housekeep.h"
#include "server/backup.h"
#include "server/chunk.h"
#include "server/dataset.h"
#include "server/lane.h"
#include "server/lease.h"
#include "server/once.h"
#include "server/partial.h"
#include "server/retention.h"
#include "server/room.h"
#include "server/server.h"
#include "server/survey.h"
#include "server/root.h"
#include "server/unfit.h"
#include "server/worker.h"

#define PRUNE_BEATS 5
#define FORGET_BEATS 600
#define SWEEP_CHUNKS 2048 /* looked at in one go */

static int on_write(void *arg, struct ctx *ctx, struct err *err)
{
    struct housekeep *h = arg;
    int r = lease_tick(ctx->st, ctx->now_ms, ctx->mono_ms, err);
    if (r >= 0)
        r = room_tick(ctx->server->room, ctx->st, ctx->chunks, ctx->now_ms,
                      ctx->mono_ms, err);
    if (r >= 0)
        r = unfit_tell(ctx->st, ctx->now_ms, err);
    if (r >= 0)
        r = survey_tick(ctx->st, ctx->now_ms, err);
    if (r >= 0 && backups_may_sweep(ctx->server->backups, h->turn))
        r = dataset_unlink(ctx->st, h->doomed, err);
    if (r >= 0 && h->beats % PRUNE_BEATS == 0)
        r = retention_prune(ctx->st, &h->job_after, ctx->now_ms, err);
    if (h->beats % FORGET_BEATS == 0)
        partials_expire(ctx->server->partials, ctx->mono_ms);
    if (r >= 0 && h->beats % FORGET_BEATS == 0)
        r = once_prune(ctx->st, ctx->now_ms, err);
    if (r >= 0 && h->beats % FORGET_BEATS == 1 && /* at the start as well */
        backups_may_sweep(ctx->server->backups, h->turn))
        r = root_sweep_copies(ctx->st, err);
    if (r >= 0 && h->beats % FORGET_BEATS == 0)
        r = worker_prune(ctx->st, ctx->now_ms, err);
    return r;
}

/* What a backup copies it shall find: nothing is removed meanwhile. */
static int on_look(void *arg, struct ctx *ctx, struct err *err)
{
    struct housekeep *h = arg;
    h->turn = backups_turn(ctx->server->backups);
    return h->turn < 0 ? 0 : dataset_doomed(ctx->st, &h->doomed, err);
}

struct sweeping {
    struct housekeep *h;
    struct chunk_sweep sweep;
};

static int on_read(void *arg, struct ctx *ctx, struct err *err)
{
    struct sweeping *s = arg;
    s->h->turn = backups_turn(ctx->server->backups);
    if (s->h->turn < 0)
        return 0;
    return chunk_sweep_find(ctx->st, ctx->chunks, &s->h->chunk_after,
                            SWEEP_CHUNKS, &s->sweep, err);
}

static int on_chunk(void *arg, struct ctx *ctx, struct err *err)
{
    struct sweeping *s = arg;
    if (!backups_may_sweep(ctx->server->backups, s->h->turn))
        return 0; /* what was found is found again */
    return chunk_sweep_run(ctx->st, &s->sweep, err);
}

int housekeep_tick(struct housekeep *h, struct lanes *lanes, struct err *err)
{
    h->beats++;
    int r = lanes_call(lanes, LANE_READ, on_look, h, err);
    if (r >= 0)
        r = lanes_call(lanes, LANE_WRITE, on_write, h, err);
    json_decref(h->doomed);
    h->doomed = NULL;
    if (r < 0 || h->turn < 0 || h->beats % PRUNE_BEATS)
        return r;
    struct sweeping s = {.h = h};
    r = lanes_call(lanes, LANE_READ, on_read, &s, err);
    /* now and then also without orphans: ended leases let go of holds */
    if (r > 0 || (r == 0 && h->beats % FORGET_BEATS == 0))
        r = lanes_call(lanes, LANE_CHUNK, on_chunk, &s, err);
    chunk_sweep_release(&s.sweep);
    return r;
}
