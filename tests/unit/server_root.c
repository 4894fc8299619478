/* Folders that are read in place: what is found there, what it is frozen as. */
#include <fcntl.h>
#include <time.h>
#include <zlib.h>
#include <zstd.h>
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/seekable.h"
#include "server/frozen.h"
#include "server/lane.h"
#include "server/options.h"
#include "server/root.h"
#include "server/shard_text.h"
#include "server/snapshot.h"
#include "server/survey.h"
#include "server_fixture.h"

static struct data_root roots[1];
static char root_dir[80];

static int setup_root(void **state)
{
    if (setup(state) < 0)
        return -1;
    struct world *w = *state;
    char tmp[96];
    snprintf(tmp, sizeof(tmp), "%s/tmp", w->dir);
    mkdir(tmp, 0700);
    strcpy(root_dir, "/tmp/pawl-root-XXXXXX");
    if (!mkdtemp(root_dir))
        return -1;
    roots[0] = (struct data_root){(char *)"r", root_dir};
    root_list = (struct root_list){roots, 1};
    return 0;
}

static int teardown_root(void **state)
{
    nftw(root_dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
    root_list = (struct root_list){0};
    return teardown(state);
}

/* ---- files ---- */

static void path_of(const char *name, char out[256])
{
    snprintf(out, 256, "%s/%s", root_dir, name);
}

static void put_file(const char *name, const void *bytes, size_t len)
{
    char path[256];
    path_of(name, path);
    for (char *s = path + strlen(root_dir) + 1; (s = strchr(s, '/')); s++) {
        *s = 0;
        mkdir(path, 0700);
        *s = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *name, const char *text)
{
    put_file(name, text, strlen(text));
}

/* So long ago that nothing written now can bear the same time. */
static void age(const char *name, int64_t s)
{
    char path[256];
    path_of(name, path);
    struct timespec t[2] = {{.tv_sec = s}, {.tv_sec = s}};
    assert_int_equal(utimensat(AT_FDCWD, path, t, AT_SYMLINK_NOFOLLOW), 0);
}

static void put_gzip(const char *name, const char *text)
{
    char path[256];
    put_text(name, "");
    path_of(name, path);
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
    gzclose(f);
}

static void put_zstd(const char *name, const char *text)
{
    size_t n = strlen(text), cap = ZSTD_compressBound(n);
    AUTO_FREE char *out = malloc(cap);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    put_file(name, out, ZSTD_compress2(c, out, cap, text, n));
    ZSTD_freeCCtx(c);
}

static void put_frames(const char *name, const char *text)
{
    char path[256];
    struct err err;
    int64_t stored;
    struct seekable_writer *to = NULL;
    put_text(name, "");
    path_of(name, path);
    AUTO_FD int fd = open(path, O_WRONLY);
    assert_int_equal(seekable_writer_new(fd, &to, &err), 0);
    assert_int_equal(seekable_write(to, text, strlen(text), &err), 0);
    assert_int_equal(seekable_writer_end(to, &stored, &err), 0);
    seekable_writer_free(to);
}

static char *numbered(int from, int n)
{
    struct buf b = {0};
    for (int i = from; i < from + n; i++)
        buf_addf(&b, "{\"x\":[%d],\"v\":%d}\n", i % 8, i);
    return b.data;
}

/* ---- walking ---- */

static char *walk(struct world *w, const char *match)
{
    CLEANUP(root_files_release) struct root_files files = {0};
    struct buf b = {0};
    must(root_walk("r", match, 0, NULL, NULL, &files, &w->err));
    for (size_t i = 0; i < files.n; i++)
        buf_addf(&b, "%s ", files.v[i].name);
    return b.data ? b.data : strdup("");
}

static void names_are_found_at_any_depth_and_no_link_is_followed(void **state)
{
    struct world *w = *state;
    char path[256], outside[96];
    put_text("b.jsonl", "{}\n");
    put_text("a/z.jsonl.gz", "");
    put_text("a/b/c/x.jsonl.zst", "");
    put_text("a.jsonl", "{}\n");
    put_text("readme.txt", "");
    put_text("x.jsonl.tmp", "");
    put_text(".hidden.jsonl", "{}\n");
    put_text(".git/a.jsonl", "{}\n");
    snprintf(outside, sizeof(outside), "%s/outside", w->dir);
    mkdir(outside, 0700);
    path_of("out", path);
    assert_int_equal(symlink(outside, path), 0);
    snprintf(outside, sizeof(outside), "%s/outside/o.jsonl", w->dir);
    fclose(fopen(outside, "w"));
    path_of("o.jsonl", path);
    assert_int_equal(symlink(outside, path), 0);
    path_of("fifo.jsonl", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    AUTO_FREE char *all = walk(w, NULL), *some = walk(w, "a/*.zst");
    AUTO_FREE char *odd = walk(w, "*.txt"), *none = walk(w, "../*");
    assert_string_equal(all, "a.jsonl a/b/c/x.jsonl.zst a/z.jsonl.gz b.jsonl ");
    assert_string_equal(some, "a/b/c/x.jsonl.zst ");
    assert_string_equal(odd, "readme.txt ");
    assert_string_equal(none, "");

    struct stat st;
    assert_int_equal(root_open("r", "o.jsonl", &st, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "symbolic link"));
    assert_int_equal(root_open("r", "out/o.jsonl", &st, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "symbolic link"));
    assert_int_equal(root_open("r", "../x", &st, &w->err), ERR_DATA);
    assert_int_equal(root_open("r", "a/../b.jsonl", &st, &w->err), ERR_DATA);
    assert_int_equal(root_open("r", "fifo.jsonl", &st, &w->err), ERR_DATA);
    assert_string_equal(w->err.shard, "fifo.jsonl");
    AUTO_FD int fd = root_open("r", "a/z.jsonl.gz", &st, &w->err);
    must(fd);
}

static void a_name_that_no_json_can_carry_is_refused(void **state)
{
    struct world *w = *state;
    CLEANUP(root_files_release) struct root_files files = {0};
    put_text("a\xff.jsonl", "{}\n");
    assert_int_equal(root_walk("r", NULL, 0, NULL, NULL, &files, &w->err),
                     ERR_INVALID);
    must(root_walk("r", "b*", 0, NULL, NULL, &files, &w->err));
    assert_int_equal(files.n, 0);
}

static void an_unknown_root_says_which_there_are(void **state)
{
    struct world *w = *state;
    assert_int_equal(root_check("q", &w->err), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/root");
    assert_string_equal(w->err.text, "there is no data root 'q': there is r");
    root_list.n = 0;
    assert_int_equal(root_check("q", &w->err), ERR_INVALID);
    assert_non_null(strstr(w->err.text, "--data-root"));
}

/* ---- surveys ---- */

#define ROOT_SPEC(more)                                                        \
    "{\"cycles\": 0, \"data\": {\"root\": \"r\"" more                          \
    "}, \"training\": {\"effective_batch\": 4, \"epochs\": 1,"                 \
    " \"shuffle\": {\"mode\": \"global\"}}}"

static int64_t post(struct world *w, const char *spec)
{
    int64_t n, id = submit(w, spec);
    AUTO_JSON json_t *body = json_object();
    must(job_add_cycle(w->st, id, body, w->now, &n, &w->err));
    return id;
}

static int64_t open_cycle(struct world *w, int64_t job)
{
    struct cycle c;
    assert_int_equal(cycle_open(w->st, job, &c, &w->err), 1);
    return c.id;
}

/* What the errand does; the world's own connections rest meanwhile. */
static void surveys(struct world *w, int64_t cycle)
{
    struct lanes *lanes = NULL;
    world_close(w);
    must(lanes_new(w->dir, NULL, 1, &lanes, &w->err));
    must(survey_run(NULL, lanes, cycle, &w->err));
    lanes_stop(lanes);
    world_open(w);
}

/* The frozen data of the job's open cycle, after a survey. */
static json_t *frozen_data(struct world *w, int64_t job)
{
    json_t *data = NULL;
    int64_t cycle = open_cycle(w, job);
    surveys(w, cycle);
    expect_job(w, job, "queued", "waits for a worker");
    must(cycle_data(w->st, cycle, &data, &w->err));
    return data;
}

static const json_t *shard_at(const json_t *data, size_t i)
{
    return json_array_get(json_object_get(data, "shards"), i);
}

/* The text that the snapshot's shard has, read as a worker would. */
static void expect_text(struct world *w, const json_t *shard, const char *text)
{
    struct shard_text *t = NULL;
    size_t n = strlen(text);
    assert_int_equal(int_of(shard, "bytes"), n);
    must(shard_text_open(str_of(shard, "path"), str_of(shard, "form"),
                         (int64_t)n, &t, &w->err));
    AUTO_FREE char *got = malloc(n + 1);
    size_t at = 0;
    while (at < n) {
        int64_t k = shard_text_read(t, (int64_t)at, got + at, n - at, &w->err);
        must(k);
        at += (size_t)k;
    }
    assert_memory_equal(got, text, n);
    shard_text_close(t);
    struct stat sb;
    assert_int_equal(stat(str_of(shard, "path"), &sb), 0);
    assert_int_equal(int_of(shard, "stored_bytes"), sb.st_size);
    assert_int_equal(int_of(shard, "inode"), sb.st_ino);
    assert_int_equal(int_of(shard, "mtime_ns"),
                     sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec);
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_of(text, n, sum);
    digest_hex(sum, hex);
    assert_string_equal(str_of(shard, "sha256"), hex);
    struct line_index index;
    must(line_index_open(str_of(shard, "index"), sum, int_of(shard, "records"),
                         &index, &w->err));
    for (int64_t i = 0; i < index.n; i++)
        assert_int_equal(index.v[i].hash,
                         line_hash(text + line_entry_offset(&index.v[i]),
                                   (size_t)line_entry_length(&index.v[i])));
    line_index_close(&index);
}

static void every_form_is_frozen_as_its_text(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 40000), *more = numbered(7, 50);
    put_text("a.jsonl", text);
    put_gzip("b/b.jsonl.gz", text);
    put_zstd("c.jsonl.zst", more);
    put_frames("d.jsonl.zst", text);
    put_text("empty.jsonl", "");
    put_text("begun.jsonl", "{\"x\":[1],\"v\":1}");
    int64_t id = post(w, ROOT_SPEC(""));
    expect_job(w, id, "queued", "reads its data");
    AUTO_JSON json_t *data = frozen_data(w, id);
    assert_int_equal(json_array_size(json_object_get(data, "shards")), 4);
    assert_int_equal(int_of(data, "records"), 3 * 40000 + 50);
    static const char *const names[] = {"a.jsonl", "b/b.jsonl.gz",
                                        "c.jsonl.zst", "d.jsonl.zst"};
    for (size_t i = 0; i < 4; i++) {
        const json_t *s = shard_at(data, i);
        assert_string_equal(str_of(s, "name"), names[i]);
        assert_string_equal(str_of(s, "form"), i ? "zstd" : "plain");
        bool in_place = i == 0 || i == 3;
        assert_int_equal(
            !strncmp(str_of(s, "path"), root_dir, strlen(root_dir)), in_place);
        assert_null(json_object_get(s, "root"));
        expect_text(w, s, i == 2 ? more : text);
    }
    char tmp[96];
    snprintf(tmp, sizeof(tmp), "%s/tmp", w->dir);
    assert_int_equal(rmdir(tmp), 0); /* nothing was left there */
}

static void text_ends_with_its_last_line_and_grows(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 100), *both = numbered(0, 150);
    CLEANUP(buf_release) struct buf b = {0};
    buf_adds(&b, text);
    buf_adds(&b, "{\"x\":[1],\"v\":0.123"); /* under way */
    put_text("a.jsonl", b.data);
    put_frames("b.jsonl.zst", b.data);
    put_gzip("c.jsonl.gz", b.data);
    AUTO_JSON json_t *data = frozen_data(w, post(w, ROOT_SPEC("")));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(int_of(shard_at(data, i), "records"), 100);
        expect_text(w, shard_at(data, i), text);
    }
    put_text("a.jsonl", both);
    AUTO_JSON json_t *later = frozen_data(w, post(w, ROOT_SPEC("")));
    assert_int_equal(int_of(shard_at(later, 0), "records"), 150);
    expect_text(w, shard_at(later, 0), both);
    assert_string_not_equal(str_of(data, "digest"), str_of(later, "digest"));
    /* and the one before is what it was */
    const json_t *old = shard_at(data, 0);
    AUTO_FREE char *path = strdup(str_of(old, "path"));
    struct shard_text *t = NULL;
    must(shard_text_open(path, "plain", int_of(old, "bytes"), &t, &w->err));
    char got[4000];
    int64_t n = shard_text_read(t, 0, got, sizeof(got), &w->err);
    assert_memory_equal(got, text, (size_t)n);
    shard_text_close(t);
}

static int64_t rows(struct world *w, const char *what)
{
    char cmd[300];
    snprintf(cmd, sizeof(cmd), "sqlite3 %s/pawl.db \"%s\"", w->dir, what);
    FILE *f = popen(cmd, "r");
    long long n = -1;
    assert_int_equal(fscanf(f, "%lld", &n), 1);
    assert_int_equal(pclose(f), 0);
    return n;
}

static void what_did_not_change_is_not_read_again(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 100);
    put_text("a.jsonl", text);
    put_text("b.jsonl", text);
    age("a.jsonl", 1600000000);
    AUTO_JSON json_t *data = frozen_data(w, post(w, ROOT_SPEC("")));
    expect_text(w, shard_at(data, 0), text);
    /* one written a moment ago is not trusted: others may be, in that moment */
    assert_int_equal(rows(w, "select settled from root_files"
                             " where name = 'a.jsonl'"),
                     1);
    assert_int_equal(rows(w, "select settled from root_files"
                             " where name = 'b.jsonl'"),
                     0);
    /* other bytes of that size and time: who looks at them would see */
    text[6] = '7';
    put_text("a.jsonl", text);
    put_text("b.jsonl", text);
    age("a.jsonl", 1600000000);
    AUTO_JSON json_t *again = frozen_data(w, post(w, ROOT_SPEC("")));
    assert_string_equal(str_of(shard_at(again, 0), "sha256"),
                        str_of(shard_at(data, 0), "sha256"));
    assert_string_not_equal(str_of(shard_at(again, 1), "sha256"),
                            str_of(shard_at(data, 1), "sha256"));
    /* its time has changed */
    age("a.jsonl", 1600000001);
    AUTO_JSON json_t *third = frozen_data(w, post(w, ROOT_SPEC("")));
    expect_text(w, shard_at(third, 0), text);
}

static void what_went_is_forgotten_with_its_copy(void **state)
{
    struct world *w = *state;
    char path[256], copy[300];
    AUTO_FREE char *text = numbered(0, 100), *other = numbered(1, 100);
    put_gzip("a.jsonl.gz", text);
    put_text("b.jsonl", other);
    int64_t id = post(w, ROOT_SPEC(""));
    AUTO_JSON json_t *data = frozen_data(w, id);
    snprintf(copy, sizeof(copy), "%s", str_of(shard_at(data, 0), "path"));
    assert_int_equal(access(copy, F_OK), 0);
    path_of("a.jsonl.gz", path);
    assert_int_equal(unlink(path), 0);
    AUTO_JSON json_t *later = frozen_data(w, post(w, ROOT_SPEC("")));
    assert_int_equal(json_array_size(json_object_get(later, "shards")), 1);
    assert_int_equal(rows(w, "select count(*) from root_files"), 1);
    /* a job that has not ended reads it still */
    must(root_sweep_copies(w->st, &w->err));
    assert_int_equal(access(copy, F_OK), 0);
    must(job_cancel(w->st, id, w->now, &w->err));
    assert_int_equal(root_sweep_copies(w->st, &w->err), 1);
    assert_int_not_equal(access(copy, F_OK), 0);
}

static void a_copy_that_is_gone_is_made_again(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 100);
    put_gzip("a.jsonl.gz", text);
    age("a.jsonl.gz", 1600000000);
    AUTO_JSON json_t *data = frozen_data(w, post(w, ROOT_SPEC("")));
    assert_int_equal(unlink(str_of(shard_at(data, 0), "path")), 0);
    AUTO_JSON json_t *again = frozen_data(w, post(w, ROOT_SPEC("")));
    expect_text(w, shard_at(again, 0), text);
}

static void expect_failed(struct world *w, const char *shard, const char *has)
{
    int64_t id = post(w, ROOT_SPEC(""));
    surveys(w, open_cycle(w, id));
    expect_job(w, id, "failed", has);
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(json_object_get(j, "error"), "shard"), shard);
    assert_string_equal(str_of(json_object_get(j, "error"), "code"),
                        *shard ? "data" : "invalid");
}

static void what_cannot_be_read_ends_the_job_and_is_named(void **state)
{
    AUTO_FREE char *text = numbered(0, 5000);
    struct world *w = *state;
    char path[256];
    expect_failed(w, "", "no file that matches");
    put_gzip("a.jsonl.gz", text);
    path_of("a.jsonl.gz", path);
    assert_int_equal(truncate(path, 2000), 0);
    expect_failed(w, "a.jsonl.gz", "not complete yet");
    put_text("a.jsonl.gz", "{}\n");
    expect_failed(w, "a.jsonl.gz", "is named .gz, but is not");
    unlink(path);
    put_zstd("s.jsonl.zst", text);
    path_of("s.jsonl.zst", path);
    FILE *f = fopen(path, "r+");
    fseek(f, 900, SEEK_SET);
    fputs("XXXXXXXX", f);
    fclose(f);
    expect_failed(w, "s.jsonl.zst", "damaged");
    unlink(path);
    put_text("a.jsonl", "no line has ended");
    expect_failed(w, "a.jsonl", "holds no record that ends");
    put_text("b.jsonl", "\xef\xbb\xbf\n \n\t\r\n");
    expect_failed(w, "a.jsonl", "nor do the 1 others");
}

static void the_last_ones_alone_are_read(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 10);
    put_text("2024-01.jsonl.gz", "this is none");
    put_text("2024-02.jsonl", text);
    put_text("2024-03.jsonl", text);
    AUTO_JSON json_t *data =
        frozen_data(w, post(w, ROOT_SPEC(", \"shards\": {\"last\": 2}")));
    assert_int_equal(json_array_size(json_object_get(data, "shards")), 2);
    assert_string_equal(str_of(shard_at(data, 0), "name"), "2024-02.jsonl");
    assert_int_equal(rows(w, "select count(*) from root_files"), 2);
}

static void uses_are_counted_of_what_grew(void **state)
{
    struct world *w = *state;
    struct worker k = {.name = "k"};
    const char *spec = ROOT_SPEC(", \"max_uses\": 1");
    AUTO_FREE char *ten = numbered(0, 10), *more = numbered(0, 16);
    put_text("a.jsonl", ten);
    int64_t n, id = post(w, spec);
    AUTO_JSON json_t *body = json_object();
    surveys(w, open_cycle(w, id));
    assert_int_equal(claims(w, &k), 1);
    assert_int_equal(int_of(json_object_get(k.claim, "data"), "take"), 10);
    must(saves(w, &k, 3, FINISHED, NULL));
    must(job_add_cycle(w->st, id, body, w->now, &n, &w->err));
    surveys(w, open_cycle(w, id));
    expect_job(w, id, "queued", "waits for 4 new records (max_uses)");
    put_text("a.jsonl", more);
    surveys(w, open_cycle(w, id)); /* as the tick will, in a while */
    expect_job(w, id, "queued", "waits for a worker");
    assert_int_equal(claims(w, &k), 1);
    assert_int_equal(int_of(json_object_get(k.claim, "data"), "take"), 6);
    must(saves(w, &k, 2, FINISHED, NULL));
    /* another one of that name is all new, however small */
    AUTO_FREE char *other = numbered(3, 17);
    put_text("a.jsonl", other);
    must(job_add_cycle(w->st, id, body, w->now, &n, &w->err));
    surveys(w, open_cycle(w, id));
    assert_int_equal(claims(w, &k), 1);
    assert_int_equal(int_of(json_object_get(k.claim, "data"), "take"), 17);
    worker_drop(&k);
}

static void a_dataset_is_surveyed_where_much_must_be_counted(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *a = numbered(0, 300), *b = numbered(300, 100);
    must(try_shard(w, "set", "a", a));
    must(try_shard(w, "set", "b", b));
    const char *spec = "{\"cycles\": 0, \"training\": {\"effective_batch\": 4,"
                       " \"validation\": {\"fraction\": 0.25}}}";
    int64_t id = post(w, spec);
    AUTO_JSON json_t *at_once = NULL;
    must(cycle_data(w->st, open_cycle(w, id), &at_once, &w->err));
    snapshot_count_at_once = 350;
    int64_t later = post(w, spec);
    expect_job(w, later, "queued", "reads its data");
    int64_t cycle = open_cycle(w, later);
    char path[300];
    snprintf(path, sizeof(path), "%s", str_of(shard_at(at_once, 1), "index"));
    assert_int_equal(unlink(path), 0);
    surveys(w, cycle);
    snapshot_count_at_once = 1000000;
    expect_job(w, later, "queued", "waits for a worker");
    AUTO_JSON json_t *data = NULL;
    must(cycle_data(w->st, cycle, &data, &w->err));
    assert_true(json_equal(data, at_once));
    assert_int_equal(access(path, F_OK), 0);
}

static void a_survey_that_nobody_waits_for_does_nothing(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *text = numbered(0, 10);
    put_text("a.jsonl", text);
    int64_t id = post(w, ROOT_SPEC("")), cycle = open_cycle(w, id);
    must(job_cancel(w->st, id, w->now, &w->err));
    surveys(w, cycle);
    expect_job(w, id, "canceled", NULL);
    surveys(w, 12345);
    assert_int_equal(rows(w, "select count(*) from root_files"), 0);
}

/* ---- for a worker elsewhere ---- */

static void a_shard_is_opened_with_a_workers_checks(void **state)
{
    struct world *w = *state;
    char path[256], other[256];
    struct shard_text *t = NULL;
    AUTO_FREE char *text = numbered(0, 100);
    put_text("x/a.jsonl", text);
    put_frames("b.jsonl.zst", text);
    AUTO_JSON json_t *data = frozen_data(w, post(w, ROOT_SPEC("")));
    struct worker k = {.name = "k"};
    assert_int_equal(claims(w, &k), 1);
    CLEANUP(frozen_release) struct frozen a = {0}, b = {0}, none = {0};
    must(frozen_find(w->st, k.id, 0, &b, &w->err));
    must(frozen_find(w->st, k.id, 1, &a, &w->err));
    assert_string_equal(a.name, "x/a.jsonl");
    assert_int_equal(frozen_find(w->st, k.id, 2, &none, &w->err),
                     ERR_NOT_FOUND);
    assert_int_equal(frozen_find(w->st, 99, 0, &none, &w->err), ERR_NOT_FOUND);
    must(frozen_open(w->dir, &a, &t, &w->err));
    shard_text_close(t);
    /* longer is fine */
    AUTO_FREE char *longer = numbered(0, 120);
    put_text("x/a.jsonl", longer);
    must(frozen_open(w->dir, &a, &t, &w->err));
    assert_int_equal(shard_text_bytes(t), strlen(text));
    shard_text_close(t);
    put_text("x/a.jsonl", "{}\n");
    assert_int_equal(frozen_open(w->dir, &a, &t, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "has shrunk: it ends at offset 3"));
    assert_string_equal(w->err.shard, "x/a.jsonl");
    assert_int_equal(w->err.offset, 3);
    path_of("x/a.jsonl", path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(frozen_open(w->dir, &a, &t, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "is missing"));
    put_text("y/a.jsonl", text);
    path_of("x", path);
    path_of("y", other);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink(other, path), 0);
    assert_int_equal(frozen_open(w->dir, &a, &t, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "symbolic link"));
    put_text("b.jsonl.zst", text);
    assert_int_equal(frozen_open(w->dir, &b, &t, &w->err), ERR_DATA);
    assert_non_null(strstr(w->err.text, "was edited"));
    worker_drop(&k);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup_root, teardown_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(names_are_found_at_any_depth_and_no_link_is_followed),
        TEST(a_name_that_no_json_can_carry_is_refused),
        TEST(an_unknown_root_says_which_there_are),
        TEST(every_form_is_frozen_as_its_text),
        TEST(text_ends_with_its_last_line_and_grows),
        TEST(what_did_not_change_is_not_read_again),
        TEST(what_went_is_forgotten_with_its_copy),
        TEST(a_copy_that_is_gone_is_made_again),
        TEST(what_cannot_be_read_ends_the_job_and_is_named),
        TEST(the_last_ones_alone_are_read),
        TEST(uses_are_counted_of_what_grew),
        TEST(a_dataset_is_surveyed_where_much_must_be_counted),
        TEST(a_survey_that_nobody_waits_for_does_nothing),
        TEST(a_shard_is_opened_with_a_workers_checks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
