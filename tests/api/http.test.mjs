import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { Server, tinyShard, tinySpec, until } from '../harness.mjs';

let s, tmp;
before(async () => {
  s = await Server.start({ workers: 0 });
  await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
  tmp = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-http-'));
});
after(async () => {
  fs.rmSync(tmp, { recursive: true, force: true });
  await s.stop();
});

// Bytes as they are, and all that comes back until the server closes.
function raw(bytes, { patience_ms = 20_000 } = {}) {
  const { hostname, port } = new URL(s.url);
  return new Promise((resolve, reject) => {
    const c = net.connect(Number(port), hostname);
    let got = '';
    const late = setTimeout(() => { c.destroy(); resolve({ got, closed: false }); }, patience_ms);
    c.on('connect', () => c.write(bytes));
    c.on('data', (d) => { got += d.toString('latin1'); });
    c.on('error', (e) => { if (!got) { clearTimeout(late); reject(e); } });
    c.on('close', () => { clearTimeout(late); resolve({ got, closed: true }); });
  });
}
const host = () => new URL(s.url).host;
const head = (line, ...more) => [line, ...more, '', ''].join('\r\n');

test('a request that two parsers could read in two ways is refused, and the connection closed', async () => {
  const auth = `Authorization: Bearer ${s.token}`;
  const smuggled = `GET /v1/jobs HTTP/1.1\r\nHost: ${host()}\r\n${auth}\r\n\r\n`;
  const cases = {
    'Content-Length with Transfer-Encoding': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Content-Type: application/json', 'Content-Length: 4', 'Transfer-Encoding: chunked') + `0\r\n\r\n${smuggled}`,
    'two lengths that differ': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Content-Length: 2', 'Content-Length: 40') + `{}${smuggled}`,
    'two lengths that agree': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Content-Length: 2', 'Content-Length: 2') + '{}',
    'two hosts': head('GET /v1/jobs HTTP/1.1', `Host: ${host()}`, 'Host: elsewhere', auth),
    'no host': head('GET /v1/jobs HTTP/1.1', auth),
    'two encodings': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Transfer-Encoding: chunked', 'Transfer-Encoding: identity') + '0\r\n\r\n',
    'a length that is no number': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Content-Length: 2x') + '{}',
    'a negative length': head('POST /v1/jobs HTTP/1.1', `Host: ${host()}`, auth, 'Content-Length: -2') + '{}',
  };
  for (const [what, bytes] of Object.entries(cases)) {
    const { got, closed } = await raw(bytes);
    assert.match(got, /^HTTP\/1\.1 400 /, `${what}: ${got.slice(0, 300)}`);
    assert.equal(got.match(/HTTP\/1\.[01] /g).length, 1, `${what}: one answer, not two: ${got}`);
    if (what !== 'no host') assert.ok(closed, `${what}: the connection is closed`);
  }
  (await s.get('/v1/jobs')).expect(200);
});

test('Host must name this server', async () => {
  for (const Host of ['evil.example', `evil.example:${new URL(s.url).port}`, '169.254.169.254', 'localhost.evil.example'])
    for (const target of ['/', '/livez', '/v1/jobs'])
      assert.ok([400, 403, 421].includes((await s.get(target, { Host })).status), `${Host} ${target}`);
  for (const Host of [host(), `localhost:${new URL(s.url).port}`]) (await s.get('/v1/jobs', { Host })).expect(200);
});

test('a query parameter that nobody knows, or twice, is a 400 that names it', async () => {
  const refused = async (answer, parameter) => {
    const p = (await answer).problem(400);
    assert.equal(p.parameter, parameter, JSON.stringify(p));
    assert.equal(p.pointer, undefined, 'not a JSON pointer');
    assert.ok(p.detail.includes(`'${parameter}'`), p.detail);
  };
  const before = (await s.get('/v1/jobs')).json.items.length;
  const spec = tinySpec();
  await refused(s.post('/v1/jobs?dryrun=1', spec), 'dryrun');
  await refused(s.post('/v1/jobs?dry_run=1&dry_run=0', spec), 'dry_run');
  await refused(s.post('/v1/jobs?dry_run=2', spec), 'dry_run');
  assert.equal((await s.get('/v1/jobs')).json.items.length, before, 'nothing was submitted');
  await refused(s.get('/v1/jobs?limits=3'), 'limits');
  await refused(s.get('/v1/jobs?limit=x'), 'limit');
  await refused(s.get('/v1/jobs?cursor=x'), 'cursor');
  await refused(s.get('/v1/jobs?state=tired'), 'state');
  await refused(s.get('/v1/info?as=xml'), 'as');
  await refused(s.get('/v1/workers?wait=1'), 'wait');
  (await s.get('/v1/jobs?limit=3&state=failed&kind=train&label=a=b&q=x&as=json')).expect(200);
  (await s.get('/v1/info?as=text')).expect(200);
});

test('an unknown path is 404, a known one with another method 405 with Allow', async () => {
  (await s.get('/v1/job')).problem(404);
  (await s.get('/v1/jobs/')).problem(404);
  (await s.get('/v1/jobs/abc')).problem(404);
  (await s.get('/v1/jobs/99999999999999999999')).problem(404);
  const r = await s.delete('/v1/jobs');
  r.problem(405);
  assert.match(r.headers.allow, /GET/);
  assert.match(r.headers.allow, /POST/);
});

test('a body must be JSON, whole, once, and of that type', async () => {
  (await s.post('/v1/jobs', '{"name": "x"', { 'Content-Type': 'application/json' })).problem(400);
  (await s.post('/v1/jobs', '[]', { 'Content-Type': 'application/json' })).problem(400);
  (await s.post('/v1/jobs', '{"name": "x"} {"name": "y"}', { 'Content-Type': 'application/json' })).problem(400);
  const twice = (await s.post('/v1/jobs', '{"name": "x", "name": "y"}', { 'Content-Type': 'application/json' })).problem(400);
  assert.match(twice.detail, /name/);
  (await s.post('/v1/jobs', '{"name": "x"}', { 'Content-Type': 'text/csv' })).problem(415);
  (await s.post('/v1/jobs', '', { 'Content-Type': 'application/json' })).problem(400);
  (await s.post('/v1/jobs', Buffer.from('{"name": "\xff\xfe"}', 'latin1'), { 'Content-Type': 'application/json' })).problem(400);
});

test('a body over its limit is 413, whether its length was told or not, and reaches the client', async () => {
  const big = JSON.stringify(tinySpec({ name: 'x'.repeat(9 * 1024 * 1024) }));
  for (let i = 0; i < 10; i++) {
    for (const chunked of [false, true]) {
      const r = await s.request('POST', '/v1/jobs', big, { 'Content-Type': 'application/json' }, { chunked });
      r.problem(413);
      assert.match(r.json.detail, /\d/, 'the limit is named');
    }
  }
  (await s.get('/v1/jobs')).expect(200);
});

test('a header that never ends is refused', async () => {
  const { got } = await raw(head('GET /v1/jobs HTTP/1.1', `Host: ${host()}`, `X-Long: ${'a'.repeat(200_000)}`));
  assert.match(got, /^HTTP\/1\.[01] (400|413|414|431) /);
  (await s.get('/v1/jobs')).expect(200);
});

test('connections that say nothing do not keep others out', async () => {
  const { hostname, port } = new URL(s.url);
  const idle = Array.from({ length: 200 }, () => net.connect(Number(port), hostname).on('error', () => {}));
  try {
    await Promise.all(idle.map((c) => new Promise((r) => { c.once('connect', r); c.once('error', r); })));
    const begin = Date.now();
    (await s.get('/v1/jobs')).expect(200);
    assert.ok(Date.now() - begin < 2000);
  } finally {
    for (const c of idle) c.destroy();
  }
});

test('names in paths are decoded once and stay inside their folder', async () => {
  fs.writeFileSync(`${s.dir}/datasets/secret.txt`, 'outside of every dataset\n');
  const bad = ['../secret.txt', '%2e%2e%2fsecret.txt', '%252e%252e%252fsecret.txt', '..%5csecret.txt', '%2fetc%2fhosts', 'a%00b', '.hidden', '-x', 'a'.repeat(5000), '%zz', '%c0%ae%c0%ae%2fsecret.txt'];
  for (const name of bad) {
    for (const method of ['PUT', 'DELETE', 'GET']) {
      const r = await s.request(method, `/v1/datasets/tiny/shards/${name}`, method === 'PUT' ? tinyShard(1) : undefined);
      assert.ok([400, 404, 405, 414, 431].includes(r.status), `${method} ${name}: ${r.status} ${r.text.slice(0, 200)}`);
      assert.ok(!r.text.includes('outside of every dataset'));
    }
  }
  assert.equal(fs.readFileSync(`${s.dir}/datasets/secret.txt`, 'utf8'), 'outside of every dataset\n');
  assert.deepEqual(fs.readdirSync(`${s.dir}/datasets/tiny`), ['a.jsonl']);
});

const curl = (...args) => promisify(execFile)('curl', ['-sS', '-H', `Authorization: Bearer ${s.token}`, '-w', '\n%{http_code} %{time_total} %{size_upload}', ...args], { maxBuffer: 64 << 20 })
  .then(({ stdout }) => {
    const cut = stdout.lastIndexOf('\n');
    const [status, time, sent] = stdout.slice(cut + 1).split(' ').map(Number);
    return { body: stdout.slice(0, cut), status, time, sent };
  });

test('NET-01: curl with Expect, with a length or chunked: the same answer, at once', async () => {
  for (const [kb, slow_s] of [[2, 0.9], [50, 0.9], [5 * 1024, 20]]) {
    const spec = JSON.stringify(tinySpec({ labels: { note: 'n'.repeat(100) } })).padEnd(kb * 1024);
    const shard = tinyShard(Math.ceil(kb * 1024 / 60));
    fs.writeFileSync(path.join(tmp, 'spec.json'), spec);
    fs.writeFileSync(path.join(tmp, 'shard.jsonl'), shard);
    const answers = { spec: [], shard: [] };
    for (const [i, framing] of [['0', ['-H', 'Expect: 100-continue']], ['1', ['-H', 'Transfer-Encoding: chunked', '-H', 'Expect: 100-continue']], ['2', ['-H', 'Transfer-Encoding: chunked', '-H', 'Expect:']], ['3', ['-H', 'Expect:']]]) {
      const a = await curl('-X', 'POST', '-H', 'Content-Type: application/json', '--data-binary', `@${tmp}/spec.json`, ...framing, `${s.url}/v1/jobs?dry_run=1`);
      answers.spec.push(`${a.status} ${a.status === 200 ? JSON.parse(a.body).signature : JSON.parse(a.body).title}`);
      const b = await curl('-X', 'PUT', '-H', 'Content-Type: application/x-ndjson', '--data-binary', `@${tmp}/shard.jsonl`, ...framing, `${s.url}/v1/datasets/net${kb}/shards/s${i}.jsonl`);
      assert.equal(b.status, 201, b.body);
      answers.shard.push(JSON.parse(b.body).bytes);
      // A server that leaves the expectation unanswered costs a second.
      assert.ok(a.time < slow_s && b.time < slow_s, `${kb} KB: ${a.time} s, ${b.time} s`);
    }
    assert.equal(new Set(answers.spec).size, 1, answers.spec.join('; '));
    assert.deepEqual(new Set(answers.shard), new Set([Buffer.byteLength(shard)]));
  }
});

test('NET-01: what is not acceptable is refused before the body is sent', async () => {
  fs.writeFileSync(path.join(tmp, 'big'), Buffer.alloc(3 << 20, 32));
  for (const [target, status, ...more] of [['/v1/nowhere', 404], ['/v1/jobs', 401, '-H', 'Authorization: Bearer wrong']]) {
    const { got, closed } = await raw(head(`POST ${target} HTTP/1.1`, `Host: ${host()}`,
      more.length ? more[1] : `Authorization: Bearer ${s.token}`, 'Content-Type: application/json', 'Content-Length: 3145728', 'Expect: 100-continue', 'Connection: close'), { patience_ms: 3000 });
    assert.match(got, new RegExp(`^HTTP/1\\.1 ${status} `), `${target}: ${got.slice(0, 200)} ${closed}`);
  }
});

test('a page that another site opens cannot use the API', async () => {
  const r = await s.get('/');
  assert.match(r.headers['content-security-policy'] ?? '', /default-src/);
  assert.match(r.headers['x-content-type-options'] ?? '', /nosniff/);
  assert.equal((await s.get('/v1/jobs')).headers['access-control-allow-origin'], undefined);
});

test('many readers at once all get their answer', async () => {
  const all = await Promise.all(Array.from({ length: 100 }, () => s.get('/v1/jobs')));
  assert.ok(all.every((r) => r.status === 200));
  await until('idle', async () => (await s.get('/readyz')).status === 200);
});
