/* The checkpoint format: manifests and the headers of model files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/state.h"

#define SHA                                                                    \
    "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\""

static const char manifest_text[] =
    "{\"format\": \"pawl-state\", \"version\": 1, \"cycle\": 1, \"step\": 7,"
    " \"epoch\": 0, \"records\": 448, \"signature\": " SHA ","
    " \"fingerprint\": {\"device\": \"cpu\"}, \"feed\": {\"shard\": 0},"
    " \"totals\": {}, \"previous\": null,"
    " \"tensors\": ["
    "  {\"name\": \"model.b\", \"dtype\": \"F32\", \"shape\": [2, 3],"
    "   \"begin\": 0, \"end\": 24},"
    "  {\"name\": \"model.w\", \"dtype\": \"F32\", \"shape\": [],"
    "   \"begin\": 24, \"end\": 28},"
    "  {\"name\": \"optimizer.b.exp_avg\", \"dtype\": \"F32\","
    "   \"shape\": [2, 3], \"begin\": 28, \"end\": 52},"
    "  {\"name\": \"rng.step\", \"dtype\": \"I64\", \"shape\": [1],"
    "   \"begin\": 52, \"end\": 60},"
    "  {\"name\": \"feed.buffer\", \"dtype\": \"I64\", \"shape\": [0, 4],"
    "   \"begin\": 60, \"end\": 60}],"
    " \"bytes\": 60, \"chunks\": [" SHA "], \"model_bytes\": 500,"
    " \"model_sha256\": " SHA ", \"extra\": \"may stand here\"}";

static const char spec_text[] =
    "{\"name\": \"x\", \"model\": {\"type\": \"policy_value_transformer\","
    " \"d_model\": 8, \"dropout\": 0.1}, \"record\": {\"s\": {\"kind\":"
    " \"tokens\", \"vocab\": 4, \"dim\": \"S\"}}}";

static json_t *json_of(const char *text)
{
    json_t *v = NULL;
    struct err err;
    if (json_parse_strict(text, strlen(text), &v, &err) < 0)
        fail_msg("%s", err.text);
    return v;
}

static void a_good_manifest_passes(void **state)
{
    AUTO_JSON json_t *m = json_of(manifest_text);
    struct err err;
    if (manifest_check(m, &err) < 0)
        fail_msg("%s: %s", err.pointer, err.text);
    json_object_set_new(m, "previous", json_of("[" SHA "]"));
    json_object_set(m, "previous",
                    json_array_get(json_object_get(m, "previous"), 0));
    assert_int_equal(manifest_check(m, &err), 0);
}

static void a_bad_manifest_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *piece, *by, *pointer;
    } table[] = {
        {"pawl-state", "other", "/format"},
        {"\"version\": 1", "\"version\": \"1\"", "/version"},
        {"\"version\": 1,", "", "/version"},
        {"\"cycle\": 1", "\"cycle\": -1", "/cycle"},
        {"\"step\": 7", "\"step\": 7.5", "/step"},
        {"\"records\": 448,", "", "/records"},
        {"\"signature\": \"b", "\"signature\": \"B", "/signature"},
        {"\"previous\": null", "\"previous\": \"12\"", "/previous"},
        {"\"fingerprint\": {\"device\": \"cpu\"}", "\"fingerprint\": []",
         "/fingerprint"},
        {"\"totals\": {},", "", "/totals"},
        {"\"feed\": {\"shard\": 0},", "", "/feed"},
        {"\"model.b\"", "\"weights.b\"", "/tensors/0"},
        {"\"model.b\"", "\"model.\"", "/tensors/0"},
        {"\"model.b\"", "\"model.x\"", "/tensors/1"}, /* unsorted */
        {"\"model.b\"", "\"model.w\"", "/tensors/1"}, /* twice */
        {"\"model.w\"", "\"optimizer.a\"", NULL},     /* still in order */
        {"\"rng.step\"", "\"model.z\"", "/tensors/3"},
        {"\"begin\": 24", "\"begin\": 20", "/tensors/1/end"},
        {"\"begin\": 24, \"end\": 28", "\"begin\": 25, \"end\": 29",
         "/tensors/1"},
        {"\"begin\": 0, \"end\": 24", "\"begin\": 4, \"end\": 28",
         "/tensors/0"},
        {"\"F32\"", "\"F31\"", "/tensors/0/dtype"},
        {"[2, 3]", "[2, 4]", "/tensors/0/end"},
        {"[2, 3]", "[-2, 3]", "/tensors/0/shape"},
        {"[2, 3]", "[4000000000, 4000000000]", "/tensors/0/shape"},
        {"[2, 3]", "[\"2\", 3]", "/tensors/0/shape"},
        {"\"shape\": [2, 3]", "\"shp\": [2, 3]", "/tensors/0/shp"},
        {"\"bytes\": 60", "\"bytes\": 61", "/bytes"},
        {"\"chunks\": [" SHA "]", "\"chunks\": []", "/chunks"},
        {"\"chunks\": [" SHA "]", "\"chunks\": [" SHA ", " SHA "]", "/chunks"},
        {"\"chunks\": [" SHA "]", "\"chunks\": [\"../x\"]", "/chunks/0"},
        {"\"chunks\": [" SHA "]", "\"chunks\": [5]", "/chunks/0"},
        {"\"model_sha256\": " SHA ",", "", "/model_sha256"},
        {"\"model_bytes\": 500", "\"model_bytes\": \"500\"", "/model_bytes"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CLEANUP(buf_release) struct buf text = {0};
        const char *at = strstr(manifest_text, table[i].piece);
        struct err err = {0};
        assert_non_null(at);
        buf_add(&text, manifest_text, (size_t)(at - manifest_text));
        buf_adds(&text, table[i].by);
        buf_adds(&text, at + strlen(table[i].piece));
        AUTO_JSON json_t *m = json_of(text.data);
        int r = manifest_check(m, &err);
        if (r != (table[i].pointer ? ERR_INVALID : 0))
            fail_msg("%s → %s: %d %s", table[i].piece, table[i].by, r,
                     err.text);
        if (table[i].pointer)
            assert_string_equal(err.pointer, table[i].pointer);
    }
    AUTO_JSON json_t *list = json_of("[]");
    struct err err;
    assert_int_equal(manifest_check(list, &err), ERR_INVALID);
}

static void a_newer_version_is_told_apart(void **state)
{
    AUTO_JSON json_t *m = json_of("{\"format\": \"pawl-state\", \"version\": 2,"
                                  " \"something\": \"new\"}");
    struct err err;
    assert_int_equal(manifest_check(m, &err), ERR_CORRUPT);
    assert_string_equal(err.pointer, "/version");
}

static void a_manifest_names_a_chunk_per_mebibyte(void **state)
{
    AUTO_JSON json_t *m = json_of(manifest_text);
    static const struct {
        int bytes, chunks;
    } table[] = {{0, 0},
                 {1, 1},
                 {STATE_CHUNK, 1},
                 {STATE_CHUNK + 1, 2},
                 {3 * STATE_CHUNK, 3}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct err err;
        int n = table[i].bytes;
        json_object_set_new(m, "bytes", json_integer(n));
        json_object_set_new(m, "tensors",
                            json_pack("[{s:s, s:s, s:[i], s:i, s:i}]", "name",
                                      "model.x", "dtype", "U8", "shape", n,
                                      "begin", 0, "end", n));
        for (int chunks = 0; chunks < 5; chunks++) {
            AUTO_JSON json_t *sha = json_of("[" SHA "]");
            json_t *list = json_array();
            for (int k = 0; k < chunks; k++)
                json_array_append(list, json_array_get(sha, 0));
            json_object_set_new(m, "chunks", list);
            assert_int_equal(manifest_check(m, &err),
                             chunks == table[i].chunks ? 0 : ERR_INVALID);
        }
    }
}

static void the_model_header_is_safetensors_and_stable(void **state)
{
    static const char want[] =
        "{\"__metadata__\":{\"architecture\":\"{\\\"model\\\":{\\\"d_model\\\":"
        "8,\\\"type\\\":\\\"policy_value_transformer\\\"},\\\"record\\\":{"
        "\\\"s\\\":{\\\"dim\\\":\\\"S\\\",\\\"kind\\\":\\\"tokens\\\","
        "\\\"vocab\\\":4}}}\",\"format\":\"pawl\"},\"b\":{\"data_offsets\":[0,"
        "24],\"dtype\":\"F32\",\"shape\":[2,3]},\"w\":{\"data_offsets\":[24,28]"
        ",\"dtype\":\"F32\",\"shape\":[]}}";
    AUTO_JSON json_t *m = json_of(manifest_text);
    AUTO_JSON json_t *spec = json_of(spec_text);
    CLEANUP(buf_release) struct buf header = {0};
    int64_t payload = -1;
    struct err err;
    assert_int_equal(state_model_header(m, spec, &header, &payload, &err), 0);
    assert_int_equal(payload, 28);
    uint64_t n = 0;
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)(unsigned char)header.data[i] << (8 * i);
    assert_int_equal(n % 8, 0);
    assert_int_equal(header.len, n + 8);
    assert_memory_equal(header.data + 8, want, strlen(want));
    for (size_t i = 8 + strlen(want); i < header.len; i++)
        assert_int_equal(header.data[i], ' ');

    /* Names, positions, dropout and run-time matters do not show. */
    json_object_set_new(m, "step", json_integer(9));
    json_object_set_new(m, "cycle", json_integer(2));
    json_object_set_new(spec, "name", json_string("another"));
    json_object_set_new(json_object_get(spec, "model"), "dropout",
                        json_real(0.3));
    CLEANUP(buf_release) struct buf again = {0};
    assert_int_equal(state_model_header(m, spec, &again, &payload, &err), 0);
    assert_int_equal(again.len, header.len);
    assert_memory_equal(again.data, header.data, header.len);

    AUTO_JSON json_t *parsed =
        json_loadb(header.data + 8, header.len - 8, 0, NULL);
    assert_non_null(parsed);
}

static void the_state_header_holds_all_tensors_and_the_rest(void **state)
{
    AUTO_JSON json_t *m = json_of(manifest_text);
    AUTO_JSON json_t *spec = json_of(spec_text);
    CLEANUP(buf_release) struct buf header = {0};
    struct err err;
    assert_int_equal(state_header(m, spec, &header, &err), 0);
    AUTO_JSON json_t *parsed =
        json_loadb(header.data + 8, header.len - 8, 0, NULL);
    assert_int_equal(json_object_size(parsed), 6);
    assert_non_null(json_object_get(parsed, "optimizer.b.exp_avg"));
    const json_t *meta = json_object_get(parsed, "__metadata__");
    AUTO_JSON json_t *rest = json_loads(
        json_string_value(json_object_get(meta, "manifest")), 0, NULL);
    AUTO_JSON json_t *spec_back =
        json_loads(json_string_value(json_object_get(meta, "spec")), 0, NULL);
    assert_true(json_equal(spec, spec_back));
    assert_null(json_object_get(rest, "tensors"));
    assert_int_equal(json_integer_value(json_object_get(rest, "step")), 7);
    assert_non_null(json_object_get(m, "tensors")); /* left alone */
}

static void a_header_needs_a_spec_with_a_model(void **state)
{
    AUTO_JSON json_t *m = json_of(manifest_text);
    AUTO_JSON json_t *spec = json_of("{\"model\": {}}");
    CLEANUP(buf_release) struct buf header = {0};
    int64_t payload = -1;
    struct err err;
    assert_int_equal(state_model_header(m, spec, &header, &payload, &err),
                     ERR_INVALID);
    assert_int_equal(header.len, 0);
    assert_int_equal(payload, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_manifest_passes),
        cmocka_unit_test(a_bad_manifest_is_refused_with_its_place),
        cmocka_unit_test(a_newer_version_is_told_apart),
        cmocka_unit_test(a_manifest_names_a_chunk_per_mebibyte),
        cmocka_unit_test(the_model_header_is_safetensors_and_stable),
        cmocka_unit_test(the_state_header_holds_all_tensors_and_the_rest),
        cmocka_unit_test(a_header_needs_a_spec_with_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
