/* What a resume costs, in bytes: as much after ten million records as after a
 * thousand, wherever the text is and in whatever order it is read. */
#include "tests/unit/worker_data.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/seekable.h"
#include "worker/feed.h"
#include "worker/shard.h"

#define RECORDS 10000000
#define LINE 44
#define PER_BLOCK 20000 /* lines: a block ends with one */
#define BLOCK_LEN ((size_t)PER_BLOCK * LINE)
#define BLOCKS (RECORDS / PER_BLOCK)
#define BUFFER 1000

/* One block of lines that do not compress away, of which all others are
 * copies. */
struct text {
    char *block;
    uint64_t hash[PER_BLOCK];
    char hex[DIGEST_HEX];
};

static void make_text(struct text *t)
{
    unsigned random = 1;
    t->block = malloc(BLOCK_LEN + 1);
    assert_non_null(t->block);
    for (int i = 0; i < PER_BLOCK; i++) {
        random = random * 1664525u + 1013904223u;
        char *line = t->block + (size_t)i * LINE;
        int n =
            snprintf(line, LINE + 1,
                     "{\"x\":[%05u],\"moves\":[[%u]],\"pi\":[1],\"z\":0}\n",
                     10000 + (random >> 8) % 90000, 10 + (random >> 4) % 54);
        assert_int_equal(n, LINE);
        t->hash[i] = line_hash(line, LINE - 1);
    }
    uint8_t sum[DIGEST_BYTES];
    digest_of(t->block, BLOCK_LEN, sum);
    digest_hex(sum, t->hex);
}

static void write_plain(int fd, const struct text *t)
{
    for (int b = 0; b < BLOCKS; b++)
        assert_int_equal(write(fd, t->block, BLOCK_LEN), (ssize_t)BLOCK_LEN);
}

static void write_frames(int fd, const struct text *t)
{
    struct err err = {0};
    struct seekable_writer *w = NULL;
    int64_t stored;
    assert_int_equal(seekable_writer_new(fd, &w, &err), 0);
    for (int b = 0; b < BLOCKS; b++)
        assert_int_equal(seekable_write(w, t->block, BLOCK_LEN, &err), 0);
    assert_int_equal(seekable_writer_end(w, &stored, &err), 0);
    seekable_writer_free(w);
}

static void write_index(const char *path, const struct text *t,
                        const uint8_t sum[DIGEST_BYTES])
{
    struct err err = {0};
    struct line_index_writer *w = NULL;
    assert_int_equal(line_index_new(path, &w, &err), 0);
    for (int64_t i = 0; i < RECORDS; i++)
        assert_int_equal(
            line_index_add(w, i * LINE, LINE - 1, t->hash[i % PER_BLOCK], &err),
            0);
    assert_int_equal(line_index_end(w, sum, &err), 0);
    line_index_free(w);
}

static json_t *make_data(const struct folder *dir, const struct text *t,
                         bool zstd, int64_t *ret_stored)
{
    char path[256], index[256], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES] = {1, 2,
                                 3}; /* whatever it is: nobody reads all */
    struct stat st;
    in_folder(dir, zstd ? "a.zst" : "a", path, sizeof path);
    in_folder(dir, "index", index, sizeof index);
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    (zstd ? write_frames : write_plain)(fd, t);
    if (access(index, F_OK) < 0)
        write_index(index, t, sum);
    assert_int_equal(fstat(fd, &st), 0);
    digest_hex(sum, hex);
    json_t *blocks = json_array();
    for (int b = 0; b < BLOCKS; b++)
        json_array_append_new(blocks, json_string(t->hex));
    *ret_stored = (int64_t)st.st_size;
    return json_pack(
        "{s:I, s:[{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, "
        "s:o}]}",
        "records", (json_int_t)RECORDS, "shards", "name", "a", "path", path,
        "index", index, "form", zstd ? "zstd" : "plain", "bytes",
        (json_int_t)RECORDS * LINE, "stored_bytes", (json_int_t)st.st_size,
        "records", (json_int_t)RECORDS, "mtime_ns",
        (json_int_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
        "inode", (json_int_t)st.st_ino, "block_bytes", (json_int_t)BLOCK_LEN,
        "sha256", hex, "blocks", blocks);
}

/* A checkpoint after so many records: with a full buffer, or a global order's. */
static json_t *position_after(int64_t records, int effective, bool global)
{
    json_t *at = json_pack("{s:i, s:I, s:I, s:I, s:i, s:i, s:[]}", "epoch", 0,
                           "step", (json_int_t)records / effective, "draws",
                           (json_int_t)records, "records", (json_int_t)records,
                           "skipped", 0, "renormalised", 0, "bad");
    if (!global) {
        json_object_set_new(at, "shard", json_integer(0));
        json_object_set_new(at, "offset",
                            json_integer((records + BUFFER) * LINE));
    }
    return at;
}

static int64_t *buffer_after(int64_t records, const struct text *t)
{
    int64_t(*v)[4] = malloc(BUFFER * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < BUFFER; i++) {
        int64_t k = records + i;
        /* what a buffer holds is partly old */
        if (i % 10 == 0)
            k -= records / 2;
        v[i][0] = 0;
        v[i][1] = k * LINE;
        v[i][2] = LINE - 1;
        v[i][3] = (int64_t)t->hash[k % PER_BLOCK];
    }
    return (int64_t *)v;
}

/* Bytes read from opening to the end of the first step. */
static int64_t cost(const json_t *data, const struct text *t, int64_t records,
                    bool global)
{
    struct spec_in in = {.epochs = 1,
                         .effective = 10,
                         .micro = 10,
                         .shuffle = global ? 0 : BUFFER,
                         .global = global};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    struct feed *f = NULL;
    struct feed_batch *b;
    struct err err = {0};
    AUTO_JSON json_t *at = position_after(records, in.effective, global);
    AUTO_FREE int64_t *buffer = global ? NULL : buffer_after(records, t);
    if (feed_open(&spec, &spec.runtime, data, NULL, 1, &f, &err) < 0)
        fail_msg("%s", err.text);
    if (feed_resume(f, at, buffer, global ? 0 : BUFFER, &err) < 0)
        fail_msg("%s", err.text);
    if (feed_next(f, &b, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(b->step, records / in.effective);
    assert_true(b->last);
    feed_trained(f);
    struct feed_stats stats;
    feed_stats(f, &stats);
    json_decref(stats.bad);
    feed_close(f);
    return stats.bytes_read;
}

static void ten_million_records_cost_what_a_thousand_do(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct text t;
    make_text(&t);
    for (int zstd = 0; zstd < 2; zstd++) {
        int64_t stored;
        AUTO_JSON json_t *data = make_data(&dir, &t, zstd, &stored);
        for (int global = 0; global < 2; global++) {
            int64_t few = cost(data, &t, 1000, global);
            int64_t many = cost(data, &t, RECORDS - 20000, global);
            print_message("%s, %s: %lld bytes after 1,000 records, %lld after "
                          "9,980,000, of %lld\n",
                          zstd ? "zstd" : "plain", global ? "global" : "buffer",
                          (long long)few, (long long)many, (long long)stored);
            assert_true(few > 0 && many > 0);
            /* a block or two, the lines that are drawn, what is read ahead of
             * the trainer meanwhile: none of it grows with the position */
            int64_t most = 6 * (int64_t)BLOCK_LEN;
            assert_true(few <= most);
            assert_true(many <= most);
            assert_true(most < stored / 8);
        }
    }
    free(t.block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_million_records_cost_what_a_thousand_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
