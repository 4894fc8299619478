/* A body on its way to disk. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "server/upload.h"

static struct err err;
static char dir[64], target[128];

static int setup(void **state)
{
    strcpy(dir, "/tmp/pawl-upload-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(target, sizeof(target), "%s/set/shard.jsonl", dir);
    return 0;
}

static int teardown(void **state)
{
    char set[128];
    snprintf(set, sizeof(set), "%s/set", dir);
    unlink(target);
    rmdir(set);
    return rmdir(dir); /* fails when anything was left behind */
}

static struct upload *begin(void)
{
    struct upload *u = NULL;
    assert_int_equal(upload_new(dir, &u, &err), 0);
    return u;
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

    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_of(data, len, sum);
    digest_hex(sum, hex);
    assert_string_equal(u->sha256, hex);
    assert_int_equal(u->n_blocks, 3);
    digest_of(data + WIRE_BLOCK_BYTES, WIRE_BLOCK_BYTES, sum);
    digest_hex(sum, hex);
    assert_string_equal(u->blocks[1], hex);
    digest_of(data + 2 * WIRE_BLOCK_BYTES, 123, sum);
    digest_hex(sum, hex);
    assert_string_equal(u->blocks[2], hex);
    assert_int_equal(u->lines.bytes, (int64_t)len);
    assert_int_equal(u->lines.records, (int64_t)(len + 99) / 100);
    upload_free(u);
}

static void compressed_bytes_are_named_however_cut(void **state)
{
    static const struct {
        const char *name, *bytes;
    } files[] = {
        {"gzip", "\x1f\x8b\x08\x01more"},
        {"zstd", "\x28\xb5\x2f\xfd\x24more"},
        {"bzip2", "BZh91AY"},
        {"xz", "\xfd"
               "7zXZ\x01more"},
    };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        for (size_t step = 1; step < 8; step++) {
            struct upload *u = begin();
            size_t len = strlen(files[i].bytes);
            int r = 0;
            for (size_t at = 0; at < len && r >= 0; at += step)
                r = upload_add(u, files[i].bytes + at,
                               at + step > len ? len - at : step, &err);
            assert_int_equal(r, ERR_MEDIA);
            assert_non_null(strstr(err.text, files[i].name));
            upload_free(u);
        }
}

static void a_published_upload_keeps_its_inode(void **state)
{
    struct stat before, after;
    struct upload *u = begin();
    assert_int_equal(upload_add(u, "{}\n", 3, &err), 0);
    assert_int_equal(upload_end(u, &err), 0);
    fstat(u->fd, &before);
    assert_int_equal(upload_publish(u, target, &err), 0);
    upload_free(u);
    assert_int_equal(stat(target, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_size, 3);
}

static void an_abandoned_upload_leaves_nothing(void **state)
{
    struct upload *u = begin();
    assert_int_equal(upload_add(u, "{}\n", 3, &err), 0);
    upload_free(u);
    /* teardown's rmdir is the check */
}

static void an_empty_shard_has_no_blocks(void **state)
{
    struct upload *u = begin();
    assert_int_equal(upload_end(u, &err), 0);
    assert_int_equal(u->n_blocks, 0);
    assert_int_equal(u->lines.records, 0);
    upload_free(u);
}

static void a_folder_that_is_gone_is_said(void **state)
{
    struct upload *u = NULL;
    assert_int_equal(upload_new("/nonexistent/tmp", &u, &err), ERR_IO);
    assert_null(u);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(digests_are_those_of_the_bytes_however_cut),
        TEST(compressed_bytes_are_named_however_cut),
        TEST(a_published_upload_keeps_its_inode),
        TEST(an_abandoned_upload_leaves_nothing),
        TEST(an_empty_shard_has_no_blocks),
        TEST(a_folder_that_is_gone_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
