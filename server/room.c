#include "server/room.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "server/event.h"
#include "server/job.h"
#include "server/start.h"

#define TERM_MS 60000 /* of a promise that no chunk is seen for */
/* How much another figure must differ to be told anew. */
#define TELL_BYTES (1 << 20)

struct promise {
    int64_t lease, bytes, mono_ms;
};

struct room {
    pthread_mutex_t lock;
    struct promise *v;
    size_t n, cap;
};

int room_new(struct room **ret, struct err *err)
{
    struct room *room = calloc(1, sizeof(*room));
    if (!room)
        return err_set(err, ERR_NOMEM, "no memory for the table of room");
    pthread_mutex_init(&room->lock, NULL);
    *ret = room;
    return 0;
}

void room_free(struct room *room)
{
    if (!room)
        return;
    pthread_mutex_destroy(&room->lock);
    free(room->v);
    free(room);
}

/* ---- promises; under the lock ---- */

static void drop_at(struct room *room, size_t i)
{
    room->v[i] = room->v[--room->n];
}

static void drop_old(struct room *room, int64_t mono_ms)
{
    for (size_t i = room->n; i-- > 0;)
        if (room->v[i].mono_ms < mono_ms - TERM_MS)
            drop_at(room, i);
}

static struct promise *find(struct room *room, int64_t lease)
{
    for (size_t i = 0; i < room->n; i++)
        if (room->v[i].lease == lease)
            return &room->v[i];
    return NULL;
}

static int64_t promised_to_others(const struct room *room, int64_t lease)
{
    int64_t sum = 0;
    for (size_t i = 0; i < room->n; i++)
        if (room->v[i].lease != lease)
            sum += room->v[i].bytes;
    return sum;
}

static int promise(struct room *room, int64_t lease, int64_t bytes,
                   int64_t mono_ms, struct err *err)
{
    struct promise *p = find(room, lease);
    if (!p && room->n == room->cap) {
        size_t cap = room->cap ? 2 * room->cap : 16;
        struct promise *v = realloc(room->v, cap * sizeof(*v));
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for a promise of room");
        room->v = v;
        room->cap = cap;
    }
    if (!p)
        p = &room->v[room->n++];
    *p = (struct promise){lease, bytes, mono_ms};
    return 0;
}

/* A chunk fills its pages of 64 KiB, and has rows in an index and in holds. */
static int64_t on_disk(int64_t bytes)
{
    return bytes + bytes / 16 + (1 << 20);
}

int room_ask(struct room *room, struct store *chunks, int64_t lease,
             int64_t bytes, int64_t mono_ms, int64_t *ret_missing,
             struct err *err)
{
    int64_t need = on_disk(bytes), free, r = 0;
    r = store_left(chunks, &free, err);
    if (r < 0)
        return (int)r;
    pthread_mutex_lock(&room->lock);
    drop_old(room, mono_ms);
    int64_t missing = need + promised_to_others(room, lease) - free;
    if (missing <= 0) {
        missing = 0;
        r = promise(room, lease, need, mono_ms, err);
    } else {
        struct promise *p = find(room, lease);
        if (p)
            drop_at(room, (size_t)(p - room->v));
    }
    pthread_mutex_unlock(&room->lock);
    *ret_missing = missing;
    return (int)r;
}

int room_check(struct room *room, struct store *chunks, int64_t lease,
               int64_t bytes, int64_t mono_ms, struct err *err)
{
    int64_t free;
    int r = store_left(chunks, &free, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&room->lock);
    drop_old(room, mono_ms);
    struct promise *p = find(room, lease);
    int64_t missing = bytes - free;
    if (!p || p->bytes < bytes)
        missing += promised_to_others(room, lease);
    pthread_mutex_unlock(&room->lock);
    if (missing <= 0)
        return 0;
    err_set(err, ERR_NOSPACE,
            "no room for a chunk of %" PRId64 " bytes: %" PRId64 " are missing",
            bytes, missing);
    if (err)
        err->missing_bytes = missing;
    return ERR_NOSPACE;
}

void room_used(struct room *room, int64_t lease, int64_t bytes, int64_t mono_ms)
{
    pthread_mutex_lock(&room->lock);
    struct promise *p = find(room, lease);
    if (p) {
        p->bytes = p->bytes > bytes ? p->bytes - bytes : 0;
        p->mono_ms = mono_ms;
    }
    pthread_mutex_unlock(&room->lock);
}

void room_drop(struct room *room, int64_t lease)
{
    pthread_mutex_lock(&room->lock);
    struct promise *p = find(room, lease);
    if (p)
        drop_at(room, (size_t)(p - room->v));
    pthread_mutex_unlock(&room->lock);
}

/* ---- a save that is put off ---- */

int room_told(struct store *st, int64_t lease, int64_t token, int64_t step,
              int64_t missing, int64_t now_ms, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    CLEANUP(lease_free) struct lease l = {0};
    struct cycle c;
    bool before = false, changed = false;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_live(st, lease, token, now_ms, &l, err);
    if (r >= 0)
        r = cycle_load(st, l.cycle, &c, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_ROOM);
        stmt_int(&q, ":id", lease);
        r = stmt_row(&q, err);
        if (r < 0)
            return r;
        before = !col_null(&q, 0);
        changed = before != (missing > 0) ||
                  llabs(col_int(&q, 0) - missing) >= TELL_BYTES ||
                  (missing && col_int(&q, 1) != step);
    }
    if (!changed)
        return txn_commit(&txn, err);
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_ROOM_TOLD);
        stmt_int(&q, ":id", lease);
        if (missing) {
            stmt_int(&q, ":step", step);
            stmt_int(&q, ":missing", missing);
        }
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    if (missing && !before) {
        char why[512];
        struct event e = lease_event(&l, &c, "no_room");
        e.step = step;
        r = room_why(st, c.id, why, sizeof(why), err);
        if (r >= 0)
            r = event_add(st, &e, now_ms, err, "%s; training goes on", why);
    }
    if (r >= 0)
        r = job_settle(st, l.job, false, now_ms, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

/* What is kept instead, for the end of a sentence. */
static int kept(struct store *st, int64_t cycle, char *ret, size_t cap,
                struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    int r = checkpoint_newest(st, cycle, &c, err);
    if (r > 0)
        snprintf(ret, cap, "step %" PRId64 "'s is kept", c.step);
    else
        snprintf(ret, cap, "there is none before it");
    return r;
}

int room_why(struct store *st, int64_t cycle, char *ret, size_t cap,
             struct err *err)
{
    int64_t missing, step;
    char instead[64];
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_ROOM);
        stmt_int(&q, ":cycle", cycle);
        int r = stmt_row(&q, err);
        if (r <= 0)
            return r;
        missing = col_int(&q, 0);
        step = col_int(&q, 1);
    }
    int r = kept(st, cycle, instead, sizeof(instead), err);
    if (r < 0)
        return r;
    snprintf(ret, cap,
             "no room for the checkpoint of step %" PRId64 ": %" PRId64
             " bytes are missing; %s",
             step, missing, instead);
    return 1;
}

/* ---- parked ---- */

static void parked_why(int64_t step, int64_t missing, const char *instead,
                       char *ret, size_t cap)
{
    snprintf(ret, cap,
             "waits for room on disk for the checkpoint of step %" PRId64
             ": %" PRId64 " bytes are missing; %s",
             step, missing, instead);
}

static int set_parked(struct store *st, int64_t cycle, int64_t step,
                      int64_t need, int64_t missing, int64_t now_ms,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_PARK);
    stmt_int(&q, ":id", cycle);
    stmt_int(&q, ":now", now_ms);
    stmt_int(&q, ":step", step);
    stmt_int(&q, ":need", need);
    stmt_int(&q, ":missing", missing);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int room_park(struct store *st, struct lease *l, struct cycle *c,
              const struct release *in, int64_t now_ms, struct err *err)
{
    CLEANUP(start_release) struct start start = {0};
    char why[512], instead[64];
    int64_t need = on_disk(in->error.bytes);
    int64_t missing = in->error.missing;
    int r = start_find(st, c, &start, err);
    if (r >= 0)
        r = kept(st, c->id, instead, sizeof(instead), err);
    if (r < 0)
        return r;
    parked_why(l->step, missing, instead, why, sizeof(why));
    struct event e = lease_event(l, c, "parked");
    r = event_add(st, &e, now_ms, err,
                  "worker %s found no room for the checkpoint of step %" PRId64
                  ": %" PRId64 " bytes are missing; %s",
                  l->worker, l->step, missing, instead);
    /* a time makes it waiting; what it waits for is put in the time's place */
    if (r >= 0)
        r = cycle_again(st, c, why, true, now_ms + 1, start.step, start.epoch,
                        start.records, err);
    return r < 0 ? r
                 : set_parked(st, c->id, l->step, need, missing, now_ms, err);
}

struct parked {
    int64_t cycle, job, number, need, missing, step, at;
};

static int unpark(struct store *st, const struct parked *p, int64_t now_ms,
                  struct err *err)
{
    char why[160];
    snprintf(
        why, sizeof(why),
        "there is room again; waits for a worker to go on at step %" PRId64,
        p->at);
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_UNPARK);
        stmt_int(&q, ":id", p->cycle);
        stmt_text(&q, ":reason", why);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    store_notify(st, NOTIFY_QUEUE);
    int r = event_add(st,
                      &(struct event){.job = p->job,
                                      .cycle = p->number,
                                      .step = p->at,
                                      .kind = "unparked",
                                      .actor = "server"},
                      now_ms, err, "%s", why);
    return r < 0 ? r : job_settle(st, p->job, false, now_ms, err);
}

/* How much is missing by now. */
static int retell(struct store *st, const struct parked *p, int64_t missing,
                  int64_t now_ms, struct err *err)
{
    char why[512], instead[64];
    if (llabs(missing - p->missing) < TELL_BYTES)
        return 0;
    int r = kept(st, p->cycle, instead, sizeof(instead), err);
    if (r < 0)
        return r;
    parked_why(p->step, missing, instead, why, sizeof(why));
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_PARK_RETOLD);
        stmt_int(&q, ":id", p->cycle);
        stmt_int(&q, ":missing", missing);
        stmt_text(&q, ":reason", why);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return job_settle(st, p->job, false, now_ms, err);
}

#define PARKED_AT_A_TIME 64

static int list_parked(struct store *st, struct parked *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_PARKED);
    stmt_int(&q, ":limit", PARKED_AT_A_TIME);
    int n = 0, r;
    while ((r = stmt_row(&q, err)) > 0)
        ret[n++] = (struct parked){.cycle = col_int(&q, 0),
                                   .job = col_int(&q, 1),
                                   .number = col_int(&q, 2),
                                   .need = col_int(&q, 3),
                                   .missing = col_int(&q, 4),
                                   .step = col_int(&q, 5),
                                   .at = col_int(&q, 6)};
    return r < 0 ? r : n;
}

/* Promises to leases that are over. */
static int drop_ended(struct room *room, struct store *st, struct err *err)
{
    int r = 0;
    pthread_mutex_lock(&room->lock);
    for (size_t i = room->n; r >= 0 && i-- > 0;) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_OPEN);
        stmt_int(&q, ":id", room->v[i].lease);
        r = stmt_row(&q, err);
        if (r == 0)
            drop_at(room, i);
    }
    pthread_mutex_unlock(&room->lock);
    return r < 0 ? r : 0;
}

int room_tick(struct room *room, struct store *st, struct store *chunks,
              int64_t now_ms, int64_t mono_ms, struct err *err)
{
    struct parked parked[PARKED_AT_A_TIME];
    int64_t free;
    int r = drop_ended(room, st, err);
    int n = r < 0 ? r : list_parked(st, parked, err);
    if (n <= 0)
        return n;
    r = store_left(chunks, &free, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&room->lock);
    drop_old(room, mono_ms);
    free -= promised_to_others(room, 0);
    pthread_mutex_unlock(&room->lock);
    for (int i = 0; r >= 0 && i < n; i++) {
        int64_t missing = parked[i].need - free;
        if (missing > 0) {
            r = retell(st, &parked[i], missing, now_ms, err);
            continue;
        }
        r = unpark(st, &parked[i], now_ms, err);
        free -= parked[i].need; /* the next one wants some besides */
    }
    return r < 0 ? r : 0;
}
