#include "server/sweep.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/dry_run.h"
#include "server/job.h"
#include "server/page.h"
#include "server/when.h"

bool sweep_is(const json_t *body)
{
    const json_t *s = json_object_get(body, "sweep");
    return s && !json_is_null(s);
}

void sweep_release(struct sweep *s)
{
    json_decref(s->spec);
    json_decref(s->axes);
    *s = (struct sweep){0};
}

/* ---- pointers ---- */

/* One step of a JSON pointer (RFC 6901), unescaped; *p stands at its slash and
 * moves to the next. 0, or -1: no such escape, or too long. */
static int step(const char **p, char *out, size_t cap)
{
    size_t n = 0;
    for ((*p)++; **p && **p != '/'; (*p)++) {
        char c = **p;
        if (c == '~') {
            c = *++*p == '1' ? '/' : **p == '0' ? '~' : 0;
            if (!c)
                return -1;
        }
        if (n + 1 >= cap)
            return -1;
        out[n++] = c;
    }
    out[n] = 0;
    return 0;
}

/* Put `value` at the pointer; objects on the way there are made. -1: the way
 * leads through something that holds nothing, or past the end of an array. */
static int put_at(json_t *at, const char *pointer, json_t *value)
{
    const char *p = pointer;
    char key[128];
    while (*p) {
        if (step(&p, key, sizeof(key)) < 0)
            return -1;
        json_t *below = value;
        if (json_is_array(at)) {
            char *end;
            size_t i = strtoul(key, &end, 10);
            if (!*key || *end || i >= json_array_size(at))
                return -1;
            if (*p)
                below = json_array_get(at, i);
            else
                json_array_set(at, i, value);
        } else if (json_is_object(at)) {
            if (!*p) {
                json_object_set(at, key, value);
                return 0;
            }
            below = json_object_get(at, key);
            if (!below || json_is_null(below)) {
                json_object_set_new(at, key, json_object());
                below = json_object_get(at, key);
            }
        } else {
            return -1;
        }
        at = below;
    }
    return 0;
}

/* Is `p` the pointer `a`, or below it? */
static bool is_within(const char *p, const char *a)
{
    size_t n = strlen(a);
    return !strncmp(p, a, n) && (!p[n] || p[n] == '/');
}

/* ---- combinations ---- */

/* Which value of which axis the n-th combination has: the last turns fastest. */
static size_t value_of(const struct sweep *s, int n, const char *axis)
{
    size_t turn = (size_t)n, index = 0;
    const char *key;
    json_t *values;
    size_t after = (size_t)s->jobs; /* combinations of it and those behind */
    json_object_foreach(s->axes, key, values)
    {
        size_t size = json_array_size(values);
        after /= size;
        index = turn / after % size;
        if (!strcmp(key, axis))
            break;
    }
    return index;
}

static json_t *values_of(const struct sweep *s, int n)
{
    json_t *out = json_object();
    const char *key;
    json_t *values;
    json_object_foreach(s->axes, key, values)
    {
        json_object_set(out, key, json_array_get(values, value_of(s, n, key)));
    }
    return out;
}

/* An error of the n-th job, said of what was written: the value that it points
 * at, or, `combined`, of the values together. */
static int blame(const struct sweep *s, int n, bool combined, struct err *err)
{
    char at[JSON_POINTER_MAX], axis[JSON_POINTER_MAX];
    const char *key;
    json_t *unused;
    json_object_foreach(s->axes, key, unused)
    {
        if (!is_within(err->pointer, key) &&
            !(err->pointer[0] && is_within(key, err->pointer)))
            continue;
        json_pointer(axis, "/sweep", key);
        json_pointer_index(at, axis, value_of(s, n, key));
        snprintf(err->pointer, sizeof(err->pointer), "%s", at);
        return err->code;
    }
    if (!combined)
        return err->code;
    CLEANUP(buf_release) struct buf with = {0};
    AUTO_JSON json_t *values = values_of(s, n);
    char text[sizeof(err->text)];
    json_text(values, &with);
    snprintf(text, sizeof(text), "%.400s (%s, with %.160s)", err->text,
             err->pointer, with.data ? with.data : "");
    return err_at(err, err->code, "/sweep", "%s", text);
}

int sweep_job(const struct sweep *s, int n, json_t **ret_values,
              struct spec *ret, struct err *err)
{
    AUTO_JSON json_t *doc = json_deep_copy(s->spec);
    AUTO_JSON json_t *values = values_of(s, n);
    if (!doc || !values)
        return err_set(err, ERR_NOMEM, "no memory for a sweep");
    const char *key;
    json_t *v;
    json_object_foreach(values, key, v)
    {
        char at[JSON_POINTER_MAX];
        AUTO_JSON json_t *own = json_deep_copy(v);
        if (put_at(doc, key, own) == 0)
            continue;
        json_pointer(at, "/sweep", key);
        return err_at(err, ERR_INVALID, at, "a job spec has no field %s", key);
    }
    int r = spec_parse(doc, ret, err);
    if (r < 0)
        return r;
    *ret_values = json_incref(values);
    return 0;
}

/* ---- parse ---- */

static int parse_values(const char *key, const json_t *values, struct err *err)
{
    char at[JSON_POINTER_MAX], one[JSON_POINTER_MAX];
    json_pointer(at, "/sweep", key);
    if (!json_is_array(values) || !json_array_size(values))
        return err_at(err, ERR_INVALID, at,
                      "%s must list the values to try, at least one", key);
    for (size_t i = 0; i < json_array_size(values); i++)
        for (size_t j = 0; j < i; j++) {
            if (!json_equal(json_array_get(values, i),
                            json_array_get(values, j)))
                continue;
            json_pointer_index(one, at, i);
            return err_at(err, ERR_INVALID, one,
                          "this value stands here twice; it would make the "
                          "same job twice");
        }
    return 0;
}

static int parse_pointer(const json_t *axes, const char *key, struct err *err)
{
    char at[JSON_POINTER_MAX], part[128];
    json_pointer(at, "/sweep", key);
    const char *p = key;
    int bad = *p == '/' ? 0 : -1;
    while (!bad && *p)
        bad = step(&p, part, sizeof(part));
    if (bad)
        return err_at(err, ERR_INVALID, at,
                      "a sweep names fields by JSON pointers, such as "
                      "/training/seed, not \"%.100s\"",
                      key);
    if (is_within(key, "/sweep"))
        return err_at(err, ERR_INVALID, at, "a sweep cannot hold another");
    const char *other;
    json_t *unused;
    json_object_foreach((json_t *)axes, other, unused)
    {
        if (strcmp(other, key) && is_within(key, other))
            return err_at(err, ERR_INVALID, at, "%s lies within %s", key,
                          other);
    }
    return 0;
}

static int parse_axes(const json_t *axes, struct sweep *s, struct err *err)
{
    if (!json_is_object(axes) || !json_object_size(axes))
        return err_at(err, ERR_INVALID, "/sweep",
                      "a sweep is an object of fields and the values to try, "
                      "such as {\"/training/seed\": [1, 2, 3]}");
    int64_t jobs = 1;
    const char *key;
    json_t *values;
    json_object_foreach((json_t *)axes, key, values)
    {
        int r = parse_pointer(axes, key, err);
        if (r >= 0)
            r = json_array_size(values) > SWEEP_MAX
                    ? err_at(err, ERR_INVALID, "/sweep",
                             "a sweep makes at most %d jobs", SWEEP_MAX)
                    : parse_values(key, values, err);
        if (r < 0)
            return r;
        jobs *= (int64_t)json_array_size(values);
        if (jobs > SWEEP_MAX)
            return err_at(err, ERR_INVALID, "/sweep",
                          "this would make %" PRId64 " jobs or more; a sweep "
                          "makes at most %d",
                          jobs, SWEEP_MAX);
    }
    s->jobs = (int)jobs;
    return 0;
}

/* What the spec alone says: 1 fine, 0 that a value of the sweep is missing or
 * wrong, so only the combinations can tell; < 0: *err. */
static int parse_alone(const struct sweep *s, struct err *err)
{
    CLEANUP(spec_release) struct spec alone = {0};
    int r = spec_parse(s->spec, &alone, err);
    if (r >= 0)
        return 1;
    const char *key;
    json_t *unused;
    json_object_foreach(s->axes, key, unused)
    {
        if (is_within(err->pointer, key) || is_within(key, err->pointer))
            return 0;
    }
    return r;
}

int sweep_parse(const json_t *body, struct sweep *ret, struct err *err)
{
    CLEANUP(sweep_release) struct sweep s = {0};
    const json_t *axes = json_object_get(body, "sweep");
    int r = parse_axes(axes, &s, err);
    if (r < 0)
        return r;
    s.spec = json_copy((json_t *)body);
    s.axes = json_deep_copy(axes);
    if (!s.spec || !s.axes)
        return err_set(err, ERR_NOMEM, "no memory for a sweep");
    json_object_del(s.spec, "sweep");
    int alone = parse_alone(&s, err);
    if (alone < 0)
        return alone;
    for (int n = 0; n < s.jobs; n++) {
        CLEANUP(spec_release) struct spec spec = {0};
        AUTO_JSON json_t *values = NULL;
        r = sweep_job(&s, n, &values, &spec, err);
        if (r < 0)
            return is_within(err->pointer, "/sweep") ? r
                                                     : blame(&s, n, alone, err);
    }
    *ret = s;
    s = (struct sweep){0};
    return 0;
}

/* ---- submit ---- */

static int insert(struct store *st, const struct sweep *s, const char *name,
                  int64_t now_ms, int64_t *ret_id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SWEEP_ADD);
    stmt_text(&q, ":name", name);
    stmt_json(&q, ":axes", s->axes);
    stmt_int(&q, ":jobs", s->jobs);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret_id = store_last_id(st);
    return 0;
}

int sweep_submit(struct store *st, const struct sweep *s, int64_t now_ms,
                 int64_t *ret_id, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int64_t id = 0, job;
    int r = txn_begin(&txn, st, err);
    for (int n = 0; n < s->jobs && r >= 0; n++) {
        CLEANUP(spec_release) struct spec spec = {0};
        AUTO_JSON json_t *values = NULL;
        r = sweep_job(s, n, &values, &spec, err);
        if (r >= 0 && !n)
            r = insert(st, s, spec.name, now_ms, &id, err);
        if (r >= 0)
            r = job_check(st, &spec, err);
        if (r >= 0)
            r = job_add(st, &spec, id, values, now_ms, &job, err);
        if (r == ERR_INVALID)
            r = blame(s, n, false, err);
    }
    if (r >= 0)
        r = txn_commit(&txn, err);
    if (r < 0)
        return r;
    *ret_id = id;
    return 0;
}

static int brief(const struct sweep *s, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *items = json_array();
    for (int n = 0; n < s->jobs; n++) {
        CLEANUP(spec_release) struct spec spec = {0};
        json_t *values = NULL;
        int r = sweep_job(s, n, &values, &spec, err);
        if (r < 0)
            return r;
        json_array_append_new(
            items, json_pack("{so ss sI}", "values", values, "signature",
                             spec.signature, "parameters",
                             (json_int_t)spec_parameters(&spec)));
    }
    *ret = json_incref(items);
    return 0;
}

int sweep_dry_run(struct store *st, const struct sweep *s, int64_t now_ms,
                  json_t **ret, struct err *err)
{
    CLEANUP(spec_release) struct spec first = {0};
    AUTO_JSON json_t *values = NULL, *items = NULL, *out = NULL;
    int r = sweep_job(s, 0, &values, &first, err);
    if (r >= 0) {
        r = dry_run(st, &first, now_ms, &out, err);
        if (r == ERR_INVALID)
            r = blame(s, 0, false, err);
    }
    for (int n = 1; n < s->jobs && r >= 0; n++) {
        CLEANUP(spec_release) struct spec spec = {0};
        AUTO_JSON json_t *unused = NULL;
        r = sweep_job(s, n, &unused, &spec, err);
        if (r >= 0)
            r = job_check(st, &spec, err);
        if (r == ERR_INVALID)
            r = blame(s, n, false, err);
    }
    if (r >= 0)
        r = brief(s, &items, err);
    if (r < 0)
        return r;
    json_object_set_new(out, "sweep",
                        json_pack("{si sO}", "jobs", s->jobs, "axes", s->axes));
    json_object_set(out, "items", items);
    *ret = json_incref(out);
    return 0;
}

/* ---- JSON ---- */

static json_t *sweep_json(const struct stmt *q, bool *ret_ended)
{
    static const char *const ends[] = {"completed", "failed", "canceled", NULL};
    json_t *states = col_json(q, 5);
    *ret_ended = true;
    const char *state;
    json_t *unused;
    json_object_foreach(states, state, unused)
    {
        bool ended = false;
        for (int i = 0; ends[i]; i++)
            ended |= !strcmp(state, ends[i]);
        *ret_ended &= ended;
    }
    return json_pack("{sI ss sI so so so}", "id", col_int(q, 0), "name",
                     col_text(q, 1), "jobs", col_int(q, 3), "states", states,
                     "axes", col_json(q, 2), "created_at",
                     when_json(col_int(q, 4)));
}

int sweep_get(struct store *st, int64_t id, json_t **ret, bool *ret_ended,
              struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SWEEP_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no sweep %" PRId64, id);
    *ret = sweep_json(&q, ret_ended);
    return 0;
}

int sweep_list(struct store *st, int64_t before, int64_t limit, json_t **ret,
               struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SWEEP_LIST);
    stmt_int(&q, ":before", before ? before : INT64_MAX);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    bool ended;
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, sweep_json(&q, &ended));
    return r < 0 ? r : page_end(&page, ret);
}

/* ---- its jobs ---- */

/* [[id, state], …] */
static int members(struct store *st, int64_t id, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *all = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SWEEP_JOBS);
        stmt_int(&q, ":id", id);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            json_array_append_new(
                all, json_pack("[I, s]", col_int(&q, 0), col_text(&q, 1)));
        if (r < 0)
            return r;
    }
    if (!json_array_size(all))
        return err_set(err, ERR_NOT_FOUND, "there is no sweep %" PRId64, id);
    *ret = json_incref(all);
    return 0;
}

int sweep_jobs(struct store *st, int64_t id, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *all = NULL, *items = json_array();
    int r = members(st, id, &all, err);
    size_t i;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        json_t *job = NULL;
        r = job_get(st, json_integer_value(json_array_get(one, 0)), false, &job,
                    err);
        if (r < 0)
            return r;
        json_array_append_new(items, job);
    }
    if (r < 0)
        return r;
    *ret = json_incref(items);
    return 0;
}

typedef int ask_fn(struct store *st, int64_t job, int64_t now_ms,
                   struct err *err);

static int ask(struct store *st, int64_t id, bool retry, ask_fn *fn,
               int64_t now_ms, struct err *err)
{
    AUTO_JSON json_t *all = NULL;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = members(st, id, &all, err);
    size_t i;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        const char *state = json_string_value(json_array_get(one, 1));
        bool again = !strcmp(state, "failed") || !strcmp(state, "canceled");
        bool open = !again && strcmp(state, "completed");
        if (retry ? !again : !open)
            continue;
        r = fn(st, json_integer_value(json_array_get(one, 0)), now_ms, err);
        if (r < 0)
            break;
    }
    return r < 0 ? r : txn_commit(&txn, err);
}

int sweep_pause(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    return ask(st, id, false, job_pause, now_ms, err);
}

int sweep_resume(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    return ask(st, id, false, job_resume, now_ms, err);
}

int sweep_cancel(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    return ask(st, id, false, job_cancel, now_ms, err);
}

int sweep_retry(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    return ask(st, id, true, job_retry, now_ms, err);
}
