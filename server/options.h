/* options.h - how pawld was asked to run: flags over PAWL_… variables over a
 * config file over defaults.
 *
 * All three know the same names: --data-root, PAWL_DATA_ROOT and "data_root".
 * An unknown flag or config key is an error; an unknown PAWL_ variable is a
 * warning, since it may be meant for the worker of another version. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

struct listen_address {
    char *text;      /* as given */
    char *unix_path; /* or NULL */
    char host[64];   /* an address, no name; "" for a socket */
    uint16_t port;   /* 0: any */
};

struct data_root {
    char *name, *path;
};

struct share { /* of an owner of jobs */
    char *owner;
    double weight;
};

enum options_do { OPTIONS_RUN, OPTIONS_VERSION, OPTIONS_HELP };

struct options {
    enum options_do what;
    char *state;
    struct listen_address *listen;
    size_t n_listen;
    int workers;
    struct data_root *data_roots;
    size_t n_data_roots;
    char **hosts; /* further names that Host may carry */
    size_t n_hosts;
    struct share *shares;
    size_t n_shares;
    int age_s;           /* of waiting that count as one priority */
    int lease_s;         /* silence that ends a lease */
    int drain_timeout_s; /* until workers that do not save are killed */
};

#define OPTIONS_LISTEN "127.0.0.1:7295"
#define OPTIONS_AGE_S 600
#define OPTIONS_DRAIN_S 300

/* argv and environ as main has them. Warnings, one a line, go to *warnings.
 * ERR_INVALID with a sentence that names the flag, variable or key. */
int options_parse(int argc, char **argv, char **envp, struct options *ret,
                  struct buf *warnings, struct err *err);
void options_release(struct options *o);
const char *options_help(void);

/* "ADDR:PORT", "[ADDR]:PORT" or "unix:PATH". */
int listen_parse(const char *text, struct listen_address *ret, struct err *err);
