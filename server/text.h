/* text.h - any JSON answer as text for a terminal, or as CSV.
 *
 * A list becomes a table with a heading, an object `key  value` lines with
 * dotted keys; a list inside an object becomes a table below its name. Control
 * characters are escaped, so an answer cannot drive the terminal. */
#pragma once
#include <jansson.h>
#include "schema/buf.h"

/* 0, or -1 when memory is short. */
int text_render(const json_t *value, struct buf *out);
/* A list ({"items": […]} or an array) of objects as CSV with a heading:
 * 0; -1 when memory is short; 1 when the value is no list. */
int text_csv(const json_t *value, struct buf *out);
