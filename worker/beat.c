#include "worker/beat.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"

#define METRICS_PER_REQUEST 2000
#define SAMPLES_PER_REQUEST 500
#define LOGS_PER_REQUEST 200
#define SAMPLES_KEPT 20000 /* while the server is away; the oldest go */
#define LOGS_KEPT 2000

struct log_line {
    int64_t at_ms;
    const char *level;
    char *text;
};

/* How much of each, counted from the lease's start: a request carries what
 * lies before such a mark, and being acknowledged twice does no harm. */
struct parcel {
    size_t metrics, samples, logs;
};

/* Three queues: pushed at the end, taken from the front once acknowledged. */
struct outbox {
    struct metric *metrics;
    struct memory_sample *samples;
    struct log_line *logs;
    size_t n_metrics, cap_metrics, n_samples, cap_samples, n_logs, cap_logs;
    struct parcel gone; /* what was taken */
};

struct beat {
    struct client *client;
    char path[96];
    int64_t token;
    double interval_s;
    bool has_policy, has_value;

    pthread_t thread;
    atomic_bool quit; /* ends a request under way */
    pthread_mutex_t lock;
    pthread_cond_t kick, sent;
    bool stop, now;
    bool reporting; /* a checkpoint or release carries the outbox */
    struct parcel reported;
    struct outbox box;
    struct progress progress;
    int64_t seq;
    bool has_data; /* the trainer told of it */
    struct data_report data;
    enum order order;
    char reason[32];
    json_t *runtime;
    int64_t runtime_version;
    double last_answer; /* monotonic */
    bool away;
    bool refused; /* the last heartbeat, for what it said */
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Wait for the condition, at most until a time of seconds(). */
static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
                       double until)
{
#ifdef __APPLE__
    double left = until - seconds();
    left = left > 0 ? left : 0;
    struct timespec t = {(time_t)left, (long)((left - floor(left)) * 1e9)};
    pthread_cond_timedwait_relative_np(cond, lock, &t);
#else
    struct timespec t = {(time_t)until, (long)((until - floor(until)) * 1e9)};
    pthread_cond_timedwait(cond, lock, &t); /* on CLOCK_MONOTONIC */
#endif
}

/* ---- the outbox; under the lock ---- */

static int room(void **v, size_t *cap, size_t n, size_t size)
{
    if (n < *cap)
        return 0;
    size_t bigger = *cap ? 2 * *cap : 64;
    void *p = realloc(*v, bigger * size);
    if (!p)
        return -1;
    *v = p;
    *cap = bigger;
    return 0;
}

static void drop_front(void *v, size_t *n, size_t *gone, size_t count,
                       size_t size)
{
    if (!count)
        return;
    *n -= count;
    *gone += count;
    memmove(v, (char *)v + count * size, *n * size);
}

static void drop_metrics(struct outbox *box, size_t count)
{
    drop_front(box->metrics, &box->n_metrics, &box->gone.metrics, count,
               sizeof *box->metrics);
}

static void drop_samples(struct outbox *box, size_t count)
{
    drop_front(box->samples, &box->n_samples, &box->gone.samples, count,
               sizeof *box->samples);
}

static void drop_logs(struct outbox *box, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(box->logs[i].text);
    drop_front(box->logs, &box->n_logs, &box->gone.logs, count,
               sizeof *box->logs);
}

static size_t beyond(size_t mark, size_t gone)
{
    return mark > gone ? mark - gone : 0;
}

static void outbox_drop(struct outbox *box, const struct parcel *p)
{
    drop_metrics(box, beyond(p->metrics, box->gone.metrics));
    drop_samples(box, beyond(p->samples, box->gone.samples));
    drop_logs(box, beyond(p->logs, box->gone.logs));
}

static size_t at_most(size_t n, size_t max)
{
    return n < max ? n : max;
}

static struct parcel outbox_parcel(const struct outbox *box)
{
    return (struct parcel){
        box->gone.metrics + at_most(box->n_metrics, METRICS_PER_REQUEST),
        box->gone.samples + at_most(box->n_samples, SAMPLES_PER_REQUEST),
        box->gone.logs + at_most(box->n_logs, LOGS_PER_REQUEST),
    };
}

static bool outbox_fits(const struct outbox *box)
{
    return box->n_metrics <= METRICS_PER_REQUEST &&
           box->n_samples <= SAMPLES_PER_REQUEST &&
           box->n_logs <= LOGS_PER_REQUEST;
}

/* Figures are float32, which a double holds exactly. */
static void put_real(json_t *o, const char *name, float v)
{
    json_object_set_new(o, name,
                        isfinite(v) ? json_real((double)v) : json_null());
}

static void put_losses(const struct beat *b, json_t *o, const char *name,
                       const struct loss_means *l)
{
    char part[32];
    put_real(o, name, l->total);
    snprintf(part, sizeof part, "%s/policy", name);
    if (b->has_policy)
        put_real(o, part, l->policy);
    snprintf(part, sizeof part, "%s/value", name);
    if (b->has_value)
        put_real(o, part, l->value);
}

static json_t *metric_json(const struct beat *b, const struct metric *m)
{
    json_t *o = json_object();
    put_losses(b, o, "loss", &m->loss);
    if (m->validated)
        put_losses(b, o, "validation/loss", &m->validation);
    put_real(o, "lr", m->lr);
    put_real(o, "grad_norm", m->grad_norm);
    if (m->records_per_s >= 0)
        put_real(o, "records_per_s", m->records_per_s);
    json_object_set_new(o, "shapes", json_integer(m->shapes));
    put_real(o, "padding_waste", m->waste);
    if (m->exceeded >= 0)
        json_object_set_new(o, "shapes_exceeded", json_integer(m->exceeded));
    return json_pack("[I, o]", (json_int_t)m->step, o);
}

/* What a heartbeat, a checkpoint and a release have in common. */
static int fill_report(struct beat *b, json_t *body, const struct parcel *p,
                       struct err *err)
{
    json_t *metrics = json_array(), *memory = json_array();
    json_t *logs = json_array();
    for (size_t i = 0; i < beyond(p->metrics, b->box.gone.metrics); i++)
        json_array_append_new(metrics, metric_json(b, &b->box.metrics[i]));
    for (size_t i = 0; i < beyond(p->samples, b->box.gone.samples); i++)
        json_array_append_new(memory, memory_sample_json(&b->box.samples[i]));
    for (size_t i = 0; i < beyond(p->logs, b->box.gone.logs); i++) {
        const struct log_line *l = &b->box.logs[i];
        json_array_append_new(logs, json_pack("{s:I, s:s, s:s}", "at_ms",
                                              (json_int_t)l->at_ms, "level",
                                              l->level, "text", l->text));
    }
    int bad = 0;
    bad |= json_object_set_new(
        body, "position",
        json_pack("{s:I, s:I, s:I, s:I}", "step", (json_int_t)b->progress.step,
                  "epoch", (json_int_t)b->progress.epoch, "records",
                  (json_int_t)b->progress.records, "micro_batches",
                  (json_int_t)b->progress.micro_batches));
    bad |= json_object_set_new(body, "metrics", metrics);
    bad |= json_object_set_new(body, "memory", memory);
    bad |= json_object_set_new(body, "logs", logs);
    const struct data_report *d = &b->data;
    if (b->has_data)
        bad |= json_object_set_new(
            body, "data",
            json_pack("{s:I, s:o, s:I, s:o}", "skipped", (json_int_t)d->skipped,
                      "bad", json_deep_copy(d->bad), "renormalised",
                      (json_int_t)d->renormalised, "exceeded",
                      json_deep_copy(d->exceeded)));
    return bad ? err_set(err, ERR_NOMEM, "no memory for a report") : 0;
}

/* ---- the thread ---- */

static json_t *heartbeat_body(struct beat *b, struct parcel *ret)
{
    *ret = b->reporting ? (struct parcel){0} : outbox_parcel(&b->box);
    json_t *body =
        json_pack("{s:I, s:s, s:I}", "token", (json_int_t)b->token, "stage",
                  b->progress.stage, "seq", (json_int_t)++b->seq);
    if (!body || fill_report(b, body, ret, NULL) < 0) {
        json_decref(body);
        return NULL;
    }
    if (b->progress.records_per_s >= 0)
        json_object_set_new(body, "records_per_s",
                            json_real(b->progress.records_per_s));
    return body;
}

static void obey(struct beat *b, const json_t *answer)
{
    const char *what = json_string_value(json_object_get(answer, "do"));
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    if (what && !strcmp(what, "yield"))
        b->order = ORDER_YIELD;
    else if (what && !strcmp(what, "stop"))
        b->order = ORDER_STOP;
    else
        b->order = ORDER_CONTINUE;
    snprintf(b->reason, sizeof b->reason, "%s", reason ? reason : "");
    int64_t version =
        json_integer_value(json_object_get(answer, "runtime_version"));
    json_t *runtime = json_object_get(answer, "runtime");
    if (json_is_object(runtime) && version > b->runtime_version) {
        json_decref(b->runtime);
        b->runtime = json_deep_copy(runtime);
        b->runtime_version = version;
    }
}

/* Send one heartbeat. Called and returns with the lock held. */
static void beat_once(struct beat *b)
{
    struct parcel parcel;
    json_t *body = heartbeat_body(b, &parcel);
    if (!body)
        return;
    pthread_mutex_unlock(&b->lock);
    struct request rq = {
        .method = "POST", .path = b->path, .json = body, .timeout_s = 20};
    CLEANUP(answer_release) struct answer answer = {0};
    struct err err = {0};
    int r = client_try(b->client, &rq, &answer, &err);
    json_decref(body);
    pthread_mutex_lock(&b->lock);
    b->away = client_retriable(r);
    if (!b->away)
        b->last_answer = seconds();
    b->refused = r < 0 && !b->away;
    if (r == 0) {
        outbox_drop(&b->box, &parcel);
        obey(b, answer.json);
    } else if (r == ERR_STALE || r == ERR_NOT_FOUND) {
        b->order = ORDER_LOST;
    } else if (b->refused) {
        fprintf(stderr, "pawl-worker: heartbeat refused: %s\n", err.text);
    }
    pthread_cond_broadcast(&b->sent);
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    pthread_mutex_lock(&b->lock);
    while (!b->stop && b->order != ORDER_LOST) {
        beat_once(b);
        double wait = b->away ? 0.25 : b->interval_s;
        if (!b->away && !b->refused && !b->reporting && !outbox_fits(&b->box))
            wait = 0;
        b->now = false;
        for (double until = seconds() + wait;
             !b->stop && !b->now && seconds() < until;)
            wait_until(&b->kick, &b->lock, until);
    }
    pthread_cond_broadcast(&b->sent);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- the trainer's side ---- */

static void beat_free(struct beat *b)
{
    client_free(b->client);
    pthread_cond_destroy(&b->kick);
    pthread_cond_destroy(&b->sent);
    pthread_mutex_destroy(&b->lock);
    drop_logs(&b->box, b->box.n_logs);
    free(b->box.metrics);
    free(b->box.samples);
    free(b->box.logs);
    json_decref(b->data.bad);
    json_decref(b->data.exceeded);
    json_decref(b->runtime);
    free(b);
}

int beat_start(const struct client_options *o, int64_t lease, int64_t token,
               int64_t runtime_version, double interval_s, bool has_policy,
               bool has_value, const struct progress *from, struct beat **ret,
               struct err *err)
{
    struct beat *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(err, ERR_NOMEM, "no memory for the heartbeat");
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&b->kick, &attr);
    pthread_cond_init(&b->sent, &attr);
    pthread_condattr_destroy(&attr);
    snprintf(b->path, sizeof b->path, "/v1/leases/%" PRId64 "/heartbeat",
             lease);
    b->token = token;
    b->interval_s = interval_s;
    b->has_policy = has_policy;
    b->has_value = has_value;
    b->runtime_version = runtime_version;
    b->progress = *from;
    b->last_answer = seconds();
    struct client_options own = *o;
    own.interrupt = &b->quit;
    int r = client_new(&own, &b->client, err);
    if (r == 0) {
        int e = pthread_create(&b->thread, NULL, beat_main, b);
        if (e)
            r = err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                        strerror(e));
    }
    if (r < 0) {
        beat_free(b);
        return r;
    }
    *ret = b;
    return 0;
}

void beat_stop(struct beat *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    atomic_store(&b->quit, true);
    pthread_cond_broadcast(&b->kick);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    beat_free(b);
}

void beat_progress(struct beat *b, const struct progress *p)
{
    pthread_mutex_lock(&b->lock);
    b->progress = *p;
    pthread_mutex_unlock(&b->lock);
}

int beat_metric(struct beat *b, const struct metric *m, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    struct outbox *box = &b->box;
    int r = room((void **)&box->metrics, &box->cap_metrics, box->n_metrics,
                 sizeof *box->metrics);
    if (r == 0)
        box->metrics[box->n_metrics++] = *m;
    pthread_mutex_unlock(&b->lock);
    return r < 0 ? err_set(err, ERR_NOMEM, "no memory for metrics") : 0;
}

void beat_memory(struct beat *b, const struct memory_sample *s)
{
    pthread_mutex_lock(&b->lock);
    struct outbox *box = &b->box;
    if (box->n_samples >= SAMPLES_KEPT && b->away)
        drop_samples(box, SAMPLES_KEPT / 2);
    if (room((void **)&box->samples, &box->cap_samples, box->n_samples,
             sizeof *box->samples) == 0)
        box->samples[box->n_samples++] = *s;
    pthread_mutex_unlock(&b->lock);
}

void beat_log(struct beat *b, const char *level, const char *text)
{
    pthread_mutex_lock(&b->lock);
    struct outbox *box = &b->box;
    if (box->n_logs >= LOGS_KEPT && b->away)
        drop_logs(box, LOGS_KEPT / 2);
    char *copy = strdup(text);
    if (copy && room((void **)&box->logs, &box->cap_logs, box->n_logs,
                     sizeof *box->logs) == 0)
        box->logs[box->n_logs++] = (struct log_line){wall_ms(), level, copy};
    else
        free(copy);
    pthread_mutex_unlock(&b->lock);
}

void beat_say(struct beat *b, const char *level, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "pawl-worker[%d]: %s: %s\n", (int)getpid(), level, text);
    if (b)
        beat_log(b, level, text);
}

void beat_data(struct beat *b, const struct data_report *d)
{
    pthread_mutex_lock(&b->lock);
    json_decref(b->data.bad);
    json_decref(b->data.exceeded);
    b->data = *d;
    b->has_data = true;
    pthread_mutex_unlock(&b->lock);
}

enum order beat_order(struct beat *b, char *reason, size_t cap)
{
    pthread_mutex_lock(&b->lock);
    enum order o = b->order;
    snprintf(reason, cap, "%s", b->reason);
    pthread_mutex_unlock(&b->lock);
    return o;
}

json_t *beat_runtime(struct beat *b)
{
    pthread_mutex_lock(&b->lock);
    json_t *runtime = b->runtime;
    b->runtime = NULL;
    pthread_mutex_unlock(&b->lock);
    return runtime;
}

double beat_away_s(struct beat *b)
{
    pthread_mutex_lock(&b->lock);
    double s = b->away ? seconds() - b->last_answer : 0;
    pthread_mutex_unlock(&b->lock);
    return s;
}

void beat_now(struct beat *b)
{
    pthread_mutex_lock(&b->lock);
    b->now = true;
    pthread_cond_broadcast(&b->kick);
    pthread_mutex_unlock(&b->lock);
}

size_t beat_mark(struct beat *b)
{
    pthread_mutex_lock(&b->lock);
    size_t mark = b->box.gone.metrics + b->box.n_metrics;
    pthread_mutex_unlock(&b->lock);
    return mark;
}

#define MOST SIZE_MAX /* instead of a mark */

static bool flushed(const struct beat *b, size_t mark)
{
    return mark == MOST ? outbox_fits(&b->box) : b->box.gone.metrics >= mark;
}

static bool flush(struct beat *b, size_t mark, client_give_up_fn *give_up,
                  void *arg)
{
    bool going = true;
    pthread_mutex_lock(&b->lock);
    while (!flushed(b, mark) && b->order != ORDER_LOST && going) {
        b->now = !b->away && !b->refused;
        pthread_cond_broadcast(&b->kick);
        wait_until(&b->sent, &b->lock, seconds() + 0.5);
        if (flushed(b, mark))
            break;
        pthread_mutex_unlock(&b->lock);
        going = !give_up(arg);
        pthread_mutex_lock(&b->lock);
    }
    bool done = flushed(b, mark);
    pthread_mutex_unlock(&b->lock);
    return done;
}

bool beat_flush_to(struct beat *b, size_t mark, client_give_up_fn *give_up,
                   void *arg)
{
    return flush(b, mark, give_up, arg);
}

bool beat_flush(struct beat *b, client_give_up_fn *give_up, void *arg)
{
    return flush(b, MOST, give_up, arg);
}

int beat_report(struct beat *b, json_t *body, struct err *err)
{
    pthread_mutex_lock(&b->lock);
    b->reporting = true;
    b->reported = outbox_parcel(&b->box);
    int r = fill_report(b, body, &b->reported, err);
    pthread_mutex_unlock(&b->lock);
    return r;
}

void beat_reported(struct beat *b, bool acknowledged)
{
    pthread_mutex_lock(&b->lock);
    if (acknowledged && b->reporting)
        outbox_drop(&b->box, &b->reported);
    b->reporting = false;
    pthread_mutex_unlock(&b->lock);
}
