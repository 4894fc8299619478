// api.js - the page's one way to the server: requests, and keeping a view live.
//
// A view runs a loop of long polls (`keepLive`). When the server cannot be
// reached, `connection` says so, the loop tries again with growing pauses, and
// the view goes on where it was: nobody has to reload.

// An answer that was not 2xx: RFC 9457's members, as far as they came.
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `the server answered ${status}`);
    this.status = status;
    this.pointer = body?.pointer;
  }
}

// No answer at all.
export class Unreachable extends Error {}

// Whether the server answers; tells whoever listens for 'change'.
class Connection extends EventTarget {
  lost = false;
  seenAt = null; // when the last answer came

  found() {
    this.seenAt = Date.now();
    if (this.lost) {
      this.lost = false;
      this.dispatchEvent(new Event('change'));
    }
  }

  broke() {
    this.lost = true;
    this.dispatchEvent(new Event('change'));
  }

  // Cut short all pauses between tries.
  tryNow() {
    this.dispatchEvent(new Event('now'));
  }
}
export const connection = new Connection();
addEventListener('online', () => connection.tryNow());

const ANSWER_WITHIN_S = 15;

async function request(method, path, { body, waits = 0, signal } = {}) {
  // A host that went silent (asleep, unplugged) sends no reset: give up on it.
  const late = AbortSignal.timeout((waits + ANSWER_WITHIN_S) * 1000);
  let response, answer;
  try {
    response = await fetch(path, {
      method,
      headers: {
        Accept: 'application/json',
        ...(body && { 'Content-Type': 'application/json' }),
      },
      body: body && JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, late]) : late,
      cache: 'no-store',
      redirect: 'error',
    });
    answer = await response.text();
  } catch (error) {
    if (signal?.aborted)
      throw signal.reason;
    throw new Unreachable(String(error?.message ?? error));
  }
  connection.found();
  let json = null;
  try {
    json = answer === '' ? null : JSON.parse(answer);
  } catch {
    if (response.ok)
      throw new Problem(response.status, { detail: `${path} did not answer with JSON` });
  }
  if (!response.ok)
    throw new Problem(response.status, json);
  return json;
}

export const get = (path, options) => request('GET', path, options);
export const post = (path, body, options) => request('POST', path, { ...options, body });

// "/v1/jobs" and {limit: 50} → "/v1/jobs?limit=50"; what is null is left out.
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, v]) => v !== null && v !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// The pages of a list, one after another, from `cursor` on.
export async function* pages(path, { cursor = null, limit = 200 }, options) {
  do {
    const page = await get(withQuery(path, { limit, cursor }), options);
    yield page;
    cursor = page.next ?? null;
  } while (cursor !== null);
}

// Resolves after `ms`, or earlier when the user asks for a try or the signal
// aborts.
function pause(ms, signal) {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer);
      connection.removeEventListener('now', end);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    connection.addEventListener('now', end);
    signal.addEventListener('abort', end);
  });
}

// A tab that nobody looks at asks nothing: browsers allow six connections to a
// server, and a long poll holds one.
function looked(signal) {
  if (!document.hidden)
    return Promise.resolve();
  return new Promise(resolve => {
    const end = () => {
      if (document.hidden && !signal.aborted)
        return;
      document.removeEventListener('visibilitychange', end);
      signal.removeEventListener('abort', end);
      resolve();
    };
    document.addEventListener('visibilitychange', end);
    signal.addEventListener('abort', end);
  });
}

const RETRY_FIRST_MS = 500, RETRY_MAX_MS = 8000;

// Run `round` again and again until the signal aborts. It is told whether an
// answer is wanted at once (the first time, and after a break) or may wait for
// news, and returns how many ms to rest before the next one. Rounds that find no
// server, or one that is just starting or stopping (503), are tried again; any
// other error ends the loop and is thrown.
export async function keepLive(signal, round) {
  let delay = RETRY_FIRST_MS, atOnce = true;
  while (!signal.aborted) {
    await looked(signal);
    try {
      const rest = await round(atOnce);
      delay = RETRY_FIRST_MS;
      atOnce = false;
      if (rest > 0)
        await pause(rest, signal);
    } catch (error) {
      if (signal.aborted)
        return;
      if (!(error instanceof Unreachable) && error.status !== 503)
        throw error;
      atOnce = true;
      connection.broke();
      await pause(delay, signal);
      delay = Math.min(delay * 2, RETRY_MAX_MS);
    }
  }
}
