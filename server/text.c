#include "server/text.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

#define COLUMNS_MAX 64
#define INDENT 2

/* A byte that a terminal would obey, or that would break the line. */
static bool is_control(const unsigned char *s)
{
    return *s < 0x20 || *s == 0x7f ||
           (*s == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f); /* C1, in UTF-8 */
}

static int add_escaped(struct buf *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text, *plain = s;
    for (; *s; s++) {
        if (!is_control(s))
            continue;
        int r = buf_add(out, plain, (size_t)(s - plain));
        unsigned c = *s;
        if (c == 0xc2)
            c = *++s;
        if (r >= 0)
            r = c == '\n'   ? buf_adds(out, "\\n")
                : c == '\t' ? buf_adds(out, "\\t")
                : c == '\r' ? buf_adds(out, "\\r")
                            : buf_addf(out, "\\x%02x", c);
        if (r < 0)
            return -1;
        plain = s + 1;
    }
    return buf_add(out, plain, (size_t)(s - plain));
}

/* One value on one line. */
static int add_scalar(struct buf *out, const json_t *v)
{
    char real[JSON_REAL_MAX];
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_STRING:
        return add_escaped(out, json_string_value(v));
    case JSON_INTEGER:
        return buf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    case JSON_REAL:
        json_real_text(json_real_value(v), real);
        return buf_adds(out, real);
    case JSON_TRUE:
        return buf_adds(out, "yes");
    case JSON_FALSE:
        return buf_adds(out, "no");
    case JSON_NULL:
        return buf_adds(out, "-");
    case JSON_ARRAY: {
        size_t i;
        json_t *e;
        if (!json_array_size(v))
            return buf_adds(out, "-");
        json_array_foreach(v, i, e)
        {
            if (i && buf_adds(out, ", ") < 0)
                return -1;
            if (add_scalar(out, e) < 0)
                return -1;
        }
        return 0;
    }
    case JSON_OBJECT: {
        const char *key;
        json_t *e;
        bool first = true;
        if (!json_object_size(v))
            return buf_adds(out, "-");
        json_object_foreach((json_t *)v, key, e)
        {
            if (!first && buf_adds(out, " ") < 0)
                return -1;
            first = false;
            if (add_escaped(out, key) < 0 || buf_adds(out, "=") < 0 ||
                add_scalar(out, e) < 0)
                return -1;
        }
        return 0;
    }
    }
    return 0;
}

/* What fits into a table's cell: an object only by how far it says it is. */
static const json_t *fraction_of(const json_t *v)
{
    const json_t *f = json_object_get(v, "fraction");
    return json_is_number(f) ? f : NULL;
}

static bool has_cell(const json_t *v)
{
    if (json_is_object(v))
        return fraction_of(v);
    if (json_is_array(v))
        return json_array_size(v) <= 8 &&
               !json_is_object(json_array_get(v, 0)) &&
               !json_is_array(json_array_get(v, 0));
    return true;
}

static int add_cell(struct buf *out, const json_t *v)
{
    const json_t *f = fraction_of(v);
    if (f)
        return buf_addf(out, "%.1f%%", 100 * json_number_value(f));
    return add_scalar(out, v);
}

static size_t width_of(const char *s, size_t len)
{
    size_t w = 0;
    for (size_t i = 0; i < len; i++)
        w += ((unsigned char)s[i] & 0xc0) != 0x80;
    return w;
}

struct columns {
    const char *names[COLUMNS_MAX];
    size_t width[COLUMNS_MAX];
    bool text[COLUMNS_MAX], used[COLUMNS_MAX];
    size_t n;
};

static void columns_find(struct columns *c, const json_t *list)
{
    size_t i;
    json_t *row, *v;
    const char *key;
    memset(c, 0, sizeof(*c));
    json_array_foreach(list, i, row)
    {
        json_object_foreach(row, key, v)
        {
            size_t k = 0;
            while (k < c->n && strcmp(c->names[k], key))
                k++;
            if (k == COLUMNS_MAX)
                continue;
            if (k == c->n)
                c->names[c->n++] = key;
            if (json_is_null(v) || !has_cell(v))
                continue;
            c->used[k] = true;
            if (!json_is_number(v) && !json_is_object(v))
                c->text[k] = true;
        }
    }
}

static int pad(struct buf *out, size_t n)
{
    int r = 0;
    while (n-- && r >= 0)
        r = buf_add(out, " ", 1);
    return r;
}

static int trim_line(struct buf *out)
{
    while (out->len && out->data[out->len - 1] == ' ')
        out->data[--out->len] = '\0';
    return buf_add(out, "\n", 1);
}

static int add_padded(struct buf *out, const char *s, size_t len, size_t width,
                      bool left)
{
    size_t gap = width - width_of(s, len);
    if (!left && pad(out, gap) < 0)
        return -1;
    if (buf_add(out, s, len) < 0)
        return -1;
    return pad(out, (left ? gap : 0) + 2);
}

/* Not a list of objects: one value a line. */
static int render_values(const json_t *list, size_t indent, struct buf *out)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (pad(out, indent) < 0 || add_scalar(out, v) < 0 ||
            trim_line(out) < 0)
            return -1;
    }
    return 0;
}

static int render_table(const json_t *list, size_t indent, struct buf *out)
{
    struct columns c;
    CLEANUP(buf_release) struct buf cell = {0};
    size_t i;
    json_t *row;

    if (!json_array_size(list))
        return pad(out, indent) < 0 ? -1 : buf_adds(out, "(none)\n");
    if (!json_is_object(json_array_get(list, 0)))
        return render_values(list, indent, out);
    columns_find(&c, list);
    for (size_t k = 0; k < c.n; k++)
        c.width[k] = width_of(c.names[k], strlen(c.names[k]));
    json_array_foreach(list, i, row)
    {
        for (size_t k = 0; k < c.n; k++) {
            if (!c.used[k])
                continue;
            buf_clear(&cell);
            if (add_cell(&cell, json_object_get(row, c.names[k])) < 0)
                return -1;
            size_t w = width_of(cell.data, cell.len);
            if (w > c.width[k])
                c.width[k] = w;
        }
    }
    if (pad(out, indent) < 0)
        return -1;
    for (size_t k = 0; k < c.n; k++)
        if (c.used[k] && add_padded(out, c.names[k], strlen(c.names[k]),
                                    c.width[k], c.text[k]) < 0)
            return -1;
    if (trim_line(out) < 0)
        return -1;
    json_array_foreach(list, i, row)
    {
        if (pad(out, indent) < 0)
            return -1;
        for (size_t k = 0; k < c.n; k++) {
            if (!c.used[k])
                continue;
            buf_clear(&cell);
            if (add_cell(&cell, json_object_get(row, c.names[k])) < 0 ||
                add_padded(out, cell.data ? cell.data : "", cell.len,
                           c.width[k], c.text[k]) < 0)
                return -1;
        }
        if (trim_line(out) < 0)
            return -1;
    }
    return 0;
}

static bool is_table(const json_t *v)
{
    return json_is_array(v) && json_is_object(json_array_get(v, 0));
}

/* Is this object shown as lines of its own, or on one? */
static bool is_group(const json_t *v)
{
    return json_is_object(v) && json_object_size(v);
}

static size_t key_width(const json_t *o, size_t prefix)
{
    size_t w = 0;
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        size_t own = prefix + width_of(key, strlen(key));
        if (is_group(v))
            own = key_width(v, own + 1);
        else if (is_table(v))
            own = 0;
        if (own > w)
            w = own;
    }
    return w;
}

static int render_lines(const json_t *o, const char *prefix, size_t width,
                        struct buf *out)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        CLEANUP(buf_release) struct buf name = {0};
        if (buf_adds(&name, prefix) < 0 || add_escaped(&name, key) < 0)
            return -1;
        if (is_group(v)) {
            if (buf_adds(&name, ".") < 0 ||
                render_lines(v, name.data, width, out) < 0)
                return -1;
        } else if (is_table(v)) {
            if (buf_addf(out, "%s\n", name.data) < 0 ||
                render_table(v, INDENT, out) < 0)
                return -1;
        } else {
            size_t own = width_of(name.data, name.len);
            if (add_padded(out, name.data, name.len, own > width ? own : width,
                           true) < 0 ||
                add_scalar(out, v) < 0 || trim_line(out) < 0)
                return -1;
        }
    }
    return 0;
}

int text_render(const json_t *value, struct buf *out)
{
    const json_t *items = json_object_get(value, "items");
    if (json_is_array(items)) {
        const json_t *next = json_object_get(value, "next");
        if (render_table(items, 0, out) < 0)
            return -1;
        return json_is_string(next)
                   ? buf_addf(out, "next  %s\n", json_string_value(next))
                   : 0;
    }
    if (json_is_array(value))
        return render_table(value, 0, out);
    if (json_is_object(value))
        return render_lines(value, "", key_width(value, 0), out);
    return add_scalar(out, value) < 0 ? -1 : buf_add(out, "\n", 1);
}

static int csv_field(struct buf *out, const char *s, size_t len)
{
    bool quote = false;
    for (size_t i = 0; i < len; i++)
        quote |= s[i] == ',' || s[i] == '"' || s[i] == '\n' || s[i] == '\r';
    if (!quote)
        return buf_add(out, s, len);
    int r = buf_add(out, "\"", 1);
    for (size_t i = 0; i < len && r >= 0; i++)
        r = s[i] == '"' ? buf_add(out, "\"\"", 2) : buf_add(out, &s[i], 1);
    return r < 0 ? r : buf_add(out, "\"", 1);
}

int text_csv(const json_t *value, struct buf *out)
{
    const json_t *items = json_object_get(value, "items");
    const json_t *list = json_is_array(items) ? items : value;
    struct columns c;
    size_t i;
    json_t *row;

    if (!json_is_array(list))
        return 1;
    columns_find(&c, list);
    for (size_t k = 0; k < c.n; k++)
        if ((k && buf_add(out, ",", 1) < 0) ||
            csv_field(out, c.names[k], strlen(c.names[k])) < 0)
            return -1;
    if (buf_add(out, "\n", 1) < 0)
        return -1;
    json_array_foreach(list, i, row)
    {
        for (size_t k = 0; k < c.n; k++) {
            const json_t *v = json_object_get(row, c.names[k]);
            CLEANUP(buf_release) struct buf cell = {0};
            int r = 0;
            if (json_is_string(v)) {
                r = buf_adds(&cell, json_string_value(v));
            } else if (json_is_boolean(v)) {
                r = buf_adds(&cell, json_is_true(v) ? "true" : "false");
            } else if (json_is_object(v) || json_is_array(v)) {
                AUTO_FREE char *s =
                    json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
                r = s ? buf_adds(&cell, s) : -1;
            } else if (v && !json_is_null(v)) {
                r = add_scalar(&cell, v);
            }
            if (r < 0 || (k && buf_add(out, ",", 1) < 0) ||
                csv_field(out, cell.data ? cell.data : "", cell.len) < 0)
                return -1;
        }
        if (buf_add(out, "\n", 1) < 0)
            return -1;
    }
    return 0;
}
