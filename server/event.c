#include "server/event.h"
#include <stdarg.h>
#include <stdio.h>
#include "server/page.h"
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
    char worker[300];
    snprintf(worker, sizeof(worker), "worker %s", e->worker ? e->worker : "");
    stmt_text(&q, ":actor", e->actor ? e->actor : worker);
    int64_t r = stmt_run(&q, err);
    store_notify(st, NOTIFY_JOB);
    return r < 0 ? (int)r : 0;
}

int event_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_EVENT_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page,
                 json_pack("{sI so ss ss ss so so so}", "id", page.last, "at",
                           when_json(col_int(&q, 1)), "kind", col_text(&q, 2),
                           "cause", col_text(&q, 3), "actor", col_text(&q, 4),
                           "cycle", col_int_or_null(&q, 5), "lease",
                           col_int_or_null(&q, 6), "step",
                           col_int_or_null(&q, 7)));
    return r < 0 ? r : page_end(&page, ret);
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
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page,
                 json_pack("{sI so ss ss sI ss}", "id", page.last, "at",
                           when_json(col_int(&q, 1)), "level", col_text(&q, 2),
                           "text", col_text(&q, 3), "lease", col_int(&q, 4),
                           "worker", col_text(&q, 5)));
    return r < 0 ? r : page_end(&page, ret);
}
