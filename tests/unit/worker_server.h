/* worker_server.h - the server as a worker far away sees it: shards and their
 * indexes by ranges, over a Unix socket, with the faults that a test asks for. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "tests/unit/worker_data.h"

#define SERVED_MAX 8

struct server {
    char socket[128], url[160];
    struct buf text[SERVED_MAX], index[SERVED_MAX];
    const char *refuse[SERVED_MAX]; /* 409 with the code `data`, why */
    atomic_int requests, index_requests, bytes;
    atomic_int away; /* so many connections are closed unanswered */
    atomic_int busy; /* so many requests get 503 */
    atomic_int cut;  /* break off in the body */
    atomic_int flip; /* have a byte changed on the way */
    atomic_int deaf; /* are answered whole, whatever their Range */
    atomic_bool stale;
    int fd, clients[256];
    atomic_int n_clients;
    pthread_t thread;
};

static inline bool take_one(atomic_int *left)
{
    if (atomic_fetch_sub(left, 1) > 0)
        return true;
    atomic_fetch_add(left, 1);
    return false;
}

static inline bool send_all(int fd, const void *data, size_t len)
{
    for (const char *p = data; len;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static inline bool send_problem(int fd, int status, const char *code,
                                const char *detail)
{
    CLEANUP(buf_release) struct buf body = {0}, out = {0};
    buf_addf(&body,
             "{\"status\":%d,\"title\":\"x\",\"code\":\"%s\",\"detail\":\"%s\","
             "\"shard\":\"a\",\"offset\":3000}",
             status, code, detail);
    buf_addf(&out,
             "HTTP/1.1 %d x\r\nContent-Type: application/problem+json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             status, body.len, body.data);
    return send_all(fd, out.data, out.len);
}

/* One request, of which the head has been read. False ends the connection. */
static inline bool serve_one(struct server *s, int fd, const char *head)
{
    int shard = -1;
    long long from = 0, to = -1;
    bool index = strstr(head, "?part=index") != NULL;
    const char *range = strstr(head, "Range: bytes=");
    atomic_fetch_add(index ? &s->index_requests : &s->requests, 1);
    assert_int_equal(sscanf(head, "GET /v1/leases/7/shards/%d", &shard), 1);
    assert_in_range(shard, 0, SERVED_MAX - 1);
    assert_non_null(strstr(head, "Pawl-Token: 5\r\n"));
    assert_non_null(strstr(head, "Authorization: Bearer word\r\n"));
    assert_non_null(range);
    assert_int_equal(sscanf(range, "Range: bytes=%lld-%lld", &from, &to), 2);
    if (take_one(&s->away))
        return false;
    if (take_one(&s->busy))
        return send_problem(fd, 503, "busy", "not now");
    if (atomic_load(&s->stale))
        return send_problem(fd, 409, "stale", "an older lease");
    if (s->refuse[shard])
        return send_problem(fd, 409, "data", s->refuse[shard]);
    const struct buf *b = index ? &s->index[shard] : &s->text[shard];
    bool deaf = take_one(&s->deaf);
    if (deaf) {
        from = 0;
        to = (long long)b->len - 1;
    }
    if (to >= (long long)b->len)
        to = (long long)b->len - 1;
    size_t len = (size_t)(to - from + 1);
    atomic_fetch_add(&s->bytes, (int)len);
    CLEANUP(buf_release) struct buf out = {0};
    buf_addf(&out, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n",
             deaf ? "200 OK" : "206 Partial", len);
    size_t body = out.len;
    buf_add(&out, b->data + from, len);
    if (take_one(&s->flip))
        out.data[body + len / 2] ^= 4;
    if (take_one(&s->cut)) {
        send_all(fd, out.data, body + len / 2);
        return false;
    }
    return send_all(fd, out.data, out.len);
}

struct served {
    struct server *s;
    int fd;
};

static inline void *serve_client(void *arg)
{
    struct served c = *(struct served *)arg;
    free(arg);
    char head[4096];
    size_t n = 0;
    for (;;) {
        ssize_t got = recv(c.fd, head + n, sizeof head - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        head[n] = 0;
        if (!strstr(head, "\r\n\r\n"))
            continue;
        if (!serve_one(c.s, c.fd, head))
            break;
        n = 0;
    }
    shutdown(c.fd, SHUT_RDWR);
    return NULL;
}

static inline void *serve_all(void *arg)
{
    struct server *s = arg;
    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        struct served *c = malloc(sizeof *c);
        *c = (struct served){s, fd};
        s->clients[atomic_fetch_add(&s->n_clients, 1) % 256] = fd;
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, serve_client, c), 0);
        pthread_detach(t);
    }
}

static inline void server_start(struct server *s, const struct folder *f)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    in_folder(f, "socket", s->socket, sizeof s->socket);
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", s->socket);
    snprintf(s->url, sizeof s->url, "unix:%s", s->socket);
    s->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 64), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve_all, s), 0);
}

static inline void server_stop(struct server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    for (int i = 0; i < SERVED_MAX; i++) {
        buf_release(&s->text[i]);
        buf_release(&s->index[i]);
    }
}

static inline void server_holds(struct server *s, int shard, const char *text,
                                size_t len, const char *index_path)
{
    buf_clear(&s->text[shard]);
    buf_add(&s->text[shard], text, len);
    if (!index_path)
        return;
    buf_clear(&s->index[shard]);
    AUTO_FD int fd = open(index_path, O_RDONLY);
    assert_true(fd >= 0);
    char data[4096];
    for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;)
        buf_add(&s->index[shard], data, (size_t)n);
}
