#include "server/dataset.h"
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/wire.h"
#include "server/event.h"
#include "server/page.h"
#include "server/upload.h"
#include "server/when.h"

int dataset_name_check(const char *name, const char *what, struct err *err)
{
    size_t n = strlen(name);
    bool good = n >= 1 && n <= 128 && isalnum((unsigned char)name[0]) &&
                !strstr(name, "..");
    for (size_t i = 0; good && i < n; i++)
        good = isalnum((unsigned char)name[i]) || strchr("._-", name[i]);
    if (!good)
        return err_set(err, ERR_INVALID,
                       "a %s's name begins with a letter or digit and goes on "
                       "with those, '.', '_' or '-', up to 128 in all, "
                       "without '..'",
                       what);
    return 0;
}

static int find(struct store *st, const char *name, int64_t *ret,
                struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_FIND);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r;
}

static int not_found(const char *name, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no dataset '%s'", name);
}

static json_t *shard_row(const struct stmt *q)
{
    return json_pack("{ss sI sI sI ss so}", "name", col_text(q, 0), "bytes",
                     col_int(q, 1), "records", col_int(q, 2), "lines",
                     col_int(q, 3), "sha256", col_text(q, 4), "created_at",
                     when_json(col_int(q, 5)));
}

static int shard_find(struct store *st, int64_t dataset, const char *name,
                      json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_FIND);
    stmt_int(&q, ":dataset", dataset);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = shard_row(&q);
    return r;
}

static int undoom(struct store *st, const char *path, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_DROP);
    stmt_text(&q, ":path", path);
    return (int)stmt_run(&q, err);
}

static int shard_add(struct store *st, int64_t dataset, const char *name,
                     const struct upload *up, const char *path, int64_t now_ms,
                     struct err *err)
{
    struct stat sb;
    if (stat(path, &sb) < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    AUTO_JSON json_t *blocks = json_array();
    for (size_t i = 0; i < up->n_blocks; i++)
        json_array_append_new(blocks, json_string(up->blocks[i]));

    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_ADD);
    stmt_int(&q, ":dataset", dataset);
    stmt_text(&q, ":name", name);
    stmt_int(&q, ":bytes", up->lines.bytes);
    stmt_int(&q, ":lines", up->lines.lines);
    stmt_int(&q, ":records", up->lines.records);
    stmt_text(&q, ":sha256", up->sha256);
    stmt_json(&q, ":blocks", blocks);
    stmt_int(&q, ":mtime_ns",
             (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec);
    stmt_int(&q, ":inode", (int64_t)sb.st_ino);
    stmt_int(&q, ":now", now_ms);
    return (int)stmt_run(&q, err);
}

int dataset_put(struct store *st, const char *dataset, const char *shard,
                struct upload *up, int64_t now_ms, bool *ret_new, json_t **ret,
                struct err *err)
{
    int r = dataset_name_check(dataset, "dataset", err);
    if (r >= 0)
        r = dataset_name_check(shard, "shard", err);
    if (r < 0)
        return r;
    char rel[300], path[4400];
    snprintf(rel, sizeof(rel), "datasets/%s/%s", dataset, shard);
    snprintf(path, sizeof(path), "%s/%s", store_dir(st), rel);

    int64_t id = 0;
    AUTO_JSON json_t *old = NULL;
    r = find(st, dataset, &id, err);
    if (r > 0)
        r = shard_find(st, id, shard, &old, err);
    if (r < 0)
        return r;
    if (old) {
        if (strcmp(json_string_value(json_object_get(old, "sha256")),
                   up->sha256))
            return err_set(err, ERR_CONFLICT,
                           "shard '%s' of dataset '%s' exists with other "
                           "bytes; upload them under another name",
                           shard, dataset);
        *ret_new = false;
        *ret = json_incref(old);
        return 0;
    }

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    if (!id) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_ADD);
        stmt_text(&q, ":name", dataset);
        stmt_int(&q, ":now", now_ms);
        r = (int)stmt_run(&q, err);
        if (r < 0)
            return r;
        id = store_last_id(st);
    }
    r = undoom(st, rel, err); /* an earlier file of this name may wait there */
    if (r < 0)
        return r;
    r = upload_publish(up, path, err);
    if (r < 0)
        return r;
    r = shard_add(st, id, shard, up, path, now_ms, err);
    if (r < 0)
        return r;
    r = shard_find(st, id, shard, ret, err);
    if (r < 0)
        return r;
    *ret_new = true;
    store_notify(st, NOTIFY_DATASET);
    return txn_commit(&txn, err);
}

int dataset_list(struct store *st, int64_t after, int64_t limit, json_t **ret,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_LIST);
    stmt_int(&q, ":after", after);
    CLEANUP(page_release) struct page page = page_begin(&q, limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, json_pack("{ss sI sI sI so}", "name", col_text(&q, 1),
                                  "shards", col_int(&q, 3), "bytes",
                                  col_int(&q, 4), "records", col_int(&q, 5),
                                  "created_at", when_json(col_int(&q, 2))));
    return r < 0 ? r : page_end(&page, ret);
}

int dataset_get(struct store *st, const char *name, json_t **ret,
                struct err *err)
{
    int64_t id = 0;
    int r = find(st, name, &id, err);
    if (r <= 0)
        return r < 0 ? r : not_found(name, err);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_LIST);
    stmt_int(&q, ":dataset", id);
    AUTO_JSON json_t *shards = json_array();
    int64_t bytes = 0, records = 0;
    while ((r = stmt_row(&q, err)) > 0) {
        json_array_append_new(shards, shard_row(&q));
        bytes += col_int(&q, 1);
        records += col_int(&q, 2);
    }
    if (r < 0)
        return r;
    *ret = json_pack("{ss sI sI sO}", "name", name, "bytes", bytes, "records",
                     records, "shards", shards);
    return 0;
}

int dataset_shard(struct store *st, const char *dataset, const char *shard,
                  struct shard_file *ret, struct err *err)
{
    int64_t id = 0;
    int r = find(st, dataset, &id, err);
    if (r <= 0)
        return r < 0 ? r : not_found(dataset, err);
    AUTO_JSON json_t *row = NULL;
    r = shard_find(st, id, shard, &row, err);
    if (r < 0)
        return r;
    if (!row)
        return err_set(err, ERR_NOT_FOUND, "dataset '%s' has no shard '%s'",
                       dataset, shard);
    snprintf(ret->path, sizeof(ret->path), "%s/datasets/%s/%s", store_dir(st),
             dataset, shard);
    snprintf(ret->sha256, sizeof(ret->sha256), "%s",
             json_string_value(json_object_get(row, "sha256")));
    ret->bytes = json_integer_value(json_object_get(row, "bytes"));
    return 0;
}

/* The first job that has not ended and needs the dataset; of a shard: that has
 * it in an open cycle's snapshot, or froze nothing yet. */
static int needed_by(struct store *st, const char *dataset, const char *shard,
                     int64_t *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_NEEDED);
    stmt_text(&q, ":dataset", dataset);
    stmt_text(&q, ":shard", shard);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r;
}

static int doom(struct store *st, const char *dataset, const char *shard,
                struct err *err)
{
    char rel[300];
    snprintf(rel, sizeof(rel), "datasets/%s/%s", dataset, shard);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_ADD);
    stmt_text(&q, ":path", rel);
    return (int)stmt_run(&q, err);
}

int dataset_delete(struct store *st, const char *dataset, const char *shard,
                   struct err *err)
{
    AUTO_JSON json_t *all = NULL;
    int r = dataset_get(st, dataset, &all, err);
    if (r < 0)
        return r;
    int64_t id = 0, job = 0;
    r = find(st, dataset, &id, err);
    if (r < 0)
        return r;
    if (shard) {
        AUTO_JSON json_t *row = NULL;
        r = shard_find(st, id, shard, &row, err);
        if (r < 0)
            return r;
        if (!row)
            return err_set(err, ERR_NOT_FOUND, "dataset '%s' has no shard '%s'",
                           dataset, shard);
    }
    r = needed_by(st, dataset, shard, &job, err);
    if (r < 0)
        return r;
    if (r > 0)
        return err_set(err, ERR_CONFLICT,
                       "job %" PRId64 " needs dataset '%s' and has not ended",
                       job, dataset);

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r < 0)
        return r;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(all, "shards"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (shard && strcmp(name, shard))
            continue;
        r = doom(st, dataset, name, err);
        if (r < 0)
            return r;
    }
    {
        CLEANUP(stmt_end)
        struct stmt q =
            stmt_use(st, shard ? SQL_SHARD_DELETE : SQL_DATASET_DELETE);
        stmt_int(&q, ":dataset", id);
        if (shard)
            stmt_text(&q, ":shard", shard);
        r = (int)stmt_run(&q, err);
        if (r < 0)
            return r;
    }
    store_notify(st, NOTIFY_DATASET);
    return txn_commit(&txn, err);
}

int dataset_doomed(struct store *st, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *paths = json_array();
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_LIST);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        json_array_append_new(paths, json_string(col_text(&q, 0)));
    if (r < 0)
        return r;
    *ret = json_incref(paths);
    return (int)json_array_size(paths);
}

static int is_doomed(struct store *st, const char *path, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_FIND);
    stmt_text(&q, ":path", path);
    return stmt_row(&q, err);
}

int dataset_unlink(struct store *st, const json_t *doomed, struct err *err)
{
    int n = 0;
    size_t i;
    json_t *rel;
    json_array_foreach(doomed, i, rel)
    {
        char path[4400];
        int r = is_doomed(st, json_string_value(rel), err);
        if (r < 0)
            return r;
        if (r == 0) /* another file has that name by now */
            continue;
        snprintf(path, sizeof(path), "%s/%s", store_dir(st),
                 json_string_value(rel));
        if (unlink(path) < 0 && errno != ENOENT)
            return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
        *strrchr(path, '/') = '\0';
        rmdir(path); /* the dataset's folder, once it is empty */
        r = undoom(st, json_string_value(rel), err);
        if (r < 0)
            return r;
        n++;
    }
    return n;
}

int dataset_exists(struct store *st, const char *name, struct err *err)
{
    int64_t id;
    int r = find(st, name, &id, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_at(err, ERR_INVALID, "/data/dataset",
                      "there is no dataset '%s'; upload a shard with PUT "
                      "/v1/datasets/%s/shards/NAME first",
                      name, name);
    return 0;
}

int dataset_snapshot(struct store *st, const struct data_spec *d,
                     json_t **ret_data, char ret_digest[DIGEST_HEX],
                     int64_t *ret_records, struct err *err)
{
    int r = dataset_exists(st, d->dataset, err);
    if (r < 0)
        return r;
    int64_t id = 0;
    r = find(st, d->dataset, &id, err);
    if (r < 0)
        return r;

    AUTO_JSON json_t *shards = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_FREEZE);
        stmt_int(&q, ":dataset", id);
        while ((r = stmt_row(&q, err)) > 0) {
            const char *name = col_text(&q, 0);
            if (d->shards_glob && fnmatch(d->shards_glob, name, 0))
                continue;
            char path[300];
            snprintf(path, sizeof(path), "datasets/%s/%s", d->dataset, name);
            json_array_append_new(
                shards,
                json_pack("{ss ss sI sI sI sI si so}", "name", name, "path",
                          path, "bytes", col_int(&q, 1), "records",
                          col_int(&q, 2), "mtime_ns", col_int(&q, 3), "inode",
                          col_int(&q, 4), "block_bytes", WIRE_BLOCK_BYTES,
                          "blocks", col_json(&q, 5)));
        }
        if (r < 0)
            return r;
    }
    while (d->shards_last > 0 &&
           json_array_size(shards) > (size_t)d->shards_last)
        json_array_remove(shards, 0);
    if (json_array_size(shards) == 0)
        return err_at(err, ERR_INVALID,
                      d->shards_glob ? "/data/shards" : "/data/dataset",
                      "dataset '%s' has no shard%s%s", d->dataset,
                      d->shards_glob ? " that matches " : "",
                      d->shards_glob ? d->shards_glob : "");

    AUTO_JSON json_t *identity = json_array();
    int64_t records = 0;
    size_t i;
    json_t *s;
    json_array_foreach(shards, i, s)
    {
        int64_t n = json_integer_value(json_object_get(s, "records"));
        const char *name = json_string_value(json_object_get(s, "name"));
        if (n == 0) {
            r = err_set(err, ERR_DATA, "shard %s is empty: it holds no record",
                        name);
            snprintf(err->shard, sizeof(err->shard), "%s", name);
            return r;
        }
        records += n;
        json_array_append_new(identity,
                              json_pack("[OOO]", json_object_get(s, "name"),
                                        json_object_get(s, "bytes"),
                                        json_object_get(s, "blocks")));
    }
    digest_of_json(identity, ret_digest);
    *ret_data = json_pack("{ss sO}", "digest", ret_digest, "shards", shards);
    *ret_records = records;
    return 0;
}

void dataset_snapshot_place(struct store *st, json_t *data)
{
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(data, "shards"), i, s)
    {
        char path[4400];
        snprintf(path, sizeof(path), "%s/%s", store_dir(st),
                 json_string_value(json_object_get(s, "path")));
        json_object_set_new(s, "path", json_string(path));
    }
}
