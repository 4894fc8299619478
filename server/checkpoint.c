#include "server/checkpoint.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/spec.h"
#include "schema/state.h"
#include "server/cycle.h"
#include "server/event.h"
#include "server/lease.h"
#include "server/page.h"
#include "server/when.h"

/* ---- chunks ---- */

static int hold(struct store *chunks, int64_t lease, const uint8_t *sha,
                struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_HOLD_ADD);
    stmt_int(&q, ":lease", lease);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int chunk_size(struct store *chunks, const uint8_t *sha, int64_t *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_FIND);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r;
}

static int parse_sha(const char *sha256, uint8_t out[DIGEST_BYTES],
                     struct err *err)
{
    if (digest_parse(sha256, out) < 0)
        return err_set(err, ERR_INVALID,
                       "a chunk is named by its SHA-256: 64 lower-case hex "
                       "digits");
    return 0;
}

/* Is what is stored under the name still these bytes? */
static int chunk_is(struct store *chunks, const uint8_t *sha, const void *data,
                    size_t len, bool *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_READ);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    size_t have = 0;
    const void *stored = r > 0 ? col_blob(&q, 0, &have) : NULL;
    *ret = have == len && !memcmp(stored, data, len);
    return 0;
}

/* A chunk that was damaged on disk becomes whole again when the state that
 * needs it is trained and sent once more. */
static int chunk_mend(struct store *chunks, const uint8_t *sha,
                      const void *data, size_t len, struct err *err)
{
    bool whole = false;
    int r = chunk_is(chunks, sha, data, len, &whole, err);
    if (r < 0 || whole)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_MEND);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    stmt_int(&q, ":bytes", (int64_t)len);
    stmt_blob(&q, ":data", data, len);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int chunk_put(struct store *chunks, int64_t lease, const char *sha256,
              const void *data, size_t len, struct err *err)
{
    uint8_t name[DIGEST_BYTES], is[DIGEST_BYTES];
    int r = parse_sha(sha256, name, err);
    if (r < 0)
        return r;
    if (len == 0 || len > STATE_CHUNK)
        return err_set(err, ERR_INVALID, "a chunk has 1 to %d bytes",
                       STATE_CHUNK);
    digest_of(data, len, is);
    if (memcmp(name, is, sizeof(is)))
        return err_set(err, ERR_INVALID,
                       "the bytes that came do not have the SHA-256 %s",
                       sha256);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, chunks, err);
    if (r < 0)
        return r;
    int64_t bytes;
    r = chunk_size(chunks, name, &bytes, err);
    if (r < 0)
        return r;
    if (r == 0) {
        r = store_room(chunks, len, err);
        if (r < 0)
            return r;
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_ADD);
        stmt_blob(&q, ":sha", name, sizeof(name));
        stmt_int(&q, ":bytes", (int64_t)len);
        stmt_blob(&q, ":data", data, len);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    if (r > 0)
        r = chunk_mend(chunks, name, data, len, err);
    if (r >= 0)
        r = hold(chunks, lease, name, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

int chunk_hold(struct store *chunks, int64_t lease, const char *sha256,
               struct err *err)
{
    uint8_t name[DIGEST_BYTES];
    CLEANUP(buf_release) struct buf b = {0};
    int r = parse_sha(sha256, name, err);
    if (r >= 0)
        r = chunk_read(chunks, sha256, &b, err);
    if (r == ERR_NOT_FOUND || r == ERR_CORRUPT)
        return 0; /* to be sent, or sent anew */
    if (r < 0)
        return r;
    r = hold(chunks, lease, name, err);
    return r < 0 ? r : 1;
}

int chunk_read(struct store *chunks, const char *sha256, struct buf *ret,
               struct err *err)
{
    uint8_t name[DIGEST_BYTES], is[DIGEST_BYTES];
    int r = parse_sha(sha256, name, err);
    if (r < 0)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_READ);
    stmt_blob(&q, ":sha", name, sizeof(name));
    r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "chunk %s is gone", sha256);
    size_t len;
    const void *data = col_blob(&q, 0, &len);
    digest_of(data, len, is);
    if (memcmp(name, is, sizeof(is)))
        return err_set(err, ERR_CORRUPT, "chunk %s is damaged", sha256);
    buf_clear(ret);
    return buf_add(ret, data, len) < 0
               ? err_set(err, ERR_NOMEM, "no memory for a chunk")
               : 0;
}

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

int checkpoint_newest(struct store *st, int64_t cycle, struct checkpoint *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_NEWEST);
    stmt_int(&q, ":cycle", cycle);
    return take(&q, ret, err);
}

int checkpoint_newest_of_job(struct store *st, int64_t job,
                             struct checkpoint *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_NEWEST_JOB);
    stmt_int(&q, ":job", job);
    return take(&q, ret, err);
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

int checkpoint_load_died(struct store *st, int64_t id, int64_t *ret_deaths,
                         struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_DIED);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret_deaths = col_int(&q, 0);
    return r < 0 ? r : 0;
}

int checkpoint_loaded(struct store *st, int64_t id, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LOADED);
    stmt_int(&q, ":id", id);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static json_t *shown(const struct stmt *q)
{
    return json_pack(
        "{sI sI sI sI ss so sI sI ss so sI sI ss sb sI so}", "id",
        col_int(q, 0), "job", col_int(q, 1), "cycle", col_int(q, 2), "lease",
        col_int(q, 3), "state", col_text(q, 4), "reason",
        col_text_or_null(q, 5), "step", col_int(q, 6), "epoch", col_int(q, 7),
        "digest", col_text(q, 8), "previous", col_text_or_null(q, 9), "bytes",
        col_int(q, 10), "model_bytes", col_int(q, 11), "model_sha256",
        col_text(q, 12), "pinned", (int)col_int(q, 13), "load_deaths",
        col_int(q, 14), "created_at", when_json(col_int(q, 15)));
}

int checkpoint_list(struct store *st, int64_t job, int64_t after, int64_t limit,
                    json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_LIST);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, shown(&q));
    return r < 0 ? r : page_end(&page, ret);
}

int checkpoint_get(struct store *st, int64_t id, json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no checkpoint %" PRId64,
                       id);
    json_t *j = shown(&q);
    json_object_set_new(j, "manifest", col_json(&q, 16));
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

/* ---- letting go ---- */

int checkpoint_prune(struct store *st, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_PRUNE);
    return (int)stmt_run(&q, err);
}

void sweep_release(struct sweep *s)
{
    json_decref(s->orphans);
    json_decref(s->live);
    s->orphans = s->live = NULL;
}

static int is_named(struct store *st, const uint8_t *sha, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CHECKPOINT_NAMES);
    stmt_blob(&q, ":sha", sha, DIGEST_BYTES);
    return stmt_row(&q, err);
}

static int live_leases(struct store *st, struct sweep *ret, struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_NEWEST);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        ret->newest_lease = col_int(&q, 0);
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_HOLDERS);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        json_array_append_new(
            ret->live, json_pack("[II]", col_int(&q, 0), col_int(&q, 1)));
    return r;
}

int sweep_find(struct store *st, struct store *chunks, int64_t *after,
               int64_t limit, struct sweep *ret, struct err *err)
{
    *ret = (struct sweep){.orphans = json_array(), .live = json_array()};
    /* leases first: whoever is claimed later counts as live, and what a live
     * lease may come to name it holds */
    int r = live_leases(st, ret, err);
    CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_SCAN);
    stmt_int(&q, ":after", *after);
    stmt_int(&q, ":limit", limit);
    int64_t seen = 0;
    while (r >= 0 && (r = stmt_row(&q, err)) > 0) {
        size_t len;
        uint8_t sha[DIGEST_BYTES];
        memcpy(sha, col_blob(&q, 1, &len), sizeof(sha));
        *after = col_int(&q, 0);
        seen++;
        r = is_named(st, sha, err);
        if (r == 0) {
            char hex[DIGEST_HEX];
            digest_hex(sha, hex);
            json_array_append_new(ret->orphans, json_string(hex));
        }
    }
    if (r < 0) {
        sweep_release(ret);
        return r;
    }
    if (seen < limit)
        *after = 0;
    return (int)json_array_size(ret->orphans);
}

int sweep_run(struct store *chunks, const struct sweep *s, struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, chunks, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_HOLD_DROP);
        stmt_json(&q, ":live", s->live);
        stmt_int(&q, ":newest", s->newest_lease);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    int swept = 0;
    size_t i;
    json_t *hex;
    json_array_foreach(s->orphans, i, hex)
    {
        uint8_t sha[DIGEST_BYTES];
        digest_parse(json_string_value(hex), sha);
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_DROP);
        stmt_blob(&q, ":sha", sha, sizeof(sha));
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
        swept += (int)n;
    }
    if (swept > 0) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_VACUUM);
        while ((r = stmt_row(&q, err)) > 0)
            ;
        if (r < 0)
            return r;
    }
    r = txn_commit(&txn, err);
    return r < 0 ? r : swept;
}
