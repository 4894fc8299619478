#include "server/checkpoint.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/spec.h"
#include "schema/state.h"
#include "server/chunk.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/lease.h"
#include "server/page.h"
#include "server/retention.h"
#include "server/when.h"

/* ---- making one exist ---- */

static const char *text_of(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static int64_t int_of(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static int take(struct stmt *q, struct checkpoint *c, struct err *err);

static int check_chunks(struct store *chunks, const json_t *manifest,
                        struct err *err)
{
    int64_t left = int_of(manifest, "bytes");
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(manifest, "chunks"), i, c)
    {
        uint8_t sha[DIGEST_BYTES];
        char at[64];
        int64_t bytes, want = left < STATE_CHUNK ? left : STATE_CHUNK;
        snprintf(at, sizeof(at), "/manifest/chunks/%zu", i);
        if (digest_parse(json_string_value(c), sha) < 0)
            return err_at(err, ERR_INVALID, at,
                          "a chunk is named by its "
                          "SHA-256");
        int r = chunk_size(chunks, sha, &bytes, err);
        if (r < 0)
            return r;
        if (r == 0)
            return err_at(err, ERR_CONFLICT, at,
                          "chunk %s is not stored; put it first",
                          json_string_value(c));
        if (bytes != want)
            return err_at(err, ERR_INVALID, at,
                          "chunk %s has %" PRId64 " bytes instead of %" PRId64,
                          json_string_value(c), bytes, want);
        left -= want;
    }
    return 0;
}

static int check_model(struct store *chunks, const json_t *manifest,
                       const json_t *resolved, struct err *err)
{
    CLEANUP(buf_release) struct buf header = {0}, chunk = {0};
    int64_t left = 0;
    int r = state_model_header(manifest, resolved, &header, &left, err);
    if (r < 0)
        return r;
    int64_t bytes = (int64_t)header.len + left;
    struct digest *d = digest_new();
    if (!d)
        return err_set(err, ERR_NOMEM, "no memory for a digest");
    digest_add(d, header.data, header.len);
    const json_t *list = json_object_get(manifest, "chunks");
    for (size_t i = 0; r >= 0 && left > 0; i++) {
        const char *sha = json_string_value(json_array_get(list, i));
        r = chunk_read(chunks, sha ? sha : "", &chunk, err);
        if (r < 0)
            break;
        size_t n = (int64_t)chunk.len < left ? chunk.len : (size_t)left;
        digest_add(d, chunk.data, n);
        left -= (int64_t)n;
    }
    uint8_t is[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_end(d, is);
    digest_free(d);
    if (r < 0)
        return r;
    digest_hex(is, hex);
    if (strcmp(hex, text_of(manifest, "model_sha256")))
        return err_at(err, ERR_INVALID, "/manifest/model_sha256",
                      "the model's SHA-256 is %s", hex);
    if (bytes != int_of(manifest, "model_bytes"))
        return err_at(err, ERR_INVALID, "/manifest/model_bytes",
                      "the model has %" PRId64 " bytes", bytes);
    return 0;
}

static int lease_cycle(struct store *st, int64_t lease, int64_t *ret,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_CYCLE);
    stmt_int(&q, ":id", lease);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r > 0 || r < 0 ? r
                          : err_set(err, ERR_NOT_FOUND,
                                    "there is no lease %" PRId64, lease);
}

static int newest_hold(struct store *chunks, int64_t lease, int64_t *ret,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_HOLD_NEWEST);
    stmt_int(&q, ":lease", lease);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r;
}

static void take_pointer(struct err *err)
{
    if (!err || err->code != ERR_INVALID)
        return;
    char at[sizeof(err->pointer)];
    if (!strncmp(err->pointer, "/manifest", 9))
        return;
    int n = snprintf(at, sizeof(at), "/manifest%.170s", err->pointer);
    memcpy(err->pointer, at, (size_t)n + 1);
}

int checkpoint_prepare(struct store *st, struct store *chunks, int64_t lease,
                       int64_t token, const json_t *manifest, bool finishing,
                       struct checkpoint_in *ret, struct err *err)
{
    int64_t id = 0, known;
    int r = manifest_check(manifest, err);
    if (r < 0) {
        /* a newer worker's format: the request's fault, not the state's */
        if (r == ERR_CORRUPT)
            err->code = r = ERR_INVALID;
        take_pointer(err);
        return r;
    }
    *ret = (struct checkpoint_in){
        .manifest = manifest,
        .step = int_of(manifest, "step"),
        .epoch = int_of(manifest, "epoch"),
        .records = int_of(manifest, "records"),
        .bytes = int_of(manifest, "bytes"),
        .model_bytes = int_of(manifest, "model_bytes"),
    };
    const char *previous = text_of(manifest, "previous");
    snprintf(ret->previous, sizeof(ret->previous), "%s",
             previous ? previous : "");
    snprintf(ret->model_sha256, sizeof(ret->model_sha256), "%s",
             text_of(manifest, "model_sha256"));
    digest_of_json(manifest, ret->digest);

    r = lease_cycle(st, lease, &id, err);
    if (r < 0)
        return r;
    r = checkpoint_find(st, lease, ret->digest, &known, err);
    if (r != 0) /* sent again: it was checked the first time */
        return r < 0 ? r : 0;
    r = lease_check(st, lease, token, err);
    if (r < 0)
        return r;

    struct cycle c;
    r = cycle_load(st, id, &c, err);
    if (r < 0)
        return r;
    const char *signature = text_of(manifest, "signature");
    if (!signature || strcmp(signature, c.signature))
        return err_at(err, ERR_CONFLICT, "/manifest/signature",
                      "the state belongs to another training run: its "
                      "signature is not the cycle's (%.12s…)",
                      c.signature);
    if (int_of(manifest, "cycle") != c.number)
        return err_at(err, ERR_CONFLICT, "/manifest/cycle",
                      "the lease is for cycle %" PRId64, c.number);
    if (c.steps >= 0 && ret->step > c.steps)
        return err_at(err, ERR_INVALID, "/manifest/step",
                      "the cycle has only %" PRId64 " steps", c.steps);
    r = newest_hold(chunks, lease, &ret->holds_seq, err);
    if (r >= 0)
        r = check_chunks(chunks, manifest, err);
    if (r < 0 || !finishing)
        return r < 0 ? r : 0;

    CLEANUP(spec_release) struct spec spec = {0};
    r = cycle_spec(st, &c, &spec, err);
    if (r >= 0)
        r = check_model(chunks, manifest, spec.resolved, err);
    ret->model_checked = r >= 0;
    return r < 0 ? r : 0;
}

int checkpoint_verify_saved(struct store *st, struct store *chunks,
                            int64_t lease, struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint saved = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    struct cycle c;
    int r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_SAVED);
        stmt_int(&q, ":lease", lease);
        r = take(&q, &saved, err);
    }
    if (r <= 0) /* none: the release says so itself */
        return r;
    r = cycle_load(st, saved.cycle, &c, err);
    if (r >= 0)
        r = cycle_spec(st, &c, &spec, err);
    if (r < 0)
        return r;
    return check_model(chunks, saved.manifest, spec.resolved, err);
}

static int add_row(struct store *st, const struct checkpoint_of *of,
                   const struct checkpoint_in *in, int64_t now_ms,
                   struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_ADD);
    stmt_int(&q, ":job", of->job);
    stmt_int(&q, ":cycle", of->cycle);
    stmt_int(&q, ":lease", of->lease);
    stmt_int(&q, ":step", in->step);
    stmt_int(&q, ":epoch", in->epoch);
    stmt_text(&q, ":digest", in->digest);
    stmt_text(&q, ":previous", in->previous[0] ? in->previous : NULL);
    stmt_json(&q, ":manifest", in->manifest);
    stmt_int(&q, ":bytes", in->bytes);
    stmt_int(&q, ":model_bytes", in->model_bytes);
    stmt_text(&q, ":model", in->model_sha256);
    stmt_json(&q, ":fingerprint", of->fingerprint);
    if (of->exact_since >= 0) {
        stmt_int(&q, ":since", of->exact_since);
        stmt_int(&q, ":since_cycle", of->exact_cycle);
        stmt_text(&q, ":why", of->exact_why);
    }
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int checkpoint_add(struct store *st, const struct checkpoint_of *of,
                   const struct checkpoint_in *in, int64_t now_ms,
                   int64_t *ret_id, struct err *err)
{
    int r = add_row(st, of, in, now_ms, err);
    if (r < 0)
        return r;
    int64_t id = store_last_id(st);
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(in->manifest, "chunks"), i, c)
    {
        uint8_t sha[DIGEST_BYTES];
        if (digest_parse(json_string_value(c), sha) < 0)
            return err_set(err, ERR_INVALID, "a chunk is named by its SHA-256");
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_CHUNK);
        stmt_int(&q, ":checkpoint", id);
        stmt_blob(&q, ":sha", sha, sizeof(sha));
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    *ret_id = id;
    return 0;
}

/* ---- using one ---- */

void checkpoint_release(struct checkpoint *c)
{
    json_decref(c->manifest);
    json_decref(c->fingerprint);
    c->manifest = c->fingerprint = NULL;
}

static int take(struct stmt *q, struct checkpoint *c, struct err *err)
{
    int r = stmt_row(q, err);
    if (r <= 0)
        return r;
    *c = (struct checkpoint){
        .id = col_int(q, 0),
        .job = col_int(q, 1),
        .cycle = col_int(q, 2),
        .step = col_int(q, 3),
        .epoch = col_int(q, 4),
        .bytes = col_int(q, 5),
        .model_bytes = col_int(q, 6),
        .load_deaths = col_int(q, 7),
        .exact_since = col_null(q, 8) ? -1 : col_int(q, 8),
        .exact_cycle = col_int(q, 9),
        .good = !strcmp(col_text(q, 11), "good"),
        .manifest = col_json(q, 14),
        .fingerprint = col_json(q, 15),
    };
    snprintf(c->exact_why, sizeof(c->exact_why), "%s", col_text(q, 10));
    snprintf(c->digest, sizeof(c->digest), "%s", col_text(q, 12));
    snprintf(c->model_sha256, sizeof(c->model_sha256), "%s", col_text(q, 13));
    c->records = int_of(c->manifest, "records");
    return 1;
}

int checkpoint_load(struct store *st, int64_t id, struct checkpoint *ret,
                    struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LOAD);
    stmt_int(&q, ":id", id);
    int r = take(&q, ret, err);
    return r ? r
             : err_set(err, ERR_NOT_FOUND, "there is no checkpoint %" PRId64,
                       id);
}

bool checkpoint_is_whole(const struct checkpoint *c)
{
    char is[DIGEST_HEX];
    if (!c->manifest)
        return false;
    digest_of_json(c->manifest, is);
    return !strcmp(is, c->digest);
}

int checkpoint_newest(struct store *st, int64_t cycle, struct checkpoint *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_NEWEST);
    stmt_int(&q, ":cycle", cycle);
    int r;
    while ((r = take(&q, ret, err)) > 0 && !checkpoint_is_whole(ret))
        checkpoint_release(ret);
    if (r == 0)
        *ret = (struct checkpoint){0};
    return r;
}

int checkpoint_find(struct store *st, int64_t lease, const char *digest,
                    int64_t *ret_id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_FIND);
    stmt_int(&q, ":lease", lease);
    stmt_text(&q, ":digest", digest);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret_id = col_int(&q, 0);
    return r;
}

int checkpoint_quarantine(struct store *st, int64_t id, const char *reason,
                          struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_QUARANTINE);
    stmt_int(&q, ":id", id);
    stmt_text(&q, ":reason", reason);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int checkpoint_set_aside(struct store *st, int64_t id, const char *actor,
                         const char *why, int64_t now_ms, struct err *err)
{
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    struct cycle cycle;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = checkpoint_load(st, id, &c, err);
    if (r == ERR_NOT_FOUND || (r >= 0 && !c.good))
        return 0;
    if (r >= 0)
        r = cycle_load(st, c.cycle, &cycle, err);
    if (r >= 0)
        r = checkpoint_quarantine(st, id, why, err);
    if (r < 0)
        return r;
    struct event e = {.job = c.job,
                      .cycle = cycle.number,
                      .step = c.step,
                      .kind = "quarantined",
                      .actor = actor};
    r = event_add(st, &e, now_ms, err,
                  "checkpoint %" PRId64 " (step %" PRId64
                  ") is set aside: %.600s",
                  id, c.step, why);
    if (r >= 0)
        r = txn_commit(&txn, err);
    return r < 0 ? r : 1;
}

static int newer(struct store *st, int64_t cycle, int64_t than, int64_t *ret,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_NEWER);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":than", than);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r;
}

int checkpoint_set_aside_newer(struct store *st, int64_t cycle, int64_t than,
                               int64_t now_ms, struct err *err)
{
    int64_t id;
    int r, n = 0;
    while ((r = newer(st, cycle, than, &id, err)) > 0) {
        r = checkpoint_set_aside(st, id, "server",
                                 "its manifest is damaged in pawl.db", now_ms,
                                 err);
        if (r <= 0)
            break;
        n++;
    }
    return r < 0 ? r : n;
}

int checkpoint_load_died(struct store *st, int64_t id, int64_t *ret_deaths,
                         bool *ret_good, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_DIED);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r > 0) {
        *ret_deaths = col_int(&q, 0);
        *ret_good = !strcmp(col_text(&q, 1), "good");
    }
    return r < 0 ? r : 0;
}

int checkpoint_load_lives(struct store *st, int64_t id, bool set_aside,
                          struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LIVES);
    stmt_int(&q, ":id", id);
    stmt_int(&q, ":aside", set_aside);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int checkpoint_loaded(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LOADED);
    stmt_int(&q, ":id", id);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static json_t *shown(const struct stmt *q, const struct retention *kept)
{
    return json_pack(
        "{sI sI sI sI ss so sI sI ss so sI sI ss sb so sI so}", "id",
        col_int(q, 0), "job", col_int(q, 1), "cycle", col_int(q, 2), "lease",
        col_int(q, 3), "state", col_text(q, 4), "reason",
        col_text_or_null(q, 5), "step", col_int(q, 6), "epoch", col_int(q, 7),
        "digest", col_text(q, 8), "previous", col_text_or_null(q, 9), "bytes",
        col_int(q, 10), "model_bytes", col_int(q, 11), "model_sha256",
        col_text(q, 12), "pinned", (int)col_int(q, 13), "kept",
        retention_words(kept, col_int(q, 0)), "load_deaths", col_int(q, 14),
        "created_at", when_json(col_int(q, 15)));
}

int checkpoint_list(struct store *st, int64_t job, int64_t after, int64_t limit,
                    json_t **ret, struct err *err)
{
    CLEANUP(retention_release) struct retention kept = {0};
    int r = retention_plan(st, job, &kept, err);
    if (r < 0)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, shown(&q, &kept));
    return r < 0 ? r : page_end(&page, ret);
}

int checkpoint_get(struct store *st, int64_t id, json_t **ret, struct err *err)
{
    CLEANUP(retention_release) struct retention kept = {0};
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no checkpoint %" PRId64,
                       id);
    r = retention_plan(st, col_int(&q, 1), &kept, err);
    if (r < 0)
        return r;
    json_t *j = shown(&q, &kept);
    json_object_set_new(j, "manifest", col_json_or_null(&q, 16));
    *ret = j;
    return 0;
}

/* ---- bodies ---- */

struct checkpoint_body {
    struct buf header, chunk;
    int64_t id, payload;
    json_t *chunks;
    int64_t loaded; /* index of the chunk in memory, or -1 */
};

int checkpoint_body_new(struct store *st, const struct checkpoint *c,
                        bool model, struct checkpoint_body **ret,
                        struct err *err)
{
    struct cycle cycle;
    CLEANUP(spec_release) struct spec spec = {0};
    int r = cycle_load(st, c->cycle, &cycle, err);
    if (r >= 0)
        r = cycle_spec(st, &cycle, &spec, err);
    if (r < 0)
        return r;
    struct checkpoint_body *b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(err, ERR_NOMEM, "no memory for a download");
    b->loaded = -1;
    b->id = c->id;
    b->payload = c->bytes;
    b->chunks = json_incref(json_object_get(c->manifest, "chunks"));
    r = model ? state_model_header(c->manifest, spec.resolved, &b->header,
                                   &b->payload, err)
              : state_header(c->manifest, spec.resolved, &b->header, err);
    if (r < 0) {
        checkpoint_body_free(b);
        return r;
    }
    *ret = b;
    return 0;
}

int64_t checkpoint_body_id(const struct checkpoint_body *b)
{
    return b->id;
}

int64_t checkpoint_body_bytes(const struct checkpoint_body *b)
{
    return (int64_t)b->header.len + b->payload;
}

/* Have chunk i in memory, verified. */
static int body_chunk(struct checkpoint_body *b, struct store *chunks,
                      int64_t i, struct err *err)
{
    if (i == b->loaded)
        return 0;
    const char *sha = json_string_value(json_array_get(b->chunks, (size_t)i));
    b->loaded = -1;
    int r = chunk_read(chunks, sha ? sha : "", &b->chunk, err);
    if (r == ERR_CORRUPT || r == ERR_NOT_FOUND)
        return err_set(err, ERR_CORRUPT,
                       "checkpoint %" PRId64 " cannot be read whole: chunk "
                       "%" PRId64 " of %zu is %s in checkpoints.db",
                       b->id, i + 1, json_array_size(b->chunks),
                       r == ERR_CORRUPT ? "damaged" : "missing");
    if (r < 0)
        return r;
    b->loaded = i;
    return 0;
}

int checkpoint_body_check(struct checkpoint_body *b, struct store *chunks,
                          int64_t offset, struct err *err)
{
    int64_t at = offset - (int64_t)b->header.len;
    if (b->payload == 0 || at >= b->payload)
        return 0;
    return body_chunk(b, chunks, at < 0 ? 0 : at / STATE_CHUNK, err);
}

int64_t checkpoint_body_read(struct checkpoint_body *b, struct store *chunks,
                             int64_t offset, char *out, size_t len,
                             struct err *err)
{
    int64_t head = (int64_t)b->header.len, end = head + b->payload;
    size_t done = 0;
    while (done < len && offset < end) {
        size_t n;
        if (offset < head) {
            n = (size_t)(head - offset);
            n = n < len - done ? n : len - done;
            memcpy(out + done, b->header.data + offset, n);
        } else {
            int64_t at = offset - head, i = at / STATE_CHUNK;
            int r = body_chunk(b, chunks, i, err);
            if (r < 0)
                return r;
            size_t from = (size_t)(at % STATE_CHUNK);
            if (from >= b->chunk.len)
                return err_set(err, ERR_CORRUPT, "chunk %" PRId64 " is short",
                               i);
            n = b->chunk.len - from;
            n = n < len - done ? n : len - done;
            if ((int64_t)n > end - offset)
                n = (size_t)(end - offset);
            memcpy(out + done, b->chunk.data + from, n);
        }
        done += n;
        offset += (int64_t)n;
    }
    return (int64_t)done;
}

void checkpoint_body_free(void *p)
{
    struct checkpoint_body *b = p;
    if (!b)
        return;
    buf_release(&b->header);
    buf_release(&b->chunk);
    json_decref(b->chunks);
    free(b);
}
