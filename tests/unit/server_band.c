/* Bands: what they say is what the rows say, whatever happened to the rows; and
 * what is read for a curve, a page of a list or thinned samples does not grow
 * with what there is. */
#include <math.h>
#include <sqlite3.h>
#include <time.h>
#include "server/assets.h"
#include "server/band.h"
#include "server_fixture.h"

/* ---- the database beside the store ---- */

static sqlite3 *db;

static int setup_both(void **state)
{
    char path[128];
    if (setup(state) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/pawl.db", ((struct world *)*state)->dir);
    return sqlite3_open(path, &db) == SQLITE_OK ? 0 : -1;
}

static int teardown_both(void **state)
{
    sqlite3_close(db);
    return teardown(state);
}

static void run(const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), sql);
}

static int64_t number(const char *sql)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), sql);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return v;
}

/* The part of the migration that makes bands of the rows there are. */
static void fill_bands(void)
{
    const struct asset *a = migrations;
    while (a->name && strcmp(a->name, "0004-bands.sql"))
        a++;
    assert_non_null(a->name);
    const char *from = strstr((const char *)a->data, "-- what there is so far");
    const char *to = strstr((const char *)a->data, "-- How many samples");
    assert_true(from && to && from < to);
    AUTO_FREE char *sql = strndup(from, (size_t)(to - from));
    run(sql);
}

/* ---- bands follow from rows ---- */

static uint64_t seed;

static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

static const char *const names[] = {"loss", "lr", "loss/value"};

/* Rows of some steps on from `step`, as a report has them. */
static json_t *some_rows(int64_t step)
{
    json_t *rows = json_array();
    int64_t n = 1 + below(60), stride = below(4) ? 1 : 1 + below(400);
    for (int64_t i = 0; i < n; i++) {
        json_t *values = json_object();
        for (int k = 0; k < 3; k++) {
            if (k && !below(3))
                continue;
            json_object_set_new(values, names[k],
                                below(40) ? json_real((double)below(50) / 7 - 3)
                                          : json_null());
        }
        json_array_append_new(
            rows, json_pack("[Io]", (json_int_t)(step + i * stride), values));
    }
    return rows;
}

static void add(struct world *w, int64_t cycle, int64_t lease, int64_t step)
{
    int64_t differ;
    char what[300];
    AUTO_JSON json_t *rows = some_rows(step);
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    must(txn_begin(&txn, w->st, &w->err));
    must(metric_add(w->st, cycle, lease, rows, &differ, what, sizeof(what),
                    &w->err));
    must(txn_commit(&txn, &w->err));
}

static void archive(struct world *w, int64_t cycle, int64_t step)
{
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    must(txn_begin(&txn, w->st, &w->err));
    must(metric_archive(w->st, cycle, step, &w->err));
    must(txn_commit(&txn, &w->err));
}

/* Both ways: what is kept, and what the migration would make of the rows. */
static void expect_bands_of_rows(void)
{
    run("DROP TABLE IF EXISTS kept;"
        "CREATE TEMP TABLE kept AS SELECT * FROM bands; BEGIN;"
        "DELETE FROM bands");
    fill_bands();
    int64_t more = number("SELECT count(*) FROM (SELECT * FROM kept"
                          " EXCEPT SELECT * FROM bands)");
    int64_t less = number("SELECT count(*) FROM (SELECT * FROM bands"
                          " EXCEPT SELECT * FROM kept)");
    run("ROLLBACK");
    if (more || less)
        fail_msg("%d bands too many or wrong, %d missing or wrong", (int)more,
                 (int)less);
}

/* ---- curves, the plain way ---- */

struct row {
    int64_t step;
    double value;
    bool finite;
};

static size_t read_rows(int64_t cycle, int series, struct row *ret, size_t cap)
{
    sqlite3_stmt *q;
    size_t n = 0;
    assert_int_equal(
        sqlite3_prepare_v2(db,
                           "SELECT step, value FROM metrics WHERE cycle_id ="
                           " ?1 AND series_id = (SELECT id FROM series WHERE"
                           " name = ?2) ORDER BY step",
                           -1, &q, NULL),
        SQLITE_OK);
    sqlite3_bind_int64(q, 1, cycle);
    sqlite3_bind_text(q, 2, names[series], -1, SQLITE_STATIC);
    while (sqlite3_step(q) == SQLITE_ROW) {
        assert_true(n < cap);
        ret[n++] = (struct row){sqlite3_column_int64(q, 0),
                                sqlite3_column_double(q, 1),
                                sqlite3_column_type(q, 1) != SQLITE_NULL};
    }
    sqlite3_finalize(q);
    return n;
}

static void mark(bool *drawn, size_t i, bool there)
{
    if (there)
        drawn[i] = true;
}

/* Lowest, highest, first not finite of rows[from..to). */
static void mark_stretch(const struct row *rows, size_t from, size_t to,
                         bool *drawn)
{
    size_t low = from, high = from, odd = from;
    bool any = false, unfinite = false;
    for (size_t i = from; i < to; i++) {
        if (!rows[i].finite) {
            odd = unfinite ? odd : i;
            unfinite = true;
            continue;
        }
        low = !any || rows[i].value < rows[low].value ? i : low;
        high = !any || rows[i].value > rows[high].value ? i : high;
        any = true;
    }
    mark(drawn, low, any);
    mark(drawn, high, any);
    mark(drawn, odd, unfinite);
}

static int64_t stretch_at(int64_t step, int64_t steps, int64_t n)
{
    return (int64_t)((double)step / (double)steps * (double)n);
}

/* Which rows a curve has, from the rows alone. */
static void mark_curve(const struct row *rows, size_t n, int64_t points,
                       bool *drawn)
{
    int64_t unit = 4096, most = points > 4 ? (points - 1) / 2 : 1;
    int64_t first = rows[0].step, last = rows[n - 1].step;
    if (n <= (size_t)points) {
        memset(drawn, 1, n);
        return;
    }
    while (unit > 1 && (last - first) / most + 1 < unit)
        unit = unit > 16 ? unit / 4 : 1;
    int64_t base = first / unit * unit;
    for (size_t i = 0, to; i < n; i = to) {
        int64_t at = stretch_at(rows[i].step / unit * unit - base,
                                last - base + 1, most);
        for (to = i; to < n && stretch_at(rows[to].step / unit * unit - base,
                                          last - base + 1, most) == at;
             to++)
            ;
        mark_stretch(rows, i, to, drawn);
    }
    drawn[n - 1] = true;
}

static void expect_curve(const struct row *rows, size_t n, int64_t points,
                         const json_t *curve)
{
    AUTO_FREE bool *drawn = calloc(n, sizeof(*drawn));
    size_t at = 0, unfinite = 0;
    mark_curve(rows, n, points, drawn);
    for (size_t i = 0; i < n; i++) {
        if (!drawn[i])
            continue;
        const json_t *p = json_array_get(curve, at++);
        const json_t *v = json_array_get(p, 1);
        if (json_integer_value(json_array_get(p, 0)) != rows[i].step ||
            json_is_null(v) == rows[i].finite ||
            (rows[i].finite && json_number_value(v) != rows[i].value))
            fail_msg("point %d of a curve of %d from %d rows is not step %d",
                     (int)at, (int)points, (int)n, (int)rows[i].step);
        unfinite += !rows[i].finite;
    }
    assert_int_equal(json_array_size(curve), at);
    if (points > 4)
        assert_true(at <= (size_t)points + unfinite);
}

static void expect_curves(struct world *w, int64_t job, int64_t cycle,
                          struct row *rows, size_t cap)
{
    for (int k = 0; k < 3; k++) {
        size_t n = read_rows(cycle, k, rows, cap);
        int64_t asked[] = {
            2, 3, 10, 1 + below(200), 500, (int64_t)n, (int64_t)n - 1};
        if (n < 3)
            continue;
        for (size_t i = 0; i < sizeof(asked) / sizeof(*asked); i++) {
            AUTO_JSON json_t *out = NULL;
            must(metric_series(w->st, job, 1, names[k], asked[i], &out,
                               &w->err));
            const json_t *item =
                json_array_get(json_object_get(out, "items"), 0);
            assert_int_equal(int_of(item, "count"), n);
            expect_curve(rows, n, asked[i], json_object_get(item, "points"));
        }
    }
}

enum { ROUNDS = 6, OPERATIONS = 60, ROWS_MAX = 20000 };

static void curves_are_those_of_a_plain_scan(void **state)
{
    struct world *w = *state;
    const char *given = getenv("PAWL_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("PAWL_SEED=%" PRIu64 "\n", first);
    AUTO_FREE struct row *rows = calloc(ROWS_MAX, sizeof(*rows));
    put_records(w);
    for (int round = 0; round < ROUNDS; round++) {
        seed = first + (uint64_t)round;
        CLEANUP(worker_drop)
        struct worker a = {.name = "a", .claims = round};
        int64_t id = submit(w, NULL);
        assert_int_equal(claims(w, &a), 1);
        int64_t cycle = int_of(json_object_get(a.claim, "lease"), "cycle_id");
        int64_t step = 1, lease = a.id;
        for (int i = 0; i < OPERATIONS; i++) {
            switch (below(8)) {
            case 0: /* a lease resumes before, and trains again */
                step = 1 + below(step + 1);
                archive(w, cycle, step - 1);
                lease++;
                break;
            case 1: /* a report comes again, with other values */
                add(w, cycle, lease, 1 + below(step));
                break;
            case 2: /* far ahead: not every step is reported */
                step += below(9000);
                break;
            }
            add(w, cycle, lease, step);
            step += 40 + below(300);
        }
        expect_bands_of_rows();
        expect_curves(w, id, cycle, rows, ROWS_MAX);
    }
}

static void a_series_that_was_archived_whole_leaves_no_band(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    int64_t cycle = int_of(json_object_get(a.claim, "lease"), "cycle_id");
    seed = 7;
    for (int64_t step = 1; step < 9000; step += 50)
        add(w, cycle, a.id, step);
    archive(w, cycle, 0);
    assert_int_equal(number("SELECT count(*) FROM bands"), 0);
    assert_int_equal(number("SELECT count(*) FROM metrics"), 0);
    assert_true(number("SELECT count(*) FROM metrics_archive") > 1000);
    AUTO_JSON json_t *out = NULL;
    must(metric_series(w->st, id, 0, NULL, 100, &out, &w->err));
    assert_int_equal(json_array_size(json_object_get(out, "items")), 0);
}

static void the_points_of_a_series_are_for_all_its_cycles_together(void **state)
{
    struct world *w = *state;
    put_records(w);
    int64_t id = submit(w, "{\"cycles\": 0}");
    run("INSERT INTO cycles(job_id, number, state, priority, created_ms)"
        " WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 50) SELECT 1, i, 'canceled', 0, 0 FROM n;"
        "INSERT INTO series(id, name) VALUES (1, 'loss');"
        "INSERT INTO metrics(cycle_id, series_id, step, value, lease_id)"
        " WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 2000) SELECT c.id, 1, n.i, 1.0 / n.i, 1 FROM cycles c, n");
    fill_bands();
    AUTO_JSON json_t *out = NULL, *one = NULL;
    must(metric_series(w->st, id, 0, NULL, 1000, &out, &w->err));
    size_t i, points = 0;
    json_t *item;
    json_array_foreach(json_object_get(out, "items"), i, item)
    {
        assert_int_equal(int_of(item, "count"), 2000);
        points += json_array_size(json_object_get(item, "points"));
    }
    assert_int_equal(i, 50);
    assert_in_range(points, 500, 1000);
    must(metric_series(w->st, id, 7, NULL, 1000, &one, &w->err));
    item = json_array_get(json_object_get(one, "items"), 0);
    assert_in_range(json_array_size(json_object_get(item, "points")), 900,
                    1000);
}

/* ---- how much is read ---- */

static sqlite3 *seen; /* the connection opened last */

static int see(sqlite3 *opened, char **msg, const void *api)
{
    seen = opened;
    return SQLITE_OK;
}

static int64_t steps; /* of SQLite's machine */

static int on_profile(unsigned what, void *arg, void *stmt, void *ns)
{
    steps += sqlite3_stmt_status(stmt, SQLITE_STMTSTATUS_VM_STEP, 1);
    return 0;
}

/* A reader whose pages are all still on disk. */
static struct store *fresh_reader(struct world *w)
{
    struct store *st;
    sqlite3_auto_extension((void (*)(void))see);
    must(store_open_reader(w->dir, false, &st, &w->err));
    sqlite3_cancel_auto_extension((void (*)(void))see);
    sqlite3_trace_v2(seen, SQLITE_TRACE_PROFILE, on_profile, NULL);
    steps = 0;
    return st;
}

static int pages_read(void)
{
    int now, unused;
    sqlite3_db_status(seen, SQLITE_DBSTATUS_CACHE_MISS, &now, &unused, 0);
    return now;
}

static void a_million_points_are_drawn_from_a_few_thousand_rows(void **state)
{
    struct world *w = *state;
    put_records(w);
    int64_t id = submit(w, NULL);
    run("INSERT INTO series(id, name) VALUES (1, 'loss'), (2, 'lr');"
        "INSERT INTO metrics(cycle_id, series_id, step, value, lease_id)"
        " WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 500000) SELECT 1, s.id, i, (i * 7919) % 10007 / 3.0, 1 FROM n,"
        " series s ORDER BY s.id, i");
    fill_bands();
    struct store *st = fresh_reader(w);
    AUTO_JSON json_t *out = NULL;
    must(metric_series(st, id, 0, NULL, 1000, &out, &w->err));
    const json_t *item = json_array_get(json_object_get(out, "items"), 1);
    assert_int_equal(int_of(item, "count"), 500000);
    assert_in_range(json_array_size(json_object_get(item, "points")), 900,
                    1000);
    /* a scan takes 10 million steps and 5,000 pages */
    assert_in_range(steps, 1000, 300000);
    assert_in_range(pages_read(), 10, 300);
    store_close(st);
}

static void a_resume_reads_only_what_it_archives(void **state)
{
    struct world *w = *state;
    put_records(w);
    submit(w, NULL);
    run("INSERT INTO series(id, name) VALUES (1, 'loss'), (2, 'lr');"
        "INSERT INTO metrics(cycle_id, series_id, step, value, lease_id)"
        " WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 100000) SELECT 1, s.id, i, i / 3.0, 1 FROM n, series s"
        " ORDER BY s.id, i");
    fill_bands();
    world_close(w);
    sqlite3_auto_extension((void (*)(void))see);
    must(store_open(w->dir, false, &w->st, &w->err));
    sqlite3_cancel_auto_extension((void (*)(void))see);
    sqlite3_trace_v2(seen, SQLITE_TRACE_PROFILE, on_profile, NULL);
    steps = 0;
    archive(w, 1, 99900);
    assert_in_range(steps, 1000, 40000);
    expect_bands_of_rows();
    must(store_open(w->dir, true, &w->chunks, &w->err)); /* for teardown */
}

static void a_page_of_ten_thousand_jobs_reads_no_other_specs(void **state)
{
    static const struct {
        struct job_filter f;
        int pages, items;
    } lists[] = {
        {{.limit = 50}, 150, 50},
        {{.limit = 50, .before = 77}, 150, 50},
        {{.limit = 50, .state = "failed"}, 250, 50},
        {{.limit = 50, .kind = "selfplay"}, 250, 0},
        {{.limit = 50, .q = "JOB 77"}, 250, 50},
        {{.limit = 50, .label = "team", .label_value = "blue"}, 250, 50},
        {{.limit = 50, .label = "none"}, 250, 0},
    };
    struct world *w = *state;
    put_records(w);
    submit(w, NULL);
    run("INSERT INTO jobs(name, kind, state, spec, signature, dataset,"
        " cycles, parameters, priority, labels, runtime, created_ms,"
        " ended_ms) WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        " WHERE i < 10000) SELECT 'job ' || i, 'train', iif(i % 100,"
        " 'canceled', 'failed'), json_object('all', hex(zeroblob(1500))),"
        " signature, 'set', 1, 1, 0, iif(i % 50, '{}', '{\"team\":"
        " \"blue\"}'), runtime, 1, 2 FROM n, (SELECT signature, runtime FROM"
        " jobs LIMIT 1)");
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        struct store *st = fresh_reader(w);
        AUTO_JSON json_t *out = NULL;
        must(job_list(st, &lists[i].f, &out, &w->err));
        size_t n = json_array_size(json_object_get(out, "items"));
        assert_int_equal(n, lists[i].items);
        assert_in_range(pages_read(), 3, lists[i].pages);
        store_close(st);
    }
}

static void labels_of_a_list_follow_a_patch(void **state)
{
    struct world *w = *state;
    put_records(w);
    int64_t a = submit(w, "{\"labels\": {\"team\": \"red\", \"n\": \"1\"}}");
    int64_t b = submit(w, "{\"labels\": {\"team\": \"blue\"}}");
    struct job_filter red = {
        .limit = 10, .label = "team", .label_value = "red"};
    AUTO_JSON json_t *before = NULL, *after = NULL, *gone = NULL;
    must(job_list(w->st, &red, &before, &w->err));
    assert_int_equal(json_array_size(json_object_get(before, "items")), 1);
    assert_int_equal(
        int_of(json_array_get(json_object_get(before, "items"), 0), "id"), a);
    run("UPDATE jobs SET labels = '{\"team\":\"red\"}' WHERE id = 2;"
        "UPDATE jobs SET labels = '{}' WHERE id = 1");
    must(job_list(w->st, &red, &after, &w->err));
    assert_int_equal(json_array_size(json_object_get(after, "items")), 1);
    assert_int_equal(
        int_of(json_array_get(json_object_get(after, "items"), 0), "id"), b);
    run("PRAGMA foreign_keys=ON; DELETE FROM jobs WHERE id = 2");
    must(job_list(w->st, &red, &gone, &w->err));
    assert_int_equal(json_array_size(json_object_get(gone, "items")), 0);
    assert_int_equal(number("SELECT count(*) FROM job_labels"), 0);
}

static void many_samples_are_thinned_by_seeks(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    run("INSERT INTO memory(job_id, lease_id, at_ms, step, rss)"
        " WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 200000) SELECT 1, 1, i * 50, i, i FROM n;"
        "UPDATE leases SET samples = 200000");
    struct store *st = fresh_reader(w);
    AUTO_JSON json_t *out = NULL, *few = NULL;
    must(memory_series(st, id, 500, &out, &w->err));
    const json_t *items = json_object_get(out, "items");
    assert_int_equal(int_of(out, "count"), 200000);
    assert_int_equal(json_array_size(items), 500);
    assert_int_equal(int_of(json_array_get(items, 0), "step"), 1);
    assert_int_equal(int_of(json_array_get(items, 499), "step"), 200000);
    size_t i;
    json_t *one;
    int64_t before = -300;
    json_array_foreach(items, i, one)
    {
        int64_t step = int_of(one, "step");
        assert_in_range(step - before, 200, 800);
        before = step;
    }
    assert_in_range(steps, 500, 60000);
    must(memory_series(st, id, 2, &few, &w->err));
    assert_int_equal(json_array_size(json_object_get(few, "items")), 2);
    store_close(st);
}

int main(void)
{
#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, setup_both, teardown_both)
    const struct CMUnitTest tests[] = {
        TEST(curves_are_those_of_a_plain_scan),
        TEST(a_series_that_was_archived_whole_leaves_no_band),
        TEST(the_points_of_a_series_are_for_all_its_cycles_together),
        TEST(a_million_points_are_drawn_from_a_few_thousand_rows),
        TEST(a_resume_reads_only_what_it_archives),
        TEST(a_page_of_ten_thousand_jobs_reads_no_other_specs),
        TEST(labels_of_a_list_follow_a_patch),
        TEST(many_samples_are_thinned_by_seeks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
