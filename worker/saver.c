#include "worker/saver.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/state.h"
#include "worker/save.h"
#include "worker/shard.h"
#include "worker/snapshot.h"

/* A save that did not get through is tried again after so long; one that found
 * no room a little later, and the log tells of it now and then. */
#define AGAIN_S 5.0
#define ROOM_AGAIN_S 15.0
#define ROOM_TOLD_S 600.0
/* For the lease's end room is waited for: as long, or as the second when the
 * process was told to end. */
#define ROOM_WAIT_S 20.0
#define ROOM_WAIT_TOLD_S 5.0
/* Attempts at one request of a save on the way. */
#define TRIES_ON_THE_WAY 3

/* A save that is being made, from the trainer or from a copy. */
struct making {
    struct saver *s;
    struct client *client;
    struct progress at; /* the state's */
    size_t mark;        /* behind its metrics */
    struct snapshot *copy;
    bool leaving;
    int tries;
    double began, stood_still_s;
    int64_t bytes; /* of the state */
};

struct saver {
    struct saver_options o;
    struct client *client, *thread_client;
    json_t *head; /* what all manifests have in common */
    struct buf model_header;
    json_t *known;             /* digests that the server may have */
    char previous[DIGEST_HEX]; /* the newest manifest's digest, or "" */
    json_t *unsure;            /* a manifest that was sent, but not answered */
    int64_t saved_step;        /* 0: none */
    int64_t taken;             /* micro-batches of the state taken last */
    bool owed;                 /* it was not saved */
    double again;              /* not before */
    double room_told;          /* when the log spoke of it; 0: there was room */
    int64_t room_bytes;        /* there was none for */
    bool waits_told, stream_told;

    bool running;
    pthread_t thread;
    struct making flight; /* the thread's */
    atomic_bool quit;     /* breaks off its requests */
    atomic_bool abandoned, posting, done;
    int result;
    struct err why;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t number(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static int know(struct saver *s, const json_t *manifest, struct err *err)
{
    json_t *known = json_object();
    size_t i;
    json_t *hex;
    int bad = !known;
    json_array_foreach(json_object_get(manifest, "chunks"), i, hex)
    {
        bad |= json_object_set_new(known, json_string_value(hex), json_true());
    }
    if (bad) {
        json_decref(known);
        return err_set(err, ERR_NOMEM, "no memory to save");
    }
    json_decref(s->known);
    s->known = known;
    return 0;
}

int saver_new(const struct saver_options *o, const json_t *from, bool resumed,
              const struct progress *at, struct saver **ret, struct err *err)
{
    struct saver *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory to save");
    s->o = *o;
    s->head =
        json_pack("{s:s, s:i, s:I, s:s, s:O}", "format", "pawl-state",
                  "version", STATE_VERSION, "cycle", (json_int_t)o->cycle,
                  "signature", o->signature, "fingerprint", o->fingerprint);
    int r = s->head ? know(s, json_object_get(from, "manifest"), err)
                    : err_set(err, ERR_NOMEM, "no memory to save");
    struct client_options own = *o->net;
    if (r == 0)
        r = client_new(&own, &s->client, err);
    own.interrupt = &s->quit;
    if (r == 0)
        r = client_new(&own, &s->thread_client, err);
    if (r < 0) {
        saver_free(s);
        return r;
    }
    const char *digest = json_string_value(json_object_get(from, "digest"));
    snprintf(s->previous, sizeof s->previous, "%s", digest ? digest : "");
    s->saved_step = resumed ? at->step : 0;
    s->taken = at->micro_batches;
    *ret = s;
    return 0;
}

/* ---- when to give up ---- */

static bool is_over(const struct saver *s)
{
    char reason[32];
    enum order o = beat_order(s->o.beat, reason, sizeof reason);
    return o == ORDER_STOP || o == ORDER_LOST;
}

/* Between attempts of a request. On the way nobody insists: the state itself
 * is what is kept, and training goes on. */
static bool give_up(void *arg)
{
    struct making *m = arg;
    if (m->leaving)
        return m->s->o.give_up(m->s->o.arg);
    return is_over(m->s) || atomic_load(&m->s->abandoned) ||
           beat_away_s(m->s->o.beat) > 0 || ++m->tries > TRIES_ON_THE_WAY;
}

/* ---- the steps of a save ---- */

/* Commit a manifest, with `release` (or NULL) in the same transaction. */
static int post_manifest(struct making *m, json_t *manifest, json_t *release,
                         struct err *err)
{
    struct saver *s = m->s;
    AUTO_JSON json_t *body = json_pack(
        "{s:I, s:O}", "token", (json_int_t)s->o.token, "manifest", manifest);
    if (!body)
        return err_set(err, ERR_NOMEM, "no memory to save");
    if (release) {
        int e = beat_report(s->o.beat, release, err);
        if (e < 0)
            return e;
        json_object_set(body, "release", release);
    }
    char path[96];
    snprintf(path, sizeof path, "/v1/leases/%" PRId64 "/checkpoints",
             s->o.lease);
    struct request rq = {
        .method = "POST", .path = path, .json = body, .timeout_s = 300};
    CLEANUP(answer_release) struct answer a = {0};
    atomic_store(&s->posting, true);
    int e = client_insist(m->client, &rq, &a, give_up, m, err);
    atomic_store(&s->posting, false);
    if (release)
        beat_reported(s->o.beat, e == 0);
    json_decref(s->unsure);
    s->unsure = client_retriable(e) ? json_incref(manifest) : NULL;
    if (e < 0)
        return e;
    const char *digest = json_string_value(json_object_get(a.json, "digest"));
    snprintf(s->previous, sizeof s->previous, "%s", digest ? digest : "");
    s->saved_step = number(manifest, "step");
    return know(s, manifest, err);
}

/* A manifest whose answer never came may have been committed, and then the
 * next one must name it as its predecessor: ask again. */
static int settle_unsure(struct making *m, struct err *err)
{
    if (!m->s->unsure)
        return 0;
    AUTO_JSON json_t *manifest = json_incref(m->s->unsure);
    return post_manifest(m, manifest, NULL, err);
}

static int ask_room(struct making *m, struct err *err)
{
    struct saver *s = m->s;
    char path[96];
    AUTO_JSON json_t *body =
        json_pack("{s:I, s:I, s:I}", "token", (json_int_t)s->o.token, "bytes",
                  (json_int_t)m->bytes, "step", (json_int_t)m->at.step);
    if (!body)
        return err_set(err, ERR_NOMEM, "no memory to save");
    snprintf(path, sizeof path, "/v1/leases/%" PRId64 "/room", s->o.lease);
    struct request rq = {
        .method = "POST", .path = path, .json = body, .timeout_s = 60};
    for (int attempt = 0;; attempt++) {
        CLEANUP(answer_release) struct answer a = {0};
        int r = client_try(m->client, &rq, &a, err);
        if (r == ERR_NOSPACE || !client_retriable(r) || give_up(m))
            return r;
        client_pause(m->client, attempt);
    }
}

static json_t *manifest_head(const struct making *m)
{
    json_t *head = json_copy(m->s->head);
    json_t *more = json_pack(
        "{s:I, s:I, s:I, s:{s:I, s:I}, s:s?}", "step", (json_int_t)m->at.step,
        "epoch", (json_int_t)m->at.epoch, "records", (json_int_t)m->at.records,
        "totals", "micro_batches", (json_int_t)m->at.micro_batches, "records",
        (json_int_t)m->at.records, "previous",
        *m->s->previous ? m->s->previous : NULL);
    if (!head || !more || json_object_update(head, more) < 0) {
        json_decref(head);
        head = NULL;
    }
    json_decref(more);
    return head;
}

/* Send the state and commit its manifest. */
static int save_once(struct making *m, const struct state_out *state,
                     json_t *release, struct err *err)
{
    struct saver *s = m->s;
    m->bytes = trainer_state_bytes(s->o.trainer) +
               state->n * (int64_t)sizeof(struct ref);
    int r = settle_unsure(m, err);
    if (r == 0)
        r = ask_room(m, err);
    if (r == 0)
        r = save_model_header(state, s->o.resolved_spec, &s->model_header, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *head = manifest_head(m);
    CLEANUP(json_ptr) json_t *manifest = NULL;
    if (!head)
        return err_set(err, ERR_NOMEM, "no memory to save");
    beat_now(s->o.beat); /* metrics travel while chunks do */
    struct save out = {.client = m->client,
                       .lease = s->o.lease,
                       .token = s->o.token,
                       .give_up = give_up,
                       .arg = m,
                       .known = s->known,
                       .model_header = &s->model_header};
    r = save_state(&out, state, head, &manifest, err);
    snapshot_free(m->copy);
    m->copy = NULL;
    if (r < 0)
        return r;
    bool told = release ? beat_flush(s->o.beat, give_up, m)
                        : beat_flush_to(s->o.beat, m->mark, give_up, m);
    if (!told)
        return err_set(err, ERR_NET, "the server takes no metrics");
    return post_manifest(m, manifest, release, err);
}

/* From the trainer itself, which stands still. */
static int put_trainer(void *from, trainer_put_fn *put, void *ctx,
                       struct err *err)
{
    return trainer_save(from, put, ctx, err);
}

static int stream_once(struct making *m, json_t *release, struct err *err)
{
    struct saver *s = m->s;
    CLEANUP(json_ptr) json_t *position = NULL;
    AUTO_FREE int64_t *buffer = NULL;
    int64_t n = 0;
    int r = feed_save(s->o.feed, &position, &buffer, &n, err);
    if (r < 0)
        return r;
    struct state_out state = {.tensors = put_trainer,
                              .from = s->o.trainer,
                              .feed = position,
                              .buffer = buffer,
                              .n = n};
    return save_once(m, &state, release, err);
}

/* ---- on the way ---- */

/* What came of a save on the way: 0, or an error that ends the lease. */
static int settle(struct saver *s, const struct making *m, int r,
                  const struct err *why, struct err *err)
{
    if (r == 0) {
        s->owed = false;
        s->room_told = 0;
        beat_say(s->o.beat, "info",
                 "saved step %" PRId64 " in %.2f s, of which training stood "
                 "still for %.3f s",
                 m->at.step, seconds() - m->began, m->stood_still_s);
        return 0;
    }
    if (!client_retriable(r) && r != ERR_NOMEM) {
        *err = *why;
        /* "invalid" is kept for the user's mistakes; this is ours */
        err->code = r == ERR_INVALID ? ERR_CONFLICT : r;
        return err->code;
    }
    double now = seconds();
    s->owed = true;
    s->again = now + (r == ERR_NOSPACE ? ROOM_AGAIN_S : AGAIN_S);
    if (atomic_load(&s->abandoned) ||
        (r == ERR_NOSPACE && s->room_told && now < s->room_told + ROOM_TOLD_S))
        return 0;
    beat_say(s->o.beat, "warning", "step %" PRId64 " is not saved yet: %s",
             m->at.step, why->text);
    if (r == ERR_NOSPACE) {
        s->room_told = now;
        s->room_bytes = m->bytes;
    }
    return 0;
}

static void *thread_main(void *arg)
{
    struct saver *s = arg;
    struct state_out state = snapshot_state(s->flight.copy);
    s->result = save_once(&s->flight, &state, NULL, &s->why);
    snapshot_free(s->flight.copy);
    s->flight.copy = NULL;
    atomic_store(&s->done, true);
    return NULL;
}

/* Join the thread, and take note. */
static int land(struct saver *s, struct err *err)
{
    pthread_join(s->thread, NULL);
    s->running = false;
    s->waits_told = false;
    return settle(s, &s->flight, s->result, &s->why, err);
}

static struct making making_new(struct saver *s, const struct progress *p,
                                struct client *c)
{
    return (struct making){.s = s,
                           .client = c,
                           .at = *p,
                           .mark = beat_mark(s->o.beat),
                           .began = seconds()};
}

/* Copy the state and have a thread save it: 0, or why that cannot be. */
static int launch(struct saver *s, const struct progress *p, struct err *err)
{
    s->flight = making_new(s, p, s->thread_client);
    struct making *m = &s->flight;
    int r = snapshot_take(s->o.trainer, s->o.feed,
                          trainer_state_bytes(s->o.trainer), &m->copy, err);
    if (r < 0)
        return r;
    atomic_store(&s->done, false);
    atomic_store(&s->abandoned, false);
    atomic_store(&s->quit, false);
    s->why = (struct err){0};
    m->stood_still_s = seconds() - m->began;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)1 << 20);
    int e = pthread_create(&s->thread, &attr, thread_main, s);
    pthread_attr_destroy(&attr);
    if (e) {
        snapshot_free(m->copy);
        m->copy = NULL;
        return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                       strerror(e));
    }
    s->running = true;
    return 0;
}

static int stream(struct saver *s, const struct progress *p, struct err *err)
{
    struct making m = making_new(s, p, s->client);
    struct progress saving = *p;
    struct err why = {0};
    saving.stage = "save";
    beat_progress(s->o.beat, &saving);
    atomic_store(&s->abandoned, false);
    int r = stream_once(&m, NULL, &why);
    beat_progress(s->o.beat, p);
    m.stood_still_s = seconds() - m.began;
    return settle(s, &m, r, &why, err);
}

/* There was no room last time: is there now? No copy is made for a no, which is
 * 1 here. */
static int ask_ahead(struct saver *s, const struct progress *p, struct err *err)
{
    struct making m = making_new(s, p, s->client);
    struct err why = {0};
    m.bytes = s->room_bytes;
    int r = ask_room(&m, &why);
    if (r == 0)
        return 0;
    r = settle(s, &m, r, &why, err);
    return r < 0 ? r : 1;
}

int saver_boundary(struct saver *s, const struct progress *p, int every,
                   const struct memory *m, const struct thresholds *t,
                   struct err *err)
{
    if (s->running && atomic_load(&s->done)) {
        int r = land(s, err);
        if (r < 0)
            return r;
    }
    bool due = every > 0 && (s->owed || p->micro_batches - s->taken >= every);
    if (!due || seconds() < s->again || beat_away_s(s->o.beat) > 0)
        return 0;
    if (s->running) {
        if (!s->waits_told)
            beat_say(s->o.beat, "info",
                     "step %" PRId64 " is not saved: the save of step %" PRId64
                     " is still under way; the next one follows it",
                     p->step, s->flight.at.step);
        s->waits_told = true;
        return 0;
    }
    int r = s->room_told ? ask_ahead(s, p, err) : 0;
    if (r)
        return r < 0 ? r : 0;
    s->taken = p->micro_batches;
    s->owed = false;
    char why[256];
    if (memory_allows(m, t, trainer_state_bytes(s->o.trainer), why,
                      sizeof why)) {
        struct err refused = {0};
        r = launch(s, p, &refused);
        if (r == 0)
            return 1;
        if (r != ERR_NOMEM && r != ERR_OOM) {
            *err = refused;
            return r;
        }
        snprintf(why, sizeof why, "%.200s", refused.text);
    }
    if (!s->stream_told)
        beat_say(s->o.beat, "info",
                 "training waits for its saves: the state, %.0f MB, is not "
                 "copied, for %s",
                 (double)trainer_state_bytes(s->o.trainer) / MB, why);
    s->stream_told = true;
    r = stream(s, p, err);
    return r < 0 ? r : 1;
}

/* ---- for the lease's end ---- */

/* Wait for a save that is under way if it is of `step`; else break it off. A
 * manifest that was sent already is waited for, for its answer says whether the
 * next one follows it. */
static void bring_down(struct saver *s, int64_t step)
{
    struct err ignored = {0};
    if (!s->running)
        return;
    if (s->flight.at.step != step) {
        atomic_store(&s->abandoned, true);
        if (!atomic_load(&s->posting))
            atomic_store(&s->quit, true);
    }
    /* what is wrong with it will be wrong with the next, and said then */
    land(s, &ignored);
    s->owed = false;
}

void saver_free(struct saver *s)
{
    if (!s)
        return;
    bring_down(s, -1);
    client_free(s->client);
    client_free(s->thread_client);
    json_decref(s->head);
    json_decref(s->known);
    json_decref(s->unsure);
    buf_release(&s->model_header);
    free(s);
}

bool saver_wants(struct saver *s, int64_t step)
{
    bring_down(s, step);
    return step > s->saved_step;
}

int saver_leave(struct saver *s, const struct progress *p, json_t *release,
                int64_t *ret_bytes, struct err *err)
{
    struct making m = making_new(s, p, s->client);
    double began = seconds();
    bool told = false;
    m.leaving = true;
    for (;;) {
        int r = stream_once(&m, release, err);
        *ret_bytes = m.bytes;
        double waited = seconds() - began;
        if (r != ERR_NOSPACE || s->o.give_up(s->o.arg) ||
            waited > (s->o.ends(s->o.arg) ? ROOM_WAIT_TOLD_S : ROOM_WAIT_S))
            return r;
        if (!told)
            beat_say(s->o.beat, "warning",
                     "step %" PRId64 " is not saved yet: %s", p->step,
                     err->text);
        told = true;
        struct timespec pause = {1, 0};
        nanosleep(&pause, NULL);
    }
}
