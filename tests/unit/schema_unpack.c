/* The text of compressed streams, however they are cut into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/unpack.h"

static int take(void *arg, const char *text, size_t len, struct err *err)
{
    assert_true(len > 0 && len <= 256 * 1024);
    return buf_add(arg, text, len);
}

/* Unpack in pieces of `step` bytes. */
static int unpack(enum packing packing, const struct buf *in, size_t step,
                  struct buf *text, struct err *err)
{
    CLEANUP(buf_release) struct buf out = {0};
    struct unpack *u = NULL;
    assert_int_equal(unpack_new(packing, &u, err), 0);
    int r = 0;
    for (size_t i = 0; i < in->len && r >= 0; i += step)
        r = unpack_add(u, in->data + i, in->len - i < step ? in->len - i : step,
                       take, &out, err);
    if (r >= 0)
        r = unpack_end(u, err);
    unpack_free(u);
    if (r < 0)
        return r;
    buf_release(text);
    *text = out;
    out = (struct buf){0};
    return 0;
}

static void add_gzip(struct buf *out, const char *text, size_t len)
{
    z_stream z = {0};
    assert_int_equal(
        deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t bound = deflateBound(&z, len);
    assert_int_equal(buf_reserve(out, bound), 0);
    z.next_in = (Bytef *)text;
    z.avail_in = (uInt)len;
    z.next_out = (Bytef *)out->data + out->len;
    z.avail_out = (uInt)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->len += bound - z.avail_out;
    deflateEnd(&z);
}

static void add_zstd(struct buf *out, const char *text, size_t len)
{
    size_t bound = ZSTD_compressBound(len);
    assert_int_equal(buf_reserve(out, bound), 0);
    size_t n = ZSTD_compress(out->data + out->len, bound, text, len, 3);
    assert_false(ZSTD_isError(n));
    out->len += n;
}

static void add_skippable(struct buf *out)
{
    assert_int_equal(buf_add(out, "\x53\x2a\x4d\x18\x05\0\0\0hello", 13), 0);
}

typedef void add_fn(struct buf *out, const char *text, size_t len);
static const struct {
    enum packing packing;
    add_fn *add;
} kinds[] = {{PACKING_GZIP, add_gzip}, {PACKING_ZSTD, add_zstd}};

static void all_members_are_read_in_pieces_of_any_size(void **state)
{
    static const char a[] = "{\"x\":1}\n{\"x\":2}\n{\"x\":3}\n",
                      b[] = "{}\n{}\n";
    for (size_t k = 0; k < 2; k++) {
        CLEANUP(buf_release) struct buf in = {0}, text = {0};
        struct err err;
        kinds[k].add(&in, a, strlen(a));
        kinds[k].add(&in, "", 0); /* an empty member between them */
        if (k)
            add_skippable(&in);
        kinds[k].add(&in, b, strlen(b));
        if (k)
            add_skippable(&in);
        for (size_t step = 1; step <= in.len; step++) {
            assert_int_equal(unpack(kinds[k].packing, &in, step, &text, &err),
                             0);
            assert_int_equal(text.len, strlen(a) + strlen(b));
            assert_memory_equal(text.data, a, strlen(a));
            assert_memory_equal(text.data + strlen(a), b, strlen(b));
        }
    }
}

static void a_stream_that_is_cut_anywhere_is_an_error(void **state)
{
    static const char a[] = "{\"x\":1}\n{\"x\":2}\n{\"x\":3}\n";
    for (size_t k = 0; k < 2; k++) {
        CLEANUP(buf_release) struct buf in = {0}, text = {0};
        struct err err;
        kinds[k].add(&in, a, strlen(a));
        size_t first = in.len;
        kinds[k].add(&in, a, strlen(a));
        for (size_t n = 0; n < in.len; n++) {
            struct buf cut = {.data = in.data, .len = n};
            int r = unpack(kinds[k].packing, &cut, 7, &text, &err);
            if (n == first) { /* a whole member is a whole file */
                assert_int_equal(r, 0);
                continue;
            }
            assert_int_equal(r, ERR_DATA);
            assert_non_null(strstr(err.text, n ? "cut short" : "empty"));
            assert_int_equal(err.offset, n);
        }
    }
}

static void what_follows_and_is_no_member_is_an_error(void **state)
{
    static const char *const behind[] = {"\n", "PK", "\x1f{}",
                                         "garbage ......"};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < 4; i++) {
            CLEANUP(buf_release) struct buf in = {0}, text = {0};
            struct err err;
            kinds[k].add(&in, "{}\n", 3);
            size_t end = in.len;
            buf_adds(&in, behind[i]);
            for (size_t step = 1; step <= in.len; step++) {
                assert_int_equal(
                    unpack(kinds[k].packing, &in, step, &text, &err), ERR_DATA);
                assert_in_range(err.offset, end, in.len);
            }
        }
}

static void a_flipped_bit_is_found(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    CLEANUP(buf_release) struct buf in = {0}, out = {0};
    struct err err;
    for (int i = 0; i < 20000; i++)
        buf_addf(&text, "{\"x\":%d}\n", i * 7919 % 10007);
    add_gzip(&in, text.data, text.len);
    for (size_t at = 10; at < in.len; at += in.len / 50) {
        in.data[at] ^= 4;
        int r = unpack(PACKING_GZIP, &in, 4096, &out, &err);
        assert_int_equal(r, ERR_DATA);
        assert_in_range(err.offset, 1, in.len);
        in.data[at] ^= 4;
    }
    assert_int_equal(unpack(PACKING_GZIP, &in, 4096, &out, &err), 0);
    assert_int_equal(out.len, text.len);
}

static int refuse(void *arg, const char *text, size_t len, struct err *err)
{
    return err_set(err, ERR_NOSPACE, "full");
}

static void what_the_receiver_says_is_the_answer(void **state)
{
    for (size_t k = 0; k < 2; k++) {
        CLEANUP(buf_release) struct buf in = {0};
        struct err err;
        struct unpack *u = NULL;
        kinds[k].add(&in, "{}\n", 3);
        assert_int_equal(unpack_new(kinds[k].packing, &u, &err), 0);
        assert_int_equal(unpack_add(u, in.data, in.len, refuse, NULL, &err),
                         ERR_NOSPACE);
        assert_string_equal(err.text, "full");
        unpack_free(u);
    }
}

static int count(void *arg, const char *text, size_t len, struct err *err)
{
    *(size_t *)arg += len;
    return 0;
}

/* A gigabyte of zeros in a megabyte: text comes in pieces all the same. */
static void a_bomb_is_a_long_text_and_no_more(void **state)
{
    CLEANUP(buf_release) struct buf in = {0};
    static char zeros[1 << 20];
    struct err err;
    z_stream z = {0};
    deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    for (int i = 0; i < 64; i++) {
        z.next_in = (Bytef *)zeros;
        z.avail_in = sizeof zeros;
        do {
            buf_reserve(&in, 65536);
            z.next_out = (Bytef *)in.data + in.len;
            z.avail_out = 65536;
            deflate(&z, i == 63 ? Z_FINISH : Z_NO_FLUSH);
            in.len += 65536 - z.avail_out;
        } while (!z.avail_out);
    }
    deflateEnd(&z);
    size_t n = 0;
    struct unpack *u = NULL;
    assert_int_equal(unpack_new(PACKING_GZIP, &u, &err), 0);
    assert_int_equal(unpack_add(u, in.data, in.len, count, &n, &err), 0);
    assert_int_equal(unpack_end(u, &err), 0);
    unpack_free(u);
    assert_int_equal(n, 64 << 20);
}

static void packing_is_told_by_first_bytes_and_by_name(void **state)
{
    assert_int_equal(packing_of("\x1f\x8b\x08\0", 4), PACKING_GZIP);
    assert_int_equal(packing_of("\x28\xb5\x2f\xfd", 4), PACKING_ZSTD);
    assert_int_equal(packing_of("\x5e\x2a\x4d\x18", 4), PACKING_ZSTD);
    assert_int_equal(packing_of("\x28\xb5\x2f", 3), PACKING_NONE);
    assert_int_equal(packing_of("{\"x\"", 4), PACKING_NONE);
    assert_int_equal(packing_of("", 0), PACKING_NONE);
    assert_int_equal(packing_of_name("a.jsonl.gz"), PACKING_GZIP);
    assert_int_equal(packing_of_name("a.jsonl.zst"), PACKING_ZSTD);
    assert_int_equal(packing_of_name("a.jsonl"), PACKING_NONE);
    assert_int_equal(packing_of_name(".gz"), PACKING_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_members_are_read_in_pieces_of_any_size),
        cmocka_unit_test(a_stream_that_is_cut_anywhere_is_an_error),
        cmocka_unit_test(what_follows_and_is_no_member_is_an_error),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(what_the_receiver_says_is_the_answer),
        cmocka_unit_test(a_bomb_is_a_long_text_and_no_more),
        cmocka_unit_test(packing_is_told_by_first_bytes_and_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
