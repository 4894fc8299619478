#include "server/sample.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/lines.h"
#include "schema/record.h"
#include "schema/unpack.h"
#include "server/shard_text.h"

void sample_release(struct sample *s)
{
    for (int d = 0; s->lengths && d < s->n_dims; d++)
        lengths_release(&s->lengths[d]);
    free(s->lengths);
    *s = (struct sample){0};
}

static int count_record(const struct spec *spec, const int *lengths,
                        struct sample *s, struct err *err)
{
    struct batch_shape one = {0};
    batch_shape_add(spec, lengths, &one);
    s->records++;
    s->sum.rows += one.rows;
    s->sum.pairs += one.pairs;
    s->sum.candidates += one.candidates;
    s->sum.cross += one.cross;
    s->rows_squared += one.rows * one.rows;
    s->pairs_squared += one.pairs * one.pairs;
    for (int d = 0; d < s->n_dims; d++)
        if (lengths_add(&s->lengths[d], lengths[d], 1) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a sample");
    return 0;
}

static void note_bad(struct sample *s, const char *shard, int64_t line,
                     const struct err *why)
{
    if (!s->bad++)
        snprintf(s->first_bad, sizeof(s->first_bad),
                 "shard %.128s, line %" PRId64 "%s%s: %.300s", shard, line,
                 why->field[0] ? ", field " : "", why->field, why->text);
}

/* The whole lines of `text`, and its last one if the shard ends with it. */
static int count_lines(const struct spec *spec, struct record_decoder *decoder,
                       const char *shard, const char *text, size_t len,
                       bool whole, struct sample *s, struct err *err)
{
    int64_t number = 0;
    for (size_t at = line_bom(text, len); at < len;) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        size_t n = end ? (size_t)(end - line) : len - at;
        at += n + 1;
        number++;
        if ((!end && !whole) || line_is_blank(line, n))
            continue; /* cut, or no record */
        const struct record *r;
        struct err why = {0};
        if (record_decode(decoder, line, n, &r, &why) < 0) {
            note_bad(s, shard, number, &why);
            continue;
        }
        int q = count_record(spec, r->lengths, s, err);
        if (q < 0)
            return q;
    }
    return 0;
}

/* ---- the beginning of a shard ---- */

static void close_text(struct shard_text **t)
{
    shard_text_close(*t);
}

struct beginning {
    char *text;
    size_t len;
};

static int keep_text(void *arg, const char *text, size_t len, struct err *err)
{
    struct beginning *b = arg;
    size_t room = SAMPLE_BYTES - b->len, n = len < room ? len : room;
    memcpy(b->text + b->len, text, n);
    b->len += n;
    return b->len < SAMPLE_BYTES ? 0 : ERR_TOO_LARGE; /* that is enough */
}

/* A file below a root that nobody has read yet: its form shows in its bytes. */
static size_t read_raw(const char *path, char *text)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    AUTO_FREE char *raw = malloc(SAMPLE_BYTES);
    ssize_t n = raw && fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
                    ? pread(fd, raw, SAMPLE_BYTES, 0)
                    : -1;
    if (n <= 0)
        return 0;
    struct beginning b = {.text = text};
    struct err why;
    enum packing packing = packing_of(raw, (size_t)n);
    struct unpack *u = NULL;
    if (packing == PACKING_NONE)
        keep_text(&b, raw, (size_t)n, &why);
    else if (unpack_new(packing, &u, &why) == 0)
        unpack_add(u, raw, (size_t)n, keep_text, &b, &why);
    unpack_free(u);
    return b.len;
}

/* *ret_whole: that is all of it. */
static size_t read_text(const json_t *shard, char *text, bool *ret_whole)
{
    const char *path = json_string_value(json_object_get(shard, "path"));
    const char *form = json_string_value(json_object_get(shard, "form"));
    int64_t bytes = json_integer_value(json_object_get(shard, "bytes"));
    CLEANUP(close_text) struct shard_text *in = NULL;
    struct err why;
    *ret_whole = false;
    if (json_is_null(json_object_get(shard, "records")))
        return read_raw(path, text);
    if (shard_text_open(path, form ? form : "plain", bytes, &in, &why) < 0)
        return 0;
    int64_t n = shard_text_read(in, 0, text, SAMPLE_BYTES, &why);
    *ret_whole = n == bytes;
    return n > 0 ? (size_t)n : 0;
}

static int read_shard(const struct spec *spec, struct record_decoder *decoder,
                      const json_t *shard, char *text, struct sample *s,
                      struct err *err)
{
    const char *name = json_string_value(json_object_get(shard, "name"));
    bool whole;
    size_t n = read_text(shard, text, &whole);
    return count_lines(spec, decoder, name, text, n, whole, s, err);
}

static void free_decoder(struct record_decoder **d)
{
    record_decoder_free(*d);
}

int sample_read(const struct spec *spec, const json_t *data, struct sample *ret,
                struct err *err)
{
    const json_t *shards = json_object_get(data, "shards");
    size_t n = json_array_size(shards);
    size_t read = n < SAMPLE_SHARDS ? n : SAMPLE_SHARDS;
    CLEANUP(free_decoder) struct record_decoder *decoder = NULL;
    CLEANUP(sample_release) struct sample s = {.n_dims = spec->record.n_dims};
    AUTO_FREE char *text = malloc(SAMPLE_BYTES + 1);
    s.lengths = calloc((size_t)s.n_dims + 1, sizeof(*s.lengths));
    if (!text || !s.lengths)
        return err_set(err, ERR_NOMEM, "no memory for a sample");
    int r = record_decoder_new(&spec->record, spec->data.policy_tolerance,
                               &decoder, err);
    for (size_t i = 0; i < read && r == 0; i++)
        r = read_shard(spec, decoder, json_array_get(shards, i * n / read),
                       text, &s, err);
    if (r < 0)
        return r;
    *ret = s;
    s = (struct sample){0};
    return 0;
}

int sample_choose(const struct sample *s, int micro_batch, struct padding *p,
                  struct err *err)
{
    if (!s->records || p->mode != PADDING_LADDER || !p->count)
        return 0;
    for (int d = 0; d < p->n_dims; d++) {
        int sizes[SIZES_MAX];
        int n =
            ladder_choose(&s->lengths[d], micro_batch, p->count, sizes, err);
        if (n < 0)
            return n;
        int *own = malloc(sizeof(int) * (size_t)(n + 1));
        if (!own)
            return err_set(err, ERR_NOMEM, "no memory for sizes");
        memcpy(own, sizes, sizeof(int) * (size_t)n);
        free(p->sizes[d].v);
        p->sizes[d] = (struct sizes){own, n};
    }
    p->count = 0;
    return 0;
}
