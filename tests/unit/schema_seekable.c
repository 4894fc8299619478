/* Frames with a seek table: written, read anywhere, and read when damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/seekable.h"

static int file_new(void)
{
    int fd = memfd_create("frames", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void text_make(struct buf *text, size_t len)
{
    unsigned x = 1;
    while (text->len < len) {
        x = x * 1103515245 + 12345;
        assert_int_equal(buf_addf(text, "{\"x\":[%u,%u]}\n", x >> 8, x >> 20),
                         0);
    }
    text->len = len;
}

static int frames_make(const struct buf *text, size_t step)
{
    struct err err;
    struct seekable_writer *w = NULL;
    int fd = file_new();
    int64_t stored = 0;
    assert_int_equal(seekable_writer_new(fd, &w, &err), 0);
    for (size_t i = 0; i < text->len; i += step)
        assert_int_equal(
            seekable_write(w, text->data + i,
                           text->len - i < step ? text->len - i : step, &err),
            0);
    assert_int_equal(seekable_writer_end(w, &stored, &err), 0);
    seekable_writer_free(w);
    assert_int_equal(stored, lseek(fd, 0, SEEK_END));
    return fd;
}

static void any_range_reads_as_the_text_does(void **state)
{
    static const size_t lengths[] = {
        0,
        1,
        SEEKABLE_FRAME - 1,
        SEEKABLE_FRAME,
        SEEKABLE_FRAME + 1,
        3 * SEEKABLE_FRAME,
        1500000,
    };
    static char out[1600000];
    struct err err;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        CLEANUP(buf_release) struct buf text = {0};
        struct seekable *s = NULL;
        text_make(&text, lengths[k]);
        AUTO_FD int fd = frames_make(&text, k % 2 ? 1000 : 200000);
        assert_int_equal(seekable_open(fd, &s, &err), 0);
        assert_int_equal(seekable_bytes(s), text.len);
        assert_int_equal(seekable_read(s, 0, out, sizeof out, &err), text.len);
        assert_memory_equal(out, text.data, text.len);
        unsigned x = 7;
        for (int i = 0; text.len && i < 400; i++) {
            x = x * 1103515245 + 12345;
            size_t at = (x >> 4) % (text.len + 10), want = (x >> 9) % 150000;
            if (i % 3)
                want %= 300;
            size_t have = at < text.len ? text.len - at : 0;
            memset(out, 0, want + 1);
            assert_int_equal(seekable_read(s, (int64_t)at, out, want, &err),
                             want < have ? want : have);
            assert_memory_equal(out, text.data + (at < text.len ? at : 0),
                                want < have ? want : have);
            assert_int_equal(out[want < have ? want : have], 0);
        }
        assert_int_equal(seekable_read(s, -1, out, 10, &err), 0);
        seekable_close(s);
    }
}

static void
a_record_costs_a_frame_and_a_frame_read_twice_costs_once(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    struct seekable *s = NULL;
    struct err err;
    char out[100];
    text_make(&text, 4 << 20);
    AUTO_FD int fd = frames_make(&text, 1 << 20);
    assert_int_equal(seekable_open(fd, &s, &err), 0);
    assert_int_equal(seekable_bytes_read(s), 0);
    assert_int_equal(seekable_read(s, 3000000, out, 100, &err), 100);
    int64_t one = seekable_bytes_read(s);
    assert_in_range(one, 1000, SEEKABLE_FRAME);
    for (int i = 0; i < 50; i++)
        assert_int_equal(seekable_read(s, 3000000 + i, out, 100, &err), 100);
    assert_int_equal(seekable_bytes_read(s), one);
    seekable_close(s);
}

/* Frames of other sizes than ours, with checksums in the table: as others write
 * them. */
static int foreign(const struct buf *text, const size_t *sizes, size_t n,
                   unsigned char descriptor)
{
    CLEANUP(buf_release) struct buf file = {0}, table = {0};
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bound = ZSTD_compressBound(sizes[i]);
        buf_reserve(&file, bound);
        size_t len = ZSTD_compress(file.data + file.len, bound, text->data + at,
                                   sizes[i], 3);
        assert_false(ZSTD_isError(len));
        file.len += len;
        at += sizes[i];
        uint32_t entry[3] = {(uint32_t)len, (uint32_t)sizes[i], 0};
        buf_add(&table, entry, descriptor & 0x80 ? 12 : 8);
    }
    uint32_t head[2] = {0x184d2a5e, (uint32_t)table.len + 9};
    uint32_t frames = (uint32_t)n, magic = 0x8f92eab1;
    buf_add(&file, head, 8);
    buf_add(&file, table.data, table.len);
    buf_add(&file, &frames, 4);
    buf_add(&file, &descriptor, 1);
    buf_add(&file, &magic, 4);
    int fd = file_new();
    assert_int_equal(write(fd, file.data, file.len), file.len);
    return fd;
}

static void frames_of_others_are_read_where_they_are_short_enough(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    AUTO_FREE char *out = malloc(20 << 20);
    struct err err;
    text_make(&text, 20 << 20);
    /* an empty frame at either end and in the middle */
    const size_t sizes[] = {0, 5, 4000000, 0, 100, SEEKABLE_FRAME_MAX, 1, 0};
    size_t sum = 0;
    for (size_t i = 0; i < 8; i++)
        sum += sizes[i];
    for (int checksums = 0; checksums < 2; checksums++) {
        struct seekable *s = NULL;
        AUTO_FD int fd = foreign(&text, sizes, 8, checksums ? 0x80 : 0);
        assert_int_equal(seekable_open(fd, &s, &err), 0);
        assert_int_equal(seekable_bytes(s), sum);
        assert_int_equal(seekable_read(s, 0, out, 20 << 20, &err), sum);
        assert_memory_equal(out, text.data, sum);
        for (size_t at = 0; at < sum; at += 999983) {
            assert_int_equal(seekable_read(s, (int64_t)at, out, 1, &err), 1);
            assert_int_equal(out[0], text.data[at]);
        }
        seekable_close(s);
    }
    const size_t long_one[] = {10, SEEKABLE_FRAME_MAX + 1};
    struct seekable *s = NULL;
    AUTO_FD int fd = foreign(&text, long_one, 2, 0);
    assert_int_equal(seekable_open(fd, &s, &err), ERR_TOO_LARGE);
    assert_non_null(strstr(err.text, "frame 1"));
    AUTO_FD int odd = foreign(&text, sizes, 2, 0x04);
    assert_int_equal(seekable_open(odd, &s, &err), ERR_CORRUPT);
}

static void what_is_no_table_is_refused(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    struct seekable *s = NULL;
    struct err err;
    text_make(&text, 200000);
    AUTO_FD int whole = frames_make(&text, 4096);
    off_t size = lseek(whole, 0, SEEK_END);
    AUTO_FREE char *bytes = malloc((size_t)size);
    assert_int_equal(pread(whole, bytes, (size_t)size, 0), size);
    /* cut anywhere, even to nothing */
    for (off_t n = 0; n < size; n += n < 200 || n > size - 200 ? 1 : 997) {
        AUTO_FD int fd = file_new();
        assert_int_equal(write(fd, bytes, (size_t)n), n);
        assert_int_equal(seekable_open(fd, &s, &err), ERR_CORRUPT);
    }
    /* any number of the table changed, in its lowest and its highest bit */
    for (off_t at = size - 60; at < size; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            if (at == size - 5 && !bit)
                continue; /* means nothing */
            AUTO_FD int fd = file_new();
            bytes[at] ^= (char)(1 << bit);
            assert_int_equal(write(fd, bytes, (size_t)size), size);
            bytes[at] ^= (char)(1 << bit);
            int r = seekable_open(fd, &s, &err);
            if (r == 0) { /* sizes of text: found when it is read */
                AUTO_FREE char *out = malloc(40 << 20);
                assert_int_equal(seekable_read(s, 0, out, 40 << 20, &err),
                                 ERR_CORRUPT);
                seekable_close(s);
            }
        }
}

static void a_damaged_frame_is_named(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    static char out[400000];
    struct seekable *s = NULL;
    struct err err;
    text_make(&text, 400000);
    AUTO_FD int fd = frames_make(&text, 4096);
    assert_int_equal(seekable_open(fd, &s, &err), 0);
    char c;
    off_t at = lseek(fd, 0, SEEK_END) / 2;
    pread(fd, &c, 1, at);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    assert_int_equal(seekable_read(s, 0, out, sizeof out, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "frame "));
    assert_non_null(strstr(err.text, "damaged"));
    /* the others read on */
    assert_int_equal(seekable_read(s, 0, out, 1000, &err), 1000);
    assert_memory_equal(out, text.data, 1000);
    assert_int_equal(seekable_read(s, 399000, out, 1000, &err), 1000);
    assert_memory_equal(out, text.data + 399000, 1000);
    seekable_close(s);
}

static void a_file_that_shrank_is_an_error(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    static char out[400000];
    struct seekable *s = NULL;
    struct err err;
    text_make(&text, 400000);
    AUTO_FD int fd = frames_make(&text, 4096);
    assert_int_equal(seekable_open(fd, &s, &err), 0);
    assert_int_equal(ftruncate(fd, 1000), 0);
    assert_int_equal(seekable_read(s, 0, out, sizeof out, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "ends at 1000"));
    seekable_close(s);
}

static void it_is_a_zstd_file_like_any_other(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    text_make(&text, 300000);
    AUTO_FD int fd = frames_make(&text, 4096);
    size_t size = (size_t)lseek(fd, 0, SEEK_END);
    AUTO_FREE char *in = malloc(size);
    AUTO_FREE char *out = malloc(300000);
    assert_int_equal(pread(fd, in, size, 0), size);
    assert_int_equal(ZSTD_decompress(out, 300000, in, size), 300000);
    assert_memory_equal(out, text.data, 300000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_range_reads_as_the_text_does),
        cmocka_unit_test(
            a_record_costs_a_frame_and_a_frame_read_twice_costs_once),
        cmocka_unit_test(frames_of_others_are_read_where_they_are_short_enough),
        cmocka_unit_test(what_is_no_table_is_refused),
        cmocka_unit_test(a_damaged_frame_is_named),
        cmocka_unit_test(a_file_that_shrank_is_an_error),
        cmocka_unit_test(it_is_a_zstd_file_like_any_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
