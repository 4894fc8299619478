#include "server/session.h"
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "schema/cleanup.h"
#include "schema/digest.h"

#define DAY_MS (24 * 3600 * INT64_C(1000))

struct session {
    char hash[DIGEST_HEX];
    int64_t ends_ms;
};

struct session_table {
    pthread_mutex_t mutex;
    struct session sessions[SESSION_MAX]; /* oldest first */
    size_t n;
    char code[33];
    bool code_used;
};

void random_hex(char *out, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        unsigned char b;
        while (getrandom(&b, 1, 0) != 1)
            ;
        out[2 * i] = digits[b >> 4];
        out[2 * i + 1] = digits[b & 15];
    }
    out[2 * bytes] = '\0';
}

bool secret_equal(const char *a, const char *b)
{
    /* digests have one length, and a difference says nothing of the secret */
    uint8_t da[DIGEST_BYTES], db[DIGEST_BYTES];
    digest_of(a, strlen(a), da);
    digest_of(b, strlen(b), db);
    return CRYPTO_memcmp(da, db, sizeof(da)) == 0;
}

static void keep(struct session_table *t, const char *hash, int64_t ends_ms)
{
    if (t->n == SESSION_MAX)
        memmove(t->sessions, t->sessions + 1, --t->n * sizeof(*t->sessions));
    struct session *s = &t->sessions[t->n++];
    snprintf(s->hash, sizeof(s->hash), "%s", hash);
    s->ends_ms = ends_ms;
}

static int load(void *arg, struct ctx *ctx, struct err *err)
{
    struct session_table *t = arg;
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_LIST);
    stmt_int(&q, ":now", ctx->now_ms);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        keep(t, col_text(&q, 0), col_int(&q, 1));
    return r;
}

int session_table_new(struct lanes *lanes, struct session_table **ret,
                      struct err *err)
{
    struct session_table *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for sessions");
    pthread_mutex_init(&t->mutex, NULL);
    random_hex(t->code, 16);
    int r = lanes_call(lanes, LANE_READ, load, t, err);
    if (r < 0) {
        session_table_free(t);
        return r;
    }
    *ret = t;
    return 0;
}

void session_table_free(struct session_table *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

const char *session_code(const struct session_table *t)
{
    return t->code;
}

static void hash_of(const char *id, char hash[DIGEST_HEX])
{
    uint8_t sum[DIGEST_BYTES];
    digest_of(id, strlen(id), sum);
    digest_hex(sum, hash);
}

bool session_known(struct session_table *t, const char *id, int64_t now_ms)
{
    char hash[DIGEST_HEX];
    bool known = false;
    hash_of(id, hash);
    pthread_mutex_lock(&t->mutex);
    for (size_t i = 0; i < t->n && !known; i++)
        known = now_ms < t->sessions[i].ends_ms &&
                CRYPTO_memcmp(t->sessions[i].hash, hash, sizeof(hash)) == 0;
    pthread_mutex_unlock(&t->mutex);
    return known;
}

int session_open(struct session_table *t, struct ctx *ctx, char id[65],
                 struct err *err)
{
    char hash[DIGEST_HEX];
    int64_t ends_ms = ctx->now_ms + SESSION_DAYS * DAY_MS;
    random_hex(id, 32);
    hash_of(id, hash);
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_ADD);
        stmt_text(&q, ":hash", hash);
        stmt_int(&q, ":now", ctx->now_ms);
        stmt_int(&q, ":ends", ends_ms);
        int64_t r = stmt_run(&q, err);
        if (r < 0)
            return (int)r;
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_TRIM);
        stmt_int(&q, ":now", ctx->now_ms);
        stmt_int(&q, ":max", SESSION_MAX);
        int64_t r = stmt_run(&q, err);
        if (r < 0)
            return (int)r;
    }
    /* known before the commit, but nobody has the id before the answer */
    pthread_mutex_lock(&t->mutex);
    keep(t, hash, ends_ms);
    pthread_mutex_unlock(&t->mutex);
    return 0;
}

int session_by_code(struct session_table *t, struct ctx *ctx, const char *code,
                    char id[65], struct err *err)
{
    pthread_mutex_lock(&t->mutex);
    bool right = secret_equal(code, t->code), used = t->code_used;
    if (right)
        t->code_used = true;
    pthread_mutex_unlock(&t->mutex);
    if (!right)
        return err_set(err, ERR_UNAUTHORIZED,
                       "this code is not the one that the server printed at "
                       "its start");
    if (used)
        return err_set(err, ERR_UNAUTHORIZED,
                       "this code was used already: log in with the token, "
                       "which lies in the state folder's file 'token'");
    return session_open(t, ctx, id, err);
}
