/* listen.h - sockets to listen on, and what to call them.
 *
 * A Unix socket is for its owner alone (mode 0600); one that a killed server
 * left behind is replaced, one that somebody answers is not. A TCP address may
 * have port 0: the name says which port it became. */
#pragma once
#include <stddef.h>
#include "schema/err.h"
#include "server/options.h"

/* Open, bind and listen. *name: "unix:PATH" or "http://ADDRESS:PORT", as a
 * client on this machine would connect. */
int listen_open(const struct listen_address *address, int *ret_fd, char *name,
                size_t cap, struct err *err);
