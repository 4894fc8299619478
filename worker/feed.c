#include "worker/feed.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "schema/cleanup.h"
#include "worker/collate.h"
#include "worker/position.h"
#include "worker/producer.h"
#include "worker/shard.h"

struct feed {
    const struct spec *spec;
    struct shards *shards;
    struct producer *producer;
    struct ready *cur; /* handed out, up to cur_at */
    int cur_at;
    struct position trained;
    struct collator collator;
    struct feed_batch out;
    int64_t (*places)[2];
    int places_cap;
    int micro_batch, next_micro_batch;
    struct padding padding, next_padding;
    struct shapes shapes;
    double wait_s;
};

const char *feed_shard(const struct feed *f, int64_t shard)
{
    return shard >= 0 && shard < f->shards->n ? f->shards->v[shard].name : "";
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

static int feed_init(struct feed *f, const struct runtime_policy *runtime,
                     const json_t *data, struct remote *remote, int64_t cycle,
                     struct err *err)
{
    const struct record_desc *record = &f->spec->record;
    int r = shards_open(data, remote, &f->shards, err);
    if (r == 0)
        r = check_records(f, err);
    if (r == 0)
        r = producer_new(f->spec, f->shards, data, cycle, &f->producer, err);
    if (r == 0)
        r = collator_init(&f->collator, record, err);
    if (r == 0)
        r = shapes_init(&f->shapes, record, err);
    return r < 0 ? r : feed_set_runtime(f, runtime, err);
}

int feed_open(const struct spec *spec, const struct runtime_policy *runtime,
              const json_t *data, struct remote *remote, int64_t cycle,
              struct feed **ret, struct err *err)
{
    struct feed *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(err, ERR_NOMEM, "no memory for the feed");
    f->spec = spec;
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
    if (f->producer)
        producer_give(f->producer, f->cur);
    producer_free(f->producer);
    shards_close(f->shards);
    collator_release(&f->collator);
    shapes_release(&f->shapes);
    padding_release(&f->padding);
    padding_release(&f->next_padding);
    free(f->places);
    free(f);
}

int feed_resume(struct feed *f, const json_t *position, const int64_t *buffer,
                int64_t n, struct err *err)
{
    struct position at;
    int r = position_parse(position, producer_is_global(f->producer), &at, err);
    if (r == 0)
        r = producer_resume(f->producer, &at, (const struct ref *)buffer, n,
                            json_object_get(position, "bad"), err);
    if (r < 0)
        return r;
    shapes_exceeded_restore(&f->shapes, json_object_get(position, "exceeded"));
    f->trained = at;
    return 0;
}

/* ---- batches ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The next effective batch, under the policy that holds from here on. */
static int take(struct feed *f, struct err *err)
{
    double begin = seconds();
    int r = producer_take(f->producer, &f->cur, err);
    f->wait_s += seconds() - begin;
    f->cur_at = 0;
    if (r < 0 || !f->next_micro_batch)
        return r;
    padding_release(&f->padding);
    f->padding = f->next_padding;
    f->next_padding = (struct padding){0};
    f->micro_batch = f->next_micro_batch;
    f->next_micro_batch = 0;
    return 0;
}

static int note_places(struct feed *f, int n, struct err *err)
{
    if (n > f->places_cap) {
        free(f->places);
        f->places_cap = 0;
        f->places = malloc((size_t)n * sizeof *f->places);
        if (!f->places)
            return err_set(err, ERR_NOMEM, "no memory for a batch");
        f->places_cap = n;
    }
    for (int i = 0; i < n; i++) {
        const struct ref *ref = &f->cur->v[f->cur_at + i]->ref;
        f->places[i][0] = ref->shard;
        f->places[i][1] = ref->offset;
    }
    return 0;
}

static int hand_out(struct feed *f, struct feed_batch **ret, struct err *err)
{
    struct ready *b = f->cur;
    int left = b->n - f->cur_at;
    int n = left < f->micro_batch ? left : f->micro_batch;
    int r = collator_fill(&f->collator, b->v + f->cur_at, n, f->cur_at,
                          &f->padding, err);
    if (r == 0)
        r = note_places(f, n, err);
    if (r < 0)
        return r;
    int shape = shapes_note(&f->shapes, &f->collator.batch, &f->padding, err);
    if (shape < 0)
        return shape;
    f->cur_at += n;
    bool last = f->cur_at == b->n;
    f->out = (struct feed_batch){
        .batch = f->collator.batch,
        .step = b->after.step - 1,
        .epoch = f->trained.epoch,
        .effective = b->n,
        .last = last,
        .epoch_end = last && b->epoch_end,
        .cycle_end = last && b->cycle_end,
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
    if (f->cur->result > 0)
        return hand_out(f, ret, err);
    if (f->cur->result < 0 && err)
        *err = f->cur->err;
    /* bad records that no step will ever cover */
    if (f->cur->after.skipped > f->trained.skipped)
        f->trained.skipped = f->cur->after.skipped;
    return f->cur->result;
}

void feed_trained(struct feed *f)
{
    assert(f->cur && f->cur->n && f->cur_at == f->cur->n);
    f->trained = f->cur->after;
    shapes_trained(&f->shapes);
    producer_give(f->producer, f->cur);
    f->cur = NULL;
}

int feed_set_runtime(struct feed *f, const struct runtime_policy *runtime,
                     struct err *err)
{
    struct padding padding;
    int r = padding_copy(&runtime->padding, &padding, err);
    if (r < 0)
        return r;
    padding_release(&f->next_padding);
    f->next_padding = padding;
    f->next_micro_batch = runtime->micro_batch > 0
                              ? runtime->micro_batch
                              : f->spec->training.effective_batch;
    return 0;
}

/* ---- what is saved and told ---- */

int feed_save(struct feed *f, json_t **ret_position, int64_t **ret_buffer,
              int64_t *ret_n, struct err *err)
{
    struct ref *v = NULL;
    int r = producer_buffer(f->producer, f->cur, &v, ret_n, err);
    if (r < 0)
        return r;
    json_t *out = position_json(&f->trained, producer_is_global(f->producer));
    json_t *exceeded = shapes_exceeded_json(&f->shapes);
    if (!out ||
        json_object_set_new(
            out, "bad", producer_bad(f->producer, f->trained.skipped)) < 0 ||
        (exceeded && json_object_set(out, "exceeded", exceeded) < 0)) {
        json_decref(out);
        json_decref(exceeded);
        free(v);
        return err_set(err, ERR_NOMEM, "no memory to save the feed's position");
    }
    json_decref(exceeded);
    *ret_position = out;
    *ret_buffer = (int64_t *)v;
    return 0;
}

void feed_stats(struct feed *f, struct feed_stats *ret)
{
    *ret = (struct feed_stats){
        .step = f->trained.step,
        .epoch = f->trained.epoch,
        .records = f->trained.records,
        .skipped = f->trained.skipped,
        .renormalised = f->trained.renormalised,
        .exceeded = f->shapes.exceeded,
        .shapes = (int64_t)f->shapes.n,
        .padded = f->shapes.padded,
        .held = f->shapes.held,
        .bytes_read = shards_bytes_read(f->shards),
        .wait_s = f->wait_s,
        .bad = producer_bad(f->producer, f->trained.skipped),
    };
}
