#include "server/when.h"
#include "schema/rfc3339.h"

void when_text(int64_t ms, char out[WHEN_MAX])
{
    rfc3339_text(ms, out);
}

json_t *when_json(int64_t ms)
{
    char text[WHEN_MAX];
    if (ms <= 0)
        return json_null();
    when_text(ms, text);
    return json_string(text);
}
