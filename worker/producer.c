#include "worker/producer.h"
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/record.h"
#include "worker/bad.h"
#include "worker/plan.h"
#include "worker/reader.h"

#define READY_MAX 16                   /* effective batches made ahead */
#define READY_BYTES (64 * 1024 * 1024) /* and their memory, but for one */
#define FETCH_MAX 256 /* lines fetched at a time that the buffer lacks */
#define FETCH_BYTES (1024 * 1024)
#define SUM_EXACT 1e-6 /* a policy's sum within this of 1 is 1 */

struct producer {
    const struct spec *spec;
    struct shards *shards;
    struct plan *plan; /* NULL: through the buffer */
    int64_t take;      /* records of the cycle at most; 0: no limit */

    /* The thread's. What producer_buffer reads changes under the lock `order`. */
    struct reader *reader;
    struct record_decoder *decoder;
    struct shuffle shuffle;
    struct journal building; /* draws since the last complete batch */
    struct ready *pending;   /* complete, but for knowing what follows */
    struct ready *coming;    /* the one after it: holds what was drawn ahead */
    struct position at;      /* after the last draw */
    bool filled;             /* the buffer, in this epoch */
    bool ended;              /* the text, in this epoch */
    int ahead;               /* of drawing ahead: an error met there */
    struct err ahead_err;
    struct buf fetched;
    json_t *bad;

    /* Held for every draw, so that the trainer, who takes what is made, does not
     * need it. Taken before the other. */
    pthread_mutex_t order;
    pthread_mutex_t lock; /* of what follows, and of pending becoming queued */
    pthread_cond_t made, taken;
    struct ready *head, *tail, *spare;
    int queued;
    size_t queued_bytes;
    bool stop, started;
    pthread_t thread;
};

/* ---- batches ---- */

static void ready_free(struct ready *r)
{
    if (!r)
        return;
    free(r->v);
    arena_release(&r->arena);
    journal_release(&r->ops);
    free(r);
}

static struct ready *ready_new(struct producer *p)
{
    pthread_mutex_lock(&p->lock);
    struct ready *r = p->spare;
    if (r)
        p->spare = r->next;
    pthread_mutex_unlock(&p->lock);
    if (r) {
        arena_reset(&r->arena);
        r->ops.n = 0;
        *r = (struct ready){.v = r->v, .arena = r->arena, .ops = r->ops};
        return r;
    }
    r = calloc(1, sizeof *r);
    if (r)
        r->v = calloc((size_t)p->spec->training.effective_batch, sizeof *r->v);
    if (!r || !r->v) {
        free(r);
        return NULL;
    }
    return r;
}

void producer_give(struct producer *p, struct ready *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&p->lock);
    r->next = p->spare;
    p->spare = r;
    pthread_mutex_unlock(&p->lock);
}

/* ---- drawing ---- */

/* The start of an epoch: nothing read, nothing drawn. */
static void epoch_begin(struct producer *p, int64_t epoch)
{
    p->shuffle.epoch = p->at.epoch = epoch;
    p->shuffle.draws = p->at.draws = 0;
    p->at.shard = p->at.offset = 0;
    p->filled = p->ended = false;
}

/* The next line of the text: 1, or 0 from its end on. */
static int next_line(struct producer *p, struct reader_line *ret,
                     struct err *err)
{
    int r = p->ended ? 0 : reader_next(p->reader, ret, err);
    if (r == 0) {
        p->ended = true;
        *ret = (struct reader_line){.shard = p->shards->n};
    }
    return r;
}

static int fill(struct producer *p, struct err *err)
{
    while (p->shuffle.n < p->shuffle.cap) {
        struct reader_line next;
        int r = next_line(p, &next, err);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        pthread_mutex_lock(&p->order);
        r = shuffle_push(&p->shuffle, &p->building, &next.ref, next.text, err);
        pthread_mutex_unlock(&p->order);
        if (r < 0)
            return r;
    }
    p->filled = true;
    return 0;
}

static bool lacks_line(const struct shuffle *s, int64_t at)
{
    return !s->lines[at] && s->v[at].length <= LINE_MAX_BYTES;
}

static bool is_among(const int64_t *v, int n, int64_t x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return true;
    return false;
}

/* Get the lines of the draws that follow, from `pick` on, where the buffer has
 * none: after a resume, or when it has no room for all. */
static int fetch(struct producer *p, int64_t pick, struct err *err)
{
    struct shuffle *s = &p->shuffle;
    int64_t places[FETCH_MAX] = {pick}, bytes = s->v[pick].length;
    int n = 1;
    for (int64_t k = 1; k < FETCH_MAX && bytes < FETCH_BYTES; k++) {
        int64_t left = p->ended ? s->n - k : s->n;
        if (left <= 0)
            break;
        int64_t at = shuffle_pick(s, s->draws + k, left);
        if (!lacks_line(s, at) || is_among(places, n, at))
            continue;
        places[n++] = at;
        bytes += s->v[at].length;
    }
    struct ref refs[FETCH_MAX];
    for (int i = 0; i < n; i++)
        refs[i] = s->v[places[i]];
    buf_clear(&p->fetched);
    struct err why = {0};
    int r = shards_lines(p->shards, refs, n, &p->fetched, &why);
    if ((r == ERR_DATA || r == ERR_CORRUPT) && n > 1) {
        /* one that comes later may be at fault */
        n = 1;
        buf_clear(&p->fetched);
        r = shards_lines(p->shards, refs, 1, &p->fetched, &why);
    }
    if (r < 0 && err)
        *err = why;
    size_t at = 0;
    for (int i = 0; i < n && r == 0; i++) {
        r = shuffle_give(s, places[i], p->fetched.data + at, err);
        at += (size_t)refs[i].length + 1;
    }
    return r;
}

struct drawn {
    struct ref ref;
    const char *text; /* NULL: too long */
    char *own;        /* the text, when it is ours to free */
};

/* Through the buffer: 1, or 0 at the epoch's end. */
static int draw_shuffled(struct producer *p, struct drawn *ret, struct err *err)
{
    if (!p->filled) {
        int r = fill(p, err);
        if (r < 0)
            return r;
    }
    struct shuffle *s = &p->shuffle;
    if (!s->n)
        return 0;
    struct reader_line next;
    int more = next_line(p, &next, err);
    if (more < 0)
        return more;
    int64_t pick = shuffle_pick(s, s->draws, s->n);
    if (lacks_line(s, pick)) {
        int r = fetch(p, pick, err);
        if (r < 0)
            return r;
    }
    pthread_mutex_lock(&p->order);
    int r = shuffle_take(s, &p->building, pick, more ? &next.ref : NULL,
                         next.text, &ret->ref, &ret->own, err);
    p->at.shard = next.shard;
    p->at.offset = next.offset;
    p->at.draws = s->draws;
    pthread_mutex_unlock(&p->order);
    ret->text = ret->own;
    return r < 0 ? r : 1;
}

static int draw_planned(struct producer *p, struct drawn *ret, struct err *err)
{
    struct reader_line next;
    int r = next_line(p, &next, err);
    if (r <= 0)
        return r;
    p->at.draws++;
    *ret = (struct drawn){.ref = next.ref, .text = next.text};
    return 1;
}

static int note_bad(struct producer *p, const struct ref *ref,
                    const struct err *why, struct err *err)
{
    json_t *entry = NULL;
    if (json_array_size(p->bad) < BAD_KEPT) {
        entry = bad_json(p->shards, ref, why);
        if (!entry)
            return err_set(err, ERR_NOMEM, "no memory for a bad record");
    }
    pthread_mutex_lock(&p->order);
    p->at.skipped++;
    if (entry)
        json_array_append_new(p->bad, entry);
    pthread_mutex_unlock(&p->order);
    return 0;
}

static int decode(struct producer *p, const struct drawn *d,
                  const struct record **ret, struct err *err)
{
    if (!d->text)
        return bad_too_long(&d->ref, err);
    return record_decode(p->decoder, d->text, (size_t)d->ref.length, ret, err);
}

static int put(struct producer *p, struct ready *b, const struct record *record,
               const struct ref *ref, struct err *err)
{
    int r =
        sample_new(&p->spec->record, record, ref, &b->arena, &b->v[b->n], err);
    if (r < 0)
        return r;
    b->bytes += b->v[b->n++]->bytes;
    b->renormalised +=
        record->policy_sum != 0 && fabs(record->policy_sum - 1) > SUM_EXACT;
    return 1;
}

/* Draw on until a record decodes, into the batch: 1, 0 at the epoch's end. */
static int draw(struct producer *p, struct ready *b, struct err *err)
{
    for (;;) {
        struct drawn d = {0};
        int r = p->plan ? draw_planned(p, &d, err) : draw_shuffled(p, &d, err);
        if (r <= 0)
            return r;
        AUTO_FREE char *own = d.own;
        struct err why = {0};
        const struct record *record;
        r = decode(p, &d, &record, &why);
        if (r == 0)
            return put(p, b, record, &d.ref, err);
        if (r == ERR_DATA && p->spec->data.bad_records == BAD_SKIP) {
            r = note_bad(p, &d.ref, &why, err);
            if (r < 0)
                return r;
            continue;
        }
        if (r == ERR_DATA)
            bad_place(p->shards, &d.ref, "", &why);
        *err = why;
        return r;
    }
}

/* ---- batches in the making ---- */

/* The batch is complete: its draws are its own. */
static int seal(struct producer *p, struct ready *b, struct err *err)
{
    pthread_mutex_lock(&p->order);
    int r = journal_move(&b->ops, &p->building, err);
    p->at.step++;
    p->at.records += b->n;
    p->at.renormalised += b->renormalised;
    b->after = p->at;
    p->pending = b;
    pthread_mutex_unlock(&p->order);
    return r;
}

/* Its epoch ends with it: draws of bad records behind it are its own, too. */
static int seal_epoch(struct producer *p, struct ready *b, struct err *err)
{
    pthread_mutex_lock(&p->order);
    int r = journal_move(&b->ops, &p->building, err);
    epoch_begin(p, p->at.epoch + 1);
    b->after = p->at;
    b->epoch_end = true;
    pthread_mutex_unlock(&p->order);
    return r;
}

static bool is_over(const struct producer *p)
{
    return p->at.epoch >= p->spec->training.epochs ||
           (p->take && p->at.records >= p->take);
}

/* No step will ever cover the bad records, and their reasons are all there
 * is. */
static int nothing_there(const struct producer *p, struct ready *b,
                         struct err *err)
{
    b->after.skipped = p->at.skipped;
    if (!p->at.skipped)
        return err_set(err, ERR_DATA,
                       "no records: all are held out for validation");
    return err_set(err, ERR_DATA,
                   "no records: all %" PRId64 " lines read were skipped",
                   p->at.skipped);
}

/* Fill up one effective batch, and draw one record beyond it to know whether
 * the epoch goes on. 1, 0 at the cycle's end. */
static int make(struct producer *p, struct ready *b, struct err *err)
{
    if (is_over(p)) {
        b->n = 0; /* what was drawn ahead is not wanted */
        int r = shards_check(p->shards, true, err);
        return r < 0 ? r : 0;
    }
    if (p->ahead < 0) {
        *err = p->ahead_err;
        return p->ahead;
    }
    int want = p->spec->training.effective_batch, r = 1;
    if (p->take && p->take - p->at.records < want)
        want = (int)(p->take - p->at.records);
    while (b->n < want && r > 0)
        r = draw(p, b, err);
    if (r < 0)
        return r;
    if (!b->n)
        return nothing_there(p, b, err);
    int sealed = seal(p, b, err);
    if (sealed < 0)
        return sealed;
    p->coming = ready_new(p);
    if (!p->coming)
        return err_set(err, ERR_NOMEM, "no memory for a batch");
    if (r == 1) {
        r = draw(p, p->coming, &p->ahead_err);
        if (r < 0)
            p->ahead = r; /* the trainer gets this batch first */
    }
    if (r == 0) {
        r = seal_epoch(p, b, err);
        if (r < 0)
            return r;
    }
    b->cycle_end = is_over(p);
    return 1;
}

/* Hand over; false: the producer is being freed. */
static bool hand_over(struct producer *p, struct ready *b)
{
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->queued &&
           (p->queued >= READY_MAX || p->queued_bytes >= READY_BYTES))
        pthread_cond_wait(&p->taken, &p->lock);
    bool go_on = !p->stop;
    p->pending = NULL;
    if (p->tail)
        p->tail->next = b;
    else
        p->head = b;
    p->tail = b;
    p->queued++;
    p->queued_bytes += b->bytes;
    pthread_cond_signal(&p->made);
    pthread_mutex_unlock(&p->lock);
    return go_on;
}

static void *producer_main(void *arg)
{
    struct producer *p = arg;
    for (;;) {
        struct ready *b = p->coming ? p->coming : ready_new(p);
        if (!b)
            abort(); /* not even room to say so */
        p->coming = NULL;
        b->result = make(p, b, &b->err);
        if (b->result < 0)
            b->n = 0; /* what it held is undone by producer_buffer */
        bool end = b->result <= 0; /* b is the trainer's once handed over */
        if (!hand_over(p, b) || end)
            return NULL;
    }
}

/* ---- opening ---- */

static int init(struct producer *p, const json_t *data, int64_t cycle,
                struct err *err)
{
    const struct training_spec *t = &p->spec->training;
    int r = record_decoder_new(&p->spec->record, p->spec->data.policy_tolerance,
                               &p->decoder, err);
    if (r == 0 && t->shuffle.mode == SHUFFLE_GLOBAL)
        r = plan_new(p->spec, p->shards, data, cycle, &p->plan, err);
    if (r == 0 && p->plan && !plan_draws(p->plan))
        r = err_set(err, ERR_DATA,
                    "no records: all weigh nothing or are held out for "
                    "validation");
    if (r == 0)
        r = reader_new(p->shards, p->plan, t->validation.fraction, t->epochs,
                       &p->reader, err);
    if (r < 0)
        return r;
    p->bad = json_array();
    if (!p->bad)
        return err_set(err, ERR_NOMEM, "no memory for the feed");
    int64_t size = t->shuffle.mode == SHUFFLE_BUFFER && t->shuffle.size > 1
                       ? t->shuffle.size
                       : 1;
    shuffle_init(&p->shuffle, size, t->seed, cycle);
    p->take = json_integer_value(json_object_get(data, "take"));
    return 0;
}

int producer_new(const struct spec *spec, struct shards *shards,
                 const json_t *data, int64_t cycle, struct producer **ret,
                 struct err *err)
{
    struct producer *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for the feed");
    p->spec = spec;
    p->shards = shards;
    pthread_mutex_init(&p->order, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->made, NULL);
    pthread_cond_init(&p->taken, NULL);
    int r = init(p, data, cycle, err);
    if (r < 0) {
        producer_free(p);
        return r;
    }
    *ret = p;
    return 0;
}

bool producer_is_global(const struct producer *p)
{
    return p->plan != NULL;
}

static int check_position(const struct producer *p, const struct position *at,
                          int64_t n, struct err *err)
{
    const struct shards *s = p->shards;
    bool outside = at->epoch > p->spec->training.epochs || n < 0;
    if (p->plan)
        outside |= n > 0 || at->draws > plan_draws(p->plan);
    else
        outside |= at->shard > s->n || n > p->shuffle.cap ||
                   (at->shard < s->n && at->offset > s->v[at->shard].bytes) ||
                   (n && !at->draws);
    return outside
               ? err_set(err, ERR_CORRUPT,
                         "the checkpoint's feed position is outside the data")
               : 0;
}

static int check_buffer(const struct shards *s, const struct ref *v, int64_t n,
                        struct err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (v[i].shard < 0 || v[i].shard >= s->n || v[i].offset < 0 ||
            v[i].length < 0 ||
            v[i].length > s->v[v[i].shard].bytes - v[i].offset)
            return err_set(err, ERR_CORRUPT,
                           "the checkpoint's shuffle buffer points outside "
                           "the data");
    return 0;
}

int producer_resume(struct producer *p, const struct position *at,
                    const struct ref *buffer, int64_t n, const json_t *bad,
                    struct err *err)
{
    int r = check_position(p, at, n, err);
    if (r == 0)
        r = check_buffer(p->shards, buffer, n, err);
    if (r == 0)
        r = shuffle_restore(&p->shuffle, buffer, n, err);
    if (r < 0)
        return r;
    p->shuffle.epoch = at->epoch;
    p->shuffle.draws = at->draws;
    p->filled = at->draws > 0;
    reader_seek(p->reader, at->epoch, at->draws, at->shard, at->offset);
    p->at = *at;
    size_t i;
    json_t *entry;
    json_array_foreach(bad, i, entry)
    {
        if (i < BAD_KEPT)
            json_array_append(p->bad, entry);
    }
    return 0;
}

/* ---- the trainer's side ---- */

static int start(struct producer *p, struct err *err)
{
    if (p->started)
        return 0;
    int e = pthread_create(&p->thread, NULL, producer_main, p);
    if (e)
        return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                       strerror(e));
    p->started = true;
    return 0;
}

int producer_take(struct producer *p, struct ready **ret, struct err *err)
{
    int r = start(p, err);
    if (r < 0)
        return r;
    pthread_mutex_lock(&p->lock);
    while (!p->head)
        pthread_cond_wait(&p->made, &p->lock);
    struct ready *b = p->head;
    p->head = b->next;
    b->next = NULL;
    if (!p->head)
        p->tail = NULL;
    p->queued--;
    p->queued_bytes -= b->bytes;
    if (p->queued <= READY_MAX / 2) /* not a wake-up for each batch */
        pthread_cond_signal(&p->taken);
    pthread_mutex_unlock(&p->lock);
    *ret = b;
    return 0;
}

/* Under both locks. */
static int undo(struct producer *p, const struct ready *cur, struct ref **ret,
                int64_t *ret_n, struct err *err)
{
    const struct journal *later[READY_MAX + 4]; /* oldest first */
    int n = 0;
    if (cur)
        later[n++] = &cur->ops;
    for (const struct ready *r = p->head; r; r = r->next)
        later[n++] = &r->ops;
    if (p->pending)
        later[n++] = &p->pending->ops;
    later[n++] = &p->building;
    int64_t room = p->shuffle.n;
    for (int i = 0; i < n; i++)
        room += journal_room(later[i]);
    struct ref *v = malloc((size_t)(room + 1) * sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM, "no memory to save the shuffle buffer");
    int64_t count = p->shuffle.n;
    if (count)
        memcpy(v, p->shuffle.v, (size_t)count * sizeof *v);
    for (int i = n - 1; i >= 0; i--)
        journal_undo(later[i], v, &count);
    *ret = v;
    *ret_n = count;
    return 0;
}

int producer_buffer(struct producer *p, const struct ready *cur,
                    struct ref **ret, int64_t *ret_n, struct err *err)
{
    pthread_mutex_lock(&p->order);
    pthread_mutex_lock(&p->lock);
    int r = undo(p, cur, ret, ret_n, err);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->order);
    return r;
}

json_t *producer_bad(struct producer *p, int64_t skipped)
{
    json_t *out = json_array();
    pthread_mutex_lock(&p->order);
    for (size_t i = 0;
         out && i < json_array_size(p->bad) && (int64_t)i < skipped; i++)
        json_array_append_new(out, json_deep_copy(json_array_get(p->bad, i)));
    pthread_mutex_unlock(&p->order);
    return out;
}

static void free_list(struct ready *r)
{
    while (r) {
        struct ready *next = r->next;
        ready_free(r);
        r = next;
    }
}

void producer_free(struct producer *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->taken);
    pthread_mutex_unlock(&p->lock);
    if (p->started)
        pthread_join(p->thread, NULL);
    reader_free(p->reader);
    free_list(p->head);
    free_list(p->spare);
    ready_free(p->coming);
    journal_release(&p->building);
    shuffle_release(&p->shuffle);
    record_decoder_free(p->decoder);
    plan_free(p->plan);
    buf_release(&p->fetched);
    json_decref(p->bad);
    pthread_cond_destroy(&p->made);
    pthread_cond_destroy(&p->taken);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->order);
    free(p);
}
