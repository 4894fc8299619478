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
    assert_int_equal(truncate(path, 64 + 159), 0);
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
    assert_false(line_is_held_out(0, 0.999999999)); /* a line that is too long */
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
