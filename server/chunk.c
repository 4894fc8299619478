#include "server/chunk.h"
#include <string.h>
#include "schema/state.h"

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

int chunk_size(struct store *chunks, const uint8_t sha[DIGEST_BYTES],
               int64_t *ret, struct err *err)
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

int chunk_check(const char *sha256, const void *data, size_t len,
                struct chunk *ret, struct err *err)
{
    uint8_t is[DIGEST_BYTES];
    *ret = (struct chunk){.data = data, .len = len};
    int r = parse_sha(sha256, ret->name, err);
    if (r < 0)
        return r;
    if (len == 0 || len > STATE_CHUNK)
        return err_set(err, ERR_INVALID, "a chunk has 1 to %d bytes",
                       STATE_CHUNK);
    digest_of(data, len, is);
    if (memcmp(ret->name, is, sizeof(is)))
        return err_set(err, ERR_INVALID,
                       "the bytes that came do not have the SHA-256 %s",
                       sha256);
    return 0;
}

int chunk_store(struct store *chunks, int64_t lease, const struct chunk *in,
                struct err *err)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, chunks, err);
    if (r < 0)
        return r;
    int64_t bytes;
    r = chunk_size(chunks, in->name, &bytes, err);
    if (r < 0)
        return r;
    if (r == 0) {
        r = store_room(chunks, in->len, err);
        if (r < 0)
            return r;
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_ADD);
        stmt_blob(&q, ":sha", in->name, sizeof(in->name));
        stmt_int(&q, ":bytes", (int64_t)in->len);
        stmt_blob(&q, ":data", in->data, in->len);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    if (r > 0)
        r = chunk_mend(chunks, in->name, in->data, in->len, err);
    if (r >= 0)
        r = hold(chunks, lease, in->name, err);
    return r < 0 ? r : txn_commit(&txn, err);
}

int chunk_put(struct store *chunks, int64_t lease, const char *sha256,
              const void *data, size_t len, struct err *err)
{
    struct chunk in;
    int r = chunk_check(sha256, data, len, &in, err);
    return r < 0 ? r : chunk_store(chunks, lease, &in, err);
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

/* ---- sweeping ---- */

void chunk_sweep_release(struct chunk_sweep *s)
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

static int live_leases(struct store *st, struct chunk_sweep *ret,
                       struct err *err)
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

int chunk_sweep_find(struct store *st, struct store *chunks, int64_t *after,
                     int64_t limit, struct chunk_sweep *ret, struct err *err)
{
    *ret = (struct chunk_sweep){.orphans = json_array(), .live = json_array()};
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
        chunk_sweep_release(ret);
        return r;
    }
    if (seen < limit)
        *after = 0;
    return (int)json_array_size(ret->orphans);
}

int chunk_sweep_run(struct store *chunks, const struct chunk_sweep *s,
                    struct err *err)
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
