#include "server/option.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"

#define WORKERS_MAX 256
#define SHARE_MIN 0.001
#define SHARE_MAX 1000000.0
#define SECONDS_MAX (7 * 24 * 3600)

const struct option_desc option_descs[OPT_COUNT] = {
    [OPT_STATE] = {"state", true, false, true},
    [OPT_LISTEN] = {"listen", true, true, true},
    [OPT_WORKERS] = {"workers", true, false, true},
    [OPT_DATA_ROOT] = {"data-root", true, true, true},
    [OPT_HOST] = {"host", true, true, true},
    [OPT_SHARE] = {"share", true, true, true},
    [OPT_AGE] = {"age", true, false, true},
    [OPT_LEASE] = {"lease", true, false, true},
    [OPT_DRAIN_TIMEOUT] = {"drain-timeout", true, false, true},
    [OPT_CONFIG] = {"config", true, false, false},
    [OPT_VERSION] = {"version", false, false, false},
    [OPT_HELP] = {"help", false, false, false},
};

static int bad(const struct option_source *from, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int bad(const struct option_source *from, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(from->err, ERR_INVALID, "%s: %s", from->name, text);
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for the options");
}

int listen_parse(const char *text, struct listen_address *ret, struct err *err)
{
    struct listen_address a = {0};
    unsigned char bytes[16];
    if (!strncmp(text, "unix:", 5)) {
        if (!text[5])
            return err_set(err, ERR_INVALID,
                           "'%s' names no socket: write unix:PATH", text);
        a.unix_path = strdup(text + 5);
    } else {
        const char *colon = strrchr(text, ':');
        size_t len = colon ? (size_t)(colon - text) : 0;
        const char *host = text;
        if (len > 2 && *text == '[' && text[len - 1] == ']') {
            host++;
            len -= 2;
        }
        if (!colon || !len || len >= sizeof(a.host))
            return err_set(err, ERR_INVALID,
                           "'%s' is not ADDR:PORT or unix:PATH", text);
        memcpy(a.host, host, len);
        if (!strcmp(a.host, "localhost"))
            strcpy(a.host, "127.0.0.1");
        bool six = strchr(a.host, ':');
        if (inet_pton(six ? AF_INET6 : AF_INET, a.host, bytes) != 1 ||
            (six && *text != '['))
            return err_set(err, ERR_INVALID,
                           "'%s' has no address in front of the port: write "
                           "127.0.0.1:7295 or [::1]:7295",
                           text);
        char *end;
        long port = strtol(colon + 1, &end, 10);
        if (colon[1] < '0' || colon[1] > '9' || *end || port < 0 ||
            port > 65535)
            return err_set(err, ERR_INVALID, "'%s' has no port from 0 to 65535",
                           text);
        a.port = (uint16_t)port;
    }
    a.text = strdup(text);
    if (!a.text || (!strncmp(text, "unix:", 5) && !a.unix_path)) {
        free(a.text);
        free(a.unix_path);
        return no_memory(err);
    }
    *ret = a;
    return 0;
}

void option_clear(struct options *o, enum option_id id)
{
    switch (id) {
    case OPT_LISTEN:
        for (size_t i = 0; i < o->n_listen; i++) {
            free(o->listen[i].text);
            free(o->listen[i].unix_path);
        }
        free(o->listen);
        o->listen = NULL;
        o->n_listen = 0;
        break;
    case OPT_DATA_ROOT:
        for (size_t i = 0; i < o->n_data_roots; i++) {
            free(o->data_roots[i].name);
            free(o->data_roots[i].path);
        }
        free(o->data_roots);
        o->data_roots = NULL;
        o->n_data_roots = 0;
        break;
    case OPT_HOST:
        for (size_t i = 0; i < o->n_hosts; i++)
            free(o->hosts[i]);
        free(o->hosts);
        o->hosts = NULL;
        o->n_hosts = 0;
        break;
    case OPT_SHARE:
        for (size_t i = 0; i < o->n_shares; i++)
            free(o->shares[i].owner);
        free(o->shares);
        o->shares = NULL;
        o->n_shares = 0;
        break;
    default:
        break;
    }
}

static int add_listen(struct options *o, const char *value,
                      const struct option_source *from)
{
    struct err why;
    void *more = realloc(o->listen, (o->n_listen + 1) * sizeof(*o->listen));
    if (!more)
        return no_memory(from->err);
    o->listen = more;
    int r = listen_parse(value, &o->listen[o->n_listen], &why);
    if (r < 0)
        return bad(from, "%s", why.text);
    o->n_listen++;
    return 0;
}

static bool is_name(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    "0123456789._-",
                    s[i]) ||
            (!i && strchr("._-", s[i])))
            return false;
    return len && len <= 128;
}

static char *absolute(const char *path)
{
    char *whole = NULL, *here = *path == '/' ? NULL : getcwd(NULL, 0);
    int n = *path == '/' ? asprintf(&whole, "%s", path)
            : here       ? asprintf(&whole, "%s/%s", here, path)
                         : -1;
    free(here);
    return n < 0 ? NULL : whole;
}

static int add_root(struct options *o, const char *value,
                    const struct option_source *from)
{
    const char *eq = strchr(value, '=');
    if (!eq || !eq[1])
        return bad(from, "'%s' is not NAME=DIR", value);
    if (!is_name(value, (size_t)(eq - value)))
        return bad(from,
                   "'%.*s' is no name for a data root: letters, digits and "
                   "._- only",
                   (int)(eq - value), value);
    for (size_t i = 0; i < o->n_data_roots; i++)
        if (strlen(o->data_roots[i].name) == (size_t)(eq - value) &&
            !strncmp(o->data_roots[i].name, value, (size_t)(eq - value)))
            return bad(from, "there are two data roots '%s'",
                       o->data_roots[i].name);
    void *more =
        realloc(o->data_roots, (o->n_data_roots + 1) * sizeof(*o->data_roots));
    if (!more)
        return no_memory(from->err);
    o->data_roots = more;
    struct data_root *root = &o->data_roots[o->n_data_roots];
    root->name = strndup(value, (size_t)(eq - value));
    root->path = realpath(eq + 1, NULL);
    if (!root->path) /* it may come later: a disk that is not there yet */
        root->path = absolute(eq + 1);
    o->n_data_roots++;
    return root->name && root->path ? 0 : no_memory(from->err);
}

static int add_host(struct options *o, const char *value,
                    const struct option_source *from)
{
    if (!*value || strpbrk(value, "/ \t@[]"))
        return bad(from, "'%s' is no host name", value);
    void *more = realloc(o->hosts, (o->n_hosts + 1) * sizeof(*o->hosts));
    if (!more)
        return no_memory(from->err);
    o->hosts = more;
    o->hosts[o->n_hosts] = strdup(value);
    return o->hosts[o->n_hosts++] ? 0 : no_memory(from->err);
}

static int add_share(struct options *o, const char *value,
                     const struct option_source *from)
{
    const char *eq = strrchr(value, '='); /* an owner may have one in it */
    char *end;
    double weight = eq ? strtod(eq + 1, &end) : 0;
    if (!eq || eq == value || !eq[1] || *end)
        return bad(from, "'%s' is not OWNER=WEIGHT", value);
    if (!(weight >= SHARE_MIN && weight <= SHARE_MAX))
        return bad(from, "the weight of '%.*s' must be from %g to %g",
                   (int)(eq - value), value, SHARE_MIN, SHARE_MAX);
    for (size_t i = 0; i < o->n_shares; i++)
        if (strlen(o->shares[i].owner) == (size_t)(eq - value) &&
            !strncmp(o->shares[i].owner, value, (size_t)(eq - value)))
            return bad(from, "there are two shares of '%s'",
                       o->shares[i].owner);
    void *more = realloc(o->shares, (o->n_shares + 1) * sizeof(*o->shares));
    if (!more)
        return no_memory(from->err);
    o->shares = more;
    char *owner = strndup(value, (size_t)(eq - value));
    if (!owner)
        return no_memory(from->err);
    o->shares[o->n_shares++] = (struct share){owner, weight};
    return 0;
}

static int set_seconds(int *ret, const char *value, int min,
                       const struct option_source *from)
{
    char *end;
    long n = strtol(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || n < min || n > SECONDS_MAX)
        return bad(from, "'%s' is not a number of seconds from %d to %d", value,
                   min, SECONDS_MAX);
    *ret = (int)n;
    return 0;
}

static int set_workers(struct options *o, const char *value,
                       const struct option_source *from)
{
    char *end;
    long n = strtol(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || n < 0 || n > WORKERS_MAX)
        return bad(from, "'%s' is not a number of workers from 0 to %d", value,
                   WORKERS_MAX);
    o->workers = (int)n;
    return 0;
}

int option_set(struct options *o, enum option_id id, const char *value,
               const struct option_source *from)
{
    switch (id) {
    case OPT_STATE:
        if (!*value)
            return bad(from, "names no folder");
        free(o->state);
        o->state = strdup(value);
        return o->state ? 0 : no_memory(from->err);
    case OPT_LISTEN:
        return add_listen(o, value, from);
    case OPT_WORKERS:
        return set_workers(o, value, from);
    case OPT_DATA_ROOT:
        return add_root(o, value, from);
    case OPT_HOST:
        return add_host(o, value, from);
    case OPT_SHARE:
        return add_share(o, value, from);
    case OPT_AGE:
        return set_seconds(&o->age_s, value, 1, from);
    case OPT_LEASE:
        return set_seconds(&o->lease_s, value, 2, from);
    case OPT_DRAIN_TIMEOUT:
        return set_seconds(&o->drain_timeout_s, value, 0, from);
    default:
        return 0;
    }
}

/* ---- of a config file ---- */

int option_set_json(struct options *o, enum option_id id, const json_t *value,
                    const struct option_source *from)
{
    char number[32];
    if (id == OPT_WORKERS || id == OPT_AGE || id == OPT_LEASE ||
        id == OPT_DRAIN_TIMEOUT) {
        if (!json_is_integer(value))
            return bad(from, "must be a whole number");
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(value));
        return option_set(o, id, number, from);
    }
    if (id == OPT_SHARE) {
        const char *owner;
        json_t *weight;
        if (!json_is_object(value))
            return bad(from, "must be an object of owners and weights");
        json_object_foreach((json_t *)value, owner, weight)
        {
            AUTO_FREE char *pair = NULL;
            if (!json_is_number(weight))
                return bad(from, "the weight of '%s' must be a number", owner);
            if (asprintf(&pair, "%s=%.17g", owner, json_number_value(weight)) <
                0) {
                pair = NULL;
                return no_memory(from->err);
            }
            int r = option_set(o, id, pair, from);
            if (r < 0)
                return r;
        }
        return 0;
    }
    if (id == OPT_DATA_ROOT) {
        const char *name;
        json_t *path;
        if (!json_is_object(value))
            return bad(from, "must be an object of names and folders");
        json_object_foreach((json_t *)value, name, path)
        {
            AUTO_FREE char *pair = NULL;
            if (!json_is_string(path))
                return bad(from, "the folder of '%s' must be a string", name);
            if (asprintf(&pair, "%s=%s", name, json_string_value(path)) < 0) {
                pair = NULL;
                return no_memory(from->err);
            }
            int r = option_set(o, id, pair, from);
            if (r < 0)
                return r;
        }
        return 0;
    }
    if (json_is_string(value))
        return option_set(o, id, json_string_value(value), from);
    if (!option_descs[id].many || !json_is_array(value))
        return bad(from, option_descs[id].many
                             ? "must be a string or a list of them"
                             : "must be a string");
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one)
    {
        if (!json_is_string(one))
            return bad(from, "must be a list of strings");
        int r = option_set(o, id, json_string_value(one), from);
        if (r < 0)
            return r;
    }
    return 0;
}
