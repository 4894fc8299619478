/* Job specs: defaults, refusals, signatures, the learning rate. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/rfc3339.h"
#include "schema/spec.h"

#define RECORD                                                                 \
    "\"record\": {\"state\": {\"kind\": \"tokens\", \"dim\": \"S\", "          \
    "\"vocab\": 64}, \"legal\": {\"kind\": \"rows\", \"dim\": \"A\", "         \
    "\"columns\": [{\"vocab\": 8}, {\"scale\": 100}]}, \"policy\": {\"kind\":" \
    " \"target\", \"over\": \"legal\"}, \"value\": {\"kind\": \"target\"}}"
#define DATA "\"data\": {\"dataset\": \"chess\"}"
#define LEAST RECORD ", " DATA

static json_t *json_of(const char *text)
{
    json_t *v = NULL;
    struct err err;
    if (json_parse_strict(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return v;
}

static void parse(const char *text, struct spec *ret)
{
    AUTO_JSON json_t *in = json_of(text);
    struct err err;
    if (spec_parse(in, ret, &err) < 0)
        fail_msg("%s: %s", err.pointer, err.text);
}

/* The least spec with the value at `pointer` (members only) set to `value`,
 * NULL to remove it. */
static json_t *spec_with(const char *pointer, const char *value)
{
    json_t *top = json_of("{" LEAST "}"), *at = top;
    char path[200], *save, *step, *next;
    strcpy(path, pointer);
    step = strtok_r(path, "/", &save);
    while ((next = strtok_r(NULL, "/", &save))) {
        if (!json_is_object(json_object_get(at, step)))
            json_object_set_new(at, step, json_object());
        at = json_object_get(at, step);
        step = next;
    }
    if (value)
        json_object_set_new(at, step, json_of(value));
    else
        json_object_del(at, step);
    return top;
}

static void the_chess_job_parses_as_it_stands(void **state)
{
    AUTO_JSON json_t *in = json_load_file(FIXTURES "/chess/job.json", 0, NULL);
    CLEANUP(spec_release) struct spec s = {0};
    struct err err;
    assert_non_null(in);
    if (spec_parse(in, &s, &err) < 0)
        fail_msg("%s: %s", err.pointer, err.text);
    assert_string_equal(s.name, "chess-tiny");
    assert_int_equal(s.model.d_model, 32);
    assert_true(s.model.dropout == 0.1);
    assert_int_equal(s.record.n_fields, 6);
    assert_string_equal(s.record.fields[0].name, "history");
    assert_string_equal(s.record.fields[1].name, "legal");
    assert_int_equal(s.record.n_dims, 4);
    assert_string_equal(s.record.dims[0], "A");
    assert_string_equal(s.record.dims[3], "S");
    assert_int_equal(s.record.fields[1].n_ints, 4);
    assert_int_equal(s.record.policy, 3);
    assert_int_equal(s.record.fields[3].over, 1);
    assert_int_equal(s.record.fields[3].dim, 0);
    assert_int_equal(s.record.value, 5);
    assert_int_equal(s.record.fields[5].dim, -1);
    assert_int_equal(s.training.seed, 7);
    assert_int_equal(s.training.shuffle.size, 1000);
    assert_int_equal(s.training.schedule.type, SCHEDULE_COSINE);
    assert_int_equal(s.runtime.padding.mode, PADDING_STABLE);
    assert_int_equal(s.runtime.padding.minimum[0], 48);
    assert_int_equal(s.runtime.padding.minimum[3], 72);
    assert_string_equal(s.runtime.device, "cpu");
    assert_int_equal(strlen(s.signature), 64);
}

static void what_a_spec_leaves_out_has_its_documented_default(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST "}", &s);
    assert_string_equal(s.kind, "train");
    assert_string_equal(s.name, "train");
    assert_int_equal(s.cycles, 1);
    assert_int_equal(s.priority, 0);
    assert_int_equal(s.model.d_model, 128);
    assert_int_equal(s.model.layers, 4);
    assert_int_equal(s.model.heads, 4);
    assert_int_equal(s.model.ff, 512);
    assert_int_equal(s.model.max_length, 512);
    assert_true(s.model.dropout == 0);
    assert_int_equal(s.data.shards_last, 0);
    assert_null(s.data.shards_glob);
    assert_int_equal(s.data.bad_records, BAD_FAIL);
    assert_true(s.data.policy_tolerance == 0.01);
    assert_int_equal(s.training.epochs, 1);
    assert_int_equal(s.training.effective_batch, 64);
    assert_int_equal(s.training.seed, 0);
    assert_true(s.training.optimizer.lr == 0.001);
    assert_true(s.training.optimizer.weight_decay == 0.01);
    assert_true(s.training.optimizer.beta1 == 0.9);
    assert_true(s.training.optimizer.beta2 == 0.999);
    assert_true(s.training.optimizer.eps == 1e-8);
    assert_int_equal(s.training.schedule.type, SCHEDULE_CONSTANT);
    assert_int_equal(s.training.schedule.warmup_steps, 0);
    assert_true(s.training.schedule.final_fraction == 0);
    assert_true(s.training.clip_norm == 1);
    assert_true(s.training.losses[s.record.policy] == 1);
    assert_true(s.training.losses[s.record.value] == 1);
    assert_true(s.training.losses[record_desc_field(&s.record, "state")] == 0);
    assert_int_equal(s.training.shuffle.mode, SHUFFLE_BUFFER);
    assert_int_equal(s.training.shuffle.size, 10000);
    assert_string_equal(s.runtime.device, "auto");
    assert_int_equal(s.runtime.micro_batch, 16);
    assert_int_equal(s.runtime.threads, 0);
    assert_int_equal(s.runtime.checkpoint_every, 1000);
    assert_int_equal(s.runtime.keep, 2);
    assert_int_equal(s.runtime.empty_cache_every, -1);
    assert_true(s.runtime.restart.device_memory_mb == -1);
    assert_true(s.runtime.restart.rss_mb == -1);
    assert_true(s.runtime.restart.seconds == -1);
    assert_int_equal(s.runtime.restart.every_micro_batches, -1);
    assert_int_equal(s.runtime.padding.mode, PADDING_DYNAMIC);
    assert_true(s.runtime.mps.high_watermark_ratio == -1);
    assert_int_equal(s.runtime.on_oom, OOM_FAIL);
    assert_false(s.runtime.exact_require);
    assert_int_equal(s.limits.failures, 3);
    assert_int_equal(s.limits.lost, 20);
    assert_int_equal(s.limits.no_progress, 10);
}

static void a_resolved_spec_resolves_to_itself(void **state)
{
    static const char *const in[] = {
        "{" LEAST "}",
        "{" LEAST ", \"name\": \"n\", \"labels\": {\"a\": \"b\"}, \"after\": "
        "[3, 1], \"cycles\": 0, \"priority\": -7, \"model\": {\"d_model\": 6, "
        "\"dropout\": 0.1}, \"training\": {\"seed\": 9007199254740991, "
        "\"shuffle\": {\"mode\": \"none\", \"size\": 5}, \"losses\": "
        "{\"value\": 0.5}}, \"runtime\": {\"restart\": {\"rss_mb\": 900, "
        "\"seconds\": 0}, \"padding\": {\"minimum\": {\"S\": 5}}, \"mps\": "
        "{\"high_watermark_ratio\": 0.7, \"low_watermark_ratio\": 0.6}, "
        "\"exact\": \"require\", \"on_oom\": \"split\"}, \"limits\": "
        "{\"lost\": 1}}",
    };
    for (size_t i = 0; i < 2; i++) {
        CLEANUP(spec_release) struct spec a = {0}, b = {0}, c = {0};
        struct err err;
        parse(in[i], &a);
        assert_int_equal(spec_parse(a.resolved, &b, &err), 0);
        assert_true(json_equal(a.resolved, b.resolved));
        assert_string_equal(a.signature, b.signature);

        /* and over text, as it travels */
        AUTO_FREE char *text = json_dumps(a.resolved, JSON_COMPACT);
        parse(text, &c);
        assert_true(json_equal(a.resolved, c.resolved));
        assert_string_equal(a.signature, c.signature);
    }
}

static void every_refusal_points_at_the_field(void **state)
{
    static const struct {
        const char *at, *value, *pointer; /* pointer NULL: as `at` */
    } table[] = {
        {"record", NULL, NULL},
        {"data", NULL, NULL},
        {"nme", "1", NULL},
        {"name", "\"\"", NULL},
        {"name", "\"a\\u0007\"", NULL},
        {"name", "5", NULL},
        {"kind", "\"selfplay\"", NULL},
        {"kind", "\"other\"", NULL},
        {"game", "{}", NULL},
        {"selfplay", "{}", NULL},
        {"window", "{}", NULL},
        {"gate", "{}", NULL},
        {"not_before", "\"2030-01-01\"", NULL},
        {"sweep", "{}", NULL},
        {"cycles", "-1", NULL},
        {"cycles", "1.0", NULL},
        {"priority", "101", NULL},
        {"labels", "[]", NULL},
        {"labels/a", "1", NULL},
        {"after", "5", NULL},
        {"after", "[1, 0]", "/after/1"},
        {"after", "[1, 1]", "/after/1"},
        {"after", "[\"1\"]", "/after/0"},
        {"after", "[{}]", "/after/0/job"},
        {"after", "[{\"job\": 0}]", "/after/0/job"},
        {"after", "[{\"job\": 1, \"when\": \"failed\"}]", "/after/0/when"},
        {"after", "[{\"job\": 1, \"if\": \"ended\"}]", "/after/0/if"},
        {"after", "[1, {\"job\": 1, \"when\": \"ended\"}]", "/after/1"},
        {"model", "[]", NULL},
        {"model/type", "\"torchscript\"", NULL},
        {"model/type", "\"mlp\"", NULL},
        {"model/width", "3", NULL},
        {"model/d_model", "0", NULL},
        {"model/heads", "3", NULL},
        {"model/dropout", "1", NULL},
        {"model/dropout", "-0.1", NULL},
        {"model/max_length", "0", NULL},
        {"record", "{}", NULL},
        {"record", "[]", NULL},
        {"record/state", "5", NULL},
        {"record/state/kind", "\"text\"", NULL},
        {"record/state/kind", NULL, NULL},
        {"record/state/vocab", "0", NULL},
        {"record/state/vocab", NULL, NULL},
        {"record/state/dim", NULL, NULL},
        {"record/state/dim", "\"a b\"", NULL},
        {"record/state/size", "4", NULL},
        {"record/legal/columns", "[]", NULL},
        {"record/legal/columns", "[{}]", "/record/legal/columns/0"},
        {"record/legal/columns", "[{\"vocab\": 2, \"scale\": 1}]",
         "/record/legal/columns/0"},
        {"record/legal/columns", "[{\"vocab\": 2}, {\"scale\": 0}]",
         "/record/legal/columns/1/scale"},
        {"record/legal/columns", "[{\"vocab\": -1}]",
         "/record/legal/columns/0/vocab"},
        {"record/x", "{\"kind\": \"numbers\"}", NULL},
        {"record/x", "{\"kind\": \"numbers\", \"dim\": \"S\", \"size\": 4}",
         NULL},
        {"record/policy/dim", "\"P\"", NULL},
        {"record/value/dim", "\"P\"", NULL},
        {"record/policy/over", "\"state\"", NULL},
        {"record/policy/over", "\"nothing\"", NULL},
        {"record/policy/loss", "\"mse\"", NULL},
        {"record/value/loss", "\"cross_entropy\"", NULL},
        {"record/second", "{\"kind\": \"target\"}", "/record/value"},
        {"record/p2", "{\"kind\": \"target\", \"over\": \"legal\"}",
         "/record/policy"},
        {"record/a b", "{\"kind\": \"target\"}", "/record/a b"},
        {"record", "{\"v\": {\"kind\": \"target\"}}", NULL},
        {"record", "{\"s\": {\"kind\": \"numbers\", \"size\": 2}}", NULL},
        {"data/dataset", NULL, NULL},
        {"data/dataset", "\"../x\"", NULL},
        {"data/dataset", "\"a..b\"", NULL},
        {"data/dataset", "\".a\"", NULL},
        {"data/dataset", "\"a/b\"", NULL},
        {"data/root", "\"r\"", NULL},
        {"data/match", "\"*\"", NULL},
        {"data/bad_records", "\"drop\"", NULL},
        {"data/policy_tolerance", "2", NULL},
        {"data/shards", "0", NULL},
        {"data/shards", "[]", NULL},
        {"data/shards", "{\"first\": 3}", "/data/shards/first"},
        {"data/shards", "{\"last\": 0}", "/data/shards/last"},
        {"data/shards", "{}", "/data/shards/last"},
        {"training/epochs", "0", NULL},
        {"training/effective_batch", "0", NULL},
        {"training/seed", "-1", NULL},
        {"training/seed", "9007199254740992", NULL},
        {"training/seed", "1.5", NULL},
        {"training/optimizer/type", "\"sgd\"", NULL},
        {"training/optimizer/lr", "-1", NULL},
        {"training/optimizer/lr", "\"1\"", NULL},
        {"training/optimizer/learning_rate", "1", NULL},
        {"training/optimizer/eps", "0", NULL},
        {"training/optimizer/betas", "[0.9]", NULL},
        {"training/optimizer/betas", "[0.9, 1]", "/training/optimizer/betas/1"},
        {"training/optimizer/betas", "[-1, 0.9]",
         "/training/optimizer/betas/0"},
        {"training/schedule/type", "\"step\"", NULL},
        {"training/schedule/warmup_steps", "-1", NULL},
        {"training/schedule/final_fraction", "1.5", NULL},
        {"training/schedule", "{\"steps\": 3, \"warmup_steps\": 4}",
         "/training/schedule/warmup_steps"},
        {"training/clip_norm", "-1", NULL},
        {"training/losses/state", "1", NULL},
        {"training/losses/polcy", "1", NULL},
        {"training/losses/policy", "-1", NULL},
        {"training/losses", "{\"policy\": 0, \"value\": 0}", NULL},
        {"training/shuffle/mode", "\"all\"", NULL},
        {"training/shuffle/size", "0", NULL},
        {"training/precision", "\"bfloat16\"", NULL},
        {"training/validation", "{}", NULL},
        {"training/validation", "{\"fraction\": 0.1, \"dataset\": \"v\"}",
         NULL},
        {"training/validation", "{\"every\": 3}", NULL},
        {"training/validation/fraction", "0", NULL},
        {"training/validation/fraction", "1", NULL},
        {"training/validation/fraction", "-0.1", NULL},
        {"training/validation/dataset", "\"../x\"", NULL},
        {"training/validation", "{\"fraction\": 0.1, \"records\": 0}",
         "/training/validation/records"},
        {"training/validation", "{\"fraction\": 0.1, \"every\": -1}",
         "/training/validation/every"},
        {"training/validation", "{\"fraction\": 0.1, \"part\": 1}",
         "/training/validation/part"},
        {"training/optimizer/cycles", "\"again\"", NULL},
        {"training/schedule/steps", "0", NULL},
        {"training/ema", "0.999", NULL},
        {"runtime/device", "\"tpu\"", NULL},
        {"runtime/micro_batch", "0", NULL},
        {"runtime/micro_batch", "65", NULL},
        {"runtime/threads", "-1", NULL},
        {"runtime/checkpoint_every", "-1", NULL},
        {"runtime/keep", "1", NULL},
        {"runtime/empty_cache_every", "-1", NULL},
        {"runtime/restart/rss_mb", "-1", NULL},
        {"runtime/restart/forecast", "true", NULL},
        {"runtime/restart/every_micro_batches", "1.5", NULL},
        {"runtime/padding/mode", "\"steps\"", NULL},
        {"runtime/padding/sizes/X", "[5]", NULL},
        {"runtime/padding/sizes/S", "[]", NULL},
        {"runtime/padding/sizes/S", "5", NULL},
        {"runtime/padding/sizes/S", "[0, 5]", "/runtime/padding/sizes/S/0"},
        {"runtime/padding/sizes/S", "[4, 4]", "/runtime/padding/sizes/S/1"},
        {"runtime/padding/sizes/S", "[4, \"5\"]", "/runtime/padding/sizes/S/1"},
        {"runtime/padding/sizes/S", "[4, 513]", NULL},
        {"runtime/padding/count", "0", NULL},
        {"runtime/padding/count", "65", NULL},
        {"runtime/padding", "{\"count\": 4, \"sizes\": {\"S\": [4]}}",
         "/runtime/padding/count"},
        {"runtime/padding", "{\"mode\": \"stable\", \"sizes\": {\"S\": [4]}}",
         "/runtime/padding/sizes"},
        {"runtime/padding", "{\"mode\": \"dynamic\", \"count\": 4}",
         "/runtime/padding/count"},
        {"runtime/padding/minimum/X", "5", NULL},
        {"runtime/padding/minimum/S", "-5", NULL},
        {"runtime/padding/minimum/S", "513", NULL},
        {"runtime/mps/high_watermark_ratio", "0.7",
         "/runtime/mps/low_watermark_ratio"},
        {"runtime/mps/high_watermark_ratio", "0", NULL},
        {"runtime/mps/high_watermark_ratio", "2.1", NULL},
        {"runtime/on_oom", "\"retry\"", NULL},
        {"runtime/exact", "true", NULL},
        {"limits/failures", "-1", NULL},
        {"limits/no_progress", "0", NULL},
        {"limits/tries", "1", NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with(table[i].at, table[i].value);
        struct spec s = {.name = (char *)"untouched"};
        struct err err = {0};
        char want[200];
        snprintf(want, sizeof want, "/%s", table[i].at);
        if (spec_parse(in, &s, &err) != ERR_INVALID)
            fail_msg("taken: %s %s", table[i].at, table[i].value);
        assert_string_equal(err.pointer,
                            table[i].pointer ? table[i].pointer : want);
        assert_true(strlen(err.text) > 10);
        assert_string_equal(s.name, "untouched");
    }
}

static void what_is_for_later_says_so(void **state)
{
    static const char *const later[][2] = {
        {"kind", "\"selfplay\""},
        {"model/type", "\"torchscript\""},
        {"training/precision", "\"bfloat16\""},
        {"training/ema", "0.9"},
        {"record/value/dim", "\"V\""},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        AUTO_JSON json_t *in = spec_with(later[i][0], later[i][1]);
        struct spec s = {0};
        struct err err = {0};
        assert_int_equal(spec_parse(in, &s, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "not supported yet"));
    }
    AUTO_JSON json_t *list = json_of("[]");
    struct spec s = {0};
    struct err err = {0};
    assert_int_equal(spec_parse(list, &s, &err), ERR_INVALID);
    assert_int_equal(spec_parse(NULL, &s, &err), ERR_INVALID);
}

static struct spec parsed(const json_t *in)
{
    struct spec s = {0};
    struct err err;
    if (spec_parse(in, &s, &err) < 0)
        fail_msg("%s: %s", err.pointer, err.text);
    return s;
}

static struct spec parsed_with(const char *pointer, const char *value)
{
    AUTO_JSON json_t *in = spec_with(pointer, value);
    return parsed(in);
}

static void what_a_job_comes_after_is_written_one_way(void **state)
{
    static const struct {
        const char *in, *out;
        int64_t first;
        bool ended;
    } table[] = {
        {"[7]", "[7]", 7, false},
        {"[{\"job\": 7}]", "[7]", 7, false},
        {"[{\"job\": 7, \"when\": \"completed\"}, 9]", "[7,9]", 7, false},
        {"[{\"when\": \"ended\", \"job\": 7}]",
         "[{\"job\":7,\"when\":\"ended\"}]", 7, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct spec s = parsed_with("after", table[i].in);
        CLEANUP(buf_release) struct buf b = {0};
        bool ended = !table[i].ended;
        json_canonical(json_object_get(s.resolved, "after"), &b);
        assert_string_equal(b.data, table[i].out);
        assert_int_equal(spec_after(json_array_get(s.after, 0), &ended),
                         table[i].first);
        assert_int_equal(ended, table[i].ended);
        /* resolved once more it is the same */
        struct spec again = parsed(s.resolved);
        assert_true(json_equal(s.resolved, again.resolved));
        spec_release(&again);
        spec_release(&s);
    }
}

static void a_time_not_to_begin_before_has_a_zone(void **state)
{
    static const struct {
        const char *in, *out;
    } fine[] = {
        {"2026-07-01T08:00:00Z", "2026-07-01T08:00:00.000Z"},
        {"2026-07-01T10:00:00+02:00", "2026-07-01T08:00:00.000Z"},
        {"2026-06-30T23:59:59.5-08:30", "2026-07-01T08:29:59.500Z"},
        {"2026-07-01t08:00:00.123456z", "2026-07-01T08:00:00.123Z"},
        {"2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000Z"},
        {"2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"},
        {"9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"},
        {"1970-01-01T00:00:01Z", "1970-01-01T00:00:01.000Z"},
    };
    static const char *const bad[] = {
        "",
        "x",
        "2026-07-01",
        "2026-07-01T08:00:00", /* no zone */
        "2026-07-01T08:00Z",
        "2026-07-01 08:00:00Z",
        "2026-7-1T08:00:00Z",
        "2026-02-29T08:00:00Z",
        "2026-13-01T08:00:00Z",
        "2026-00-01T08:00:00Z",
        "2026-07-32T08:00:00Z",
        "2026-07-01T24:00:00Z",
        "2026-07-01T08:60:00Z",
        "2026-07-01T08:00:61Z",
        "2026-07-01T08:00:00.Z",
        "2026-07-01T08:00:00+0200",
        "2026-07-01T08:00:00+24:00",
        "2026-07-01T08:00:00Z ",
        "1969-12-31T23:59:59Z",
        "-026-07-01T08:00:00Z",
    };
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        char text[80], back[RFC3339_MAX];
        snprintf(text, sizeof text, "\"%s\"", fine[i].in);
        struct spec s = parsed_with("not_before", text);
        rfc3339_text(s.not_before_ms, back);
        assert_string_equal(back, fine[i].out);
        assert_string_equal(
            json_string_value(json_object_get(s.resolved, "not_before")),
            fine[i].out);
        spec_release(&s);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t ms = 77;
        assert_int_equal(rfc3339_parse(bad[i], &ms), -1);
        assert_int_equal(ms, 77);
    }
    AUTO_JSON json_t *in = spec_with("not_before", "\"2026-07-01T08:00:00\"");
    struct spec s = {0};
    struct err err = {0};
    assert_int_equal(spec_parse(in, &s, &err), ERR_INVALID);
    assert_string_equal(err.pointer, "/not_before");
    assert_non_null(strstr(err.text, "zone"));
    struct spec none = parsed_with("not_before", "null");
    assert_int_equal(none.not_before_ms, 0);
    assert_true(json_is_null(json_object_get(none.resolved, "not_before")));
    spec_release(&none);
}

static void shards_are_a_pattern_or_the_last_ones(void **state)
{
    static const struct {
        const char *in, *glob;
        int last;
    } table[] = {
        {"\"2024-*\"", "2024-*", 0},
        {"3", NULL, 3},
        {"{\"last\": 3}", NULL, 3},
        {"null", NULL, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with("data/shards", table[i].in);
        CLEANUP(spec_release) struct spec s = {0};
        struct err err;
        assert_int_equal(spec_parse(in, &s, &err), 0);
        assert_int_equal(s.data.shards_last, table[i].last);
        if (table[i].glob)
            assert_string_equal(s.data.shards_glob, table[i].glob);
        else
            assert_null(s.data.shards_glob);
    }
}

static void the_signature_covers_semantics_and_nothing_else(void **state)
{
    static const struct {
        const char *at, *value;
        bool same;
    } table[] = {
        {"name", "\"other\"", true},
        {"priority", "3", true},
        {"cycles", "5", true},
        {"labels/a", "\"b\"", true},
        {"after", "[1]", true},
        {"limits/lost", "1", true},
        {"data/dataset", "\"other\"", true},
        {"data/shards", "3", true},
        {"runtime/micro_batch", "8", true},
        {"runtime/threads", "2", true},
        {"runtime/device", "\"cpu\"", true},
        {"runtime/restart/rss_mb", "900", true},
        {"runtime/padding/minimum/S", "72", true},
        {"runtime/checkpoint_every", "7", true},
        /* the default, written out, as an integer or in another order */
        {"training/optimizer/lr", "1e-3", true},
        {"training/clip_norm", "1", true},
        {"training/losses", "{\"value\": 1, \"policy\": 1.0}", true},
        {"training/shuffle", "{\"size\": 10000, \"mode\": \"buffer\"}", true},
        {"model/dropout", "0", true},
        {"model/dropout", "-0.0", true},
        {"model/ff", "512", true},
        {"record/value/loss", "\"mse\"", true},
        {"training/optimizer/cycles", "\"continue\"", true},
        {"training/schedule/steps", "null", true},
        {"training/validation", "null", true},
        {"runtime/padding/mode", "\"ladder\"", true},

        {"model/dropout", "0.1", false},
        {"model/layers", "3", false},
        {"model/max_length", "100", false},
        {"record/state/vocab", "65", false},
        {"record/state/dim", "\"T\"", false},
        {"data/bad_records", "\"skip\"", false},
        {"data/policy_tolerance", "0.02", false},
        {"training/epochs", "2", false},
        {"training/effective_batch", "32", false},
        {"training/seed", "1", false},
        {"training/optimizer/lr", "0.002", false},
        {"training/optimizer/betas", "[0.9, 0.99]", false},
        {"training/schedule/type", "\"linear\"", false},
        {"training/clip_norm", "0", false},
        {"training/losses/value", "0.5", false},
        {"training/shuffle/size", "9", false},
        {"training/shuffle/mode", "\"none\"", false},
        {"training/shuffle/mode", "\"global\"", false},
        {"training/optimizer/cycles", "\"restart\"", false},
        {"training/schedule/steps", "30", false},
        {"training/validation", "{\"fraction\": 0.1}", false},
        {"training/validation", "{\"dataset\": \"v\"}", false},
    };
    CLEANUP(spec_release) struct spec base = {0};
    parse("{" LEAST "}", &base);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with(table[i].at, table[i].value);
        CLEANUP(spec_release) struct spec s = {0};
        struct err err;
        if (spec_parse(in, &s, &err) < 0)
            fail_msg("%s: %s", err.pointer, err.text);
        if (!strcmp(base.signature, s.signature) != table[i].same)
            fail_msg("%s %s", table[i].at, table[i].value);
    }
}

/* What is signed is what states and jobs of earlier versions were signed by. */
static void a_spec_of_the_first_version_keeps_its_signature(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST "}", &s);
    assert_string_equal(
        s.signature,
        "0722b0beadb37c079fe5b4035a74a1d3bcb42de7ba56d31ecf1f06757c5bbe6f");
}

static void a_size_that_shuffles_nothing_changes_nothing(void **state)
{
    CLEANUP(spec_release) struct spec a = {0}, b = {0};
    parse("{" LEAST ", \"training\": {\"shuffle\": {\"mode\": \"none\"}}}", &a);
    parse("{" LEAST
          ", \"training\": {\"shuffle\": {\"mode\": \"none\", \"size\": 5}}}",
          &b);
    assert_string_equal(a.signature, b.signature);
}

static void a_cycle_signs_its_data_too(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    char one[DIGEST_HEX], two[DIGEST_HEX], again[DIGEST_HEX];
    parse("{" LEAST "}", &s);
    spec_cycle_signature(&s, "aa", one);
    spec_cycle_signature(&s, "bb", two);
    spec_cycle_signature(&s, "aa", again);
    assert_string_not_equal(one, two);
    assert_string_not_equal(one, s.signature);
    assert_string_equal(one, again);
}

static void the_first_field_that_differs_is_named(void **state)
{
    static const char *const table[][3] = {
        {"training/optimizer/lr", "0.002", "/training/optimizer/lr"},
        {"training/seed", "3", "/training/seed"},
        {"data/dataset", "\"go\"", "/data/dataset"},
        {"data/shards", "2", "/data/shards"},
        {"training/optimizer/betas", "[0.9, 0.99]",
         "/training/optimizer/betas/1"},
        {"record/legal/columns", "[{\"vocab\": 8}, {\"scale\": 101}]",
         "/record/legal/columns/1/scale"},
        {"record/legal/columns", "[{\"vocab\": 8}]", "/record/legal/columns"},
        {"record/x", "{\"kind\": \"numbers\", \"size\": 1}", "/record/x"},
        {"model/dropout", "0.5", "/model/dropout"},
    };
    static const char *const alike[][2] = {
        {"runtime/micro_batch", "3"},
        {"name", "\"x\""},
        {"priority", "4"},
    };
    CLEANUP(spec_release) struct spec base = {0};
    parse("{" LEAST "}", &base);
    char at[JSON_POINTER_MAX] = "kept";
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        AUTO_JSON json_t *in = spec_with(alike[i][0], alike[i][1]);
        CLEANUP(spec_release) struct spec s = {0};
        struct err err;
        assert_int_equal(spec_parse(in, &s, &err), 0);
        assert_int_equal(
            spec_semantics_diff(base.resolved, s.resolved, at, sizeof at), 0);
        assert_string_equal(at, "kept");
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with(table[i][0], table[i][1]);
        CLEANUP(spec_release) struct spec s = {0};
        struct err err;
        assert_int_equal(spec_parse(in, &s, &err), 0);
        assert_int_equal(
            spec_semantics_diff(base.resolved, s.resolved, at, sizeof at), 1);
        assert_string_equal(at, table[i][2]);
        assert_int_equal(
            spec_semantics_diff(s.resolved, base.resolved, at, sizeof at), 1);
        assert_string_equal(at, table[i][2]);
    }
}

static void a_patch_merges_and_null_restores_the_default(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST ", \"runtime\": {\"micro_batch\": 8, \"restart\": "
          "{\"rss_mb\": 900, \"seconds\": 60}}}",
          &s);
    const json_t *current = json_object_get(s.resolved, "runtime");
    AUTO_JSON json_t *before = json_deep_copy(current);
    AUTO_JSON json_t *patch =
        json_of("{\"micro_batch\": null, \"restart\": {\"rss_mb\": 1000, "
                "\"every_micro_batches\": 7}}");
    AUTO_JSON json_t *whole = NULL;
    struct err err;
    assert_int_equal(runtime_patch(&s, current, patch, &whole, &err), 0);
    CLEANUP(runtime_release) struct runtime_policy p = {0};
    assert_int_equal(runtime_parse(whole, &s.record, 64, &p, &err), 0);
    assert_int_equal(p.micro_batch, 16);
    assert_true(p.restart.rss_mb == 1000);
    assert_true(p.restart.seconds == 60);
    assert_int_equal(p.restart.every_micro_batches, 7);
    assert_true(json_equal(current, before));
}

static void a_bad_patch_points_below_runtime_and_changes_nothing(void **state)
{
    static const char *const table[][2] = {
        {"{\"micro_batch\": 65}", "/runtime/micro_batch"},
        {"{\"micro_bach\": 1}", "/runtime/micro_bach"},
        {"{\"restart\": 5}", "/runtime/restart"},
        {"{\"restart\": {\"rss\": 5}}", "/runtime/restart/rss"},
        {"{\"padding\": {\"minimum\": {\"Q\": 1}}}",
         "/runtime/padding/minimum/Q"},
        {"{\"padding\": {\"minimum\": {\"S\": 600}}}",
         "/runtime/padding/minimum/S"},
        {"[]", "/runtime"},
        {"null", "/runtime"},
    };
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST "}", &s);
    const json_t *current = json_object_get(s.resolved, "runtime");
    AUTO_JSON json_t *before = json_deep_copy(current);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *patch = json_of(table[i][0]);
        json_t *whole = NULL;
        struct err err;
        assert_int_equal(runtime_patch(&s, current, patch, &whole, &err),
                         ERR_INVALID);
        assert_string_equal(err.pointer, table[i][1]);
        assert_null(whole);
    }
    assert_true(json_equal(current, before));
}

static void a_minimum_means_stable_padding_unless_said_otherwise(void **state)
{
    CLEANUP(spec_release) struct spec a = {0}, b = {0};
    parse("{" LEAST ", \"runtime\": {\"padding\": {\"minimum\": {\"S\": 9}}}}",
          &a);
    assert_int_equal(a.runtime.padding.mode, PADDING_STABLE);
    parse("{" LEAST ", \"runtime\": {\"padding\": {\"mode\": \"dynamic\", "
          "\"minimum\": {\"S\": 9}}}}",
          &b);
    assert_int_equal(b.runtime.padding.mode, PADDING_DYNAMIC);
}

static void a_ladder_is_given_or_yet_to_be_chosen(void **state)
{
    static const struct {
        const char *in, *out;
        int count, top;
    } table[] = {
        {"{\"mode\": \"ladder\"}",
         "{\"count\": 8, \"minimum\": {}, \"mode\": \"ladder\"}", 8, 0},
        {"{\"count\": 3}",
         "{\"count\": 3, \"minimum\": {}, \"mode\": \"ladder\"}", 3, 0},
        {"{\"sizes\": {\"S\": [4, 9, 20]}}",
         "{\"minimum\": {}, \"mode\": \"ladder\", \"sizes\": {\"S\": [4, 9, "
         "20]}}",
         0, 20},
        {"{\"mode\": \"ladder\", \"sizes\": {}}",
         "{\"minimum\": {}, \"mode\": \"ladder\", \"sizes\": {}}", 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with("runtime/padding", table[i].in);
        AUTO_JSON json_t *out = json_of(table[i].out);
        CLEANUP(spec_release) struct spec s = parsed(in);
        const json_t *runtime = json_object_get(s.resolved, "runtime");
        assert_true(json_equal(json_object_get(runtime, "padding"), out));
        int dim = record_desc_dim(&s.record, "S");
        assert_int_equal(s.runtime.padding.mode, PADDING_LADDER);
        assert_int_equal(s.runtime.padding.count, table[i].count);
        assert_int_equal(padding_top(&s.runtime.padding, dim), table[i].top);
    }
}

static void a_batch_is_padded_as_the_policy_says(void **state)
{
    static const struct {
        const char *policy;
        int longest, padded;
    } table[] = {
        {"{}", 7, 7},
        {"{\"minimum\": {\"S\": 9}}", 7, 9},
        {"{\"minimum\": {\"S\": 9}}", 12, 12},
        {"{\"mode\": \"dynamic\", \"minimum\": {\"S\": 9}}", 7, 7},
        {"{\"sizes\": {\"S\": [4, 9]}}", 4, 4},
        {"{\"sizes\": {\"S\": [4, 9]}}", 5, 9},
        {"{\"sizes\": {\"S\": [4, 9]}}", 10, 10},
        {"{\"sizes\": {\"A\": [4, 9]}}", 5, 5},
        {"{\"mode\": \"ladder\", \"minimum\": {\"S\": 9}}", 5, 5},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with("runtime/padding", table[i].policy);
        CLEANUP(spec_release) struct spec s = parsed(in);
        CLEANUP(padding_release) struct padding copy = {0};
        struct err err;
        int dim = record_desc_dim(&s.record, "S");
        assert_int_equal(padding_copy(&s.runtime.padding, &copy, &err), 0);
        assert_int_equal(padding_length(&copy, dim, table[i].longest),
                         table[i].padded);
    }
}

static void a_patch_of_the_padding_replaces_what_it_decides(void **state)
{
    static const char *const table[][3] = {
        {"{\"sizes\": {\"S\": [4]}}", "{\"count\": 5}",
         "{\"mode\": \"ladder\", \"minimum\": {}, \"count\": 5}"},
        {"{\"count\": 5}", "{\"sizes\": {\"S\": [4]}}",
         "{\"mode\": \"ladder\", \"minimum\": {}, \"sizes\": {\"S\": [4]}}"},
        {"{\"sizes\": {\"S\": [4]}}", "{\"mode\": \"dynamic\"}",
         "{\"mode\": \"dynamic\", \"minimum\": {}}"},
        {"{\"count\": 5}", "{\"mode\": \"stable\", \"minimum\": {\"S\": 3}}",
         "{\"mode\": \"stable\", \"minimum\": {\"S\": 3}}"},
        {"{\"sizes\": {\"S\": [4]}}", "{\"sizes\": {\"S\": null, \"A\": [2]}}",
         "{\"mode\": \"ladder\", \"minimum\": {}, \"sizes\": {\"A\": [2]}}"},
        {"{\"minimum\": {\"S\": 3}}", "{\"mode\": \"ladder\"}",
         "{\"mode\": \"ladder\", \"minimum\": {\"S\": 3}, \"count\": 8}"},
        {"{\"sizes\": {\"S\": [4]}}", "null",
         "{\"mode\": \"dynamic\", \"minimum\": {}}"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *in = spec_with("runtime/padding", table[i][0]);
        AUTO_JSON json_t *patch =
            json_pack("{so}", "padding", json_of(table[i][1]));
        AUTO_JSON json_t *want = json_of(table[i][2]), *whole = NULL;
        CLEANUP(spec_release) struct spec s = parsed(in);
        struct err err;
        if (runtime_patch(&s, json_object_get(s.resolved, "runtime"), patch,
                          &whole, &err) < 0)
            fail_msg("%s: %s", table[i][1], err.text);
        assert_true(json_equal(json_object_get(whole, "padding"), want));
    }
}

static void watermark_ratios_are_judged_as_a_pair(void **state)
{
    static const struct {
        double high, low;
        bool unified, ok;
        double set_high, set_low;
    } table[] = {
        {0.7, -1, true, false, 0, 0},     {0.7, -1, false, false, 0, 0},
        {0.7, 0.6, true, true, 0.7, 0.6}, {0, 1.9, true, true, 0, 1.9},
        {2.1, -1, true, false, 0, 0},     {1.0, 1.0, true, true, 1, 1},
        {-1, -0.1, true, false, 0, 0},    {1.2, -1, true, false, 0, 0},
        {1.2, -1, false, true, 1.2, 1},   {-1, -1, true, true, 1.7, 1.4},
        {-1, -1, false, true, 1.7, 1},    {0, 2.1, true, false, 0, 0},
        {0, -1, true, true, 0, 1.4},      {-1, 1.8, true, false, 0, 0},
        {0.5, 0.6, true, false, 0, 0},    {NAN, -1, true, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double high = 9, low = 9;
        struct err err = {0};
        int r = mps_ratios(table[i].high, table[i].low, table[i].unified,
                           "/runtime/mps", &high, &low, &err);
        assert_int_equal(r, table[i].ok ? 0 : ERR_INVALID);
        assert_true(high == (table[i].ok ? table[i].set_high : 9));
        assert_true(low == (table[i].ok ? table[i].set_low : 9));
    }
    struct err err;
    double high, low;
    mps_ratios(0.7, -1, true, "/runtime/mps", &high, &low, &err);
    assert_string_equal(err.text,
                        "high_watermark_ratio is 0.7, below 1.4, which "
                        "low_watermark_ratio is when it is not set: add "
                        "low_watermark_ratio (at most 0.7) or remove "
                        "high_watermark_ratio");
    AUTO_JSON json_t *none = spec_with(
        "runtime/mps", "{\"high_watermark_ratio\": 0, \"no_limit\": true}");
    CLEANUP(spec_release) struct spec s = {0};
    assert_int_equal(spec_parse(none, &s, &err), 0);
    assert_true(s.runtime.mps.no_limit);
}

static void steps_count_the_partial_batch_of_each_epoch(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST ", \"training\": {\"epochs\": 3, \"effective_batch\": 32}}",
          &s);
    assert_int_equal(spec_steps(&s, 0), 0);
    assert_int_equal(spec_steps(&s, 1), 3);
    assert_int_equal(spec_steps(&s, 32), 3);
    assert_int_equal(spec_steps(&s, 33), 6);
    assert_int_equal(spec_steps(&s, 64), 6);
}

static void the_rate_warms_up_and_decays_as_a_function_of_the_step(void **state)
{
    struct training_spec t = {.optimizer.lr = 0.5,
                              .schedule = {SCHEDULE_COSINE, 10, 0}};
    for (int i = 0; i < 10; i++)
        assert_true(spec_learning_rate(&t, i, 100) == 0.5 * ((i + 1) / 10.0));
    assert_true(spec_learning_rate(&t, 10, 100) == 0.5);
    assert_true(spec_learning_rate(&t, 99, 100) == 0);
    for (int i = 10; i < 99; i++) {
        double rate = spec_learning_rate(&t, i, 100);
        assert_true(fabs(rate - 0.25 * (1 + cos(M_PI * (i - 10) / 89.0))) <
                    1e-15);
        assert_true(rate > spec_learning_rate(&t, i + 1, 100));
        assert_true(rate == spec_learning_rate(&t, i, 100));
    }

    t.schedule.final_fraction = 0.1;
    assert_true(fabs(spec_learning_rate(&t, 99, 100) - 0.05) < 1e-15);
    t.schedule.type = SCHEDULE_LINEAR;
    assert_true(spec_learning_rate(&t, 10, 100) == 0.5);
    assert_true(fabs(spec_learning_rate(&t, 99, 100) - 0.05) < 1e-15);
    double step =
        spec_learning_rate(&t, 20, 100) - spec_learning_rate(&t, 21, 100);
    assert_true(fabs(step - 0.45 / 89) < 1e-15);
    t.schedule.type = SCHEDULE_CONSTANT;
    assert_true(spec_learning_rate(&t, 0, 100) == 0.05);
    assert_true(spec_learning_rate(&t, 9, 100) == 0.5);
    assert_true(spec_learning_rate(&t, 99, 100) == 0.5);
}

/* SPL-03 */
static void one_schedule_may_span_the_cycles_of_a_job(void **state)
{
    struct training_spec t = {.optimizer.lr = 0.5,
                              .schedule.type = SCHEDULE_COSINE,
                              .schedule.warmup_steps = 4};
    for (int64_t step = 0; step < 10; step++) /* each cycle has its own */
        assert_true(spec_cycle_rate(&t, 20, step, 10) ==
                    spec_learning_rate(&t, step, 10));
    t.schedule.steps = 30;
    for (int64_t step = 0; step < 40; step++)
        assert_true(spec_cycle_rate(&t, step / 10 * 10, step % 10, 10) ==
                    spec_learning_rate(&t, step, 30));
    assert_true(spec_cycle_rate(&t, 30, 5, 10) ==
                spec_cycle_rate(&t, 20, 9, 10)); /* the end, from then on */
}

static void short_cycles_have_a_rate_too(void **state)
{
    struct training_spec t = {.optimizer.lr = 0.5,
                              .schedule = {SCHEDULE_COSINE, 0, 0}};
    assert_true(spec_learning_rate(&t, 0, 1) == 0.5); /* all there is */
    assert_true(spec_learning_rate(&t, 0, 2) == 0.5);
    assert_true(spec_learning_rate(&t, 1, 2) == 0);
    t.schedule.warmup_steps = 10; /* longer than the cycle */
    assert_true(spec_learning_rate(&t, 4, 5) == 0.25);
    t.schedule.warmup_steps = 4;
    assert_true(spec_learning_rate(&t, 3, 5) == 0.5);
    assert_true(spec_learning_rate(&t, 4, 5) == 0);
}

static void integers_keep_their_digits(void **state)
{
    AUTO_JSON json_t *in = spec_with("training/seed", "9007199254740991");
    CLEANUP(spec_release) struct spec s = {0};
    struct err err;
    assert_int_equal(spec_parse(in, &s, &err), 0);
    assert_true(s.training.seed == 9007199254740991);
    AUTO_FREE char *text = json_dumps(s.resolved, JSON_COMPACT);
    assert_non_null(strstr(text, "\"seed\":9007199254740991"));
}

static void parameters_are_counted_without_building_the_model(void **state)
{
    CLEANUP(spec_release) struct spec s = {0};
    parse("{" LEAST ", \"model\": {\"d_model\": 2, \"layers\": 1, \"heads\": 1,"
          " \"ff\": 3, \"max_length\": 5}}",
          &s);
    /* class 2; state (1+64+5)·2; legal (1+8+1)·2; encoder layer: norm 4,
     * qkv 12, q bias 2, out 6, norm 4, in 9, out 8; norm 4; policy: norm 4,
     * q 6, kv 8, out 6, norm 4, in 6, score 2; value: 6 + 3 */
    assert_int_equal(spec_parameters(&s), 2 + 140 + 20 +
                                              (4 + 12 + 2 + 6 + 4 + 9 + 8) + 4 +
                                              (4 + 6 + 8 + 6 + 4 + 6 + 2) + 9);
}

static void releases_accept_what_is_empty(void **state)
{
    struct spec s = {0};
    spec_release(&s);
    spec_release(NULL);
    record_desc_release(NULL);
    runtime_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chess_job_parses_as_it_stands),
        cmocka_unit_test(what_a_spec_leaves_out_has_its_documented_default),
        cmocka_unit_test(a_resolved_spec_resolves_to_itself),
        cmocka_unit_test(every_refusal_points_at_the_field),
        cmocka_unit_test(what_is_for_later_says_so),
        cmocka_unit_test(what_a_job_comes_after_is_written_one_way),
        cmocka_unit_test(a_time_not_to_begin_before_has_a_zone),
        cmocka_unit_test(shards_are_a_pattern_or_the_last_ones),
        cmocka_unit_test(the_signature_covers_semantics_and_nothing_else),
        cmocka_unit_test(a_spec_of_the_first_version_keeps_its_signature),
        cmocka_unit_test(a_size_that_shuffles_nothing_changes_nothing),
        cmocka_unit_test(a_cycle_signs_its_data_too),
        cmocka_unit_test(the_first_field_that_differs_is_named),
        cmocka_unit_test(a_patch_merges_and_null_restores_the_default),
        cmocka_unit_test(a_bad_patch_points_below_runtime_and_changes_nothing),
        cmocka_unit_test(a_minimum_means_stable_padding_unless_said_otherwise),
        cmocka_unit_test(a_ladder_is_given_or_yet_to_be_chosen),
        cmocka_unit_test(a_batch_is_padded_as_the_policy_says),
        cmocka_unit_test(a_patch_of_the_padding_replaces_what_it_decides),
        cmocka_unit_test(watermark_ratios_are_judged_as_a_pair),
        cmocka_unit_test(steps_count_the_partial_batch_of_each_epoch),
        cmocka_unit_test(
            the_rate_warms_up_and_decays_as_a_function_of_the_step),
        cmocka_unit_test(one_schedule_may_span_the_cycles_of_a_job),
        cmocka_unit_test(short_cycles_have_a_rate_too),
        cmocka_unit_test(integers_keep_their_digits),
        cmocka_unit_test(parameters_are_counted_without_building_the_model),
        cmocka_unit_test(releases_accept_what_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
