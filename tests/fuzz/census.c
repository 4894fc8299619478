/* A census of any text. In pieces of any size it is that of the whole; and of a
 * line that is a record it finds the lists that jansson finds in it, with their
 * lengths, and the numbers.
 *
 * Input: size of the pieces, then the text. */
#include <math.h>
#include "fuzz.h"
#include "schema/json_read.h"
#include "server/census.h"

static json_t *count(const char *text, size_t len, size_t piece)
{
    struct census *c = NULL;
    struct err err = {0};
    json_t *out = NULL;
    MUST(census_new(NULL, 0.01, &c, &err) == 0, "%s", err.text);
    MUST(census_begin(c, "a", &err) == 0, "%s", err.text);
    for (size_t at = 0; at < len; at += piece) {
        size_t n = len - at < piece ? len - at : piece;
        AUTO_FREE char *some = alone(text + at, n);
        MUST(census_add(c, some, n, &err) == 0, "%s", err.text);
    }
    MUST(census_end(c, false, &err) == 0, "%s", err.text);
    MUST(census_json(c, 16, &out, &err) == 0, "%s", err.text);
    census_free(c);
    return out;
}

static int64_t int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* One line, which is no more than that. */
static void check_line(const char *line, size_t len)
{
    AUTO_FREE char *own = malloc(len + 1);
    memcpy(own, line, len);
    own[len] = '\n';
    AUTO_JSON json_t *census = count(own, len + 1, len + 1);
    if (int_of(census, "records") != 1 ||
        int_of(json_object_get(census, "bad"), "count"))
        return;
    /* a mark at the start belongs to no record */
    if (len >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) {
        line += 3;
        len -= 3;
    }
    AUTO_JSON json_t *record =
        json_loadb(line, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    MUST(json_is_object(record), "a record that is none: %.*s", (int)len, line);
    const json_t *fields = json_object_get(census, "fields");
    MUST(json_object_size(record) <= CENSUS_FIELDS
             ? json_object_size(fields) == json_object_size(record)
             : json_is_true(json_object_get(census, "fields_left_out")),
         "%zu fields of %zu", json_object_size(fields),
         json_object_size(record));
    const char *name;
    json_t *value;
    json_object_foreach(record, name, value)
    {
        const json_t *f = json_object_get(fields, name);
        if (!f)
            continue;
        MUST(int_of(f, "records") == 1, "%s", name);
        if (json_is_array(value))
            MUST(int_of(f, "max") == (int64_t)json_array_size(value) &&
                     int_of(f, "min") == int_of(f, "max"),
                 "%s has %zu entries", name, json_array_size(value));
        if (json_is_real(value))
            MUST(json_real_value(json_object_get(f, "sum")) ==
                     json_real_value(value),
                 "%s is %.17g", name, json_real_value(value));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = {data, size};
    size_t piece = 1 + in_byte(&in);
    const char *text = (const char *)in.p;
    AUTO_JSON json_t *whole = count(text, in.n, in.n + 1);
    AUTO_JSON json_t *pieces = count(text, in.n, piece);
    MUST(json_equal(whole, pieces), "pieces of %zu bytes count otherwise",
         piece);
    MUST(int_of(whole, "lines") ==
             int_of(whole, "records") + int_of(whole, "blank"),
         "lines");
    const char *end = memchr(text, '\n', in.n);
    check_line(text, end ? (size_t)(end - text) : in.n);
    return 0;
}
