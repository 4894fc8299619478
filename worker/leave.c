#include "worker/leave.h"
#include <inttypes.h>
#include <stdio.h>
#include "schema/cleanup.h"

bool leave_is_refusal(int e)
{
    return e == ERR_STALE || e == ERR_NOT_FOUND;
}

static int release_alone(struct run *r, json_t *release, struct err *err)
{
    beat_flush(r->beat, run_give_up, r);
    int e = beat_report(r->beat, release, err);
    if (e < 0)
        return e;
    json_object_set_new(release, "token", json_integer(r->token));
    char path[96];
    snprintf(path, sizeof path, "/v1/leases/%" PRId64 "/release", r->lease);
    struct request rq = {
        .method = "POST", .path = path, .json = release, .timeout_s = 60};
    CLEANUP(answer_release) struct answer a = {0};
    e = client_insist(r->client, &rq, &a, run_give_up, r, err);
    beat_reported(r->beat, e == 0);
    return e;
}

/* End the lease: with a checkpoint when there are steps that none covers. */
static int leave(struct run *r, json_t *release, bool with_state,
                 struct err *err)
{
    r->tries = 0;
    run_tell_data(r, NULL);
    run_set_stage(r, "save");
    if (with_state && !r->unsaved && r->saver &&
        saver_wants(r->saver, r->progress.step))
        return saver_leave(r->saver, &r->progress, release, &r->state_bytes,
                           err);
    return release_alone(r, release, err);
}

int leave_finished(struct run *r, struct err *err)
{
    AUTO_JSON json_t *release = json_pack("{s:s, s:s}", "outcome", "finished",
                                          "reason", "all epochs are trained");
    int e = leave(r, release, true, err);
    if (e == 0)
        beat_say(r->beat, "info", "finished at step %" PRId64,
                 r->progress.step);
    return e;
}

int leave_yielded(struct run *r, const char *reason, const char *detail,
                  struct err *err)
{
    beat_say(r->beat, "info", "yields at step %" PRId64 ": %s%s%s",
             r->progress.step, reason, *detail ? ": " : "", detail);
    AUTO_JSON json_t *release =
        json_pack("{s:s, s:s, s:s}", "outcome", "yielded", "reason", reason,
                  "detail", detail);
    return leave(r, release, true, err);
}

/* Errors that come again however often they are tried. */
static bool is_final(int e)
{
    return e == ERR_DATA || e == ERR_INVALID || e == ERR_NOT_FINITE;
}

int leave_failed(struct run *r, const struct err *why, int64_t bad_checkpoint,
                 struct err *err)
{
    beat_say(r->beat, "error", "%s", why->text);
    AUTO_JSON json_t *error =
        json_pack("{s:s, s:s, s:b}", "code", err_word(why->code), "detail",
                  why->text, "final", is_final(why->code));
    if (!error)
        error = json_pack("{s:s, s:s, s:b}", "code", err_word(why->code),
                          "detail", "an error that is not text", "final",
                          is_final(why->code));
    if (why->shard[0]) {
        json_object_set_new(error, "shard", json_string(why->shard));
        json_object_set_new(error, "offset", json_integer(why->offset));
        if (why->line > 0)
            json_object_set_new(error, "line", json_integer(why->line));
    }
    if (why->field[0])
        json_object_set_new(error, "field", json_string(why->field));
    json_object_set_new(
        error, "stage",
        json_string(why->code == ERR_OOM ? r->oom_stage : r->progress.stage));
    if (bad_checkpoint)
        json_object_set_new(error, "checkpoint", json_integer(bad_checkpoint));
    if (why->code == ERR_NOSPACE && r->state_bytes) {
        json_object_set_new(error, "bytes", json_integer(r->state_bytes));
        json_object_set_new(error, "missing_bytes",
                            json_integer(why->missing_bytes));
    }
    AUTO_JSON json_t *release =
        json_pack("{s:s, s:O, s:O}", "outcome", "failed", "reason",
                  json_object_get(error, "detail"), "error", error);
    if (!release)
        return err_set(err, ERR_NOMEM, "no memory to report a failure");
    /* the state before a step that failed for its data is a good one */
    bool with_state = why->code == ERR_DATA || why->code == ERR_NOT_FINITE;
    if (with_state && r->trainer)
        trainer_discard(r->trainer);
    int e = leave(r, release, with_state, err);
    if (with_state && (e == ERR_NOSPACE ||
                       (e < 0 && !client_retriable(e) && !leave_is_refusal(e))))
        e = leave(r, release, false, err); /* then without it */
    return e;
}
