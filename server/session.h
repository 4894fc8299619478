/* session.h - who is logged in to the page.
 *
 * A browser never holds the token: it trades a single-use code (printed at
 * start, in the URL's fragment) or the token for a cookie with a random id.
 * Only the id's hash is stored, so a copy of the database opens nothing; the
 * table keeps logins across restarts. Look-ups are in memory, for the event
 * thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "server/httpd.h"
#include "server/lane.h"

struct session_table;

#define SESSION_DAYS 30
#define SESSION_MAX 100 /* the oldest give way */

/* Loads what the database holds, through a READ lane. */
int session_table_new(struct lanes *lanes, struct session_table **ret,
                      struct err *err);
void session_table_free(struct session_table *t);
/* The code for this run's open URL, 32 hex digits. */
const char *session_code(const struct session_table *t);
bool session_known(struct session_table *t, const char *id, int64_t now_ms);
/* On the WRITE lane: a new session for who shows the unused code.
 * ERR_UNAUTHORIZED. `id` gets 64 hex digits. */
int session_by_code(struct session_table *t, struct ctx *ctx, const char *code,
                    char id[65], struct err *err);
int session_open(struct session_table *t, struct ctx *ctx, char id[65],
                 struct err *err);

/* Random bytes as hex digits: 2 × bytes of them and a NUL. */
void random_hex(char *out, size_t bytes);
/* In a time that does not depend on where they differ. */
bool secret_equal(const char *a, const char *b);
