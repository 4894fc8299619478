/* Load and ceilings for queue.mjs. Each command prints one line of JSON.
 *
 *   bench_queue bare-claims DIR SECONDS      one writer, bare SQLite, FULL
 *   bench_queue noun-claims DIR              lease_claim(), lease_release()
 *                                            without HTTP, a commit each, of all
 *                                            ready jobs
 *   bench_queue jobs URL TOKEN CLIENTS N     POST /v1/jobs, spec on stdin
 *   bench_queue claims URL TOKEN CLIENTS N   POST /v1/leases; each lease is ended
 *                                            at once, so that as many live as
 *                                            there are clients
 *   bench_queue save URL TOKEN MB SENDERS    a state's chunks and manifest; as
 *                                            many chunks under way at a time
 *   bench_queue load URL TOKEN CHECKPOINT    GET its state
 *   bench_queue bare-file DIR MB             write + fsync of such bytes
 *   bench_queue bare-sqlite DIR MB           one BLOB of 1 MiB to a commit, the
 *                                            settings of checkpoints.db, its WAL
 *                                            folded in at the end
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/spec.h"
#include "schema/state.h"
#include "server/lease.h"
#include "server/store.h"

#define MB ((size_t)1 << 20)

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt,
                                                                ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes that no disk shrinks. */
static void fill(char *to, size_t len, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i + 8 <= len; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(to + i, &x, 8);
    }
}

/* ---- HTTP, as little of it as will do ---- */

struct http {
    const char *url, *token;
    int fd;
    char in[65536];
    size_t have;
    struct buf body; /* of the answer, unless it is to be thrown away */
};

static void http_connect(struct http *h)
{
    char host[64];
    int port;
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (sscanf(h->url, "http://%63[0-9.]:%d", host, &port) != 2 ||
        inet_pton(AF_INET, host, &to.sin_addr) != 1)
        die("%s: no http://ADDRESS:PORT", h->url);
    to.sin_port = htons((uint16_t)port);
    h->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(h->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("%s: %s", h->url, strerror(errno));
    int one = 1;
    setsockopt(h->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    h->have = 0;
}

static void http_send(struct http *h, const void *data, size_t len)
{
    for (const char *p = data; len;) {
        ssize_t n = send(h->fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            die("send: %s", strerror(errno));
        p += n;
        len -= (size_t)n;
    }
}

static size_t http_fill(struct http *h)
{
    ssize_t n = recv(h->fd, h->in + h->have, sizeof(h->in) - 1 - h->have, 0);
    if (n <= 0)
        die("recv: %s", n ? strerror(errno) : "closed");
    h->have += (size_t)n;
    h->in[h->have] = '\0';
    return h->have;
}

/* The status; the body is in h->body, or only counted in *ret_bytes. */
static int http_ask(struct http *h, const char *method, const char *path,
                    const char *more, const void *body, size_t len,
                    int64_t *ret_bytes)
{
    char head[1024];
    int n =
        snprintf(head, sizeof(head),
                 "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
                 "%sContent-Length: %zu\r\n\r\n",
                 method, path, h->url + strlen("http://"), h->token, more, len);
    if (len && len < 32768) { /* one packet */
        CLEANUP(buf_release) struct buf all = {0};
        buf_add(&all, head, (size_t)n);
        buf_add(&all, body, len);
        http_send(h, all.data, all.len);
    } else {
        http_send(h, head, (size_t)n);
        http_send(h, body, len);
    }
    char *end;
    h->have = 0;
    do
        http_fill(h);
    while (!(end = strstr(h->in, "\r\n\r\n")));
    int status = atoi(h->in + 9);
    const char *length = strcasestr(h->in, "\r\nContent-Length:");
    int64_t left = length && length < end ? atoll(length + 17) : 0;
    size_t rest = h->have - (size_t)(end + 4 - h->in);
    const char *from = end + 4;
    buf_clear(&h->body);
    if (ret_bytes)
        *ret_bytes = left;
    for (;;) {
        if (!ret_bytes)
            buf_add(&h->body, from, rest);
        left -= (int64_t)rest;
        if (left <= 0)
            return status;
        h->have = 0;
        rest = http_fill(h);
        from = h->in;
    }
}

/* ---- many clients ---- */

struct load {
    const char *url, *token, *spec;
    bool claims;
    int64_t n, *us; /* how long each took; of a claim: without its release */
    atomic_int_least64_t next;
};

static void claim_body(struct buf *b, int64_t i)
{
    buf_clear(b);
    buf_addf(b,
             "{\"worker\": {\"name\": \"w%d\", \"host\": \"h\", \"pid\": %d,"
             " \"started\": %d, \"boot\": \"b\", \"local\": false, \"devices\":"
             " [{\"kind\": \"cpu\"}], \"cpus\": 2, \"version\": \"1\","
             " \"library\": {\"libtorch\": \"none\"}}, \"claim\":"
             " \"bench-%d-%d\", \"wait\": 0}",
             (int)(i % 64), (int)i + 100, (int)i, (int)getpid(), (int)i);
}

/* Ends the job, too: it will not be claimed again. */
static const char release_text[] =
    "{\"token\": %d, \"outcome\": \"failed\", \"reason\": \"enough\","
    " \"error\": {\"code\": \"torch\", \"detail\": \"enough\","
    " \"final\": true}}";

/* A figure of the claim's answer, found without parsing all of it: the cores
 * are the server's. */
static int64_t figure(struct buf *b, const char *name)
{
    buf_add(b, "", 1);
    const char *lease = strstr(b->data, "\"lease\"");
    const char *at = lease ? strstr(lease, name) : NULL;
    const char *digits = at ? strpbrk(at + strlen(name), "0123456789}") : NULL;
    if (!digits || *digits == '}')
        die("no %s in %.300s", name, b->data);
    return atoll(digits);
}

static void end_lease(struct http *h, struct buf *body)
{
    char path[96];
    int64_t id = figure(&h->body, "\"id\"");
    int64_t token = figure(&h->body, "\"token\"");
    buf_clear(body);
    buf_addf(body, release_text, (int)token);
    snprintf(path, sizeof(path), "/v1/leases/%" PRId64 "/release", id);
    int status = http_ask(h, "POST", path, "Content-Type: application/json\r\n",
                          body->data, body->len, NULL);
    if (status != 200)
        die("release: %d: %.300s", status, h->body.data);
}

static void *client_main(void *arg)
{
    struct load *l = arg;
    struct http *h = calloc(1, sizeof(*h));
    CLEANUP(buf_release) struct buf body = {0};
    h->url = l->url;
    h->token = l->token;
    http_connect(h);
    for (;;) {
        int64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n)
            break;
        if (l->claims)
            claim_body(&body, i);
        double began = seconds();
        int status = http_ask(h, "POST", l->claims ? "/v1/leases" : "/v1/jobs",
                              "Content-Type: application/json\r\n",
                              l->claims ? body.data : l->spec,
                              l->claims ? body.len : strlen(l->spec), NULL);
        if (status != 201)
            die("%d: %.300s", status, h->body.data);
        l->us[i] = (int64_t)((seconds() - began) * 1e6);
        if (l->claims)
            end_lease(h, &body);
    }
    close(h->fd);
    buf_release(&h->body);
    free(h);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void run_load(struct load *l, int clients)
{
    pthread_t threads[256];
    if (clients > 256 || l->n < 1)
        die("at most 256 clients, at least one request");
    l->us = calloc((size_t)l->n, sizeof(*l->us));
    double began = seconds();
    for (int i = 0; i < clients; i++)
        pthread_create(&threads[i], NULL, client_main, l);
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    double took = seconds() - began;
    qsort(l->us, (size_t)l->n, sizeof(*l->us), by_size);
    printf("{\"n\": %" PRId64 ", \"seconds\": %.3f, \"per_s\": %.0f,"
           " \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f}\n",
           l->n, took, (double)l->n / took, (double)l->us[l->n / 2] / 1e3,
           (double)l->us[l->n * 99 / 100] / 1e3, (double)l->us[l->n - 1] / 1e3);
    free(l->us);
}

static char *read_stdin(void)
{
    CLEANUP(buf_release) struct buf b = {0};
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
        buf_add(&b, part, n);
    buf_add(&b, "", 1);
    char *s = b.data;
    b = (struct buf){0};
    return s;
}

/* ---- a state, through the server ---- */

struct sending {
    const char *url, *token, *bytes;
    int64_t lease, fence;
    int n; /* chunks */
    char (*names)[DIGEST_HEX];
    atomic_int next;
};

static void *sender_main(void *arg)
{
    struct sending *o = arg;
    struct http *h = calloc(1, sizeof(*h));
    char path[160], head[100];
    h->url = o->url;
    h->token = o->token;
    http_connect(h);
    snprintf(head, sizeof(head), "Pawl-Token: %" PRId64 "\r\n", o->fence);
    for (int i; (i = atomic_fetch_add(&o->next, 1)) < o->n;) {
        const char *data = o->bytes + (size_t)i * STATE_CHUNK;
        uint8_t sum[DIGEST_BYTES];
        digest_of(data, STATE_CHUNK, sum);
        digest_hex(sum, o->names[i]);
        snprintf(path, sizeof(path), "/v1/leases/%" PRId64 "/chunks/%s",
                 o->lease, o->names[i]);
        if (http_ask(h, "PUT", path, head, data, STATE_CHUNK, NULL) != 204)
            die("chunk: %.300s", h->body.data);
    }
    close(h->fd);
    buf_release(&h->body);
    free(h);
    return NULL;
}

/* All chunks, and their names in order. */
static json_t *send_chunks(struct sending *o, int senders)
{
    pthread_t threads[64];
    json_t *chunks = json_array();
    senders = senders < 1 ? 1 : senders > 64 ? 64 : senders;
    o->names = calloc((size_t)o->n, sizeof(*o->names));
    for (int i = 0; i < senders; i++)
        pthread_create(&threads[i], NULL, sender_main, o);
    for (int i = 0; i < senders; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < o->n; i++)
        json_array_append_new(chunks, json_string(o->names[i]));
    free(o->names);
    return chunks;
}

static int64_t int_of(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static void save(const char *url, const char *token, int64_t mb, int senders)
{
    struct http *h = calloc(1, sizeof(*h));
    CLEANUP(buf_release) struct buf body = {0};
    h->url = url;
    h->token = token;
    http_connect(h);
    claim_body(&body, 1000000);
    if (http_ask(h, "POST", "/v1/leases", "Content-Type: application/json\r\n",
                 body.data, body.len, NULL) != 201)
        die("claim: %.300s", h->body.data);
    AUTO_JSON json_t *claim = json_loads(h->body.data, 0, NULL);
    const json_t *lease = json_object_get(claim, "lease");
    int64_t id = int_of(lease, "id"), fence = int_of(lease, "token");

    /* the bytes are made beforehand: a worker has them in its tensors */
    size_t all = (size_t)mb * MB;
    char *bytes = malloc(all);
    fill(bytes, all, (uint64_t)time(NULL) + (uint64_t)getpid());
    struct sending o = {.url = url,
                        .token = token,
                        .bytes = bytes,
                        .lease = id,
                        .fence = fence,
                        .n = (int)(all / STATE_CHUNK)};
    double began = seconds();
    AUTO_JSON json_t *chunks = send_chunks(&o, senders);
    double sent = seconds() - began;
    AUTO_JSON json_t *m = json_pack(
        "{ss si sI si si si sO sO s{} s{} s[{ss ss s[i] si si}, {ss ss s[I] si"
        " sI}] sI sO sI ss sn}",
        "format", "pawl-state", "version", 1, "cycle", int_of(lease, "cycle"),
        "step", 1, "epoch", 0, "records", 4, "signature",
        json_object_get(claim, "signature"), "fingerprint",
        json_object_get(claim, "fingerprint"), "feed", "totals", "tensors",
        "name", "model.w", "dtype", "F32", "shape", 1, "begin", 0, "end", 4,
        "name", "optimizer.m", "dtype", "F32", "shape",
        (json_int_t)(all - 4) / 4, "begin", 4, "end", (json_int_t)all, "bytes",
        (json_int_t)all, "chunks", chunks, "model_bytes", (json_int_t)0,
        "model_sha256", "", "previous");
    CLEANUP(buf_release) struct buf header = {0};
    int64_t payload;
    struct err err;
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    if (!m || state_model_header(m, json_object_get(claim, "spec"), &header,
                                 &payload, &err) < 0)
        die("no manifest");
    buf_add(&header, bytes, 4);
    digest_of(header.data, header.len, sum);
    digest_hex(sum, hex);
    json_object_set_new(m, "model_bytes", json_integer((json_int_t)header.len));
    json_object_set_new(m, "model_sha256", json_string(hex));
    AUTO_JSON json_t *post =
        json_pack("{sI sO}", "token", (json_int_t)fence, "manifest", m);
    AUTO_FREE char *text = json_dumps(post, JSON_COMPACT);
    char path[96];
    snprintf(path, sizeof(path), "/v1/leases/%" PRId64 "/checkpoints", id);
    if (http_ask(h, "POST", path, "Content-Type: application/json\r\n", text,
                 strlen(text), NULL) != 201)
        die("manifest: %.300s", h->body.data);
    double took = seconds() - began;
    AUTO_JSON json_t *answer = json_loads(h->body.data, 0, NULL);
    printf("{\"mb\": %" PRId64 ", \"seconds\": %.3f, \"mb_per_s\": %.1f,"
           " \"manifest_s\": %.3f, \"checkpoint\": %" PRId64 "}\n",
           mb, took, (double)mb / took, took - sent, int_of(answer, "id"));
}

static void load(const char *url, const char *token, const char *checkpoint)
{
    struct http *h = calloc(1, sizeof(*h));
    char path[96];
    int64_t bytes;
    h->url = url;
    h->token = token;
    http_connect(h);
    snprintf(path, sizeof(path), "/v1/checkpoints/%s/state", checkpoint);
    double began = seconds();
    if (http_ask(h, "GET", path, "", "", 0, &bytes) != 200)
        die("the state is not to be had");
    double took = seconds() - began;
    printf("{\"seconds\": %.3f, \"mb_per_s\": %.1f}\n", took,
           (double)bytes / (double)MB / took);
}

/* ---- without a server ---- */

static void sql(sqlite3 *db, const char *text)
{
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        die("%s: %s", text, sqlite3_errmsg(db));
}

static sqlite3 *open_db(const char *dir, const char *name, const char *pragmas)
{
    char path[512];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (sqlite3_open_v2(path, &db,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                            SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        die("%s: %s", path, sqlite3_errmsg(db));
    sql(db, pragmas);
    sql(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL");
    return db;
}

static void bare_claims(const char *dir, double limit)
{
    sqlite3 *db = open_db(dir, "bare-claims.db", "PRAGMA page_size=4096");
    sql(db, "CREATE TABLE cycles (id INTEGER PRIMARY KEY, state TEXT NOT NULL,"
            " token INTEGER NOT NULL DEFAULT 0, worker TEXT, leased_ms INTEGER)"
            " STRICT;"
            "CREATE INDEX ready ON cycles(id) WHERE state = 'ready';"
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
            " WHERE i < 200000) INSERT INTO cycles(id, state) SELECT i, 'ready'"
            " FROM n; PRAGMA wal_checkpoint(TRUNCATE)");
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(
            db,
            "UPDATE cycles SET state = 'leased', token = token + 1, worker ="
            " ?1, leased_ms = ?2 WHERE id = (SELECT id FROM cycles WHERE state"
            " = 'ready' ORDER BY id LIMIT 1) RETURNING id, token",
            -1, &q, NULL) != SQLITE_OK)
        die("%s", sqlite3_errmsg(db));
    int64_t n = 0;
    double began = seconds();
    for (; seconds() - began < limit; n++) {
        sqlite3_bind_text(q, 1, "a worker's name", -1, SQLITE_STATIC);
        sqlite3_bind_int64(q, 2, n);
        if (sqlite3_step(q) != SQLITE_ROW || sqlite3_step(q) != SQLITE_DONE)
            die("%s", n < 200000 ? sqlite3_errmsg(db) : "none is left");
        sqlite3_reset(q); /* commits */
    }
    double took = seconds() - began;
    sqlite3_finalize(q);
    sqlite3_close(db);
    printf("{\"n\": %" PRId64 ", \"per_s\": %.0f}\n", n, (double)n / took);
}

static int noun_claim(struct store *st, int64_t n, int64_t *ret_lease,
                      int64_t *ret_token, struct err *err)
{
    CLEANUP(buf_release) struct buf body = {0};
    CLEANUP(json_ptr) json_t *answer = NULL;
    struct worker_claim in = {0};
    claim_body(&body, n);
    AUTO_JSON json_t *json = json_loadb(body.data, body.len, 0, NULL);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = worker_claim_parse(json, &in, err);
    if (r >= 0)
        r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_claim(st, &in, 1700000000000 + n, n, &answer, err);
    if (r <= 0)
        return r;
    const json_t *lease = json_object_get(answer, "lease");
    *ret_lease = json_integer_value(json_object_get(lease, "id"));
    *ret_token = json_integer_value(json_object_get(lease, "token"));
    r = txn_commit(&txn, err);
    return r < 0 ? r : 1;
}

static int noun_release(struct store *st, int64_t n, int64_t lease,
                        int64_t token, struct err *err)
{
    CLEANUP(buf_release) struct buf body = {0};
    CLEANUP(json_ptr) json_t *answer = NULL;
    struct release in;
    buf_addf(&body, release_text, (int)token);
    AUTO_JSON json_t *json = json_loadb(body.data, body.len, 0, NULL);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = release_parse(json, "", &token, &in, err);
    if (r >= 0)
        r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = lease_release(st, lease, token, &in, 1700000000000 + n, n, &answer,
                          err);
    return r < 0 ? r : txn_commit(&txn, err);
}

static void noun_claims(const char *dir)
{
    struct store *st;
    struct err err;
    if (store_open(dir, false, &st, &err) < 0)
        die("%s", err.text);
    int64_t n = 0, lease = 0, token = 0;
    int r;
    double began = seconds(), claiming = 0;
    for (;; n++) {
        double from = seconds();
        r = noun_claim(st, n, &lease, &token, &err);
        claiming += seconds() - from;
        if (r > 0)
            r = noun_release(st, n, lease, token, &err) < 0 ? -1 : 1;
        if (r <= 0)
            break;
    }
    if (r < 0)
        die("%s", err.text);
    double took = seconds() - began;
    store_close(st);
    printf("{\"n\": %" PRId64 ", \"per_s\": %.0f, \"claims_only_per_s\":"
           " %.0f}\n",
           n, (double)n / took, (double)n / claiming);
}

static void bare_file(const char *dir, int64_t mb)
{
    char path[512], *bytes = malloc((size_t)mb * MB);
    snprintf(path, sizeof(path), "%s/bare-file", dir);
    fill(bytes, (size_t)mb * MB, 5);
    double began = seconds();
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int64_t i = 0; i < mb; i++)
        if (write(fd, bytes + (size_t)i * MB, MB) != (ssize_t)MB)
            die("%s: %s", path, strerror(errno));
    if (fsync(fd) < 0)
        die("%s: %s", path, strerror(errno));
    double took = seconds() - began;
    began = seconds();
    for (int64_t i = 0; i < mb; i++)
        if (pread(fd, bytes, MB, i * (int64_t)MB) != (ssize_t)MB)
            die("%s: %s", path, strerror(errno));
    double back = seconds() - began;
    close(fd);
    unlink(path);
    printf("{\"mb\": %" PRId64 ", \"write_mb_per_s\": %.1f,"
           " \"read_mb_per_s\": %.1f}\n",
           mb, (double)mb / took, (double)mb / back);
}

static void bare_sqlite(const char *dir, int64_t mb)
{
    sqlite3 *db = open_db(dir, "bare-sqlite.db",
                          "PRAGMA page_size=65536; PRAGMA"
                          " auto_vacuum=INCREMENTAL");
    char *bytes = malloc((size_t)mb * MB);
    fill(bytes, (size_t)mb * MB, 7);
    sql(db, "CREATE TABLE chunks (id INTEGER PRIMARY KEY, sha256 BLOB NOT NULL"
            " UNIQUE, bytes INTEGER NOT NULL, data BLOB NOT NULL) STRICT");
    sqlite3_stmt *q;
    sqlite3_prepare_v2(db,
                       "INSERT INTO chunks(sha256, bytes, data) VALUES (?1,"
                       " ?2, ?3)",
                       -1, &q, NULL);
    double began = seconds();
    for (int64_t i = 0; i < mb; i++) {
        uint8_t name[DIGEST_BYTES] = {0};
        memcpy(name, bytes + (size_t)i * MB, sizeof(name));
        sqlite3_bind_blob(q, 1, name, sizeof(name), SQLITE_STATIC);
        sqlite3_bind_int64(q, 2, (int64_t)MB);
        sqlite3_bind_blob(q, 3, bytes + (size_t)i * MB, (int)MB, SQLITE_STATIC);
        if (sqlite3_step(q) != SQLITE_DONE)
            die("%s", sqlite3_errmsg(db));
        sqlite3_reset(q);
    }
    double plain = seconds() - began;
    sqlite3_finalize(q);
    sql(db, "PRAGMA wal_checkpoint(TRUNCATE)");
    double took = seconds() - began;
    began = seconds();
    sqlite3_prepare_v2(db, "SELECT data FROM chunks", -1, &q, NULL);
    int64_t n = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        sqlite3_column_blob(q, 0);
        n += sqlite3_column_bytes(q, 0);
    }
    double back = seconds() - began;
    sqlite3_finalize(q);
    sqlite3_close(db);
    printf("{\"mb\": %" PRId64 ", \"write_mb_per_s\": %.1f,"
           " \"folded_mb_per_s\": %.1f, \"read_mb_per_s\": %.1f}\n",
           mb, (double)mb / plain, (double)mb / took,
           (double)n / (double)MB / back);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "bare-claims") && argc == 4) {
        bare_claims(argv[2], atof(argv[3]));
    } else if (!strcmp(what, "noun-claims") && argc == 3) {
        noun_claims(argv[2]);
    } else if ((!strcmp(what, "jobs") || !strcmp(what, "claims")) &&
               argc == 6) {
        AUTO_FREE char *spec = *what == 'j' ? read_stdin() : NULL;
        struct load l = {.url = argv[2],
                         .token = argv[3],
                         .spec = spec,
                         .claims = *what == 'c',
                         .n = atoll(argv[5])};
        run_load(&l, atoi(argv[4]));
    } else if (!strcmp(what, "save") && argc == 6) {
        save(argv[2], argv[3], atoll(argv[4]), atoi(argv[5]));
    } else if (!strcmp(what, "load") && argc == 5) {
        load(argv[2], argv[3], argv[4]);
    } else if (!strcmp(what, "bare-file") && argc == 4) {
        bare_file(argv[2], atoll(argv[3]));
    } else if (!strcmp(what, "bare-sqlite") && argc == 4) {
        bare_sqlite(argv[2], atoll(argv[3]));
    } else {
        die("see the top of tests/bench/queue.c");
    }
    return 0;
}
