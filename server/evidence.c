#include "server/evidence.h"
#include <string.h>
#include "server/when.h"

#define LEASES_MAX 5
#define LINES_MAX 20
#define SAMPLES_MAX 5

/* The lines of a text. */
static json_t *lines(const char *text)
{
    json_t *out = json_array();
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (len)
            json_array_append_new(out, json_stringn(text, len));
        text += len + (text[len] == '\n');
    }
    return out;
}

json_t *evidence_death(const struct death *d)
{
    json_t *j = json_pack("{ss}", "verdict", d->verdict);
    if (d->kind == DEATH_SIGNAL)
        json_object_set_new(j, "signal", json_integer(d->signal));
    if (d->kind == DEATH_EXIT)
        json_object_set_new(j, "exit", json_integer(d->code));
    if (d->oom_confirmed)
        json_object_set_new(j, "out_of_memory", json_true());
    if (d->evidence[0])
        json_object_set_new(j, "kernel", json_string(d->evidence));
    if (d->last_lines[0])
        json_object_set_new(j, "last_lines", lines(d->last_lines));
    return j;
}

/* The last ones, in the order in which they came. */
static int last_logs(struct store *st, int64_t lease, json_t **ret,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVIDENCE_LOGS);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":limit", LINES_MAX);
    AUTO_JSON json_t *all = json_array();
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        json_array_insert_new(
            all, 0,
            json_pack("{so ss ss}", "at", when_json(col_int(&q, 0)), "level",
                      col_text(&q, 1), "text", col_text(&q, 2)));
    if (r >= 0)
        *ret = json_incref(all);
    return r;
}

static int last_memory(struct store *st, int64_t job, int64_t lease,
                       json_t **ret, struct err *err)
{
    static const char *const sizes[] = {"allocated_bytes", "device_bytes",
                                        "rss_bytes", "available_bytes"};
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVIDENCE_MEMORY);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":limit", SAMPLES_MAX);
    AUTO_JSON json_t *all = json_array();
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        json_t *one = json_pack("{so sI}", "at", when_json(col_int(&q, 0)),
                                "step", col_int(&q, 1));
        for (int i = 0; i < 4; i++)
            json_object_set_new(one, sizes[i], col_int_or_null(&q, 2 + i));
        json_array_insert_new(all, 0, one);
    }
    if (r >= 0)
        *ret = json_incref(all);
    return r;
}

static int lost_leases(struct store *st, int64_t cycle, json_t **ret,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVIDENCE_LEASES);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":limit", LEASES_MAX);
    AUTO_JSON json_t *all = json_array();
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        json_array_append_new(
            all,
            json_pack("{sI sI ss sI sI ss so so so}", "lease", col_int(&q, 0),
                      "job", col_int(&q, 1), "worker", col_text(&q, 2),
                      "from_step", col_int(&q, 3), "step", col_int(&q, 4),
                      "stage", col_text(&q, 5), "reason",
                      col_text_or_null(&q, 6), "death", col_json_or_null(&q, 7),
                      "ended_at", when_json(col_int(&q, 8))));
    if (r >= 0)
        *ret = json_incref(all);
    return r;
}

int evidence_of(struct store *st, int64_t cycle, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *all = NULL;
    int r = lost_leases(st, cycle, &all, err);
    size_t i;
    json_t *one;
    if (r < 0)
        return r;
    json_array_foreach(all, i, one)
    {
        json_t *log = NULL, *memory = NULL;
        int64_t lease = json_integer_value(json_object_get(one, "lease"));
        int64_t job = json_integer_value(json_object_get(one, "job"));
        json_object_del(one, "job");
        r = last_logs(st, lease, &log, err);
        if (r >= 0)
            r = last_memory(st, job, lease, &memory, err);
        if (log)
            json_object_set_new(one, "log", log);
        if (memory)
            json_object_set_new(one, "memory", memory);
        if (r < 0)
            return r;
    }
    *ret = json_incref(all);
    return 0;
}
