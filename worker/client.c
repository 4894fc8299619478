#include "worker/client.h"
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/wire.h"
#include "worker/transfer.h"

#define ANSWER_MAX ((size_t)256 * 1024 * 1024)
#define STALL_S 60 /* without a byte a request is given up */

static void init_once(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int client_new(const struct client_options *o, struct client **ret,
               struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
    struct client *c = calloc(1, sizeof *c);
    if (c)
        c->curl = curl_easy_init();
    if (!c || !c->curl) {
        free(c);
        return err_set(err, ERR_NOMEM, "no memory for a client");
    }
    c->o = *o;
    c->stale = true;
    c->random = (unsigned)getpid() * 2654435761u ^ (unsigned)time(NULL);
    *ret = c;
    return 0;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    curl_easy_cleanup(c->curl);
    free(c->url);
    free(c->unix_socket);
    free(c->token);
    free(c);
}

void answer_release(struct answer *a)
{
    json_decref(a->json);
    buf_release(&a->body);
    *a = (struct answer){0};
}

/* ---- where the server is ---- */

/* The first line of a small file, without spaces at its end. */
static int first_line(const char *path, char **ret, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_NET, "cannot read %s: %s", path,
                       strerror(errno));
    char text[4096];
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n < 0)
        return err_set(err, ERR_NET, "cannot read %s: %s", path,
                       strerror(errno));
    text[n] = 0;
    size_t len = strcspn(text, "\r\n");
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    text[len] = 0;
    char *copy = strdup(text);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory");
    free(*ret);
    *ret = copy;
    return 0;
}

static int state_file(const struct client *c, const char *name, char **ret,
                      struct err *err)
{
    CLEANUP(buf_release) struct buf path = {0};
    if (buf_addf(&path, "%s/%s", c->o.state, name) < 0)
        return err_set(err, ERR_NOMEM, "no memory");
    return first_line(path.data, ret, err);
}

/* "unix:PATH", "http+unix://PATH" or a URL. */
static int locate(struct client *c, const char *text, struct err *err)
{
    const char *path = !strncmp(text, "unix:", 5)           ? text + 5
                       : !strncmp(text, "http+unix://", 12) ? text + 12
                                                            : NULL;
    free(c->unix_socket);
    c->unix_socket = NULL;
    char *url = strdup(path ? "http://localhost" : text);
    if (path) {
        while (path[0] == '/' && path[1] == '/')
            path++;
        c->unix_socket = strdup(path);
    }
    if (!url || (path && !c->unix_socket)) {
        free(url);
        return err_set(err, ERR_NOMEM, "no memory");
    }
    size_t len = strlen(url);
    while (len && url[len - 1] == '/')
        url[--len] = 0;
    free(c->url);
    c->url = url;
    return 0;
}

static int refresh(struct client *c, struct err *err)
{
    CLEANUP(free_ptr) char *url = NULL;
    int r = 0;
    if (!c->o.server)
        r = state_file(c, "url", &url, err);
    if (r == 0 && url && !strcmp(url, "http://localhost")) {
        /* it listens on nothing but a Unix socket, whose path is DIR/socket */
        CLEANUP(free_ptr) char *path = NULL;
        CLEANUP(buf_release) struct buf text = {0};
        r = state_file(c, "socket", &path, err);
        if (r == 0 && buf_addf(&text, "unix:%s", path) < 0)
            r = err_set(err, ERR_NOMEM, "no memory");
        if (r == 0)
            r = locate(c, text.data, err);
    } else if (r == 0) {
        r = locate(c, c->o.server ? c->o.server : url, err);
    }
    if (r < 0)
        return r;
    if (c->o.token) {
        free(c->token);
        c->token = strdup(c->o.token);
        if (!c->token)
            return err_set(err, ERR_NOMEM, "no memory");
    } else if (c->o.token_file) {
        r = first_line(c->o.token_file, &c->token, err);
    } else if (c->o.state) {
        r = state_file(c, "token", &c->token, err);
    }
    if (r == 0)
        c->stale = false;
    return r;
}

/* ---- one request ---- */

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    size_t len = size * n;
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->rq.on_bytes && status >= 200 && status < 300) {
        t->r = t->rq.on_bytes(t->rq.arg, data, len, &t->err);
        return t->r < 0 ? 0 : len;
    }
    if (t->answer.body.len + len > ANSWER_MAX ||
        buf_add(&t->answer.body, data, len) < 0) {
        t->r = err_set(&t->err, ERR_NOMEM, "the server's answer is too long");
        return 0;
    }
    return len;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t d,
                       curl_off_t e)
{
    struct transfer *t = arg;
    return t->client->o.interrupt && atomic_load(t->client->o.interrupt);
}

/* The server looked at a shard, as the worker does at one beside it. */
static int refused_for_data(const json_t *problem, const char *detail,
                            struct err *err)
{
    const char *shard = json_string_value(json_object_get(problem, "shard"));
    err_set(err, ERR_DATA, "%s", detail ? detail : "a shard cannot be read");
    if (err && shard) {
        snprintf(err->shard, sizeof err->shard, "%s", shard);
        err->offset = json_integer_value(json_object_get(problem, "offset"));
    }
    return ERR_DATA;
}

static int refused(const struct request *rq, const struct answer *a,
                   struct err *err)
{
    static const struct {
        long status;
        int code;
    } codes[] = {
        {400, ERR_INVALID},   {401, ERR_UNAUTHORIZED}, {403, ERR_FORBIDDEN},
        {404, ERR_NOT_FOUND}, {409, ERR_CONFLICT},     {413, ERR_TOO_LARGE},
        {415, ERR_MEDIA},     {422, ERR_MISMATCH},     {429, ERR_BUSY},
        {503, ERR_BUSY},      {507, ERR_NOSPACE},
    };
    int code = a->status >= 500 ? ERR_IO : ERR_INVALID;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == a->status)
            code = codes[i].code;
    const char *word = json_string_value(json_object_get(a->json, "code"));
    if (word && !strcmp(word, err_word(ERR_STALE)))
        code = ERR_STALE;
    else if (word && !strcmp(word, err_word(ERR_CORRUPT)))
        code = ERR_CORRUPT;
    const char *detail = json_string_value(json_object_get(a->json, "detail"));
    if (word && !strcmp(word, err_word(ERR_DATA)))
        return refused_for_data(a->json, detail, err);
    const char *pointer =
        json_string_value(json_object_get(a->json, "pointer"));
    int r =
        err_at(err, code, pointer ? pointer : "", "%s %s: %ld %s", rq->method,
               rq->path, a->status, detail ? detail : "(no reason given)");
    if (err)
        err->missing_bytes =
            json_integer_value(json_object_get(a->json, "missing_bytes"));
    return r;
}

static int add_header(struct curl_slist **list, const char *name,
                      const char *value)
{
    CLEANUP(buf_release) struct buf line = {0};
    if (buf_addf(&line, "%s: %s", name, value) < 0)
        return -1;
    struct curl_slist *longer = curl_slist_append(*list, line.data);
    if (!longer)
        return -1;
    *list = longer;
    return 0;
}

static int set_headers(struct transfer *t, struct err *err)
{
    const struct request *rq = &t->rq;
    int r = 0;
    CLEANUP(buf_release) struct buf value = {0};
    if (t->client->token) {
        r |= buf_addf(&value, "Bearer %s", t->client->token);
        r |= r ? r : add_header(&t->headers, "Authorization", value.data);
    }
    if (rq->lease_token > 0) {
        buf_clear(&value);
        r |= buf_addf(&value, "%" PRId64, rq->lease_token);
        r |= r ? r : add_header(&t->headers, WIRE_TOKEN_HEADER, value.data);
    }
    if (rq->json)
        r |= add_header(&t->headers, "Content-Type", "application/json");
    else if (rq->bytes)
        r |=
            add_header(&t->headers, "Content-Type", "application/octet-stream");
    struct curl_slist *longer =
        r ? NULL
          : curl_slist_append(t->headers, "Expect:"); /* no 100-continue */
    if (!longer)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    t->headers = longer;
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, t->headers);
    return 0;
}

static void set_options(struct transfer *t)
{
    CURL *h = t->curl;
    const struct client *c = t->client;
    const struct request *rq = &t->rq;
    const void *body = t->text ? t->text : rq->bytes;
    size_t len = t->text ? strlen(t->text) : rq->len;
    curl_easy_setopt(h, CURLOPT_URL, t->url.data);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
#endif
    if (c->unix_socket)
        curl_easy_setopt(h, CURLOPT_UNIX_SOCKET_PATH, c->unix_socket);
    if (!c->o.server)
        curl_easy_setopt(h, CURLOPT_PROXY, ""); /* it is this machine */
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, 5000L);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, (long)rq->timeout_s);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, rq->timeout_s ? 0L : 1L);
    curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME,
                     rq->timeout_s ? 0L : (long)STALL_S);
    if (body) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, body);
    } else if (!strcmp(rq->method, "GET")) {
        curl_easy_setopt(h, CURLOPT_HTTPGET, 1L);
    } else if (!strcmp(rq->method, "HEAD")) {
        curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    }
    if (rq->range)
        curl_easy_setopt(h, CURLOPT_RANGE, rq->range);
    curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, rq->method);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, t);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_PRIVATE, t);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, t->why);
}

int transfer_begin(struct transfer *t, struct client *c, CURL *curl,
                   const struct request *rq, struct err *err)
{
    if (c->stale) {
        int r = refresh(c, err);
        if (r < 0)
            return r;
    }
    *t = (struct transfer){.client = c, .curl = curl, .rq = *rq};
    if (rq->json) {
        t->text = json_dumps(rq->json, JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (!t->text)
            return err_set(err, ERR_INVALID, "a request body is not JSON");
    }
    curl_easy_reset(curl); /* keeps the connection */
    if (buf_addf(&t->url, "%s%s", c->url, rq->path) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a request");
    int r = set_headers(t, err);
    if (r < 0)
        return r;
    set_options(t);
    return 0;
}

static int judge(struct transfer *t, CURLcode e, struct err *err)
{
    struct client *c = t->client;
    const struct request *rq = &t->rq;
    if (t->r < 0) {
        if (err)
            *err = t->err;
        return t->r;
    }
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->answer.status);
    if (e != CURLE_OK) {
        c->stale = true;
        /* of an answer that broke off in its body */
        long status = t->answer.status;
        bool cut = rq->on_bytes && status >= 200 && status < 300;
        return err_set(err, cut ? ERR_IO : ERR_NET, "%s %s: %s", rq->method,
                       t->url.data, *t->why ? t->why : curl_easy_strerror(e));
    }
    if (t->answer.body.len)
        t->answer.json =
            json_loadb(t->answer.body.data, t->answer.body.len, 0, NULL);
    if (t->answer.status == 401)
        c->stale = true; /* the server may have a new token */
    if (t->answer.status < 200 || t->answer.status > 299)
        return refused(rq, &t->answer, err);
    return 0;
}

int transfer_end(struct transfer *t, CURLcode e, struct answer *ret,
                 struct err *err)
{
    int r = judge(t, e, err);
    if (r == 0 && ret) {
        *ret = t->answer;
        t->answer = (struct answer){0};
    }
    transfer_release(t);
    return r;
}

void transfer_release(struct transfer *t)
{
    if (t->curl)
        curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, NULL);
    curl_slist_free_all(t->headers);
    buf_release(&t->url);
    free(t->text);
    answer_release(&t->answer);
    *t = (struct transfer){0};
}

int client_try(struct client *c, const struct request *rq, struct answer *ret,
               struct err *err)
{
    CLEANUP(transfer_release) struct transfer t = {0};
    int r = transfer_begin(&t, c, c->curl, rq, err);
    if (r < 0)
        return r;
    CURLcode e = curl_easy_perform(c->curl);
    return transfer_end(&t, e, ret, err);
}

bool client_retriable(int r)
{
    return r == ERR_NET || r == ERR_BUSY || r == ERR_IO ||
           r == ERR_UNAUTHORIZED || r == ERR_NOSPACE;
}

int64_t client_pause_ms(struct client *c, int attempt)
{
    int64_t ms = 50;
    for (int i = 0; i < attempt && ms < 2000; i++)
        ms *= 2;
    ms = ms > 2000 ? 2000 : ms;
    return ms + (int64_t)(rand_r(&c->random) % (unsigned)(ms / 2 + 1));
}

void client_pause(struct client *c, int attempt)
{
    int64_t ms = client_pause_ms(c, attempt);
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

int client_insist(struct client *c, const struct request *rq,
                  struct answer *ret, client_give_up_fn *give_up, void *arg,
                  struct err *err)
{
    for (int attempt = 0;; attempt++) {
        int r = client_try(c, rq, ret, err);
        if (!client_retriable(r) || give_up(arg))
            return r;
        client_pause(c, attempt);
    }
}
