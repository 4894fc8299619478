#include "server/survey.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/spec.h"
#include "server/copies.h"
#include "server/cycle.h"
#include "server/errand.h"
#include "server/intake.h"
#include "server/job.h"
#include "server/lane.h"
#include "server/root_part.h"
#include "server/server.h"
#include "server/shard_text.h"
#include "server/snapshot.h"

#define SAY_MS 1000   /* between two sentences on how far it is */
#define ROOM_MS 10000 /* after one that was full: what was read is in vain */
#define AGAIN_MS 5000 /* after a disk that failed */
#define PIECE ((size_t)1 << 20)

static struct errands *_Atomic errands;

struct survey {
    struct errand *errand; /* NULL in tests */
    struct lanes *lanes;
    int64_t cycle;
    struct spec spec;
    bool full;   /* the disk is */
    bool frozen; /* only its copies are looked through */
    bool wanted; /* the cycle waits for it, still */
    struct root_files files;
    json_t *shards;    /* of a dataset: as snapshot rows */
    json_t *names;     /* what will be frozen */
    json_t *counts;    /* {sha256: held out} */
    int64_t done, all; /* bytes of files to read */
    int64_t begun;     /* done, when this file was begun */
    int64_t said_ms;
    char dir[4096];
    /* for one call on a lane */
    const char *name;
    struct root_read *read;
    json_t *survey;
};

static void survey_release(struct survey *s)
{
    spec_release(&s->spec);
    root_files_release(&s->files);
    json_decref(s->shards);
    json_decref(s->names);
    json_decref(s->counts);
    json_decref(s->survey);
}

/* ---- on the lanes ---- */

static int waits_for_data(struct store *st, int64_t cycle, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_SURVEY);
    stmt_int(&q, ":id", cycle);
    int r = stmt_row(&q, err);
    return r > 0 ? !strcmp(col_text(&q, 1), "data") : r;
}

/* Does the cycle wait for it? Its row, its job's spec. On the writer, whose
 * transaction asked for it: it is committed, or came to nothing. */
static int on_load(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    struct cycle c;
    int r = cycle_load(ctx->st, s->cycle, &c, err);
    if (r == ERR_NOT_FOUND)
        return 0;
    if (r >= 0 && strcmp(c.state, "waiting"))
        return 0;
    if (r >= 0 && c.steps >= 0) {
        r = waits_for_data(ctx->st, s->cycle, err);
        if (r <= 0)
            return r;
        s->frozen = true;
    }
    if (r >= 0)
        r = cycle_spec(ctx->st, &c, &s->spec, err);
    if (r < 0)
        return r;
    snprintf(s->dir, sizeof(s->dir), "%s", store_dir(ctx->st));
    s->wanted = true;
    return 0;
}

static int on_say(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    struct cycle c;
    char why[96];
    int r = waits_for_data(ctx->st, s->cycle, err);
    bool data = r > 0;
    if (r >= 0)
        r = cycle_load(ctx->st, s->cycle, &c, err);
    if (r == ERR_NOT_FOUND || (r >= 0 && strcmp(c.state, "waiting"))) {
        s->wanted = false;
        return 0;
    }
    if (r < 0 || !data) /* it has another sentence, which holds */
        return r < 0 ? r : 0;
    int64_t mb = 1000000;
    snprintf(why, sizeof(why), "reads its data: %" PRId64 " of %" PRId64 " MB",
             s->done / mb, (s->all + mb - 1) / mb);
    r = cycle_reason(ctx->st, s->cycle, why, err);
    return r < 0 ? r : job_say_why(ctx->st, c.job, why, err);
}

/* Which of the files must be read: those that are known have no size left. */
static int on_compare(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    for (size_t i = 0; i < s->files.n; i++) {
        struct root_file *f = &s->files.v[i];
        bool known = false;
        int r = root_is_known(ctx->st, s->spec.data.root, f, true, &known, err);
        if (r < 0)
            return r;
        if (known)
            f->bytes = -1;
        else
            s->all += f->bytes;
    }
    return 0;
}

static int on_keep(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    return root_keep(ctx->st, s->spec.data.root, s->name, s->read, err);
}

static int on_forget(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    return root_forget(ctx->st, s->spec.data.root, &s->files, err);
}

static int on_copies(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    return copies_of(ctx->st, s->cycle, s->shards, err);
}

static int on_rows(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    return snapshot_rows(ctx->st, &s->spec, s->names, s->shards, err);
}

/* What was found; and the job goes on. */
static int on_found(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    struct cycle c;
    int r = cycle_load(ctx->st, s->cycle, &c, err);
    if (r == ERR_NOT_FOUND ||
        (r >= 0 && (strcmp(c.state, "waiting") || (c.steps >= 0) != s->frozen)))
        return 0; /* nobody waits for it any more */
    if (r < 0)
        return r;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, ctx->st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_CYCLE_SURVEYED);
        stmt_int(&q, ":id", s->cycle);
        stmt_json(&q, ":survey", s->survey);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    r = job_settle(ctx->st, c.job, false, ctx->now_ms, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

/* It failed for a reason that may pass. */
static int on_later(void *arg, struct ctx *ctx, struct err *err)
{
    struct survey *s = arg;
    struct cycle c;
    int r = cycle_load(ctx->st, s->cycle, &c, err);
    if (r == ERR_NOT_FOUND || (r >= 0 && strcmp(c.state, "waiting")))
        return 0;
    const char *why = json_string_value(s->survey);
    if (r >= 0)
        r = cycle_reason(ctx->st, s->cycle, why, err);
    if (r >= 0)
        r = job_say_why(ctx->st, c.job, why, err);
    if (r < 0)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_CYCLE_LOOK_LATER);
    stmt_int(&q, ":id", s->cycle);
    stmt_int(&q, ":ms", ctx->now_ms + (s->full ? ROOM_MS : AGAIN_MS));
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* ---- how far ---- */

static bool stop(void *arg)
{
    struct survey *s = arg;
    if (s->errand && errand_stopped(s->errand))
        return true;
    int64_t now = server_mono_ms();
    if (now - s->said_ms < SAY_MS)
        return !s->wanted;
    s->said_ms = now;
    struct err err;
    lanes_call(s->lanes, LANE_WRITE, on_say, s, &err);
    return !s->wanted;
}

static void progress(void *arg, int64_t file_bytes)
{
    struct survey *s = arg;
    s->done = s->begun + file_bytes;
    if (s->errand)
        errand_progress(s->errand, s->done, s->all);
}

/* ---- a root ---- */

static int read_file(struct survey *s, const struct root_file *f,
                     struct err *err)
{
    CLEANUP(root_read_release) struct root_read read = {0};
    int r = root_read_file(s->dir, s->spec.data.root, f->name, stop, progress,
                           s, &read, err);
    if (r < 0)
        return r;
    s->name = f->name;
    s->read = &read;
    s->begun += f->bytes;
    s->done = s->begun;
    return lanes_call(s->lanes, LANE_WRITE, on_keep, s, err);
}

/* The copy of a text that was read before, from the file below the root. */
static int copy_again(struct survey *s, const json_t *shard, struct err *err)
{
    CLEANUP(root_read_release) struct root_read read = {0};
    const char *name = json_string_value(json_object_get(shard, "name"));
    const char *sha256 = json_string_value(json_object_get(shard, "sha256"));
    int r = root_read_file(s->dir, s->spec.data.root, name, stop, progress, s,
                           &read, err);
    if (r < 0)
        return r;
    if (!read.copy || strcmp(read.intake->sha256, sha256))
        return root_blame(err, name, 0,
                          "was edited since it was read, and its copy is "
                          "missing or damaged");
    s->name = name;
    s->read = &read;
    return lanes_call(s->lanes, LANE_WRITE, on_keep, s, err);
}

/* A frozen cycle's copies: those that are not what they were are made again. */
static int see_copies(struct survey *s, struct err *err)
{
    int r = lanes_call(s->lanes, LANE_READ, on_copies, s, err);
    size_t i;
    json_t *one;
    json_array_foreach(s->shards, i, one) s->all +=
        json_integer_value(json_object_get(one, "stored_bytes"));
    json_array_foreach(s->shards, i, one)
    {
        if (r >= 0)
            r = copies_check(s->dir, one, stop, s, err);
        if (r == 0)
            r = copy_again(s, one, err);
        s->begun += json_integer_value(json_object_get(one, "stored_bytes"));
        s->done = s->begun;
    }
    return r < 0 ? r : 0;
}

static int read_root(struct survey *s, struct err *err)
{
    const struct data_spec *d = &s->spec.data;
    struct root_files *files = &s->files;
    int r = root_walk(d->root, d->match, 0, stop, s, files, err);
    if (r >= 0 && !d->match) /* the whole list of what there is */
        r = lanes_call(s->lanes, LANE_WRITE, on_forget, s, err);
    if (r < 0)
        return r;
    /* the last N by name: those before them need not be read */
    size_t first = 0, last = (size_t)d->shards_last;
    if (last && files->n > last)
        first = files->n - last;
    for (size_t i = 0; i < first; i++)
        free(files->v[i].name);
    files->n -= first;
    if (first)
        memmove(files->v, files->v + first, files->n * sizeof(*files->v));
    r = lanes_call(s->lanes, LANE_READ, on_compare, s, err);
    for (size_t i = 0; i < files->n && r >= 0; i++) {
        json_array_append_new(s->names, json_string(files->v[i].name));
        if (files->v[i].bytes >= 0)
            r = read_file(s, &files->v[i], err);
    }
    return r < 0 ? r : 0;
}

/* ---- indexes ---- */

static int make_index(const char *dir, const char *name,
                      struct shard_text *text, const char *sha256,
                      root_stop_fn *stopped, root_progress_fn *tell, void *arg,
                      struct err *err)
{
    AUTO_FREE char *piece = malloc(PIECE);
    CLEANUP(root_read_release) struct root_read made = {0};
    int64_t at = 0, n = 0;
    int r = piece ? root_intake(dir, &made.intake, err)
                  : err_set(err, ERR_NOMEM, "no memory to read a shard");
    while (r >= 0 && at < shard_text_bytes(text)) {
        if (stopped && stopped(arg))
            return err_set(err, ERR_BUSY, "stopped");
        n = shard_text_read(text, at, piece, PIECE, err);
        r = n < 0 ? (int)n : intake_add(made.intake, piece, (size_t)n, err);
        at += n;
        if (tell)
            tell(arg, at);
    }
    if (r >= 0)
        r = intake_end(made.intake, err);
    if (r < 0)
        return r;
    if (strcmp(made.intake->sha256, sha256))
        return root_blame(err, name, 0,
                          "is not what it was when it was stored: its text has "
                          "another SHA-256");
    return intake_publish(made.intake, dir, err);
}

static int index_of(const char *dir, const char *path, const char *form,
                    int64_t bytes, const char *sha256, root_stop_fn *stopped,
                    root_progress_fn *tell, void *arg, struct err *err)
{
    struct shard_text *text = NULL;
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    int r = shard_text_open(path, form, bytes, &text, err);
    if (r < 0)
        return r;
    r = make_index(dir, name, text, sha256, stopped, tell, arg, err);
    shard_text_close(text);
    if (r == ERR_CORRUPT) {
        struct err why = *err;
        return root_blame(err, name, 0, "is damaged: %.300s", why.text);
    }
    return r < 0 ? r : 0;
}

int survey_index(const char *dir, const char *path, const char *form,
                 int64_t bytes, const char *sha256, root_stop_fn *stopped,
                 void *arg, struct err *err)
{
    return index_of(dir, path, form, bytes, sha256, stopped, NULL, arg, err);
}

/* That of one shard, made if need be; how many of its records are held out. */
static int see_index(struct survey *s, json_t *shard, struct err *err)
{
    const char *sha256 = json_string_value(json_object_get(shard, "sha256"));
    int64_t records = json_integer_value(json_object_get(shard, "records"));
    double fraction = s->spec.training.validation.fraction;
    int64_t n = 0;
    int r = snapshot_count(s->dir, sha256, records, fraction, &n, err);
    if (r == 0) {
        AUTO_JSON json_t *placed = json_copy(shard);
        snapshot_place_one(s->dir, placed);
        int64_t bytes = json_integer_value(json_object_get(shard, "bytes"));
        r = index_of(s->dir, json_string_value(json_object_get(placed, "path")),
                     json_string_value(json_object_get(shard, "form")), bytes,
                     sha256, stop, progress, s, err);
        s->begun += bytes;
        s->done = s->begun;
        if (r >= 0)
            r = snapshot_count(s->dir, sha256, records, fraction, &n, err);
        if (r == 0)
            r = err_set(err, ERR_IO,
                        "the index of shard '%.400s' is gone as "
                        "soon as it was made",
                        json_string_value(json_object_get(shard, "name")));
    }
    if (r > 0)
        json_object_set_new(s->counts, sha256, json_integer(n));
    return r < 0 ? r : 0;
}

/* What is to be read for those that are missing. */
static int count_missing(struct survey *s, struct err *err)
{
    size_t i;
    json_t *one;
    json_array_foreach(s->shards, i, one)
    {
        int64_t n;
        int r = snapshot_count(
            s->dir, json_string_value(json_object_get(one, "sha256")),
            json_integer_value(json_object_get(one, "records")), 0, &n, err);
        if (r < 0)
            return r;
        if (r == 0)
            s->all += json_integer_value(json_object_get(one, "bytes"));
    }
    return 0;
}

static int see_indexes(struct survey *s, struct err *err)
{
    int r = lanes_call(s->lanes, LANE_READ, on_rows, s, err);
    size_t i;
    json_t *one;
    if (r >= 0)
        r = count_missing(s, err);
    json_array_foreach(s->shards, i, one)
    {
        if (r >= 0 && stop(s))
            r = err_set(err, ERR_BUSY, "stopped");
        if (r >= 0)
            r = see_index(s, one, err);
        if (r == ERR_DATA && s->spec.data.root && copies_is(one)) {
            r = copy_again(s, one, err); /* and its index */
            if (r >= 0)
                r = see_index(s, one, err);
        }
    }
    return r < 0 ? r : 0;
}

/* ---- the whole ---- */

static int look(struct survey *s, struct err *err)
{
    int r = 0;
    s->names = json_array();
    s->shards = json_array();
    s->counts = json_object();
    if (s->frozen)
        r = see_copies(s, err);
    else if (s->spec.data.root)
        r = read_root(s, err);
    if (r >= 0 && !s->frozen &&
        (snapshot_needs_index(&s->spec) || !s->spec.data.root))
        r = see_indexes(s, err);
    if (r < 0)
        return r;
    s->survey = json_pack("{sO sO}", "shards", s->names, "held_out", s->counts);
    return lanes_call(s->lanes, LANE_WRITE, on_found, s, err);
}

static int failed(struct survey *s, int code, struct err *why, struct err *err)
{
    json_decref(s->survey);
    if (code == ERR_DATA || code == ERR_INVALID) {
        s->survey = json_pack("{s{si ss ss ss sI}}", "error", "code", code,
                              "detail", why->text, "pointer", why->pointer,
                              "shard", why->shard, "offset", why->offset);
        return lanes_call(s->lanes, LANE_WRITE, on_found, s, err);
    }
    char text[900];
    s->full = code == ERR_NOSPACE;
    snprintf(text, sizeof(text), "cannot read its data, tries again: %.760s",
             why->text);
    s->survey = json_string(text);
    fprintf(stderr, "pawld: survey of cycle %" PRId64 ": %s\n", s->cycle,
            why->text);
    return lanes_call(s->lanes, LANE_WRITE, on_later, s, err);
}

int survey_run(struct errand *e, struct lanes *lanes, int64_t cycle,
               struct err *err)
{
    CLEANUP(survey_release)
    struct survey s = {.errand = e, .lanes = lanes, .cycle = cycle};
    struct err why = {0};
    s.said_ms = server_mono_ms();
    int r = lanes_call(lanes, LANE_WRITE, on_load, &s, err);
    if (r < 0 || !s.wanted)
        return r;
    r = look(&s, &why);
    if (r >= 0 || !s.wanted || (e && errand_stopped(e)))
        return 0;
    return failed(&s, r, &why, err);
}

/* ---- errands ---- */

static int run(struct errand *e, void *arg, struct err *err)
{
    return survey_run(e, errand_lanes(e), *(int64_t *)arg, err);
}

static void key_of(int64_t cycle, char out[ERRAND_KEY])
{
    snprintf(out, ERRAND_KEY, "cycle/%" PRId64, cycle);
}

static void begin(int64_t cycle)
{
    char key[ERRAND_KEY];
    struct err err;
    struct errands *es = errands;
    int64_t *arg = malloc(sizeof(*arg));
    if (!es || !arg) {
        free(arg);
        return; /* the tick begins it */
    }
    *arg = cycle;
    key_of(cycle, key);
    errands_begin(es, ERRAND_FREEZE, key, run, arg, free, &err);
}

void survey_start(struct errands *es)
{
    errands = es;
    cycle_wants_survey = es ? begin : NULL;
}

static int dataset_look(struct store *st, const char *name, char *ret,
                        size_t cap, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_LOOK);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r > 0)
        snprintf(ret, cap, "%s", col_text(&q, 0));
    return r < 0 ? r : 0;
}

/* Settle the jobs whose datasets have other shards than at the last look; begin
 * what is due of the rest. */
int survey_tick(struct store *st, int64_t now_ms, struct err *err)
{
    AUTO_JSON json_t *jobs = json_array();
    int r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_WAITING_FOR);
        while ((r = stmt_row(&q, err)) > 0) {
            char looked[64];
            int64_t due = col_int(&q, 4);
            if (!strcmp(col_text(&q, 2), "data") || col_null(&q, 5)) {
                /* a wall clock set back must not put it off */
                if (due <= now_ms || due - now_ms > 120000)
                    begin(col_int(&q, 0));
                continue;
            }
            r = dataset_look(st, col_text(&q, 5), looked, sizeof(looked), err);
            if (r < 0)
                return r;
            if (strcmp(looked, col_text(&q, 3)))
                json_array_append_new(jobs, json_integer(col_int(&q, 1)));
        }
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *id;
    json_array_foreach(jobs, i, id)
    {
        r = job_settle(st, json_integer_value(id), false, now_ms, err);
        if (r < 0)
            return r;
    }
    return 0;
}
