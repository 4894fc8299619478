/* JSON from outside, and its canonical form. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/json_read.h"

static int parse(const char *text, struct err *err)
{
    AUTO_JSON json_t *v = NULL;
    *err = (struct err){0};
    return json_parse_strict(text, strlen(text), &v, err);
}

static void a_million_brackets_are_an_ordinary_error(void **state)
{
    size_t n = 1000000;
    AUTO_FREE char *text = malloc(n);
    AUTO_JSON json_t *v = NULL;
    struct err err;
    memset(text, '[', n);
    assert_int_equal(json_parse_strict(text, n, &v, &err), ERR_INVALID);
    assert_null(v);
    assert_string_equal(err.text, "not valid JSON: line 1, column 65: nested "
                                  "deeper than 64 levels");
}

static void brackets_nest_to_the_limit_and_not_in_strings(void **state)
{
    struct err err;
    char text[300] = "";
    for (int i = 0; i < JSON_DEPTH_MAX; i++)
        strcat(text, "[");
    for (int i = 0; i < JSON_DEPTH_MAX; i++)
        strcat(text, "]");
    assert_int_equal(parse(text, &err), 0);
    assert_int_equal(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                           "[[[[[[[[[[[[[[[[[[[[[[[[[[ \\\" [[[[\"]",
                           &err),
                     0);
}

static void a_repeated_key_is_named_with_its_pointer(void **state)
{
    struct err err;
    assert_int_equal(parse("{\"lr\":0.1,\"lr\":10}", &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "\"lr\" is repeated"));
    assert_string_equal(err.pointer, "/lr");

    assert_int_equal(parse("{\"a\":[1,{\"x\":\"},{\",\"y/z\":{\"lr\":0.1,\n"
                           "\"k\":[1,2],\"lr\":10}}]}",
                           &err),
                     ERR_INVALID);
    assert_string_equal(err.pointer, "/a/1/y~1z/lr");
    assert_non_null(strstr(err.text, "line 2"));

    assert_int_equal(parse("{\"\\u006cr\":1,\"lr\":2}", &err), ERR_INVALID);
    assert_string_equal(err.pointer, "/lr");
}

static void a_number_that_does_not_fit_is_refused_not_rounded(void **state)
{
    struct err err;
    assert_int_equal(parse("{\"seed\":9223372036854775808}", &err),
                     ERR_INVALID);
    assert_string_equal(err.pointer, "/seed");
    assert_int_equal(parse("{\"t\":{\"lr\":[1,1e999]}}", &err), ERR_INVALID);
    assert_string_equal(err.pointer, "/t/lr/1");
    assert_int_equal(parse("{\"lr\":1e-400}", &err), 0);
}

static void broken_json_is_refused_with_its_place(void **state)
{
    static const char *const broken[] = {
        "",          " \n\t",
        "{",         "{\"a\":1",
        "{\"a\":}",  "{a:1}",
        "[1,]",      "nul",
        "NaN",       "[Infinity]",
        "{} {}",     "\"\\ud800\"",
        "\"\xff\"",  "[1] x",
        "01",        "\"\t\"",
        "'a'",       "+1",
        "{\"a\" 1}", "\xff\xfe{",
        "// no\n{}", "[\"\xed\xa0\x80\"]",
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct err err;
        if (parse(broken[i], &err) != ERR_INVALID)
            fail_msg("taken: %s", broken[i]);
        assert_non_null(strstr(err.text, "not valid JSON"));
    }
    struct err err;
    parse("{\n  \"a\": tru\n}", &err);
    assert_non_null(strstr(err.text, "line 2, column"));
}

static void broken_json_is_told_in_plain_words_with_its_field(void **state)
{
    static const char *const table[][3] = {
        {"{\"name\":\"\\u0000\"}", "/name", "a string holds \\u0000"},
        {"{\"a\":{\"\\u0000\":1}}", "/a", "a key holds \\u0000"},
        {"{\"t\":{\"lr\":NaN}}", "/t/lr", "'NaN' is no number"},
        {"{\"t\":[1,Infinity]}", "/t/1", "'Infinity' is no number"},
        {"{\"t\":-Infinity}", "/t", "'-' is no value"},
        {"{\"a\":tru}", "/a", "'tru' is no value here"},
        {"{\"a\":'x'}", "/a", "''' is no value here"},
        {"{\"a\":}", "/a", "'}' is no value here"},
        {"{\"a\":[1,]}", "/a/1", "']' is no value here"},
        {"{\"a\":01}", "/a", "is no value here"},
        {"{\"a\" 1}", "/a", "a colon must follow the key"},
        {"{\"a\":1 \"b\":2}", "/a", "a comma or } must come here"},
        {"{\"a\":[1 2]}", "/a/0", "a comma or ] must come here"},
        {"{\"a\":1,}", "/a", "a key in double quotes must come here"},
        {"{a:1}", "", "a key in double quotes must come here"},
        {"{\"a\":1", "/a", "a comma or } must come here"},
        {"{\"a\":\"x", "/a", "ends too soon"},
        {"{\"a\":\"x\ny\"}", "/a", "a line break"},
        {"{\"a\":\"x\ty\"}", "/a", "a control character"},
        {"{\"a\":\"\\q\"}", "/a", "begins no escape"},
        {"{\"a\":\"\\ud800\"}", "/a", "names no character"},
        {"{\"a\":\"\xff\"}", "/a", "not UTF-8"},
        {"{} {}", "", "more text after the end"},
        {"{\"a\":1e999}", "/a", "too large: line 1, column 10: 1e999"},
        {"", "", "there is no text"},
    };
    static const char *const wordings[] = {"token", "near", "JSON_", "byte 0x",
                                           "file"};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct err err;
        assert_int_equal(parse(table[i][0], &err), ERR_INVALID);
        if (!strstr(err.text, table[i][2]) || strcmp(err.pointer, table[i][1]))
            print_error("%s: at '%s': %s\n", table[i][0], err.pointer,
                        err.text);
        assert_non_null(strstr(err.text, table[i][2]));
        assert_string_equal(err.pointer, table[i][1]);
        for (size_t k = 0; k < sizeof wordings / sizeof *wordings; k++)
            assert_null(strstr(err.text, wordings[k]));
    }
}

static void a_nul_is_refused_wherever_it_stands(void **state)
{
    struct err err;
    AUTO_JSON json_t *v = NULL;
    assert_int_equal(json_parse_strict("{\"a\0\":1}", 8, &v, &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "NUL"));
    assert_int_equal(json_parse_strict("{}\0", 3, &v, &err), ERR_INVALID);
    assert_int_equal(json_parse_strict("{\"a\":\"\\u0000\"}", 14, &v, &err),
                     ERR_INVALID);
    assert_null(v);
}

static void a_utf8_mark_in_front_is_skipped(void **state)
{
    struct err err;
    assert_int_equal(parse("\xef\xbb\xbf{\"a\":1}", &err), 0);
}

/* How many digits it takes, found by trying; and how many a text has, without
 * zeros that only say where the point is. */
static int digits_needed(double v)
{
    char raw[40];
    int n = 0;
    do
        snprintf(raw, sizeof raw, "%.*e", n, v);
    while (strtod(raw, NULL) != v && ++n < 17);
    return n + 1;
}

static int digits_of(const char *text)
{
    char digits[64];
    int n = 0, from = 0;
    for (; *text && *text != 'e'; text++)
        if (*text >= '0' && *text <= '9')
            digits[n++] = *text;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    while (from < n - 1 && digits[from] == '0')
        from++;
    return n - from;
}

static void reals_have_the_fewest_digits_that_read_back(void **state)
{
    static const struct {
        double v;
        const char *text;
    } table[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {0.1, "0.1"},
        {100, "100.0"},
        {0.9, "0.9"},
        {-2.5, "-2.5"},
        {1e-5, "0.00001"},
        {1.5e-6, "1.5e-6"},
        {1e-8, "1e-8"},
        {1e16, "10000000000000000.0"},
        {1e17, "1e17"},
        {123456.789, "123456.789"},
        {1.0 / 3, "0.3333333333333333"},
        {1e300, "1e300"},
        {DBL_MAX, "1.7976931348623157e308"},
        {5e-324, "5e-324"},
        {9007199254740993.0, "9007199254740992.0"},
        {0.001, "0.001"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[JSON_REAL_MAX];
        json_real_text(table[i].v, text);
        assert_string_equal(text, table[i].text);
        assert_true(strtod(text, NULL) == table[i].v);
    }
    uint64_t x = 88172645463325252u; /* xorshift: any bits */
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double v;
        memcpy(&v, &x, sizeof v);
        switch (i % 8) {
        case 1: /* few digits */
            v = (double)(int)(x % 2000001) / 1000 - 1000;
            break;
        case 2: /* what a float becomes */
            v = (double)(float)((double)(x >> 40) / 8388608);
            break;
        case 3:
            v = ldexp(1, (int)(x % 2000) - 1070);
            break;
        case 4: /* subnormal */
            v = ldexp((double)(x % 4096), -1074);
            break;
        }
        if (v != v || v > DBL_MAX || v < -DBL_MAX)
            continue;
        char text[JSON_REAL_MAX];
        json_real_text(v, text);
        assert_true(strtod(text, NULL) == v);
        assert_int_equal(digits_of(text), digits_needed(v));
        AUTO_JSON json_t *back = json_loads(text, JSON_DECODE_ANY, NULL);
        assert_true(json_is_real(back));
    }
}

static void the_canonical_form_sorts_and_escapes(void **state)
{
    AUTO_JSON json_t *v = json_loads(
        "{\"b\": [1, -2, true, false, null, {}], \"a\\n\": \"q\\\"\\\\ \\u0001"
        "\\t\\u00e9/\", \"B\": 1.50, \"aa\": []}",
        0, NULL);
    CLEANUP(buf_release) struct buf out = {0};
    assert_int_equal(json_canonical(v, &out), 0);
    assert_string_equal(out.data, "{\"B\":1.5,\"a\\n\":\"q\\\"\\\\ \\u0001\\t"
                                  "é/\",\"aa\":[],\"b\":[1,-2,true,false,null,"
                                  "{}]}");
    AUTO_JSON json_t *back = json_loads(out.data, 0, NULL);
    assert_true(json_equal(v, back));
}

static void output_text_keeps_the_order_of_keys(void **state)
{
    AUTO_JSON json_t *v = json_loads("{\"b\":0.1,\"a\":[0.9,1]}", 0, NULL);
    CLEANUP(buf_release) struct buf out = {0};
    assert_int_equal(json_text(v, &out), 0);
    assert_string_equal(out.data, "{\"b\":0.1,\"a\":[0.9,1]}");
}

static void pointers_escape_and_never_overflow(void **state)
{
    char at[JSON_POINTER_MAX];
    json_pointer(at, "", "a/b~c");
    assert_string_equal(at, "/a~1b~0c");
    json_pointer_index(at, at, 12);
    assert_string_equal(at, "/a~1b~0c/12");
    for (int i = 0; i < 100; i++) {
        json_pointer(at, at, "~~~~~~~~");
        assert_true(strlen(at) < JSON_POINTER_MAX);
    }
}

static void a_reader_names_what_it_refuses(void **state)
{
    static const char *const words[] = {"red", "green", "blue", NULL};
    static const struct {
        const char *in, *pointer, *says;
    } table[] = {
        {"{\"n\":1.5}", "/at/n", "n must be an integer, not a real number"},
        {"{\"n\":\"1\"}", "/at/n", "n must be an integer, not a string"},
        {"{\"n\":11}", "/at/n", "n is 11, must be between 0 and 10"},
        {"{\"x\":2}", "/at/x", "x is 2, must be between 0 and 1"},
        {"{\"x\":true}", "/at/x", "x must be a number, not a boolean"},
        {"{\"s\":\"\"}", "/at/s", "s has 0 bytes, must have 1 to 4"},
        {"{\"s\":\"abcde\"}", "/at/s", "s has 5 bytes, must have 1 to 4"},
        {"{\"b\":0}", "/at/b", "b must be true or false, not an integer"},
        {"{\"w\":\"pink\"}", "/at/w",
         "w is \"pink\", must be red, green or blue"},
        {"{\"w\":1}", "/at/w", "w must be red, green or blue, not an integer"},
        {"{\"o\":[]}", "/at/o", "o must be an object, not an array"},
        {"{\"l\":[1,2,3]}", "/at/l", "l has 3 entries, at most 2 are allowed"},
        {"{\"nn\":1}", "/at/nn",
         "unknown field \"nn\" (known here: n, x, s, "
         "b, w, o, l)"},
        {"[]", "/at", "at must be an object, not an array"},
        {"3", "/at", "at must be an object, not an integer"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *v = json_loads(table[i].in, JSON_DECODE_ANY, NULL);
        struct err err = {0};
        struct json_read r;
        json_read_open(&r, v, "/at", &err, "n", "x", "s", "b", "w", "o", "l",
                       NULL);
        json_read_int(&r, "n", 0, 10, 5);
        json_read_real(&r, "x", 0, 1, 0.5);
        json_read_string(&r, "s", 4, "dflt");
        json_read_bool(&r, "b", true);
        json_read_word(&r, "w", words, 1);
        json_read_object(&r, "o");
        json_read_array(&r, "l", 2);
        assert_int_equal(r.r, ERR_INVALID);
        assert_string_equal(err.text, table[i].says);
        assert_string_equal(err.pointer, table[i].pointer);
    }
}

static void what_is_absent_or_null_takes_its_fallback(void **state)
{
    static const char *const in[] = {"{}", "null", "{\"n\":null,\"x\":null}"};
    for (size_t i = 0; i < 3; i++) {
        AUTO_JSON json_t *v = json_loads(in[i], JSON_DECODE_ANY, NULL);
        struct err err = {0};
        struct json_read r;
        json_read_open(&r, v, "", &err, "n", "x", NULL);
        assert_int_equal(json_read_int(&r, "n", 0, 10, 5), 5);
        assert_true(json_read_real(&r, "x", 0, 1, 0.5) == 0.5);
        assert_int_equal(r.r, 0);
        json_read_need(&r, "n");
        json_read_need(&r, "x"); /* the first error stays */
        assert_int_equal(r.r, ERR_INVALID);
        assert_string_equal(err.pointer, "/n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_brackets_are_an_ordinary_error),
        cmocka_unit_test(brackets_nest_to_the_limit_and_not_in_strings),
        cmocka_unit_test(a_repeated_key_is_named_with_its_pointer),
        cmocka_unit_test(a_number_that_does_not_fit_is_refused_not_rounded),
        cmocka_unit_test(broken_json_is_refused_with_its_place),
        cmocka_unit_test(broken_json_is_told_in_plain_words_with_its_field),
        cmocka_unit_test(a_nul_is_refused_wherever_it_stands),
        cmocka_unit_test(a_utf8_mark_in_front_is_skipped),
        cmocka_unit_test(reals_have_the_fewest_digits_that_read_back),
        cmocka_unit_test(the_canonical_form_sorts_and_escapes),
        cmocka_unit_test(output_text_keeps_the_order_of_keys),
        cmocka_unit_test(pointers_escape_and_never_overflow),
        cmocka_unit_test(a_reader_names_what_it_refuses),
        cmocka_unit_test(what_is_absent_or_null_takes_its_fallback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
