/* Where records begin and end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "schema/lines.h"

static void records_and_lines_count_alike_for_any_split(void **state)
{
    static const struct {
        const char *text;
        int lines, records;
    } table[] = {
        {"", 0, 0},
        {"\n\n\n", 3, 0},
        {"\xef\xbb\xbf", 0, 0},
        {"\xef\xbb\xbf\n", 1, 0},
        {"\xef\xbb\xbf{}\n{}\n", 2, 2},
        {"\xef\xbb\xbf{}", 1, 1},
        {"\xef\xbb", 1, 1}, /* half a mark is text */
        {"\xef\xbb{}\n", 1, 1},
        {"\xef\n", 1, 1},
        {"{}\n\xef\xbb\xbf{}\n", 2, 2}, /* elsewhere it is the decoder's */
        {"{}\n{}\n", 2, 2},
        {"{}\n{}", 2, 2},
        {"{}\r\n{}\r\n", 2, 2},
        {"{}\r\n{}\n\r\n", 3, 2},
        {"{}\n\n{}\n \t\n{}", 5, 3},
        {"{}\n \t", 2, 1}, /* a blank last line without an end */
        {" {}\n", 1, 1},
        {"\r", 1, 0},
        {"{}\r{}\n", 1, 1}, /* a lone CR ends nothing */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *text = table[i].text;
        size_t len = strlen(text);
        for (size_t a = 0; a <= len; a++)
            for (size_t b = a; b <= len; b++) {
                struct line_count c = {0};
                line_count_add(&c, text, a);
                line_count_add(&c, text + a, b - a);
                line_count_add(&c, text + b, len - b);
                line_count_end(&c);
                assert_int_equal(c.bytes, len);
                assert_int_equal(c.lines, table[i].lines);
                assert_int_equal(c.records, table[i].records);
            }
        struct line_count c = {0};
        for (size_t k = 0; k < len; k++)
            line_count_add(&c, text + k, 1);
        line_count_end(&c);
        assert_int_equal(c.lines, table[i].lines);
        assert_int_equal(c.records, table[i].records);
    }
}

static void an_unfinished_line_counts_only_at_the_end(void **state)
{
    struct line_count c = {0};
    line_count_add(&c, "{}\n{\"a\"", 7);
    assert_int_equal(c.lines, 1);
    assert_int_equal(c.records, 1);
    struct line_count rest = c; /* goes on in a copy */
    line_count_add(&rest, ":1}\n", 4);
    assert_int_equal(rest.records, 2);
    line_count_end(&c);
    assert_int_equal(c.records, 2);
}

static void a_blank_line_has_spaces_tabs_and_cr_only(void **state)
{
    assert_true(line_is_blank("", 0));
    assert_true(line_is_blank(" \t\r", 3));
    assert_false(line_is_blank("  {", 3));
    assert_false(line_is_blank("\0", 1));
    assert_false(line_is_blank("\xc2\xa0", 2)); /* no-break space */
}

static void a_mark_is_three_bytes_at_the_start(void **state)
{
    assert_int_equal(line_bom("\xef\xbb\xbf{}", 5), 3);
    assert_int_equal(line_bom("\xef\xbb\xbf", 3), 3);
    assert_int_equal(line_bom("\xef\xbb", 2), 0);
    assert_int_equal(line_bom("{}", 2), 0);
    assert_int_equal(line_bom("\xff\xfe{", 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_lines_count_alike_for_any_split),
        cmocka_unit_test(an_unfinished_line_counts_only_at_the_end),
        cmocka_unit_test(a_blank_line_has_spaces_tabs_and_cr_only),
        cmocka_unit_test(a_mark_is_three_bytes_at_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
