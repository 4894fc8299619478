/* when.h - times as people and scripts read them: RFC 3339, UTC, with ms. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/rfc3339.h"

#define WHEN_MAX RFC3339_MAX
/* "2026-01-31T12:00:00.000Z" */
void when_text(int64_t ms, char out[WHEN_MAX]);
json_t *when_json(int64_t ms); /* a string; null for 0 or less */
