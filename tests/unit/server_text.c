/* JSON answers as text and as CSV; what Accept, Range and If-None-Match ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "server/reply.h"
#include "server/text.h"

static void text_is(const char *json, const char *text)
{
    CLEANUP(buf_release) struct buf out = {0};
    AUTO_JSON json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    assert_int_equal(text_render(value, &out), 0);
    assert_string_equal(out.data, text);
}

static void a_list_is_a_table(void **state)
{
    text_is("{\"items\": [{\"id\": 7, \"name\": \"a\", \"state\": \"running\","
            "  \"progress\": {\"fraction\": 0.5}, \"reason\": null},"
            " {\"id\": 112, \"name\": \"ünï\", \"state\": \"failed\","
            "  \"progress\": {\"fraction\": 0.25}, \"reason\": \"no\"}],"
            " \"next\": \"abc\"}",
            " id  name  state    progress  reason\n"
            "  7  a     running     50.0%  -\n"
            "112  ünï   failed      25.0%  no\n"
            "next  abc\n");
    text_is("{\"items\": []}", "(none)\n");
}

static void an_object_is_lines_with_dotted_keys(void **state)
{
    text_is("{\"id\": 1, \"exact\": {\"tier\": \"bit\", \"since_step\": null},"
            " \"labels\": {}, \"on\": true, \"list\": [1, 2.5],"
            " \"leases\": [{\"id\": 3}]}",
            "id                1\n"
            "exact.tier        bit\n"
            "exact.since_step  -\n"
            "labels            -\n"
            "on                yes\n"
            "list              1, 2.5\n"
            "leases\n"
            "  id\n"
            "   3\n");
}

static void an_answer_cannot_drive_the_terminal(void **state)
{
    text_is("{\"name\": \"a\\u001b[31m\\nb\\u009bc\\u007f\"}",
            "name  a\\x1b[31m\\nb\\x9bc\\x7f\n");
    text_is("{\"k\\u001b\": 1}", "k\\x1b  1\n");
}

static void csv_quotes_what_needs_it(void **state)
{
    CLEANUP(buf_release) struct buf out = {0};
    AUTO_JSON json_t *value = json_loads(
        "{\"items\": [{\"a\": \"x,\\\"y\\\"\", \"b\": 0.1}, {\"b\": null,"
        " \"c\": true}]}",
        0, NULL);
    assert_int_equal(text_csv(value, &out), 0);
    assert_string_equal(out.data, "a,b,c\n\"x,\"\"y\"\"\",0.1,\n,,true\n");
    AUTO_JSON json_t *object = json_pack("{s:i}", "a", 1);
    assert_int_equal(text_csv(object, &out), 1);
}

static void accept_picks_what_it_likes_best(void **state)
{
    assert_int_equal(accept_parse(NULL), AS_JSON);
    assert_int_equal(accept_parse("*/*"), AS_JSON);
    assert_int_equal(accept_parse("text/plain"), AS_TEXT);
    assert_int_equal(accept_parse("Text/CSV; charset=utf-8"), AS_CSV);
    assert_int_equal(accept_parse("application/json;q=0.5, text/plain"),
                     AS_TEXT);
    assert_int_equal(accept_parse("text/plain;q=0.1, */*"), AS_JSON);
    assert_int_equal(accept_parse("text/html,application/xml;q=0.9,*/*;q=0.8"),
                     AS_JSON);
    assert_int_equal(accept_parse("image/png"), AS_JSON);
    assert_int_equal(accept_parse(";;,,;q=;text/plain"), AS_JSON);
}

static void a_range_stays_within_the_body(void **state)
{
    int64_t first = -1, count = -1;
    assert_int_equal(range_parse("bytes=0-9", 100, &first, &count), 1);
    assert_int_equal(first, 0);
    assert_int_equal(count, 10);
    assert_int_equal(range_parse("bytes=90-", 100, &first, &count), 1);
    assert_int_equal(count, 10);
    assert_int_equal(range_parse("bytes=-30", 100, &first, &count), 1);
    assert_int_equal(first, 70);
    assert_int_equal(range_parse("bytes=50-999", 100, &first, &count), 1);
    assert_int_equal(count, 50);
    assert_int_equal(range_parse("bytes=-999", 100, &first, &count), 1);
    assert_int_equal(count, 100);
    assert_int_equal(range_parse("bytes=100-", 100, &first, &count), ERR_RANGE);
    assert_int_equal(range_parse("bytes=-0", 100, &first, &count), ERR_RANGE);
    assert_int_equal(range_parse("bytes=0-", 0, &first, &count), ERR_RANGE);
    static const char *const whole[] = {"bytes=9-5", "bytes=0-1,3-4",
                                        "bytes=",    "items=0-1",
                                        "bytes=a-b", "bytes=1-2x"};
    for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++)
        assert_int_equal(range_parse(whole[i], 100, &first, &count), 0);
    assert_int_equal(range_parse(NULL, 100, &first, &count), 0);
}

static void an_etag_is_found_in_a_list(void **state)
{
    assert_true(etag_matches("\"x\", W/\"abc\"", "\"abc\""));
    assert_true(etag_matches("*", "\"abc\""));
    assert_false(etag_matches("\"abcd\"", "\"abc\""));
    assert_false(etag_matches("abc", "\"abc\""));
    assert_false(etag_matches("", "\"abc\""));
    assert_false(etag_matches(NULL, "\"abc\""));
}

static void a_problem_says_where(void **state)
{
    struct err err;
    struct reply reply = {0};
    err_at(&err, ERR_INVALID, "/model/heads", "must be above 0");
    assert_int_equal(reply_problem(&reply, &err, 400), 0);
    AUTO_JSON json_t *o = json_loads(reply.bytes.data, 0, NULL);
    assert_string_equal(reply.type, "application/problem+json");
    assert_int_equal(json_integer_value(json_object_get(o, "status")), 400);
    assert_string_equal(json_string_value(json_object_get(o, "pointer")),
                        "/model/heads");
    assert_string_equal(json_string_value(json_object_get(o, "detail")),
                        "must be above 0");
    assert_non_null(json_object_get(o, "title"));
    err_set(&err, ERR_INVALID, "bytes \xff\xfe from outside");
    assert_int_equal(reply_problem(&reply, &err, 400), 0);
    assert_int_equal(reply.status, 400);
    reply_clear(&reply);
}

static void a_header_cannot_begin_another(void **state)
{
    struct reply reply = {0};
    reply_header(&reply, "X", "a\r\nSet-Cookie: b");
    assert_string_equal(reply.headers[0].value, "a  Set-Cookie: b");
    reply_clear(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_a_table),
        cmocka_unit_test(an_object_is_lines_with_dotted_keys),
        cmocka_unit_test(an_answer_cannot_drive_the_terminal),
        cmocka_unit_test(csv_quotes_what_needs_it),
        cmocka_unit_test(accept_picks_what_it_likes_best),
        cmocka_unit_test(a_range_stays_within_the_body),
        cmocka_unit_test(an_etag_is_found_in_a_list),
        cmocka_unit_test(a_problem_says_where),
        cmocka_unit_test(a_header_cannot_begin_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
