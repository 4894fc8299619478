/* page.h - a page of a list: {"items": […], "next": cursor}, `next` absent at
 * the end. The query's :limit is one more than the page holds, so that it is
 * known whether there is more.
 *
 *     CLEANUP(page_release) struct page page = page_begin(&q, limit);
 *     while ((r = page_row(&page, &q, 0, err)) > 0)
 *         page_add(&page, lease_json(&q));
 *     return r < 0 ? r : page_end(&page, ret);
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "server/store.h"

struct page {
    json_t *items;
    int64_t limit, last; /* last: the cursor of the newest row */
    bool more;
};

struct page page_begin(struct stmt *q, int64_t limit); /* binds :limit */
/* The next row: 1, its column `cursor` is noted; 0: the page is complete; < 0:
 * *err. */
int page_row(struct page *p, struct stmt *q, int cursor, struct err *err);
void page_add(struct page *p, json_t *item); /* takes the reference */
int page_end(struct page *p, json_t **ret);  /* 0; caller owns *ret */
void page_release(struct page *p);
