import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { Server, request, withServer } from '../harness.mjs';

let s;
before(async () => { s = await Server.start({ workers: 0 }); });
after(() => s.stop());

const closed = ['/v1/jobs', '/v1/jobs/1', '/v1/jobs/1/leases', '/v1/jobs/1/model', '/v1/datasets', '/v1/datasets/chess',
  '/v1/workers', '/v1/info', '/metrics', '/openapi.json', '/v1/nothing-here'];

test('everything but the page and the probes asks for the token', async () => {
  for (const target of closed) {
    for (const Authorization of [null, 'Bearer', 'Bearer ', `Bearer ${s.token}x`, `Bearer ${s.token.slice(0, -1)}`, `Basic ${s.token}`, s.token]) {
      const r = await s.get(target, { Authorization });
      assert.equal(r.status, 401, `${target} with ${Authorization}: ${r.text}`);
      r.problem(401);
      assert.match(r.headers['www-authenticate'] ?? '', /^Bearer/);
    }
  }
  for (const target of ['/', '/livez', '/readyz']) (await s.get(target, { Authorization: null })).expect(200);
});

test('a refused request changed nothing', async () => {
  for (const [method, target] of [['POST', '/v1/jobs'], ['PUT', '/v1/datasets/d/shards/a.jsonl'], ['POST', '/v1/leases'], ['DELETE', '/v1/jobs/1']])
    (await s.request(method, target, method === 'DELETE' ? undefined : '{}', { Authorization: null })).problem(401);
  assert.deepEqual((await s.get('/v1/jobs')).expect(200).json.items, []);
  assert.deepEqual((await s.get('/v1/datasets')).expect(200).json.items, []);
});

test('the scheme is not case-sensitive, the token is', async () => {
  (await s.get('/v1/jobs', { Authorization: `bearer ${s.token}` })).expect(200);
  const swapped = [...s.token].map((c) => (c === c.toLowerCase() ? c.toUpperCase() : c.toLowerCase())).join('');
  (await s.get('/v1/jobs', { Authorization: `Bearer ${swapped}` })).problem(401);
});

test('token and url are files of their own; the token is only for its owner and is kept', async () => {
  await withServer({ workers: 0 }, async (one) => {
    assert.equal(fs.statSync(`${one.dir}/token`).mode & 0o777, 0o600);
    assert.match(one.token, /^[A-Za-z0-9_-]{32,}$/);
    const { token } = one;
    assert.deepEqual(await one.terminate(), { code: 0, signal: null });
    await one.launch();
    assert.equal(one.token, token);
    (await one.get('/v1/jobs')).expect(200);
  });
});

test('the printed code logs the page in, once', async () => {
  const code = new URL(s.loginUrl).hash.replace('#login=', '');
  const login = (body) => request(s.url, { method: 'POST', path: '/v1/login', body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
  (await login({ code: `${code}x` })).problem(401);
  const r = await login({ code });
  assert.ok(r.status === 200 || r.status === 204, r.text);
  const cookie = [r.headers['set-cookie']].flat().join('\n');
  assert.match(cookie, /^pawl_[0-9a-f]+=[A-Za-z0-9_-]{20,};/);
  assert.match(cookie, /HttpOnly/i);
  assert.match(cookie, /SameSite=Strict/i);
  assert.ok(!cookie.includes(s.token), 'the cookie is not the token');
  const Cookie = cookie.split(';')[0];
  (await s.get('/v1/jobs', { Authorization: null, Cookie })).expect(200);
  (await s.get('/v1/jobs', { Authorization: null, Cookie: `${Cookie}x` })).problem(401);
  (await login({ code })).problem(401); // a second use
  (await login({ code: 'guess', more: 1 })).problem(400, '/more');
});
