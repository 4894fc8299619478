#include "server/unfit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/match.h"
#include "server/worker.h"

#define JOBS_AT_ONCE 500
#define OWN_WORKERS "" /* the row of unfit_workers */

/* ---- rows ---- */

/* 1: there is one; *ret (caller frees) is its sentence. */
static int row_get(struct store *st, const char *need, char **ret,
                   struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_GET);
    stmt_text(&q, ":need", need);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    *ret = strdup(col_text(&q, 0));
    return *ret ? 1 : err_set(err, ERR_NOMEM, "no memory for a reason");
}

static int row_set(struct store *st, const char *need, const char *why,
                   bool told, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_SET);
    stmt_text(&q, ":need", need);
    stmt_text(&q, ":why", why);
    stmt_int(&q, ":told", told);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int row_drop(struct store *st, const char *need, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_DROP);
    stmt_text(&q, ":need", need);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int unfit_workers(struct store *st, const char *why, struct err *err)
{
    return why ? row_set(st, OWN_WORKERS, why, true, err)
               : row_drop(st, OWN_WORKERS, err);
}

/* ---- needs ---- */

struct need {
    char *text;
    json_t *want;
    bool fits;
    char why[700]; /* of the newest worker that does not */
};
struct needs {
    struct need *all;
    size_t n, cap, open; /* open: that no worker met so far */
    int64_t workers;
};

static void needs_release(struct needs *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->all[i].text);
        json_decref(l->all[i].want);
    }
    free(l->all);
}

static int needs_add(struct needs *l, const char *text, struct err *err)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->all[i].text, text))
            return 0;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        void *more = realloc(l->all, cap * sizeof(*l->all));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for the queue");
        l->all = more;
        l->cap = cap;
    }
    struct need *one = &l->all[l->n];
    struct err none;
    *one = (struct need){.text = strdup(text)};
    if (!one->text)
        return err_set(err, ERR_NOMEM, "no memory for the queue");
    json_parse_strict(text, strlen(text), &one->want, &none);
    l->n++;
    l->open++;
    return 0;
}

/* Of all groups that wait; a seek each. */
static int needs_find(struct store *st, struct needs *l, struct err *err)
{
    AUTO_FREE char *owner = strdup(""), *need = strdup("");
    int64_t priority = INT64_MIN;
    while (owner && need) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_TURN_NEXT);
        stmt_text(&q, ":owner", owner);
        stmt_int(&q, ":priority", priority);
        stmt_text(&q, ":need", need);
        int r = stmt_row(&q, err);
        if (r <= 0)
            return r;
        char *next_owner = strdup(col_text(&q, 1));
        char *next_need = strdup(col_text(&q, 3));
        free(owner);
        free(need);
        owner = next_owner;
        need = next_need;
        priority = col_int(&q, 2);
        r = need ? needs_add(l, need, err) : 0;
        if (r < 0)
            return r;
    }
    return err_set(err, ERR_NOMEM, "no memory for the queue");
}

static int ask_worker(void *arg, const struct worker_claim *w, struct err *err)
{
    struct needs *l = arg;
    (void)err;
    l->workers++;
    for (size_t i = 0; i < l->n; i++) {
        struct need *one = &l->all[i];
        char why[512];
        if (one->fits)
            continue;
        if (!one->want || match_worker(one->want, w, why, sizeof(why))) {
            one->fits = true;
            l->open--;
        } else if (!one->why[0]) {
            snprintf(one->why, sizeof(one->why), "worker %.128s %s", w->name,
                     why);
        }
    }
    return l->open == 0;
}

/* ---- telling ---- */

static void sentence(const struct needs *l, const struct need *one,
                     const char *own_workers, char *ret, size_t cap)
{
    char wanted[512];
    *ret = '\0';
    if (one->fits)
        return;
    match_wanted(one->want, wanted, sizeof(wanted));
    if (one->why[0])
        snprintf(ret, cap, "%s: %s%s", wanted, one->why,
                 l->workers > 1 ? ", and no other does better" : "");
    else if (own_workers)
        snprintf(ret, cap, "%s: none is there, for %s", wanted, own_workers);
}

/* Its jobs, as many as fit in: 1 when all know. */
static int tell_jobs(struct store *st, const char *need, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_JOBS);
    stmt_text(&q, ":need", need);
    stmt_int(&q, ":limit", JOBS_AT_ONCE);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    if (n)
        store_notify(st, NOTIFY_JOB);
    return n < JOBS_AT_ONCE;
}

static int tell(struct store *st, const struct needs *l, const struct need *one,
                const char *own_workers, struct err *err)
{
    char why[1300];
    AUTO_FREE char *before = NULL;
    sentence(l, one, own_workers, why, sizeof(why));
    int r = row_get(st, one->text, &before, err);
    if (r < 0 || (r == 0 && !why[0]))
        return r;
    if (r == 0 || strcmp(before, why) != 0) {
        r = row_set(st, one->text, why, false, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int tell_rest(struct store *st, struct err *err)
{
    AUTO_FREE char *need = NULL;
    bool silent;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_UNTOLD);
        int r = stmt_row(&q, err);
        if (r <= 0)
            return r;
        need = strdup(col_text(&q, 0));
        silent = !*col_text(&q, 1);
    }
    if (!need)
        return err_set(err, ERR_NOMEM, "no memory for a reason");
    int r = tell_jobs(st, need, err);
    if (r <= 0)
        return r;
    if (silent)
        r = row_drop(st, need, err);
    else {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_UNFIT_TOLD);
        stmt_text(&q, ":need", need);
        int64_t n = stmt_run(&q, err);
        r = n < 0 ? (int)n : 0;
    }
    return r < 0 ? r : 1;
}

int unfit_tell(struct store *st, int64_t now_ms, struct err *err)
{
    CLEANUP(needs_release) struct needs l = {0};
    AUTO_FREE char *own_workers = NULL;
    int r = needs_find(st, &l, err);
    if (r >= 0 && l.n)
        r = row_get(st, OWN_WORKERS, &own_workers, err);
    if (r >= 0 && l.n)
        r = worker_each_known(st, !own_workers, now_ms, ask_worker, &l, err);
    for (size_t i = 0; i < l.n && r >= 0; i++)
        r = tell(st, &l, &l.all[i], own_workers, err);
    while (r >= 0 && (r = tell_rest(st, err)) > 0)
        ;
    return r < 0 ? r : 0;
}
