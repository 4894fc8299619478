#include "worker/holdout.h"
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/record.h"
#include "worker/bad.h"
#include "worker/collate.h"
#include "worker/scanner.h"
#include "worker/shard.h"

#define ENTRIES_AT_A_TIME 4096

struct holdout {
    const struct spec *spec;
    struct shards *shards;
    const char *kind; /* of shards, for messages */
    struct record_decoder *decoder;
    struct ref *v; /* the records, in order */
    int64_t n, cap, at;

    int micro_batch;
    struct padding padding;
    struct buf text; /* lines of a micro-batch */
    struct arena arena;
    struct sample **samples; /* micro_batch */
    int samples_cap;
    struct collator collator;
};

/* ---- which records ---- */

static int add_ref(struct holdout *h, const struct ref *ref, struct err *err)
{
    if (h->n == h->cap) {
        int64_t cap = h->cap ? 2 * h->cap : 1024;
        struct ref *more = realloc(h->v, (size_t)cap * sizeof *more);
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for the validation");
        h->v = more;
        h->cap = cap;
    }
    h->v[h->n++] = *ref;
    return 0;
}

static bool is_full(const struct holdout *h)
{
    return h->n >= h->spec->training.validation.records;
}

/* Of one shard those that the fraction holds out, by its index. */
static int add_shard(struct holdout *h, int shard, struct err *err)
{
    double fraction = h->spec->training.validation.fraction;
    int64_t records = h->shards->v[shard].records;
    AUTO_FREE struct line_entry *e = malloc(ENTRIES_AT_A_TIME * sizeof *e);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the validation");
    for (int64_t first = 0; first < records && !is_full(h);) {
        int64_t n = records - first < ENTRIES_AT_A_TIME ? records - first
                                                        : ENTRIES_AT_A_TIME;
        int r = shards_entries(h->shards, shard, first, n, e, err);
        for (int64_t i = 0; i < n && r >= 0 && !is_full(h); i++) {
            struct ref ref = shards_ref(shard, &e[i]);
            if (line_is_held_out(e[i].hash, fraction))
                r = add_ref(h, &ref, err);
        }
        if (r < 0)
            return r;
        first += n;
    }
    return 0;
}

static int add_by_hash(struct holdout *h, struct err *err)
{
    int r = 0;
    for (int i = 0; i < h->shards->n && r >= 0 && !is_full(h); i++)
        r = add_shard(h, i, err);
    return r < 0 ? r : 0;
}

/* All of another dataset. */
static int add_lines(struct holdout *h, struct err *err)
{
    CLEANUP(scanner_release) struct scanner scanner = {0};
    struct ref ref;
    int r = scanner_init(&scanner, h->shards, err);
    if (r < 0)
        return r;
    while (!is_full(h) && (r = scanner_next(&scanner, &ref, NULL, err)) > 0) {
        r = add_ref(h, &ref, err);
        if (r < 0)
            return r;
    }
    return r < 0 ? r : 0;
}

/* ---- opening ---- */

static int open_records(struct holdout *h, const json_t *data,
                        struct remote *remote, struct err *err)
{
    bool own =
        json_object_get(json_object_get(data, "validation"), "shards") != NULL;
    h->kind = own ? "validation " : "";
    int r = own ? shards_open_validation(data, remote, &h->shards, err)
                : shards_open(data, remote, &h->shards, err);
    if (r < 0)
        return r;
    return own ? add_lines(h, err) : add_by_hash(h, err);
}

int holdout_open(const struct spec *spec, const struct runtime_policy *runtime,
                 const json_t *data, struct remote *remote,
                 struct holdout **ret, struct err *err)
{
    if (!json_is_object(json_object_get(data, "validation")))
        return 0;
    struct holdout *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(err, ERR_NOMEM, "no memory for the validation");
    h->spec = spec;
    int r = record_decoder_new(&spec->record, spec->data.policy_tolerance,
                               &h->decoder, err);
    if (r == 0)
        r = collator_init(&h->collator, &spec->record, err);
    if (r == 0)
        r = holdout_set_runtime(h, runtime, err);
    if (r == 0)
        r = open_records(h, data, remote, err);
    if (r < 0) {
        holdout_close(h);
        return r;
    }
    *ret = h;
    return 1;
}

int holdout_set_runtime(struct holdout *h, const struct runtime_policy *runtime,
                        struct err *err)
{
    struct padding padding;
    int n = runtime->micro_batch > 0 ? runtime->micro_batch
                                     : h->spec->training.effective_batch;
    int r = padding_copy(&runtime->padding, &padding, err);
    if (r < 0)
        return r;
    padding_release(&h->padding);
    h->padding = padding;
    if (n > h->samples_cap) {
        free(h->samples);
        h->samples_cap = 0;
        h->samples = calloc((size_t)n, sizeof(struct sample *));
        if (!h->samples)
            return err_set(err, ERR_NOMEM, "no memory for the validation");
        h->samples_cap = n;
    }
    h->micro_batch = n;
    return 0;
}

void holdout_interrupt(struct holdout *h)
{
    shards_interrupt(h->shards);
}

void holdout_close(struct holdout *h)
{
    if (!h)
        return;
    shards_close(h->shards);
    record_decoder_free(h->decoder);
    collator_release(&h->collator);
    padding_release(&h->padding);
    arena_release(&h->arena);
    buf_release(&h->text);
    free(h->samples);
    free(h->v);
    free(h);
}

/* ---- reading ---- */

void holdout_rewind(struct holdout *h)
{
    h->at = 0;
}

/* One line: 1, or 0 when it is bad and bad ones are skipped. */
static int decode(struct holdout *h, const struct ref *ref, const char *line,
                  struct sample **ret, struct err *err)
{
    const struct record *record;
    struct err why = {0};
    int r = ref->length > LINE_MAX_BYTES
                ? bad_too_long(ref, &why)
                : record_decode(h->decoder, line, (size_t)ref->length, &record,
                                &why);
    if (r == 0) {
        r = sample_new(&h->spec->record, record, ref, &h->arena, ret, err);
        return r < 0 ? r : 1;
    }
    if (r == ERR_DATA && h->spec->data.bad_records == BAD_SKIP)
        return 0;
    if (r == ERR_DATA)
        bad_place(h->shards, ref, h->kind, &why);
    *err = why;
    return r;
}

/* The next lines, as many as a micro-batch still wants. */
static int read_some(struct holdout *h, int *have, struct err *err)
{
    int64_t left = h->n - h->at, want = h->micro_batch - *have;
    int n = (int)(left < want ? left : want);
    const struct ref *v = h->v + h->at;
    h->text.len = 0;
    int r = shards_lines(h->shards, v, n, &h->text, err);
    if (r == 0) /* the decoder may read a little behind the last line */
        r = buf_reserve(&h->text, SCANNER_PAD) < 0
                ? err_set(err, ERR_NOMEM, "no memory for the validation")
                : 0;
    const char *line = h->text.data;
    for (int i = 0; i < n && r >= 0; i++) {
        r = decode(h, &v[i], line, &h->samples[*have], err);
        *have += r > 0;
        line += (v[i].length > LINE_MAX_BYTES ? 0 : v[i].length) + 1;
    }
    h->at += n;
    return r < 0 ? r : 0;
}

int holdout_next(struct holdout *h, const struct batch **ret, struct err *err)
{
    int have = 0;
    int64_t first = h->at;
    int r = shards_check(h->shards, false, err);
    arena_reset(&h->arena);
    while (r == 0 && have < h->micro_batch && h->at < h->n)
        r = read_some(h, &have, err);
    if (r < 0 || !have)
        return r < 0 ? r : 0;
    r = collator_fill(&h->collator, h->samples, have, (int)first, &h->padding,
                      err);
    if (r < 0)
        return r;
    *ret = &h->collator.batch;
    return 1;
}
