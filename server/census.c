#include "server/census.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/ladder.h"
#include "schema/line_index.h"
#include "schema/lines.h"
#include "schema/record.h"
#include "server/advice.h"
#include "server/census_fields.h"
#include "server/keyset.h"

#define SHAPES_MAX ((size_t)1 << 20)  /* slots: 8 MB */
#define CARRY_KEPT ((size_t)1 << 20)  /* of a long line's memory */
#define KEPT_MAX (LINE_MAX_BYTES + 3) /* of a line, with a mark in front */
#define POLICY_OFF 1e-6 /* a sum that is further from 1 was made so */

struct census {
    const struct record_desc *desc; /* NULL: none */
    struct record_desc nothing; /* decodes, and thereby checks, any object */
    struct record_decoder *decoder;

    int64_t lines, records, bytes;
    int64_t bad;
    json_t *bad_first;
    struct keyset shapes;
    struct census_fields *fields;
    struct {
        int64_t records, off;
        double sum, worst, worst_sum; /* worst: how far from 1 */
        struct census_place worst_at;
        int worst_shard;
    } policy;
    char **shards; /* names; places refer to them */
    int n_shards, cap_shards;
    struct census_mark *marks;
    int n_marks, next_mark;

    /* The shard under way. */
    int64_t line;   /* the number of lines that have ended in it */
    int64_t begin;  /* of the line under way */
    int64_t length; /* of what came of it, kept or not */
    bool seen;      /* it is too long, and holds more than blanks */
    struct buf carry;
};

int census_new(const struct record_desc *desc, double policy_tolerance,
               struct census **ret, struct err *err)
{
    struct census *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a census");
    c->desc = desc;
    c->nothing.policy = c->nothing.value = -1;
    c->shapes.max = SHAPES_MAX;
    c->bad_first = json_array();
    int r = record_decoder_new(desc ? desc : &c->nothing, policy_tolerance,
                               &c->decoder, err);
    if (r >= 0)
        r = census_fields_new(desc, &c->fields, err);
    if (r < 0) {
        census_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void census_free(struct census *c)
{
    if (!c)
        return;
    record_decoder_free(c->decoder);
    census_fields_free(c->fields);
    keyset_release(&c->shapes);
    json_decref(c->bad_first);
    for (int i = 0; i < c->n_shards; i++)
        free(c->shards[i]);
    free(c->shards);
    buf_release(&c->carry);
    free(c);
}

void census_mark(struct census *c, struct census_mark *v, int n)
{
    c->marks = v;
    c->n_marks = n;
}

int census_begin(struct census *c, const char *shard, struct err *err)
{
    if (c->n_shards == c->cap_shards) {
        int cap = c->cap_shards ? 2 * c->cap_shards : 16;
        char **more = realloc(c->shards, (size_t)cap * sizeof(*more));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for a census");
        c->shards = more;
        c->cap_shards = cap;
    }
    c->shards[c->n_shards] = strdup(shard);
    if (!c->shards[c->n_shards])
        return err_set(err, ERR_NOMEM, "no memory for a census");
    c->n_shards++;
    c->line = c->begin = c->length = 0;
    c->seen = false;
    buf_clear(&c->carry);
    return 0;
}

/* ---- a record ---- */

static const char *shard_name(const struct census *c, int shard)
{
    return c->shards[shard];
}

static int bad_line(struct census *c, int64_t offset, struct err *err)
{
    if (err->code != ERR_DATA)
        return err->code;
    c->bad++;
    if (json_array_size(c->bad_first) < CENSUS_SHOWN)
        json_array_append_new(c->bad_first,
                              json_pack("{ss sI sI ss ss}", "shard",
                                        shard_name(c, c->n_shards - 1), "line",
                                        c->line, "offset", offset, "field",
                                        err->field, "reason", err->text));
    return 0;
}

static void add_policy(struct census *c, const struct record *record,
                       const struct census_place *at)
{
    if (record->policy_sum == 0)
        return; /* no policy, or none to sum */
    double off = fabs(record->policy_sum - 1);
    c->policy.records++;
    c->policy.sum += record->policy_sum;
    c->policy.off += off > POLICY_OFF;
    if (off > c->policy.worst) {
        c->policy.worst = off;
        c->policy.worst_sum = record->policy_sum;
        c->policy.worst_at = *at;
    }
}

static int add_record(struct census *c, const char *line, size_t len,
                      const struct census_place *at, struct err *err)
{
    struct err why = {0};
    const struct record *record;
    uint64_t shape = 0;
    int r = record_decode(c->decoder, line, len, &record, &why);
    if (r < 0) {
        r = bad_line(c, at->offset, &why);
        if (r < 0)
            *err = why;
        return r;
    }
    r = c->desc ? census_fields_add(c->fields, record, at, &shape)
                : census_fields_scan(c->fields, line, len, at, &shape);
    if (r >= 0)
        r = keyset_add(&c->shapes, shape);
    if (r < 0)
        return err_set(err, ERR_NOMEM, "no memory for a census");
    if (c->desc && c->desc->policy >= 0)
        add_policy(c, record, at);
    return 0;
}

static void pass_marks(struct census *c, int64_t offset)
{
    int shard = c->n_shards - 1;
    while (c->next_mark < c->n_marks) {
        struct census_mark *m = &c->marks[c->next_mark];
        if (m->shard > shard || (m->shard == shard && m->offset > offset))
            return;
        if (m->shard == shard && m->offset == offset)
            m->line = c->line;
        c->next_mark++;
    }
}

/* ---- lines: as schema/lines.h has them ---- */

static int end_line(struct census *c, const char *line, bool ended,
                    struct err *err)
{
    int64_t offset = c->begin, length = c->length;
    bool kept = length <= KEPT_MAX, seen = c->seen;
    c->begin += length + ended;
    c->length = 0;
    c->seen = false;
    if (offset == 0 && length >= 3 && line_bom(line, 3)) {
        line += 3;
        offset += 3;
        length -= 3;
    }
    if (!length && !ended) /* a mark and nothing else */
        return 0;
    c->lines++;
    c->line++;
    if (kept ? line_is_blank(line, (size_t)length) : !seen)
        return 0;
    c->records++;
    c->bytes += length;
    pass_marks(c, offset);
    if (length > LINE_MAX_BYTES) {
        struct err why;
        err_set(&why, ERR_DATA,
                "it has %" PRId64 " bytes; a record has at most %d", length,
                LINE_MAX_BYTES);
        return bad_line(c, offset, &why);
    }
    const struct census_place at = {c->n_shards - 1, c->line, offset};
    return add_record(c, line, (size_t)length, &at, err);
}

/* A piece of a line that began in an earlier one, or does not end in this. */
static int carry(struct census *c, const char *s, size_t n, struct err *err)
{
    if (c->length + (int64_t)n > KEPT_MAX) {
        if (c->length <= KEPT_MAX && c->carry.len)
            c->seen = !line_is_blank(c->carry.data, c->carry.len);
        c->seen = c->seen || !line_is_blank(s, n);
        /* its beginning is kept in any case: there may be a mark */
        n = c->carry.len >= 3 ? 0 : n < 3 ? n : 3;
    }
    if (n && buf_add(&c->carry, s, n) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a line");
    return 0;
}

int census_add(struct census *c, const char *text, size_t len, struct err *err)
{
    int r = 0;
    while (len) {
        const char *end = memchr(text, '\n', len), *line = text;
        size_t n = end ? (size_t)(end - text) : len;
        if (!end || c->length) {
            r = carry(c, text, n, err);
            if (r < 0)
                return r;
            line = c->carry.data;
        } else if (n > KEPT_MAX) {
            c->seen = !line_is_blank(text, n);
        }
        c->length += (int64_t)n;
        if (!end)
            return 0;
        r = end_line(c, line, true, err);
        if (r < 0)
            return r;
        if (c->carry.cap > CARRY_KEPT)
            buf_release(&c->carry);
        buf_clear(&c->carry);
        text += n + 1;
        len -= n + 1;
    }
    return 0;
}

int census_end(struct census *c, bool cut, struct err *err)
{
    int r = 0;
    if (c->length && !cut)
        r = end_line(c, c->carry.data, false, err);
    c->length = 0;
    buf_clear(&c->carry);
    return r;
}

/* ---- what was found ---- */

static json_t *place_json(const struct census *c, const struct census_place *p)
{
    return json_pack("{ss sI sI}", "shard", shard_name(c, p->shard), "line",
                     p->line, "offset", p->offset);
}

static json_t *policy_json(const struct census *c)
{
    if (!c->policy.records)
        return json_null();
    json_t *worst = json_null();
    if (c->policy.worst > 0) {
        worst = place_json(c, &c->policy.worst_at);
        json_object_set_new(worst, "sum", json_real(c->policy.worst_sum));
    }
    return json_pack("{sI sf sf sI so}", "records", c->policy.records, "sum",
                     c->policy.sum, "mean",
                     c->policy.sum / (double)c->policy.records, "off",
                     c->policy.off, "worst", worst);
}

/* Longer is unusual: than 99 % of the records or, where those are few, than the
 * upper quartile by three times the quartiles' distance. */
static int usual(const struct lengths *l)
{
    int low = lengths_percentile(l, 0.25), high = lengths_percentile(l, 0.75);
    int p99 = lengths_percentile(l, 0.99);
    double fence = high + 3.0 * (high > low ? high - low : 1);
    return fence < p99 ? (int)fence : p99;
}

static json_t *outliers_json(const struct census *c)
{
    json_t *out = json_array();
    for (int i = 0; i < census_fields_dims(c->fields); i++) {
        const struct census_dim *d = census_fields_dim(c->fields, i);
        int limit = usual(&d->lengths);
        for (int k = 0; k < d->n_longest; k++) {
            if (d->longest[k].length <= limit)
                break;
            json_t *one = place_json(c, &d->longest[k].at);
            json_object_set_new(one, "dim", json_string(d->name));
            json_object_set_new(one, "length",
                                json_integer(d->longest[k].length));
            json_array_append_new(out, one);
        }
    }
    return out;
}

static int advice_of(const struct census *c, int micro_batch, json_t **ret,
                     struct err *err)
{
    int n = census_fields_dims(c->fields);
    AUTO_FREE struct advice_dim *dims =
        calloc((size_t)(n ? n : 1), sizeof(*dims));
    if (!dims)
        return err_set(err, ERR_NOMEM, "no memory for advice");
    for (int i = 0; i < n; i++) {
        const struct census_dim *d = census_fields_dim(c->fields, i);
        dims[i] = (struct advice_dim){d->name, &d->lengths, d->fields};
    }
    return advice_json(dims, n, micro_batch, ret, err);
}

int census_json(const struct census *c, int micro_batch, json_t **ret,
                struct err *err)
{
    json_t *advice = NULL;
    int r = advice_of(c, micro_batch, &advice, err);
    if (r < 0)
        return r;
    json_t *out = json_pack("{sI sI sI s{sI sO} sI}", "records", c->records,
                            "lines", c->lines, "blank", c->lines - c->records,
                            "bad", "count", c->bad, "first", c->bad_first,
                            "shapes", keyset_count(&c->shapes));
    if (!keyset_exact(&c->shapes))
        json_object_set_new(out, "shapes_estimated", json_true());
    json_object_set_new(out, "fields", census_fields_json(c->fields));
    if (census_fields_left_out(c->fields))
        json_object_set_new(out, "fields_left_out", json_true());
    json_object_set_new(out, "dims", census_fields_dims_json(c->fields));
    json_object_set_new(out, "outliers", outliers_json(c));
    json_object_set_new(out, "value", census_fields_value_json(c->fields));
    json_object_set_new(out, "policy", policy_json(c));
    json_object_set_new(out, "advice", advice);
    *ret = out;
    return 0;
}
