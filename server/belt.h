/* belt.h - one thread that takes pieces in order, while more of them come.
 *
 * What is done with a large upload's text (digests, decoding) takes longer than
 * to receive and to store it; so it is done beside that. Few pieces lie on the
 * belt at a time: who adds faster than they are taken waits. What is said of a
 * piece is said when a later one is added, or at the end. */
#pragma once
#include <stddef.h>
#include "schema/err.h"

#define BELT_PIECE (512 * 1024)
#define BELT_PIECES 4

struct belt;
typedef int belt_take_fn(void *arg, const char *data, size_t len,
                         struct err *err);
int belt_new(belt_take_fn *take, void *arg, struct belt **ret, struct err *err);
/* A copy is put on the belt. What `take` returned of an earlier one if that was
 * < 0; nothing is taken after it. */
int belt_add(struct belt *b, const char *data, size_t len, struct err *err);
/* Wait until all is taken. */
int belt_wait(struct belt *b, struct err *err);
void belt_free(struct belt *b); /* what is not taken yet never is */
