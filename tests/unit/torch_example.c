/* deploy/examples/model.py computes what the trainer does. */
#include "tests/unit/torch_batch.h"
#include <unistd.h>
#include "schema/state.h"

#define EXAMPLE FIXTURES "/../../deploy/examples/model.py"

/* The model file, as the server would send it. */
static void write_model(struct trainer *t, const struct spec *spec,
                        const char *path)
{
    struct err err;
    struct saved_state s = state_of(t);
    AUTO_JSON json_t *tensors = json_array();
    int64_t at = 0;
    for (int i = 0; i < s.n; i++) {
        json_t *shape = json_array();
        for (int k = 0; k < s.all[i].dims; k++)
            json_array_append_new(shape, json_integer(s.all[i].shape[k]));
        json_array_append_new(
            tensors, json_pack("{s:s, s:s, s:o, s:I, s:I}", "name",
                               s.all[i].name, "dtype", s.all[i].dtype, "shape",
                               shape, "begin", (json_int_t)at, "end",
                               (json_int_t)(at + (int64_t)s.all[i].bytes)));
        at += (int64_t)s.all[i].bytes;
    }
    AUTO_JSON json_t *manifest = json_pack("{s:O}", "tensors", tensors);
    CLEANUP(buf_release) struct buf header = {0};
    int64_t payload;
    int r =
        state_model_header(manifest, spec->resolved, &header, &payload, &err);
    ASSERT_OK(r, err);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header.data, 1, header.len, f);
    for (int i = 0; i < s.n && payload > 0; i++) {
        fwrite(s.all[i].data, 1, s.all[i].bytes, f);
        payload -= (int64_t)s.all[i].bytes;
    }
    assert_int_equal(payload, 0);
    fclose(f);
    saved_release(&s);
}

static void compare(const struct spec *spec, const json_t *records)
{
    int n = (int)json_array_size(records);
    char dir[] = "/tmp/pawl-example-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char model[64], lines[64], command[512];
    snprintf(model, sizeof model, "%s/model.safetensors", dir);
    snprintf(lines, sizeof lines, "%s/records.jsonl", dir);
    FILE *f = fopen(lines, "w");
    for (int i = 0; i < n; i++) {
        json_dumpf(json_array_get(records, (size_t)i), f, JSON_COMPACT);
        fputc('\n', f);
    }
    fclose(f);
    struct trainer *t = trainer_of(spec, 1);
    for (int step = 0; step < 5; step++)
        train_step(t, &spec->record, records, n, n, 0, step, 1e-2);
    write_model(t, spec, model);

    struct batch b = batch_of(&spec->record, records, 0, n, 100, 0);
    float *policy = calloc((size_t)n * 100, sizeof *policy);
    float *value = calloc((size_t)n, sizeof *value);
    struct err err;
    ASSERT_OK(trainer_predict(t, &b, policy, value, &err), err);
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s %s", EXAMPLE,
             model, lines);
    f = popen(command, "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    int over = spec->record.fields[spec->record.policy].dim;
    for (int i = 0; i < n; i++) {
        assert_true(getline(&line, &cap, f) > 0);
        AUTO_JSON json_t *answer = json_loads(line, 0, NULL);
        json_t *p = json_object_get(answer, "policy");
        assert_int_equal(json_array_size(p), b.lengths[over][i]);
        for (int k = 0; k < (int)json_array_size(p); k++)
            assert_true(fabs(json_real_value(json_array_get(p, (size_t)k)) -
                             policy[i * b.padded[over] + k]) < 1e-5);
        assert_true(fabs(json_real_value(json_object_get(answer, "value")) -
                         value[i]) < 1e-5);
    }
    free(line);
    assert_int_equal(pclose(f), 0);
    free(policy);
    free(value);
    batch_release(&b);
    trainer_free(t);
    unlink(model);
    unlink(lines);
    rmdir(dir);
}

static bool python_has_torch(void)
{
    return system("/usr/bin/python3 -c 'import torch' 2>/dev/null") == 0;
}

static void the_example_agrees_on_chess(void **state)
{
    (void)state;
    if (!python_has_torch())
        skip();
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(30, 20);
    compare(&spec, records);
    spec_release(&spec);
}

static void the_example_agrees_on_every_kind_of_field(void **state)
{
    (void)state;
    if (!python_has_torch())
        skip();
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    AUTO_JSON json_t *records = random_records(&spec.record, 20, 17);
    compare(&spec, records);
    spec_release(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_agrees_on_chess),
        cmocka_unit_test(the_example_agrees_on_every_kind_of_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
