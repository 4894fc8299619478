/* conn.h - a connection on its way through httpd.c and its neighbours. Private
 * to them: only the files that include this know libmicrohttpd.
 *
 *   httpd.c    the daemon, and the life of a connection from call to call
 *   admit.c    headers are read: refuse, or go on to the body
 *   request.c  path and query taken apart, the route found; what handlers ask
 *   lanework.c what a connection has done on the lanes, and what follows
 *   park.c     suspended connections: long polls, streams, the timer
 *   respond.c  answers and refusals
 *
 *   NEW -> BODY -> RUNNING -> ANSWER -> SENDING
 *    | \    |         `-> GONE (hung up while it waited)
 *    |  \   `-> FAILED (a lane failed while the body was still coming)
 *    |   `-> RUNNING -> BEGUN -> BODY (a route that looks before the body)
 *    `-> ANSWER, DISCARD or DRAIN (refused, see respond.c)
 *
 * A connection is touched by one side at a time: by its listener's event thread
 * while it runs, by a lane or the timer while it is suspended. */
#pragma once
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include "server/guard.h"
#include "server/httpd.h"
#include "server/lane.h"
#include "server/reply.h"

#define KiB 1024
#define MiB (1024 * 1024)

#define CONNECTION_BUSY 3072 /* beyond it all but workers get 503 */
#define PARAMS_MAX 4
#define QUERY_MAX 16
#define SEGMENTS_MAX 12
#define WINDOW (512 * KiB) /* of a reply_body, read at a time */
#define SPARES 4           /* buffers kept */

enum conn_state {
    CONN_NEW,
    CONN_BEGUN, /* the route's begin has run: it said yes, or c->err */
    CONN_BODY,
    CONN_DISCARD, /* refused; the body is read, then the answer sent */
    CONN_DRAIN,   /* refused and answered; the body is read, then we hang up */
    CONN_RUNNING, /* suspended: a lane has it, or it is parked */
    CONN_FAILED,  /* a lane failed while the body was still coming */
    CONN_ANSWER,
    CONN_SENDING,
    CONN_GONE, /* the client hung up while it waited */
};

enum conn_stage {
    STAGE_BEGIN,   /* the route's begin */
    STAGE_BLOCK,   /* write a block of an upload */
    STAGE_PREPARE, /* parse, finish the upload, the route's prepare */
    STAGE_HANDLE,
    STAGE_READ,   /* fill the window of a body */
    STAGE_STREAM, /* ask a stream for more */
};

struct pair {
    char *name, *value;
};

struct conn {
    struct task task; /* first: tasks are cast back */
    struct request req;
    struct reply reply;
    struct err err;
    struct httpd *h;
    struct listener *listener;
    struct MHD_Connection *mhd;
    int fd;
    enum conn_state state;
    enum conn_stage stage;

    char *uri, *decoded; /* as sent; what params and query point into */
    char *path;          /* decoded, for people */
    struct pair params[PARAMS_MAX], query[QUERY_MAX];
    int n_params, n_query;
    const struct route *route;
    const struct asset *asset;
    char method[16];
    bool head, has_body, expects, chunked;
    int64_t declared, received, drain_until_ms;
    int64_t first_run_ms; /* of the handler, 0: not yet */

    struct conn *fresh_next, **fresh_at; /* headers are still coming */

    /* parked */
    struct conn *next, *prev;
    bool parked;
    int64_t until_ms;
    uint64_t seen[32]; /* notice counters when the run began */

    /* body and stream; touched by one side at a time: the event thread while
     * the connection runs, a lane while it is suspended */
    struct buf window;
    int64_t window_at; /* offset of the window in the source */
    int64_t first;     /* where the range begins in the source */
    size_t sent;       /* of the window, for a stream */
    bool ended, broken;
    int64_t last_data_ms;
};

struct listener {
    struct httpd *h;
    const struct listen_address *address;
    struct MHD_Daemon *daemon;
    int fd;
    bool is_unix;
    char name[320];
    /* the event thread's own */
    struct conn *fresh;
    struct buf spare[SPARES]; /* for bodies of about a chunk's size */
    int n_spare;
};

struct httpd {
    struct server *server;
    struct listener *listeners;
    size_t n_listeners;
    const char **names;
    struct guard_names guard_names;
    char cookie[32]; /* "pawl_<instance>=" */
    atomic_int connections, active;

    pthread_mutex_t mutex;
    pthread_cond_t wake; /* the timer; and httpd_stop */
    struct conn *parked;
    uint64_t notices[32]; /* how often each was noted */
    int suspended;
    bool flushing; /* waits end now */
    bool closing;  /* nothing may be suspended any more */
    bool timer_stop, timer_started;
    pthread_t timer;
};

/* ---- park.c ---- */

/* False: the server is closing, and nothing may be suspended any more. */
bool conn_suspend(struct conn *c);
/* The event thread may free the connection before this returns. */
void conn_resume(struct conn *c);
/* What happens from here on is not missed by the conn_park that follows. */
void conn_see(struct conn *c);
/* Leave it until a notice or until_ms. False: something it waits for happened
 * while it ran, so it must run again now. */
bool conn_park(struct conn *c, unsigned notices, int64_t until_ms);
/* Run a suspended connection once more, unless the client is gone. */
void conn_again(struct conn *c);
/* Take from the parked those that have a reason, and run them again. */
void httpd_wake(struct httpd *h, unsigned bits, int64_t now_ms,
                bool look_for_hangups);
bool httpd_flushing(struct httpd *h);
/* The thread that wakes what has waited long enough. */
void *park_timer(void *httpd);

/* ---- lanework.c ---- */

/* Put a suspended connection on a lane. */
void conn_run(struct conn *c, enum conn_stage stage, enum lane lane);
/* The JSON body, unless the route takes bytes or it was parsed before. */
int conn_parse(struct conn *c, struct err *err);

/* ---- respond.c ---- */

/* Send what c->asset or c->reply says. `close`: and hang up then. */
enum MHD_Result conn_answer(struct conn *c, bool close);
int problem_answer(struct conn *c, int code, const char *text);
/* Answer in the first call for a request. `cut`: nobody can say where the next
 * request would begin. */
enum MHD_Result refuse(struct conn *c, const struct err *err, int status,
                       bool cut);
/* Answer with c->reply at once, past libmicrohttpd, and hang up. */
enum MHD_Result refuse_now(struct conn *c);

/* ---- request.c ---- */

/* Split c->decoded into path segments and query pairs; how many segments. */
int conn_split(struct conn *c, char *segments[SEGMENTS_MAX], struct err *err);
/* 1: c->route is set; 0: no such path; -1: the path has other methods, and
 * c->route is one of them. */
int route_find(struct conn *c, char **segments, int n);
/* Only what c->route knows, and nothing twice. */
int query_check(const struct conn *c, struct err *err);

/* ---- admit.c ---- */

/* Headers are read: refuse, or go on to the body. */
enum MHD_Result conn_admit(struct conn *c, struct MHD_Connection *mhd,
                           const char *method);
/* Before libmicrohttpd answers a malformed Content-Length itself: true if this
 * connection has one; *err says what is wrong with it. */
bool length_is_malformed(struct conn *c, struct err *err);

/* ---- httpd.c ---- */

/* Its headers are there: it no longer waits for them. */
void fresh_drop(struct conn *c);
