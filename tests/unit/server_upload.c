/* A body on its way to disk. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "schema/lines.h"
#include "schema/seekable.h"
#include "schema/wire.h"
#include "server/belt.h"
#include "server/partial.h"
#include "server/upload.h"

static struct err err;
static char dir[64], tmp[80], target[128];

static int setup(void **state)
{
    strcpy(dir, "/tmp/pawl-upload-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(tmp, sizeof(tmp), "%s/tmp", dir);
    snprintf(target, sizeof(target), "%s/set/shard.jsonl", dir);
    return mkdir(tmp, 0700);
}

static void empty(const char *name)
{
    char path[200], file[500];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
        unlink(file);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static int teardown(void **state)
{
    empty("set");
    empty("index");
    if (rmdir(tmp) < 0) /* something was left behind */
        return -1;
    return rmdir(dir);
}

static struct upload *begin_as(enum packing packing, bool by_name,
                               const char *rules, bool skip)
{
    struct upload *u = NULL;
    struct upload_plan plan = {
        .shard = "a.jsonl", .packing = packing, .by_name = by_name};
    if (rules) {
        AUTO_JSON json_t *record = NULL;
        assert_int_equal(json_parse_strict(rules, strlen(rules), &record, &err),
                         0);
        assert_int_equal(
            intake_rules_make(record, skip, 0.01, &plan.rules, &err), 0);
    }
    assert_int_equal(upload_new(tmp, &plan, &u, &err), 0);
    return u;
}

static struct upload *begin(void)
{
    return begin_as(PACKING_NONE, false, NULL, false);
}

/* Add in pieces, which take turns in length. */
static int add(struct upload *u, const char *data, size_t len, size_t step)
{
    int r = 0;
    for (size_t at = 0; at < len && r >= 0; at += step)
        r = upload_add(u, data + at, at + step > len ? len - at : step, &err);
    return r < 0 ? r : upload_end(u, &err);
}

static void text_make(struct buf *text, size_t len)
{
    unsigned x = 1;
    while (text->len < len) {
        x = x * 1103515245 + 12345;
        assert_int_equal(buf_addf(text, "{\"x\":[%u,%u]}\n", x >> 8, x >> 20),
                         0);
    }
}

static void gzip(struct buf *out, const struct buf *text)
{
    z_stream z = {0};
    deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    size_t bound = deflateBound(&z, text->len);
    assert_int_equal(buf_reserve(out, bound), 0);
    z.next_in = (Bytef *)text->data;
    z.avail_in = (uInt)text->len;
    z.next_out = (Bytef *)out->data + out->len;
    z.avail_out = (uInt)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->len += bound - z.avail_out;
    deflateEnd(&z);
}

static void zstd(struct buf *out, const char *text, size_t len)
{
    size_t bound = ZSTD_compressBound(len);
    assert_int_equal(buf_reserve(out, bound), 0);
    size_t n = ZSTD_compress(out->data + out->len, bound, text, len, 1);
    assert_false(ZSTD_isError(n));
    out->len += n;
}

/* Frames of `frame` bytes of text with a table, that of the first frame off by
 * `lie`. */
static void seekable(struct buf *out, const struct buf *text, size_t frame,
                     int lie)
{
    CLEANUP(buf_release) struct buf table = {0};
    uint32_t n = 0;
    for (size_t at = 0; at < text->len; at += frame, n++) {
        size_t len = text->len - at < frame ? text->len - at : frame;
        size_t before = out->len;
        zstd(out, text->data + at, len);
        uint32_t entry[2] = {(uint32_t)(out->len - before), (uint32_t)len};
        if (n < 2)
            entry[1] += (uint32_t)(n ? -lie : lie);
        buf_add(&table, entry, 8);
    }
    uint32_t head[2] = {0x184d2a5e, (uint32_t)table.len + 9};
    uint32_t magic = 0x8f92eab1;
    buf_add(out, head, 8);
    buf_add(out, table.data, table.len);
    buf_add(out, &n, 4);
    buf_add(out, "", 1);
    buf_add(out, &magic, 4);
}

static void hex_of(const char *data, size_t len, char hex[DIGEST_HEX])
{
    uint8_t sum[DIGEST_BYTES];
    digest_of(data, len, sum);
    digest_hex(sum, hex);
}

static void digests_are_those_of_the_bytes_however_cut(void **state)
{
    size_t len = 2 * WIRE_BLOCK_BYTES + 123;
    AUTO_FREE char *data = malloc(len);
    for (size_t i = 0; i < len; i++)
        data[i] = i % 100 == 99 ? '\n' : 'x';
    struct upload *u = begin();
    for (size_t at = 0, n = 1; at < len; at += n, n = n * 7 % 65536 + 1)
        assert_int_equal(
            upload_add(u, data + at, at + n > len ? len - at : n, &err), 0);
    assert_int_equal(upload_end(u, &err), 0);

    char hex[DIGEST_HEX];
    hex_of(data, len, hex);
    assert_string_equal(u->text->sha256, hex);
    assert_int_equal(u->text->n_blocks, 3);
    hex_of(data + WIRE_BLOCK_BYTES, WIRE_BLOCK_BYTES, hex);
    assert_string_equal(u->text->blocks[1], hex);
    hex_of(data + 2 * WIRE_BLOCK_BYTES, 123, hex);
    assert_string_equal(u->text->blocks[2], hex);
    assert_int_equal(u->text->bytes, (int64_t)len);
    assert_int_equal(u->stored_bytes, (int64_t)len);
    assert_int_equal(u->text->records, (int64_t)(len + 99) / 100);
    upload_free(u);
}

static void compressed_bytes_are_named_however_cut(void **state)
{
    static const struct {
        const char *name, *bytes, *advice;
    } files[] = {
        {"gzip", "\x1f\x8b\x08\x01more", "Content-Encoding: gzip"},
        {"zstd", "\x28\xb5\x2f\xfd\x24more", "….jsonl.zst"},
        {"bzip2", "BZh91AY", "plain JSON lines"},
        {"xz",
         "\xfd"
         "7zXZ\x01more",
         "plain JSON lines"},
    };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        for (size_t step = 1; step < 8; step++) {
            struct upload *u = begin();
            assert_int_equal(
                add(u, files[i].bytes, strlen(files[i].bytes), step),
                ERR_MEDIA);
            assert_non_null(strstr(err.text, files[i].name));
            assert_non_null(strstr(err.text, files[i].advice));
            upload_free(u);
        }
}

static void what_is_not_compressed_as_it_was_said_is_refused(void **state)
{
    static const char *const bytes[] = {"{}\n", "\x1f{}\n", "\x28\xb5/\xfd",
                                        "\x28\xb5{}"};
    for (size_t i = 0; i < 4; i++)
        for (size_t step = 1; step < 5; step++) {
            struct upload *u = begin_as(i < 2 ? PACKING_GZIP : PACKING_ZSTD,
                                        i % 2, NULL, false);
            const char *s = i < 2 ? bytes[i] : i == 2 ? "{}\n" : bytes[i];
            int r = add(u, s, strlen(s), step);
            assert_true(r == ERR_INVALID || r == ERR_DATA);
            assert_non_null(strstr(err.text, i < 2 ? "gzip" : "zstd"));
            assert_true(u->failed);
            upload_free(u);
        }
    /* nothing at all is no compressed stream */
    struct upload *u = begin_as(PACKING_GZIP, true, NULL, false);
    assert_int_equal(upload_end(u, &err), ERR_DATA);
    assert_non_null(strstr(err.text, "shard 'a.jsonl'"));
    upload_free(u);
}

/* What is stored: read as text, all of it. */
static void check_stored(struct upload *u, const struct buf *text)
{
    struct seekable *s = NULL;
    char hex[DIGEST_HEX];
    AUTO_FREE char *out = malloc(text->len + 1);
    hex_of(text->data, text->len, hex);
    assert_string_equal(u->text->sha256, hex);
    assert_int_equal(u->text->bytes, text->len);
    assert_true(u->framed);
    assert_int_equal(seekable_open(u->fd, &s, &err), 0);
    assert_int_equal(seekable_read(s, 0, out, text->len + 1, &err), text->len);
    assert_memory_equal(out, text->data, text->len);
    seekable_close(s);
    assert_int_equal(u->stored_bytes, lseek(u->fd, 0, SEEK_END));
}

static void gzip_is_stored_as_frames(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0}, more = {0};
    text_make(&text, 3000000);
    gzip(&in, &text);
    text_make(&more, 100);
    gzip(&in, &more); /* a second member */
    buf_add(&text, more.data, more.len);
    struct upload *u = begin_as(PACKING_GZIP, true, NULL, false);
    assert_int_equal(add(u, in.data, in.len, 65536), 0);
    check_stored(u, &text);
    uint8_t sum[DIGEST_BYTES];
    digest_of(in.data, in.len, sum); /* of what was sent */
    assert_memory_equal(u->sha256, sum, DIGEST_BYTES);
    upload_free(u);
}

static void frames_with_a_table_are_kept_as_they_came(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0};
    text_make(&text, 3000000);
    seekable(&in, &text, 100000, 0);
    struct upload *u = begin_as(PACKING_ZSTD, true, NULL, false);
    assert_int_equal(add(u, in.data, in.len, 65536), 0);
    check_stored(u, &text);
    assert_int_equal(u->stored_bytes, in.len);
    AUTO_FREE char *stored = malloc(in.len);
    assert_int_equal(pread(u->fd, stored, in.len, 0), in.len);
    assert_memory_equal(stored, in.data, in.len);
    upload_free(u);
}

static void other_zstd_is_made_into_frames(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0}, file = {0};
    text_make(&text, SEEKABLE_FRAME_MAX + 3000000);
    for (int k = 0; k < 6; k++) {
        buf_clear(&in);
        size_t half = text.len / 2;
        switch (k) {
        case 0: /* one frame, too long to be sought in */
            zstd(&in, text.data, text.len);
            break;
        case 1: /* two, and no table */
            zstd(&in, text.data, half);
            zstd(&in, text.data + half, text.len - half);
            break;
        case 2: /* a table that lies */
            seekable(&in, &text, half + 1, 7);
            break;
        case 3: /* a short frame, then one that is too long */
            zstd(&in, text.data, 1000);
            zstd(&in, text.data + 1000, text.len - 1000);
            break;
        case 4: /* a table over frames that are too long */
            seekable(&in, &text, text.len - 10, 0);
            break;
        case 5: /* a skippable frame first */
            buf_add(&in, "\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
            zstd(&in, text.data, text.len);
            break;
        }
        struct upload *u = begin_as(PACKING_ZSTD, true, NULL, false);
        assert_int_equal(add(u, in.data, in.len, k % 2 ? 65536 : 4097), 0);
        check_stored(u, &text);
        assert_int_not_equal(u->stored_bytes, in.len);
        upload_free(u);
    }
}

static void a_shard_compressed_twice_is_refused(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, once = {0}, twice = {0};
    text_make(&text, 1000);
    gzip(&once, &text);
    gzip(&twice, &once);
    struct upload *u = begin_as(PACKING_GZIP, true, NULL, false);
    assert_int_equal(add(u, twice.data, twice.len, 100), ERR_MEDIA);
    assert_non_null(strstr(err.text, "twice"));
    upload_free(u);
}

static void the_index_says_where_each_record_begins(void **state)
{
    static const char text[] = "\xef\xbb\xbf{\"a\":1}\r\n\n \t\n{\"b\":2}\n{}";
    for (size_t step = 1; step < sizeof(text); step++) {
        struct upload *u = begin();
        struct line_index x;
        char path[300];
        assert_int_equal(add(u, text, sizeof(text) - 1, step), 0);
        assert_int_equal(u->text->lines, 5);
        assert_int_equal(u->text->records, 3);
        assert_int_equal(upload_publish(u, dir, target, &err), 0);
        snprintf(path, sizeof(path), "%s/index/%s", dir, u->text->sha256);
        uint8_t sum[DIGEST_BYTES];
        digest_of(text, sizeof(text) - 1, sum);
        assert_int_equal(line_index_open(path, sum, 3, &x, &err), 0);
        assert_int_equal(line_entry_offset(&x.v[0]), 3);
        assert_int_equal(line_entry_length(&x.v[0]), 8); /* with its CR */
        assert_int_equal(x.v[0].hash, line_hash("{\"a\":1}\r", 8));
        assert_int_equal(line_entry_offset(&x.v[1]), 16);
        assert_int_equal(line_entry_offset(&x.v[2]), 24);
        assert_int_equal(line_entry_length(&x.v[2]), 2);
        line_index_close(&x);
        upload_free(u);
    }
}

/* lines.h says how the worker counts; intake counts as it streams. */
static void lines_are_counted_as_everywhere(void **state)
{
    static const char *const texts[] = {"",
                                        "\n\n\n",
                                        "\xef\xbb\xbf",
                                        "\xef\xbb\xbf\n",
                                        "\xef\xbb",
                                        "\xef\xbb{}\n",
                                        "{}\n\xef\xbb\xbf{}\n",
                                        "{}\n{}",
                                        "{}\n \t",
                                        "\r",
                                        "{}\r{}\n",
                                        "{}\r\n{}\n\r\n",
                                        "{}\n\n{}\n",
                                        "\xef\xbb\xbf{}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (size_t step = 1; step < 5; step++) {
            struct line_count c = {0};
            line_count_add(&c, texts[i], strlen(texts[i]));
            line_count_end(&c);
            struct upload *u = begin();
            assert_int_equal(add(u, texts[i], strlen(texts[i]), step), 0);
            assert_int_equal(u->text->lines, c.lines);
            assert_int_equal(u->text->records, c.records);
            upload_free(u);
        }
}

static void a_line_that_is_too_long_is_marked_or_refused(void **state)
{
    size_t len = LINE_MAX_BYTES + 10;
    AUTO_FREE char *text = malloc(len + 20);
    memset(text, '1', len);
    strcpy(text + len, "\n{\"v\":1}\n");
    for (int k = 0; k < 3; k++) {
        struct upload *u = begin_as(
            PACKING_NONE, false,
            k ? "{\"v\":{\"kind\":\"target\",\"loss\":\"mse\"}}" : NULL,
            k == 2);
        int r = add(u, text, strlen(text), WIRE_BLOCK_BYTES);
        if (k == 1) {
            assert_int_equal(r, ERR_DATA);
            assert_int_equal(err.line, 1);
            assert_non_null(strstr(err.text, "16777215"));
        } else {
            assert_int_equal(r, 0);
            assert_int_equal(u->text->records, 2);
            assert_int_equal(u->text->bad, k == 2);
        }
        upload_free(u);
    }
}

#define RULES                                                                  \
    "{\"x\":{\"kind\":\"tokens\",\"dim\":\"X\",\"vocab\":8},"                  \
    "\"v\":{\"kind\":\"target\",\"loss\":\"mse\"}}"
static const char mixed[] = "{\"x\":[1],\"v\":0.5}\n"
                            "\n"
                            "{\"x\":[9],\"v\":0.5}\n"
                            "{\"x\":[1]}\n"
                            "{\"x\":[1],\"v\":0}";

static void the_first_bad_record_is_named_however_cut(void **state)
{
    for (size_t step = 1; step < sizeof(mixed); step++) {
        struct upload *u = begin_as(PACKING_NONE, false, RULES, false);
        assert_int_equal(add(u, mixed, sizeof(mixed) - 1, step), ERR_DATA);
        assert_int_equal(err.line, 3);
        assert_int_equal(err.offset, 19);
        assert_string_equal(err.shard, "a.jsonl");
        assert_string_equal(err.field, "x");
        assert_non_null(
            strstr(err.text, "shard 'a.jsonl', line 3 (offset 19)"));
        upload_free(u);
    }
}

static void bad_records_are_counted_with_reasons(void **state)
{
    struct upload *u = begin_as(PACKING_NONE, false, RULES, true);
    assert_int_equal(add(u, mixed, sizeof(mixed) - 1, 7), 0);
    assert_int_equal(u->text->records, 4);
    assert_int_equal(u->text->bad, 2);
    const json_t *second = json_array_get(u->text->bad_first, 1);
    assert_int_equal(json_integer_value(json_object_get(second, "line")), 4);
    assert_int_equal(json_integer_value(json_object_get(second, "offset")), 37);
    assert_string_equal(json_string_value(json_object_get(second, "field")),
                        "v");
    upload_free(u);
    /* no more of them are kept than are shown */
    CLEANUP(buf_release) struct buf many = {0};
    for (int i = 0; i < 100; i++)
        buf_adds(&many, "nonsense\n");
    u = begin_as(PACKING_NONE, false, RULES, true);
    assert_int_equal(add(u, many.data, many.len, 50), 0);
    assert_int_equal(u->text->bad, 100);
    assert_int_equal(json_array_size(u->text->bad_first), INTAKE_BAD_SHOWN);
    upload_free(u);
}

/* Most of it is taken by a thread of its own: nothing is said of another record,
 * nor of none. */
static void a_long_upload_is_checked_to_its_last_record(void **state)
{
    CLEANUP(buf_release) struct buf good = {0}, text = {0}, in = {0};
    while (good.len < 5000000)
        assert_int_equal(buf_adds(&good, "{\"x\":[1,2,3],\"v\":0.5}\n"), 0);
    int64_t line = (int64_t)strlen("{\"x\":[1,2,3],\"v\":0.5}\n");
    int64_t lines = (int64_t)good.len / line;
    const int64_t places[] = {0, 3, lines / 4, lines / 2, lines - 1, lines};
    for (int k = 0; k < 6; k++) {
        size_t at = (size_t)(places[k] * line);
        buf_clear(&text);
        buf_add(&text, good.data, at);
        buf_adds(&text, "{\"x\":[9],\"v\":0.5}\n");
        buf_add(&text, good.data + at, good.len - at);
        buf_clear(&in);
        gzip(&in, &text);
        for (int framed = 0; framed < 2; framed++) {
            const struct buf *b = framed ? &in : &text;
            struct upload *u = begin_as(framed ? PACKING_GZIP : PACKING_NONE,
                                        true, RULES, false);
            assert_int_equal(add(u, b->data, b->len, 100000), ERR_DATA);
            assert_int_equal(err.line, places[k] + 1);
            assert_int_equal(err.offset, at);
            assert_string_equal(err.field, "x");
            assert_true(u->failed);
            upload_free(u);
            u = begin_as(framed ? PACKING_GZIP : PACKING_NONE, true, RULES,
                         true);
            assert_int_equal(add(u, b->data, b->len, 100000), 0);
            assert_int_equal(u->text->records, lines + 1);
            assert_int_equal(u->text->bad, 1);
            char hex[DIGEST_HEX];
            hex_of(text.data, text.len, hex);
            assert_string_equal(u->text->sha256, hex);
            upload_free(u);
        }
    }
}

static int take_some(void *arg, const char *data, size_t len, struct err *e)
{
    struct buf *got = arg;
    if (got->len > 3000000)
        return err_set(e, ERR_NOSPACE, "no more than %zu", got->len);
    return buf_add(got, data, len);
}

static void a_belt_keeps_the_order_and_the_first_error(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, got = {0};
    text_make(&text, 2500000);
    struct belt *b = NULL;
    assert_int_equal(belt_new(take_some, &got, &b, &err), 0);
    for (size_t at = 0, n = 1; at < text.len; at += n, n = n * 7 % 900000 + 1)
        assert_int_equal(belt_add(b, text.data + at,
                                  at + n > text.len ? text.len - at : n, &err),
                         0);
    assert_int_equal(belt_wait(b, &err), 0);
    assert_int_equal(got.len, text.len);
    assert_memory_equal(got.data, text.data, text.len);
    int r = 0;
    for (int i = 0; i < 20 && r >= 0; i++)
        r = belt_add(b, text.data, 400000, &err);
    assert_int_equal(r, ERR_NOSPACE);
    assert_int_equal(belt_wait(b, &err), ERR_NOSPACE);
    assert_non_null(strstr(err.text, "no more than 3"));
    assert_int_equal(belt_add(b, "x", 1, &err), ERR_NOSPACE);
    belt_free(b);
    belt_free(NULL);
}

static void a_published_upload_keeps_its_inode(void **state)
{
    struct stat before, after;
    struct upload *u = begin();
    assert_int_equal(add(u, "{}\n", 3, 3), 0);
    fstat(u->fd, &before);
    assert_int_equal(upload_publish(u, dir, target, &err), 0);
    upload_settle(u);
    upload_free(u);
    assert_int_equal(stat(target, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_size, 3);
    assert_int_equal(after.st_nlink, 1);
}

/* A commit may fail after the file has its name. */
static void what_was_published_in_vain_is_taken_back(void **state)
{
    struct upload *u = begin(), *other = begin();
    assert_int_equal(add(u, "{}\n", 3, 3), 0);
    assert_int_equal(add(other, "{}\n\n", 4, 4), 0);
    assert_int_equal(upload_publish(u, dir, target, &err), 0);
    upload_free(u);
    assert_int_equal(access(target, F_OK), -1);
    /* but not what replaced it meanwhile */
    u = begin();
    assert_int_equal(add(u, "{}\n", 3, 3), 0);
    assert_int_equal(upload_publish(u, dir, target, &err), 0);
    assert_int_equal(upload_publish(other, dir, target, &err), 0);
    upload_settle(other);
    upload_free(other);
    upload_free(u);
    struct stat sb;
    assert_int_equal(stat(target, &sb), 0);
    assert_int_equal(sb.st_size, 4);
}

static void an_abandoned_upload_leaves_nothing(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0};
    text_make(&text, SEEKABLE_FRAME_MAX + 100000);
    zstd(&in, text.data, text.len);
    for (size_t part = 1; part < 5; part++) {
        struct upload *u = begin_as(PACKING_ZSTD, true, RULES, true);
        assert_int_equal(upload_add(u, in.data, in.len * part / 4, &err), 0);
        upload_free(u);
    }
    struct upload *u = begin();
    assert_int_equal(upload_add(u, "{}\n", 3, &err), 0);
    upload_free(u);
    /* teardown's rmdir is the check */
}

static void an_empty_shard_has_no_blocks(void **state)
{
    struct upload *u = begin();
    assert_int_equal(upload_end(u, &err), 0);
    assert_int_equal(u->text->n_blocks, 0);
    assert_int_equal(u->text->records, 0);
    upload_free(u);
}

static void a_folder_that_is_gone_is_said(void **state)
{
    struct upload *u = NULL;
    struct upload_plan plan = {0};
    assert_int_equal(upload_new("/nonexistent/tmp", &plan, &u, &err), ERR_IO);
    assert_null(u);
}

static void one_that_broke_off_goes_on_and_becomes_the_same(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0};
    struct partials *p = NULL;
    assert_int_equal(partials_new(&p, &err), 0);
    text_make(&text, 500000);
    gzip(&in, &text);
    struct upload *u = begin_as(PACKING_GZIP, true, NULL, false);
    assert_int_equal(upload_add(u, in.data, 1000, &err), 0);
    partials_keep(p, "set", "a", u, 5);
    for (size_t at = 1000; at < in.len;) {
        assert_int_equal(partials_offset(p, "set", "a", 6), at);
        assert_int_equal(partials_offset(p, "set", "b", 6), 0);
        u = partials_take(p, "set", "a", 6);
        assert_ptr_not_equal(u, NULL);
        assert_null(partials_take(p, "set", "a", 6));
        assert_int_equal(upload_part(u, &err), 0);
        size_t n = in.len - at < 50000 ? in.len - at : 50000;
        assert_int_equal(upload_add(u, in.data + at, n, &err), 0);
        at += n;
        if (at < in.len) {
            partials_keep(p, "set", "a", u, 6);
            continue;
        }
        assert_int_equal(upload_end(u, &err), 0);
        uint8_t sum[DIGEST_BYTES];
        digest_of(in.data + at - n, n, sum);
        assert_memory_equal(u->part_sha256, sum, DIGEST_BYTES);
    }
    check_stored(u, &text);
    uint8_t sum[DIGEST_BYTES];
    digest_of(in.data, in.len, sum);
    assert_memory_equal(u->sha256, sum, DIGEST_BYTES);
    upload_free(u);
    partials_free(p);
}

static int files_in(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; (e = readdir(d));)
        n += *e->d_name != '.';
    closedir(d);
    return n;
}

static void few_are_kept_and_not_for_long(void **state)
{
    struct partials *p = NULL;
    char name[16];
    assert_int_equal(partials_new(&p, &err), 0);
    for (int i = 0; i < PARTIALS_MAX + 3; i++) {
        struct upload *u = begin();
        assert_int_equal(upload_add(u, "{}\n", 3, &err), 0);
        snprintf(name, sizeof(name), "%d", i);
        partials_keep(p, "set", name, u, 1000 + i);
    }
    assert_int_equal(partials_offset(p, "set", "2", 2000), 0);
    assert_int_equal(partials_offset(p, "set", "3", 2000), 3);
    assert_int_equal(files_in(tmp), 2 * PARTIALS_MAX); /* and the indexes */
    /* one that failed, is complete or has not begun is not kept */
    struct upload *u = begin();
    partials_keep(p, "set", "none", u, 2000);
    u = begin_as(PACKING_GZIP, true, NULL, false);
    assert_int_equal(upload_add(u, "{}\n", 3, &err), ERR_INVALID);
    partials_keep(p, "set", "bad", u, 2000);
    u = begin();
    assert_int_equal(add(u, "{}\n", 3, 3), 0);
    partials_keep(p, "set", "all", u, 2000);
    assert_int_equal(partials_offset(p, "set", "bad", 2000), 0);
    assert_int_equal(partials_offset(p, "set", "all", 2000), 0);
    assert_int_equal(files_in(tmp), 2 * PARTIALS_MAX);
    /* an hour */
    assert_int_equal(partials_offset(p, "set", "9", 1008 + PARTIAL_KEEP_MS), 3);
    assert_int_equal(partials_offset(p, "set", "9", 1009 + PARTIAL_KEEP_MS), 0);
    assert_null(partials_take(p, "set", "9", 1009 + PARTIAL_KEEP_MS));
    partials_expire(p, 1011 + PARTIAL_KEEP_MS);
    assert_int_equal(partials_offset(p, "set", "12", 1011 + PARTIAL_KEEP_MS),
                     3);
    assert_int_equal(files_in(tmp), 2 * (PARTIALS_MAX - 9));
    partials_free(p);
    assert_int_equal(files_in(tmp), 0);
}

static void what_is_kept_holds_little_memory(void **state)
{
    CLEANUP(buf_release) struct buf text = {0}, in = {0};
    struct partials *p = NULL;
    char name[16];
    text_make(&text, 2000000);
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_windowLog, 24); /* 16 MiB */
    ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, 0);
    buf_reserve(&in, 3000000);
    ZSTD_inBuffer from = {text.data, text.len, 0};
    ZSTD_outBuffer to = {in.data, 3000000, 0};
    /* not at one go, or the window is as small as the text */
    ZSTD_compressStream2(z, &to, &from, ZSTD_e_continue);
    while (ZSTD_compressStream2(z, &to, &from, ZSTD_e_end))
        ;
    ZSTD_freeCCtx(z);
    in.len = to.pos;
    assert_int_equal(partials_new(&p, &err), 0);
    for (int i = 0; i < 8; i++) {
        struct upload *u = begin_as(PACKING_ZSTD, true, NULL, false);
        assert_int_equal(upload_add(u, in.data, in.len - 100, &err), 0);
        size_t memory = upload_rest(u);
        assert_in_range(memory, 16 << 20, 20 << 20);
        snprintf(name, sizeof(name), "%d", i);
        partials_keep(p, "set", name, u, 1000 + i);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof(name), "%d", i);
        assert_int_equal(partials_offset(p, "set", name, 2000) > 0, i >= 5);
    }
    struct upload *u = partials_take(p, "set", "7", 2000);
    assert_int_equal(upload_add(u, in.data + in.len - 100, 100, &err), 0);
    assert_int_equal(upload_end(u, &err), 0);
    check_stored(u, &text);
    upload_free(u);
    partials_free(p);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(digests_are_those_of_the_bytes_however_cut),
        TEST(compressed_bytes_are_named_however_cut),
        TEST(what_is_not_compressed_as_it_was_said_is_refused),
        TEST(gzip_is_stored_as_frames),
        TEST(frames_with_a_table_are_kept_as_they_came),
        TEST(other_zstd_is_made_into_frames),
        TEST(a_shard_compressed_twice_is_refused),
        TEST(the_index_says_where_each_record_begins),
        TEST(lines_are_counted_as_everywhere),
        TEST(a_line_that_is_too_long_is_marked_or_refused),
        TEST(the_first_bad_record_is_named_however_cut),
        TEST(bad_records_are_counted_with_reasons),
        TEST(a_long_upload_is_checked_to_its_last_record),
        TEST(a_belt_keeps_the_order_and_the_first_error),
        TEST(a_published_upload_keeps_its_inode),
        TEST(what_was_published_in_vain_is_taken_back),
        TEST(an_abandoned_upload_leaves_nothing),
        TEST(an_empty_shard_has_no_blocks),
        TEST(a_folder_that_is_gone_is_said),
        TEST(one_that_broke_off_goes_on_and_becomes_the_same),
        TEST(few_are_kept_and_not_for_long),
        TEST(what_is_kept_holds_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
