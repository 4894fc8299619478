/* server.h - one pawld: its options, folders, token, lanes and supervisor.
 *
 * main.c fills it in order; everything but the atomics is fixed before the
 * first request is read, so handlers read it without a lock.
 *
 *   DIR/lock        held while a pawld runs on DIR
 *   DIR/token       the token, mode 0600, made once
 *   DIR/url         base URL, there once /readyz is 200, gone after a clean
 *                   stop; http://localhost where there is only a Unix socket
 *   DIR/socket      path of the Unix socket, if one is listened on
 *   DIR/tmp         uploads and backups under way; emptied at start
 *   DIR/datasets/<dataset>/<shard>
 *   DIR/index/<sha256 of a text>       where its records begin: line_index.h
 *   DIR/copies/<sha256 of a text>.zst  of a file below a root: root.h
 *   DIR/index/<sha256>   where the records of a text begin; made again when it
 *                        is missing
 *   DIR/logs/worker-<pid>.log   what a local worker wrote to stderr */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/httpd.h"
#include "server/lane.h"
#include "server/options.h"

struct backups;
struct errands;
struct httpd;
struct partials;
struct session_table;
struct supervisor;

struct server {
    struct options options;
    char *dir;          /* the state folder, absolute */
    char *datasets_dir; /* DIR/datasets */
    char *tmp_dir;      /* DIR/tmp */
    char *logs_dir;     /* DIR/logs */
    int lock_fd;
    uint64_t db_device, db_inode; /* of pawl.db; 0 before it is open */
    char token[129];
    char instance[17];  /* names this state folder: cookie pawl_<instance> */
    char boot[40];      /* the kernel's boot id */
    char url[300];      /* what DIR/url says */
    int64_t started_ms; /* wall clock */
    int64_t started_mono_ms;
    /* When this run began to listen; 0 before. Silence of workers counts from
     * here, never from an earlier run. */
    _Atomic int64_t listening_mono_ms;
    atomic_bool ready;
    /* Stopping: claims get 204, workers are told to drain. */
    atomic_bool shutting_down;
    struct room *room; /* promises of room on disk */
    struct backups *backups;
    struct partials *partials; /* uploads that broke off */
    struct errands *errands;
    struct lanes *lanes;
    struct httpd *httpd;
    struct session_table *sessions;
    struct supervisor *supervisor;
};

int64_t server_wall_ms(void);
/* CLOCK_MONOTONIC less the time in which this process stood still (stopped,
 * suspended, starved), so that nobody is blamed for silence that the server
 * could not have heard. Never goes back. */
int64_t server_mono_ms(void);
/* Called about once a second; a call that comes late by seconds is such a
 * standstill. */
void server_clock_beat(void);

/* Folders, lock, token, boot id. ERR_CONFLICT: another pawld has the folder. */
int server_open_state(struct server *s, struct err *err);
/* Is DIR/pawl.db still the file that this run opened? The first call, once it
 * is open, remembers which that is. */
bool server_state_is_there(struct server *s);
/* DIR/NAME becomes `text` and a newline, by rename. */
int server_write_file(struct server *s, const char *name, const char *text,
                      int mode, struct err *err);

/* Handlers of this part, for routes.c. */
handler_fn handle_livez, handle_readyz, handle_info; /* READ, no body */
handler_fn handle_login; /* POST /v1/login: WRITE, ROLE_NONE, 4 KiB */
