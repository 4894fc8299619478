#include "server/cycle.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/spec.h"
#include "server/copies.h"
#include "server/event.h"
#include "server/job.h"
#include "server/page.h"
#include "server/snapshot.h"
#include "server/uses.h"
#include "server/when.h"

static void row(const struct stmt *q, struct cycle *c)
{
    *c = (struct cycle){
        .id = col_int(q, 0),
        .job = col_int(q, 1),
        .number = col_int(q, 2),
        .token = col_int(q, 4),
        .step_base = col_int(q, 5),
        .initial = col_int(q, 6),
        .records = col_int(q, 7),
        .epochs = col_int(q, 8),
        .steps = col_null(q, 9) ? -1 : col_int(q, 9),
        .step = col_int(q, 10),
        .saved_step = col_int(q, 11),
        .best_step = col_int(q, 12),
        .failures = col_int(q, 13),
        .lost = col_int(q, 14),
        .no_progress = col_int(q, 15),
        .not_before_ms = col_int(q, 16),
        .checkpoint = col_int(q, 17),
        .parked_ms = col_int(q, 21),
    };
    snprintf(c->state, sizeof(c->state), "%s", col_text(q, 3));
    snprintf(c->signature, sizeof(c->signature), "%s", col_text(q, 18));
    snprintf(c->data_digest, sizeof(c->data_digest), "%s", col_text(q, 19));
    snprintf(c->model_sha256, sizeof(c->model_sha256), "%s", col_text(q, 20));
}

static int one(struct store *st, enum sql_id id, const char *key, int64_t v,
               struct cycle *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, id);
    stmt_int(&q, key, v);
    int r = stmt_row(&q, err);
    if (r > 0)
        row(&q, ret);
    return r;
}

int cycle_load(struct store *st, int64_t id, struct cycle *ret, struct err *err)
{
    int r = one(st, SQL_CYCLE_LOAD, ":id", id, ret, err);
    return r ? r : err_set(err, ERR_NOT_FOUND, "there is no such cycle");
}

int cycle_open(struct store *st, int64_t job, struct cycle *ret,
               struct err *err)
{
    return one(st, SQL_CYCLE_OPEN, ":job", job, ret, err);
}

int cycle_last_done(struct store *st, int64_t job, struct cycle *ret,
                    struct err *err)
{
    return one(st, SQL_CYCLE_LAST_DONE, ":job", job, ret, err);
}

int cycle_spec_json(struct store *st, const struct cycle *c, json_t **ret,
                    struct err *err)
{
    json_t *spec = NULL;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_SPEC);
    stmt_int(&q, ":id", c->id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r > 0)
        spec = col_json(&q, 0);
    if (!spec)
        return err_set(err, ERR_DB, "the spec of cycle %" PRId64 " is gone",
                       c->id);
    *ret = spec;
    return 0;
}

int cycle_spec(struct store *st, const struct cycle *c, struct spec *ret,
               struct err *err)
{
    AUTO_JSON json_t *spec = NULL;
    int r = cycle_spec_json(st, c, &spec, err);
    return r < 0 ? r : spec_parse(spec, ret, err);
}

int cycle_add(struct store *st, int64_t job, int64_t number,
              const json_t *own_spec, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_ADD);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":number", number);
    stmt_json(&q, ":spec", own_spec);
    stmt_int(&q, ":now", now_ms);
    return (int)stmt_run(&q, err);
}

static int keep_snapshot(struct store *st, int64_t cycle, const json_t *data,
                         struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SNAPSHOT_ADD);
    stmt_int(&q, ":cycle", cycle);
    stmt_json(&q, ":data", data);
    return (int)stmt_run(&q, err);
}

int cycle_data(struct store *st, int64_t id, json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SNAPSHOT_GET);
    stmt_int(&q, ":cycle", id);
    int r = stmt_row(&q, err);
    json_t *data = r > 0 ? col_json(&q, 0) : NULL;
    if (r < 0 || !data)
        return r < 0 ? r
                     : err_set(err, ERR_DB,
                               "the data snapshot of a cycle is gone");
    snapshot_place(st, data);
    *ret = data;
    return 0;
}

/* What the cycle starts from: the end of the one before. */
static int find_initial(struct store *st, struct cycle *c, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_BEFORE);
    stmt_int(&q, ":job", c->job);
    stmt_int(&q, ":number", c->number);
    int r = stmt_row(&q, err);
    if (r > 0) {
        c->initial = col_int(&q, 0);
        c->step_base = col_int(&q, 1);
    }
    return r;
}

void (*cycle_wants_survey)(int64_t cycle);

int cycle_check_data(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(spec_release) struct spec spec = {0};
    CLEANUP(snapshot_release) struct snapshot s = {0};
    struct cycle c = {.id = id};
    int r = cycle_spec(st, &c, &spec, err);
    if (r >= 0)
        r = snapshot_make(st, &spec, 0, NULL, &s, err);
    return r < 0 ? r : 0;
}

/* What reading found, what it waits for, and whether what it was frozen to is in
 * doubt. */
static int load_survey(struct store *st, int64_t id, json_t **ret, char *waits,
                       size_t cap, bool *ret_doubt, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_SURVEY);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    *ret = r > 0 ? col_json(&q, 0) : NULL;
    snprintf(waits, cap, "%s", r > 0 ? col_text(&q, 1) : "");
    *ret_doubt = r > 0 && !strcmp(col_text(&q, 2), "doubt");
    return 0;
}

static int say_waits(struct store *st, int64_t id, const char *waits,
                     const char *looked, int64_t look_ms, const char *reason,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_WAITS);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":waits", waits);
    stmt_text(&q, ":looked", looked);
    stmt_int(&q, ":look_ms", look_ms);
    stmt_text(&q, ":reason", reason);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 1;
}

static int wait_for_survey(struct store *st, int64_t id, const char *waits,
                           int64_t now_ms, struct err *err)
{
    int r = 1;
    if (!waits[0])
        r = say_waits(st, id, "data", NULL, now_ms, "reads its data", err);
    if (r > 0 && cycle_wants_survey)
        cycle_wants_survey(id);
    return r;
}

/* The next look is when a shard has come; below a root, after a while. */
static int wait_for_records(struct store *st, int64_t id,
                            const struct spec *spec, const struct snapshot *s,
                            int64_t now_ms, struct err *err)
{
    char why[128], looked[64] = "";
    snprintf(why, sizeof(why), "waits for %" PRId64 " new record%s (max_uses)",
             s->wanted, s->wanted == 1 ? "" : "s");
    if (spec->data.dataset) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_LOOK);
        stmt_text(&q, ":name", spec->data.dataset);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        snprintf(looked, sizeof(looked), "%s", col_text(&q, 0));
    }
    return say_waits(st, id, "records", looked, now_ms + CYCLE_LOOK_MS, why,
                     err);
}

/* What the data decides, now that it is known. */
static int freeze_done(struct store *st, const struct cycle *c, json_t *data,
                       int64_t now_ms, struct err *err)
{
    snapshot_place(st, data); /* it is stored */
    return job_choose_sizes(st, c->job, data, now_ms, err);
}

/* The data is frozen: all that is fixed with it. Once for each cycle. */
static int freeze(struct store *st, struct cycle *c, const struct spec *spec,
                  const struct snapshot *s, int64_t now_ms, struct err *err)
{
    int r = find_initial(st, c, err);
    if (r < 0)
        return r;
    snprintf(c->data_digest, sizeof(c->data_digest), "%s", s->digest);
    spec_cycle_signature(spec, c->data_digest, c->signature);
    c->records = s->records;
    c->epochs = spec->training.epochs;
    c->steps = s->steps;
    snprintf(c->state, sizeof(c->state), "ready");
    r = keep_snapshot(st, c->id, s->data, err);
    if (r >= 0)
        r = uses_keep(st, spec, c->job, s, err);
    if (r < 0)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_FREEZE);
    stmt_int(&q, ":id", c->id);
    stmt_text(&q, ":digest", c->data_digest);
    stmt_text(&q, ":signature", c->signature);
    stmt_int(&q, ":records", c->records);
    stmt_int(&q, ":epochs", c->epochs);
    stmt_int(&q, ":steps", c->steps);
    stmt_int(&q, ":base", c->step_base);
    if (c->initial)
        stmt_int(&q, ":initial", c->initial);
    if (s->take >= 0) {
        stmt_int(&q, ":fresh", s->fresh);
        stmt_int(&q, ":take", s->take);
        stmt_int(&q, ":uses_left", s->uses_left);
    }
    stmt_int(&q, ":now", now_ms);
    store_notify(st, NOTIFY_QUEUE);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : freeze_done(st, c, s->data, now_ms, err);
}

/* 1: some copy is missing; or there are some, and they are in doubt. */
static int has_to_look(struct store *st, int64_t id, bool doubt,
                       struct err *err)
{
    if (!doubt)
        return copies_missing(st, id, err);
    AUTO_JSON json_t *copies = json_array();
    int r = copies_of(st, id, copies, err);
    return r < 0 ? r : json_array_size(copies) > 0;
}

/* Frozen before: its time had to come, and its copies must be there. */
static int due(struct store *st, struct cycle *c, int64_t now_ms,
               struct err *err)
{
    AUTO_JSON json_t *survey = NULL;
    char waits[16];
    bool doubt;
    int look =
        load_survey(st, c->id, &survey, waits, sizeof(waits), &doubt, err);
    if (look >= 0 && !survey)
        look = waits[0] ? 1 : has_to_look(st, c->id, doubt, err);
    if (look > 0)
        return wait_for_survey(st, c->id, waits, now_ms, err);
    if (look >= 0)
        look = snapshot_refused(survey, err);
    if (look < 0)
        return look;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_DUE);
    stmt_int(&q, ":id", c->id);
    int64_t r = stmt_run(&q, err);
    if (r < 0)
        return (int)r;
    snprintf(c->state, sizeof(c->state), "ready");
    store_notify(st, NOTIFY_QUEUE);
    return 0;
}

int cycle_ready(struct store *st, struct cycle *c, int64_t now_ms,
                struct err *err)
{
    if (c->steps >= 0)
        return due(st, c, now_ms, err);
    CLEANUP(spec_release) struct spec spec = {0};
    CLEANUP(snapshot_release) struct snapshot s = {0};
    AUTO_JSON json_t *survey = NULL;
    char waits[16];
    bool doubt;
    int r = cycle_spec(st, c, &spec, err);
    if (r >= 0)
        r = load_survey(st, c->id, &survey, waits, sizeof(waits), &doubt, err);
    if (r >= 0)
        r = snapshot_make(st, &spec, c->job, survey, &s, err);
    if (r < 0)
        return r;
    if (r == 0)
        return wait_for_survey(st, c->id, waits, now_ms, err);
    if (s.wanted)
        return wait_for_records(st, c->id, &spec, &s, now_ms, err);
    return freeze(st, c, &spec, &s, now_ms, err);
}

int cycle_back(struct store *st, const struct cycle *c, int64_t now_ms,
               struct err *err)
{
    int r = copies_missing(st, c->id, err);
    if (r <= 0)
        return r;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_BACK);
        stmt_int(&q, ":id", c->id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    r = job_settle(st, c->job, false, now_ms, err);
    if (r >= 0)
        r = txn_commit(&txn, err);
    return r < 0 ? r : 1;
}

int cycle_again(struct store *st, const struct cycle *c, const char *reason,
                bool front, int64_t not_before_ms, int64_t step, int64_t epoch,
                int64_t records, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_AGAIN);
    stmt_int(&q, ":id", c->id);
    stmt_text(&q, ":state", not_before_ms ? "waiting" : "ready");
    stmt_text(&q, ":reason", reason);
    stmt_int(&q, ":front", front);
    if (not_before_ms)
        stmt_int(&q, ":not_before", not_before_ms);
    stmt_int(&q, ":step", step);
    stmt_int(&q, ":epoch", epoch);
    stmt_int(&q, ":records", records);
    stmt_int(&q, ":failures", c->failures);
    stmt_int(&q, ":lost", c->lost);
    stmt_int(&q, ":no_progress", c->no_progress);
    stmt_int(&q, ":saved", c->saved_step);
    stmt_int(&q, ":best", c->best_step);
    store_notify(st, NOTIFY_QUEUE);
    return (int)stmt_run(&q, err);
}

int cycle_reason(struct store *st, int64_t id, const char *reason,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_REASON);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":reason", reason);
    return (int)stmt_run(&q, err);
}

int cycle_done(struct store *st, const struct cycle *c, int64_t checkpoint,
               const char *model_sha256, int64_t step, int64_t now_ms,
               struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_DONE);
    stmt_int(&q, ":id", c->id);
    stmt_int(&q, ":checkpoint", checkpoint);
    stmt_text(&q, ":model", model_sha256);
    stmt_int(&q, ":step", step);
    stmt_int(&q, ":now", now_ms);
    return (int)stmt_run(&q, err);
}

int cycle_end(struct store *st, int64_t id, const char *state,
              const char *reason, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_END);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":state", state);
    stmt_text(&q, ":reason", reason);
    stmt_int(&q, ":now", now_ms);
    return (int)stmt_run(&q, err);
}

/* ---- JSON ---- */

static json_t *cycle_json(const struct stmt *q)
{
    json_t *j = json_pack(
        "{sI ss ss so sI so so so so}", "number", col_int(q, 1), "state",
        col_text(q, 2), "phase", col_text(q, 3), "reason",
        col_text_or_null(q, 4), "step", col_int(q, 5), "steps",
        col_int_or_null(q, 6), "digest", col_text_or_null(q, 7), "signature",
        col_text_or_null(q, 8), "model_sha256", col_text_or_null(q, 9));
    json_object_set_new(j, "records", col_int_or_null(q, 10));
    json_object_set_new(j, "epochs", /* known once its data is frozen */
                        col_null(q, 6) ? json_null()
                                       : json_integer(col_int(q, 11)));
    json_object_set_new(j, "checkpoint", col_int_or_null(q, 12));
    json_object_set_new(j, "failures", json_integer(col_int(q, 13)));
    json_object_set_new(j, "lost", json_integer(col_int(q, 14)));
    json_object_set_new(j, "no_progress", json_integer(col_int(q, 15)));
    json_object_set_new(j, "created_at", when_json(col_int(q, 16)));
    json_object_set_new(j, "started_at", when_json(col_int(q, 17)));
    json_object_set_new(j, "ended_at", when_json(col_int(q, 18)));
    json_object_set_new(j, "fresh", col_int_or_null(q, 19));
    json_object_set_new(j, "take", col_int_or_null(q, 20));
    return j;
}

int cycle_get(struct store *st, int64_t job, int64_t number, json_t **ret,
              bool *ret_ended, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_GET);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":number", number);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "job %" PRId64 " has no cycle %" PRId64, job, number);
    *ret = cycle_json(&q);
    *ret_ended = !col_null(&q, 18);
    return 0;
}

static json_t *shards_shown(const json_t *shards)
{
    static const char *const shown[] = {"name", "bytes", "records", "held_out",
                                        "weight"};
    json_t *out = json_array();
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)shards, i, s)
    {
        json_t *row = json_object();
        for (size_t k = 0; k < sizeof(shown) / sizeof(*shown); k++)
            if (json_object_get(s, shown[k]))
                json_object_set(row, shown[k], json_object_get(s, shown[k]));
        json_array_append_new(out, row);
    }
    return out;
}

int cycle_shards(struct store *st, int64_t job, int64_t number, json_t **ret,
                 struct err *err)
{
    AUTO_JSON json_t *data = NULL;
    int64_t id;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_GET);
        stmt_int(&q, ":job", job);
        stmt_int(&q, ":number", number);
        int r = stmt_row(&q, err);
        if (r <= 0 || col_null(&q, 6))
            return r < 0 ? r : 0;
        id = col_int(&q, 0);
    }
    int r = cycle_data(st, id, &data, err);
    if (r < 0)
        return r;
    const json_t *shards = json_object_get(data, "shards");
    json_object_set_new(data, "shards", shards_shown(shards));
    json_t *held = json_object_get(data, "validation");
    const json_t *own = json_object_get(held, "shards");
    if (own)
        json_object_set_new(held, "shards", shards_shown(own));
    *ret = json_incref(data);
    return 0;
}

int cycle_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 1, err)) > 0)
        page_add(&page, cycle_json(&q));
    return r < 0 ? r : page_end(&page, ret);
}
