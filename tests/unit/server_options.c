/* How pawld is asked to run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "server/options.h"

#define ARGS(...)                                                              \
    (char *[])                                                                 \
    {                                                                          \
        (char *)"pawld", __VA_ARGS__, NULL                                     \
    }
#define ENV(...)                                                               \
    (char *[])                                                                 \
    {                                                                          \
        __VA_ARGS__, NULL                                                      \
    }

static struct err err;
static struct buf warnings;

static int parse(char **argv, char **envp, struct options *o)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    memset(&err, 0, sizeof(err));
    buf_release(&warnings);
    return options_parse(argc, argv, envp, o, &warnings, &err);
}

static char *config_file(const char *text)
{
    static char path[64];
    strcpy(path, "/tmp/pawl-options-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void defaults_are_loopback_and_one_worker(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    assert_int_equal(parse(ARGS("--state", "s"), ENV(NULL), &o), 0);
    assert_string_equal(o.state, "s");
    assert_int_equal(o.n_listen, 1);
    assert_string_equal(o.listen[0].host, "127.0.0.1");
    assert_int_equal(o.listen[0].port, 7295);
    assert_int_equal(o.workers, 1);
    assert_int_equal(o.lease_s, 30);
    assert_null(warnings.data);
}

static void flags_win_over_variables_over_the_file(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    char *path = config_file("{\"state\": \"file\", \"workers\": 7,"
                             " \"listen\": [\"127.0.0.1:1\", \"[::1]:2\"],"
                             " \"host\": \"a.example\"}");
    int r = parse(
        ARGS("--config", path, "--listen", "unix:/x", "--listen=0.0.0.0:0"),
        ENV("PAWL_STATE=env", "PAWL_LISTEN=127.0.0.1:3"), &o);
    unlink(path);
    assert_int_equal(r, 0);
    assert_string_equal(o.state, "env");
    assert_int_equal(o.workers, 7);
    assert_int_equal(o.n_listen, 2);
    assert_string_equal(o.listen[0].unix_path, "/x");
    assert_string_equal(o.listen[1].host, "0.0.0.0");
    assert_int_equal(o.n_hosts, 1);
    assert_string_equal(o.hosts[0], "a.example");
}

static void an_unknown_flag_is_refused_with_the_one_meant(void **state)
{
    struct options o;
    assert_int_equal(
        parse(ARGS("--state", "s", "--worker", "2"), ENV(NULL), &o),
        ERR_INVALID);
    assert_non_null(strstr(err.text, "--worker;"));
    assert_non_null(strstr(err.text, "did you mean --workers?"));
    assert_int_equal(parse(ARGS("--state", "s", "stray"), ENV(NULL), &o),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "stray"));
}

static void an_unknown_config_key_is_refused_by_name(void **state)
{
    struct options o;
    char *path = config_file("{\"state\": \"s\", \"data_rot\": {}}");
    int r = parse(ARGS("--config", path), ENV(NULL), &o);
    unlink(path);
    assert_int_equal(r, ERR_INVALID);
    assert_non_null(strstr(err.text, "\"data_rot\""));
    assert_non_null(strstr(err.text, "\"data_root\"?"));
    path = config_file("{\"state\": \"s\", \"workers\": \"2\"}");
    r = parse(ARGS("--config", path), ENV(NULL), &o);
    unlink(path);
    assert_int_equal(r, ERR_INVALID);
    assert_non_null(strstr(err.text, "\"workers\""));
}

static void
shares_come_from_anywhere_and_one_layer_replaces_another(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    CLEANUP(options_release) struct options p = {0};
    CLEANUP(options_release) struct options none = {0};
    char *path = config_file("{\"state\": \"s\", \"share\": {\"ann\": 2,"
                             " \"bob\": 0.5}, \"age\": 60,"
                             " \"drain_timeout\": 0}");
    int r = parse(ARGS("--config", path), ENV("PAWL_AGE=90"), &o);
    assert_int_equal(r, 0);
    assert_int_equal(o.n_shares, 2);
    assert_string_equal(o.shares[0].owner, "ann");
    assert_true(o.shares[0].weight == 2);
    assert_true(o.shares[1].weight == 0.5);
    assert_int_equal(o.age_s, 90);
    assert_int_equal(o.drain_timeout_s, 0);
    r = parse(ARGS("--config", path, "--share", "a=b=3"),
              ENV("PAWL_SHARE=x=1,y=2"), &p);
    unlink(path);
    assert_int_equal(r, 0);
    assert_int_equal(p.n_shares, 1);
    assert_string_equal(p.shares[0].owner, "a=b"); /* an owner may have a = */
    assert_int_equal(parse(ARGS("--state", "s"), ENV(NULL), &none), 0);
    assert_int_equal(none.age_s, 600);
    assert_int_equal(none.drain_timeout_s, 300);
    assert_int_equal(none.n_shares, 0);
}

static void a_share_or_time_that_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *flag, *value, *says;
    } cases[] = {
        {"--share", "ann", "'ann' is not OWNER=WEIGHT"},
        {"--share", "=2", "'=2' is not OWNER=WEIGHT"},
        {"--share", "ann=", "'ann=' is not OWNER=WEIGHT"},
        {"--share", "ann=2x", "is not OWNER=WEIGHT"},
        {"--share", "ann=0", "the weight of 'ann' must be from 0.001"},
        {"--share", "ann=-1", "must be from"},
        {"--share", "ann=nan", "must be from"},
        {"--share", "ann=inf", "must be from"},
        {"--age", "0", "'0' is not a number of seconds from 1"},
        {"--age", "soon", "is not a number of seconds"},
        {"--age", "-5", "is not a number of seconds"},
        {"--drain-timeout", "1.5", "is not a number of seconds from 0"},
        {"--drain-timeout", "99999999", "is not a number of seconds"},
    };
    struct options o;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int r = parse(
            ARGS("--state", "s", (char *)cases[i].flag, (char *)cases[i].value),
            ENV(NULL), &o);
        assert_int_equal(r, ERR_INVALID);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s %s: %s", cases[i].flag, cases[i].value, err.text);
    }
    assert_int_equal(
        parse(ARGS("--state", "s", "--share", "ann=1", "--share", "ann=2"),
              ENV(NULL), &o),
        ERR_INVALID);
    assert_non_null(strstr(err.text, "two shares of 'ann'"));
}

static void an_unknown_variable_is_a_warning(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    assert_int_equal(parse(ARGS("--state", "s"),
                           ENV("PAWL_WROKERS=3", "PAWL_TOKEN=x",
                               "PAWL_MEMORY_PROBE=fake:start_mb=1", "PATH=x"),
                           &o),
                     0);
    assert_string_equal(warnings.data,
                        "the variable PAWL_WROKERS is not known\n");
    buf_release(&warnings);
}

static void an_address_needs_a_port_and_no_name(void **state)
{
    static const char *const wrong[] = {"127.0.0.1",
                                        "localhost:x",
                                        "example.org:80",
                                        "::1:80",
                                        "127.0.0.1:",
                                        "127.0.0.1:65536",
                                        "127.0.0.1:-1",
                                        "unix:",
                                        ":80",
                                        ""};
    struct listen_address a;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_int_equal(listen_parse(wrong[i], &a, &err), ERR_INVALID);
    assert_int_equal(listen_parse("[::1]:80", &a, &err), 0);
    assert_string_equal(a.host, "::1");
    free(a.text);
    assert_int_equal(listen_parse("localhost:0", &a, &err), 0);
    assert_string_equal(a.host, "127.0.0.1");
    free(a.text);
}

static void a_data_root_is_a_name_and_a_folder_that_may_come_later(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    struct options bad;
    assert_int_equal(
        parse(ARGS("--state", "s", "--data-root", "lab=/tmp"), ENV(NULL), &o),
        0);
    assert_string_equal(o.data_roots[0].name, "lab");
    assert_string_equal(o.data_roots[0].path, "/tmp");
    options_release(&o);
    assert_int_equal(
        parse(ARGS("--state", "s", "--data-root", "lab=/nonexistent/a",
                   "--data-root", "b=nonexistent"),
              ENV(NULL), &o),
        0);
    assert_string_equal(o.data_roots[0].path, "/nonexistent/a");
    assert_int_equal(o.data_roots[1].path[0], '/');
    static const char *const wrong[] = {"lab", "=/tmp", "a/b=/tmp", "lab="};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_int_equal(
            parse(ARGS("--state", "s", "--data-root", (char *)wrong[i]),
                  ENV(NULL), &bad),
            ERR_INVALID);
}

static void a_lease_lasts_for_some_seconds(void **state)
{
    CLEANUP(options_release) struct options o = {0};
    struct options bad;
    assert_int_equal(
        parse(ARGS("--state", "s", "--lease", "5"), ENV("PAWL_LEASE=9"), &o),
        0);
    assert_int_equal(o.lease_s, 5);
    static const char *const wrong[] = {"1", "0", "-5", "5 s", "", "1e3"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(
            parse(ARGS("--state", "s", "--lease", (char *)wrong[i]), ENV(NULL),
                  &bad),
            ERR_INVALID);
        assert_non_null(strstr(err.text, "--lease"));
    }
}

static void help_and_version_need_nothing_else(void **state)
{
    struct options o = {0};
    assert_int_equal(parse(ARGS("--help"), ENV(NULL), &o), 0);
    assert_int_equal(o.what, OPTIONS_HELP);
    assert_int_equal(parse(ARGS("--version"), ENV(NULL), &o), 0);
    assert_int_equal(o.what, OPTIONS_VERSION);
    assert_int_equal(parse(ARGS("--workers", "1"), ENV(NULL), &o), ERR_INVALID);
    assert_non_null(strstr(err.text, "--state is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_loopback_and_one_worker),
        cmocka_unit_test(flags_win_over_variables_over_the_file),
        cmocka_unit_test(an_unknown_flag_is_refused_with_the_one_meant),
        cmocka_unit_test(an_unknown_config_key_is_refused_by_name),
        cmocka_unit_test(
            shares_come_from_anywhere_and_one_layer_replaces_another),
        cmocka_unit_test(a_share_or_time_that_cannot_be_is_refused),
        cmocka_unit_test(an_unknown_variable_is_a_warning),
        cmocka_unit_test(an_address_needs_a_port_and_no_name),
        cmocka_unit_test(
            a_data_root_is_a_name_and_a_folder_that_may_come_later),
        cmocka_unit_test(a_lease_lasts_for_some_seconds),
        cmocka_unit_test(help_and_version_need_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
