#include "server/once.h"
#include <string.h>
#include "schema/digest.h"

#define KEY_MAX 255
#define KEEP_MS (24 * 3600 * (int64_t)1000)

static void body_digest(const json_t *body, char out[DIGEST_HEX])
{
    AUTO_JSON json_t *none = json_null();
    digest_of_json(body ? body : none, out);
}

int once_find(struct store *st, const char *path, const char *key,
              const json_t *body, int *ret_status, json_t **ret,
              struct err *err)
{
    size_t n = strlen(key);
    if (n == 0 || n > KEY_MAX)
        return err_set(err, ERR_INVALID,
                       "an Idempotency-Key has 1 to %d characters", KEY_MAX);
    char digest[DIGEST_HEX];
    body_digest(body, digest);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ONCE_FIND);
    stmt_text(&q, ":path", path);
    stmt_text(&q, ":key", key);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    if (strcmp(col_text(&q, 0), digest))
        return err_set(err, ERR_MISMATCH,
                       "this Idempotency-Key was used with another body; take "
                       "a new one");
    *ret_status = (int)col_int(&q, 1);
    *ret = col_json(&q, 2);
    return 1;
}

int once_keep(struct store *st, const char *path, const char *key,
              const json_t *body, int status, const json_t *answer,
              int64_t now_ms, struct err *err)
{
    char digest[DIGEST_HEX];
    body_digest(body, digest);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ONCE_KEEP);
    stmt_text(&q, ":path", path);
    stmt_text(&q, ":key", key);
    stmt_text(&q, ":digest", digest);
    stmt_int(&q, ":status", status);
    stmt_json(&q, ":answer", answer);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int once_prune(struct store *st, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ONCE_PRUNE);
    stmt_int(&q, ":before", now_ms - KEEP_MS);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}
