/* How SQLite means to run each statement of sql.h: none that is part of claims,
 * heartbeats, saves, releases or the server's beat reads all rows of a table
 * that grows with every job. */
#include <sqlite3.h>
#include "server_fixture.h"

static const struct {
    const char *name, *text;
} statements[] = {
#define SQL(name, text) {#name, text},
#include "server/sql.h"
#undef SQL
};

/* Those that may: seldom, and when somebody asks for it. */
static const char *const seldom[] = {
    "DATASET_NEEDED",   /* a dataset is to be removed */
    "CHECKPOINT_PRUNE", /* keeps what it looks at few */
    "CHUNK_ANY",        /* one row */
    "JOB_PLACE",        /* someone looks at one job: of those that wait */
    "BACKUP_IDS",       /* a backup reads all there is */
    "BACKUP_CHUNKS",    "BACKUP_SHARDS", "BACKUP_COPIES",
};

/* Tables that stay small: whoever is logged in, workers of the last days. */
static const char *const small[] = {
    "sessions",    "workers", "w",      "doomed_files", "series", "s",
    "idempotency", "owners",  "served", "unfit",        "n",
};

/* Partial indexes: of what is open. */
static const char *const open_rows[] = {
    "USING INDEX leases_one",     "USING INDEX leases_live",
    "USING INDEX leases_expired", "USING INDEX leases_heard",
    "USING INDEX cycles_claim",   "USING INDEX cycles_frozen",
    "USING INDEX cycles_waits",
};

static bool is_among(const char *word, size_t len, const char *const *list,
                     size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == len && !strncmp(list[i], word, len))
            return true;
    return false;
}

#define AMONG(word, len, list)                                                 \
    is_among(word, len, list, sizeof(list) / sizeof(*list))

static bool reads_all(const char *plan)
{
    if (strncmp(plan, "SCAN ", 5) || strstr(plan, "VIRTUAL TABLE") ||
        strstr(plan, "CONSTANT ROW") || plan[5] == '(')
        return false;
    for (size_t i = 0; i < sizeof(open_rows) / sizeof(*open_rows); i++)
        if (strstr(plan, open_rows[i]))
            return false;
    return !AMONG(plan + 5, strcspn(plan + 5, " "), small);
}

static void no_frequent_statement_reads_a_whole_table(void **state)
{
    struct world *w = *state;
    sqlite3 *db[2];
    int bad = 0;
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", w->dir,
                 i ? "checkpoints.db" : "pawl.db");
        assert_int_equal(sqlite3_open(path, &db[i]), SQLITE_OK);
    }
    for (size_t i = 0; i < sizeof(statements) / sizeof(*statements); i++) {
        const char *name = statements[i].name;
        CLEANUP(buf_release) struct buf sql = {0};
        sqlite3_stmt *q = NULL;
        if (AMONG(name, strlen(name), seldom))
            continue;
        buf_addf(&sql, "EXPLAIN QUERY PLAN %s", statements[i].text);
        if (sqlite3_prepare_v2(db[0], sql.data, -1, &q, NULL) != SQLITE_OK &&
            sqlite3_prepare_v2(db[1], sql.data, -1, &q, NULL) != SQLITE_OK)
            fail_msg("%s fits neither file: %s", name, sqlite3_errmsg(db[0]));
        while (sqlite3_step(q) == SQLITE_ROW) {
            const char *plan = (const char *)sqlite3_column_text(q, 3);
            if (!reads_all(plan))
                continue;
            print_error("%s: %s\n", name, plan);
            bad++;
        }
        sqlite3_finalize(q);
    }
    for (int i = 0; i < 2; i++)
        sqlite3_close(db[i]);
    assert_int_equal(bad, 0);
}

/* However many wait, the first of a group is one seek. */
static void a_claim_sorts_nothing(void **state)
{
    struct world *w = *state;
    sqlite3 *db;
    sqlite3_stmt *q = NULL;
    char path[128];
    snprintf(path, sizeof(path), "%s/pawl.db", w->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    CLEANUP(buf_release) struct buf sql = {0};
    buf_addf(&sql, "EXPLAIN QUERY PLAN %s", statements[SQL_TURN_NEXT].text);
    assert_int_equal(sqlite3_prepare_v2(db, sql.data, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(q, 3),
                        "SEARCH c USING INDEX cycles_claim "
                        "((owner,priority,need)>(?,?,?))");
    while (sqlite3_step(q) == SQLITE_ROW)
        assert_null(
            strstr((const char *)sqlite3_column_text(q, 3), "ORDER BY"));
    sqlite3_finalize(q);
    sqlite3_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            no_frequent_statement_reads_a_whole_table, setup, teardown),
        cmocka_unit_test_setup_teardown(a_claim_sorts_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
