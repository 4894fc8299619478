#include "worker/feed.h"
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "schema/record.h"
#include "worker/collate.h"
#include "worker/scanner.h"
#include "worker/shard.h"
#include "worker/shuffle.h"

#define READY_MAX 4                    /* effective batches made ahead */
#define READY_BYTES (64 * 1024 * 1024) /* and their memory, but for one */
#define BAD_KEPT 20                    /* bad records kept with reason */

struct position {
    int64_t epoch, step;
    int64_t shard, offset; /* where the next line is read */
    int64_t draws;         /* in this epoch */
    int64_t records, skipped;
};

/* An effective batch on its way to the trainer; n 0: the end, or an error. */
struct ready {
    struct sample **v;
    int n;
    struct journal ops; /* draws that made it */
    struct position after;
    bool epoch_end;
    size_t bytes;
    int result;
    struct err err;
    struct ready *next;
};

/* A set of hashes: shapes seen. */
struct shapes {
    uint64_t *v;
    size_t n, cap;
};

struct feed {
    const struct spec *spec;
    struct shards *shards;

    /* The producer's. What feed_save reads changes under the lock. */
    struct record_decoder *decoder;
    struct scanner scanner;
    struct shuffle shuffle;
    struct journal building; /* draws since the last complete batch */
    struct ready *pending;   /* complete, but for knowing what follows */
    struct position at;      /* after the last draw */
    bool filled;             /* the buffer, in this epoch */
    struct sample *carry;    /* drawn ahead, first of the next batch */
    int carry_result;        /* or the error met there */
    struct err carry_err;
    struct buf line;
    json_t *bad;
    int64_t bytes_read;

    pthread_mutex_t lock;
    pthread_cond_t made, taken;
    struct ready *head, *tail;
    int queued;
    size_t queued_bytes;
    bool stop, started;
    pthread_t thread;

    /* The trainer's. */
    struct ready *cur;
    int cur_at;
    struct position trained;
    struct collator collator;
    struct feed_batch out;
    int64_t (*places)[2];
    int places_cap;
    int micro_batch, next_micro_batch;
    int *minimum, *next_minimum; /* per dimension */
    struct shapes shapes;
    double wait_s;
};

static void ready_free(struct ready *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++)
        sample_free(r->v[i]);
    free(r->v);
    journal_release(&r->ops);
    free(r);
}

const char *feed_shard(const struct feed *f, int64_t shard)
{
    return shard >= 0 && shard < f->shards->n ? f->shards->v[shard].name : "";
}

/* ---- the producer ---- */

/* The shuffle at the start of an epoch: nothing read, nothing drawn. */
static void epoch_begin(struct feed *f, int64_t epoch)
{
    scanner_seek(&f->scanner, 0, 0);
    f->shuffle.epoch = f->at.epoch = epoch;
    f->shuffle.draws = f->at.draws = 0;
    f->at.shard = f->at.offset = 0;
    f->filled = false;
}

static int fill(struct feed *f, struct err *err)
{
    while (f->shuffle.n < f->shuffle.cap) {
        struct ref next;
        int r = scanner_next(&f->scanner, &next, NULL, err);
        if (r <= 0) {
            f->filled = r == 0;
            return r;
        }
        pthread_mutex_lock(&f->lock);
        r = shuffle_push(&f->shuffle, &f->building, &next, err);
        pthread_mutex_unlock(&f->lock);
        if (r < 0)
            return r;
    }
    f->filled = true;
    return 0;
}

/* Draw one reference: 1, or 0 at the epoch's end. */
static int draw(struct feed *f, struct ref *ret, struct err *err)
{
    if (!f->filled) {
        int r = fill(f, err);
        if (r < 0)
            return r;
    }
    if (!f->shuffle.n)
        return 0;
    struct ref next;
    int more = scanner_next(&f->scanner, &next, NULL, err);
    if (more < 0)
        return more;
    int64_t pick = shuffle_pick(&f->shuffle);
    pthread_mutex_lock(&f->lock);
    int r = shuffle_take(&f->shuffle, &f->building, pick, more ? &next : NULL,
                         ret, err);
    f->at.shard = f->scanner.shard;
    f->at.offset = f->scanner.offset;
    f->at.draws = f->shuffle.draws;
    f->bytes_read = f->scanner.bytes_read;
    pthread_mutex_unlock(&f->lock);
    return r < 0 ? r : 1;
}

/* Say where a record stands, in the sentence and beside it. */
static void place(struct feed *f, const struct ref *ref, struct err *err)
{
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    const char *name = feed_shard(f, ref->shard);
    err->line = shards_line_number(f->shards, (int)ref->shard, ref->offset);
    err->offset = ref->offset;
    snprintf(err->shard, sizeof err->shard, "%s", name);
    snprintf(err->text, sizeof err->text,
             "shard '%s', line %" PRId64 " (offset %" PRId64 "): %.500s", name,
             err->line, ref->offset, text);
}

static int note_bad(struct feed *f, const struct ref *ref,
                    const struct err *why, struct err *err)
{
    json_t *entry = NULL;
    if (json_array_size(f->bad) < BAD_KEPT) {
        entry = json_pack("{s:s, s:I, s:I, s:s, s:s}", "shard",
                          feed_shard(f, ref->shard), "line",
                          (json_int_t)shards_line_number(
                              f->shards, (int)ref->shard, ref->offset),
                          "offset", (json_int_t)ref->offset, "field",
                          why->field, "detail", why->text);
        if (!entry) /* a field name cut within a character */
            entry = json_pack(
                "{s:s, s:I, s:s}", "shard", feed_shard(f, ref->shard), "offset",
                (json_int_t)ref->offset, "detail", "not a valid record");
        if (!entry)
            return err_set(err, ERR_NOMEM, "no memory for a bad record");
    }
    pthread_mutex_lock(&f->lock);
    f->at.skipped++;
    if (entry)
        json_array_append_new(f->bad, entry);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

static int decode(struct feed *f, const struct ref *ref,
                  const struct record **ret, struct err *err)
{
    if (ref->length > LINE_MAX_BYTES)
        return err_set(err, ERR_DATA,
                       "the line is %" PRId64 " bytes long, more than %d",
                       ref->length, LINE_MAX_BYTES);
    return record_decode(f->decoder, f->line.data, f->line.len, ret, err);
}

/* The next record that decodes: 1, 0 at the epoch's end. */
static int draw_good(struct feed *f, struct sample **ret, struct err *err)
{
    for (;;) {
        struct ref ref;
        int r = draw(f, &ref, err);
        if (r <= 0)
            return r;
        if (ref.length <= LINE_MAX_BYTES) {
            r = shards_line(f->shards, &ref, &f->line, err);
            if (r < 0)
                return r;
        }
        struct err why = {0};
        const struct record *record;
        r = decode(f, &ref, &record, &why);
        if (r == 0) {
            r = sample_new(&f->spec->record, record, &ref, ret, err);
            return r < 0 ? r : 1;
        }
        if (r == ERR_DATA && f->spec->data.bad_records == BAD_SKIP) {
            r = note_bad(f, &ref, &why, err);
            if (r < 0)
                return r;
            continue;
        }
        if (r == ERR_DATA)
            place(f, &ref, &why);
        *err = why;
        return r;
    }
}

static int draw_or_carry(struct feed *f, struct sample **ret, struct err *err)
{
    if (f->carry_result < 0) {
        *err = f->carry_err;
        return f->carry_result;
    }
    if (f->carry) {
        *ret = f->carry;
        f->carry = NULL;
        return 1;
    }
    return draw_good(f, ret, err);
}

/* The batch is complete: its draws are its own. */
static int seal(struct feed *f, struct ready *b, struct err *err)
{
    pthread_mutex_lock(&f->lock);
    int r = journal_move(&b->ops, &f->building, err);
    f->at.step++;
    f->at.records += b->n;
    b->after = f->at;
    f->pending = b;
    pthread_mutex_unlock(&f->lock);
    return r;
}

/* Its epoch ends with it: draws of bad records behind it are its own, too. */
static int seal_epoch(struct feed *f, struct ready *b, struct err *err)
{
    pthread_mutex_lock(&f->lock);
    int r = journal_move(&b->ops, &f->building, err);
    epoch_begin(f, f->at.epoch + 1);
    b->after = f->at;
    b->epoch_end = true;
    pthread_mutex_unlock(&f->lock);
    return r;
}

/* Draw one effective batch, and one record beyond it to know whether the epoch
 * goes on. 1, 0 at the end of the last epoch. */
static int make(struct feed *f, struct ready *b, struct err *err)
{
    int want = f->spec->training.effective_batch;
    if (f->at.epoch >= f->spec->training.epochs) {
        int r = shards_check(f->shards, true, err);
        return r < 0 ? r : 0;
    }
    b->v = calloc((size_t)want, sizeof(struct sample *));
    if (!b->v)
        return err_set(err, ERR_NOMEM, "no memory for a batch");
    int r = 1;
    while (b->n < want) {
        r = draw_or_carry(f, &b->v[b->n], err);
        if (r <= 0)
            break;
        b->bytes += b->v[b->n++]->bytes;
    }
    if (r < 0)
        return r;
    if (!b->n) {
        /* no step will ever cover them, and their reasons are all there is */
        pthread_mutex_lock(&f->lock);
        f->trained.skipped = f->at.skipped;
        pthread_mutex_unlock(&f->lock);
        return err_set(err, ERR_DATA,
                       "no records: all %" PRId64 " lines read were skipped",
                       f->at.skipped);
    }
    int r2 = seal(f, b, err);
    if (r2 < 0)
        return r2;
    if (r == 1) {
        r = draw_good(f, &f->carry, &f->carry_err);
        if (r < 0)
            f->carry_result = r; /* the trainer gets this batch first */
    }
    if (r == 0) {
        r = seal_epoch(f, b, err);
        if (r < 0)
            return r;
    }
    return 1;
}

/* Hand over; false: the feed is being closed. */
static bool hand_over(struct feed *f, struct ready *b)
{
    pthread_mutex_lock(&f->lock);
    while (!f->stop && f->queued &&
           (f->queued >= READY_MAX || f->queued_bytes >= READY_BYTES))
        pthread_cond_wait(&f->taken, &f->lock);
    bool go_on = !f->stop;
    f->pending = NULL;
    if (f->tail)
        f->tail->next = b;
    else
        f->head = b;
    f->tail = b;
    f->queued++;
    f->queued_bytes += b->bytes;
    pthread_cond_signal(&f->made);
    pthread_mutex_unlock(&f->lock);
    return go_on;
}

static void *producer_main(void *arg)
{
    struct feed *f = arg;
    for (;;) {
        struct ready *b = calloc(1, sizeof *b);
        if (!b)
            abort(); /* not even room to say so */
        b->result = make(f, b, &b->err);
        if (b->result < 0) { /* what it held is undone by feed_save */
            pthread_mutex_lock(&f->lock);
            for (int i = 0; i < b->n; i++)
                sample_free(b->v[i]);
            b->n = 0;
            pthread_mutex_unlock(&f->lock);
        }
        bool end = b->result <= 0; /* b is the trainer's once handed over */
        if (!hand_over(f, b) || end)
            return NULL;
    }
}

/* ---- opening ---- */

static int check_records(const struct feed *f, struct err *err)
{
    if (f->shards->n == 0)
        return err_set(err, ERR_DATA, "no records: the data has no shards");
    if (f->shards->records == 0) {
        CLEANUP(buf_release) struct buf names = {0};
        for (int i = 0; i < f->shards->n && i < 8; i++)
            buf_addf(&names, "%s'%s'", i ? ", " : "", f->shards->v[i].name);
        if (f->shards->n > 8)
            buf_addf(&names, " and %d more", f->shards->n - 8);
        err_set(err, ERR_DATA, "no records: %s %s none", names.data,
                f->shards->n == 1 ? "holds" : "hold");
        snprintf(err->shard, sizeof err->shard, "%s", f->shards->v[0].name);
        return ERR_DATA;
    }
    for (int i = 0; i < f->shards->n; i++) {
        const struct shard *s = &f->shards->v[i];
        if (s->records || f->spec->data.bad_records == BAD_SKIP)
            continue;
        err_set(err, ERR_DATA, "shard '%s' is empty: it holds no record",
                s->name);
        snprintf(err->shard, sizeof err->shard, "%s", s->name);
        return ERR_DATA;
    }
    return 0;
}

static int copy_minimum(const struct feed *f,
                        const struct runtime_policy *runtime, int *ret)
{
    bool stable = runtime->padding.mode == PADDING_STABLE;
    for (int d = 0; d < f->spec->record.n_dims; d++)
        ret[d] = stable && runtime->padding.minimum
                     ? runtime->padding.minimum[d]
                     : 0;
    return runtime->micro_batch > 0 ? runtime->micro_batch
                                    : f->spec->training.effective_batch;
}

static int feed_init(struct feed *f, const struct runtime_policy *runtime,
                     const json_t *data, struct remote *remote, int64_t cycle,
                     struct err *err)
{
    const struct spec *spec = f->spec;
    int r = shards_open(data, remote, &f->shards, err);
    if (r == 0)
        r = check_records(f, err);
    if (r == 0)
        r = scanner_init(&f->scanner, f->shards, err);
    if (r == 0)
        r = record_decoder_new(&spec->record, spec->data.policy_tolerance,
                               &f->decoder, err);
    if (r == 0)
        r = collator_init(&f->collator, &spec->record, err);
    if (r < 0)
        return r;
    f->bad = json_array();
    f->minimum = calloc((size_t)spec->record.n_dims + 1, sizeof(int));
    f->next_minimum = calloc((size_t)spec->record.n_dims + 1, sizeof(int));
    if (!f->bad || !f->minimum || !f->next_minimum)
        return err_set(err, ERR_NOMEM, "no memory for the feed");
    f->next_micro_batch = copy_minimum(f, runtime, f->next_minimum);
    int64_t size = spec->training.shuffle.mode == SHUFFLE_BUFFER &&
                           spec->training.shuffle.size > 1
                       ? spec->training.shuffle.size
                       : 1;
    shuffle_init(&f->shuffle, size, spec->training.seed, cycle);
    return 0;
}

int feed_open(const struct spec *spec, const struct runtime_policy *runtime,
              const json_t *data, struct remote *remote, int64_t cycle,
              struct feed **ret, struct err *err)
{
    struct feed *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for the feed");
    f->spec = spec;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->made, NULL);
    pthread_cond_init(&f->taken, NULL);
    int r = feed_init(f, runtime, data, remote, cycle, err);
    if (r < 0) {
        feed_close(f);
        return r;
    }
    *ret = f;
    return 0;
}

void feed_close(struct feed *f)
{
    if (!f)
        return;
    if (f->shards)
        shards_interrupt(f->shards);
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_cond_broadcast(&f->taken);
    pthread_mutex_unlock(&f->lock);
    if (f->started)
        pthread_join(f->thread, NULL);
    while (f->head) {
        struct ready *next = f->head->next;
        ready_free(f->head);
        f->head = next;
    }
    ready_free(f->cur);
    sample_free(f->carry);
    journal_release(&f->building);
    shuffle_release(&f->shuffle);
    scanner_release(&f->scanner);
    record_decoder_free(f->decoder);
    buf_release(&f->line);
    json_decref(f->bad);
    shards_close(f->shards);
    collator_release(&f->collator);
    free(f->places);
    free(f->minimum);
    free(f->next_minimum);
    free(f->shapes.v);
    pthread_cond_destroy(&f->made);
    pthread_cond_destroy(&f->taken);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static int position_parse(const json_t *in, struct position *ret,
                          struct err *err)
{
    struct {
        const char *name;
        int64_t *to;
    } fields[] = {
        {"epoch", &ret->epoch},     {"step", &ret->step},
        {"shard", &ret->shard},     {"offset", &ret->offset},
        {"draws", &ret->draws},     {"records", &ret->records},
        {"skipped", &ret->skipped},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(in, fields[i].name);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return err_set(err, ERR_CORRUPT,
                           "the checkpoint's feed position has no '%s'",
                           fields[i].name);
        *fields[i].to = json_integer_value(v);
    }
    return 0;
}

int feed_resume(struct feed *f, const json_t *position, const int64_t *buffer,
                int64_t n, struct err *err)
{
    struct position at = {0};
    int r = position_parse(position, &at, err);
    if (r < 0)
        return r;
    if (at.shard > f->shards->n || n < 0 || n > f->shuffle.cap ||
        (at.shard < f->shards->n && at.offset > f->shards->v[at.shard].bytes) ||
        at.epoch > f->spec->training.epochs || (n && !at.draws))
        return err_set(err, ERR_CORRUPT,
                       "the checkpoint's feed position is outside the data");
    const struct ref *v = (const struct ref *)buffer;
    for (int64_t i = 0; i < n; i++)
        if (v[i].shard < 0 || v[i].shard >= f->shards->n || v[i].offset < 0 ||
            v[i].length < 0 ||
            v[i].length > f->shards->v[v[i].shard].bytes - v[i].offset)
            return err_set(err, ERR_CORRUPT,
                           "the checkpoint's shuffle buffer points outside "
                           "the data");
    if (n) {
        f->shuffle.v = malloc((size_t)n * sizeof *v);
        if (!f->shuffle.v)
            return err_set(err, ERR_NOMEM, "no memory for the shuffle buffer");
        memcpy(f->shuffle.v, v, (size_t)n * sizeof *v);
        f->shuffle.n = f->shuffle.allocated = n;
    }
    f->shuffle.epoch = at.epoch;
    f->shuffle.draws = at.draws;
    f->filled = at.draws > 0;
    scanner_seek(&f->scanner, (int)at.shard, at.offset);
    f->at = f->trained = at;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(position, "bad"), i, entry)
    {
        if (i < BAD_KEPT)
            json_array_append(f->bad, entry);
    }
    return 0;
}

/* ---- the trainer's side ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int take(struct feed *f, struct err *err)
{
    if (!f->started) {
        int e = pthread_create(&f->thread, NULL, producer_main, f);
        if (e)
            return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                           strerror(e));
        f->started = true;
    }
    double begin = seconds();
    pthread_mutex_lock(&f->lock);
    while (!f->head)
        pthread_cond_wait(&f->made, &f->lock);
    f->cur = f->head;
    f->head = f->cur->next;
    f->cur->next = NULL;
    if (!f->head)
        f->tail = NULL;
    f->queued--;
    f->queued_bytes -= f->cur->bytes;
    pthread_cond_signal(&f->taken);
    pthread_mutex_unlock(&f->lock);
    f->wait_s += seconds() - begin;
    f->cur_at = 0;
    f->micro_batch = f->next_micro_batch;
    memcpy(f->minimum, f->next_minimum,
           sizeof(int) * (size_t)f->spec->record.n_dims);
    return 0;
}

/* Put a hash into the set: 1 when it is new. */
static int shapes_add(struct shapes *s, uint64_t hash, struct err *err)
{
    hash |= 1; /* 0 is an empty place */
    if (2 * (s->n + 1) > s->cap) {
        struct shapes bigger = {.cap = s->cap ? 2 * s->cap : 256};
        bigger.v = calloc(bigger.cap, sizeof *bigger.v);
        if (!bigger.v)
            return err_set(err, ERR_NOMEM, "no memory for shapes");
        for (size_t i = 0; i < s->cap; i++)
            if (s->v[i])
                shapes_add(&bigger, s->v[i], err);
        free(s->v);
        *s = bigger;
    }
    size_t i = hash & (s->cap - 1);
    for (; s->v[i]; i = (i + 1) & (s->cap - 1))
        if (s->v[i] == hash)
            return 0;
    s->v[i] = hash;
    s->n++;
    return 1;
}

static int shape_note(struct feed *f, struct err *err)
{
    const struct batch *b = &f->collator.batch;
    uint64_t h = line_hash(b->padded, sizeof(int) * (size_t)b->desc->n_dims);
    h = (h ^ (uint64_t)b->records) * 0x9E3779B97F4A7C15u;
    return shapes_add(&f->shapes, h ^ h >> 32, err);
}

static int hand_out(struct feed *f, struct feed_batch **ret, struct err *err)
{
    struct ready *b = f->cur;
    int n =
        b->n - f->cur_at < f->micro_batch ? b->n - f->cur_at : f->micro_batch;
    int r = collator_fill(&f->collator, b->v + f->cur_at, n, f->cur_at,
                          f->minimum, err);
    if (r < 0)
        return r;
    int shape = shape_note(f, err);
    if (shape < 0)
        return shape;
    if (n > f->places_cap) {
        free(f->places);
        f->places_cap = 0;
        f->places = malloc((size_t)n * sizeof *f->places);
        if (!f->places)
            return err_set(err, ERR_NOMEM, "no memory for a batch");
        f->places_cap = n;
    }
    for (int i = 0; i < n; i++) {
        f->places[i][0] = b->v[f->cur_at + i]->ref.shard;
        f->places[i][1] = b->v[f->cur_at + i]->ref.offset;
    }
    f->cur_at += n;
    bool last = f->cur_at == b->n;
    f->out = (struct feed_batch){
        .batch = f->collator.batch,
        .step = b->after.step - 1,
        .epoch = f->trained.epoch,
        .effective = b->n,
        .last = last,
        .epoch_end = last && b->epoch_end,
        .new_shape = shape > 0,
        .places = (const int64_t(*)[2])f->places,
    };
    *ret = &f->out;
    return 1;
}

int feed_next(struct feed *f, struct feed_batch **ret, struct err *err)
{
    /* a step that was handed out whole must be reported by feed_trained */
    assert(!f->cur || !f->cur->n || f->cur_at < f->cur->n);
    if (!f->cur || f->cur_at == 0) {
        int r = shards_check(f->shards, false, err);
        if (r < 0)
            return r;
    }
    if (!f->cur) {
        int r = take(f, err);
        if (r < 0)
            return r;
    }
    if (f->cur->result <= 0) {
        if (f->cur->result < 0 && err)
            *err = f->cur->err;
        return f->cur->result;
    }
    return hand_out(f, ret, err);
}

void feed_trained(struct feed *f)
{
    assert(f->cur && f->cur->n && f->cur_at == f->cur->n);
    pthread_mutex_lock(&f->lock);
    f->trained = f->cur->after;
    struct ready *done = f->cur;
    f->cur = NULL;
    pthread_mutex_unlock(&f->lock);
    ready_free(done);
}

int feed_set_runtime(struct feed *f, const struct runtime_policy *runtime,
                     struct err *err)
{
    f->next_micro_batch = copy_minimum(f, runtime, f->next_minimum);
    return 0;
}

/* The buffer as it was after the last trained step. Under the lock. */
static int rewind_buffer(struct feed *f, struct ref **ret, int64_t *ret_n,
                         struct err *err)
{
    const struct journal *later[READY_MAX + 4]; /* oldest first */
    int n = 0;
    if (f->cur)
        later[n++] = &f->cur->ops;
    for (const struct ready *r = f->head; r; r = r->next)
        later[n++] = &r->ops;
    if (f->pending)
        later[n++] = &f->pending->ops;
    later[n++] = &f->building;
    int64_t room = f->shuffle.n;
    for (int i = 0; i < n; i++)
        room += journal_room(later[i]);
    struct ref *v = malloc((size_t)(room + 1) * sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM, "no memory to save the shuffle buffer");
    int64_t count = f->shuffle.n;
    if (count)
        memcpy(v, f->shuffle.v, (size_t)count * sizeof *v);
    for (int i = n - 1; i >= 0; i--)
        journal_undo(later[i], v, &count);
    *ret = v;
    *ret_n = count;
    return 0;
}

/* Bad records met up to the last trained step. Under the lock. */
static json_t *bad_so_far(const struct feed *f)
{
    json_t *out = json_array();
    for (size_t i = 0;
         out && i < json_array_size(f->bad) && (int64_t)i < f->trained.skipped;
         i++)
        json_array_append_new(out, json_deep_copy(json_array_get(f->bad, i)));
    return out;
}

int feed_save(struct feed *f, json_t **ret_position, int64_t **ret_buffer,
              int64_t *ret_n, struct err *err)
{
    struct ref *v = NULL;
    int64_t n = 0;
    pthread_mutex_lock(&f->lock);
    int r = rewind_buffer(f, &v, &n, err);
    json_t *bad = bad_so_far(f);
    pthread_mutex_unlock(&f->lock);
    const struct position *p = &f->trained;
    json_t *out = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "epoch",
        (json_int_t)p->epoch, "step", (json_int_t)p->step, "shard",
        (json_int_t)p->shard, "offset", (json_int_t)p->offset, "draws",
        (json_int_t)p->draws, "records", (json_int_t)p->records, "skipped",
        (json_int_t)p->skipped, "bad", bad);
    if (r == 0 && !out)
        r = err_set(err, ERR_NOMEM, "no memory to save the feed's position");
    if (r < 0) {
        free(v);
        json_decref(out);
        return r;
    }
    *ret_position = out;
    *ret_buffer = (int64_t *)v;
    *ret_n = n;
    return 0;
}

void feed_stats(struct feed *f, struct feed_stats *ret)
{
    pthread_mutex_lock(&f->lock);
    *ret = (struct feed_stats){
        .step = f->trained.step,
        .epoch = f->trained.epoch,
        .records = f->trained.records,
        .skipped = f->trained.skipped,
        .shapes = (int64_t)f->shapes.n,
        .bytes_read = f->bytes_read,
        .wait_s = f->wait_s,
        .bad = bad_so_far(f),
    };
    pthread_mutex_unlock(&f->lock);
}
