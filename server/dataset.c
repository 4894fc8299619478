#include "server/dataset.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
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

static int add(struct store *st, const char *name, int64_t now_ms, int64_t *ret,
               struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_ADD);
    stmt_text(&q, ":name", name);
    stmt_int(&q, ":now", now_ms);
    int r = (int)stmt_run(&q, err);
    *ret = store_last_id(st);
    return r;
}

static int not_found(const char *name, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "there is no dataset '%s'", name);
}

static int no_shard(const char *dataset, const char *shard, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "dataset '%s' has no shard '%s'",
                   dataset, shard);
}

/* ---- what its records must look like ---- */

int dataset_rules(struct store *st, const char *name, struct intake_rules **ret,
                  struct err *err)
{
    AUTO_JSON json_t *record = NULL;
    bool skip;
    double tolerance;
    *ret = NULL;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_FIND);
        stmt_text(&q, ":name", name);
        int r = stmt_row(&q, err);
        if (r <= 0 || col_null(&q, 1))
            return r < 0 ? r : 0;
        record = col_json(&q, 1);
        skip = !strcmp(col_text(&q, 2), "skip");
        tolerance = col_real(&q, 3);
    }
    int r = intake_rules_make(record, skip, tolerance, ret, err);
    return r < 0 ? r : 1;
}

/* What is said of it so far: 1, or 0 when there is no such dataset. */
static int described(struct store *st, const char *name, int64_t *ret_id,
                     json_t **ret_record, int *ret_bad, double *ret_tolerance,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_FIND);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    *ret_id = col_int(&q, 0);
    *ret_record = col_json(&q, 1);
    *ret_bad = !strcmp(col_text(&q, 2), "skip");
    *ret_tolerance = col_real(&q, 3);
    return 1;
}

int dataset_describe(struct store *st, const char *name, const json_t *in,
                     int64_t now_ms, bool *ret_new, struct err *err)
{
    static const char *const words[] = {"fail", "skip", NULL};
    AUTO_JSON json_t *canonical = NULL;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    struct json_read read;
    int64_t id = 0;
    int bad = 0;
    double tolerance = 0.01;
    int r = dataset_name_check(name, "dataset", err);
    if (r >= 0)
        r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = described(st, name, &id, &canonical, &bad, &tolerance, err);
    if (r < 0)
        return r;
    json_read_open(&read, in, "", err, "record", "bad_records",
                   "policy_tolerance", NULL);
    const json_t *record = json_read_object(&read, "record");
    bad = json_read_word(&read, "bad_records", words, bad);
    tolerance = json_read_real(&read, "policy_tolerance", 0, 1, tolerance);
    if (read.r < 0)
        return read.r;
    if (json_object_get(in, "record")) { /* null takes it away */
        json_decref(canonical);
        canonical = NULL;
    }
    if (record) {
        struct intake_rules *rules = NULL;
        r = intake_rules_make(record, bad, tolerance, &rules, err);
        if (r < 0)
            return r;
        canonical = record_desc_json(&rules->record);
        intake_rules_free(rules);
    }
    *ret_new = !id;
    r = id ? 0 : add(st, name, now_ms, &id, err);
    if (r < 0)
        return r;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_DESCRIBE);
        stmt_int(&q, ":id", id);
        if (canonical)
            stmt_json(&q, ":record", canonical);
        else
            stmt_null(&q, ":record");
        stmt_text(&q, ":bad_records", words[bad]);
        stmt_real(&q, ":tolerance", tolerance);
        r = (int)stmt_run(&q, err);
        if (r < 0)
            return r;
    }
    store_notify(st, NOTIFY_DATASET);
    return txn_commit(&txn, err);
}

/* ---- shards ---- */

/* `checked` is the digest of what its records must look like now, or NULL. */
static json_t *shard_row(const struct stmt *q, const char *checked)
{
    json_t *o = json_pack("{ss sI sI sI ss so ss sI}", "name", col_text(q, 0),
                          "bytes", col_int(q, 1), "records", col_int(q, 2),
                          "lines", col_int(q, 3), "sha256", col_text(q, 4),
                          "created_at", when_json(col_int(q, 5)), "form",
                          col_text(q, 6), "stored_bytes", col_int(q, 7));
    bool by_it = checked && !strcmp(col_text(q, 8), checked);
    if (checked)
        json_object_set_new(o, "checked", json_boolean(by_it));
    if (col_int(q, 9) && by_it) { /* else counted by one that holds no more */
        json_object_set_new(o, "bad", json_integer(col_int(q, 9)));
        json_object_set_new(o, "bad_first", col_json_or_null(q, 10));
    }
    return o;
}

static int shard_find(struct store *st, int64_t dataset, const char *name,
                      const char *checked, json_t **ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_FIND);
    stmt_int(&q, ":dataset", dataset);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = shard_row(&q, checked);
    return r;
}

int dataset_shard_sha256(struct store *st, const char *dataset,
                         const char *shard, char ret[DIGEST_HEX],
                         struct err *err)
{
    int64_t id = 0;
    int r = find(st, dataset, &id, err);
    if (r <= 0)
        return r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_FIND);
    stmt_int(&q, ":dataset", id);
    stmt_text(&q, ":name", shard);
    r = stmt_row(&q, err);
    if (r > 0)
        snprintf(ret, DIGEST_HEX, "%s", col_text(&q, 4));
    return r;
}

static int undoom(struct store *st, const char *path, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_DROP);
    stmt_text(&q, ":path", path);
    return (int)stmt_run(&q, err);
}

static void index_path(const char *sha256, char ret[80])
{
    snprintf(ret, 80, "index/%s", sha256);
}

/* By which description its records were looked at, and what was found. */
static void bind_checked(struct stmt *q, const struct upload *up)
{
    stmt_text(q, ":checked", up->plan.rules ? up->plan.rules->digest : NULL);
    stmt_int(q, ":bad", up->text->bad);
    if (up->text->bad)
        stmt_json(q, ":bad_first", up->text->bad_first);
    else
        stmt_null(q, ":bad_first");
}

static int shard_add(struct store *st, int64_t dataset, const char *name,
                     const struct upload *up, const char *path, int64_t now_ms,
                     struct err *err)
{
    const struct intake *text = up->text;
    struct stat sb;
    if (stat(path, &sb) < 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    AUTO_JSON json_t *blocks = json_array();
    for (size_t i = 0; i < text->n_blocks; i++)
        json_array_append_new(blocks, json_string(text->blocks[i]));

    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_ADD);
    stmt_int(&q, ":dataset", dataset);
    stmt_text(&q, ":name", name);
    stmt_int(&q, ":bytes", text->bytes);
    stmt_int(&q, ":lines", text->lines);
    stmt_int(&q, ":records", text->records);
    stmt_text(&q, ":sha256", text->sha256);
    stmt_json(&q, ":blocks", blocks);
    stmt_int(&q, ":mtime_ns",
             (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec);
    stmt_int(&q, ":inode", (int64_t)sb.st_ino);
    stmt_int(&q, ":now", now_ms);
    stmt_text(&q, ":form", up->framed ? "zstd" : "plain");
    stmt_int(&q, ":stored_bytes", up->stored_bytes);
    bind_checked(&q, up);
    return (int)stmt_run(&q, err);
}

/* What was sent again is what is there: what was found now is known of it. */
static int shard_checked(struct store *st, int64_t dataset, const char *name,
                         const struct upload *up, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_CHECKED);
    stmt_int(&q, ":dataset", dataset);
    stmt_text(&q, ":name", name);
    bind_checked(&q, up);
    return (int)stmt_run(&q, err);
}

/* The description may have been set or changed while the body came. */
static int check_rules(struct store *st, const char *dataset,
                       const struct upload *up, struct err *err)
{
    struct intake_rules *now = NULL;
    int r = dataset_rules(st, dataset, &now, err);
    if (r < 0)
        return r;
    const char *was = up->plan.rules ? up->plan.rules->digest : "";
    bool same = !strcmp(was, now ? now->digest : "");
    intake_rules_free(now);
    return same ? 0
                : err_set(err, ERR_CONFLICT,
                          "the description of dataset '%s' changed while the "
                          "records came: send them again",
                          dataset);
}

static int publish(struct store *st, int64_t dataset, const char *rel,
                   const char *shard, struct upload *up, int64_t now_ms,
                   struct err *err)
{
    char path[4400], index[80];
    snprintf(path, sizeof(path), "%s/%s", store_dir(st), rel);
    index_path(up->text->sha256, index);
    /* an earlier file of this name may wait there to be unlinked */
    int r = undoom(st, rel, err);
    if (r >= 0)
        r = undoom(st, index, err);
    if (r >= 0)
        r = upload_publish(up, store_dir(st), path, err);
    if (r >= 0)
        r = shard_add(st, dataset, shard, up, path, now_ms, err);
    return r;
}

int dataset_put(struct store *st, const char *dataset, const char *shard,
                struct upload *up, bool only_new, int64_t now_ms, bool *ret_new,
                json_t **ret, struct err *err)
{
    int r = dataset_name_check(dataset, "dataset", err);
    if (r >= 0)
        r = dataset_name_check(shard, "shard", err);
    if (r < 0)
        return r;
    char rel[300];
    snprintf(rel, sizeof(rel), "datasets/%s/%s", dataset, shard);
    const char *checked = up->plan.rules ? up->plan.rules->digest : NULL;

    int64_t id = 0;
    AUTO_JSON json_t *old = NULL;
    r = find(st, dataset, &id, err);
    if (r > 0)
        r = shard_find(st, id, shard, checked, &old, err);
    if (r < 0)
        return r;
    if (old && only_new)
        return err_set(err, ERR_PRECONDITION,
                       "shard '%s' of dataset '%s' exists", shard, dataset);
    if (old) {
        if (strcmp(json_string_value(json_object_get(old, "sha256")),
                   up->text->sha256))
            return err_set(err, ERR_CONFLICT,
                           "shard '%s' of dataset '%s' exists with other "
                           "bytes; upload them under another name",
                           shard, dataset);
        *ret_new = false;
        r = checked ? shard_checked(st, id, shard, up, err) : 0;
        return r < 0 ? r : shard_find(st, id, shard, checked, ret, err);
    }

    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = check_rules(st, dataset, up, err);
    if (r >= 0 && !id)
        r = add(st, dataset, now_ms, &id, err);
    if (r >= 0)
        r = publish(st, id, rel, shard, up, now_ms, err);
    if (r >= 0)
        r = shard_find(st, id, shard, checked, ret, err);
    if (r < 0)
        return r;
    *ret_new = true;
    store_notify(st, NOTIFY_DATASET);
    return txn_commit(&txn, err);
}

int dataset_append(struct store *st, const char *dataset, struct upload *up,
                   int64_t now_ms, json_t **ret, struct err *err)
{
    if (!up->text->records)
        return err_set(err, ERR_INVALID, "the body holds no record");
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int64_t id = 0;
    int r = dataset_name_check(dataset, "dataset", err);
    if (r >= 0)
        r = txn_begin(&txn, st, err);
    if (r >= 0)
        r = find(st, dataset, &id, err);
    if (r == 0)
        r = add(st, dataset, now_ms, &id, err);
    char shard[64];
    bool free_name = false;
    while (r >= 0 && !free_name) { /* somebody may have put one of that name */
        char sha256[DIGEST_HEX];
        {
            CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_APPEND);
            stmt_int(&q, ":id", id);
            r = stmt_row(&q, err);
            if (r > 0)
                snprintf(shard, sizeof(shard), "records-%012" PRId64 ".jsonl",
                         col_int(&q, 0));
        }
        if (r > 0)
            r = dataset_shard_sha256(st, dataset, shard, sha256, err);
        free_name = r == 0;
    }
    bool made;
    if (r >= 0)
        r = dataset_put(st, dataset, shard, up, true, now_ms, &made, ret, err);
    return r < 0 ? r : txn_commit(&txn, err);
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
    struct intake_rules *rules = NULL;
    char checked[DIGEST_HEX] = "";
    int64_t id = 0;
    int r = find(st, name, &id, err);
    if (r <= 0)
        return r < 0 ? r : not_found(name, err);
    r = dataset_rules(st, name, &rules, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *record = NULL;
    bool skip = false;
    double tolerance = 0;
    if (rules) {
        strcpy(checked, rules->digest);
        record = record_desc_json(&rules->record);
        skip = rules->skip;
        tolerance = rules->policy_tolerance;
        intake_rules_free(rules);
    }
    AUTO_JSON json_t *shards = json_array();
    int64_t bytes = 0, records = 0, bad = 0, stored = 0;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_LIST);
        stmt_int(&q, ":dataset", id);
        while ((r = stmt_row(&q, err)) > 0) {
            json_array_append_new(shards,
                                  shard_row(&q, record ? checked : NULL));
            bytes += col_int(&q, 1);
            records += col_int(&q, 2);
            stored += col_int(&q, 7);
            if (!strcmp(col_text(&q, 8), checked))
                bad += col_int(&q, 9);
        }
    }
    if (r < 0)
        return r;
    json_t *out = json_pack("{ss sI sI sI}", "name", name, "bytes", bytes,
                            "stored_bytes", stored, "records", records);
    if (record) {
        json_object_set_new(out, "bad", json_integer(bad));
        json_object_set(out, "record", record);
        json_object_set_new(out, "bad_records",
                            json_string(skip ? "skip" : "fail"));
        json_object_set_new(out, "policy_tolerance", json_real(tolerance));
    }
    json_object_set(out, "shards", shards);
    *ret = out;
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
    r = shard_find(st, id, shard, NULL, &row, err);
    if (r <= 0)
        return r < 0 ? r : no_shard(dataset, shard, err);
    snprintf(ret->path, sizeof(ret->path), "%s/datasets/%s/%s", store_dir(st),
             dataset, shard);
    snprintf(ret->sha256, sizeof(ret->sha256), "%s",
             json_string_value(json_object_get(row, "sha256")));
    snprintf(ret->form, sizeof(ret->form), "%s",
             json_string_value(json_object_get(row, "form")));
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

static int doom(struct store *st, const char *rel, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DOOMED_ADD);
    stmt_text(&q, ":path", rel);
    return (int)stmt_run(&q, err);
}

static int text_used(struct store *st, const char *sha256, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_TEXT_USED);
    stmt_text(&q, ":sha256", sha256);
    return stmt_row(&q, err);
}

int dataset_doom_index(struct store *st, const char *sha256, struct err *err)
{
    char rel[80];
    index_path(sha256, rel);
    int r = text_used(st, sha256, err);
    return r == 0 ? doom(st, rel, err) : r < 0 ? r : 0;
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
        char sha256[DIGEST_HEX];
        r = dataset_shard_sha256(st, dataset, shard, sha256, err);
        if (r <= 0)
            return r < 0 ? r : no_shard(dataset, shard, err);
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
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(all, "shards"), i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (shard && strcmp(name, shard))
            continue;
        char rel[300];
        snprintf(rel, sizeof(rel), "datasets/%s/%s", dataset, name);
        r = doom(st, rel, err);
        if (r >= 0)
            r = dataset_doom_index(
                st, json_string_value(json_object_get(row, "sha256")), err);
        if (r < 0)
            return r;
    }
    store_notify(st, NOTIFY_DATASET);
    return txn_commit(&txn, err);
}

/* Look through DIR/datasets for the file of that inode, and unlink it when no
 * row names it. */
static int sweep_inode(struct store *st, ino_t inode, struct err *err)
{
    char root[4200];
    int r = 0, n = 0;
    snprintf(root, sizeof(root), "%s/datasets", store_dir(st));
    DIR *sets = opendir(root);
    for (struct dirent *set; sets && r >= 0 && (set = readdir(sets));) {
        int fd = *set->d_name == '.'
                     ? -1
                     : openat(dirfd(sets), set->d_name,
                              O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *shards = fd < 0 ? NULL : fdopendir(fd);
        if (fd >= 0 && !shards)
            close(fd);
        for (struct dirent *e; shards && r >= 0 && (e = readdir(shards));) {
            struct stat sb;
            char sha256[DIGEST_HEX];
            if (fstatat(fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) < 0 ||
                !S_ISREG(sb.st_mode) || sb.st_ino != inode)
                continue;
            r = dataset_shard_sha256(st, set->d_name, e->d_name, sha256, err);
            if (r == 0 && unlinkat(fd, e->d_name, 0) == 0)
                n++;
        }
        if (shards)
            closedir(shards);
        if (n && r >= 0)
            unlinkat(dirfd(sets), set->d_name, AT_REMOVEDIR); /* if empty */
    }
    if (sets)
        closedir(sets);
    return r < 0 ? r : n;
}

int dataset_sweep_published(struct store *st, struct err *err)
{
    char folder[4200];
    int r = 0, n = 0;
    snprintf(folder, sizeof(folder), "%s/tmp", store_dir(st));
    DIR *d = opendir(folder);
    for (struct dirent *e; d && r >= 0 && (e = readdir(d));) {
        struct stat sb;
        if (strncmp(e->d_name, "upload-", 7) ||
            fstatat(dirfd(d), e->d_name, &sb, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(sb.st_mode))
            continue;
        r = sweep_inode(st, sb.st_ino, err);
        if (r >= 0) {
            unlinkat(dirfd(d), e->d_name, 0);
            n += r;
        }
    }
    if (d)
        closedir(d);
    return r < 0 ? r : n;
}

int dataset_sweep_index(struct store *st, struct err *err)
{
    char folder[4200];
    snprintf(folder, sizeof(folder), "%s/index", store_dir(st));
    DIR *d = opendir(folder);
    if (!d)
        return errno == ENOENT
                   ? 0
                   : err_set(err, ERR_IO, "%s: %s", folder, strerror(errno));
    int r = 0, n = 0;
    for (struct dirent *e; r >= 0 && (e = readdir(d));) {
        if (*e->d_name == '.')
            continue;
        r = text_used(st, e->d_name, err);
        if (r == 0 && unlinkat(dirfd(d), e->d_name, 0) == 0)
            n++;
    }
    closedir(d);
    return r < 0 ? r : n;
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
        if (!strncmp(json_string_value(rel), "datasets/", 9)) {
            *strrchr(path, '/') = '\0';
            rmdir(path); /* the dataset's folder, once it is empty */
        }
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
