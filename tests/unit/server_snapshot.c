/* The data of a cycle, frozen: which shards, how many records, how often. */
#include <math.h>
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "server/snapshot.h"
#include "server/survey.h"
#include "server_fixture.h"

static void spec_of(struct world *w, const char *more, struct spec *ret)
{
    AUTO_JSON json_t *in = spec_json(more);
    must(spec_parse(in, ret, &w->err));
}

/* Of a spec with those members: 1 and *ret, or 0, or < 0. */
static int make(struct world *w, const char *more, const char *survey,
                struct snapshot *ret)
{
    CLEANUP(spec_release) struct spec spec = {0};
    AUTO_JSON json_t *found = survey ? json_of(survey) : NULL;
    spec_of(w, more, &spec);
    return snapshot_make(w->st, &spec, 0, found, ret, &w->err);
}

static const json_t *shard(const struct snapshot *s, size_t i)
{
    return json_array_get(json_object_get(s->data, "shards"), i);
}

/* n records, numbered from `from` on. */
static void put_numbered(struct world *w, const char *set, const char *name,
                         int from, int n)
{
    CLEANUP(buf_release) struct buf b = {0};
    for (int i = from; i < from + n; i++)
        buf_addf(&b, "{\"x\":[%d],\"v\":%d}\n", i % 8, i);
    must(try_shard(w, set, name, b.data));
}

static int held_out_of(int from, int n, double fraction)
{
    int held = 0;
    for (int i = from; i < from + n; i++) {
        char line[64];
        int len =
            snprintf(line, sizeof(line), "{\"x\":[%d],\"v\":%d}", i % 8, i);
        held += line_is_held_out(line_hash(line, (size_t)len), fraction);
    }
    return held;
}

static void shards_stand_in_order_and_their_bytes_make_the_digest(void **state)
{
    struct world *w = *state;
    must(try_shard(w, "set", "b.jsonl", "{\"b\":1}\n"));
    must(try_shard(w, "set", "a.jsonl", "{\"a\":1}\n{}\n"));
    must(try_shard(w, "set", "Z.txt", "{\"z\":1}\n"));
    CLEANUP(snapshot_release) struct snapshot all = {0}, some = {0}, last = {0};
    must(make(w, NULL, NULL, &all));
    assert_int_equal(json_array_size(json_object_get(all.data, "shards")), 3);
    assert_string_equal(str_of(shard(&all, 0), "name"), "Z.txt");
    assert_string_equal(str_of(shard(&all, 1), "name"), "a.jsonl");
    assert_string_equal(str_of(shard(&all, 1), "form"), "plain");
    assert_int_equal(int_of(shard(&all, 1), "stored_bytes"), 11);
    assert_int_equal(all.records, 4);
    assert_int_equal(int_of(all.data, "records"), 4);
    assert_null(json_object_get(all.data, "take"));
    assert_string_equal(str_of(all.data, "digest"), all.digest);
    /* as it was before there was more to say of a shard */
    AUTO_JSON json_t *identity = json_array();
    for (size_t i = 0; i < 3; i++)
        json_array_append_new(
            identity,
            json_pack("[OOO]", json_object_get(shard(&all, i), "name"),
                      json_object_get(shard(&all, i), "bytes"),
                      json_object_get(shard(&all, i), "blocks")));
    char digest[DIGEST_HEX];
    digest_of_json(identity, digest);
    assert_string_equal(all.digest, digest);
    must(make(w, "{\"data\": {\"dataset\": \"set\", \"shards\": \"*.jsonl\"}}",
              NULL, &some));
    assert_int_equal(json_array_size(json_object_get(some.data, "shards")), 2);
    assert_string_not_equal(all.digest, some.digest);
    must(make(w, "{\"data\": {\"dataset\": \"set\", \"shards\": 1}}", NULL,
              &last));
    assert_string_equal(str_of(shard(&last, 0), "name"), "b.jsonl");
}

static void what_is_not_there_is_named(void **state)
{
    struct world *w = *state;
    CLEANUP(snapshot_release) struct snapshot s = {0};
    assert_int_equal(make(w, NULL, NULL, &s), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/dataset");
    put_records(w);
    assert_int_equal(
        make(w, "{\"data\": {\"dataset\": \"set\", \"shards\": \"z*\"}}", NULL,
             &s),
        ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/shards");
    assert_int_equal(make(w, "{\"data\": {\"root\": \"r\"}}", NULL, &s),
                     ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/root");
    assert_int_equal(make(w,
                          "{\"training\": {\"validation\": {\"dataset\":"
                          " \"none\"}}}",
                          NULL, &s),
                     ERR_INVALID);
    assert_string_equal(w->err.pointer, "/training/validation/dataset");
    must(try_shard(w, "set", "empty.jsonl", "\n\n"));
    assert_int_equal(make(w, NULL, NULL, &s), ERR_DATA);
    assert_string_equal(w->err.shard, "empty.jsonl");
}

#define GLOBAL                                                                 \
    "\"training\": {\"effective_batch\": 4, \"shuffle\": {\"mode\": "          \
    "\"global\"}}"
#define FRACTION                                                               \
    "\"training\": {\"effective_batch\": 4, \"validation\": {\"fraction\": "   \
    "0.25}}"

static void a_part_is_held_out_by_hash_and_counted(void **state)
{
    struct world *w = *state;
    put_numbered(w, "set", "a", 0, 300);
    put_numbered(w, "set", "b", 300, 40);
    CLEANUP(snapshot_release) struct snapshot plain = {0}, s = {0};
    must(make(w, NULL, NULL, &plain));
    assert_int_equal(make(w, "{" FRACTION "}", NULL, &s), 1);
    int a = held_out_of(0, 300, 0.25), b = held_out_of(300, 40, 0.25);
    assert_in_range(a, 40, 110);
    assert_int_equal(int_of(shard(&s, 0), "held_out"), a);
    assert_int_equal(int_of(shard(&s, 1), "held_out"), b);
    assert_int_equal(s.records, 340 - a - b);
    assert_int_equal(s.steps, (s.records + 3) / 4);
    assert_int_equal(strncmp(str_of(shard(&s, 0), "index"), "index/", 6), 0);
    assert_string_not_equal(plain.digest, s.digest);
    assert_null(json_object_get(shard(&plain, 0), "index"));
}

static void another_dataset_may_be_all_the_validation(void **state)
{
    struct world *w = *state;
    put_records(w);
    put_numbered(w, "other", "v", 0, 5);
    CLEANUP(snapshot_release) struct snapshot s = {0}, again = {0};
    const char *spec =
        "{\"training\": {\"validation\": {\"dataset\": \"other\"}}}";
    must(make(w, spec, NULL, &s));
    const json_t *v =
        json_object_get(json_object_get(s.data, "validation"), "shards");
    assert_int_equal(json_array_size(v), 1);
    assert_string_equal(str_of(json_array_get(v, 0), "path"),
                        "datasets/other/v");
    assert_int_equal(s.records, 24);
    put_numbered(w, "other", "w", 5, 5);
    must(make(w, spec, NULL, &again));
    assert_string_not_equal(s.digest, again.digest);
    /* it is needed, as the other one is, once it is frozen and before */
    int64_t id = submit(w, spec);
    assert_int_equal(dataset_delete(w->st, "other", NULL, &w->err),
                     ERR_CONFLICT);
    assert_int_equal(dataset_delete(w->st, "other", "v", &w->err),
                     ERR_CONFLICT);
    must(job_cancel(w->st, id, w->now, &w->err));
    id = submit(w, "{\"not_before\": \"2100-01-01T00:00:00Z\", \"training\":"
                   " {\"validation\": {\"dataset\": \"other\"}}}");
    assert_int_equal(dataset_delete(w->st, "other", NULL, &w->err),
                     ERR_CONFLICT);
    must(job_cancel(w->st, id, w->now, &w->err));
    must(dataset_delete(w->st, "other", NULL, &w->err));
}

static void a_weight_counts_for_its_whole_group(void **state)
{
    struct world *w = *state;
    put_numbered(w, "set", "new-1", 0, 5);
    put_numbered(w, "set", "new-2", 5, 6);
    put_numbered(w, "set", "old-1", 11, 7);
    put_numbered(w, "set", "z", 18, 3);
    CLEANUP(snapshot_release) struct snapshot s = {0}, none = {0};
    assert_int_equal(
        make(w,
             "{\"data\": {\"dataset\": \"set\", \"groups\": [{\"match\":"
             " \"new-*\", \"weight\": 2.5}, {\"match\": \"*-1\","
             " \"weight\": 0.3}]}, " GLOBAL "}",
             NULL, &s),
        1);
    /* 11 records of weight 2.5: 27.5; 7 of 0.3: 2.1; 3 */
    assert_int_equal(s.records, 28 + 2 + 3);
    assert_true(json_real_value(json_object_get(shard(&s, 0), "weight")) ==
                2.5);
    assert_true(json_real_value(json_object_get(shard(&s, 2), "weight")) ==
                0.3);
    assert_null(json_object_get(shard(&s, 3), "weight"));
    assert_int_equal(make(w,
                          "{\"data\": {\"dataset\": \"set\", \"groups\":"
                          " [{\"match\": \"*\", \"weight\": 0}]}, " GLOBAL "}",
                          NULL, &none),
                     ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/groups");
}

static void without_an_index_it_must_be_surveyed_first(void **state)
{
    struct world *w = *state;
    char path[200];
    put_numbered(w, "set", "a", 0, 30);
    CLEANUP(snapshot_release) struct snapshot s = {0}, t = {0}, u = {0};
    assert_int_equal(make(w, "{" GLOBAL "}", NULL, &s), 1);
    const char *sha256 = str_of(shard(&s, 0), "sha256");
    snprintf(path, sizeof(path), "%s/index/%s", w->dir, sha256);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(make(w, "{" GLOBAL "}", NULL, &t), 0);
    assert_int_equal(make(w, "{" FRACTION "}", NULL, &t), 0);
    assert_int_equal(make(w, NULL, NULL, &t), 1); /* which needs none */
    int64_t id = submit(w, "{" GLOBAL "}");
    expect_job(w, id, "queued", "reads its data");
    struct worker k = {.name = "k"};
    assert_int_equal(claims(w, &k), 0);
    char file[200], tmp[100];
    snprintf(file, sizeof(file), "%s/datasets/set/a", w->dir);
    snprintf(tmp, sizeof(tmp), "%s/tmp", w->dir);
    mkdir(tmp, 0700);
    must(survey_index(w->dir, file, "plain", int_of(shard(&s, 0), "bytes"),
                      sha256, NULL, NULL, &w->err));
    assert_int_equal(make(w, "{" GLOBAL "}", NULL, &u), 1);
    must(job_settle(w->st, id, false, w->now, &w->err));
    assert_int_equal(claims(w, &k), 1);
    worker_drop(&k);
    /* and a text that is another one by now gets none */
    assert_int_equal(unlink(path), 0);
    FILE *f = fopen(file, "r+");
    fputs("{\"x\":[1]", f);
    fclose(f);
    assert_int_equal(survey_index(w->dir, file, "plain",
                                  int_of(shard(&s, 0), "bytes"), sha256, NULL,
                                  NULL, &w->err),
                     ERR_DATA);
    assert_string_equal(w->err.shard, "a");
    assert_int_not_equal(access(path, F_OK), 0);
}

static void what_a_survey_counted_is_taken(void **state)
{
    struct world *w = *state;
    put_numbered(w, "set", "a", 0, 30);
    put_numbered(w, "set", "b", 30, 30);
    CLEANUP(snapshot_release) struct snapshot s = {0}, t = {0};
    must(make(w, NULL, NULL, &s));
    char found[300];
    snprintf(found, sizeof(found),
             "{\"shards\": [\"b\", \"gone\"], \"held_out\": {\"%s\": 11}}",
             str_of(shard(&s, 1), "sha256"));
    assert_int_equal(make(w, "{" FRACTION "}", found, &t), 1);
    assert_int_equal(json_array_size(json_object_get(t.data, "shards")), 1);
    assert_int_equal(t.records, 19);
    assert_int_equal(make(w, NULL,
                          "{\"error\": {\"code\": -15, \"detail\": \"no\","
                          " \"shard\": \"a\", \"pointer\": \"\","
                          " \"offset\": 7}}",
                          &t),
                     ERR_DATA);
    assert_string_equal(w->err.shard, "a");
    assert_int_equal(w->err.offset, 7);
}

/* ---- uses ---- */

#define WINDOW                                                                 \
    "{\"cycles\": 0, \"data\": {\"dataset\": \"set\", \"shards\": 2,"          \
    " \"max_uses\": 2}, \"training\": {\"effective_batch\": 4,"                \
    " \"epochs\": 3}}"

static json_t *cycle_of(struct world *w, int64_t job, int64_t number)
{
    json_t *c = NULL;
    bool ended;
    must(cycle_get(w->st, job, number, &c, &ended, &w->err));
    return c;
}

static void expect_cycle(struct world *w, int64_t job, int64_t number,
                         int64_t fresh, int64_t take, int64_t steps)
{
    AUTO_JSON json_t *c = cycle_of(w, job, number);
    assert_int_equal(int_of(c, "fresh"), fresh);
    assert_int_equal(int_of(c, "take"), take);
    assert_int_equal(int_of(c, "steps"), steps);
}

static void trains(struct world *w, struct worker *k)
{
    assert_int_equal(claims(w, k), 1);
    must(saves(w, k, int_of(k->claim, "steps"), FINISHED, NULL));
    w->now += 1000;
}

static void asks(struct world *w, int64_t id)
{
    int64_t n;
    AUTO_JSON json_t *body = json_object();
    must(job_add_cycle(w->st, id, body, w->now, &n, &w->err));
}

static void a_record_is_used_so_often_and_no_more(void **state)
{
    struct world *w = *state;
    struct worker k = {.name = "k"};
    put_numbered(w, "set", "a", 0, 10);
    int64_t id = submit(w, WINDOW);
    asks(w, id);
    /* 10 new ones: 20 uses; 3 epochs of 10 would take 30 */
    expect_cycle(w, id, 1, 10, 20, 3 + 3);
    trains(w, &k);
    assert_int_equal(int_of(json_object_get(k.claim, "data"), "take"), 20);
    asks(w, id);
    expect_job(w, id, "queued", "waits for 2 new records (max_uses)");
    assert_int_equal(claims(w, &k), 0);
    /* nothing came: it is not looked at again */
    must(survey_tick(w->st, w->now, &w->err));
    expect_job(w, id, "queued", "waits for 2 new records");
    put_numbered(w, "set", "b", 10, 1);
    must(survey_tick(w->st, w->now, &w->err));
    expect_job(w, id, "queued", "waits for 1 new record (");
    put_numbered(w, "set", "c", 11, 6);
    must(survey_tick(w->st, w->now, &w->err));
    /* the last two: b and c, all new, 7 records and 14 uses of 21 */
    expect_cycle(w, id, 2, 7, 14, 2 + 2);
    assert_int_equal(events(w, id, "ready", "waits for 1 new record"), 1);
    trains(w, &k);
    /* 50 new ones: 100 uses; three epochs of 56 would be 168 */
    put_numbered(w, "set", "d", 17, 50);
    asks(w, id);
    expect_cycle(w, id, 3, 50, 100, 14 + 11);
    trains(w, &k);
    worker_drop(&k);
}

static void what_is_not_used_is_kept_for_later(void **state)
{
    struct world *w = *state;
    struct worker k = {.name = "k"};
    put_numbered(w, "set", "a", 0, 10);
    int64_t id = submit(w, "{\"cycles\": 0, \"data\": {\"dataset\": \"set\","
                           " \"max_uses\": 2.5}, \"training\":"
                           " {\"effective_batch\": 4}}");
    asks(w, id);
    expect_cycle(w, id, 1, 10, 10, 3); /* of 25 */
    trains(w, &k);
    asks(w, id);
    expect_cycle(w, id, 2, 0, 10, 3); /* of 15 */
    trains(w, &k);
    asks(w, id);
    expect_cycle(w, id, 3, 0, 5, 2); /* the rest: one and a bit */
    trains(w, &k);
    asks(w, id);
    expect_job(w, id, "queued", "waits for 2 new records");
    worker_drop(&k);
}

static void those_kept_for_validation_add_no_uses(void **state)
{
    struct world *w = *state;
    put_numbered(w, "set", "a", 0, 200);
    int64_t id = submit(
        w, "{\"data\": {\"dataset\": \"set\", \"max_uses\": 1}," FRACTION "}");
    int64_t n = 200 - held_out_of(0, 200, 0.25);
    expect_cycle(w, id, 1, n, n, (n + 3) / 4);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shards_stand_in_order_and_their_bytes_make_the_digest),
        TEST(what_is_not_there_is_named),
        TEST(a_part_is_held_out_by_hash_and_counted),
        TEST(another_dataset_may_be_all_the_validation),
        TEST(a_weight_counts_for_its_whole_group),
        TEST(without_an_index_it_must_be_surveyed_first),
        TEST(what_a_survey_counted_is_taken),
        TEST(a_record_is_used_so_often_and_no_more),
        TEST(what_is_not_used_is_kept_for_later),
        TEST(those_kept_for_validation_add_no_uses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
