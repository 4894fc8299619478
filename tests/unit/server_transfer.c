/* What the headers of an upload say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "server/transfer.h"

static struct err err;

static void a_header_comes_before_the_name(void **state)
{
    static const struct {
        const char *encoding, *shard;
        int r;
        enum packing packing;
        bool by_name;
    } table[] = {
        {NULL, "a.jsonl", 0, PACKING_NONE, false},
        {NULL, "a.jsonl.gz", 0, PACKING_GZIP, true},
        {NULL, "a.jsonl.zst", 0, PACKING_ZSTD, true},
        {"identity", "a.zst", 0, PACKING_ZSTD, true},
        {"", "a.jsonl", 0, PACKING_NONE, false},
        {"gzip", "a.jsonl", 0, PACKING_GZIP, false},
        {"GZIP", "a.jsonl.gz", 0, PACKING_GZIP, false},
        {"x-gzip", NULL, 0, PACKING_GZIP, false},
        {"zstd", NULL, 0, PACKING_ZSTD, false},
        {"zstd", "a.gz", 0, PACKING_ZSTD, false},
        {NULL, NULL, 0, PACKING_NONE, false},
        {"br", "a.jsonl", ERR_MEDIA, 0, false},
        {"gzip, zstd", "a.jsonl", ERR_MEDIA, 0, false},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        enum packing packing;
        bool by_name;
        int r = transfer_packing(table[i].encoding, table[i].shard, &packing,
                                 &by_name, &err);
        assert_int_equal(r, table[i].r);
        if (r < 0)
            continue;
        assert_int_equal(packing, table[i].packing);
        assert_int_equal(by_name, table[i].by_name);
    }
}

static void a_part_goes_to_the_end(void **state)
{
    int64_t first = 0, total = 0;
    assert_int_equal(transfer_range(NULL, &first, &total, &err), 0);
    assert_int_equal(
        transfer_range("bytes 1048576-4999999/5000000", &first, &total, &err),
        1);
    assert_int_equal(first, 1048576);
    assert_int_equal(total, 5000000);
    assert_int_equal(transfer_range("bytes 0-0/1", &first, &total, &err), 1);
    static const char *const bad[] = {
        "",
        "bytes",
        "bytes ",
        "bytes 5-9/11",
        "bytes 5-9/*",
        "bytes 9-5/6",
        "bytes 5-10/10",
        "bytes */10",
        "bytes -5/10",
        "bytes 5-/10",
        "bytes 5-9/10 ",
        "bytes=5-9/10",
        "items 5-9/10",
        "bytes 99999999999999999999-99999999999999999999/9",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(transfer_range(bad[i], &first, &total, &err),
                         ERR_INVALID);
}

static void a_digest_is_read_from_its_list(void **state)
{
    /* of no bytes at all */
    static const char one[] =
        "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
    static const char list[] =
        "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:, "
        "SHA-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=: ,unixsum=1";
    uint8_t sum[DIGEST_BYTES], want[DIGEST_BYTES];
    digest_of("", 0, want);
    assert_int_equal(transfer_digest(NULL, sum, &err), 0);
    assert_int_equal(transfer_digest("", sum, &err), 0);
    assert_int_equal(
        transfer_digest("md5=:1B2M2Y8AsgTpgAmY7PhCfg==:", sum, &err), 0);
    assert_int_equal(transfer_digest(one, sum, &err), 1);
    assert_memory_equal(sum, want, DIGEST_BYTES);
    memset(sum, 0, sizeof(sum));
    assert_int_equal(transfer_digest(list, sum, &err), 1);
    assert_memory_equal(sum, want, DIGEST_BYTES);
    static const char *const bad[] = {
        "sha-256=",
        "sha-256=::",
        "sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuF==:",
        "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hS*FU=:",
        "sha-256=:e3b0c44298fc1c149afbf4c8996fb924:",
        "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFVV:",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(transfer_digest(bad[i], sum, &err), ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_before_the_name),
        cmocka_unit_test(a_part_goes_to_the_end),
        cmocka_unit_test(a_digest_is_read_from_its_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
