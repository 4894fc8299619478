/* lines.h - where records begin and end in the bytes of a shard.
 *
 * A record is a line that is not blank. A UTF-8 byte-order mark at offset 0
 * belongs to no record; lines end with LF or CRLF; the last one may lack its
 * end. Server and worker count with this one scanner, so their numbers agree. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts records while bytes stream by, in pieces of any size. All-zero. */
struct line_count {
    int64_t bytes, lines, records;
    bool open; /* the current line holds a byte */
    bool seen; /* and one that is not blank */
    int bom;   /* bytes of a byte-order mark matched so far at the start */
};
void line_count_add(struct line_count *c, const char *data, size_t len);
void line_count_end(struct line_count *c); /* count an unterminated last line */

/* Is this line (no newline in it) blank? Spaces, tabs and CR only. */
bool line_is_blank(const char *line, size_t len);
/* Bytes of a UTF-8 mark at the start of a shard: 3 or 0. */
size_t line_bom(const char *data, size_t len);

#ifdef __cplusplus
}
#endif
