#include "server/page.h"
#include <inttypes.h>
#include <stdio.h>

struct page page_begin(struct stmt *q, int64_t limit)
{
    stmt_int(q, ":limit", limit + 1);
    return (struct page){.items = json_array(), .limit = limit};
}

int page_row(struct page *p, struct stmt *q, int cursor, struct err *err)
{
    int r = stmt_row(q, err);
    if (r <= 0)
        return r;
    if ((int64_t)json_array_size(p->items) == p->limit) {
        p->more = true;
        return 0;
    }
    p->last = col_int(q, cursor);
    return 1;
}

void page_add(struct page *p, json_t *item)
{
    json_array_append_new(p->items, item);
}

int page_end(struct page *p, json_t **ret)
{
    json_t *page = json_pack("{sO}", "items", p->items);
    if (page && p->more) {
        char cursor[24];
        snprintf(cursor, sizeof(cursor), "%" PRId64, p->last);
        json_object_set_new(page, "next", json_string(cursor));
    }
    *ret = page;
    return 0;
}

void page_release(struct page *p)
{
    json_decref(p->items);
}
