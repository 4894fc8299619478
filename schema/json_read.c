#include "schema/json_read.h"
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "schema/cleanup.h"

/* Where a scan of JSON text stands: one level per open bracket. The scan only
 * knows strings and brackets; grammar is jansson's affair. */
struct level {
    char open;       /* [ or { */
    bool key_next;   /* { only: the next string is a key */
    const char *key; /* its text between the quotes, NULL before the first */
    size_t key_len;
    size_t index; /* [ only */
};
struct scan {
    struct level levels[JSON_DEPTH_MAX];
    int depth;
    size_t pos; /* where the scan ended */
};

enum scan_end { SCAN_DONE, SCAN_DEEP, SCAN_NUL };

static enum scan_end scan(struct scan *s, const char *text, size_t len)
{
    s->depth = 0;
    for (size_t i = 0; i < len; i++) {
        struct level *top = s->depth ? &s->levels[s->depth - 1] : NULL;
        s->pos = i;
        switch (text[i]) {
        case 0:
            return SCAN_NUL;
        case '"': {
            size_t start = ++i;
            while (i < len && text[i] != '"') {
                if (!text[i]) {
                    s->pos = i;
                    return SCAN_NUL;
                }
                i += text[i] == '\\' && i + 1 < len && text[i + 1] ? 2 : 1;
            }
            if (top && top->open == '{' && top->key_next) {
                top->key = text + start;
                top->key_len = (i < len ? i : len) - start;
                top->key_next = false;
            }
            break;
        }
        case '[':
        case '{':
            if (s->depth == JSON_DEPTH_MAX)
                return SCAN_DEEP;
            s->levels[s->depth++] =
                (struct level){.open = text[i], .key_next = text[i] == '{'};
            break;
        case ']':
        case '}':
            if (s->depth)
                s->depth--;
            break;
        case ',':
            if (top && top->open == '{')
                top->key_next = true;
            else if (top)
                top->index++;
            break;
        }
    }
    s->pos = len;
    return SCAN_DONE;
}

/* The pointer of the innermost key or index that a scan stopped at. */
static void scan_pointer(const struct scan *s, char out[JSON_POINTER_MAX])
{
    char at[JSON_POINTER_MAX] = "";
    for (int i = 0; i < s->depth; i++) {
        const struct level *l = &s->levels[i];
        if (l->open == '[') {
            json_pointer_index(out, at, l->index);
        } else if (l->key) {
            AUTO_JSON json_t *key =
                json_loadb(l->key - 1, l->key_len + 2, JSON_DECODE_ANY, NULL);
            if (!key) /* it is what is wrong */
                break;
            json_pointer(out, at, json_string_value(key));
        } else {
            break;
        }
        memcpy(at, out, sizeof at);
    }
    memcpy(out, at, sizeof at);
}

static int place_error(const char *text, size_t pos, struct err *err,
                       const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos; i++) {
        if (text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    return err_set(err, ERR_INVALID, "not valid JSON: line %zu, column %zu: %s",
                   line, column, what);
}

/* What jansson says, said to people who write JSON and not C: by the beginning
 * of its sentence. `near` is a part of the text, "" if it names none. */
static void in_plain_words(const char *said, const char *near, char *out,
                           size_t cap)
{
    static const char *const table[][2] = {
        {"\\u0000 is not", "a string holds \\u0000, which no field takes"},
        {"NUL byte in", "a key holds \\u0000, which no key does"},
        {"unable to decode", "the text is not UTF-8"},
        {"premature end", "the text ends too soon"},
        {"end of file", "there is more text after the end of the value"},
        {"unexpected newline", "a string holds a line break: write \\n"},
        {"control character", "a string holds a control character: write \\u "
                              "and its number"},
        {"invalid escape", "a string holds a \\ that begins no escape: write "
                           "\\\\"},
        {"invalid Unicode", "a string holds a \\u that names no character"},
        {"string or '}'", "a key in double quotes must come here, or }"},
        {"':' expected", "a colon must follow the key"},
        {"']' expected", "a comma or ] must come here"},
        {"'}' expected", "a comma or } must come here"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strncmp(said, table[i][0], strlen(table[i][0]))) {
            snprintf(out, cap, "%s", table[i][1]);
            return;
        }
    if (!strncasecmp(near, "nan", 3) || !strncasecmp(near, "inf", 3))
        snprintf(out, cap, "'%s' is no number: JSON has finite ones only",
                 near);
    else if (*near)
        snprintf(out, cap, "'%s' is no value here", near);
    else
        snprintf(out, cap, "a value is missing");
}

/* The part of the text that a sentence of jansson's ends with: near '…'. */
static void near_what(const char *said, char *out, size_t cap)
{
    const char *at = strstr(said, " near '");
    snprintf(out, cap, "%s", at ? at + 7 : "");
    size_t n = strlen(out);
    if (n && out[n - 1] == '\'')
        out[n - 1] = 0;
}

int json_parse_strict(const char *text, size_t len, json_t **ret,
                      struct err *err)
{
    if (len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
        text += 3;
        len -= 3;
    }
    size_t blank = 0;
    while (blank < len && strchr(" \t\r\n", text[blank]) && text[blank])
        blank++;
    if (blank == len)
        return err_set(err, ERR_INVALID, "not valid JSON: there is no text");

    struct scan s;
    switch (scan(&s, text, len)) {
    case SCAN_DEEP: {
        char what[64];
        snprintf(what, sizeof what, "nested deeper than %d levels",
                 JSON_DEPTH_MAX);
        return place_error(text, s.pos, err, what);
    }
    case SCAN_NUL:
        return place_error(text, s.pos, err, "a NUL byte");
    case SCAN_DONE:
        break;
    }

    json_error_t e;
    json_t *value =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (value) {
        *ret = value;
        return 0;
    }

    char at[JSON_POINTER_MAX] = "", near[64], what[160];
    size_t pos =
        e.position > 0 && (size_t)e.position <= len ? (size_t)e.position : len;
    scan(&s, text, pos);
    scan_pointer(&s, at);
    near_what(e.text, near, sizeof near);
    switch (json_error_code(&e)) {
    case json_error_duplicate_key: {
        const struct level *l = s.depth ? &s.levels[s.depth - 1] : NULL;
        int n = l && l->key ? (int)(l->key_len < 96 ? l->key_len : 96) : 0;
        return err_at(err, ERR_INVALID, at,
                      "key \"%.*s\" is repeated (line %d, column %d)", n,
                      n ? l->key : "", e.line, e.column);
    }
    case json_error_numeric_overflow:
        return err_at(err, ERR_INVALID, at,
                      "a number is too large: line %d, column %d: %s", e.line,
                      e.column, near);
    case json_error_out_of_memory:
        return err_set(err, ERR_NOMEM, "no memory to parse %zu bytes of JSON",
                       len);
    default:
        /* a bracket that is out of place must not close what it stands in */
        if (pos && (text[pos - 1] == ']' || text[pos - 1] == '}')) {
            scan(&s, text, pos - 1);
            scan_pointer(&s, at);
        }
        in_plain_words(e.text, near, what, sizeof what);
        return err_at(err, ERR_INVALID, at,
                      "not valid JSON: line %d, column %d: %s", e.line,
                      e.column, what);
    }
}

void json_real_text(double v, char out[JSON_REAL_MAX])
{
    /* The fewest digits that read back the same, as d.ddde±xx. Fewer than
     * DBL_DIG will do exactly when that many end in zeros, which go below; only
     * of the tiniest numbers is that not true … */
    char raw[JSON_REAL_MAX];
    int least = fabs(v) >= DBL_MIN ? DBL_DIG : 1;
    for (int count = least; count <= 17; count++) {
        snprintf(raw, sizeof raw, "%.*e", count - 1, v);
        if (strtod(raw, NULL) == v)
            break;
    }
    /* … taken apart (the point may be a comma in some locale) … */
    char digits[24];
    int n = 0;
    const char *p = raw;
    if (*p == '-')
        p++;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    int exp = *p == 'e' ? atoi(p + 1) : 0;
    /* … and laid out as people write it. */
    const char *sign = signbit(v) ? "-" : "";
    if (exp < -5 || exp > 16)
        snprintf(out, JSON_REAL_MAX, "%s%c%s%.17se%d", sign, digits[0],
                 n > 1 ? "." : "", digits + 1, exp);
    else if (exp < 0)
        snprintf(out, JSON_REAL_MAX, "%s0.%.*s%.17s", sign, -exp - 1, "0000000",
                 digits);
    else if (exp >= n - 1)
        snprintf(out, JSON_REAL_MAX, "%s%.17s%.*s.0", sign, digits, exp - n + 1,
                 "00000000000000000");
    else
        snprintf(out, JSON_REAL_MAX, "%s%.*s.%.17s", sign, exp + 1, digits,
                 digits + exp + 1);
}

static int write_string(const char *s, size_t len, struct buf *out)
{
    int r = buf_add(out, "\"", 1);
    for (size_t i = 0; i < len && r == 0; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *named = strchr("\"\"\\\\\bb\ff\nn\rr\tt", c);
        if (c == '"' || c == '\\' || (c < 0x20 && c && named)) {
            char two[2] = {'\\', (char)c};
            if (c < 0x20)
                two[1] = named[1];
            r = buf_add(out, two, 2);
        } else if (c < 0x20) {
            r = buf_addf(out, "\\u%04x", c);
        } else {
            r = buf_add(out, s + i, 1);
        }
    }
    return r < 0 ? r : buf_add(out, "\"", 1);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int write_value(const json_t *value, bool sorted, struct buf *out);

static int write_object(const json_t *value, bool sorted, struct buf *out)
{
    size_t n = json_object_size(value), i = 0;
    AUTO_FREE const char **keys = calloc(n ? n : 1, sizeof *keys);
    if (!keys)
        return -1;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member) keys[i++] = key;
    if (sorted)
        qsort(keys, n, sizeof *keys, by_bytes);

    int r = buf_add(out, "{", 1);
    for (i = 0; i < n && r == 0; i++) {
        if (i)
            r = buf_add(out, ",", 1);
        if (r == 0)
            r = write_string(keys[i], strlen(keys[i]), out);
        if (r == 0)
            r = buf_add(out, ":", 1);
        if (r == 0)
            r = write_value(json_object_get(value, keys[i]), sorted, out);
    }
    return r < 0 ? r : buf_add(out, "}", 1);
}

static int write_value(const json_t *value, bool sorted, struct buf *out)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT:
        return write_object(value, sorted, out);
    case JSON_ARRAY: {
        int r = buf_add(out, "[", 1);
        for (size_t i = 0; i < json_array_size(value) && r == 0; i++) {
            if (i)
                r = buf_add(out, ",", 1);
            if (r == 0)
                r = write_value(json_array_get(value, i), sorted, out);
        }
        return r < 0 ? r : buf_add(out, "]", 1);
    }
    case JSON_STRING:
        return write_string(json_string_value(value), json_string_length(value),
                            out);
    case JSON_INTEGER:
        return buf_addf(out, "%" JSON_INTEGER_FORMAT,
                        json_integer_value(value));
    case JSON_REAL: {
        char text[JSON_REAL_MAX];
        json_real_text(json_real_value(value), text);
        return buf_adds(out, text);
    }
    case JSON_TRUE:
        return buf_adds(out, "true");
    case JSON_FALSE:
        return buf_adds(out, "false");
    case JSON_NULL:
        break;
    }
    return buf_adds(out, "null");
}

int json_canonical(const json_t *value, struct buf *out)
{
    return write_value(value, true, out);
}

int json_text(const json_t *value, struct buf *out)
{
    return write_value(value, false, out);
}

void json_pointer(char out[JSON_POINTER_MAX], const char *at, const char *name)
{
    size_t n = strnlen(at, JSON_POINTER_MAX - 4);
    memmove(out, at, n);
    out[n++] = '/';
    for (; *name && n < JSON_POINTER_MAX - 2; name++) {
        if (*name == '~' || *name == '/') {
            out[n++] = '~';
            out[n++] = *name == '~' ? '0' : '1';
        } else {
            out[n++] = *name;
        }
    }
    out[n] = 0;
}

void json_pointer_index(char out[JSON_POINTER_MAX], const char *at, size_t i)
{
    char step[24];
    snprintf(step, sizeof step, "%zu", i);
    json_pointer(out, at, step);
}

int json_read_labels(const json_t *in, const char *at, json_t **ret,
                     struct err *err)
{
    struct json_read r;
    const char *key;
    json_t *value;
    if (json_read_open_any(&r, in, at, err) < 0)
        return r.r;
    if (json_object_size(r.object) > JSON_LABELS_MAX)
        return json_read_fail(&r, "", "there are more than %d labels",
                              JSON_LABELS_MAX);
    json_object_foreach((json_t *)r.object, key, value)
    {
        if (!*key || strlen(key) > 64)
            return json_read_fail(&r, key, "a label's name has 1 to 64 bytes");
        if (!json_is_string(value) || json_string_length(value) > 256)
            return json_read_fail(
                &r, key, "a label's value is a string of at most 256 bytes");
    }
    *ret = r.object ? json_copy((json_t *)r.object) : json_object();
    return *ret ? 0 : err_set(err, ERR_NOMEM, "no memory for labels");
}

int json_read_fail(struct json_read *r, const char *name, const char *fmt, ...)
{
    if (r->r < 0)
        return r->r;
    char text[sizeof r->err->text], at[JSON_POINTER_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (*name)
        json_pointer(at, r->at, name);
    else
        snprintf(at, sizeof at, "%s", r->at);
    return r->r = err_at(r->err, ERR_INVALID, at, "%s", text);
}

/* How a sentence calls what it found. */
static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

int json_read_open_any(struct json_read *r, const json_t *value, const char *at,
                       struct err *err)
{
    *r = (struct json_read){.at = at, .err = err};
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_object(value))
        return json_read_fail(r, "", "%s must be an object, not %s",
                              *at ? strrchr(at, '/') + 1 : "this",
                              kind_of(value));
    r->object = value;
    return 0;
}

int json_read_open(struct json_read *r, const json_t *value, const char *at,
                   struct err *err, ...)
{
    if (json_read_open_any(r, value, at, err) < 0)
        return r->r;

    const char *key;
    json_t *member;
    json_object_foreach((json_t *)r->object, key, member)
    {
        char known[400] = "";
        size_t n = 0;
        bool found = false;
        va_list ap;
        va_start(ap, err);
        for (const char *name; !found && (name = va_arg(ap, const char *));) {
            found = !strcmp(key, name);
            if (n + strlen(name) + 3 < sizeof known)
                n += (size_t)snprintf(known + n, sizeof known - n, "%s%s",
                                      n ? ", " : "", name);
        }
        va_end(ap);
        if (!found) {
            json_read_fail(r, key, "unknown field \"%.64s\" (known here: %s)",
                           key, known);
            r->object = NULL;
            break;
        }
    }
    return r->r;
}

const json_t *json_read_get(struct json_read *r, const char *name)
{
    const json_t *v = r->object ? json_object_get(r->object, name) : NULL;
    return v && json_is_null(v) ? NULL : v;
}

void json_read_need(struct json_read *r, const char *name)
{
    if (!json_read_get(r, name))
        json_read_fail(r, name, "%s is missing", name);
}

int64_t json_read_int(struct json_read *r, const char *name, int64_t min,
                      int64_t max, int64_t fallback)
{
    const json_t *v = json_read_get(r, name);
    if (!v)
        return fallback;
    if (!json_is_integer(v)) {
        json_read_fail(r, name, "%s must be an integer, not %s", name,
                       kind_of(v));
        return fallback;
    }
    int64_t i = json_integer_value(v);
    if (i < min || i > max) {
        json_read_fail(r, name, "%s is %lld, must be between %lld and %lld",
                       name, (long long)i, (long long)min, (long long)max);
        return fallback;
    }
    return i;
}

double json_read_real(struct json_read *r, const char *name, double min,
                      double max, double fallback)
{
    const json_t *v = json_read_get(r, name);
    if (!v)
        return fallback;
    if (!json_is_number(v)) {
        json_read_fail(r, name, "%s must be a number, not %s", name,
                       kind_of(v));
        return fallback;
    }
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) {
        json_read_fail(r, name, "%s is %g, must be between %g and %g", name, d,
                       min, max);
        return fallback;
    }
    return d + 0.0; /* no -0: it would be another signature */
}

bool json_read_bool(struct json_read *r, const char *name, bool fallback)
{
    const json_t *v = json_read_get(r, name);
    if (!v)
        return fallback;
    if (!json_is_boolean(v)) {
        json_read_fail(r, name, "%s must be true or false, not %s", name,
                       kind_of(v));
        return fallback;
    }
    return json_is_true(v);
}

const char *json_read_string(struct json_read *r, const char *name, size_t max,
                             const char *fallback)
{
    const json_t *v = json_read_get(r, name);
    if (!v)
        return fallback;
    if (!json_is_string(v)) {
        json_read_fail(r, name, "%s must be a string, not %s", name,
                       kind_of(v));
        return fallback;
    }
    size_t len = json_string_length(v);
    if (len < 1 || len > max) {
        json_read_fail(r, name, "%s has %zu bytes, must have 1 to %zu", name,
                       len, max);
        return fallback;
    }
    return json_string_value(v);
}

int json_read_word(struct json_read *r, const char *name,
                   const char *const *words, int fallback)
{
    const json_t *v = json_read_get(r, name);
    if (!v)
        return fallback;
    char list[300] = "";
    size_t n = 0;
    for (int i = 0; words[i]; i++) {
        if (json_is_string(v) && !strcmp(words[i], json_string_value(v)))
            return i;
        if (n + strlen(words[i]) + 5 < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s",
                                  i == 0         ? ""
                                  : words[i + 1] ? ", "
                                                 : " or ",
                                  words[i]);
    }
    if (json_is_string(v))
        json_read_fail(r, name, "%s is \"%.64s\", must be %s", name,
                       json_string_value(v), list);
    else
        json_read_fail(r, name, "%s must be %s, not %s", name, list,
                       kind_of(v));
    return fallback;
}

const json_t *json_read_object(struct json_read *r, const char *name)
{
    const json_t *v = json_read_get(r, name);
    if (v && !json_is_object(v)) {
        json_read_fail(r, name, "%s must be an object, not %s", name,
                       kind_of(v));
        return NULL;
    }
    return v;
}

const json_t *json_read_array(struct json_read *r, const char *name, size_t max)
{
    const json_t *v = json_read_get(r, name);
    if (v && !json_is_array(v)) {
        json_read_fail(r, name, "%s must be an array, not %s", name,
                       kind_of(v));
        return NULL;
    }
    if (v && json_array_size(v) > max) {
        json_read_fail(r, name, "%s has %zu entries, at most %zu are allowed",
                       name, json_array_size(v), max);
        return NULL;
    }
    return v;
}
