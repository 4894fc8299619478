/* park.c - connections that wait for something other than their client.
 *
 * A suspended connection costs no thread and no poll. It is either on a lane or
 * parked here until something it named was noted (httpd_notice), its time has
 * come, or the client hung up, which libmicrohttpd does not see of a suspended
 * one. What is noted while a handler runs is not lost: the counters seen before
 * the run (conn_see) are compared when it wants to be parked.
 *
 * When the server stops, all waits end (flushing), and once the answers are out
 * nothing is suspended any more (closing). */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "server/conn.h"
#include "server/server.h"

bool conn_suspend(struct conn *c)
{
    struct httpd *h = c->h;
    pthread_mutex_lock(&h->mutex);
    bool closing = h->closing;
    if (!closing)
        h->suspended++;
    pthread_mutex_unlock(&h->mutex);
    if (!closing)
        MHD_suspend_connection(c->mhd);
    return !closing;
}

void conn_resume(struct conn *c)
{
    struct httpd *h = c->h;
    MHD_resume_connection(c->mhd);
    pthread_mutex_lock(&h->mutex);
    h->suspended--;
    pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mutex);
}

/* A suspended client is never seen to hang up, so look. */
static bool conn_hung_up(const struct conn *c)
{
    char b;
    ssize_t n = recv(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 ||
           (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static void conn_unlink(struct conn *c)
{
    struct httpd *h = c->h;
    if (c->prev)
        c->prev->next = c->next;
    else
        h->parked = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->next = c->prev = NULL;
    c->parked = false;
}

void conn_see(struct conn *c)
{
    pthread_mutex_lock(&c->h->mutex);
    memcpy(c->seen, c->h->notices, sizeof(c->seen));
    pthread_mutex_unlock(&c->h->mutex);
}

bool conn_park(struct conn *c, unsigned notices, int64_t until_ms)
{
    struct httpd *h = c->h;
    pthread_mutex_lock(&h->mutex);
    bool missed = h->flushing;
    for (int i = 0; i < 32; i++)
        if ((notices >> i & 1) && c->seen[i] != h->notices[i])
            missed = true;
    if (!missed) {
        c->until_ms = until_ms;
        c->prev = NULL;
        c->next = h->parked;
        if (h->parked)
            h->parked->prev = c;
        h->parked = c;
        c->parked = true;
        pthread_cond_broadcast(&h->wake);
    }
    pthread_mutex_unlock(&h->mutex);
    return !missed;
}

bool httpd_flushing(struct httpd *h)
{
    pthread_mutex_lock(&h->mutex);
    bool flushing = h->flushing;
    pthread_mutex_unlock(&h->mutex);
    return flushing;
}

void conn_again(struct conn *c)
{
    struct httpd *h = c->h;
    bool gone = conn_hung_up(c);
    if (c->stage == STAGE_STREAM) {
        if (gone) {
            c->broken = true;
            conn_resume(c);
            return;
        }
        conn_run(c, STAGE_STREAM, LANE_READ);
        return;
    }
    if (gone) {
        c->state = CONN_GONE;
        conn_resume(c);
        return;
    }
    c->req.last_wait =
        httpd_flushing(h) || server_mono_ms() >= c->reply.until_ms;
    reply_clear(&c->reply);
    conn_run(c, STAGE_HANDLE, c->route->lane);
}

void httpd_wake(struct httpd *h, unsigned bits, int64_t now_ms,
                bool look_for_hangups)
{
    struct conn *due = NULL;
    pthread_mutex_lock(&h->mutex);
    for (int i = 0; i < 32; i++)
        if (bits >> i & 1)
            h->notices[i]++;
    for (struct conn *c = h->parked, *next; c; c = next) {
        next = c->next;
        unsigned waits = c->reply.notices;
        if (!(waits & bits) && now_ms < c->until_ms && !h->flushing &&
            !(look_for_hangups && conn_hung_up(c)))
            continue;
        conn_unlink(c);
        c->next = due;
        due = c;
    }
    pthread_mutex_unlock(&h->mutex);
    for (struct conn *c = due, *next; c; c = next) {
        next = c->next;
        c->next = NULL;
        conn_again(c);
    }
}

void httpd_notice(struct httpd *h, unsigned bits)
{
    httpd_wake(h, bits, 0, false);
}

void *park_timer(void *arg)
{
    struct httpd *h = arg;
    int64_t looked_ms = 0;
    pthread_mutex_lock(&h->mutex);
    while (!h->timer_stop) {
        int64_t now = server_mono_ms(), next = now + 1000;
        for (struct conn *c = h->parked; c; c = c->next)
            if (c->until_ms < next)
                next = c->until_ms;
        if (next > now) {
            struct timespec ts;
            clock_gettime(CLOCK_MONOTONIC, &ts);
            int64_t ns = ts.tv_nsec + (next - now) * 1000000;
            ts.tv_sec += ns / 1000000000;
            ts.tv_nsec = ns % 1000000000;
            pthread_cond_timedwait(&h->wake, &h->mutex, &ts);
        }
        pthread_mutex_unlock(&h->mutex);
        now = server_mono_ms();
        bool look = now - looked_ms >= 1000;
        if (look)
            looked_ms = now;
        httpd_wake(h, 0, now, look);
        pthread_mutex_lock(&h->mutex);
    }
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}
