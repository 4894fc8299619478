/* Requests that are refused for their headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "server/guard.h"

static struct err err;

static void a_body_has_one_length(void **state)
{
    const struct guard fine[] = {
        {.method = "GET"},
        {.method = "POST", .lengths = 1, .length = "0"},
        {.method = "POST", .codings = 1, .coding = "Chunked"},
    };
    const struct guard wrong[] = {
        {.method = "POST", .lengths = 2, .length = "2"},
        {.method = "POST",
         .lengths = 1,
         .length = "2",
         .codings = 1,
         .coding = "chunked"},
        {.method = "POST", .codings = 2, .coding = "chunked"},
        {.method = "POST", .codings = 1, .coding = "xchunked"},
        {.method = "POST", .codings = 1, .coding = "gzip, chunked"},
        {.method = "POST", .lengths = 1, .length = "+2"},
        {.method = "POST", .lengths = 1, .length = "2 2"},
        {.method = "POST", .lengths = 1, .length = ""},
        {.method = "POST", .lengths = 1, .length = "99999999999999999999"},
        {.method = "GET", .hosts = 2, .host = "localhost"},
        {.method = "GET", .authorizations = 2},
    };
    for (size_t i = 0; i < sizeof(fine) / sizeof(*fine); i++)
        assert_int_equal(guard_framing(&fine[i], &err), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_int_equal(guard_framing(&wrong[i], &err), ERR_INVALID);
}

static int host(const char *name, const struct guard_names *names)
{
    struct guard g = {.method = "GET", .hosts = 1, .host = name};
    return guard_host(&g, names, &err);
}

static void only_our_own_names_are_answered(void **state)
{
    static const char *const list[] = {"10.0.0.7", "gpu.lab.example"};
    const struct guard_names names = {.names = list, .n = 2};
    static const char *const fine[] = {
        "localhost",       "LOCALHOST:7295",     "127.0.0.1:1",
        "[::1]",           "[::1]:80",           "10.0.0.7:80",
        "GPU.lab.example", "gpu.lab.example.:80"};
    static const char *const foreign[] = {"evil.example",
                                          "localhost.evil.example", "10.0.0.8",
                                          "127.0.0.1.nip.io", "xlocalhost"};
    static const char *const broken[] = {"",     ":80",    "a:b",
                                         "[::1", "[::1]x", "localhost:80@evil"};
    for (size_t i = 0; i < sizeof(fine) / sizeof(*fine); i++)
        assert_int_equal(host(fine[i], &names), 0);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++)
        assert_int_equal(host(foreign[i], &names), ERR_FORBIDDEN);
    for (size_t i = 0; i < sizeof(broken) / sizeof(*broken); i++)
        assert_int_equal(host(broken[i], &names), ERR_INVALID);
    assert_int_equal(host(NULL, &names), ERR_INVALID);
}

static void a_wildcard_is_called_by_any_address_but_no_name(void **state)
{
    const struct guard_names names = {.any_address = true};
    assert_int_equal(host("192.168.1.9:80", &names), 0);
    assert_int_equal(host("[fe80::1]:80", &names), 0);
    assert_int_equal(host("rebound.example", &names), ERR_FORBIDDEN);
}

static void a_unix_socket_has_no_name(void **state)
{
    const struct guard_names names = {0};
    struct guard g = {.method = "GET", .is_unix = true, .host = "anything"};
    assert_int_equal(guard_host(&g, &names, &err), 0);
}

static void a_foreign_page_changes_nothing(void **state)
{
    struct guard g = {.method = "POST", .host = "127.0.0.1:7295"};
    assert_int_equal(guard_origin(&g, &err), 0); /* no browser */
    g.origin = "http://127.0.0.1:7295";
    assert_int_equal(guard_origin(&g, &err), 0);
    g.fetch_site = "same-origin";
    assert_int_equal(guard_origin(&g, &err), 0);
    g.fetch_site = "same-site"; /* another port of this host */
    assert_int_equal(guard_origin(&g, &err), ERR_FORBIDDEN);
    g.fetch_site = NULL;
    static const char *const foreign[] = {"http://127.0.0.1:7296", "null", "",
                                          "http://evil.example"};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++) {
        g.origin = foreign[i];
        assert_int_equal(guard_origin(&g, &err), ERR_FORBIDDEN);
    }
    g.method = "GET";
    assert_int_equal(guard_origin(&g, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_has_one_length),
        cmocka_unit_test(only_our_own_names_are_answered),
        cmocka_unit_test(a_wildcard_is_called_by_any_address_but_no_name),
        cmocka_unit_test(a_unix_socket_has_no_name),
        cmocka_unit_test(a_foreign_page_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
