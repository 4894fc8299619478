#include "server/errand.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/resource.h>
#endif
#include "schema/cleanup.h"

#define NICE 10
#define FAILURES_KEPT 64 /* the oldest is forgotten */

struct errand {
    struct errands *es;
    char key[ERRAND_KEY];
    errand_run_fn *run;
    void *arg;
    void (*done)(void *);
    _Atomic int64_t read, all;
    atomic_bool stop;
    struct errand *next;
};

struct failure {
    char key[ERRAND_KEY];
    struct err err;
    int64_t turn; /* 0: none */
};

struct line {
    struct errands *es;
    pthread_t thread;
    bool started;
    pthread_cond_t more;
    struct errand *first, **last, *running;
};

struct errands {
    struct lanes *lanes;
    void (*notice)(void *arg);
    void *notice_arg;
    pthread_mutex_t mutex;
    bool stopped;
    struct line lines[ERRAND_LINES];
    struct failure failures[FAILURES_KEPT];
    int64_t turn;
};

static void errand_free(struct errand *e)
{
    if (e->done)
        e->done(e->arg);
    free(e);
}

/* ---- failures, under the mutex ---- */

static struct failure *failure_find(struct errands *es, const char *key)
{
    for (int i = 0; i < FAILURES_KEPT; i++)
        if (es->failures[i].turn && !strcmp(es->failures[i].key, key))
            return &es->failures[i];
    return NULL;
}

static void failure_keep(struct errands *es, const char *key,
                         const struct err *err)
{
    struct failure *f = failure_find(es, key);
    if (!f) {
        f = &es->failures[0];
        for (int i = 1; i < FAILURES_KEPT; i++)
            if (es->failures[i].turn < f->turn)
                f = &es->failures[i];
    }
    snprintf(f->key, sizeof(f->key), "%s", key);
    f->err = *err;
    f->turn = ++es->turn;
}

/* ---- a line's thread ---- */

static void set_up_thread(void)
{
#ifdef __linux__
    pthread_setname_np(pthread_self(), "pawl-errand");
    setpriority(PRIO_PROCESS, 0, NICE); /* of this thread alone */
#elif defined(__APPLE__)
    pthread_setname_np("pawl-errand");
#endif
}

static void run_one(struct line *l, struct errand *e)
{
    struct errands *es = l->es;
    struct err err = {0};
    int r = e->run(e, e->arg, &err);
    if (r < 0 && !err.code)
        err_set(&err, r, "%s", err_word(r));
    pthread_mutex_lock(&es->mutex);
    l->running = NULL;
    if (r < 0 && !atomic_load(&e->stop))
        failure_keep(es, e->key, &err);
    pthread_mutex_unlock(&es->mutex);
    errand_free(e);
    if (es->notice)
        es->notice(es->notice_arg);
}

static void *line_main(void *arg)
{
    struct line *l = arg;
    struct errands *es = l->es;
    set_up_thread();
    pthread_mutex_lock(&es->mutex);
    for (;;) {
        while (!l->first && !es->stopped)
            pthread_cond_wait(&l->more, &es->mutex);
        if (es->stopped)
            break;
        struct errand *e = l->first;
        l->first = e->next;
        if (!l->first)
            l->last = &l->first;
        l->running = e;
        pthread_mutex_unlock(&es->mutex);
        run_one(l, e);
        pthread_mutex_lock(&es->mutex);
    }
    pthread_mutex_unlock(&es->mutex);
    return NULL;
}

int errands_new(struct lanes *lanes, void (*notice)(void *arg),
                void *notice_arg, struct errands **ret, struct err *err)
{
    struct errands *es = calloc(1, sizeof(*es));
    if (!es)
        return err_set(err, ERR_NOMEM, "no memory for errands");
    es->lanes = lanes;
    es->notice = notice;
    es->notice_arg = notice_arg;
    pthread_mutex_init(&es->mutex, NULL);
    for (int i = 0; i < ERRAND_LINES; i++) {
        struct line *l = &es->lines[i];
        l->es = es;
        l->last = &l->first;
        pthread_cond_init(&l->more, NULL);
    }
    for (int i = 0; i < ERRAND_LINES; i++) {
        struct line *l = &es->lines[i];
        if (pthread_create(&l->thread, NULL, line_main, l)) {
            errands_free(es);
            return err_set(err, ERR_NOMEM, "cannot start a thread for errands");
        }
        l->started = true;
    }
    *ret = es;
    return 0;
}

void errands_free(struct errands *es)
{
    if (!es)
        return;
    pthread_mutex_lock(&es->mutex);
    es->stopped = true;
    for (int i = 0; i < ERRAND_LINES; i++) {
        if (es->lines[i].running)
            atomic_store(&es->lines[i].running->stop, true);
        pthread_cond_signal(&es->lines[i].more);
    }
    pthread_mutex_unlock(&es->mutex);
    for (int i = 0; i < ERRAND_LINES; i++) {
        struct line *l = &es->lines[i];
        if (l->started)
            pthread_join(l->thread, NULL);
        for (struct errand *e = l->first, *next; e; e = next) {
            next = e->next;
            errand_free(e);
        }
        pthread_cond_destroy(&l->more);
    }
    pthread_mutex_destroy(&es->mutex);
    free(es);
}

/* ---- from any thread ---- */

/* Under the mutex. */
static struct errand *find(struct errands *es, const char *key, bool *ret_runs)
{
    for (int i = 0; i < ERRAND_LINES; i++) {
        struct line *l = &es->lines[i];
        *ret_runs = true;
        /* one that was asked to stop is as good as gone */
        if (l->running && !strcmp(l->running->key, key) &&
            !atomic_load(&l->running->stop))
            return l->running;
        *ret_runs = false;
        for (struct errand *e = l->first; e; e = e->next)
            if (!strcmp(e->key, key))
                return e;
    }
    return NULL;
}

int errands_begin(struct errands *es, enum errand_line line, const char *key,
                  errand_run_fn *run, void *arg, void (*done)(void *),
                  struct err *err)
{
    struct errand *e = calloc(1, sizeof(*e));
    if (!e || strlen(key) >= sizeof(e->key)) {
        free(e);
        if (done)
            done(arg);
        return err_set(err, ERR_NOMEM, "no memory for an errand");
    }
    e->es = es;
    strcpy(e->key, key);
    e->run = run;
    e->arg = arg;
    e->done = done;
    bool runs;
    pthread_mutex_lock(&es->mutex);
    bool fresh = !es->stopped && !find(es, key, &runs);
    if (fresh) {
        struct line *l = &es->lines[line];
        struct failure *f = failure_find(es, key);
        if (f)
            f->turn = 0;
        *l->last = e;
        l->last = &e->next;
        pthread_cond_signal(&l->more);
    }
    pthread_mutex_unlock(&es->mutex);
    if (!fresh)
        errand_free(e);
    return fresh;
}

void errands_cancel(struct errands *es, const char *key)
{
    struct errand *dropped = NULL;
    pthread_mutex_lock(&es->mutex);
    for (int i = 0; i < ERRAND_LINES && !dropped; i++) {
        struct line *l = &es->lines[i];
        if (l->running && !strcmp(l->running->key, key))
            atomic_store(&l->running->stop, true);
        for (struct errand **at = &l->first; *at; at = &(*at)->next) {
            if (strcmp((*at)->key, key))
                continue;
            dropped = *at;
            *at = dropped->next;
            if (!*at)
                l->last = at;
            break;
        }
    }
    pthread_mutex_unlock(&es->mutex);
    if (!dropped)
        return;
    errand_free(dropped);
    if (es->notice)
        es->notice(es->notice_arg);
}

enum errand_state errands_look(struct errands *es, const char *key,
                               struct errand_view *ret)
{
    struct errand_view view = {0};
    enum errand_state state = ERRAND_NONE;
    bool runs;
    pthread_mutex_lock(&es->mutex);
    const struct errand *e = find(es, key, &runs);
    const struct failure *f = e ? NULL : failure_find(es, key);
    if (e) {
        state = runs ? ERRAND_RUNS : ERRAND_WAITS;
        view.done = atomic_load(&e->read);
        view.all = atomic_load(&e->all);
    } else if (f) {
        state = ERRAND_FAILED;
        view.err = f->err;
    }
    pthread_mutex_unlock(&es->mutex);
    if (ret)
        *ret = view;
    return state;
}

bool errand_stopped(const struct errand *e)
{
    return atomic_load(&e->stop);
}

void errand_progress(struct errand *e, int64_t done, int64_t all)
{
    atomic_store(&e->read, done);
    atomic_store(&e->all, all);
}

struct lanes *errand_lanes(const struct errand *e)
{
    return e->es->lanes;
}
