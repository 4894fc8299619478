#include "server/snapshot.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "schema/cleanup.h"
#include "schema/line_index.h"
#include "schema/unpack.h"
#include "schema/wire.h"
#include "server/dataset.h"
#include "server/root.h"
#include "server/root_part.h"
#include "server/uses.h"

int64_t snapshot_count_at_once = 1000000;

void snapshot_release(struct snapshot *s)
{
    json_decref(s->data);
    *s = (struct snapshot){0};
}

bool snapshot_needs_index(const struct spec *spec)
{
    return spec->training.shuffle.mode == SHUFFLE_GLOBAL ||
           spec->training.validation.fraction > 0;
}

int64_t snapshot_steps(const struct spec *spec, int64_t records, int64_t take)
{
    int64_t batch = spec->training.effective_batch;
    if (take < 0 || records == 0 || take / records >= spec->training.epochs)
        return spec_steps(spec, records);
    return take / records * ((records + batch - 1) / batch) +
           (take % records + batch - 1) / batch;
}

int snapshot_check(struct store *st, const struct spec *spec, struct err *err)
{
    int r = spec->data.root ? root_check(spec->data.root, err)
                            : dataset_exists(st, spec->data.dataset, err);
    const char *other = spec->training.validation.dataset;
    if (r < 0 || !other)
        return r;
    r = dataset_exists(st, other, err);
    if (r == ERR_INVALID)
        snprintf(err->pointer, sizeof(err->pointer),
                 "/training/validation/dataset");
    return r;
}

/* ---- rows ---- */

/* The columns that SHARD_FREEZE and ROOT_FILE_GET share. */
static json_t *shard_json(const struct stmt *q, const char *path)
{
    return json_pack("{ss ss ss sI sI sI sI sI si so ss}", "name",
                     col_text(q, 0), "path", path, "form", col_text(q, 6),
                     "bytes", col_int(q, 1), "stored_bytes", col_int(q, 7),
                     "records", col_int(q, 2), "mtime_ns", col_int(q, 3),
                     "inode", col_int(q, 4), "block_bytes", WIRE_BLOCK_BYTES,
                     "blocks", col_json(q, 5), "sha256", col_text(q, 8));
}

static int dataset_id(struct store *st, const char *name, int64_t *ret,
                      struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_FIND);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r > 0)
        *ret = col_int(&q, 0);
    return r < 0 ? r : 0;
}

static json_t *names_of(const json_t *survey)
{
    const json_t *list = json_object_get(survey, "shards");
    if (!list)
        return NULL;
    json_t *set = json_object();
    size_t i;
    json_t *name;
    json_array_foreach((json_t *)list, i, name)
        json_object_set_new(set, json_string_value(name), json_true());
    return set;
}

static int dataset_rows(struct store *st, const char *dataset, const char *glob,
                        const json_t *survey, json_t *to, struct err *err)
{
    int64_t id = 0;
    int r = dataset_id(st, dataset, &id, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *only = names_of(survey);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SHARD_FREEZE);
    stmt_int(&q, ":dataset", id);
    while ((r = stmt_row(&q, err)) > 0) {
        const char *name = col_text(&q, 0);
        if ((glob && fnmatch(glob, name, 0)) ||
            (only && !json_object_get(only, name)))
            continue;
        char path[300];
        snprintf(path, sizeof(path), "datasets/%s/%s", dataset, name);
        json_array_append_new(to, shard_json(&q, path));
    }
    return r;
}

/* A copy's own size, time and inode are what a worker will find. */
static int stat_copy(struct store *st, json_t *shard, struct err *err)
{
    AUTO_FREE char *path = NULL;
    struct stat sb;
    const char *rel = json_string_value(json_object_get(shard, "path"));
    const char *name = json_string_value(json_object_get(shard, "name"));
    if (asprintf(&path, "%s/%s", store_dir(st), rel) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (stat(path, &sb) < 0)
        return root_blame(err, name, 0, "is missing: its copy %s is gone",
                          path);
    json_object_set_new(shard, "stored_bytes", json_integer(sb.st_size));
    json_object_set_new(shard, "mtime_ns", json_integer(root_mtime_ns(&sb)));
    json_object_set_new(shard, "inode", json_integer((json_int_t)sb.st_ino));
    return 0;
}

/* 1: it was read, and holds a record. */
static int root_row(struct store *st, const char *root, const char *name,
                    json_t *to, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_ROOT_FILE_GET);
    stmt_text(&q, ":root", root);
    stmt_text(&q, ":name", name);
    int r = stmt_row(&q, err);
    if (r <= 0 || col_int(&q, 2) == 0)
        return r < 0 ? r : 0;
    bool copied = !col_null(&q, 9);
    json_t *shard = shard_json(&q, copied ? col_text(&q, 9) : name);
    json_array_append_new(to, shard);
    if (copied)
        r = stat_copy(st, shard, err);
    else
        json_object_set_new(shard, "root", json_string(root));
    return r < 0 ? r : 1;
}

static int root_rows(struct store *st, const struct data_spec *d,
                     const json_t *survey, json_t *to, struct err *err)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(survey, "shards"), i, name)
    {
        int r = root_row(st, d->root, json_string_value(name), to, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- what is kept for validation ---- */

int snapshot_count(const char *dir, const char *sha256, int64_t records,
                   double fraction, int64_t *ret, struct err *err)
{
    AUTO_FREE char *path = NULL;
    uint8_t sum[DIGEST_BYTES];
    struct line_index index;
    if (asprintf(&path, "%s/index/%s", dir, sha256) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a path");
    if (digest_parse(sha256, sum) < 0)
        return err_set(err, ERR_DB, "a shard's digest is no digest");
    int r = line_index_open(path, sum, records, &index, err);
    if (r == ERR_NOT_FOUND || r == ERR_CORRUPT)
        return 0;
    if (r < 0)
        return r;
    *ret = 0;
    if (fraction > 0)
        r = line_index_check(&index, 0, index.n, NULL, err);
    for (int64_t i = 0; r >= 0 && fraction > 0 && i < index.n; i++)
        *ret += line_is_held_out(index.v[i].hash, fraction);
    line_index_close(&index);
    return r >= 0;
}

/* 1: *ret is how many of a shard's records are held out; 0: its index must be
 * made, or too much must be read for that. */
static int held_out(struct store *st, const json_t *shard, double fraction,
                    const json_t *known, int64_t *entries, int64_t *ret,
                    struct err *err)
{
    const char *sha256 = json_string_value(json_object_get(shard, "sha256"));
    int64_t records = json_integer_value(json_object_get(shard, "records"));
    const json_t *count = json_object_get(known, sha256);
    if (count) {
        *ret = json_integer_value(count);
        return 1;
    }
    if (*entries + records > snapshot_count_at_once)
        return 0;
    *entries += records;
    return snapshot_count(store_dir(st), sha256, records, fraction, ret, err);
}

/* Name each shard's index, and count what is held out of it. 1, or 0: a survey
 * must come first. */
static int add_indexes(struct store *st, const struct spec *spec,
                       const json_t *survey, json_t *shards, struct err *err)
{
    double fraction = spec->training.validation.fraction;
    const json_t *known = json_object_get(survey, "held_out");
    int64_t entries = 0;
    size_t i;
    json_t *s;
    if (!snapshot_needs_index(spec))
        return 1;
    json_array_foreach(shards, i, s)
    {
        const char *sha256 = json_string_value(json_object_get(s, "sha256"));
        int64_t n = 0;
        int r = fraction > 0
                    ? held_out(st, s, fraction, known, &entries, &n, err)
                    : held_out(st, s, 0, known, &(int64_t){0}, &n, err);
        if (r <= 0)
            return r;
        char path[DIGEST_HEX + 8];
        snprintf(path, sizeof(path), "index/%s", sha256);
        json_object_set_new(s, "index", json_string(path));
        if (fraction > 0)
            json_object_set_new(s, "held_out", json_integer(n));
    }
    return 1;
}

int64_t snapshot_trained(const json_t *shard)
{
    return json_integer_value(json_object_get(shard, "records")) -
           json_integer_value(json_object_get(shard, "held_out"));
}

/* ---- weights ---- */

static double weight_of(const struct data_spec *d, const char *name)
{
    for (int i = 0; i < d->n_groups; i++)
        if (fnmatch(d->groups[i].match, name, 0) == 0)
            return d->groups[i].weight;
    return 1;
}

static void add_weights(const struct data_spec *d, json_t *shards)
{
    size_t i;
    json_t *s;
    json_array_foreach(shards, i, s)
    {
        const char *name = json_string_value(json_object_get(s, "name"));
        double w = weight_of(d, name);
        if (w != 1)
            json_object_set_new(s, "weight", json_real(w));
    }
}

static double shard_weight(const json_t *shard)
{
    const json_t *w = json_object_get(shard, "weight");
    return w ? json_real_value(w) : 1;
}

/* A group is all shards of one weight: wire.h. */
static int64_t epoch_records(const json_t *shards)
{
    double weights[DATA_GROUPS_MAX + 1];
    int64_t sums[DATA_GROUPS_MAX + 1], all = 0;
    int n = 0, g;
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)shards, i, s)
    {
        double w = shard_weight(s);
        for (g = 0; g < n && weights[g] != w; g++)
            ;
        if (g == n) {
            weights[n] = w;
            sums[n++] = 0;
        }
        sums[g] += snapshot_trained(s);
    }
    for (g = 0; g < n; g++)
        all += llround((double)sums[g] * weights[g]);
    return all;
}

/* ---- the whole ---- */

static json_t *identity_of(const json_t *shards)
{
    json_t *identity = json_array();
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)shards, i, s) json_array_append_new(
        identity,
        json_pack("[OOO]", json_object_get(s, "name"),
                  json_object_get(s, "bytes"), json_object_get(s, "blocks")));
    return identity;
}

/* A digest covers names, sizes and blocks; and what else chooses records, where
 * there is such. */
static void digest_all(const struct spec *spec, const struct snapshot *s,
                       char out[DIGEST_HEX])
{
    const json_t *shards = json_object_get(s->data, "shards");
    const json_t *validation = json_object_get(s->data, "validation");
    AUTO_JSON json_t *identity = identity_of(shards);
    AUTO_JSON json_t *more = json_object();
    if (spec->data.n_groups) {
        json_t *weights = json_array();
        size_t i;
        json_t *one;
        json_array_foreach((json_t *)shards, i, one)
            json_array_append_new(weights, json_real(shard_weight(one)));
        json_object_set_new(more, "weights", weights);
    }
    if (s->take >= 0)
        json_object_set_new(more, "take", json_integer(s->take));
    if (json_object_get(validation, "fraction"))
        json_object_set(more, "fraction",
                        json_object_get(validation, "fraction"));
    if (json_object_get(validation, "shards"))
        json_object_set_new(more, "validation",
                            identity_of(json_object_get(validation, "shards")));
    if (!json_object_size(more)) {
        digest_of_json(identity, out);
        return;
    }
    json_object_set(more, "shards", identity);
    digest_of_json(more, out);
}

static int add_validation(struct store *st, const struct spec *spec,
                          json_t *data, struct err *err)
{
    const char *other = spec->training.validation.dataset;
    double fraction = spec->training.validation.fraction;
    if (fraction > 0)
        json_object_set_new(data, "validation",
                            json_pack("{sf}", "fraction", fraction));
    if (!other)
        return 0;
    json_t *shards = json_array();
    json_object_set_new(data, "validation",
                        json_pack("{so}", "shards", shards));
    int r = dataset_rows(st, other, NULL, NULL, shards, err);
    if (r >= 0 && json_array_size(shards) == 0)
        r = err_at(err, ERR_INVALID, "/training/validation/dataset",
                   "dataset '%s' has no shard", other);
    return r;
}

static int none_there(const struct data_spec *d, struct err *err)
{
    if (d->root)
        return root_none(d, err);
    return err_at(err, ERR_INVALID,
                  d->shards_glob ? "/data/shards" : "/data/dataset",
                  "dataset '%s' has no shard%s%s", d->dataset,
                  d->shards_glob ? " that matches " : "",
                  d->shards_glob ? d->shards_glob : "");
}

/* Files are there, but none with a line that has ended. */
static int none_yet(const json_t *survey, struct err *err)
{
    const json_t *names = json_object_get(survey, "shards");
    const char *first = json_string_value(json_array_get(names, 0));
    size_t others = json_array_size(names) - 1;
    char more[48] = "";
    if (others)
        snprintf(more, sizeof(more), ", nor do the %zu others", others);
    return root_blame(err, first, 0,
                      "is empty: it holds no record that ends with a "
                      "newline%s",
                      more);
}

static int refuse_empty(const json_t *shards, struct err *err)
{
    size_t i;
    json_t *s;
    json_array_foreach((json_t *)shards, i, s)
    {
        const char *name = json_string_value(json_object_get(s, "name"));
        if (json_integer_value(json_object_get(s, "records")))
            continue;
        err_set(err, ERR_DATA, "shard %s is empty: it holds no record", name);
        snprintf(err->shard, sizeof(err->shard), "%s", name);
        return ERR_DATA;
    }
    return 0;
}

static int nothing_left(const struct spec *spec, struct err *err)
{
    return err_at(err, ERR_INVALID,
                  spec->data.n_groups ? "/data/groups"
                                      : "/training/validation/fraction",
                  "no record is left to train on: %s",
                  spec->data.n_groups ? "the groups' weights leave none"
                                      : "all are held out for validation");
}

/* What a survey met. */
static int survey_error(const json_t *e, struct err *err)
{
    const char *pointer = json_string_value(json_object_get(e, "pointer"));
    const char *shard = json_string_value(json_object_get(e, "shard"));
    int code = (int)json_integer_value(json_object_get(e, "code"));
    err_set(err, code, "%s", json_string_value(json_object_get(e, "detail")));
    snprintf(err->pointer, sizeof(err->pointer), "%s", pointer ? pointer : "");
    snprintf(err->shard, sizeof(err->shard), "%s", shard ? shard : "");
    err->offset = json_integer_value(json_object_get(e, "offset"));
    return code;
}

static void keep_last(const struct data_spec *d, json_t *shards)
{
    while (d->shards_last > 0 &&
           json_array_size(shards) > (size_t)d->shards_last)
        json_array_remove(shards, 0);
}

int snapshot_rows(struct store *st, const struct spec *spec, json_t *names,
                  json_t *shards, struct err *err)
{
    const struct data_spec *d = &spec->data;
    if (d->root) {
        AUTO_JSON json_t *survey = json_pack("{sO}", "shards", names);
        return root_rows(st, d, survey, shards, err);
    }
    int r = dataset_rows(st, d->dataset, d->shards_glob, NULL, shards, err);
    if (r < 0)
        return r;
    keep_last(d, shards);
    size_t i;
    json_t *s;
    json_array_foreach(shards, i, s)
        json_array_append(names, json_object_get(s, "name"));
    return 0;
}

int snapshot_refused(const json_t *survey, struct err *err)
{
    const json_t *error = json_object_get(survey, "error");
    return error ? survey_error(error, err) : 0;
}

int snapshot_make(struct store *st, const struct spec *spec, int64_t job,
                  const json_t *survey, struct snapshot *ret, struct err *err)
{
    const struct data_spec *d = &spec->data;
    int r = snapshot_check(st, spec, err);
    if (r < 0)
        return r;
    r = snapshot_refused(survey, err);
    if (r < 0)
        return r;
    if (d->root && !survey)
        return 0;
    CLEANUP(snapshot_release) struct snapshot s = {.data = json_object()};
    json_t *shards = json_array();
    json_object_set_new(s.data, "shards", shards);
    r = d->root
            ? root_rows(st, d, survey, shards, err)
            : dataset_rows(st, d->dataset, d->shards_glob, survey, shards, err);
    if (r < 0)
        return r;
    keep_last(d, shards);
    if (json_array_size(shards) == 0 && d->root && d->max_uses > 0) {
        r = uses_wait(st, spec, job, ret, err);
        return r < 0 ? r : 1;
    }
    if (json_array_size(shards) == 0)
        return json_array_size(json_object_get(survey, "shards")) && d->root
                   ? none_yet(survey, err)
                   : none_there(d, err);
    r = refuse_empty(shards, err);
    if (r >= 0)
        r = add_indexes(st, spec, survey, shards, err);
    if (r <= 0)
        return r;
    add_weights(d, shards);
    s.records = epoch_records(shards);
    if (s.records == 0)
        return nothing_left(spec, err);
    r = add_validation(st, spec, s.data, err);
    if (r >= 0)
        r = uses_fill(st, spec, job, shards, &s, err);
    if (r < 0)
        return r;
    s.steps = snapshot_steps(spec, s.records, s.take);
    json_object_set_new(s.data, "records", json_integer(s.records));
    if (s.take >= 0)
        json_object_set_new(s.data, "take", json_integer(s.take));
    digest_all(spec, &s, s.digest);
    json_object_set_new(s.data, "digest", json_string(s.digest));
    *ret = s;
    s = (struct snapshot){0};
    return 1;
}

/* ---- a dry run's ---- */

static int guess_root(struct store *st, const struct data_spec *d, json_t *to,
                      bool *ret_known, struct err *err)
{
    CLEANUP(root_files_release) struct root_files files = {0};
    int r = root_walk(d->root, d->match, 0, NULL, NULL, &files, err);
    for (size_t i = 0; i < files.n && r >= 0; i++) {
        const struct root_file *f = &files.v[i];
        bool known = false;
        r = root_is_known(st, d->root, f, false, &known, err);
        if (r >= 0 && known) {
            r = root_row(st, d->root, f->name, to, err);
            continue;
        }
        *ret_known = false;
        /* those that cannot be read from the middle are left out of a look */
        bool packed = packing_of_name(f->name) != PACKING_NONE;
        json_array_append_new(to,
                              json_pack("{ss ss ss ss sI sn}", "name", f->name,
                                        "path", f->name, "root", d->root,
                                        "form", packed ? "zstd" : "plain",
                                        "bytes", f->bytes, "records"));
    }
    return r < 0 ? r : 0;
}

int snapshot_guess(struct store *st, const struct spec *spec,
                   struct snapshot *ret, struct err *err)
{
    const struct data_spec *d = &spec->data;
    CLEANUP(snapshot_release) struct snapshot s = {.fresh = -1, .take = -1};
    int r = snapshot_check(st, spec, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *shards = json_array();
    bool known = true;
    r = d->root
            ? guess_root(st, d, shards, &known, err)
            : dataset_rows(st, d->dataset, d->shards_glob, NULL, shards, err);
    if (r < 0)
        return r;
    keep_last(d, shards);
    if (json_array_size(shards) == 0)
        return none_there(d, err);
    if (known) {
        AUTO_JSON json_t *names = json_array();
        size_t i;
        json_t *one;
        json_array_foreach(shards, i, one)
            json_array_append(names, json_object_get(one, "name"));
        AUTO_JSON json_t *survey = json_pack("{sO}", "shards", names);
        r = snapshot_make(st, spec, 0, survey, &s, err);
        if (r < 0)
            return r;
        known = r > 0;
    }
    if (!known) {
        s.records = s.steps = -1;
        s.data = json_pack("{sO}", "shards", shards);
    }
    *ret = s;
    s = (struct snapshot){0};
    return known;
}

/* ---- for the claim ---- */

void snapshot_place_one(const char *dir, json_t *shard)
{
    AUTO_FREE char *path = NULL;
    const char *root = json_string_value(json_object_get(shard, "root"));
    const char *rel = json_string_value(json_object_get(shard, "path"));
    const char *index = json_string_value(json_object_get(shard, "index"));
    int n = !root             ? asprintf(&path, "%s/%s", dir, rel)
            : root_path(root) ? asprintf(&path, "%s/%s", root_path(root), rel)
                              : asprintf(&path, "(data root %s)/%s", root, rel);
    if (n < 0) {
        path = NULL;
        return;
    }
    json_object_set_new(shard, "path", json_string(path));
    json_object_del(shard, "root");
    if (index) {
        AUTO_FREE char *at = NULL;
        if (asprintf(&at, "%s/%s", dir, index) < 0)
            at = NULL;
        else
            json_object_set_new(shard, "index", json_string(at));
    }
}

void snapshot_place(struct store *st, json_t *data)
{
    json_t *lists[] = {
        json_object_get(data, "shards"),
        json_object_get(json_object_get(data, "validation"), "shards")};
    size_t i;
    json_t *s;
    for (int l = 0; l < 2; l++)
        json_array_foreach(lists[l], i, s) snapshot_place_one(store_dir(st), s);
}
