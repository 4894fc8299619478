/* The decoder: what a record is, and a sentence for all that is none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "schema/record.h"
#include "schema/spec.h"

/* Every kind of field: tokens, rows of both kinds of columns, numbers of both
 * kinds, a policy and a value. */
static const char description[] =
    "{\"state\": {\"kind\": \"tokens\", \"dim\": \"S\", \"vocab\": 64},"
    " \"weight\": {\"kind\": \"numbers\", \"dim\": \"S\"},"
    " \"legal\": {\"kind\": \"rows\", \"dim\": \"A\","
    "   \"columns\": [{\"vocab\": 64}, {\"scale\": 4}, {\"vocab\": 5}]},"
    " \"pair\": {\"kind\": \"numbers\", \"size\": 2},"
    " \"policy\": {\"kind\": \"target\", \"over\": \"legal\"},"
    " \"value\": {\"kind\": \"target\", \"loss\": \"mse\"}}";

static const char good[] =
    "{\"state\":[1,63],\"weight\":[0.5,-1e-2],\"legal\":[[7,2,4],[0,-1.5,0]],"
    "\"pair\":[1,2],\"policy\":[0.25,0.75],\"value\":-1}";

static struct record_desc desc;
static struct record_decoder *decoder;

static int setup(void **state)
{
    struct err err;
    AUTO_JSON json_t *in = json_loads(description, 0, NULL);
    assert_int_equal(record_desc_parse(in, "/record", &desc, &err), 0);
    desc.max_length = 8;
    return record_decoder_new(&desc, 0.01, &decoder, &err);
}

static int teardown(void **state)
{
    record_decoder_free(decoder);
    record_desc_release(&desc);
    return 0;
}

static const struct field_values *field(const struct record *r, const char *f)
{
    int i = record_desc_field(&desc, f);
    assert_true(i >= 0);
    return &r->fields[i];
}

static int decode(const char *line, const struct record **ret, struct err *err)
{
    *err = (struct err){0};
    return record_decode(decoder, line, strlen(line), ret, err);
}

static void check_good(const struct record *r)
{
    assert_int_equal(r->n_fields, 6);
    assert_int_equal(r->lengths[record_desc_dim(&desc, "S")], 2);
    assert_int_equal(r->lengths[record_desc_dim(&desc, "A")], 2);
    assert_int_equal(field(r, "state")->rows, 2);
    assert_int_equal(field(r, "state")->ints[0], 1);
    assert_int_equal(field(r, "state")->ints[1], 63);
    assert_true(field(r, "weight")->nums[1] == -0.01f);
    assert_int_equal(field(r, "legal")->rows, 2);
    assert_int_equal(field(r, "legal")->ints[0], 7);
    assert_int_equal(field(r, "legal")->ints[1], 4);
    assert_int_equal(field(r, "legal")->ints[2], 0);
    assert_true(field(r, "legal")->nums[0] == 0.5f);
    assert_true(field(r, "legal")->nums[1] == -0.375f);
    assert_int_equal(field(r, "pair")->rows, 2);
    assert_true(field(r, "policy")->nums[1] == 0.75f);
    assert_true(field(r, "value")->nums[0] == -1);
    assert_int_equal(field(r, "value")->rows, 1);
}

static void a_record_lands_in_flat_arrays(void **state)
{
    static const char *const same[] = {
        good,
        /* another order, spaces, an id, escapes in a key, CR at the end */
        " { \"value\" : -1.0 ,\t\"pair\":[ 1 , 2 ], \"id\": \"g0 \\u00e9\\ud83d"
        "\\ude00\", \"policy\":[ 0.25, 7.5e-1 ],\"st\\u0061te\":[1,63], "
        "\"legal\" : [ [7,2,4] , [ 0 , -15e-1,0 ] ],\"weight\":[5E-1,-0.01] "
        "}\r",
        "{\"x\":{\"state\":[99],\"y\":[{},[],null,true,false,\"\",-0.5e+3]},"
        "\"state\":[1,63],\"weight\":[0.5,-1e-2],\"legal\":[[7,2,4],[0,-1.5,0]]"
        ",\"pair\":[1,2],\"policy\":[0.25,0.75],\"value\":-1,\"z\":0}",
    };
    const struct record *r;
    struct err err;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            if (decode(same[i], &r, &err) < 0)
                fail_msg("%s: %s", err.field, err.text);
            check_good(r);
        }
}

static void inputs_may_be_empty(void **state)
{
    const struct record *r;
    struct err err;
    assert_int_equal(decode("{\"state\":[],\"weight\":[],\"legal\":[[7,2,4]],"
                            "\"pair\":[1,2],\"policy\":[1],\"value\":0}",
                            &r, &err),
                     0);
    assert_int_equal(field(r, "state")->rows, 0);
    assert_int_equal(r->lengths[record_desc_dim(&desc, "S")], 0);
}

/* The good record with one piece replaced. */
static void refuse(const char *piece, const char *by, const char *in_field,
                   const char *says)
{
    CLEANUP(buf_release) struct buf line = {0};
    const char *at = strstr(good, piece);
    const struct record *r = NULL;
    struct err err;
    assert_non_null(at);
    buf_add(&line, good, (size_t)(at - good));
    buf_adds(&line, by);
    buf_adds(&line, at + strlen(piece));
    if (decode(line.data, &r, &err) != ERR_DATA)
        fail_msg("taken: %s", line.data);
    assert_null(r);
    assert_string_equal(err.text, says);
    assert_string_equal(err.field, in_field);

    /* and nothing of it is left behind */
    assert_int_equal(decode(good, &r, &err), 0);
    check_good(r);
}

static void a_bad_value_is_refused_with_field_and_index(void **state)
{
    static const struct {
        const char *piece, *by, *field, *says;
    } table[] = {
        {"[1,63]", "[1,64]", "state", "state[1] is 64, vocab is 64"},
        {"[1,63]", "[1,-2]", "state", "state[1] is negative (-2)"},
        {"[1,63]", "[1,5.0]", "state",
         "state[1] is 5.0, must be an index (a whole number)"},
        {"[1,63]", "[1,1e1]", "state",
         "state[1] is 1e1, must be an index (a whole number)"},
        {"[1,63]", "[1,99999999999999999999]", "state",
         "state[1] is 1e+20, vocab is 64"},
        {"[1,63]", "[1,\"5\"]", "state",
         "state[1] is a string, must be an index (a whole number)"},
        {"[1,63]", "[1,null]", "state",
         "state[1] is null, must be an index (a whole number)"},
        {"[1,63]", "[[1],63]", "state",
         "state[0] is a list, must be an index (a whole number)"},
        {"[1,63]", "[1,NaN]", "state",
         "state[1] is NaN, which is not a JSON value; it must be an index (a "
         "whole number)"},
        {"[1,63]", "[01,3]", "state",
         "state[0] is 01, which is not a JSON value; it must be an index (a "
         "whole number)"},
        {"[1,63]", "[+1,3]", "state",
         "state[0] is +1, which is not a JSON value; it must be an index (a "
         "whole number)"},
        {"[1,63]", "[1x,3]", "state",
         "state[0] is 1x, which is not a JSON value; it must be an index (a "
         "whole number)"},
        {"[1,63]", "7", "state", "state is 7, must be a list"},
        {"[1,63]", "null", "state", "state is null, must be a list"},
        {"[1,63]", "\"x\"", "state", "state is a string, must be a list"},
        {"[1,63]", "{}", "state", "state is an object, must be a list"},
        {"[1,63]", "[1,2,3]", "weight",
         "weight has 2 entries, but other fields along dimension S have 3"},
        {"[1,63],\"weight\":[0.5,-1e-2]",
         "[1,1,1,1,1,1,1,1,1],\"weight\":[1,1,1,1,1,1,1,1,1]", "state",
         "state has 9 entries, the model's max_length is 8"},
        {"[0.5,-1e-2]", "[1e999,0]", "weight",
         "weight[0] is 1e999, too large for a number"},
        {"[0.5,-1e-2]", "[0,-1e999]", "weight",
         "weight[1] is -1e999, too large for a number"},
        {"[0.5,-1e-2]", "[0,1e39]", "weight",
         "weight[1] is 1e39, must be a number that a 32-bit float can hold"},
        {"[0.5,-1e-2]", "[0,Infinity]", "weight",
         "weight[1] is Infinity, which is not a JSON value; it must be a "
         "number"},
        {"[0.5,-1e-2]", "[.5,0]", "weight",
         "weight[0] is .5, which is not a JSON value; it must be a number"},
        {"[0.5,-1e-2]", "[5.,0]", "weight",
         "weight[0] is 5., which is not a JSON value; it must be a number"},
        {"[0.5,-1e-2]", "[1e,0]", "weight",
         "weight[0] is 1e, which is not a JSON value; it must be a number"},
        {"[0.5,-1e-2]", "[-,0]", "weight",
         "weight[0] is -, which is not a JSON value; it must be a number"},
        {"[[7,2,4],[0,-1.5,0]]", "[[7,2,4],[64,-1.5,0]]", "legal",
         "legal[1][0] is 64, vocab is 64"},
        {"[0,-1.5,0]", "[0,-1.5,-1]", "legal", "legal[1][2] is negative (-1)"},
        {"[0,-1.5,0]", "[0,-1.5]", "legal",
         "legal[1] has 2 columns, must have 3"},
        {"[0,-1.5,0]", "[0,-1.5,0,9,[1]]", "legal",
         "legal[1] has 5 columns, must have 3"},
        {"[0,-1.5,0]", "[]", "legal", "legal[1] has 0 columns, must have 3"},
        {"[0,-1.5,0]", "5", "legal", "legal[1] is 5, must be a row (a list)"},
        {"[0,-1.5,0]", "[0,\"a\",0]", "legal",
         "legal[1][1] is a string, must be a number"},
        {"[[7,2,4],[0,-1.5,0]]", "[]", "legal",
         "legal has no rows, policy needs at least one"},
        {"[[7,2,4],[0,-1.5,0]]", "0", "legal",
         "legal is 0, must be a list of rows"},
        {"[1,2]", "[1,2,3]", "pair", "pair has 3 numbers, must have 2"},
        {"[1,2]", "[]", "pair", "pair has 0 numbers, must have 2"},
        {"[0.25,0.75]", "[1]", "policy",
         "policy has 1 entries, legal has 2 rows"},
        {"[0.25,0.75]", "[]", "policy",
         "policy has 0 entries, legal has 2 rows"},
        {"[0.25,0.75]", "[1.2,-0.2]", "policy", "policy[1] is negative (-0.2)"},
        {"[0.25,0.75]", "[0.25,0.7]", "policy",
         "policy sums to 0.95, must be 1 within 0.01"},
        {"[0.25,0.75]", "[0,0]", "policy",
         "policy sums to 0, must be 1 within 0.01"},
        {"[0.25,0.75]", "[0.25,true]", "policy",
         "policy[1] is true, must be a number"},
        {"[0.25,0.75]", "0.25", "policy", "policy is 0.25, must be a list"},
        {"-1}", "1.5}", "value", "value is 1.5, must be between -1 and 1"},
        {"-1}", "-1.001}", "value",
         "value is -1.001, must be between -1 and 1"},
        {"-1}", "NaN}", "value",
         "value is NaN, which is not a JSON value; it must be a number"},
        {"-1}", "-Infinity}", "value",
         "value is -Infinity, which is not a JSON value; it must be a number"},
        {"-1}", "[0]}", "value", "value is a list, must be a number"},
        {"\"state\"", "\"stat\"", "state", "the record has no field \"state\""},
        {",\"value\":-1", "", "value", "the record has no field \"value\""},
        {",\"value\":-1", ",\"value\":-1,\"state\":[]", "state",
         "key \"state\" is repeated"},
        {",\"value\":-1", ",\"value\":-1,\"st\\u0061te\":[]", "state",
         "key \"state\" is repeated"},
        {",\"value\":-1", ",\"value\":-1,\"id\":1,\"x\":0,\"\\u0069d\":2", "",
         "key \"id\" is repeated"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        refuse(table[i].piece, table[i].by, table[i].field, table[i].says);
}

static void broken_json_is_refused_in_ignored_fields_too(void **state)
{
    static const char *const after[] = {
        ",\"id\":",
        ",\"id\":}",
        ",\"id\":tru}",
        ",\"id\":truex}",
        ",\"id\":nul}",
        ",\"id\":NaN}",
        ",\"id\":01}",
        ",\"id\":1e999}",
        ",\"id\":[1,]}",
        ",\"id\":[1 2]}",
        ",\"id\":[1}",
        ",\"id\":{\"a\"}}",
        ",\"id\":{\"a\":}}",
        ",\"id\":{\"a\":1,}}",
        ",\"id\":{a:1}}",
        ",\"id\":{\"a\":1]}",
        ",\"id\":\"\\x\"}",
        ",\"id\":\"\\u12g4\"}",
        ",\"id\":\"\\ud800\"}",
        ",\"id\":\"\\ud800\\u0041\"}",
        ",\"id\":\"\\udc00\"}",
        ",\"id\":\"a\tb\"}",
        ",\"id\":\"a}",
        ",\"id\":\"\xff\"}",
        ",\"id\":\"\xc0\xaf\"}",
        ",\"id\":\"\xed\xa0\x80\"}",
        ",\"id\":\"\xf4\x90\x80\x80\"}",
        ",\"id\":\"\xe2\x82\"}",
        ",\"\xff\":1}",
        ",\"id\" 1}",
        ",\"id\":1 \"b\":2}",
        ",id:1}",
        ",}",
        "",
        "]",
        "}x",
        "} {}",
        "},",
        "}}",
        ",\"id\":\xef\xbb\xbf"
        "1}",
    };
    const struct record *r = NULL;
    struct err err;
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        CLEANUP(buf_release) struct buf line = {0};
        buf_add(&line, good, strlen(good) - 1);
        buf_adds(&line, after[i]);
        if (decode(line.data, &r, &err) != ERR_DATA)
            fail_msg("taken: %s", line.data);
        assert_null(r);
        assert_true(*err.text);
    }
    assert_int_equal(decode(good, &r, &err), 0);
}

static void what_is_no_object_is_refused_by_name(void **state)
{
    static const struct {
        const char *line;
        size_t len;
        const char *says;
    } table[] = {
        {"[1]", 3, "the line is not a JSON object but a list"},
        {"\"a\"", 3, "the line is not a JSON object but a string"},
        {"3", 1, "the line is not a JSON object but something else"},
        {"", 0, "the line is blank"},
        {"  \t", 3, "the line is blank"},
        {"{}", 2, "the record has no field \"legal\""},
        {"{", 1,
         "the line ends within the record, where a field's name should "
         "stand (truncated?)"},
        {"{\"state\":[1,", 12,
         "the line ends within the record, where an index (a whole number) "
         "should stand (truncated?)"},
        {"{\"state\":[1", 11,
         "the line ends within the record, where ',' or ']' should stand "
         "(truncated?)"},
        {"{\"sta", 5, "the line ends within a string (truncated?)"},
        {"\xef\xbb\xbf{}", 5,
         "the line begins with a UTF-8 byte-order mark, which may stand at the "
         "start of a shard only"},
        {"\xff\xfe{\0}\0", 6,
         "the line begins with a UTF-16 byte-order mark; records are UTF-8"},
        {"\xfe\xff\0{\0}", 6,
         "the line begins with a UTF-16 byte-order mark; records are UTF-8"},
        {"{\"a\":\0}", 7, "the line holds a NUL byte at byte 5"},
        {"{\"a\":\"\xc3(\"}", 10,
         "the line is not valid UTF-8 (byte 0xc3 at byte 6)"},
    };
    const struct record *r = NULL;
    struct err err;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(
            record_decode(decoder, table[i].line, table[i].len, &r, &err),
            ERR_DATA);
        assert_string_equal(err.text, table[i].says);
        assert_null(r);
    }
}

static void depth_is_limited(void **state)
{
    const struct record *r = NULL;
    struct err err;
    for (int depth = 60; depth < 70; depth++) {
        CLEANUP(buf_release) struct buf line = {0};
        buf_add(&line, good, strlen(good) - 1);
        buf_adds(&line, ",\"deep\":");
        for (int i = 0; i < depth; i++)
            buf_adds(&line, i % 2 ? "[" : "{\"a\":");
        buf_adds(&line, "0");
        for (int i = depth; i-- > 0;)
            buf_adds(&line, i % 2 ? "]" : "}");
        buf_adds(&line, "}");
        /* the record itself is one level */
        assert_int_equal(decode(line.data, &r, &err),
                         depth + 1 <= 64 ? 0 : ERR_DATA);
    }
    CLEANUP(buf_release) struct buf line = {0};
    buf_adds(&line, "{\"a\":");
    for (int i = 0; i < 1000000; i++)
        buf_adds(&line, "[");
    assert_int_equal(decode(line.data, &r, &err), ERR_DATA);
    assert_string_equal(err.text, "the record is nested deeper than 64 levels");
    line.len = 0;
    buf_adds(&line, "{\"state\":");
    for (int i = 0; i < 1000000; i++)
        buf_adds(&line, "[");
    assert_int_equal(decode(line.data, &r, &err), ERR_DATA);
}

static void a_policy_is_renormalised_within_the_tolerance(void **state)
{
    const struct record *r;
    struct err err;
    assert_int_equal(decode("{\"state\":[],\"weight\":[],\"legal\":[[7,2,4],"
                            "[0,0,0]],\"pair\":[1,2],\"policy\":[0.495,0.495],"
                            "\"value\":0}",
                            &r, &err),
                     0);
    assert_true(field(r, "policy")->nums[0] == 0.5f);
    assert_true(field(r, "policy")->nums[1] == 0.5f);
    assert_int_equal(decode("{\"state\":[],\"weight\":[],\"legal\":[[7,2,4],"
                            "[0,0,0]],\"pair\":[1,2],\"policy\":[1.01,0],"
                            "\"value\":0}",
                            &r, &err),
                     0);
    assert_true(field(r, "policy")->nums[0] == 1);
    assert_int_equal(decode("{\"state\":[],\"weight\":[],\"legal\":[[7,2,4],"
                            "[0,0,0]],\"pair\":[1,2],\"policy\":[1.0101,0],"
                            "\"value\":0}",
                            &r, &err),
                     ERR_DATA);
}

static void numbers_are_rounded_as_the_c_library_does(void **state)
{
    static const char *const numbers[] = {
        "0",
        "-0",
        "0.1",
        "1e-400",
        "-1e-400",
        "5e-324",
        "1e22",
        "1e23",
        "123456789012345678",
        "1234567890123456789012345e-10",
        "9007199254740993",
        "0.000000000000000000000000000000000001",
        "3.4028234e38",
        "1e-45",
        "0.30000000000000004",
        "2.2250738585072011e-308",
        "0.1234567890123456789",
        "100000000000000000000000000000e-29",
        "0e999",
        "0.0e-999999999999",
        "1E+2",
        "17.25",
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char line[400];
        const struct record *r;
        struct err err;
        snprintf(line, sizeof line,
                 "{\"state\":[],\"weight\":[],\"legal\":[[7,2,4]],\"pair\":[%s,"
                 "-%s],\"policy\":[1],\"value\":0}",
                 numbers[i], numbers[i] + (numbers[i][0] == '-'));
        if (decode(line, &r, &err) < 0)
            fail_msg("%s: %s", numbers[i], err.text);
        assert_true(field(r, "pair")->nums[0] ==
                    (float)strtod(numbers[i], NULL));
        assert_true(fabsf(field(r, "pair")->nums[1]) ==
                    fabsf(field(r, "pair")->nums[0]));
    }
}

/* Indices and probabilities of all lengths, with and without spaces. */
static void numbers_of_every_length_read_back(void **state)
{
    static const char text[] =
        "{\"t\": {\"kind\": \"tokens\", \"dim\": \"T\", \"vocab\": 16777216},"
        " \"r\": {\"kind\": \"rows\", \"dim\": \"R\", \"columns\":"
        " [{\"vocab\": 16777216}, {\"vocab\": 7}]},"
        " \"p\": {\"kind\": \"target\", \"over\": \"r\"}}";
    AUTO_JSON json_t *in = json_loads(text, 0, NULL);
    CLEANUP(record_desc_release) struct record_desc d = {0};
    struct record_decoder *dec = NULL;
    struct err err;
    assert_int_equal(record_desc_parse(in, "", &d, &err), 0);
    assert_int_equal(record_decoder_new(&d, 1, &dec, &err), 0);
    int t = record_desc_field(&d, "t"), q = record_desc_field(&d, "r"),
        p = record_desc_field(&d, "p");
    uint32_t x = 1;
    for (int round = 0; round < 20000; round++) {
        int v[4];
        char share[2][16];
        for (int i = 0; i < 4; i++) {
            x = x * 1664525 + 1013904223;
            int digits = 1 + (int)(x >> 28) % 8, most = 1;
            while (digits--)
                most *= 10;
            x = x * 1664525 + 1013904223;
            v[i] = (int)((x >> 4) % (uint32_t)most) % 16777216;
        }
        const char *gap = round % 3 == 2 ? " " : "";
        for (int i = 0; i < 2; i++)
            snprintf(share[i], sizeof share[i], "0.%.*d", 1 + round % 9,
                     v[i + 2] % 10000);
        char line[400];
        const struct record *r;
        snprintf(line, sizeof line,
                 "{\"t\":[%s%d%s,%d%s],\"r\":[[%d%s,%s%d],[%d,%d%s]%s],"
                 "\"p\":[%s%s,1]}",
                 gap, v[0], gap, v[1], gap, v[2], gap, gap, v[0] % 7, v[3],
                 v[1] % 7, gap, gap, share[0], gap);
        int s = record_decode(dec, line, strlen(line), &r, &err);
        if (s < 0)
            fail_msg("%s: %s", line, err.text);
        assert_int_equal(r->fields[t].ints[0], v[0]);
        assert_int_equal(r->fields[t].ints[1], v[1]);
        assert_int_equal(r->fields[q].ints[0], v[2]);
        assert_int_equal(r->fields[q].ints[1], v[0] % 7);
        assert_int_equal(r->fields[q].ints[2], v[3]);
        assert_int_equal(r->fields[q].ints[3], v[1] % 7);
        double a = strtod(share[0], NULL);
        assert_true(r->fields[p].nums[0] == (float)(a / (a + 1)));
    }
    record_decoder_free(dec);
}

/* Every prefix of a good line, at the very end of a mapped page: nothing is
 * read beyond it, and nothing but the whole is taken. */
static void no_prefix_is_a_record_and_none_is_read_beyond(void **state)
{
    size_t len = strlen(good), page = 4096;
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    const struct record *r = NULL;
    struct err err;
    for (size_t n = 0; n < len; n++) {
        memcpy(map + page - n, good, n);
        assert_int_equal(record_decode(decoder, map + page - n, n, &r, &err),
                         ERR_DATA);
    }
    memcpy(map + page - len, good, len);
    assert_int_equal(record_decode(decoder, map + page - len, len, &r, &err),
                     0);
    check_good(r);
    munmap(map, 2 * page);
}

/* Change a good line at random: whatever is taken must be within its bounds. */
static void mutations_are_refused_or_within_bounds(void **state)
{
    uint64_t x = 88172645463325252u;
    static const char alphabet[] =
        "0123456789-+.eE,:[]{}\"\\u \t\nNntf\xff\x80";
    int taken = 0;
    for (int round = 0; round < 200000; round++) {
        char line[sizeof good + 8];
        size_t len = strlen(good);
        memcpy(line, good, len + 1);
        for (int k = 0; k < 1 + round % 3; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            size_t at = x % len;
            char c = alphabet[(x >> 20) % (sizeof alphabet - 1)];
            if (x >> 40 & 1) {
                line[at] = c;
            } else if (x >> 41 & 1) {
                memmove(line + at, line + at + 1, len - at);
                len--;
            } else if (len < sizeof line - 1) {
                memmove(line + at + 1, line + at, len - at + 1);
                line[at] = c;
                len++;
            }
        }
        const struct record *r = NULL;
        struct err err;
        int q = record_decode(decoder, line, len, &r, &err);
        if (q < 0) {
            assert_int_equal(q, ERR_DATA);
            AUTO_JSON json_t *text = json_string(err.text);
            assert_non_null(text);
            continue;
        }
        taken++;
        json_error_t e; /* jansson agrees that it is JSON, newlines included */
        AUTO_JSON json_t *v = json_loadb(line, len, JSON_REJECT_DUPLICATES, &e);
        if (!v)
            fail_msg("%.*s: %s", (int)len, line, e.text);
        for (int i = 0; i < r->n_fields; i++) {
            const struct field *f = &desc.fields[i];
            const struct field_values *values = &r->fields[i];
            if (f->kind == FIELD_TOKENS)
                for (int k = 0; k < values->rows; k++)
                    assert_int_equal(
                        values->ints[k],
                        json_integer_value(json_array_get(
                            json_object_get(v, f->name), (size_t)k)));
        }
        double sum = 0;
        for (int k = 0; k < field(r, "policy")->rows; k++)
            sum += field(r, "policy")->nums[k];
        assert_true(fabs(sum - 1) < 1e-5);
        assert_true(fabsf(field(r, "value")->nums[0]) <= 1);
    }
    assert_true(taken > 1000);
}

static void targets_may_be_lacking_where_only_inputs_are_asked_for(void **state)
{
    static const char inputs[] =
        "{\"state\":[1,63],\"weight\":[0.5,-1e-2],"
        "\"legal\":[[7,2,4],[0,-1.5,0]],\"pair\":[1,2]}";
    struct record_decoder *d;
    const struct record *r;
    struct err err = {0};
    assert_int_equal(decode(inputs, &r, &err), ERR_DATA);
    assert_int_equal(record_decoder_new(&desc, 0.01, &d, &err), 0);
    record_decoder_inputs_only(d);
    assert_int_equal(record_decode(d, good, strlen(good), &r, &err), 0);
    check_good(r);
    assert_int_equal(record_decode(d, inputs, strlen(inputs), &r, &err), 0);
    assert_int_equal(field(r, "policy")->rows, 2);
    assert_true(field(r, "policy")->nums[0] == 0);
    assert_true(field(r, "policy")->nums[1] == 0);
    assert_int_equal(field(r, "value")->rows, 1);
    assert_int_equal(record_decode(d, "{\"state\":[1]}", 13, &r, &err),
                     ERR_DATA);
    record_decoder_free(d);
}

static void a_line_much_longer_than_those_before_is_decoded(void **state)
{
    CLEANUP(buf_release) struct buf line = {0};
    const struct record *r;
    struct err err;
    int n = 100000;
    buf_adds(&line, "{\"state\":[],\"weight\":[],\"pair\":[1,2],\"value\":0,"
                    "\"legal\":[");
    for (int i = 0; i < n; i++)
        buf_addf(&line, "%s[%d,%d,%d]", i ? "," : "", i % 64, i, i % 5);
    buf_adds(&line, "],\"policy\":[1");
    for (int i = 1; i < n; i++)
        buf_adds(&line, ",0");
    buf_adds(&line, "]}");
    assert_int_equal(decode(line.data, &r, &err), 0);
    assert_int_equal(r->lengths[record_desc_dim(&desc, "A")], n);
    assert_int_equal(field(r, "legal")->ints[2 * (n - 1)], (n - 1) % 64);
    assert_true(field(r, "legal")->nums[n - 1] == (float)((n - 1) / 4.0));
    assert_int_equal(decode(good, &r, &err), 0);
    check_good(r);
}

static void many_ignored_keys_are_fine_and_a_repeat_is_found(void **state)
{
    CLEANUP(buf_release) struct buf line = {0};
    const struct record *r;
    struct err err;
    buf_add(&line, good, strlen(good) - 1);
    for (int i = 0; i < 50000; i++)
        buf_addf(&line, ",\"k%d\":%d", i, i);
    size_t len = line.len;
    buf_adds(&line, "}");
    assert_int_equal(decode(line.data, &r, &err), 0);
    line.len = len;
    buf_adds(&line, ",\"k7\":0}");
    assert_int_equal(decode(line.data, &r, &err), ERR_DATA);
    assert_string_equal(err.text, "key \"k7\" is repeated");
}

/* What the decoder says of real records, jansson says too. */
static void all_real_records_decode_as_jansson_reads_them(void **state)
{
    AUTO_JSON json_t *job = json_load_file(FIXTURES "/chess/job.json", 0, NULL);
    CLEANUP(spec_release) struct spec spec = {0};
    struct record_decoder *d = NULL;
    struct err err;
    assert_int_equal(spec_parse(job, &spec, &err), 0);
    assert_int_equal(record_decoder_new(&spec.record, 0.01, &d, &err), 0);
    int n = 0;
    for (int shard = 0; shard < 4; shard++) {
        char path[400], *line = NULL;
        size_t cap = 0;
        ssize_t len;
        snprintf(path, sizeof path, FIXTURES "/chess/shard-%04d.jsonl", shard);
        FILE *in = fopen(path, "r");
        assert_non_null(in);
        while ((len = getline(&line, &cap, in)) > 0) {
            const struct record *r;
            len -= line[len - 1] == '\n';
            if (record_decode(d, line, (size_t)len, &r, &err) < 0)
                fail_msg("%s line %d: %s", path, n, err.text);
            n++;
            AUTO_JSON json_t *v = json_loadb(line, (size_t)len, 0, NULL);
            for (int i = 0; i < spec.record.n_fields; i++) {
                const struct field *f = &spec.record.fields[i];
                const struct field_values *got = &r->fields[i];
                json_t *want = json_object_get(v, f->name);
                if (f->kind == FIELD_TARGET && f->over < 0) {
                    assert_true(got->nums[0] == (float)json_number_value(want));
                    continue;
                }
                assert_int_equal(got->rows, json_array_size(want));
                assert_int_equal(got->rows, r->lengths[f->dim]);
                for (int k = 0; k < got->rows; k++) {
                    json_t *entry = json_array_get(want, (size_t)k);
                    if (f->kind == FIELD_TOKENS)
                        assert_int_equal(got->ints[k],
                                         json_integer_value(entry));
                    else if (f->kind == FIELD_ROWS)
                        for (int c = 0; c < f->n_columns; c++)
                            assert_int_equal(got->ints[k * f->n_ints + c],
                                             json_integer_value(json_array_get(
                                                 entry, (size_t)c)));
                    else
                        assert_true(fabs(got->nums[k] -
                                         json_number_value(entry)) < 2e-4);
                }
            }
        }
        free(line);
        fclose(in);
    }
    assert_int_equal(n, 1600);
    record_decoder_free(d);
    record_decoder_free(NULL);
}

/* A record of `rows` rows and as many tokens, all small; the entry at (row,
 * column) of the rows and the token at `row` are what `odd` says. */
static void add_small(struct buf *b, int rows, int columns, int row, int column,
                      const char *odd, const char *token)
{
    buf_clear(b);
    buf_adds(b, "{\"r\":[");
    for (int i = 0; i < rows; i++) {
        buf_adds(b, i ? ",[" : "[");
        for (int c = 0; c < columns; c++) {
            if (i == row && c == column)
                buf_addf(b, "%s%s", c ? "," : "", odd);
            else
                buf_addf(b, "%s%d", c ? "," : "", (i * 13 + c * 5) % 64);
        }
        buf_adds(b, "]");
    }
    buf_adds(b, "],\"t\":[");
    for (int i = 0; i < rows; i++)
        if (i == row)
            buf_addf(b, "%s%s", i ? "," : "", token);
        else
            buf_addf(b, "%s%d", i ? "," : "", i * 7 % 64);
    buf_adds(b, "],\"v\":0}");
}

/* Small indices are read four at a time: nothing odd may slip through in any of
 * the places, and nothing right be refused. */
static void small_indices_are_read_right_in_every_place(void **state)
{
    static const struct {
        const char *text;
        int value; /* -1: refused */
    } odd[] = {{"0", 0},      {"9", 9},     {"10", 10},   {"63", 63},
               {" 5", 5},     {"5 ", 5},    {"-0", 0},    {"\t41\t", 41},
               {"64", -1},    {"99", -1},   {"100", -1},  {"06", -1},
               {"00", -1},    {"-1", -1},   {"1.5", -1},  {"1e1", -1},
               {"\"1\"", -1}, {"[1]", -1},  {"{}", -1},   {"", -1},
               {"1 2", -1},   {"1a", -1},   {"a1", -1},   {"+1", -1},
               {":", -1},     {"1:2", -1},  {"/1", -1},   {"1/", -1},
               {"/", -1},     {"1;", -1},   {"null", -1}, {"12345678", -1},
               {"1,2,", -1},  {"\xb1", -1}, {"1\xb1", -1}};
    CLEANUP(buf_release) struct buf b = {0};
    for (int columns = 1; columns <= 7; columns++) {
        AUTO_JSON json_t *in = json_pack(
            "{s:{s:s, s:s, s:[]}, s:{s:s, s:s, s:i}, s:{s:s, s:s}}", "r",
            "kind", "rows", "dim", "R", "columns", "t", "kind", "tokens", "dim",
            "T", "vocab", 64, "v", "kind", "target", "loss", "mse");
        for (int c = 0; c < columns; c++)
            json_array_append_new(
                json_object_get(json_object_get(in, "r"), "columns"),
                json_pack("{s:i}", "vocab", 64));
        struct record_desc small;
        struct record_decoder *d;
        struct err err = {0};
        assert_int_equal(record_desc_parse(in, "/record", &small, &err), 0);
        assert_int_equal(record_decoder_new(&small, 0.01, &d, &err), 0);
        int r = record_desc_field(&small, "r");
        int t = record_desc_field(&small, "t");
        const struct record *got;
        for (int rows = 0; rows <= 9; rows++) {
            add_small(&b, rows, columns, -1, 0, "", "");
            assert_int_equal(record_decode(d, b.data, b.len, &got, &err), 0);
            assert_int_equal(got->fields[r].rows, rows);
            for (int row = 0; row < rows; row++) {
                for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
                    int column = (int)(k + (size_t)row) % columns;
                    int want = odd[k].value;
                    add_small(&b, rows, columns, row, column, odd[k].text, "1");
                    int e = record_decode(d, b.data, b.len, &got, &err);
                    if (e != (want < 0 ? ERR_DATA : 0))
                        fail_msg("%s: %d", b.data, e);
                    for (int i = 0; e == 0 && i < rows * columns; i++)
                        assert_int_equal(
                            got->fields[r].ints[i],
                            i == row * columns + column
                                ? want
                                : (i / columns * 13 + i % columns * 5) % 64);
                    if (!*odd[k].text)
                        continue; /* one row without it is an empty list */
                    add_small(&b, rows, columns, row, -1, "", odd[k].text);
                    e = record_decode(d, b.data, b.len, &got, &err);
                    if (e != (want < 0 ? ERR_DATA : 0))
                        fail_msg("%s: %d", b.data, e);
                    for (int i = 0; e == 0 && i < rows; i++)
                        assert_int_equal(got->fields[t].ints[i],
                                         i == row ? want : i * 7 % 64);
                }
            }
        }
        record_decoder_free(d);
        record_desc_release(&small);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_indices_are_read_right_in_every_place),
        cmocka_unit_test(a_record_lands_in_flat_arrays),
        cmocka_unit_test(inputs_may_be_empty),
        cmocka_unit_test(a_bad_value_is_refused_with_field_and_index),
        cmocka_unit_test(broken_json_is_refused_in_ignored_fields_too),
        cmocka_unit_test(what_is_no_object_is_refused_by_name),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(a_policy_is_renormalised_within_the_tolerance),
        cmocka_unit_test(numbers_are_rounded_as_the_c_library_does),
        cmocka_unit_test(numbers_of_every_length_read_back),
        cmocka_unit_test(no_prefix_is_a_record_and_none_is_read_beyond),
        cmocka_unit_test(mutations_are_refused_or_within_bounds),
        cmocka_unit_test(
            targets_may_be_lacking_where_only_inputs_are_asked_for),
        cmocka_unit_test(a_line_much_longer_than_those_before_is_decoded),
        cmocka_unit_test(many_ignored_keys_are_fine_and_a_repeat_is_found),
        cmocka_unit_test(all_real_records_decode_as_jansson_reads_them),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
