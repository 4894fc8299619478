/* POST /v1/login: the page's cookie, for the code of the URL that pawld printed
 * or for the token. */
#include <stdio.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/server.h"
#include "server/session.h"

int handle_login(struct ctx *ctx, struct request *req, struct reply *ret,
                 struct err *err)
{
    struct server *s = ctx->server;
    struct json_read in;
    char id[65], cookie[200];
    int r;

    json_read_open(&in, req->json, "", err, "code", "token", NULL);
    const char *code = json_read_string(&in, "code", 128, NULL);
    const char *token = json_read_string(&in, "token", 128, NULL);
    if (in.r < 0)
        return in.r;
    if (!code == !token)
        return err_set(err, ERR_INVALID, "send either \"code\" or \"token\"");
    if (token && !secret_equal(token, s->token))
        return err_set(err, ERR_UNAUTHORIZED,
                       "the token is not this server's: it lies in the state "
                       "folder's file 'token'");
    r = code ? session_by_code(s->sessions, ctx, code, id, err)
             : session_open(s->sessions, ctx, id, err);
    if (r < 0)
        return r;
    snprintf(cookie, sizeof(cookie),
             "pawl_%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict",
             s->instance, id, SESSION_DAYS * 24 * 3600);
    reply_header(ret, "Set-Cookie", cookie);
    return reply_json(ret, 200, json_pack("{s:s}", "instance", s->instance));
}
