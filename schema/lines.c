#include "schema/lines.h"
#include <string.h>

static const unsigned char mark[3] = {0xef, 0xbb, 0xbf};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Bytes that start the shard: count what of the mark they match. A mark that
 * turns out to be half of one was text after all. Returns how many of `len`
 * were taken. */
static size_t take_mark(struct line_count *c, const char *data, size_t len)
{
    size_t n = 0;
    while (n < len && c->bytes + (int64_t)n == c->bom && c->bom < 3) {
        if ((unsigned char)data[n] != mark[c->bom]) {
            if (c->bom)
                c->open = c->seen = true;
            break;
        }
        c->bom++;
        n++;
    }
    return n;
}

void line_count_add(struct line_count *c, const char *data, size_t len)
{
    size_t i = take_mark(c, data, len);
    while (i < len) {
        const char *end = memchr(data + i, '\n', len - i);
        size_t stop = end ? (size_t)(end - data) : len;
        while (!c->seen && i < stop)
            c->seen = !is_blank(data[i++]);
        if (!end) {
            c->open = true;
            break;
        }
        c->lines++;
        c->records += c->seen;
        c->open = c->seen = false;
        i = stop + 1;
    }
    c->bytes += (int64_t)len;
}

void line_count_end(struct line_count *c)
{
    if (c->bytes == c->bom && c->bom > 0 && c->bom < 3)
        c->open = c->seen = true; /* the shard is the start of a mark */
    c->lines += c->open;
    c->records += c->seen;
    c->open = c->seen = false;
}

bool line_is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!is_blank(line[i]))
            return false;
    return true;
}

size_t line_bom(const char *data, size_t len)
{
    return len >= 3 && !memcmp(data, mark, 3) ? 3 : 0;
}
