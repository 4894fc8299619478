#include "server/worker.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "schema/wire.h"
#include "server/event.h"
#include "server/page.h"
#include "server/unfit.h"
#include "server/when.h"

#define REFRESH_MS 5000 /* a waiting claim need not write each time it looks */
#define IDLE_GONE_MS 120000  /* unheard of for so long: shown as gone */
#define ENDED_KNOWN_MS 15000 /* its successor is there by then */
#define KEEP_MS (24 * 3600 * (int64_t)1000)

static int parse_devices(const json_t *list, struct err *err)
{
    static const char *const kinds[] = {"cpu", "cuda", "mps", NULL};
    if (json_array_size(list) == 0)
        return err_at(err, ERR_INVALID, "/worker/devices",
                      "a worker has at least one device");
    size_t i;
    json_t *d;
    json_array_foreach(list, i, d)
    {
        char at[JSON_POINTER_MAX];
        json_pointer_index(at, "/worker/devices", i);
        struct json_read in;
        json_read_open(&in, d, at, err, "kind", "name", "memory_bytes", NULL);
        json_read_need(&in, "kind");
        json_read_word(&in, "kind", kinds, 0);
        json_read_string(&in, "name", 200, NULL);
        json_read_int(&in, "memory_bytes", 0, JSON_INT_MAX, 0);
        if (in.r < 0)
            return in.r;
    }
    return 0;
}

int worker_claim_parse(const json_t *body, struct worker_claim *ret,
                       struct err *err)
{
    struct json_read in, w;
    json_read_open(&in, body, "", err, "worker", "claim", "wait", NULL);
    json_read_need(&in, "worker");
    json_read_need(&in, "claim");
    ret->claim = json_read_string(&in, "claim", 64, NULL);
    ret->wait_s = json_read_real(&in, "wait", 0, WIRE_WAIT_MAX_S, 0);
    const json_t *worker = json_read_object(&in, "worker");
    if (in.r < 0)
        return in.r;

    json_read_open(&w, worker, "/worker", err, "name", "host", "pid", "started",
                   "boot", "local", "devices", "cpus", "version", "library",
                   "labels", "memory_bytes", NULL);
    json_read_need(&w, "name");
    json_read_need(&w, "pid");
    json_read_need(&w, "devices");
    json_read_need(&w, "library");
    ret->name = json_read_string(&w, "name", 128, "");
    ret->host = json_read_string(&w, "host", 256, "");
    ret->boot = json_read_string(&w, "boot", 64, "");
    ret->version = json_read_string(&w, "version", 64, "");
    ret->pid = json_read_int(&w, "pid", 1, JSON_INT_MAX, 0);
    ret->started = json_read_int(&w, "started", 0, JSON_INT_MAX, 0);
    ret->local = json_read_bool(&w, "local", false);
    ret->cpus = (int)json_read_int(&w, "cpus", 1, 65536, 1);
    ret->devices = json_read_array(&w, "devices", 256);
    ret->library = json_read_object(&w, "library");
    ret->memory_bytes = json_read_int(&w, "memory_bytes", 0, JSON_INT_MAX, 0);
    ret->labels = json_read_object(&w, "labels");
    if (w.r < 0)
        return w.r;
    AUTO_JSON json_t *checked = NULL;
    int r = json_read_labels(ret->labels, "/worker/labels", &checked, err);
    return r < 0 ? r : parse_devices(ret->devices, err);
}

static int find_claim(struct store *st, const char *claim, int64_t *ret_id,
                      int64_t *ret_seen, bool *ret_drained, bool *ret_gone,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_BY_CLAIM);
    stmt_text(&q, ":claim", claim);
    int r = stmt_row(&q, err);
    if (r > 0) {
        *ret_id = col_int(&q, 0);
        *ret_seen = col_int(&q, 1);
        *ret_drained = col_int(&q, 2) != 0;
        *ret_gone = !col_null(&q, 3);
    }
    return r;
}

int worker_seen(struct store *st, const struct worker_claim *w, int64_t now_ms,
                int64_t *ret_id, bool *ret_drained, struct err *err)
{
    int64_t seen;
    bool gone = false;
    int r = find_claim(st, w->claim, ret_id, &seen, ret_drained, &gone, err);
    if (r < 0)
        return r;
    if (gone) /* its claim was on the way when it died */
        return err_set(err, ERR_STALE, "the process of worker %s has ended",
                       w->name);
    if (r > 0) {
        if (now_ms - seen < REFRESH_MS && now_ms >= seen)
            return 0;
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_SEEN);
        stmt_int(&q, ":id", *ret_id);
        stmt_int(&q, ":now", now_ms);
        int64_t n = stmt_run(&q, err);
        return n < 0 ? (int)n : 0;
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_ADD);
    stmt_text(&q, ":claim", w->claim);
    stmt_text(&q, ":name", w->name);
    stmt_text(&q, ":host", w->host);
    stmt_int(&q, ":pid", w->pid);
    stmt_int(&q, ":started", w->started);
    stmt_text(&q, ":boot", w->boot);
    stmt_int(&q, ":local", w->local);
    stmt_text(&q, ":version", w->version);
    stmt_int(&q, ":cpus", w->cpus);
    stmt_json(&q, ":devices", w->devices);
    stmt_json(&q, ":library", w->library);
    AUTO_JSON json_t *none = w->labels ? NULL : json_object();
    stmt_json(&q, ":labels", w->labels ? w->labels : none);
    stmt_int(&q, ":memory", w->memory_bytes);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret_id = store_last_id(st);
    *ret_drained = false;
    store_notify(st, NOTIFY_WORKER);
    /* the server's own workers get this far again */
    return w->local ? unfit_workers(st, NULL, err) : 0;
}

int worker_let_go(struct store *st, int64_t lease, int64_t now_ms,
                  struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_LET_GO);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int worker_gone(struct store *st, int64_t id, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_GONE);
    stmt_int(&q, ":id", id);
    stmt_int(&q, ":now", now_ms);
    store_notify(st, NOTIFY_WORKER);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int worker_find(struct store *st, int64_t pid, int64_t started,
                const char *boot, int64_t *ret_id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_FIND);
    stmt_int(&q, ":pid", pid);
    stmt_int(&q, ":started", started);
    stmt_text(&q, ":boot", boot);
    int r = stmt_row(&q, err);
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "process %" PRId64 " never asked for work", pid);
    if (r > 0)
        *ret_id = col_int(&q, 0);
    return r < 0 ? r : 0;
}

int worker_each_local(struct store *st, const char *boot, worker_fn *fn,
                      void *arg, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_LOCAL);
    stmt_text(&q, ":boot", boot);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        enum worker_hold hold = col_int(&q, 2)   ? HOLDS_LEASE
                                : col_int(&q, 3) ? LOST_BY_SILENCE
                                                 : HOLDS_NOTHING;
        r = fn(arg, col_int(&q, 0), col_int(&q, 1), hold, err);
        if (r < 0)
            return r;
    }
    return r;
}

static json_t *worker_json(const struct stmt *q, int64_t now_ms)
{
    bool leased = !col_null(q, 12);
    const char *state = !col_null(q, 10) ? "gone"
                        : !leased && now_ms - col_int(q, 9) > IDLE_GONE_MS
                            ? "gone"
                        : col_int(q, 11) ? "draining"
                        : leased         ? "training"
                                         : "idle";
    json_t *j = json_pack(
        "{sI ss ss sI sb ss sI so so so ss so so so}", "id", col_int(q, 0),
        "name", col_text(q, 1), "host", col_text(q, 2), "pid", col_int(q, 3),
        "local", (int)col_int(q, 4), "version", col_text(q, 5), "cpus",
        col_int(q, 6), "devices", col_json(q, 7), "labels", col_json(q, 15),
        "memory_bytes",
        col_int(q, 16) ? json_integer(col_int(q, 16)) : json_null(), "state",
        state, "library", col_json(q, 8), "seen_at", when_json(col_int(q, 9)),
        "created_at", when_json(col_int(q, 14)));
    json_object_set_new(j, "lease",
                        leased ? json_integer(col_int(q, 12)) : json_null());
    json_object_set_new(j, "job",
                        leased ? json_integer(col_int(q, 13)) : json_null());
    return j;
}

int worker_each_known(struct store *st, bool ended, int64_t now_ms,
                      worker_known_fn *fn, void *arg, struct err *err)
{
    int r = 0, said = 0;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_KNOWN);
    stmt_int(&q, ":since", now_ms - IDLE_GONE_MS);
    stmt_int(&q, ":ended", ended ? now_ms - ENDED_KNOWN_MS : INT64_MAX);
    while (!said && (r = stmt_row(&q, err)) > 0) {
        AUTO_JSON json_t *devices = col_json(&q, 2);
        AUTO_JSON json_t *labels = col_json(&q, 3);
        AUTO_JSON json_t *library = col_json(&q, 4);
        struct worker_claim w = {.name = col_text(&q, 0),
                                 .host = col_text(&q, 1),
                                 .devices = devices,
                                 .labels = labels,
                                 .library = library,
                                 .memory_bytes = col_int(&q, 5),
                                 .cpus = (int)col_int(&q, 6),
                                 .local = col_int(&q, 7) != 0};
        said = fn(arg, &w, err);
    }
    return r < 0 ? r : said;
}

int worker_drain(struct store *st, int64_t id, int64_t now_ms, json_t **ret,
                 struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_DRAIN);
        stmt_int(&q, ":id", id);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return err_set(err, ERR_NOT_FOUND, "there is no worker %" PRId64,
                           id);
    }
    store_notify(st, NOTIFY_WORKER | NOTIFY_QUEUE);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = worker_json(&q, now_ms);
    return r < 0 ? r : 0;
}

int worker_list(struct store *st, int64_t after, int64_t limit, int64_t now_ms,
                json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_LIST);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, worker_json(&q, now_ms));
    return r < 0 ? r : page_end(&page, ret);
}

int worker_prune(struct store *st, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_WORKER_PRUNE);
    stmt_int(&q, ":before", now_ms - KEEP_MS);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}
