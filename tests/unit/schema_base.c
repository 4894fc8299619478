/* Errors, buffers and digests: what everything else stands on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/err.h"

static void an_error_returns_its_code_and_forgets_the_one_before(void **state)
{
    struct err err = {.line = 7, .offset = 9, .field = "x", .shard = "s"};
    assert_int_equal(err_at(&err, ERR_INVALID, "/a/b", "%d is odd", 3),
                     ERR_INVALID);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.text, "3 is odd");
    assert_string_equal(err.pointer, "/a/b");
    assert_int_equal(err.line, 0);
    assert_string_equal(err.field, "");

    assert_int_equal(err_set(&err, ERR_STALE, "late"), ERR_STALE);
    assert_string_equal(err.pointer, "");
    assert_int_equal(err_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
}

static void an_error_may_quote_itself(void **state)
{
    struct err err;
    err_at(&err, ERR_INVALID, "/here", "inner");
    err_at(&err, ERR_INVALID, err.pointer, "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
    assert_string_equal(err.pointer, "/here");
}

static void an_error_is_utf8_whatever_it_quotes(void **state)
{
    struct err err;
    err_set(&err, ERR_DATA, "odd \xff\xc3( \xed\xa0\x80 \xf4\x90\x80\x80 é 😀");
    AUTO_JSON json_t *s = json_string(err.text);
    assert_non_null(s);
    assert_non_null(strstr(err.text, "é 😀"));

    char wide[sizeof err.text + 8]; /* cut within a character */
    memset(wide, 'a', sizeof wide);
    strcpy(wide + sizeof err.text - 2, "é");
    err_set(&err, ERR_DATA, "%s", wide);
    AUTO_JSON json_t *cut = json_string(err.text);
    assert_non_null(cut);
}

static void every_code_has_a_word(void **state)
{
    for (int code = ERR_INVALID; code >= ERR_RANGE; code--)
        for (int other = ERR_INVALID; other >= code; other--)
            assert_int_equal(!strcmp(err_word(code), err_word(other)),
                             code == other);
    assert_string_equal(err_word(ERR_STALE), "stale");
    assert_string_equal(err_word(-999), "unknown");
}

static void a_buffer_grows_and_stays_terminated(void **state)
{
    CLEANUP(buf_release) struct buf b = {0};
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_addf(&b, "%03d,", i), 0);
    assert_int_equal(b.len, 4000);
    assert_int_equal(b.data[b.len], 0);
    assert_memory_equal(b.data + 3996, "999,", 4);
    assert_int_equal(buf_add(&b, NULL, 0), 0);
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
}

static void a_buffer_refuses_a_length_that_overflows(void **state)
{
    CLEANUP(buf_release) struct buf b = {0};
    assert_int_equal(buf_adds(&b, "kept"), 0);
    assert_int_equal(buf_reserve(&b, SIZE_MAX - 2), -1);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), -1);
    assert_string_equal(b.data, "kept");
}

static const char abc[] =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static void a_digest_is_sha256_however_it_is_fed(void **state)
{
    uint8_t bytes[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_of("abc", 3, bytes);
    digest_hex(bytes, hex);
    assert_string_equal(hex, abc);

    struct digest *d = digest_new();
    assert_non_null(d);
    for (int round = 0; round < 2; round++) { /* end starts anew */
        digest_add(d, "a", 1);
        digest_add(d, "", 0);
        digest_add(d, "bc", 2);
        digest_end(d, bytes);
        digest_hex(bytes, hex);
        assert_string_equal(hex, abc);
    }
    digest_free(d);
    digest_free(NULL);
}

static void only_64_lower_case_hex_digits_are_a_digest(void **state)
{
    uint8_t bytes[DIGEST_BYTES];
    char hex[DIGEST_HEX], text[80];
    assert_int_equal(digest_parse(abc, bytes), 0);
    digest_hex(bytes, hex);
    assert_string_equal(hex, abc);
    assert_int_equal(digest_parse("", bytes), -1);
    snprintf(text, sizeof text, "%s0", abc);
    assert_int_equal(digest_parse(text, bytes), -1);
    snprintf(text, sizeof text, "%.63s", abc);
    assert_int_equal(digest_parse(text, bytes), -1);
    snprintf(text, sizeof text, "B%s", abc + 1);
    assert_int_equal(digest_parse(text, bytes), -1);
    snprintf(text, sizeof text, "g%s", abc + 1);
    assert_int_equal(digest_parse(text, bytes), -1);
}

static void equal_values_have_equal_digests(void **state)
{
    static const char *const same[] = {
        "{\"b\":[1,2.5,null],\"a\":\"x\"}",
        "{ \"a\" : \"x\", \"b\" : [1, 2.50, null] }",
    };
    static const char *const other[] = {
        "{\"b\":[1,2.5,null],\"a\":\"y\"}",
        "{\"b\":[1,2.5],\"a\":\"x\"}",
        "{\"b\":[1.0,2.5,null],\"a\":\"x\"}",
    };
    char first[DIGEST_HEX], second[DIGEST_HEX];
    AUTO_JSON json_t *a = json_loads(same[0], 0, NULL);
    AUTO_JSON json_t *b = json_loads(same[1], 0, NULL);
    digest_of_json(a, first);
    digest_of_json(b, second);
    assert_string_equal(first, second);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        AUTO_JSON json_t *c = json_loads(other[i], 0, NULL);
        digest_of_json(c, second);
        assert_string_not_equal(first, second);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_returns_its_code_and_forgets_the_one_before),
        cmocka_unit_test(an_error_may_quote_itself),
        cmocka_unit_test(an_error_is_utf8_whatever_it_quotes),
        cmocka_unit_test(every_code_has_a_word),
        cmocka_unit_test(a_buffer_grows_and_stays_terminated),
        cmocka_unit_test(a_buffer_refuses_a_length_that_overflows),
        cmocka_unit_test(a_digest_is_sha256_however_it_is_fed),
        cmocka_unit_test(only_64_lower_case_hex_digits_are_a_digest),
        cmocka_unit_test(equal_values_have_equal_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
