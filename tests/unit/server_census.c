/* What a dataset's records are like, and what to pad them to. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/json_read.h"
#include "schema/line_hash.h"
#include "schema/line_index.h"
#include "server/advice.h"
#include "server/census.h"
#include "server/duplicates.h"
#include "server/keyset.h"

static uint64_t rng = 88172645463325252u;

static uint64_t random_bits(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng * 0x2545f4914f6cdd1d;
}

static int random_below(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

static int64_t int_at(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static double real_at(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static const json_t *at(const json_t *o, const char *a, const char *b)
{
    const json_t *v = json_object_get(o, a);
    return b ? json_object_get(v, b) : v;
}

static void assert_text(const json_t *v, const char *want)
{
    CLEANUP(buf_release) struct buf text = {0};
    assert_int_equal(json_text(v, &text), 0);
    assert_string_equal(text.data, want);
}

/* A census of texts, each a shard, in pieces of `piece` bytes. */
static json_t *census_of(const struct record_desc *desc,
                         const char *const *texts, int n, size_t piece)
{
    struct err err = {0};
    struct census *c = NULL;
    json_t *out = NULL;
    assert_int_equal(census_new(desc, 0.01, &c, &err), 0);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof(name), "s%d.jsonl", i);
        assert_int_equal(census_begin(c, name, &err), 0);
        size_t len = strlen(texts[i]);
        for (size_t k = 0; k < len; k += piece)
            assert_int_equal(census_add(c, texts[i] + k,
                                        len - k < piece ? len - k : piece,
                                        &err),
                             0);
        assert_int_equal(census_end(c, false, &err), 0);
    }
    assert_int_equal(census_json(c, 2, &out, &err), 0);
    census_free(c);
    return out;
}

static void describe(struct record_desc *ret)
{
    struct err err;
    AUTO_JSON json_t *in = json_loads(
        "{\"t\": {\"kind\": \"tokens\", \"dim\": \"S\", \"vocab\": 10},"
        " \"legal\": {\"kind\": \"rows\", \"dim\": \"A\","
        "  \"columns\": [{\"vocab\": 9}]},"
        " \"x\": {\"kind\": \"numbers\", \"size\": 2},"
        " \"p\": {\"kind\": \"target\", \"over\": \"legal\","
        "  \"loss\": \"cross_entropy\"},"
        " \"v\": {\"kind\": \"target\", \"loss\": \"mse\"}}",
        0, NULL);
    assert_int_equal(record_desc_parse(in, "/record", ret, &err), 0);
}

#define RECORD(t, legal, p, v)                                                 \
    "{\"t\":[" t "],\"legal\":[" legal "],\"x\":[1,3],\"p\":[" p "],\"v\":" v  \
    "}"

static const char *const odd[] = {
    "\xef\xbb\xbf" RECORD(
        "1,2,3", "[1],[2]", "0.5,0.5",
        "0.5") "\r\n"
               "\r\n"
               "  \t\n" RECORD("1", "[1]", "1",
                               "-1") "\n"
                                     "{\"t\":[1],\n" RECORD(
                                         "11", "[1]", "1",
                                         "0") "\n" RECORD("", "[1],[2]",
                                                          "0.5,0.495", "0.25"),
    "",
    RECORD("9,9,9", "[1],[2]", "0.5,0.5", "1") "\n\n",
};

static void odd_lines_are_counted_and_bad_ones_named(void **state)
{
    CLEANUP(record_desc_release) struct record_desc desc = {0};
    describe(&desc);
    AUTO_JSON json_t *c = census_of(&desc, odd, 3, 1 << 20);
    assert_int_equal(int_at(c, "records"), 6);
    assert_int_equal(int_at(c, "lines"), 9);
    assert_int_equal(int_at(c, "blank"), 3);
    assert_int_equal(int_at(c, "shapes"), 3);
    const json_t *bad = json_object_get(c, "bad");
    assert_int_equal(int_at(bad, "count"), 2);
    size_t first = strlen(RECORD("1,2,3", "[1],[2]", "0.5,0.5", "0.5")) + 3 +
                   2 + 2 + 4 + strlen(RECORD("1", "[1]", "1", "-1")) + 1;
    const json_t *line = json_array_get(json_object_get(bad, "first"), 0);
    assert_string_equal(json_string_value(json_object_get(line, "shard")),
                        "s0.jsonl");
    assert_int_equal(int_at(line, "line"), 5);
    assert_int_equal(int_at(line, "offset"), first);
    line = json_array_get(json_object_get(bad, "first"), 1);
    assert_int_equal(int_at(line, "line"), 6);
    assert_int_equal(int_at(line, "offset"), first + 10);
    assert_string_equal(json_string_value(json_object_get(line, "field")), "t");
    assert_string_equal(json_string_value(json_object_get(line, "reason")),
                        "t[0] is 11, vocab is 10");
}

static void lengths_and_sums_are_those_of_good_records(void **state)
{
    CLEANUP(record_desc_release) struct record_desc desc = {0};
    describe(&desc);
    AUTO_JSON json_t *c = census_of(&desc, odd, 3, 1 << 20);
    const json_t *s = at(c, "dims", "S");
    assert_int_equal(int_at(s, "records"), 4);
    assert_int_equal(int_at(s, "min"), 0);
    assert_int_equal(int_at(s, "max"), 3);
    assert_true(real_at(s, "mean") == 7 / 4.0);
    assert_text(json_object_get(s, "histogram"), "[[0,1],[1,1],[3,2]]");
    assert_text(at(at(c, "dims", "A"), "histogram", NULL), "[[1,1],[2,3]]");
    assert_int_equal(int_at(at(c, "fields", "t"), "max"), 3);
    assert_string_equal(
        json_string_value(at(at(c, "fields", "legal"), "dim", NULL)), "A");
    assert_int_equal(int_at(at(c, "fields", "p"), "max"), 2);
    assert_int_equal(int_at(at(c, "fields", "x"), "max"), 2);
    assert_true(real_at(at(at(c, "fields", "x"), "values", NULL), "mean") == 2);
    const json_t *v = json_object_get(c, "value");
    assert_int_equal(int_at(v, "records"), 4);
    assert_true(real_at(v, "sum") == 0.75);
    assert_true(real_at(v, "min") == -1 && real_at(v, "max") == 1);
    const json_t *p = json_object_get(c, "policy");
    assert_int_equal(int_at(p, "records"), 4);
    assert_true(fabs(real_at(p, "sum") - 3.995) < 1e-12);
    assert_int_equal(int_at(p, "off"), 1);
    assert_int_equal(int_at(at(p, "worst", NULL), "line"), 7);
    assert_true(fabs(real_at(at(p, "worst", NULL), "sum") - 0.995) < 1e-12);
}

static void pieces_of_any_size_count_the_same(void **state)
{
    CLEANUP(record_desc_release) struct record_desc desc = {0};
    describe(&desc);
    AUTO_JSON json_t *want = census_of(&desc, odd, 3, 1 << 20);
    for (size_t piece = 1; piece < 200; piece++) {
        AUTO_JSON json_t *c = census_of(&desc, odd, 3, piece);
        assert_true(json_equal(c, want));
    }
    /* a mark alone is no line, half of one is text */
    const char *const marks[] = {"\xef\xbb\xbf", "\xef\xbb\xbf\n", "\xef\xbb"};
    for (size_t piece = 1; piece < 5; piece++) {
        AUTO_JSON json_t *c = census_of(&desc, marks, 3, piece);
        assert_int_equal(int_at(c, "lines"), 2);
        assert_int_equal(int_at(c, "records"), 1);
        assert_int_equal(int_at(at(c, "bad", NULL), "count"), 1);
    }
}

static void a_text_that_goes_on_has_no_last_line(void **state)
{
    struct err err;
    struct census *c = NULL;
    AUTO_JSON json_t *out = NULL;
    assert_int_equal(census_new(NULL, 0.01, &c, &err), 0);
    assert_int_equal(census_begin(c, "a", &err), 0);
    assert_int_equal(census_add(c, "{\"a\":[1]}\n{\"a\":[1,2", 19, &err), 0);
    assert_int_equal(census_end(c, true, &err), 0);
    assert_int_equal(census_begin(c, "b", &err), 0);
    assert_int_equal(census_add(c, "{\"a\":[]}", 8, &err), 0);
    assert_int_equal(census_end(c, false, &err), 0);
    assert_int_equal(census_json(c, 16, &out, &err), 0);
    census_free(c);
    assert_int_equal(int_at(out, "records"), 2);
    assert_int_equal(int_at(at(out, "bad", NULL), "count"), 0);
    assert_text(at(at(out, "dims", "a"), "histogram", NULL), "[[0,1],[1,1]]");
}

static void a_line_that_is_too_long_is_bad_unless_it_is_blank(void **state)
{
    const size_t long_ones[] = {LINE_MAX_BYTES, LINE_MAX_BYTES + 1,
                                LINE_MAX_BYTES * 2};
    for (int blank = 0; blank < 2; blank++)
        for (int i = 0; i < 3; i++) {
            size_t len = long_ones[i];
            AUTO_FREE char *text = malloc(len + 20);
            memset(text, ' ', len);
            if (!blank)
                memcpy(text + len - 2, "{}", 2);
            strcpy(text + len, "\n{\"a\":[1]}\n");
            const char *const texts[] = {text};
            AUTO_JSON json_t *c = census_of(NULL, texts, 1, 100000);
            assert_int_equal(int_at(c, "lines"), 2);
            assert_int_equal(int_at(c, "records"), 2 - blank);
            assert_int_equal(int_at(at(c, "bad", NULL), "count"),
                             !blank && i > 0);
            AUTO_JSON json_t *at_once = census_of(NULL, texts, 1, len + 20);
            assert_true(json_equal(c, at_once));
            if (blank || !i)
                continue;
            const json_t *bad = json_array_get(at(c, "bad", "first"), 0);
            char want[100];
            snprintf(want, sizeof(want),
                     "it has %zu bytes; a record has at most 16777215", len);
            assert_string_equal(
                json_string_value(json_object_get(bad, "reason")), want);
        }
}

/* ---- without a description ---- */

static void without_a_description_lists_are_what_is_long(void **state)
{
    const char *const texts[] = {
        "{\"a\": [1, [2, 3], {\"b\": [4, 5, 6]}, \"x],[\\\"\"], \"n\": -1.5e1,"
        " \"s\": \"[,\", \"o\": {\"a\": [1, 2]}, \"e\": [ ], \"w\": null}\n"
        "{\"e\":[[],[]],\"a\":[],\"n\":3,\"w\":false,\"s\":\"\\\\\",\"o\":{}}\n"
        "{\"\\u0061\":[7],\"n\":[1,2]}\n"
        "[1]\n{\"a\":[1,]}\n{\"a\":1,\"a\":2}\n{}\n"};
    AUTO_JSON json_t *c = census_of(NULL, texts, 1, 7);
    assert_int_equal(int_at(c, "records"), 7);
    assert_int_equal(int_at(at(c, "bad", NULL), "count"), 3);
    assert_int_equal(int_at(c, "shapes"), 4); /* 4,0  0,2  1+2  none */
    const json_t *a = at(c, "fields", "a");
    assert_string_equal(json_string_value(json_object_get(a, "kind")), "list");
    /* "\\u0061" is an a as well */
    assert_int_equal(int_at(a, "records"), 3);
    assert_text(at(at(c, "dims", "a"), "histogram", NULL),
                "[[0,1],[1,1],[4,1]]");
    assert_int_equal(int_at(at(c, "fields", "e"), "max"), 2);
    const json_t *n = at(c, "fields", "n");
    assert_string_equal(json_string_value(json_object_get(n, "kind")), "mixed");
    assert_int_equal(int_at(n, "max"), 2);
    assert_true(real_at(at(n, "values", NULL), "min") == -15);
    assert_string_equal(
        json_string_value(at(at(c, "fields", "s"), "kind", NULL)), "string");
    assert_string_equal(
        json_string_value(at(at(c, "fields", "w"), "kind", NULL)), "word");
    assert_true(json_is_null(json_object_get(c, "value")));
    assert_true(json_is_null(json_object_get(c, "policy")));
}

/* Without a NUL behind it, and longer than any number needs to be. */
static void a_number_may_be_the_last_of_the_memory_there_is(void **state)
{
    CLEANUP(buf_release) struct buf line = {0};
    struct err err;
    buf_adds(&line, "{\"n\":0.25");
    for (int i = 0; i < 200; i++)
        buf_adds(&line, "0");
    buf_adds(&line, "e2}\n");
    AUTO_FREE char *text = malloc(line.len); /* no byte more */
    memcpy(text, line.data, line.len);
    struct census *c = NULL;
    AUTO_JSON json_t *out = NULL;
    assert_int_equal(census_new(NULL, 0.01, &c, &err), 0);
    assert_int_equal(census_begin(c, "a", &err), 0);
    assert_int_equal(census_add(c, text, line.len, &err), 0);
    assert_int_equal(census_end(c, false, &err), 0);
    assert_int_equal(census_json(c, 16, &out, &err), 0);
    census_free(c);
    assert_true(real_at(at(out, "fields", "n"), "max") == 25);
}

static void the_order_of_keys_makes_no_other_shape(void **state)
{
    const char *const texts[] = {"{\"a\":[1],\"b\":[1,2]}\n"
                                 "{\"b\":[3,4],\"a\":[5]}\n"
                                 "{\"b\":[3],\"a\":[5,6]}\n"
                                 "{\"a\":[3]}\n{\"b\":[3]}\n"};
    AUTO_JSON json_t *c = census_of(NULL, texts, 1, 100);
    assert_int_equal(int_at(c, "shapes"), 4);
}

static void fields_beyond_the_limit_are_left_out(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    for (int i = 0; i < CENSUS_FIELDS + 10; i++)
        buf_addf(&text, "%c\"f%d\":[1]", i ? ',' : '{', i);
    buf_adds(&text, "}\n");
    const char *const texts[] = {text.data};
    AUTO_JSON json_t *c = census_of(NULL, texts, 1, 100);
    assert_int_equal(json_object_size(json_object_get(c, "fields")),
                     CENSUS_FIELDS);
    assert_int_equal(int_at(at(c, "bad", NULL), "count"), 0);
    assert_true(json_is_true(json_object_get(c, "fields_left_out")));
}

/* ---- outliers ---- */

static void outliers_are_the_longest_beyond_the_99th_percentile(void **state)
{
    CLEANUP(buf_release) struct buf text = {0};
    for (int i = 0; i < 2000; i++) {
        int n = i == 700 ? 60 : i == 100 ? 50 : i == 1300 ? 50 : i % 10;
        buf_adds(&text, "{\"a\":[");
        for (int k = 0; k < n; k++)
            buf_adds(&text, k ? ",1" : "1");
        buf_adds(&text, "]}\n");
    }
    const char *const texts[] = {text.data};
    AUTO_JSON json_t *c = census_of(NULL, texts, 1, 1000);
    const json_t *out = json_object_get(c, "outliers");
    assert_int_equal(json_array_size(out), 3);
    static const int lines[] = {701, 101, 1301}, longs[] = {60, 50, 50};
    for (size_t i = 0; i < 3; i++) {
        const json_t *o = json_array_get(out, i);
        assert_int_equal(int_at(o, "line"), lines[i]);
        assert_int_equal(int_at(o, "length"), longs[i]);
        const char *record = text.data + int_at(o, "offset");
        assert_int_equal(strcspn(record, "\n"), 8 + 2 * longs[i] - 1);
    }
}

/* ---- distinct keys ---- */

static void a_set_counts_exactly_until_it_is_full_and_then_nearly(void **state)
{
    CLEANUP(keyset_release) struct keyset s = {.max = 1 << 14};
    for (int round = 0; round < 2; round++) {
        rng = 12345;
        for (int i = 0; i < 12000; i++)
            assert_int_equal(keyset_add(&s, random_bits()), !round);
        assert_int_equal(keyset_add(&s, 0), !round);
        assert_int_equal(keyset_count(&s), 12001);
        assert_true(keyset_exact(&s));
    }
    for (int i = 0; i < 300000; i++)
        assert_true(keyset_add(&s, random_bits()) >= 0);
    assert_false(keyset_exact(&s));
    assert_true(s.cap <= 1 << 14);
    assert_true(fabs((double)keyset_count(&s) / 312001 - 1) < 0.03);
    keyset_clear(&s);
    assert_int_equal(keyset_count(&s), 0);
    assert_true(keyset_exact(&s));
}

/* ---- duplicates ---- */

#define SHARDS 3
#define EACH 4000

struct indexes {
    char path[SHARDS][64], sha256[SHARDS][DIGEST_HEX];
    uint64_t hash[SHARDS * EACH];
    struct duplicates_shard v[SHARDS];
};

static void indexes_make(struct indexes *x, int distinct)
{
    struct err err;
    for (int i = 0; i < SHARDS; i++) {
        snprintf(x->path[i], sizeof(x->path[i]), "census-%d-%d.idx",
                 (int)getpid(), i);
        uint8_t sha256[DIGEST_BYTES] = {(uint8_t)i};
        digest_hex(sha256, x->sha256[i]);
        struct line_index_writer *w = NULL;
        assert_int_equal(line_index_new(x->path[i], &w, &err), 0);
        for (int k = 0; k < EACH; k++) {
            int n = random_below(distinct);
            uint64_t hash = line_hash(&n, sizeof(n));
            x->hash[i * EACH + k] = hash;
            assert_int_equal(line_index_add(w, k * 10, 9, hash, &err), 0);
        }
        assert_int_equal(line_index_end(w, sha256, &err), 0);
        line_index_free(w);
        x->v[i] = (struct duplicates_shard){x->path[i], x->sha256[i], EACH};
    }
}

static void indexes_drop(struct indexes *x)
{
    for (int i = 0; i < SHARDS; i++)
        unlink(x->path[i]);
}

/* The first record with this one's hash. */
static int first_of(const struct indexes *x, int i)
{
    int k = 0;
    while (x->hash[k] != x->hash[i])
        k++;
    return k;
}

static void duplicates_are_found_whatever_fits_into_memory(void **state)
{
    static struct indexes x;
    for (int round = 0; round < 6; round++) {
        /* hardly any, to nearly all */
        indexes_make(&x, round == 5 ? 1 : 1 << (26 - 4 * round));
        int64_t want = 0;
        int first[DUPLICATES_SHOWN];
        for (int i = 0; i < SHARDS * EACH; i++) {
            if (first_of(&x, i) == i)
                continue;
            if (want < DUPLICATES_SHOWN)
                first[want] = i;
            want++;
        }
        for (size_t slots = 1024; slots <= DUPLICATES_SLOTS; slots *= 16) {
            struct err err;
            struct duplicates d;
            duplicates_slots = slots;
            assert_int_equal(duplicates_find(x.v, SHARDS, NULL, NULL, &d, &err),
                             0);
            assert_int_equal(d.records, want);
            assert_int_equal(d.n, want < DUPLICATES_SHOWN ? (int)want
                                                          : DUPLICATES_SHOWN);
            for (int i = 0; i < d.n; i++) {
                int f = first_of(&x, first[i]);
                assert_int_equal(d.v[i].at.shard, first[i] / EACH);
                assert_int_equal(d.v[i].at.offset, first[i] % EACH * 10);
                assert_int_equal(d.v[i].first.shard, f / EACH);
                assert_int_equal(d.v[i].first.offset, f % EACH * 10);
            }
        }
        duplicates_slots = DUPLICATES_SLOTS;
        indexes_drop(&x);
    }
}

static bool stop(void *arg, int64_t bytes)
{
    return false;
}

static void a_search_can_be_stopped_and_needs_its_indexes(void **state)
{
    static struct indexes x;
    struct duplicates d;
    struct err err;
    indexes_make(&x, 100);
    assert_int_equal(duplicates_find(x.v, SHARDS, stop, NULL, &d, &err),
                     ERR_BUSY);
    unlink(x.path[1]);
    assert_int_equal(duplicates_find(x.v, SHARDS, NULL, NULL, &d, &err),
                     ERR_NOT_FOUND);
    indexes_drop(&x);
}

/* ---- advice ---- */

#define RECORDS 6000
#define BATCH 8

/* What a padding wastes on records in this order, batch by batch. */
static double wasted(int (*v)[2], const int *fields, const char *const *names,
                     const json_t *padding)
{
    const char *mode = json_string_value(json_object_get(padding, "mode"));
    double held = 0, padded = 0;
    for (int i = 0; i < RECORDS; i += BATCH) {
        int n = RECORDS - i < BATCH ? RECORDS - i : BATCH;
        for (int d = 0; d < 2; d++) {
            int longest = 1;
            for (int k = 0; k < n; k++) {
                held += fields[d] * v[i + k][d];
                longest = v[i + k][d] > longest ? v[i + k][d] : longest;
            }
            int size = longest;
            if (mode && !strcmp(mode, "stable")) {
                int m =
                    (int)int_at(json_object_get(padding, "minimum"), names[d]);
                size = m > longest ? m : longest;
            } else if (mode) {
                const json_t *sizes = json_object_get(
                    json_object_get(padding, "sizes"), names[d]);
                for (size_t k = json_array_size(sizes); k-- > 0;) {
                    int s = (int)json_integer_value(json_array_get(sizes, k));
                    if (s >= longest)
                        size = s;
                }
            }
            padded += (double)fields[d] * n * size;
        }
    }
    return 1 - held / padded;
}

static void advice_wastes_what_it_says(void **state)
{
    static int v[RECORDS][2];
    const int fields[2] = {1, 3};
    const char *const names[2] = {"A", "S"};
    CLEANUP(lengths_release) struct lengths a = {0}, s = {0};
    for (int i = 0; i < RECORDS; i++) {
        v[i][0] = random_below(30) + random_below(30);
        v[i][1] = 40 + random_below(20) * random_below(5);
        assert_int_equal(lengths_add(&a, v[i][0], 1), 0);
        assert_int_equal(lengths_add(&s, v[i][1], 1), 0);
    }
    const struct advice_dim dims[] = {{"A", &a, 1}, {"S", &s, 3}};
    AUTO_JSON json_t *out = NULL;
    struct err err;
    assert_int_equal(advice_json(dims, 2, BATCH, &out, &err), 0);
    assert_int_equal(int_at(out, "micro_batch"), BATCH);
    assert_true(fabs(real_at(at(out, "dynamic", NULL), "waste") -
                     wasted(v, fields, names, NULL)) < 0.01);
    double before = 1;
    static const char *const what[][2] = {{"stable", "p100"},
                                          {"stable", "p99"},
                                          {"ladder", "4"},
                                          {"ladder", "8"},
                                          {"ladder", "16"}};
    for (int i = 0; i < 5; i++) {
        const json_t *one = at(out, what[i][0], what[i][1]);
        const json_t *padding = json_object_get(one, "padding");
        double waste = real_at(one, "waste");
        assert_true(fabs(waste - wasted(v, fields, names, padding)) < 0.01);
        assert_true(waste <= before);
        before = waste;
    }
    assert_int_equal(int_at(at(out, "stable", "p100"), "shapes"), 1);
    assert_int_equal(int_at(at(out, "ladder", "4"), "shapes"), 16);
    assert_text(at(at(out, "stable", "p100"), "padding", NULL),
                "{\"mode\":\"stable\",\"minimum\":{\"A\":58,\"S\":116}}");
}

static void no_records_no_advice(void **state)
{
    struct lengths none = {0};
    const struct advice_dim dims[] = {{"S", &none, 1}};
    AUTO_JSON json_t *out = NULL;
    struct err err;
    assert_int_equal(advice_json(dims, 1, 16, &out, &err), 0);
    assert_true(json_is_null(out));
    const char *const empty[] = {"", "\n\n"};
    AUTO_JSON json_t *c = census_of(NULL, empty, 2, 10);
    assert_int_equal(int_at(c, "records"), 0);
    assert_int_equal(int_at(c, "blank"), 2);
    assert_int_equal(int_at(c, "shapes"), 0);
    assert_true(json_is_null(json_object_get(c, "advice")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_lines_are_counted_and_bad_ones_named),
        cmocka_unit_test(lengths_and_sums_are_those_of_good_records),
        cmocka_unit_test(pieces_of_any_size_count_the_same),
        cmocka_unit_test(a_text_that_goes_on_has_no_last_line),
        cmocka_unit_test(a_line_that_is_too_long_is_bad_unless_it_is_blank),
        cmocka_unit_test(without_a_description_lists_are_what_is_long),
        cmocka_unit_test(a_number_may_be_the_last_of_the_memory_there_is),
        cmocka_unit_test(the_order_of_keys_makes_no_other_shape),
        cmocka_unit_test(fields_beyond_the_limit_are_left_out),
        cmocka_unit_test(outliers_are_the_longest_beyond_the_99th_percentile),
        cmocka_unit_test(a_set_counts_exactly_until_it_is_full_and_then_nearly),
        cmocka_unit_test(duplicates_are_found_whatever_fits_into_memory),
        cmocka_unit_test(a_search_can_be_stopped_and_needs_its_indexes),
        cmocka_unit_test(advice_wastes_what_it_says),
        cmocka_unit_test(no_records_no_advice),
    };
    return cmocka_run_group_tests_name("server_census", tests, NULL, NULL);
}
