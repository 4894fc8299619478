#include "server/lane.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "schema/cleanup.h"
#include "server/server.h"

/* Tasks of one commit. More would only make the first of them wait longer. */
#define WRITE_BATCH 128
#define CHUNK_BATCH 8 /* of up to 1 MiB each: keeps the WAL small */
#define LANES 4
#define BULK_THREADS 2
#define NICE 5 /* of CHUNK and BULK */

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct task *head, **tail;
    bool stopped;
};

struct lane_thread {
    struct lanes *lanes;
    enum lane lane;
    struct store *st, *chunks;
    pthread_t thread;
    bool started;
};

struct lanes {
    struct server *server;
    struct queue queues[LANES];
    struct lane_thread *threads;
    int n_threads;
    void (*notice)(void *arg, unsigned bits);
    void *notice_arg;
};

static struct task *queue_take(struct queue *q, int max)
{
    pthread_mutex_lock(&q->mutex);
    while (!q->head && !q->stopped)
        pthread_cond_wait(&q->more, &q->mutex);
    struct task *first = q->head, *last = first;
    for (int n = 1; last && last->next && n < max; n++)
        last = last->next;
    if (last) {
        q->head = last->next;
        last->next = NULL;
        if (!q->head)
            q->tail = &q->head;
    }
    pthread_mutex_unlock(&q->mutex);
    return first; /* NULL: stopped and empty */
}

static void ctx_fill(struct ctx *ctx, struct lane_thread *lt)
{
    ctx->st = lt->st;
    ctx->chunks = lt->chunks;
    ctx->server = lt->lanes->server;
    ctx->now_ms = server_wall_ms();
    ctx->mono_ms = server_mono_ms();
}

static void run_plain(struct lane_thread *lt, struct task *t)
{
    struct ctx ctx;
    ctx_fill(&ctx, lt);
    t->result = t->run(t, &ctx, &t->err);
    t->done(t); /* may free t */
}

/* One savepoint for one task; its notices count only when it stays. */
static void run_in_savepoint(struct lane_thread *lt, struct task *t,
                             unsigned *notices)
{
    struct ctx ctx;
    ctx_fill(&ctx, lt);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    t->result = txn_begin(&txn, lt->st, &t->err);
    if (t->result >= 0)
        t->result = t->run(t, &ctx, &t->err);
    if (t->result >= 0) {
        int r = txn_commit(&txn, &t->err);
        if (r < 0)
            t->result = r;
    }
    unsigned bits = store_take_notices(lt->st);
    if (t->result >= 0)
        *notices |= bits;
}

static void run_batch(struct lane_thread *lt, struct task *batch)
{
    unsigned notices = 0;
    struct err err = {0};
    int r;
    {
        CLEANUP(txn_end) struct txn txn = TXN_INIT;
        r = txn_begin(&txn, lt->st, &err);
        if (r >= 0) {
            for (struct task *t = batch; t && r >= 0; t = t->next) {
                run_in_savepoint(lt, t, &notices);
                /* all share the cause; those that come after are not run */
                if (txn_lost(&txn) && t->result < 0) {
                    r = t->result;
                    err = t->err;
                }
            }
            if (r >= 0)
                r = txn_commit(&txn, &err);
            notices |= store_take_notices(lt->st);
        }
    }
    if (r >= 0 && notices && lt->lane == LANE_WRITE && lt->lanes->notice)
        lt->lanes->notice(lt->lanes->notice_arg, notices);
    for (struct task *t = batch, *next; t; t = next) {
        next = t->next;
        if (r < 0 && t->result >= 0) {
            /* nothing of it was kept, whatever the task thinks */
            t->result = r;
            t->err = err;
        }
        t->done(t);
    }
    store_fold(lt->st);
}

/* On Linux a thread has its own priority, and may always lower it. */
static void set_up_thread(const struct lane_thread *lt)
{
    static const char *const names[LANES] = {"pawl-read", "pawl-write",
                                             "pawl-chunk", "pawl-bulk"};
#ifdef __linux__
    pthread_setname_np(pthread_self(), names[lt->lane]);
    if (lt->lane == LANE_CHUNK || lt->lane == LANE_BULK)
        setpriority(PRIO_PROCESS, 0, NICE);
#elif defined(__APPLE__)
    pthread_setname_np(names[lt->lane]);
#endif
}

static void *lane_main(void *arg)
{
    struct lane_thread *lt = arg;
    set_up_thread(lt);
    struct queue *q = &lt->lanes->queues[lt->lane];
    int max = lt->lane == LANE_WRITE   ? WRITE_BATCH
              : lt->lane == LANE_CHUNK ? CHUNK_BATCH
                                       : 1;
    struct task *t;
    while ((t = queue_take(q, max))) {
        if (lt->lane == LANE_READ || lt->lane == LANE_BULK)
            run_plain(lt, t);
        else
            run_batch(lt, t);
    }
    return NULL;
}

static void lanes_free(struct lanes *l)
{
    /* the writers last: only they can fold the WAL into its file */
    for (int i = l->n_threads - 1; i >= 0; i--)
        store_close(l->threads[i].chunks);
    for (int i = l->n_threads - 1; i >= 0; i--)
        store_close(l->threads[i].st);
    for (int i = 0; i < LANES; i++) {
        pthread_mutex_destroy(&l->queues[i].mutex);
        pthread_cond_destroy(&l->queues[i].more);
    }
    free(l->threads);
    free(l);
}

/* A writer folds its log back once the answers have left. */
static int thread_open(struct lane_thread *lt, const char *dir, struct err *err)
{
    int r;
    switch (lt->lane) {
    case LANE_WRITE:
        r = store_open(dir, false, &lt->st, err);
        break;
    case LANE_CHUNK:
        r = store_open(dir, true, &lt->st, err);
        break;
    default:
        r = store_open_reader(dir, false, &lt->st, err);
        break;
    }
    if (r >= 0 && (lt->lane == LANE_WRITE || lt->lane == LANE_CHUNK))
        store_fold_later(lt->st);
    return r;
}

int lanes_new(const char *dir, struct server *server, int readers,
              struct lanes **ret, struct err *err)
{
    struct lanes *l = calloc(1, sizeof(*l));
    if (!l)
        return err_set(err, ERR_NOMEM, "no memory for the lanes");
    l->server = server;
    for (int i = 0; i < LANES; i++) {
        pthread_mutex_init(&l->queues[i].mutex, NULL);
        pthread_cond_init(&l->queues[i].more, NULL);
        l->queues[i].tail = &l->queues[i].head;
    }
    l->threads =
        calloc((size_t)readers + 2 + BULK_THREADS, sizeof(*l->threads));
    if (!l->threads) {
        lanes_free(l);
        return err_set(err, ERR_NOMEM, "no memory for the lanes");
    }
    l->n_threads = readers + 2 + BULK_THREADS;
    /* the writers first: they create and migrate what readers open */
    for (int i = 0; i < l->n_threads; i++) {
        l->threads[i].lanes = l;
        l->threads[i].lane = i == 0            ? LANE_WRITE
                             : i == 1          ? LANE_CHUNK
                             : i < 2 + readers ? LANE_READ
                                               : LANE_BULK;
        int r = thread_open(&l->threads[i], dir, err);
        if (r < 0) {
            lanes_free(l);
            return r;
        }
    }
    for (int i = 0; i < l->n_threads; i++) {
        int r = store_open_reader(dir, true, &l->threads[i].chunks, err);
        if (r < 0) {
            lanes_free(l);
            return r;
        }
    }
    for (int i = 0; i < l->n_threads; i++) {
        if (pthread_create(&l->threads[i].thread, NULL, lane_main,
                           &l->threads[i])) {
            lanes_stop(l);
            return err_set(err, ERR_NOMEM, "cannot start a lane's thread");
        }
        l->threads[i].started = true;
    }
    *ret = l;
    return 0;
}

void lanes_put(struct lanes *l, enum lane lane, struct task *t)
{
    struct queue *q = &l->queues[lane];
    t->next = NULL;
    t->result = 0;
    memset(&t->err, 0, sizeof(t->err));
    pthread_mutex_lock(&q->mutex);
    bool stopped = q->stopped;
    if (!stopped) {
        *q->tail = t;
        q->tail = &t->next;
        pthread_cond_signal(&q->more);
    }
    pthread_mutex_unlock(&q->mutex);
    if (stopped) {
        t->result = err_set(&t->err, ERR_BUSY, "the server is stopping");
        t->done(t);
    }
}

struct call {
    struct task task;
    int (*run)(void *arg, struct ctx *ctx, struct err *err);
    void *arg;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool over;
};

static int call_run(struct task *t, struct ctx *ctx, struct err *err)
{
    struct call *c = (struct call *)t;
    return c->run(c->arg, ctx, err);
}

static void call_done(struct task *t)
{
    struct call *c = (struct call *)t;
    pthread_mutex_lock(&c->mutex);
    c->over = true;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->mutex);
}

int lanes_call(struct lanes *l, enum lane lane,
               int (*run)(void *arg, struct ctx *ctx, struct err *err),
               void *arg, struct err *err)
{
    struct call c = {
        .task = {.run = call_run, .done = call_done}, .run = run, .arg = arg};
    pthread_mutex_init(&c.mutex, NULL);
    pthread_cond_init(&c.ended, NULL);
    lanes_put(l, lane, &c.task);
    pthread_mutex_lock(&c.mutex);
    while (!c.over)
        pthread_cond_wait(&c.ended, &c.mutex);
    pthread_mutex_unlock(&c.mutex);
    pthread_mutex_destroy(&c.mutex);
    pthread_cond_destroy(&c.ended);
    if (c.task.result < 0 && err)
        *err = c.task.err;
    return c.task.result;
}

void lanes_on_notice(struct lanes *l, void (*fn)(void *arg, unsigned bits),
                     void *arg)
{
    l->notice = fn;
    l->notice_arg = arg;
}

void lanes_stop(struct lanes *l)
{
    if (!l)
        return;
    for (int i = 0; i < LANES; i++) {
        pthread_mutex_lock(&l->queues[i].mutex);
        l->queues[i].stopped = true;
        pthread_cond_broadcast(&l->queues[i].more);
        pthread_mutex_unlock(&l->queues[i].mutex);
    }
    for (int i = 0; i < l->n_threads; i++)
        if (l->threads[i].started)
            pthread_join(l->threads[i].thread, NULL);
    lanes_free(l);
}
