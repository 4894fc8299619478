/* job_patch.c - changes to the spec of a job that is there (job.h).
 *
 * The patch (RFC 7396) is merged over the spec as it is now, and the whole is
 * read as a submission is: so the same words refuse the same mistakes. Then
 * what may not differ is compared. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/job.h"

/* RFC 7396. */
static void merge_patch(json_t *to, const json_t *patch)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)patch, key, v)
    {
        json_t *old = json_object_get(to, key);
        if (json_is_null(v)) {
            json_object_del(to, key);
        } else if (json_is_object(v)) {
            if (!json_is_object(old)) {
                json_object_set_new(to, key, json_object());
                old = json_object_get(to, key);
            }
            merge_patch(old, v);
        } else {
            json_object_set(to, key, v);
        }
    }
}

/* The spec as it is now, ready to be changed. Caller owns. */
static json_t *current_spec(const struct job *j)
{
    json_t *spec = json_deep_copy(j->spec);
    json_object_set_new(spec, "priority", json_integer(j->priority));
    json_object_set(spec, "labels", j->labels);
    json_object_set(spec, "runtime", j->runtime);
    json_t *own = json_deep_copy(spec); /* shares nothing with the job */
    json_decref(spec);
    return own;
}

static int patched_spec(const struct job *j, const json_t *patch,
                        struct spec *ret, struct err *err)
{
    AUTO_JSON json_t *spec = current_spec(j);
    if (!spec)
        return err_set(err, ERR_NOMEM, "no memory");
    runtime_make_way(json_object_get(spec, "runtime"),
                     json_object_get(patch, "runtime"));
    merge_patch(spec, patch);
    return spec_parse(spec, ret, err);
}

/* Other data than the job's: what chooses among the job's goes. */
static void make_way(json_t *data, const json_t *patch)
{
    const char *const gone[] = {"dataset", "root", "match", "shards"};
    if (!json_is_string(json_object_get(patch, "dataset")) &&
        !json_is_string(json_object_get(patch, "root")))
        return;
    bool root = json_is_string(json_object_get(patch, "root"));
    if (root == (json_object_get(data, "root") != NULL))
        return;
    for (size_t i = 0; i < sizeof(gone) / sizeof(*gone); i++)
        json_object_del(data, gone[i]);
}

int job_own_spec(const struct job *j, const json_t *data,
                 const json_t *training, json_t **ret, struct err *err)
{
    if (!data && !training)
        return 0;
    AUTO_JSON json_t *spec = current_spec(j);
    if (!spec)
        return err_set(err, ERR_NOMEM, "no memory");
    if (data) {
        make_way(json_object_get(spec, "data"), data);
        merge_patch(json_object_get(spec, "data"), data);
    }
    if (training)
        merge_patch(json_object_get(spec, "training"), training);
    CLEANUP(spec_release) struct spec parsed = {0};
    int r = spec_parse(spec, &parsed, err);
    if (r < 0)
        return r;
    *ret = json_incref(parsed.resolved);
    return 0;
}

/* What is null counts as left out, here as everywhere. */
static bool same(const json_t *a, const json_t *b)
{
    bool no_a = !a || json_is_null(a), no_b = !b || json_is_null(b);
    return no_a || no_b ? no_a && no_b : json_equal((json_t *)a, (json_t *)b);
}

static int refuse_fixed(const json_t *old, const struct spec *new,
                        struct err *err)
{
    static const char *const fixed[] = {
        "name", "kind", "cycles", "after", "not_before", "limits", NULL};
    char at[192];
    if (spec_semantics_diff(old, new->resolved, at, sizeof(at)))
        return err_at(err, ERR_CONFLICT, at,
                      "%s is part of what is trained and cannot change once "
                      "the job is submitted; submit a new job",
                      at);
    for (int i = 0; fixed[i]; i++) {
        if (same(json_object_get(old, fixed[i]),
                 json_object_get(new->resolved, fixed[i])))
            continue;
        snprintf(at, sizeof(at), "/%s", fixed[i]);
        return err_at(err, ERR_CONFLICT, at,
                      "only runtime, priority and labels of a job may change, "
                      "not %s",
                      fixed[i]);
    }
    return 0;
}

/* Nobody trains a completed job any more: of its policy only what says which
 * checkpoints stay still means something. (A failed one can be retried, and
 * perhaps only under another policy.) */
static int refuse_completed(const struct job *j, const json_t *was,
                            const json_t *runtime, struct err *err)
{
    static const char *const open[] = {"keep", "keep_best", NULL};
    if (strcmp(j->state, "completed"))
        return 0;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)runtime, key, v)
    {
        bool may = false;
        for (int i = 0; open[i]; i++)
            may |= !strcmp(key, open[i]);
        if (may || same(json_object_get(was, key), v))
            continue;
        char at[JSON_POINTER_MAX];
        json_pointer(at, "/runtime", key);
        return err_at(err, ERR_CONFLICT, at,
                      "job %" PRId64 " is completed: of its runtime policy "
                      "only keep and keep_best may still change",
                      j->id);
    }
    return 0;
}

/* Keys of the policy that the fingerprint knows. */
static const char *const exact_keys[] = {"device", "threads", "micro_batch",
                                         "padding", NULL};

static int has_state(struct store *st, int64_t job, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_HAS_STATE);
    stmt_int(&q, ":job", job);
    return stmt_row(&q, err);
}

static int refuse_inexact(struct store *st, const struct job *j,
                          const json_t *was, const json_t *runtime,
                          struct err *err)
{
    const char *exact = json_string_value(json_object_get(runtime, "exact"));
    const char *before = json_string_value(json_object_get(was, "exact"));
    if ((!exact || strcmp(exact, "require")) &&
        (!before || strcmp(before, "require")))
        return 0;
    for (int i = 0; exact_keys[i]; i++) {
        if (json_equal(json_object_get(was, exact_keys[i]),
                       json_object_get(runtime, exact_keys[i])))
            continue;
        int r = has_state(st, j->id, err);
        if (r <= 0)
            return r;
        char at[64];
        snprintf(at, sizeof(at), "/runtime/%s", exact_keys[i]);
        return err_at(err, ERR_CONFLICT, at,
                      "%s would end the bit-exact tier, and this job's "
                      "\"exact\": \"require\" forbids that",
                      exact_keys[i]);
    }
    return 0;
}

/* A ladder that has yet to get its sizes gets them now if the data is frozen, else
 * when it is. */
static int choose_sizes(struct store *st, int64_t id, int64_t now_ms,
                        struct err *err)
{
    struct cycle c;
    AUTO_JSON json_t *data = NULL;
    int r = cycle_open(st, id, &c, err);
    if (r <= 0 || c.steps < 0)
        return r;
    r = cycle_data(st, c.id, &data, err);
    return r < 0 ? r : job_choose_sizes(st, id, data, now_ms, err);
}

/* ---- If-Match ---- */

int job_if_match(struct store *st, int64_t id, const char *header,
                 struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load_part(st, id, 0, &j, err);
    if (r < 0)
        return r;
    char own[JOB_ETAG_MAX];
    job_etag(j.edit, own);
    /* entity tags, commas between; a weak one never matches */
    for (const char *p = header; *p;) {
        p += strspn(p, " \t,");
        size_t n = strcspn(p, " \t,");
        if ((n == 1 && *p == '*') || (n == strlen(own) && !strncmp(p, own, n)))
            return 0;
        p += n;
    }
    return err_set(err, ERR_PRECONDITION,
                   "the ETag of job %" PRId64
                   " is %s now, and If-Match names another: read it again",
                   id, own);
}

void job_etag(int64_t edit, char out[JOB_ETAG_MAX])
{
    snprintf(out, JOB_ETAG_MAX, "\"e%" PRId64 "\"", edit);
}

/* ---- patch ---- */

int job_patch(struct store *st, int64_t id, const json_t *patch, int64_t now_ms,
              struct err *err)
{
    if (!json_is_object(patch))
        return err_at(err, ERR_INVALID, "", "the body must be an object");
    CLEANUP(job_release) struct job j = {0};
    int r = job_load(st, id, &j, err);
    if (r < 0)
        return r;
    /* as it is with the defaults of today: a field that a later version
     * brought is no change of it */
    CLEANUP(spec_release) struct spec old = {0}, new = {0};
    AUTO_JSON json_t *none = json_object();
    r = patched_spec(&j, none, &old, err);
    if (r >= 0)
        r = patched_spec(&j, patch, &new, err);
    if (r >= 0)
        r = refuse_fixed(old.resolved, &new, err);
    if (r < 0)
        return r;
    const json_t *runtime = json_object_get(new.resolved, "runtime");
    const json_t *was = json_object_get(old.resolved, "runtime");
    bool new_runtime = !json_equal((json_t *)runtime, (json_t *)was);
    if (new_runtime) {
        r = refuse_completed(&j, was, runtime, err);
        if (r >= 0)
            r = refuse_inexact(st, &j, was, runtime, err);
        if (r < 0)
            return r;
    }
    const json_t *labels = json_object_get(new.resolved, "labels");
    if (!new_runtime && new.priority == j.priority &&
        json_equal(labels, j.labels))
        return 0;

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_PATCH);
        stmt_int(&q, ":id", id);
        stmt_json(&q, ":runtime", runtime);
        stmt_int(&q, ":newer", new_runtime);
        stmt_int(&q, ":priority", new.priority);
        stmt_json(&q, ":labels", labels);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_PRIORITY);
        stmt_int(&q, ":job", id);
        stmt_int(&q, ":priority", new.priority);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    if (new.runtime.padding.count) {
        r = choose_sizes(st, id, now_ms, err);
        if (r < 0)
            return r;
    }
    AUTO_FREE char *text = json_dumps(patch, JSON_COMPACT);
    r = event_add(
        st,
        &(struct event){
            .job = id, .step = -1, .kind = "patched", .actor = "client"},
        now_ms, err, "changed: %.900s", text ? text : "");
    if (r >= 0) /* what no worker could do before, one may do now */
        r = job_settle(st, id, false, now_ms, err);
    if (r < 0)
        return r;
    store_notify(st, NOTIFY_JOB | NOTIFY_QUEUE);
    return txn_commit(&txn, err);
}
