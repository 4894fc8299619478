// record.cpp - records by way of simdjson's first stage.
//
// simdjson finds where every token of the line begins and checks UTF-8, quotes
// and control characters, all at memory speed. What is left is walking those
// positions against the record description: the grammar, the numbers and every
// bound are checked here, once, where a sentence about them can be made.
// Nothing is allocated once the buffers have seen the longest line.
#include "schema/record.h"
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <simdjson.h>
#include "schema/json_read.h"

namespace
{
// Zeros behind the line: a name may be compared, and a number read, beyond it.
constexpr size_t padding = 128;
constexpr size_t line_max = size_t(1) << 30;

struct Key {
    const char *name;
    size_t len;
};

bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool ends_token(char c)
{
    return c == ',' || c == ']' || c == '}' || is_space(c) || c == 0;
}

const double powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// A JSON number. Returns its end, or NULL when it is none.
const char *scan_number(const char *s, double *ret, bool *ret_integer)
{
    const char *p = s;
    bool negative = *p == '-', integer = true;
    p += negative;
    uint64_t mantissa = 0;
    int digits = 0, exp = 0; // significant digits taken into the mantissa
    if (*p == '0') {
        p++;
    } else if (*p >= '1' && *p <= '9') {
        for (; *p >= '0' && *p <= '9'; p++, digits++)
            if (digits < 18)
                mantissa = mantissa * 10 + uint64_t(*p - '0');
    } else {
        return nullptr;
    }
    if (*p == '.') {
        const char *first = ++p;
        for (; *p >= '0' && *p <= '9'; p++) {
            if (digits < 18) {
                mantissa = mantissa * 10 + uint64_t(*p - '0');
                exp--;
            }
            digits += mantissa > 0;
        }
        if (p == first)
            return nullptr;
        integer = false;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        bool minus = *p == '-';
        p += *p == '-' || *p == '+';
        const char *first = p;
        int e = 0;
        for (; *p >= '0' && *p <= '9'; p++)
            if (e < 100000)
                e = e * 10 + (*p - '0');
        if (p == first)
            return nullptr;
        exp += minus ? -e : e;
        integer = false;
    }
    if (!ends_token(*p))
        return nullptr;
    *ret_integer = integer;

    // Exact when both factors are (Clinger); else let the library round.
    if (digits <= 18 && mantissa <= (uint64_t(1) << 53) && exp >= -22 &&
        exp <= 22) {
        double v = double(mantissa);
        v = exp < 0 ? v / powers_of_ten[-exp] : v * powers_of_ten[exp];
        *ret = negative ? -v : v;
    } else {
        *ret = strtod(s, nullptr);
    }
    return p;
}

// One to seven digits that are all of the `len` bytes at s, without a branch
// per digit: lengths vary from entry to entry, and mispredictions are what
// reading small numbers costs. False: look closer.
inline __attribute__((always_inline)) bool
few_digits(const char *s, uint32_t len, uint32_t *ret)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (len - 1 > 6)
        return false;
    uint64_t v;
    memcpy(&v, s, sizeof v);
    v = v << (64 - 8 * len) | 0x3030303030303030 >> (8 * len);
    uint64_t odd =
        ((v & 0xf0f0f0f0f0f0f0f0) ^ 0x3030303030303030) |
        (((v + 0x0606060606060606) & 0xf0f0f0f0f0f0f0f0) ^ 0x3030303030303030);
    v = (v & 0x0f0f0f0f0f0f0f0f) * 2561 >> 8;
    v = (v & 0x00ff00ff00ff00ff) * 6553601 >> 16;
    *ret = uint32_t((v & 0x0000ffff0000ffff) * 42949672960001 >> 32);
    return !odd;
#else
    (void)s, (void)len, (void)ret;
    return false;
#endif
}

// The same for a whole number as JSON has it: no zero in front.
inline bool small_index(const char *s, uint32_t len, uint32_t *ret)
{
    return few_digits(s, len, ret) && ((*s != '0') | (len == 1));
}

// Below this, a number has at most two digits.
constexpr int tiny_end = 100;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr bool has_tiny = true;
#else
constexpr bool has_tiny = false;
#endif

typedef int32_t Four __attribute__((vector_size(16)));

// Numbers of one or two digits, four at a time and without a branch: what is
// odd about them is gathered, to be looked at once.
struct Tiny {
    Four odd = {}, negative = {};

    bool fine() const
    {
        Four bad = odd | negative >> 31;
        uint64_t v[2];
        memcpy(v, &bad, sizeof v);
        return !(v[0] | v[1]);
    }

    // Four numbers at line + t[0], t[2], …, each at most `last`, that end at
    // t[1], t[3], … with what `after` says.
    inline __attribute__((always_inline)) Four
    read(const char *line, const uint32_t *t, Four last, Four after)
    {
        auto at = [&](uint32_t i) {
            int32_t v;
            memcpy(&v, line + t[i], sizeof v);
            return v;
        };
        Four low, high;
        memcpy(&low, t, sizeof low);
        memcpy(&high, t + 4, sizeof high);
        Four begin = __builtin_shufflevector(low, high, 0, 2, 4, 6);
        Four end = __builtin_shufflevector(low, high, 1, 3, 5, 7);
        Four text = {at(0), at(2), at(4), at(6)};
        Four two = end - begin - 1; // 0 or 1, or odd
        Four mask = -two;
        Four second = text >> 8 & 0xff, third = text >> 16 & 0xff;
        Four a = (text & 0xff) - '0', b = second - '0';
        Four x = a + (((a << 3) + a + b) & mask);
        odd |= (two & ~1) | (second ^ ((second ^ third) & mask) ^ after);
        negative |= (a - two) | (9 - a) | ((b | (9 - b)) & mask) | (last - x);
        return x;
    }
};

// 0 or 0.d with up to seven digits: what probabilities look like.
inline bool small_fraction(const char *s, uint32_t len, double *ret)
{
    uint32_t v;
    if (*s != '0')
        return false;
    if (len == 1) {
        *ret = 0;
        return true;
    }
    if (s[1] != '.' || !few_digits(s + 2, len - 2, &v))
        return false;
    *ret = double(v) / powers_of_ten[len - 2];
    return true;
}

// Where UTF-8 goes wrong; len when it does not.
size_t bad_utf8(const unsigned char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        unsigned char c = s[i];
        size_t more = c < 0x80                ? 0
                      : c >= 0xc2 && c < 0xe0 ? 1
                      : c >= 0xe0 && c < 0xf0 ? 2
                      : c >= 0xf0 && c < 0xf5 ? 3
                                              : 9;
        if (more == 9 || len - i <= more)
            return i;
        for (size_t k = 1; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80)
                return i;
        if ((c == 0xe0 && s[i + 1] < 0xa0) || (c == 0xed && s[i + 1] > 0x9f) ||
            (c == 0xf0 && s[i + 1] < 0x90) || (c == 0xf4 && s[i + 1] > 0x8f))
            return i;
        i += more + 1;
    }
    return len;
}

int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

size_t put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = char(c);
        return 1;
    }
    if (c < 0x800) {
        out[0] = char(0xc0 | c >> 6);
        out[1] = char(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = char(0xe0 | c >> 12);
        out[1] = char(0x80 | (c >> 6 & 63));
        out[2] = char(0x80 | (c & 63));
        return 3;
    }
    out[0] = char(0xf0 | c >> 18);
    out[1] = char(0x80 | (c >> 12 & 63));
    out[2] = char(0x80 | (c >> 6 & 63));
    out[3] = char(0x80 | (c & 63));
    return 4;
}

// Where in the record the walk is: for sentences.
struct Place {
    const char *field;
    int i = -1, j = -1;
};
} // namespace

struct record_decoder {
    const struct record_desc *desc;
    double tolerance;
    bool inputs_only;
    std::unique_ptr<simdjson::internal::dom_parser_implementation> parser;
    char *line;     // cap + padding bytes
    char *keys;     // cap bytes: keys with escapes, unescaped
    double *scaled; // cap / 2 + 2: a policy before it is renormalised
    size_t cap;
    struct record record;
    size_t *name_len; // per field
    bool *seen;       // per field
    bool *tiny;       // per field: all of its indices are below tiny_end
    int *expected;    // fields in the order of the line before
    Key *ignored;     // keys that the description does not have
    size_t n_ignored, ignored_cap;

    // This line.
    size_t len, n_tokens, at;
    size_t keys_used;
    struct err *err;

    const uint32_t *tokens() const
    {
        return parser->structural_indexes.get();
    }
    const char *peek() const
    {
        return line + (at < n_tokens ? tokens()[at] : len);
    }
    const char *next()
    {
        const char *s = peek();
        at++;
        return s;
    }

    int fail(const char *field, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)))
    {
        char text[400];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err_set(err, ERR_DATA, "%s", text);
        if (err)
            snprintf(err->field, sizeof err->field, "%s", field);
        return ERR_DATA;
    }
    int grammar(const char *s, const char *wanted, const char *field = "");
    int wrong(const Place &place, const char *s, const char *wanted);

    int reserve(size_t n);
    int decode(const char *text, size_t n);
    int stage1();
    int read_key(int *ret_field);
    int read_value(int f);
    int read_index(const Place &place, int vocab, int32_t *ret);
    int read_number(const Place &place, double *ret);
    int next_entry(const char *field, bool *ret_more);
    int open_list(const char *field, bool *ret_more);
    int read_tokens(int f);
    bool fast_row(const struct field *f, int32_t *ints);
    template <int N> int tiny_rows(const struct field *f, int32_t *ints);
    int tiny_tokens(const struct field *f, int32_t *ints);
    int fast_rows(const struct field *f, int32_t *ints);
    int read_rows(int f);
    int read_numbers(int f);
    int read_policy(int f);
    int skip(int depth);
    int read_string(const char *s, Key *ret);
    int check_ignored();
    int check_lengths();
};

// The grammar was broken at s, where `wanted` should have stood.
int record_decoder::grammar(const char *s, const char *wanted,
                            const char *field)
{
    if (s >= line + len)
        return fail(field,
                    "the line ends within the record, where %s should "
                    "stand (truncated?)",
                    wanted);
    return fail(field,
                "not valid JSON at byte %zu of the line: %s should stand "
                "here, not \"%.1s\"",
                size_t(s - line), wanted, (unsigned char)*s < 0x80 ? s : "?");
}

// A value that does not fit: say what it is.
int record_decoder::wrong(const Place &place, const char *s, const char *wanted)
{
    char name[160], text[48];
    size_t n = size_t(snprintf(name, sizeof name, "%s", place.field));
    if (place.i >= 0)
        n += size_t(snprintf(name + n, sizeof name - n, "[%d]", place.i));
    if (place.j >= 0)
        snprintf(name + n, sizeof name - n, "[%d]", place.j);

    double v;
    bool integer;
    size_t shown = 0;
    while (shown < sizeof text - 4 && s < line + len && !ends_token(s[shown]))
        shown++;
    snprintf(text, sizeof text, "%.*s%s", int(shown), s,
             ends_token(s[shown]) ? "" : "...");
    if (s >= line + len || *s == ',' || *s == ':' || *s == '}' || *s == ']')
        return grammar(s, wanted, place.field);
    if (*s == '"' || *s == '[' || *s == '{')
        return fail(place.field, "%s is %s, must be %s", name,
                    *s == '"'   ? "a string"
                    : *s == '[' ? "a list"
                                : "an object",
                    wanted);
    if (!strcmp(text, "null") || !strcmp(text, "true") ||
        !strcmp(text, "false"))
        return fail(place.field, "%s is %s, must be %s", name, text, wanted);
    if (scan_number(s, &v, &integer)) {
        if (!std::isfinite(v))
            return fail(place.field, "%s is %s, too large for a number", name,
                        text);
        return fail(place.field, "%s is %s, must be %s", name, text, wanted);
    }
    return fail(place.field,
                "%s is %s, which is not a JSON value; it must be "
                "%s",
                name, text, wanted);
}

int record_decoder::reserve(size_t n)
{
    if (n <= cap && line)
        return 0;
    size_t want = n < 4096 ? 4096 : n + n / 2;
    size_t entries = want / 2 + 2;
    // A buffer that grew while a later one could not is merely too large.
    cap = 0;
    auto grow = [](auto *&p, size_t count) {
        auto *q = static_cast<std::remove_reference_t<decltype(p)>>(
            realloc(p, count * sizeof *p));
        if (q)
            p = q;
        return q != nullptr;
    };
    bool ok =
        grow(line, want + padding) && grow(keys, want) && grow(scaled, entries);
    for (int i = 0; i < desc->n_fields && ok; i++) {
        const struct field *f = &desc->fields[i];
        struct field_values *v = &record.fields[i];
        if (f->kind == FIELD_TOKENS || f->n_ints)
            ok = grow(v->ints, entries);
        if (ok &&
            (f->kind == FIELD_NUMBERS || f->kind == FIELD_TARGET || f->n_nums))
            ok = grow(v->nums, entries);
    }
    if (ok)
        ok = (parser
                  ? parser->set_capacity(want)
                  : simdjson::get_active_implementation()
                        ->create_dom_parser_implementation(
                            want, JSON_DEPTH_MAX, parser)) == simdjson::SUCCESS;
    if (!ok)
        return err_set(err, ERR_NOMEM, "no memory for a record of %zu bytes",
                       n);
    cap = want;
    return 0;
}

int record_decoder::stage1()
{
    auto e = parser->stage1(reinterpret_cast<const uint8_t *>(line), len,
                            simdjson::stage1_mode::regular);
    n_tokens = parser->n_structural_indexes;
    at = 0;
    if (e == simdjson::SUCCESS) {
        // Whoever looks two tokens ahead finds the NUL behind the line.
        parser->structural_indexes[n_tokens] = uint32_t(len);
        parser->structural_indexes[n_tokens + 1] = uint32_t(len);
        return 0;
    }

    const auto *bytes = reinterpret_cast<const unsigned char *>(line);
    size_t bad = bad_utf8(bytes, len);
    if (bad < len)
        return fail("", "the line is not valid UTF-8 (byte 0x%02x at byte %zu)",
                    bytes[bad], bad);
    switch (e) {
    case simdjson::UNCLOSED_STRING:
        return fail("", "the line ends within a string (truncated?)");
    case simdjson::UNESCAPED_CHARS:
        return fail("", "a string holds a control character that is not "
                        "escaped");
    case simdjson::EMPTY:
        return fail("", "the line is blank");
    default:
        return fail("", "the line cannot be read: %s",
                    simdjson::error_message(e));
    }
}

// A string that begins at s, checked and, where it has escapes, unescaped.
int record_decoder::read_string(const char *s, Key *ret)
{
    const char *p = ++s;
    while (*p != '"' && *p != '\\')
        p++;
    if (*p == '"') {
        *ret = {s, size_t(p - s)};
        return 0;
    }
    char *start = keys + keys_used, *out = start;
    memcpy(out, s, size_t(p - s));
    out += p - s;
    while (*p != '"') {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char *named = p[1] ? strchr(from, p[1]) : nullptr;
        if (named) {
            *out++ = to[named - from];
            p += 2;
            continue;
        }
        int c = p[1] == 'u' ? hex4(p + 2) : -1;
        if (c < 0)
            return fail("",
                        "not valid JSON at byte %zu of the line: an "
                        "unknown escape in a string",
                        size_t(p - line));
        unsigned code = unsigned(c);
        size_t used = 6;
        if (code >= 0xd800 && code < 0xe000) {
            int low =
                code < 0xdc00 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
            if (low < 0xdc00 || low > 0xdfff)
                return fail("",
                            "a string holds half a surrogate pair at byte "
                            "%zu of the line",
                            size_t(p - line));
            code = 0x10000 + ((code - 0xd800) << 10) + (unsigned(low) - 0xdc00);
            used = 12;
        }
        out += put_utf8(out, code);
        p += used;
    }
    keys_used = size_t(out - keys);
    *ret = {start, size_t(out - start)};
    return 0;
}

// *ret_field: the field it names, or -1.
int record_decoder::read_key(int *ret_field)
{
    const char *s = next();
    if (*s != '"')
        return grammar(s, "a field's name");

    Key key = {nullptr, 0};
    int r = read_string(s, &key);
    if (r < 0)
        return r;
    const char *colon = next();
    if (*colon != ':')
        return grammar(colon, "':'");
    for (int i = 0; i < desc->n_fields; i++) {
        if (key.len != name_len[i] ||
            memcmp(key.name, desc->fields[i].name, key.len))
            continue;
        if (seen[i])
            return fail(desc->fields[i].name, "key \"%s\" is repeated",
                        desc->fields[i].name);
        seen[i] = true;
        *ret_field = i;
        return 0;
    }
    if (n_ignored == ignored_cap) {
        size_t more = ignored_cap ? ignored_cap * 2 : 16;
        Key *grown = static_cast<Key *>(realloc(ignored, more * sizeof *grown));
        if (!grown)
            return err_set(err, ERR_NOMEM, "no memory for a record's keys");
        ignored = grown;
        ignored_cap = more;
    }
    ignored[n_ignored++] = key;
    *ret_field = -1;
    return 0;
}

int record_decoder::read_index(const Place &place, int vocab, int32_t *ret)
{
    const char *s = next();
    unsigned v = 0;
    int k = 0;
    for (; k < 9 && s[k] >= '0' && s[k] <= '9'; k++)
        v = v * 10 + unsigned(s[k] - '0');
    if (k && ends_token(s[k]) && (k == 1 || *s != '0') && v < unsigned(vocab)) {
        *ret = int32_t(v);
        return 0;
    }

    double d = 0;
    bool integer = false;
    char sub[64] = "";
    if (place.j >= 0)
        snprintf(sub, sizeof sub, "[%d][%d]", place.i, place.j);
    else
        snprintf(sub, sizeof sub, "[%d]", place.i);
    if (!scan_number(s, &d, &integer) || !integer)
        return wrong(place, s, "an index (a whole number)");
    if (d == 0) { // -0
        *ret = 0;
        return 0;
    }
    if (d < 0)
        return fail(place.field, "%s%s is negative (%.17g)", place.field, sub,
                    d);
    return fail(place.field, "%s%s is %.17g, vocab is %d", place.field, sub, d,
                vocab);
}

int record_decoder::read_number(const Place &place, double *ret)
{
    const char *s = next();
    double v;
    bool integer;
    if (!scan_number(s, &v, &integer))
        return wrong(place, s, "a number");
    if (!std::isfinite(float(v)))
        return wrong(place, s, "a number that a 32-bit float can hold");
    *ret = v;
    return 0;
}

// After an entry: is there another?
inline int record_decoder::next_entry(const char *field, bool *ret_more)
{
    const char *s = next();
    if (*s == ',')
        *ret_more = true;
    else if (*s == ']')
        *ret_more = false;
    else
        return grammar(s, "',' or ']'", field);
    return 0;
}

inline int record_decoder::open_list(const char *field, bool *ret_more)
{
    at++; // the [
    *ret_more = *peek() != ']';
    at += !*ret_more;
    return 0;
}

int record_decoder::read_tokens(int i)
{
    const struct field *f = &desc->fields[i];
    struct field_values *v = &record.fields[i];
    int32_t *ints = v->ints;
    const uint32_t vocab = uint32_t(f->vocab);
    bool more;
    int n = 0, r = 0;
    for (r = open_list(f->name, &more); r == 0 && more; n++) {
        const uint32_t *t = tokens() + at;
        uint32_t x;
        if (tiny[i] && n == 0)
            t += 2 * (n = tiny_tokens(f, ints));
        while (small_index(line + t[0], t[1] - t[0], &x) && x < vocab &&
               line[t[1]] == ',') {
            ints[n++] = int32_t(x);
            t += 2;
        }
        at = size_t(t - tokens());
        r = read_index({f->name, n}, f->vocab, &ints[n]);
        if (r == 0)
            r = next_entry(f->name, &more);
    }
    v->rows = n;
    return r;
}

// Tiny indices, as long as nothing is odd and others follow: how many.
int record_decoder::tiny_tokens(const struct field *f, int32_t *ints)
{
    const uint32_t *t = tokens() + at;
    const Four last = Four{} + (f->vocab - 1), comma = Four{} + ',';
    size_t n = 0;
    for (; at + 2 * n + 8 <= n_tokens; n += 4) {
        Tiny four;
        Four x = four.read(line, t + 2 * n, last, comma);
        if (!four.fine())
            break;
        memcpy(ints + n, &x, sizeof x);
    }
    return int(n);
}

// Rows of N tiny indices (0: as many as the field has columns, more than
// four), as long as nothing is odd and others follow: how many.
template <int N>
int record_decoder::tiny_rows(const struct field *f, int32_t *ints)
{
    const int columns = N ? N : f->n_columns;
    const size_t width = 2 * size_t(columns) + 2; // tokens of [1,2],
    const uint32_t *t = tokens() + at;
    auto limits = [&](int c, Four *last, Four *after) {
        for (int k = 0; k < 4; k++) {
            bool is_column = c + k < columns;
            (*last)[k] = is_column ? f->columns[c + k].vocab - 1 : tiny_end;
            (*after)[k] = c + k + 1 < columns ? ',' : ']';
        }
    };
    Four last, after;
    limits(0, &last, &after);
    int rows = 0;
    // Fewer columns than four are read again, as if they were the others.
    for (; at + width + 8 <= n_tokens; at += width, t += width, rows++) {
        Tiny four;
        if (N == 4) {
            Four x = four.read(line, t + 1, last, after);
            memcpy(ints, &x, sizeof x);
        } else if (N) {
            uint32_t v[8];
            for (int k = 0; k < 4; k++)
                memcpy(v + 2 * k, t + 1 + 2 * (k < N ? k : N - 1), 8);
            Four x = four.read(line, v, last, after);
            for (int k = 0; k < N; k++)
                ints[k] = x[k];
        } else {
            for (int c = 0; c < columns; c += 4) {
                int from = c + 4 <= columns ? c : columns - 4;
                limits(from, &last, &after);
                Four x = four.read(line, t + 1 + 2 * from, last, after);
                memcpy(ints + from, &x, sizeof x);
            }
        }
        if (!four.fine() || line[t[0]] != '[' || line[t[width - 1]] != ',')
            break;
        ints += columns;
    }
    return rows;
}

int record_decoder::fast_rows(const struct field *f, int32_t *ints)
{
    switch (f->n_columns) {
    case 1:
        return tiny_rows<1>(f, ints);
    case 2:
        return tiny_rows<2>(f, ints);
    case 3:
        return tiny_rows<3>(f, ints);
    case 4:
        return tiny_rows<4>(f, ints);
    default:
        return tiny_rows<0>(f, ints);
    }
}

// The common row: all columns are indices, none is odd. False: nothing has
// been read.
bool record_decoder::fast_row(const struct field *f, int32_t *ints)
{
    const uint32_t *t = tokens() + at;
    if (f->n_nums || line[*t++] != '[')
        return false;
    for (int c = 0; c < f->n_columns; c++, t += 2) {
        uint32_t x;
        if (!small_index(line + t[0], t[1] - t[0], &x) ||
            x >= uint32_t(f->columns[c].vocab) ||
            line[t[1]] != (c + 1 < f->n_columns ? ',' : ']'))
            return false;
        ints[c] = int32_t(x);
    }
    at = size_t(t - tokens());
    return true;
}

int record_decoder::read_rows(int i)
{
    const struct field *f = &desc->fields[i];
    struct field_values *v = &record.fields[i];
    int32_t *ints = v->ints;
    float *nums = v->nums;
    bool more;
    int n = 0, r = 0;
    for (r = open_list(f->name, &more); r == 0 && more; n++) {
        if (tiny[i]) {
            int rows = fast_rows(f, ints);
            ints += rows * f->n_ints;
            n += rows;
        }
        if (fast_row(f, ints)) {
            ints += f->n_ints;
            r = next_entry(f->name, &more);
            continue;
        }
        if (*peek() != '[')
            return wrong({f->name, n}, peek(), "a row (a list)");
        bool more_columns;
        int c = 0;
        for (r = open_list(f->name, &more_columns); r == 0 && more_columns;
             c++) {
            if (c == f->n_columns) { // count on, for the sentence
                for (c = f->n_columns; r == 0 && more_columns; c++) {
                    r = skip(3);
                    if (r == 0)
                        r = next_entry(f->name, &more_columns);
                }
                break;
            }
            const struct column *col = &f->columns[c];
            Place place = {f->name, n, c};
            if (col->vocab) {
                r = read_index(place, col->vocab, ints++);
            } else {
                double x = 0;
                r = read_number(place, &x);
                x /= col->scale;
                if (r == 0 && !std::isfinite(float(x)))
                    r = fail(f->name,
                             "%s[%d][%d] divided by its scale is %g, "
                             "too large for a 32-bit float",
                             f->name, n, c, x);
                *nums++ = float(x);
            }
            if (r == 0)
                r = next_entry(f->name, &more_columns);
        }
        if (r < 0)
            return r;
        if (c != f->n_columns)
            return fail(f->name, "%s[%d] has %d columns, must have %d", f->name,
                        n, c, f->n_columns);
        r = next_entry(f->name, &more);
    }
    v->rows = n;
    return r;
}

int record_decoder::read_numbers(int i)
{
    const struct field *f = &desc->fields[i];
    struct field_values *v = &record.fields[i];
    bool more;
    int n = 0, r = 0;
    for (r = open_list(f->name, &more); r == 0 && more; n++) {
        double x = 0;
        r = read_number({f->name, n}, &x);
        v->nums[n] = float(x);
        if (r == 0)
            r = next_entry(f->name, &more);
    }
    v->rows = n;
    if (r == 0 && f->dim < 0 && n != f->size)
        return fail(f->name, "%s has %d numbers, must have %d", f->name, n,
                    f->size);
    return r;
}

int record_decoder::read_policy(int i)
{
    const struct field *f = &desc->fields[i];
    struct field_values *v = &record.fields[i];
    bool more;
    int n = 0, r = 0;
    double sum = 0;
    for (r = open_list(f->name, &more); r == 0 && more; n++) {
        const uint32_t *t = tokens() + at;
        double x = 0;
        while (small_fraction(line + t[0], t[1] - t[0], &x) &&
               line[t[1]] == ',') {
            scaled[n++] = x;
            sum += x;
            t += 2;
        }
        at = size_t(t - tokens());
        r = read_number({f->name, n}, &x);
        if (r == 0 && x < 0)
            r = fail(f->name, "%s[%d] is negative (%g)", f->name, n, x);
        scaled[n] = x;
        sum += x;
        if (r == 0)
            r = next_entry(f->name, &more);
    }
    if (r < 0)
        return r;
    v->rows = n;
    // The tolerance is a decimal fraction, sums are not: 0.99 is within 0.01.
    if (n > 0 && !(sum > 0 && std::fabs(sum - 1) <= tolerance + 1e-9))
        return fail(f->name, "%s sums to %.9g, must be 1 within %g", f->name,
                    sum, tolerance);
    if (i == desc->policy)
        record.policy_sum = sum;
    for (int k = 0; k < n; k++)
        v->nums[k] = float(scaled[k] / sum);
    return 0;
}

int record_decoder::read_value(int i)
{
    const struct field *f = &desc->fields[i];
    if (f->kind == FIELD_TARGET && f->over < 0) {
        double x = 0;
        int r = read_number({f->name}, &x);
        if (r < 0)
            return r;
        if (x < -1 || x > 1)
            return fail(f->name, "%s is %g, must be between -1 and 1", f->name,
                        x);
        record.fields[i].nums[0] = float(x);
        record.fields[i].rows = 1;
        return 0;
    }
    if (*peek() != '[')
        return wrong({f->name}, peek(),
                     f->kind == FIELD_ROWS ? "a list of rows" : "a list");
    switch (f->kind) {
    case FIELD_TOKENS:
        return read_tokens(i);
    case FIELD_ROWS:
        return read_rows(i);
    case FIELD_NUMBERS:
        return read_numbers(i);
    case FIELD_TARGET:
        break;
    }
    return read_policy(i);
}

// A value that nobody reads must be JSON all the same. `depth` brackets are
// open around it.
int record_decoder::skip(int depth)
{
    const char *s = next();
    size_t left = size_t(line + len - s);
    double v;
    bool integer, more;
    Key key;
    int r = 0;
    switch (*s) {
    case '"':
        return read_string(s, &key);
    case '[':
        if (depth >= JSON_DEPTH_MAX)
            break;
        more = *peek() != ']';
        at += !more;
        while (r == 0 && more) {
            r = skip(depth + 1);
            if (r == 0)
                r = next_entry("", &more);
        }
        return r;
    case '{':
        if (depth >= JSON_DEPTH_MAX)
            break;
        more = *peek() != '}';
        at += !more;
        while (r == 0 && more) {
            s = next();
            if (*s != '"')
                return grammar(s, "a key");
            r = read_string(s, &key);
            if (r < 0)
                return r;
            s = next();
            if (*s != ':')
                return grammar(s, "':'");
            r = skip(depth + 1);
            if (r < 0)
                return r;
            s = next();
            if (*s != ',' && *s != '}')
                return grammar(s, "',' or '}'");
            more = *s == ',';
        }
        return r;
    case 't':
    case 'f':
    case 'n': {
        const char *word = *s == 't' ? "true" : *s == 'f' ? "false" : "null";
        size_t n = strlen(word);
        if (left < n || memcmp(s, word, n) || !ends_token(s[n]))
            return grammar(s, "a value");
        return 0;
    }
    default:
        if (!scan_number(s, &v, &integer))
            return grammar(s, "a value");
        if (!std::isfinite(v))
            return fail("", "a number at byte %zu of the line is too large",
                        size_t(s - line));
        return 0;
    }
    return fail("", "the record is nested deeper than %d levels",
                JSON_DEPTH_MAX);
}

int by_key(const void *a, const void *b)
{
    const Key *x = static_cast<const Key *>(a);
    const Key *y = static_cast<const Key *>(b);
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->len ? memcmp(x->name, y->name, x->len) : 0;
}

int record_decoder::check_ignored()
{
    if (n_ignored > 2)
        qsort(ignored, n_ignored, sizeof *ignored, by_key);
    for (size_t i = 1; i < n_ignored; i++)
        if (!by_key(&ignored[i - 1], &ignored[i]))
            return fail("", "key \"%.*s\" is repeated",
                        int(ignored[i].len < 64 ? ignored[i].len : 64),
                        ignored[i].name);
    return 0;
}

int record_decoder::check_lengths()
{
    for (int i = 0; i < desc->n_dims; i++)
        record.lengths[i] = -1;
    for (int i = 0; i < desc->n_fields; i++) {
        const struct field *f = &desc->fields[i];
        int rows = record.fields[i].rows;
        if (f->kind == FIELD_TARGET && f->over >= 0) {
            const char *over = desc->fields[f->over].name;
            int of = record.fields[f->over].rows;
            if (of == 0)
                return fail(over, "%s has no rows, %s needs at least one", over,
                            f->name);
            if (rows != of)
                return fail(f->name, "%s has %d entries, %s has %d rows",
                            f->name, rows, over, of);
            continue;
        }
        if (f->dim < 0)
            continue;
        if (f->kind != FIELD_ROWS && desc->max_length &&
            rows > desc->max_length)
            return fail(f->name,
                        "%s has %d entries, the model's max_length "
                        "is %d",
                        f->name, rows, desc->max_length);
        int *length = &record.lengths[f->dim];
        if (*length < 0)
            *length = rows;
        if (*length != rows)
            return fail(f->name,
                        "%s has %d entries, but other fields along "
                        "dimension %s have %d",
                        f->name, rows, desc->dims[f->dim], *length);
    }
    return 0;
}

int record_decoder::decode(const char *text, size_t n)
{
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        return fail("", "the line begins with a UTF-8 byte-order mark, which "
                        "may stand at the start of a shard only");
    if (n >= 2 &&
        (!memcmp(text, "\xff\xfe", 2) || !memcmp(text, "\xfe\xff", 2)))
        return fail("", "the line begins with a UTF-16 byte-order mark; "
                        "records are UTF-8");
    const void *nul = memchr(text, 0, n);
    if (nul)
        return fail("", "the line holds a NUL byte at byte %zu",
                    size_t(static_cast<const char *>(nul) - text));
    if (n > line_max)
        return fail("", "the line has %zu bytes, more than a record may have",
                    n);
    int r = reserve(n);
    if (r < 0)
        return r;
    memcpy(line, text, n);
    memset(line + n, 0, padding);
    len = n;
    keys_used = n_ignored = 0;
    record.policy_sum = 0;
    memset(seen, 0, size_t(desc->n_fields) * sizeof *seen);
    r = stage1();
    if (r < 0)
        return r;

    const char *s = next();
    if (*s != '{')
        return fail("", "the line is not a JSON object but %s",
                    *s == '['   ? "a list"
                    : *s == '"' ? "a string"
                                : "something else");
    bool more = *peek() != '}';
    at += !more;
    for (int k = 0; more; k++) {
        // Most lines have their fields in the order of the one before.
        int f = k < desc->n_fields ? expected[k] : -1;
        s = peek();
        if (f >= 0 && *s == '"' && !seen[f] &&
            !memcmp(s + 1, desc->fields[f].name, name_len[f]) &&
            s[1 + name_len[f]] == '"') {
            seen[f] = true;
            at++;
            const char *colon = next();
            if (*colon != ':')
                return grammar(colon, "':'");
        } else {
            r = read_key(&f);
            if (r < 0)
                return r;
            if (k < desc->n_fields)
                expected[k] = f;
        }
        r = f >= 0 ? read_value(f) : skip(1);
        if (r < 0)
            return r;
        s = next();
        if (*s != ',' && *s != '}')
            return grammar(s, "',' or '}'");
        more = *s == ',';
    }
    if (at < n_tokens)
        return fail("",
                    "there is text after the record, at byte %zu of the "
                    "line",
                    size_t(peek() - line));
    for (int i = 0; i < desc->n_fields; i++) {
        const struct field *field = &desc->fields[i];
        if (seen[i])
            continue;
        if (!inputs_only || field->kind != FIELD_TARGET)
            return fail(field->name, "the record has no field \"%s\"",
                        field->name);
        struct field_values *v = &record.fields[i];
        v->rows = field->over >= 0 ? record.fields[field->over].rows : 1;
        memset(v->nums, 0, size_t(v->rows) * sizeof *v->nums);
    }
    r = check_ignored();
    return r < 0 ? r : check_lengths();
}

static bool is_tiny(const struct field *f)
{
    if (f->kind == FIELD_TOKENS)
        return has_tiny && f->vocab <= tiny_end;
    bool tiny = has_tiny && f->kind == FIELD_ROWS && f->n_nums == 0;
    for (int c = 0; tiny && c < f->n_columns; c++)
        tiny = f->columns[c].vocab <= tiny_end;
    return tiny;
}

extern "C" int record_decoder_new(const struct record_desc *desc,
                                  double policy_tolerance,
                                  struct record_decoder **ret, struct err *err)
{
    struct record_decoder *d = new (std::nothrow) record_decoder();
    if (!d)
        return err_set(err, ERR_NOMEM, "no memory for a record decoder");
    d->desc = desc;
    d->tolerance = policy_tolerance;
    d->err = err;
    size_t n = size_t(desc->n_fields);
    d->record.n_fields = desc->n_fields;
    d->record.fields =
        static_cast<field_values *>(calloc(n, sizeof *d->record.fields));
    d->record.lengths = static_cast<int *>(
        calloc(size_t(desc->n_dims) + 1, sizeof *d->record.lengths));
    d->name_len = static_cast<size_t *>(calloc(n, sizeof *d->name_len));
    d->seen = static_cast<bool *>(calloc(n, sizeof *d->seen));
    d->tiny = static_cast<bool *>(calloc(n, sizeof *d->tiny));
    d->expected = static_cast<int *>(calloc(n, sizeof *d->expected));
    if (!d->record.fields || !d->record.lengths || !d->name_len || !d->seen ||
        !d->tiny || !d->expected || d->reserve(4096) < 0) {
        record_decoder_free(d);
        return err_set(err, ERR_NOMEM, "no memory for a record decoder");
    }
    for (size_t i = 0; i < n; i++) {
        d->name_len[i] = strlen(desc->fields[i].name);
        d->expected[i] = -1;
        d->tiny[i] = is_tiny(&desc->fields[i]);
    }
    *ret = d;
    return 0;
}

extern "C" void record_decoder_inputs_only(struct record_decoder *d)
{
    d->inputs_only = true;
}

extern "C" void record_decoder_free(struct record_decoder *d)
{
    if (!d)
        return;
    for (int i = 0; d->record.fields && i < d->desc->n_fields; i++) {
        free(d->record.fields[i].ints);
        free(d->record.fields[i].nums);
    }
    free(d->record.fields);
    free(d->record.lengths);
    free(d->name_len);
    free(d->seen);
    free(d->tiny);
    free(d->expected);
    free(d->ignored);
    free(d->line);
    free(d->keys);
    free(d->scaled);
    delete d;
}

extern "C" int record_decode(struct record_decoder *d, const char *line,
                             size_t len, const struct record **ret,
                             struct err *err)
{
    d->err = err;
    int r = d->decode(line, len);
    d->err = nullptr;
    if (r == 0)
        *ret = &d->record;
    return r;
}
