/* /livez, /readyz and /v1/info. */
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "server/server.h"
#include "server/session.h"
#include "server/supervisor.h"
#include "server/when.h"

int handle_livez(struct ctx *ctx, struct request *req, struct reply *ret,
                 struct err *err)
{
    return reply_json(ret, 200, json_pack("{s:s}", "status", "alive"));
}

int handle_readyz(struct ctx *ctx, struct request *req, struct reply *ret,
                  struct err *err)
{
    struct server *s = ctx->server;
    if (atomic_load(&s->shutting_down))
        return err_set(err, ERR_BUSY, "the server is stopping");
    if (!atomic_load(&s->ready))
        return err_set(err, ERR_BUSY, "the server is starting");
    return reply_json(ret, 200, json_pack("{s:s}", "status", "ready"));
}

static json_t *info_limits(void)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "heartbeat_s", WIRE_HEARTBEAT_S,
                     "lease_expiry_s", WIRE_EXPIRY_S, "wait_s", WIRE_WAIT_MAX_S,
                     "session_days", SESSION_DAYS);
}

/* {"items"} of workers is a list of its own; here are the kinds of device that
 * they offer. */
static int info_devices(struct ctx *ctx, json_t *devices, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_INFO_DEVICES);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        json_array_append_new(devices,
                              json_pack("{s:s, s:I}", "kind", col_text(&q, 0),
                                        "workers", (json_int_t)col_int(&q, 1)));
    return r;
}

static int info_sqlite(struct ctx *ctx, char *out, size_t cap, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_INFO_SQLITE);
    int r = stmt_row(&q, err);
    if (r > 0)
        snprintf(out, cap, "%s", col_text(&q, 0));
    return r;
}

#define WAL_WARN ((int64_t)64 << 20)

static void info_file(const struct store *st, json_t *o, const char *name,
                      struct store_sizes *ret)
{
    store_sizes(st, ret);
    json_object_set_new(o, name,
                        json_pack("{s:I, s:I}", "bytes",
                                  (json_int_t)ret->db_bytes, "wal_bytes",
                                  (json_int_t)ret->wal_bytes));
}

/* How large the files are, and what of that somebody should look at. */
static json_t *info_store(struct ctx *ctx)
{
    struct store_sizes main, chunks;
    json_t *o = json_object();
    info_file(ctx->st, o, "pawl_db", &main);
    info_file(ctx->chunks, o, "checkpoints_db", &chunks);
    int64_t free = store_free(ctx->st);
    json_object_set_new(o, "free_bytes",
                        free < 0 ? json_null() : json_integer(free));
    char why[200] = "";
    const char *big = main.wal_bytes > WAL_WARN     ? "pawl.db-wal"
                      : chunks.wal_bytes > WAL_WARN ? "checkpoints.db-wal"
                                                    : NULL;
    if (free >= 0 && free < 2 * store_spare)
        snprintf(why, sizeof(why),
                 "only %" PRId64 " MiB are free: checkpoints are refused soon",
                 free >> 20);
    else if (big)
        snprintf(why, sizeof(why),
                 "%s has grown over %d MiB: some reader keeps it from being "
                 "folded back",
                 big, (int)(WAL_WARN >> 20));
    json_object_set_new(o, "warning", why[0] ? json_string(why) : json_null());
    return o;
}

int handle_info(struct ctx *ctx, struct request *req, struct reply *ret,
                struct err *err)
{
    struct server *s = ctx->server;
    AUTO_JSON json_t *listen = json_array();
    AUTO_JSON json_t *devices = json_array();
    AUTO_JSON json_t *roots = json_array();
    const char *name;
    char sqlite[32] = "";
    int limit, open = httpd_connections(s->httpd, &limit);
    char started[WHEN_MAX];

    for (size_t i = 0; (name = httpd_listening(s->httpd, i)); i++)
        json_array_append_new(listen, json_string(name));
    for (size_t i = 0; i < s->options.n_data_roots; i++)
        json_array_append_new(roots,
                              json_string(s->options.data_roots[i].name));
    int r = info_devices(ctx, devices, err);
    if (r < 0)
        return r;
    r = info_sqlite(ctx, sqlite, sizeof(sqlite), err);
    if (r < 0)
        return r;
    when_text(s->started_ms, started);
    json_t *o = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:f, s:i, s:O, s:{s:i, s:i}, s:O, s:O,"
        " s:{s:i, s:i}, s:o, s:{s:s, s:s, s:s, s:s}}",
        "name", "pawl", "version", PAWL_VERSION, "api", 1, "instance",
        s->instance, "started_at", started, "uptime_s",
        (double)(ctx->mono_ms - s->started_mono_ms) / 1000, "pid",
        (int)getpid(), "listen", listen, "workers", "wanted",
        s->options.workers, "alive", supervisor_alive(s->supervisor), "devices",
        devices, "data_roots", roots, "connections", "open", open, "limit",
        limit, "limits", info_limits(), "versions", "libmicrohttpd",
        httpd_library(), "jansson", jansson_version_str(), "openssl",
        OpenSSL_version(OPENSSL_VERSION_STRING), "sqlite", sqlite);
    if (!o)
        return err_set(err, ERR_NOMEM, "no memory for the answer");
    json_object_set_new(o, "store", info_store(ctx));
    return reply_json(ret, 200, o);
}
