/* The order of records, as a property: whatever the data, the shuffle, the batch,
 * the weights and what is held out, a run that is stopped again and again uses
 * the records of one that is not, in the same order and steps; and each epoch
 * uses each record as often as it should. Between two stops shards may grow,
 * and a cache may be emptied. */
#include <math.h>
#include <time.h>
#include "tests/unit/worker_server.h"
#include "tests/unit/worker_text.h"
#include "worker/cache.h"
#include "worker/feed.h"
#include "worker/permute.h"
#include "worker/remote.h"

#define RECORDS_MAX 400
#define SHARDS_MAX 5
#define CHAIN_MAX 100

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}
static unsigned below(unsigned *state, unsigned n)
{
    return next_random(state) % n;
}

/* ---- data ---- */

struct scene {
    struct folder dir;
    struct server server;
    struct client_options net;
    struct cache *cache;
    json_t *data;
    int records, shards;
    double weight[SHARDS_MAX];
    int shard_of[RECORDS_MAX];
    bool held[RECORDS_MAX];
    bool far; /* the feed reads over HTTP */
};

static bool give_up(void *arg)
{
    return false;
}

/* One shard of records first … end, with what may stand around them. */
static json_t *make_shard(struct scene *s, int shard, int first, int end,
                          double fraction, bool index, unsigned *random)
{
    CLEANUP(buf_release) struct buf text = {0};
    int64_t held_out = 0;
    char name[32];
    if (below(random, 3) == 0)
        buf_adds(&text, "\xef\xbb\xbf");
    for (int i = first; i < end; i++) {
        size_t at = text.len;
        add_record(&text, i);
        text.len--; /* its newline */
        if (below(random, 4) == 0)
            buf_adds(&text, "\r");
        s->shard_of[i] = shard;
        s->held[i] = line_is_held_out(line_hash(text.data + at, text.len - at),
                                      fraction);
        held_out += s->held[i];
        if (i + 1 < end || below(random, 2))
            buf_adds(&text, "\n");
        if (i + 1 < end && below(random, 5) == 0)
            buf_adds(&text, " \t\r\n");
    }
    snprintf(name, sizeof name, "shard-%d.jsonl", shard);
    struct made how = {.zstd = below(random, 2), .index = index};
    json_t *one = freeze_text(&s->dir, name, &text, &how);
    if (fraction > 0)
        json_object_set_new(one, "held_out", json_integer(held_out));
    if (s->weight[shard] != 1)
        json_object_set_new(one, "weight", json_real(s->weight[shard]));
    server_holds(&s->server, shard, text.data, text.len,
                 json_string_value(json_object_get(one, "index")));
    return one;
}

/* Uses of records in an epoch, as the server counts them. */
static int64_t uses_of(const struct scene *s)
{
    int64_t all = 0;
    bool done[SHARDS_MAX] = {0};
    for (int a = 0; a < s->shards; a++) {
        int64_t n = 0;
        for (int b = a; b < s->shards; b++) {
            if (done[b] || s->weight[b] != s->weight[a])
                continue;
            done[b] = true;
            for (int i = 0; i < s->records; i++)
                n += s->shard_of[i] == b && !s->held[i];
        }
        all += llround((double)n * s->weight[a]);
    }
    return all;
}

static void scene_init(struct scene *s, bool global, double fraction,
                       unsigned *random)
{
    static const double weights[] = {1, 1, 2, 0.5, 3.25, 0};
    char path[128];
    struct err err = {0};
    *s = (struct scene){.far = global && below(random, 4) == 0};
    folder_init(&s->dir);
    server_start(&s->server, &s->dir);
    s->net = (struct client_options){.server = s->server.url, .token = "word"};
    in_folder(&s->dir, "cache", path, sizeof path);
    assert_int_equal(cache_open(path, 1 << 20, &s->cache, &err), 0);
    s->records = 1 + (int)below(random, RECORDS_MAX / 2);
    s->shards = 1 + (int)below(random, SHARDS_MAX);
    if (s->shards > s->records)
        s->shards = s->records;
    bool weighted = global && below(random, 2);
    json_t *list = json_array();
    for (int i = 0; i < s->shards; i++) {
        s->weight[i] = weighted ? weights[below(random, 6)] : 1;
        json_array_append_new(list, make_shard(s, i, s->records * i / s->shards,
                                               s->records * (i + 1) / s->shards,
                                               fraction, global || fraction > 0,
                                               random));
    }
    s->data = json_pack("{s:o, s:I}", "shards", list, "records",
                        (json_int_t)uses_of(s));
    if (fraction > 0)
        json_object_set_new(s->data, "validation",
                            json_pack("{s:f}", "fraction", fraction));
}

static void scene_release(struct scene *s)
{
    server_stop(&s->server);
    cache_close(s->cache);
    json_decref(s->data);
    folder_release(&s->dir);
}

/* What lies behind the frozen end is none of this cycle's business. */
static void grow(const struct scene *s)
{
    char path[256], name[32];
    for (int i = 0; i < s->shards; i++) {
        snprintf(name, sizeof name, "shard-%d.jsonl", i);
        const char *form = json_string_value(json_object_get(
            json_array_get(json_object_get(s->data, "shards"), (size_t)i),
            "form"));
        if (strcmp(form, "plain"))
            continue; /* it would be another table */
        in_folder(&s->dir, name, path, sizeof path);
        FILE *f = fopen(path, "ae");
        assert_non_null(f);
        assert_true(fputs("\n{\"x\":[99999]}\n{\"x\":", f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
}

static void empty_cache(const struct scene *s)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s/cache'", s->dir.path);
    assert_int_equal(system(command), 0);
}

/* ---- a trainer, one process after the other ---- */

struct log {
    struct buf text; /* a line for each step: step, epoch, ids */
    int64_t steps, n;
    int uses[4][RECORDS_MAX]; /* by epoch and id */
};

static void log_release(struct log *l)
{
    buf_release(&l->text);
}

struct process {
    struct feed *feed;
    struct remote *remote;
};

static void begin(struct process *p, const struct scene *s,
                  const struct spec *spec, const json_t *position,
                  const int64_t *buffer, int64_t n)
{
    struct err err = {0};
    struct remote_options o = {.net = &s->net,
                               .lease = 7,
                               .token = 5,
                               .cache = s->cache,
                               .give_up = give_up};
    p->remote = NULL;
    if (s->far)
        assert_int_equal(remote_new(&o, &p->remote, &err), 0);
    if (feed_open(spec, &spec->runtime, s->data, p->remote, 3, &p->feed, &err) <
        0)
        fail_msg("%s", err.text);
    if (position && feed_resume(p->feed, position, buffer, n, &err) < 0)
        fail_msg("%s", err.text);
}

static void end(struct process *p)
{
    feed_close(p->feed);
    remote_free(p->remote);
}

/* One step's micro-batches: 1, or 0 at the end. Trained only if `count`. */
static int one_step(struct feed *f, const struct spec *spec, bool count,
                    struct log *l)
{
    CLEANUP(buf_release) struct buf line = {0};
    int ids[256], n = 0;
    struct feed_batch *b;
    struct err err = {0};
    do {
        int r = feed_next(f, &b, &err);
        if (r < 0)
            fail_msg("%s", err.text);
        if (r == 0) {
            assert_int_equal(n, 0); /* never within a step */
            return 0;
        }
        if (!n)
            buf_addf(&line, "%lld %lld", (long long)b->step,
                     (long long)b->epoch);
        int x = record_desc_field(&spec->record, "x");
        int width = b->batch.padded[spec->record.fields[x].dim];
        for (int i = 0; i < b->batch.records; i++) {
            ids[n] = b->batch.ints[x][i * width];
            buf_addf(&line, " %d", ids[n++]);
        }
    } while (!b->last);
    if (!count)
        return 1;
    feed_trained(f);
    buf_addf(&l->text, "%s\n", line.data);
    l->steps++;
    l->n += n;
    for (int i = 0; i < n; i++) {
        assert_in_range(ids[i], 0, RECORDS_MAX - 1);
        l->uses[b->epoch][ids[i]]++;
    }
    return 1;
}

/* Train all; stop after a step with a chance of 1 in `stop`, CHAIN_MAX times at
 * most, and lose what was handed out ahead. How often it stopped. */
static int run(struct scene *s, const struct spec *spec, unsigned stop,
               unsigned random, struct log *l)
{
    struct process p;
    struct err err = {0};
    int stops = 0;
    begin(&p, s, spec, NULL, NULL, 0);
    for (;;) {
        bool lost = stop && stops < CHAIN_MAX && below(&random, stop + 2) == 0;
        if (!one_step(p.feed, spec, !lost, l))
            break;
        if (!lost && !(stop && stops < CHAIN_MAX && below(&random, stop) == 0))
            continue;
        AUTO_JSON json_t *position = NULL;
        AUTO_FREE int64_t *buffer = NULL;
        int64_t n = 0;
        assert_int_equal(feed_save(p.feed, &position, &buffer, &n, &err), 0);
        end(&p);
        /* what is saved is text and numbers */
        AUTO_FREE char *text = json_dumps(position, JSON_COMPACT);
        AUTO_JSON json_t *again = json_loads(text, 0, NULL);
        if (below(&random, 4) == 0)
            grow(s);
        if (s->far && below(&random, 3) == 0)
            empty_cache(s);
        begin(&p, s, spec, again, buffer, n);
        stops++;
    }
    end(&p);
    return stops;
}

/* Each epoch: a record of weight w that is not held out is used floor(w) times
 * or once more, and all of them together as often as they should. */
static void check_uses(const struct scene *s, const struct log *l, int epochs)
{
    int64_t want = uses_of(s);
    assert_int_equal(l->n, want * epochs);
    for (int e = 0; e < epochs; e++) {
        int64_t all = 0;
        for (int i = 0; i < s->records; i++) {
            double w = s->held[i] ? 0 : s->weight[s->shard_of[i]];
            int n = l->uses[e][i];
            if (n != (int)floor(w) && n != (int)ceil(w))
                fail_msg("epoch %d: record %d of weight %g is used %d times", e,
                         i, w, n);
            all += n;
        }
        assert_int_equal(all, want);
    }
}

static void any_chain_of_stops_gives_the_same_order(void **state)
{
    static const int buffers[] = {1, 3, 16, 1000};
    static const double fractions[] = {0, 0.1, 0.4};
    bool thorough = getenv("TEST_LONG") && *getenv("TEST_LONG");
    const char *given = getenv("PAWL_SEED");
    unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
    print_message("# PAWL_SEED=%u\n", seed);
    unsigned random = seed;
    int longest = 0, far = 0, weighted = 0;
    for (int round = 0; round < (thorough ? 2000 : 90); round++) {
        bool global = round % 3 > 0;
        double fraction = fractions[below(&random, 3)];
        struct scene s;
        scene_init(&s, global, fraction, &random);
        if (uses_of(&s) == 0) { /* all held out, or weigh nothing */
            scene_release(&s);
            continue;
        }
        int effective = 1 + (int)below(&random, 20);
        struct spec_in in = {
            .epochs = 1 + (int)below(&random, 4),
            .effective = effective,
            .micro = 1 + (int)below(&random, (unsigned)effective),
            .shuffle = global ? 0 : buffers[below(&random, 4)],
            .global = global,
            .seed = (int64_t)below(&random, 1u << 24) << 20 | round,
        };
        CLEANUP(spec_release) struct spec spec = {0};
        make_spec(&in, &spec);
        spec.training.validation.fraction = fraction;
        CLEANUP(log_release) struct log whole = {0}, cut = {0};
        run(&s, &spec, 0, 0, &whole);
        check_uses(&s, &whole, in.epochs);
        int stops = run(&s, &spec, 1 + below(&random, 6), random, &cut);
        assert_string_equal(whole.text.data, cut.text.data);
        longest = stops > longest ? stops : longest;
        far += s.far;
        for (int i = 0; i < s.shards; i++)
            weighted += s.weight[i] != 1;
        scene_release(&s);
    }
    print_message("# the longest chain had %d stops\n", longest);
    assert_in_range(longest, CHAIN_MAX / 2, CHAIN_MAX);
    assert_true(far > 3 && weighted > 5);
}

/* The order is that of the records, not of how they are kept: forms, block
 * sizes and who reads them do not matter. */
static void the_order_does_not_depend_on_how_shards_are_kept(void **state)
{
    for (int global = 0; global < 2; global++) {
        CLEANUP(buf_release) struct buf first = {0};
        for (int way = 0; way < 4; way++) {
            struct scene s = {.records = 150, .shards = 2, .far = way == 3};
            char path[128];
            struct err err = {0};
            folder_init(&s.dir);
            server_start(&s.server, &s.dir);
            s.net = (struct client_options){.server = s.server.url,
                                            .token = "word"};
            in_folder(&s.dir, "cache", path, sizeof path);
            assert_int_equal(cache_open(path, 1 << 20, &s.cache, &err), 0);
            s.data = json_pack("{s:[]}", "shards");
            for (int i = 0; i < 2; i++) {
                CLEANUP(buf_release) struct buf text = {0};
                char name[16];
                snprintf(name, sizeof name, "s%d", i);
                for (int k = 75 * i; k < 75 * (i + 1); k++)
                    add_record(&text, k);
                struct made how = {.zstd = way == 1 || (way == 2 && i),
                                   .index = true,
                                   .block_bytes = way == 2 ? 65536 : 0};
                json_t *one = freeze_text(&s.dir, name, &text, &how);
                json_array_append_new(json_object_get(s.data, "shards"), one);
                server_holds(&s.server, i, text.data, text.len,
                             json_string_value(json_object_get(one, "index")));
            }
            struct spec_in in = {.epochs = 2,
                                 .effective = 7,
                                 .micro = 7,
                                 .shuffle = global ? 0 : 20,
                                 .global = global,
                                 .seed = 5};
            CLEANUP(spec_release) struct spec spec = {0};
            make_spec(&in, &spec);
            CLEANUP(log_release) struct log l = {0};
            run(&s, &spec, 0, 0, &l);
            if (way == 0)
                buf_adds(&first, l.text.data);
            assert_string_equal(l.text.data, first.data);
            scene_release(&s);
        }
    }
}

/* ---- the permutation itself ---- */

static void every_permutation_has_each_place_once(void **state)
{
    static bool seen[70000];
    unsigned random = 1;
    for (int round = 0; round < 700; round++) {
        int64_t n =
            round < 600 ? round / 2 : 1 + (int64_t)below(&random, 70000);
        struct permutation p;
        permute_init(&p, n, (int64_t)round << 40 | round, round % 7, round % 5,
                     round % 3);
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = permute_at(&p, i);
            assert_in_range(at, 0, n - 1);
            assert_false(seen[at]);
            seen[at] = true;
        }
    }
}

/* Over many epochs each record comes to each place about equally often, also
 * where there are few, and two that are neighbours do not stay so. */
static void no_place_is_preferred(void **state)
{
    enum { EPOCHS = 6000 };
    static const int sizes[] = {2, 3, 5, 8, 13, 33};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k], at[33][33] = {{0}}, together = 0;
        for (int e = 0; e < EPOCHS; e++) {
            struct permutation p;
            permute_init(&p, n, 77, 2, e, 0);
            for (int i = 0; i < n; i++)
                at[i][permute_at(&p, i)]++;
            together += permute_at(&p, 1) == permute_at(&p, 0) + 1;
        }
        double mean = (double)EPOCHS / n;
        double sd = sqrt(mean * (1 - 1.0 / n));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                if (fabs(at[i][j] - mean) > 6 * sd + 1)
                    fail_msg("of %d, %d comes to %d in %d of %d epochs", n, i,
                             j, at[i][j], EPOCHS);
        double pairs = EPOCHS / (double)n;
        if (n > 2 && fabs(together - pairs) > 6 * sqrt(pairs) + 1)
            fail_msg("of %d, two neighbours stay so in %d of %d epochs", n,
                     together, EPOCHS);
    }
}

/* It is part of what a job's seed means: never to change. */
static void the_order_of_a_seed_is_what_it_was(void **state)
{
    static const struct {
        int64_t n, seed, cycle, epoch;
        int purpose;
        int64_t first[8];
    } table[] = {
        {8, 0, 1, 0, 0, {7, 0, 6, 1, 2, 3, 5, 4}},
        {10, 1, 1, 0, 0, {8, 2, 3, 9, 6, 4, 0, 7}},
        {10, 1, 1, 1, 0, {0, 2, 9, 4, 8, 7, 5, 3}},
        {10, 1, 2, 0, 0, {2, 8, 9, 3, 4, 0, 7, 6}},
        {10, 1, 1, 0, 1, {2, 9, 5, 6, 7, 1, 3, 4}},
        {1000, 42, 1, 3, 0, {321, 800, 427, 907, 1, 130, 635, 520}},
        {10000000,
         9007199254740991,
         3,
         7,
         0,
         {598365, 4214767, 4932456, 3364149, 7913034, 4228697, 492642,
          1589122}},
        {5000000000,
         7,
         1,
         0,
         1,
         {3825730249, 1865563533, 4439286400, 1888522237, 61695573, 142299736,
          3909268808, 1452075158}},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        struct permutation p;
        permute_init(&p, table[k].n, table[k].seed, table[k].cycle,
                     table[k].epoch, table[k].purpose);
        for (int i = 0; i < 8; i++)
            assert_int_equal(permute_at(&p, i), table[k].first[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_chain_of_stops_gives_the_same_order),
        cmocka_unit_test(the_order_does_not_depend_on_how_shards_are_kept),
        cmocka_unit_test(every_permutation_has_each_place_once),
        cmocka_unit_test(no_place_is_preferred),
        cmocka_unit_test(the_order_of_a_seed_is_what_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
