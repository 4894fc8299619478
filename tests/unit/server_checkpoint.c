/* Manifests, chunks, and letting go of them. */
#include "server_fixture.h"

static int64_t chunks_stored(struct world *w)
{
    char cmd[200];
    snprintf(cmd, sizeof(cmd),
             "sqlite3 %s/checkpoints.db 'SELECT count(*) FROM chunks'", w->dir);
    FILE *f = popen(cmd, "r");
    long n = -1;
    assert_int_equal(fscanf(f, "%ld", &n), 1);
    pclose(f);
    return n;
}

static int sweeps(struct world *w)
{
    CLEANUP(chunk_sweep_release) struct chunk_sweep s = {0};
    int64_t after = 0;
    must(chunk_sweep_find(w->st, w->chunks, &after, 1000, &s, &w->err));
    assert_int_equal(after, 0);
    int n = chunk_sweep_run(w->chunks, &s, &w->err);
    must(n);
    return n;
}

static void a_chunk_is_what_its_name_says(void **state)
{
    struct world *w = *state;
    static const char sha[] = "ba7816bf8f01cfea414140de5dae2223"
                              "b00361a396177a9cb410ff61f20015ad";
    CLEANUP(buf_release) struct buf b = {0};
    assert_int_equal(chunk_put(w->chunks, 1, sha, "abd", 3, &w->err),
                     ERR_INVALID);
    assert_int_equal(chunk_put(w->chunks, 1, "abc", "abc", 3, &w->err),
                     ERR_INVALID);
    assert_int_equal(chunk_hold(w->chunks, 1, sha, &w->err), 0);
    must(chunk_put(w->chunks, 1, sha, "abc", 3, &w->err));
    must(chunk_put(w->chunks, 1, sha, "abc", 3, &w->err));
    assert_int_equal(chunk_hold(w->chunks, 1, sha, &w->err), 1);
    assert_int_equal(chunks_stored(w), 1);
    must(chunk_read(w->chunks, sha, &b, &w->err));
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "abc", 3);
}

static void
damage_is_seen_when_a_chunk_is_read_and_mended_by_the_next_put(void **state)
{
    struct world *w = *state;
    char cmd[256];
    static const char sha[] = "ba7816bf8f01cfea414140de5dae2223"
                              "b00361a396177a9cb410ff61f20015ad";
    must(chunk_put(w->chunks, 1, sha, "abc", 3, &w->err));
    snprintf(cmd, sizeof(cmd),
             "sqlite3 %s/checkpoints.db \"UPDATE chunks SET data = x'616264'\"",
             w->dir);
    assert_int_equal(system(cmd), 0);
    CLEANUP(buf_release) struct buf b = {0};
    assert_int_equal(chunk_read(w->chunks, sha, &b, &w->err), ERR_CORRUPT);
    /* whoever makes the same state again brings the bytes again */
    assert_int_equal(chunk_hold(w->chunks, 2, sha, &w->err), 0);
    must(chunk_put(w->chunks, 2, sha, "abc", 3, &w->err));
    assert_int_equal(chunk_hold(w->chunks, 2, sha, &w->err), 1);
    must(chunk_read(w->chunks, sha, &b, &w->err));
}

static void
the_newest_two_stay_and_older_ones_go_with_their_chunks(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    for (int i = 1; i <= 5; i++)
        must(saves(w, &a, i, NULL, NULL));
    assert_int_equal(chunks_stored(w), 5);
    must(releases(w, &a, YIELD_STEPS));
    assert_int_equal(sweeps(w), 0); /* all are named still */
    assert_int_equal(prunes(w), 3);
    assert_int_equal(prunes(w), 0);
    AUTO_JSON json_t *page = NULL;
    must(checkpoint_list(w->st, id, 0, 10, &page, &w->err));
    const json_t *items = json_object_get(page, "items");
    assert_int_equal(json_array_size(items), 2);
    assert_int_equal(int_of(json_array_get(items, 1), "step"), 5);
    assert_int_equal(sweeps(w), 3);
    assert_int_equal(chunks_stored(w), 2);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 5);
}

static void what_a_live_lease_started_from_is_kept(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    int64_t first;
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, YIELD_STEPS, &first));
    assert_int_equal(claims(w, &a), 1);
    for (int i = 2; i <= 5; i++)
        must(saves(w, &a, i, NULL, NULL));
    assert_int_equal(prunes(w), 2);
    AUTO_JSON json_t *kept = NULL;
    must(checkpoint_get(w->st, first, &kept, &w->err));
}

static void chunks_that_a_live_lease_holds_are_not_swept(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 1;
    AUTO_JSON json_t *m = manifest_at(w, &a, 1); /* its chunk is stored */
    assert_int_equal(sweeps(w), 0);
    must(posts(w, &a, m, NULL, NULL));
    a.step = 2;
    AUTO_JSON json_t *never = manifest_at(w, &a, 2);
    assert_int_equal(sweeps(w), 0);
    must(releases(w, &a, YIELD_STEPS));
    assert_int_equal(sweeps(w), 1); /* nobody names that one any more */
    assert_int_equal(chunks_stored(w), 1);
}

static void a_lease_lets_go_two_checkpoints_later(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 1;
    AUTO_JSON json_t *never = manifest_at(w, &a, 99);
    must(saves(w, &a, 1, NULL, NULL));
    assert_int_equal(sweeps(w), 0);
    must(saves(w, &a, 2, NULL, NULL));
    assert_int_equal(sweeps(w), 1);
    assert_int_equal(chunks_stored(w), 2);
}

static void a_lease_claimed_after_the_look_counts_as_live(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    put_records(w);
    submit(w, NULL);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    AUTO_JSON json_t *never = manifest_at(w, &a, 7);
    must(releases(w, &a, FAILED("data", "true")));
    CLEANUP(chunk_sweep_release) struct chunk_sweep s = {0};
    int64_t after = 0;
    must(chunk_sweep_find(w->st, w->chunks, &after, 1000, &s, &w->err));
    assert_int_equal(json_array_size(s.orphans), 1);
    assert_int_equal(claims(w, &b), 1); /* and saves the very same bytes */
    AUTO_JSON json_t *m = manifest_at(w, &b, 7);
    assert_int_equal(chunk_sweep_run(w->chunks, &s, &w->err), 0);
    must(posts(w, &b, m, NULL, NULL));
}

static void the_model_file_is_header_and_first_bytes(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    int64_t id;
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, NULL, &id));
    CLEANUP(checkpoint_release) struct checkpoint c = {0};
    must(checkpoint_load(w->st, id, &c, &w->err));
    struct checkpoint_body *body = NULL;
    must(checkpoint_body_new(w->st, &c, true, &body, &w->err));
    int64_t n = checkpoint_body_bytes(body);
    assert_int_equal(n, c.model_bytes);
    AUTO_FREE char *whole = malloc((size_t)n), *parts = malloc((size_t)n);
    assert_int_equal(
        checkpoint_body_read(body, w->chunks, 0, whole, (size_t)n, &w->err), n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(
            checkpoint_body_read(body, w->chunks, i, parts + i, 1, &w->err), 1);
    assert_memory_equal(whole, parts, (size_t)n);
    assert_int_equal(
        checkpoint_body_read(body, w->chunks, n, parts, 1, &w->err), 0);
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_of(whole, (size_t)n, sum);
    digest_hex(sum, hex);
    assert_string_equal(hex, c.model_sha256);
    checkpoint_body_free(body);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_chunk_is_what_its_name_says),
        TEST(damage_is_seen_when_a_chunk_is_read_and_mended_by_the_next_put),
        TEST(the_newest_two_stay_and_older_ones_go_with_their_chunks),
        TEST(what_a_live_lease_started_from_is_kept),
        TEST(chunks_that_a_live_lease_holds_are_not_swept),
        TEST(a_lease_lets_go_two_checkpoints_later),
        TEST(a_lease_claimed_after_the_look_counts_as_live),
        TEST(the_model_file_is_header_and_first_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
