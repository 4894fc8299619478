/* Where the records of a shard begin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"

static char folder[] = "/tmp/pawl-index-XXXXXX";
static char path[200];
static uint8_t sum[DIGEST_BYTES];

static int setup(void **state)
{
    snprintf(path, sizeof path, "%s/index", mkdtemp(folder));
    digest_of("text", 4, sum);
    return 0;
}

static int teardown(void **state)
{
    unlink(path);
    return rmdir(folder);
}

static void make(int64_t n)
{
    struct err err;
    struct line_index_writer *w = NULL;
    assert_int_equal(line_index_new(path, &w, &err), 0);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(
            line_index_add(w, i * 1000003, i % 5000, (uint64_t)i * 3, &err), 0);
    assert_int_equal(line_index_end(w, sum, &err), 0);
    line_index_free(w);
}

static void what_was_added_is_there(void **state)
{
    static const int64_t counts[] = {0, 1, 4095, 4096, 4097, 20000};
    for (size_t k = 0; k < 6; k++) {
        struct line_index x;
        struct err err;
        make(counts[k]);
        assert_int_equal(line_index_open(path, sum, counts[k], &x, &err), 0);
        assert_int_equal(x.n, counts[k]);
        int64_t bytes;
        assert_int_equal(line_index_check(&x, 0, x.n, &bytes, &err), 0);
        assert_int_equal(bytes, 16 * x.n);
        assert_int_equal(line_index_check(&x, 0, x.n, &bytes, &err), 0);
        assert_int_equal(bytes, 0); /* looked at once */
        for (int64_t i = 0; i < x.n; i++) {
            assert_int_equal(line_entry_offset(&x.v[i]), i * 1000003);
            assert_int_equal(line_entry_length(&x.v[i]), i % 5000);
            assert_int_equal(x.v[i].hash, i * 3);
        }
        line_index_close(&x);
    }
}

static void
the_longest_and_farthest_line_fits_and_longer_ones_are_marked(void **state)
{
    struct err err;
    struct line_index x;
    struct line_index_writer *w = NULL;
    int64_t far = ((int64_t)1 << 40) - 1;
    assert_int_equal(line_index_new(path, &w, &err), 0);
    assert_int_equal(line_index_add(w, far, LINE_MAX_BYTES, 5, &err), 0);
    assert_int_equal(line_index_add(w, far, LINE_MAX_BYTES + 1, 5, &err), 0);
    assert_int_equal(line_index_add(w, far + 1, 3, 5, &err), ERR_TOO_LARGE);
    assert_int_equal(line_index_end(w, sum, &err), 0);
    line_index_free(w);
    assert_int_equal(line_index_open(path, sum, 2, &x, &err), 0);
    assert_int_equal(line_entry_offset(&x.v[0]), far);
    assert_int_equal(line_entry_length(&x.v[0]), LINE_MAX_BYTES);
    assert_int_equal(line_entry_offset(&x.v[1]), far);
    assert_int_equal(line_entry_length(&x.v[1]), 0);
    assert_int_equal(x.v[1].hash, 0);
    line_index_close(&x);
}

static void one_that_was_not_ended_is_none(void **state)
{
    struct err err;
    struct line_index x;
    struct line_index_writer *w = NULL;
    assert_int_equal(line_index_new(path, &w, &err), 0);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(line_index_add(w, i, 1, 1, &err), 0);
    assert_int_equal(line_index_open(path, sum, 4096, &x, &err), ERR_CORRUPT);
    assert_int_equal(access(path, F_OK), 0);
    line_index_free(w);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(line_index_open(path, sum, 4096, &x, &err), ERR_NOT_FOUND);
}

static void another_texts_index_and_a_damaged_one_are_refused(void **state)
{
    struct err err;
    struct line_index x;
    uint8_t other[DIGEST_BYTES];
    digest_of("other", 5, other);
    make(10);
    assert_int_equal(line_index_open(path, other, 10, &x, &err), ERR_CORRUPT);
    assert_int_equal(line_index_open(path, sum, 9, &x, &err), ERR_CORRUPT);
    assert_int_equal(line_index_open(path, sum, 11, &x, &err), ERR_CORRUPT);
    assert_int_equal(truncate(path, 64 + 167), 0);
    assert_int_equal(line_index_open(path, sum, 10, &x, &err), ERR_CORRUPT);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(line_index_open(path, sum, 0, &x, &err), ERR_CORRUPT);
    for (int at = 0; at < LINE_INDEX_HEAD; at++) {
        make(10);
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
        unsigned char c;
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c ^= 1;
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
        assert_int_equal(line_index_open(path, sum, 10, &x, &err), ERR_CORRUPT);
    }
    /* an entry, or two that stand in each other's place, or a whole page that
     * does: in the body and in the table of hashes */
    for (int at = LINE_INDEX_HEAD; at < LINE_INDEX_HEAD + 600 * 16 + 3 * 8;
         at += 7) {
        make(600);
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
        unsigned char c;
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c ^= 1;
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
        int r = line_index_open(path, sum, 600, &x, &err);
        if (at >= LINE_INDEX_HEAD + 600 * 16) {
            assert_int_equal(r, ERR_CORRUPT);
            continue;
        }
        assert_int_equal(r, 0);
        int64_t entry = (at - LINE_INDEX_HEAD) / 16, page = entry / 256 * 256;
        assert_int_equal(line_index_check(&x, entry, 1, NULL, &err),
                         ERR_CORRUPT);
        assert_int_equal(line_index_check(&x, 0, 600, NULL, &err), ERR_CORRUPT);
        if (page)
            assert_int_equal(line_index_check(&x, 0, page, NULL, &err), 0);
        line_index_close(&x);
    }
    static const int swaps[][3] = {{3, 7, 1}, {0, 256, 256}, {10, 520, 1}};
    for (size_t k = 0; k < 3; k++) {
        make(600);
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
        struct line_entry a[256], b[256];
        off_t at_a = LINE_INDEX_HEAD + 16 * swaps[k][0],
              at_b = LINE_INDEX_HEAD + 16 * swaps[k][1];
        size_t len = 16 * (size_t)swaps[k][2];
        assert_int_equal(pread(fd, a, len, at_a), len);
        assert_int_equal(pread(fd, b, len, at_b), len);
        assert_int_equal(pwrite(fd, b, len, at_a), len);
        assert_int_equal(pwrite(fd, a, len, at_b), len);
        assert_int_equal(line_index_open(path, sum, 600, &x, &err), 0);
        assert_int_equal(line_index_check(&x, swaps[k][0], 1, NULL, &err),
                         ERR_CORRUPT);
        line_index_close(&x);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(line_index_open(path, sum, 0, &x, &err), ERR_CORRUPT);
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_equal(line_index_open(path, sum, 0, &x, &err), ERR_IO);
}

static void a_fraction_is_held_out_by_the_hash_alone(void **state)
{
    int held = 0, both = 0, few = 0;
    for (int i = 0; i < 100000; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "{\"x\":%d}", i);
        uint64_t h = line_hash(line, (size_t)n);
        assert_false(line_is_held_out(h, 0));
        held += line_is_held_out(h, 0.1);
        few += line_is_held_out(h, 0.01);
        both += line_is_held_out(h, 0.1) && line_is_held_out(h, 0.01);
    }
    assert_in_range(held, 9700, 10300);
    assert_in_range(few, 900, 1100);
    assert_int_equal(both, few); /* more held out are the same and more */
    assert_true(line_is_held_out(1, 1e-300));
    assert_false(
        line_is_held_out(0, 0.999999999)); /* a line that is too long */
    assert_false(line_is_held_out(UINT64_MAX, 0.999999999));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_added_is_there),
        cmocka_unit_test(
            the_longest_and_farthest_line_fits_and_longer_ones_are_marked),
        cmocka_unit_test(one_that_was_not_ended_is_none),
        cmocka_unit_test(another_texts_index_and_a_damaged_one_are_refused),
        cmocka_unit_test(a_fraction_is_held_out_by_the_hash_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
