#include "server/copies.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "server/shard_text.h"

#define PIECE ((size_t)1 << 20)

bool copies_is(const json_t *shard)
{
    const char *path = json_string_value(json_object_get(shard, "path"));
    return path && !json_object_get(shard, "root") &&
           !strncmp(path, "copies/", strlen("copies/"));
}

int copies_of(struct store *st, int64_t cycle, json_t *shards, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SNAPSHOT_COPIES);
    stmt_int(&q, ":cycle", cycle);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        json_t *shard = col_json(&q, 0);
        if (!shard)
            return err_set(err, ERR_DB, "a shard of a snapshot is no JSON");
        if (copies_is(shard))
            json_array_append(shards, shard);
        json_decref(shard);
    }
    return r;
}

static char *path_of(const char *dir, const json_t *shard)
{
    char *path;
    const char *rel = json_string_value(json_object_get(shard, "path"));
    return asprintf(&path, "%s/%s", dir, rel) < 0 ? NULL : path;
}

int copies_missing(struct store *st, int64_t cycle, struct err *err)
{
    AUTO_JSON json_t *shards = json_array();
    int r = copies_of(st, cycle, shards, err);
    size_t i;
    json_t *one;
    if (r < 0)
        return r;
    json_array_foreach(shards, i, one)
    {
        AUTO_FREE char *path = path_of(store_dir(st), one);
        struct stat at;
        if (!path)
            return err_set(err, ERR_NOMEM, "no memory for a path");
        if (lstat(path, &at) < 0 || !S_ISREG(at.st_mode))
            return 1;
    }
    return 0;
}

static int digest_text(struct shard_text *text, struct digest *digest,
                       char *piece, root_stop_fn *stop, void *arg,
                       struct err *err)
{
    for (int64_t at = 0, n; at < shard_text_bytes(text); at += n) {
        if (stop && stop(arg))
            return err_set(err, ERR_BUSY, "stopped");
        n = shard_text_read(text, at, piece, PIECE, err);
        if (n <= 0)
            return n < 0 ? (int)n : err_set(err, ERR_CORRUPT, "it ends early");
        digest_add(digest, piece, (size_t)n);
    }
    return 0;
}

int copies_check(const char *dir, const json_t *shard, root_stop_fn *stop,
                 void *arg, struct err *err)
{
    AUTO_FREE char *path = path_of(dir, shard), *piece = malloc(PIECE);
    struct digest *digest = digest_new();
    struct shard_text *text = NULL;
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    int r = path && piece && digest
                ? 0
                : err_set(err, ERR_NOMEM, "no memory to read a copy");
    struct stat at;
    if (r == 0 && (lstat(path, &at) < 0 || !S_ISREG(at.st_mode)))
        r = ERR_CORRUPT;
    if (r == 0)
        r = shard_text_open(
            path, json_string_value(json_object_get(shard, "form")),
            json_integer_value(json_object_get(shard, "bytes")), &text, err);
    if (r >= 0)
        r = digest_text(text, digest, piece, stop, arg, err);
    if (r >= 0) {
        digest_end(digest, sum);
        digest_hex(sum, hex);
        r = !strcmp(hex, json_string_value(json_object_get(shard, "sha256")));
    }
    shard_text_close(text);
    digest_free(digest);
    /* one that the disk cannot read is made again as well */
    return r == ERR_NOMEM || r == ERR_BUSY || r >= 0 ? r : 0;
}
