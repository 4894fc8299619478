#include "server/intake.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/lines.h"
#include "schema/record.h"
#include "schema/wire.h"

struct intake_lines {
    const struct intake_rules *rules;
    struct record_decoder *decoder;
    struct line_index_writer *index;
    char *index_path;
    struct digest *whole, *block;
    size_t in_block, cap_blocks;
    int64_t begin;    /* of the line under way */
    int64_t length;   /* of what came of it, kept or not */
    struct buf carry; /* that, while it may be a record */
};

int intake_rules_make(const json_t *record, bool skip, double policy_tolerance,
                      struct intake_rules **ret, struct err *err)
{
    struct intake_rules *rules = calloc(1, sizeof(*rules));
    if (!rules)
        return err_set(err, ERR_NOMEM, "no memory for a record description");
    int r = record_desc_parse(record, "/record", &rules->record, err);
    if (r < 0) {
        free(rules);
        return r;
    }
    rules->skip = skip;
    rules->policy_tolerance = policy_tolerance;
    AUTO_JSON json_t *all = json_pack("[osf]", record_desc_json(&rules->record),
                                      skip ? "skip" : "fail", policy_tolerance);
    digest_of_json(all, rules->digest);
    *ret = rules;
    return 0;
}

void intake_rules_free(struct intake_rules *r)
{
    if (!r)
        return;
    record_desc_release(&r->record);
    free(r);
}

int intake_new(const char *index_path, const struct intake_rules *rules,
               struct intake **ret, struct err *err)
{
    struct intake *t = calloc(1, sizeof(*t));
    struct intake_lines *its = calloc(1, sizeof(*its));
    int r = 0;
    if (!t || !its) {
        free(t);
        free(its);
        return err_set(err, ERR_NOMEM, "no memory to take in a text");
    }
    t->its = its;
    its->rules = rules;
    its->whole = digest_new();
    its->block = digest_new();
    t->bad_first = json_array();
    its->index_path = index_path ? strdup(index_path) : NULL;
    if (!its->whole || !its->block || !t->bad_first ||
        (index_path && !its->index_path))
        r = err_set(err, ERR_NOMEM, "no memory to take in a text");
    if (r >= 0 && rules)
        r = record_decoder_new(&rules->record, rules->policy_tolerance,
                               &its->decoder, err);
    if (r >= 0 && index_path)
        r = line_index_new(index_path, &its->index, err);
    if (r < 0) {
        intake_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

/* ---- digests ---- */

static int end_block(struct intake *t, struct err *err)
{
    struct intake_lines *its = t->its;
    if (t->n_blocks == its->cap_blocks) {
        size_t cap = its->cap_blocks ? 2 * its->cap_blocks : 16;
        void *more = realloc(t->blocks, cap * sizeof(*t->blocks));
        if (!more)
            return err_set(err, ERR_NOMEM, "no memory for a shard's digests");
        t->blocks = more;
        its->cap_blocks = cap;
    }
    uint8_t sum[DIGEST_BYTES];
    digest_end(its->block, sum);
    digest_hex(sum, t->blocks[t->n_blocks++]);
    its->in_block = 0;
    return 0;
}

static int add_digests(struct intake *t, const char *s, size_t len,
                       struct err *err)
{
    struct intake_lines *its = t->its;
    if (its->whole)
        digest_add(its->whole, s, len);
    while (len) {
        size_t n = WIRE_BLOCK_BYTES - its->in_block;
        if (n > len)
            n = len;
        digest_add(its->block, s, n);
        its->in_block += n;
        s += n;
        len -= n;
        if (its->in_block == WIRE_BLOCK_BYTES) {
            int r = end_block(t, err);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* ---- lines ---- */

/* A record that does not fit: counted, or the end of it all. */
static int bad_record(struct intake *t, int64_t offset, struct err *err)
{
    if (err->code != ERR_DATA)
        return err->code;
    if (t->its->rules->skip) {
        t->bad++;
        if (json_array_size(t->bad_first) < INTAKE_BAD_SHOWN)
            json_array_append_new(t->bad_first,
                                  json_pack("{sI sI ss ss}", "line", t->lines,
                                            "offset", offset, "field",
                                            err->field, "reason", err->text));
        return 0;
    }
    struct err why = *err;
    err_set(err, ERR_DATA, "line %" PRId64 " (offset %" PRId64 "): %.500s",
            t->lines, offset, why.text);
    memcpy(err->field, why.field, sizeof(err->field));
    err->line = t->lines;
    err->offset = offset;
    return ERR_DATA;
}

static bool is_utf16(const char *line, size_t len)
{
    return len >= 2 &&
           (!memcmp(line, "\xff\xfe", 2) || !memcmp(line, "\xfe\xff", 2));
}

static int decode(struct intake *t, int64_t offset, const char *line,
                  int64_t length, struct err *err)
{
    const struct record *record;
    int r = 0;
    if (length > LINE_MAX_BYTES)
        r = err_set(err, ERR_DATA,
                    "it has %" PRId64 " bytes; a record has at most %d", length,
                    LINE_MAX_BYTES);
    else if (t->lines == 1 && is_utf16(line, (size_t)length))
        r = err_set(err, ERR_DATA,
                    "it begins with a UTF-16 mark; records are UTF-8");
    else
        r = record_decode(t->its->decoder, line, (size_t)length, &record, err);
    return r < 0 ? bad_record(t, offset, err) : 0;
}

/* A line that is complete; of one that is too long, its length alone. */
static int end_line(struct intake *t, const char *line, bool ended,
                    struct err *err)
{
    struct intake_lines *its = t->its;
    int64_t offset = its->begin, length = its->length;
    its->begin += length + ended;
    its->length = 0;
    if (offset == 0 && length >= 3 && line_bom(line, 3)) {
        line += 3;
        offset += 3;
        length -= 3;
    }
    if (!length && !ended) /* a mark and nothing else */
        return 0;
    t->lines++;
    bool too_long = length > LINE_MAX_BYTES;
    if (!too_long && line_is_blank(line, (size_t)length))
        return 0;
    t->records++;
    int r = 0;
    if (its->index)
        r = line_index_add(its->index, offset, length,
                           too_long ? 0 : line_hash(line, (size_t)length), err);
    if (r >= 0 && its->decoder)
        r = decode(t, offset, line, length, err);
    return r;
}

static int add_lines(struct intake *t, const char *s, size_t len,
                     struct err *err)
{
    struct intake_lines *its = t->its;
    while (len) {
        const char *nl = memchr(s, '\n', len), *line = s;
        size_t n = nl ? (size_t)(nl - s) : len;
        bool whole = nl && !its->length;
        /* its beginning is needed in any case: there may be a mark */
        if (!whole && its->length + (int64_t)n <= LINE_MAX_BYTES + 3) {
            if (buf_add(&its->carry, s, n) < 0)
                return err_set(err, ERR_NOMEM, "no memory for a line");
            line = its->carry.data;
        } else if (!whole) {
            if (its->carry.len < 3 &&
                buf_add(&its->carry, s, n < 3 ? n : 3) < 0)
                return err_set(err, ERR_NOMEM, "no memory for a line");
            line = its->carry.data;
        }
        its->length += (int64_t)n;
        s += n;
        len -= n;
        if (!nl)
            break;
        int r = end_line(t, line, true, err);
        if (r < 0)
            return r;
        if (its->carry.cap > WIRE_BLOCK_BYTES)
            buf_release(&its->carry);
        buf_clear(&its->carry);
        s++;
        len--;
    }
    return 0;
}

void intake_digest_elsewhere(struct intake *t)
{
    digest_free(t->its->whole);
    t->its->whole = NULL;
}

int intake_add(struct intake *t, const char *text, size_t len, struct err *err)
{
    int r = add_digests(t, text, len, err);
    if (r >= 0)
        r = add_lines(t, text, len, err);
    t->bytes += (int64_t)len;
    return r;
}

int64_t intake_ended_bytes(const struct intake *t)
{
    return t->its->begin;
}

int intake_end(struct intake *t, struct err *err)
{
    struct intake_lines *its = t->its;
    int r = 0;
    if (its->length)
        r = end_line(t, its->carry.data, false, err);
    if (r >= 0 && its->in_block)
        r = end_block(t, err);
    if (r < 0)
        return r;
    uint8_t sum[DIGEST_BYTES];
    if (its->whole) {
        digest_end(its->whole, sum);
        digest_hex(sum, t->sha256);
    } else {
        digest_parse(t->sha256, sum);
    }
    if (its->index)
        r = line_index_end(its->index, sum, err);
    if (r < 0)
        return r;
    line_index_free(its->index);
    its->index = NULL;
    record_decoder_free(its->decoder);
    its->decoder = NULL;
    buf_release(&its->carry);
    return 0;
}

int intake_publish(struct intake *t, const char *dir, struct err *err)
{
    struct intake_lines *its = t->its;
    AUTO_FREE char *folder = NULL, *path = NULL;
    if (!its->index_path)
        return 0;
    if (asprintf(&folder, "%s/index", dir) < 0 ||
        asprintf(&path, "%s/%s", folder, t->sha256) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if ((mkdir(folder, 0700) < 0 && errno != EEXIST) ||
        rename(its->index_path, path) < 0)
        return err_set(err, errno == ENOSPC ? ERR_NOSPACE : ERR_IO,
                       "cannot publish the index %s: %s", path,
                       strerror(errno));
    free(its->index_path);
    its->index_path = NULL;
    return 0;
}

size_t intake_memory(const struct intake *t)
{
    return sizeof(*t) + sizeof(*t->its) + t->its->carry.cap +
           t->its->cap_blocks * sizeof(*t->blocks) +
           (t->its->index ? LINE_INDEX_WRITER_BYTES : 0);
}

void intake_free(struct intake *t)
{
    if (!t)
        return;
    struct intake_lines *its = t->its;
    line_index_free(its->index);
    if (its->index_path)
        unlink(its->index_path);
    free(its->index_path);
    record_decoder_free(its->decoder);
    digest_free(its->whole);
    digest_free(its->block);
    buf_release(&its->carry);
    json_decref(t->bad_first);
    free(t->blocks);
    free(its);
    free(t);
}
