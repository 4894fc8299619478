#include "server/event.h"
#include <stdarg.h>
#include <stdio.h>
#include "server/when.h"

int event_add(struct store *st, const struct event *e, int64_t now_ms,
              struct err *err, const char *fmt, ...)
{
    char cause[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cause, sizeof(cause), fmt, ap);
    va_end(ap);

    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVENT_ADD);
    if (e->job)
        stmt_int(&q, ":job", e->job);
    if (e->cycle)
        stmt_int(&q, ":cycle", e->cycle);
    if (e->lease)
        stmt_int(&q, ":lease", e->lease);
    if (e->step >= 0)
        stmt_int(&q, ":step", e->step);
    stmt_int(&q, ":now", now_ms);
    stmt_text(&q, ":kind", e->kind);
    stmt_text(&q, ":cause", cause);
    stmt_text(&q, ":actor", e->actor);
    int64_t r = stmt_run(&q, err);
    store_notify(st, NOTIFY_JOB);
    return r < 0 ? (int)r : 0;
}

json_t *page_json(json_t *items, bool more, int64_t last)
{
    json_t *page = json_pack("{so}", "items", items);
    if (page && more) {
        char cursor[24];
        snprintf(cursor, sizeof(cursor), "%lld", (long long)last);
        json_object_set_new(page, "next", json_string(cursor));
    }
    return page;
}

int event_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVENT_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    stmt_int(&q, ":limit", limit + 1);
    AUTO_JSON json_t *items = json_array();
    int64_t last = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        if ((int64_t)json_array_size(items) == limit)
            break;
        last = col_int(&q, 0);
        json_array_append_new(
            items,
            json_pack("{sI so ss ss ss so so so}", "id", last, "at",
                      when_json(col_int(&q, 1)), "kind", col_text(&q, 2),
                      "cause", col_text(&q, 3), "actor", col_text(&q, 4),
                      "cycle", col_int_or_null(&q, 5), "lease",
                      col_int_or_null(&q, 6), "step", col_int_or_null(&q, 7)));
    }
    if (r < 0)
        return r;
    *ret = page_json(json_incref(items), r > 0, last);
    return 0;
}

int log_add(struct store *st, int64_t job, int64_t lease, const json_t *lines,
            struct err *err)
{
    size_t i;
    json_t *line;
    json_array_foreach(lines, i, line)
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LOG_ADD);
        stmt_int(&q, ":job", job);
        stmt_int(&q, ":lease", lease);
        stmt_int(&q, ":at", json_integer_value(json_object_get(line, "at_ms")));
        stmt_text(&q, ":level",
                  json_string_value(json_object_get(line, "level")));
        stmt_text(&q, ":text",
                  json_string_value(json_object_get(line, "text")));
        int64_t r = stmt_run(&q, err);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

int log_list(struct store *st, int64_t job, int64_t after, int64_t limit,
             json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LOG_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    stmt_int(&q, ":limit", limit + 1);
    AUTO_JSON json_t *items = json_array();
    int64_t last = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        if ((int64_t)json_array_size(items) == limit)
            break;
        last = col_int(&q, 0);
        json_array_append_new(
            items, json_pack("{sI so ss ss sI ss}", "id", last, "at",
                             when_json(col_int(&q, 1)), "level",
                             col_text(&q, 2), "text", col_text(&q, 3), "lease",
                             col_int(&q, 4), "worker", col_text(&q, 5)));
    }
    if (r < 0)
        return r;
    *ret = page_json(json_incref(items), r > 0, last);
    return 0;
}
