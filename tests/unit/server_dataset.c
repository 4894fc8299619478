/* Shards: put, kept, removed. */
#include "server_fixture.h"

static bool file_exists(struct world *w, const char *rel)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", w->dir, rel);
    return access(path, F_OK) == 0;
}

static void the_same_bytes_again_are_fine_others_are_not(void **state)
{
    struct world *w = *state;
    assert_int_equal(try_shard(w, "s", "a.jsonl", "{}\n{}\n"), 1);
    assert_int_equal(try_shard(w, "s", "a.jsonl", "{}\n{}\n"), 0);
    assert_int_equal(try_shard(w, "s", "a.jsonl", "{}\n"), ERR_CONFLICT);
    AUTO_JSON json_t *set = NULL;
    must(dataset_get(w->st, "s", &set, &w->err));
    assert_int_equal(int_of(set, "records"), 2);
    assert_int_equal(int_of(set, "bytes"), 6);
    assert_true(file_exists(w, "datasets/s/a.jsonl"));
}

static void names_cannot_leave_the_folder(void **state)
{
    struct world *w = *state;
    static const char *const bad[] = {"",     ".",    "..",  "a/b", "-a",
                                      "a..b", ".a",   "a b", "é",   "a\\b",
                                      "_a",   "a\nb", NULL};
    struct err err;
    for (int i = 0; bad[i]; i++) {
        assert_int_equal(dataset_name_check(bad[i], "shard", &err),
                         ERR_INVALID);
        assert_int_equal(try_shard(w, bad[i], "a", "{}\n"), ERR_INVALID);
        assert_int_equal(try_shard(w, "a", bad[i], "{}\n"), ERR_INVALID);
    }
    char name[130];
    memset(name, 'a', 129);
    name[129] = 0;
    assert_int_equal(dataset_name_check(name, "shard", &err), ERR_INVALID);
    name[128] = 0;
    assert_int_equal(dataset_name_check(name, "shard", &err), 0);
    assert_int_equal(dataset_name_check("A-1_b.jsonl", "shard", &err), 0);
}

/* As housekeeping does: what a reader finds doomed, the writer unlinks. */
static int unlinks(struct world *w)
{
    AUTO_JSON json_t *doomed = NULL;
    struct store *reader = NULL;
    must(store_open_reader(w->dir, false, &reader, &w->err));
    must(dataset_doomed(reader, &doomed, &w->err));
    store_close(reader);
    int n = dataset_unlink(w->st, doomed, &w->err);
    must(n);
    return n;
}

static void what_a_job_needs_cannot_be_removed(void **state)
{
    struct world *w = *state;
    put_records(w);
    must(try_shard(w, "other", "a.jsonl", "{}\n"));
    int64_t id = submit(w, NULL);
    must(try_shard(w, "set", "later.jsonl", "{}\n"));
    assert_int_equal(dataset_delete(w->st, "set", NULL, &w->err), ERR_CONFLICT);
    assert_int_equal(dataset_delete(w->st, "set", "a.jsonl", &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "job 1 "));
    must(dataset_delete(w->st, "set", "later.jsonl", &w->err));
    must(dataset_delete(w->st, "other", NULL, &w->err));
    assert_int_equal(dataset_delete(w->st, "other", NULL, &w->err),
                     ERR_NOT_FOUND);
    must(job_cancel(w->st, id, w->now, &w->err));
    must(dataset_delete(w->st, "set", NULL, &w->err));
    assert_true(file_exists(w, "datasets/set/a.jsonl"));
    assert_int_equal(unlinks(w), 3 + 2); /* two texts had an index each */
    assert_false(file_exists(w, "datasets/set"));
    assert_false(file_exists(w, "datasets/other"));
}

static void a_name_can_be_used_anew_before_its_old_file_went(void **state)
{
    struct world *w = *state;
    must(try_shard(w, "s", "a.jsonl", "{}\n"));
    must(dataset_delete(w->st, "s", "a.jsonl", &w->err));
    assert_int_equal(try_shard(w, "s", "a.jsonl", "{\"new\":1}\n"), 1);
    assert_int_equal(unlinks(w), 1); /* the old text's index */
    assert_true(file_exists(w, "datasets/s/a.jsonl"));
    struct shard_file f;
    must(dataset_shard(w->st, "s", "a.jsonl", &f, &w->err));
    assert_int_equal(f.bytes, 10);
}

/* A removal shares its commit with other requests, and may fail with them. */
static void a_file_outlives_a_removal_that_was_not_committed(void **state)
{
    struct world *w = *state;
    must(try_shard(w, "s", "a.jsonl", "{}\n"));
    {
        CLEANUP(txn_end) struct txn batch = TXN_INIT;
        must(txn_begin(&batch, w->st, &w->err));
        must(dataset_delete(w->st, "s", "a.jsonl", &w->err));
        assert_int_equal(unlinks(w), 0);
    }
    assert_true(file_exists(w, "datasets/s/a.jsonl"));
    struct shard_file f;
    must(dataset_shard(w->st, "s", "a.jsonl", &f, &w->err));
}

/* Found doomed, and put anew before the writer comes to it. */
static void a_file_put_anew_is_not_unlinked_for_the_old_one(void **state)
{
    struct world *w = *state;
    AUTO_JSON json_t *doomed = NULL;
    must(try_shard(w, "s", "a.jsonl", "{}\n"));
    must(dataset_delete(w->st, "s", "a.jsonl", &w->err));
    assert_int_equal(dataset_doomed(w->st, &doomed, &w->err), 1 + 1);
    must(try_shard(w, "s", "a.jsonl", "{\"new\":1}\n"));
    /* but the index of the old text is */
    assert_int_equal(dataset_unlink(w->st, doomed, &w->err), 1);
    assert_true(file_exists(w, "datasets/s/a.jsonl"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_same_bytes_again_are_fine_others_are_not),
        TEST(names_cannot_leave_the_folder),
        TEST(what_a_job_needs_cannot_be_removed),
        TEST(a_name_can_be_used_anew_before_its_old_file_went),
        TEST(a_file_outlives_a_removal_that_was_not_committed),
        TEST(a_file_put_anew_is_not_unlinked_for_the_old_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
