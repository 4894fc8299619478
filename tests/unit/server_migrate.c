/* A state folder of an older version is opened, kept as a copy, and brought up
 * to date; or nothing at all happens to it. The old one is a real one:
 * tests/fixtures/state-v1. */
#include "server_fixture.h"
#include "frail_vfs.h"
#include "server/assets.h"

static char *command(const char *fmt, ...)
{
    char cmd[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof(cmd), fmt, ap);
    va_end(ap);
    CLEANUP(buf_release) struct buf b = {0};
    FILE *f = popen(cmd, "r");
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        buf_add(&b, part, n);
    int rc = pclose(f);
    if (rc)
        fail_msg("%s: %d", cmd, rc);
    buf_add(&b, "", 1);
    char *s = b.data;
    b = (struct buf){0};
    return s;
}

static void expect_said(char *said, const char *want)
{
    AUTO_FREE char *own = said;
    assert_string_equal(own, want);
}

/* All of a database as text, its version too. */
static char *dumped(const char *path)
{
    return command("sqlite3 %s 'PRAGMA user_version' 'PRAGMA application_id' "
                   ".dump",
                   path);
}

static int version_of(const struct world *w, const char *file)
{
    AUTO_FREE char *s =
        command("sqlite3 %s/%s 'PRAGMA user_version'", w->dir, file);
    return atoi(s);
}

static int newest(void)
{
    int n = 0;
    for (const struct asset *a = migrations; a->name; a++)
        if (atoi(a->name) > n)
            n = atoi(a->name);
    return n;
}

/* A copy of the fixture in a folder of its own. */
static int setup_old(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    strcpy(w->dir, "/tmp/pawl-unit-XXXXXX");
    if (!mkdtemp(w->dir))
        return -1;
    w->now = 1900000000000;
    w->mono = 5000000;
    free(command("cp -r %s/state-v1/. %s", FIXTURES, w->dir));
    *state = w;
    return 0;
}

static void an_old_state_is_brought_up_to_date_and_kept_as_a_copy(void **state)
{
    struct world *w = *state;
    AUTO_FREE char *was = dumped(FIXTURES "/state-v1/pawl.db");
    assert_int_equal(version_of(w, "pawl.db"), 1);
    assert_true(newest() > 1);
    world_open(w);
    world_close(w);
    assert_int_equal(version_of(w, "pawl.db"), newest());
    expect_said(command("sqlite3 %s/pawl.db 'PRAGMA integrity_check' "
                        "'PRAGMA foreign_key_check'",
                        w->dir),
                "ok\n");

    /* the copy is the old one, to the last row */
    char copy[128];
    snprintf(copy, sizeof(copy), "%s/pawl.db.v1", w->dir);
    AUTO_FREE char *kept = dumped(copy);
    assert_string_equal(kept, was);
    expect_said(command("sqlite3 %s 'PRAGMA integrity_check'", copy), "ok\n");
    expect_said(command("ls %s | grep -c part; true", w->dir), "0\n");

    static const char schema[] = "sqlite3 %s/%s \"SELECT name, sql FROM"
                                 " sqlite_schema ORDER BY name\"";
    /* what schema 1 makes, made anew: an old pawld finds what it knows */
    free(command("sqlite3 %s/first.db < %s/../../schema/0001-init.sql", w->dir,
                 FIXTURES));
    AUTO_FREE char *made = command(schema, w->dir, "first.db");
    AUTO_FREE char *copied = command(schema, w->dir, "pawl.db.v1");
    assert_string_equal(copied, made);
}

/* Every value of the old tables, in the columns that they had. */
static void no_row_is_lost_or_changed(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_close(w);
    AUTO_FREE char *tables = command(
        "sqlite3 %s/pawl.db.v1 \"SELECT name FROM sqlite_schema WHERE type ="
        " 'table' AND name NOT LIKE 'sqlite%%'\"",
        w->dir);
    int seen = 0;
    for (char *save, *t = strtok_r(tables, "\n", &save); t;
         t = strtok_r(NULL, "\n", &save), seen++) {
        AUTO_FREE char *columns =
            command("sqlite3 %s/pawl.db.v1 \"SELECT group_concat(name) FROM"
                    " pragma_table_info('%s')\" | tr -d '\\n'",
                    w->dir, t);
        expect_said(command("sqlite3 %s/pawl.db \"ATTACH '%s/pawl.db.v1' AS o;"
                            " SELECT count(*) FROM (SELECT %s FROM o.%s EXCEPT"
                            " SELECT %s FROM main.%s); SELECT (SELECT count(*)"
                            " FROM o.%s) = (SELECT count(*) FROM main.%s)\"",
                            w->dir, w->dir, columns, t, columns, t, t, t),
                    "0\n1\n");
    }
    assert_true(seen > 15);
}

static void what_was_left_goes_on_under_the_new_schema(void **state)
{
    struct world *w = *state;
    world_open(w);
    expect_job(w, 1, "completed", NULL);
    expect_job(w, 2, "failed", "line 7");
    expect_job(w, 3, "queued", "2");
    expect_job(w, 4, "paused", "step 4");
    expect_job(w, 5, "canceled", NULL);
    expect_job(w, 6, "queued", NULL);
    must(lease_listening(w->st, w->mono, &w->err));
    must(lease_tick(w->st, w->now, w->mono, &w->err));
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    int got = claims(w, &a);
    must(got);
    assert_int_equal(got, 1);
    assert_int_equal(a.job, 6); /* of the higher priority, and ready */
    assert_int_equal(claims(w, &b), 0);
    must(job_resume(w->st, 4, w->now, &w->err));
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, 4);
    assert_int_equal(b.step, 4);
    worker_drop(&b);
    worker_drop(&a);
}

static void a_newer_database_is_refused_by_name_and_left_alone(void **state)
{
    struct world *w = *state;
    free(command("sqlite3 %s/pawl.db 'PRAGMA user_version = 99'", w->dir));
    char path[128];
    snprintf(path, sizeof(path), "%s/pawl.db", w->dir);
    AUTO_FREE char *was = dumped(path);
    assert_int_equal(store_open(w->dir, false, &w->st, &w->err), ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, path));
    assert_non_null(strstr(w->err.text, "newer pawld (schema 99"));
    AUTO_FREE char *is = dumped(path);
    assert_string_equal(is, was);
    expect_said(command("ls %s | grep -c 'pawl.db.v'; true", w->dir), "0\n");
    free(command("sqlite3 %s/checkpoints.db 'PRAGMA user_version = 99'",
                 w->dir));
    assert_int_equal(store_open(w->dir, true, &w->chunks, &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "checkpoints.db was written by"));
}

/* ---- it fails ---- */

/* The old one with an error, or without power, at the n-th call. The count of
 * the calls that it takes is found by trying. */
static bool fails_at(const char *old, const char *new, enum frail_fault fault,
                     int64_t n, int loss)
{
    void *state;
    assert_int_equal(setup_old(&state), 0);
    struct world *w = state;
    char path[128], copy[128];
    snprintf(path, sizeof(path), "%s/pawl.db", w->dir);
    snprintf(copy, sizeof(copy), "%s/pawl.db.v1", w->dir);
    frail.random = (uint64_t)n * 77 + (uint64_t)loss;
    frail_arm(fault, n, true);
    int r = store_open(w->dir, false, &w->st, &w->err);
    bool hit = frail.hit;
    if (r < 0) {
        assert_true(hit);
        if (fault == FAULT_FULL && r != ERR_NOSPACE)
            fail_msg("call %d: %d, %s", (int)n, r, w->err.text);
        /* its cause, and that nothing happened, in one sentence */
        if (strstr(w->err.text, "upgraded"))
            assert_non_null(strstr(w->err.text, "is as it was"));
    }
    world_close(w);
    if (fault == FAULT_CUT)
        frail_cut((enum frail_loss)loss);
    frail_forget();
    frail_mend();
    frail.off = false;

    /* old or new, and nothing between */
    int version = version_of(w, "pawl.db");
    if (version != 1 && version != newest())
        fail_msg("call %d: schema %d", (int)n, version);
    if (r >= 0)
        assert_int_equal(version, newest());
    AUTO_FREE char *is = dumped(path);
    assert_string_equal(is, version == 1 ? old : new);
    if (version != 1) { /* then the copy is there, and whole */
        AUTO_FREE char *kept = dumped(copy);
        assert_string_equal(kept, old);
    }
    frail.paused = true;
    must(store_open(w->dir, false, &w->st, &w->err));
    world_close(w);
    frail.paused = false;
    frail_forget();
    AUTO_FREE char *at_last = dumped(path), *kept = dumped(copy);
    assert_string_equal(at_last, new);
    assert_string_equal(kept, old);
    expect_said(command("ls %s | grep -c part; true", w->dir), "0\n");
    teardown(&state);
    return hit;
}

static void an_upgrade_that_fails_leaves_the_old_one(void **state)
{
    static const struct {
        enum frail_fault fault;
        int stride;
        const char *what;
    } table[] = {{FAULT_CUT, 7, "a power cut"},
                 {FAULT_FULL, 11, "a full disk"},
                 {FAULT_WRITE, 13, "a failed write"},
                 {FAULT_SYNC, 1, "a failed sync"}};
    struct world *w = *state;
    AUTO_FREE char *old = dumped(FIXTURES "/state-v1/pawl.db");
    frail_register();
    must(store_open(w->dir, false, &w->st, &w->err));
    world_close(w);
    frail_forget();
    char path[128];
    snprintf(path, sizeof(path), "%s/pawl.db", w->dir);
    AUTO_FREE char *new = dumped(path);
    bool thorough = getenv("TEST_LONG") && *getenv("TEST_LONG");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t n = 1;
        int told = 0, stride = thorough ? 1 : table[i].stride;
        for (;; n += stride, told++) {
            bool any = false;
            for (int loss = 0; loss < LOSSES; loss++)
                if (table[i].fault == FAULT_CUT
                        ? thorough || told % LOSSES == loss
                        : loss == 0)
                    any |= fails_at(old, new, table[i].fault, n, loss);
            if (!any)
                break;
        }
        print_message("# %s at %d of about %d calls\n", table[i].what, told,
                      (int)n);
        assert_true(told >= 3);
    }
}

int main(void)
{
#define OLD(name) cmocka_unit_test_setup_teardown(name, setup_old, teardown)
    const struct CMUnitTest tests[] = {
        OLD(an_old_state_is_brought_up_to_date_and_kept_as_a_copy),
        OLD(no_row_is_lost_or_changed),
        OLD(what_was_left_goes_on_under_the_new_schema),
        OLD(a_newer_database_is_refused_by_name_and_left_alone),
        OLD(an_upgrade_that_fails_leaves_the_old_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
