/* assets.h - files that are built into pawld: the page's, and the migrations.
 *
 * web/embed.cmake turns web/ and schema/'s .sql files into C arrays at build
 * time, so that pawld is one file and its page needs no folder beside it. */
#pragma once
#include <stddef.h>

struct asset {
    const char *name; /* "app.js", "0001-init.sql": no folder */
    const char *type; /* media type, charset included */
    const unsigned char *data; /* a NUL follows, so SQL can be used as text */
    size_t len;                /* without it */
    const char *etag;          /* hex SHA-256 of data, without quotes */
};

/* Both are sorted by name, bytewise, and end with name NULL. */
extern const struct asset assets[];     /* page files; "index.html" is GET / */
extern const struct asset migrations[]; /* all of schema/'s .sql files */
