import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { spawnSync } from 'node:child_process';
import http from 'node:http';
import zlib from 'node:zlib';
import { Server, sha256, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

let s;
before(async () => { s = await Server.start({ workers: 0 }); });
after(() => s.stop());

const file = (dataset, shard) => `${s.dir}/datasets/${dataset}/${shard}`;

test('a pipe in a shard\'s place, or a folder taken away, holds nobody up', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('set', { 'a.jsonl': tinyShard(3) });
    fs.rmSync(`${s.dir}/datasets/set/a.jsonl`);
    assert.equal(spawnSync('mkfifo', [`${s.dir}/datasets/set/a.jsonl`]).status, 0);
    for (let i = 0; i < 5; i++) (await s.get('/v1/datasets/set/shards/a.jsonl')).problem(500);
    fs.rmSync(`${s.dir}/tmp`, { recursive: true });
    await s.upload('set', { 'b.jsonl': tinyShard(3) });
  });
});

test('a shard is stored as it came, and the manifest says what it is', async () => {
  const bytes = tinyShard(100);
  const r = await s.put('/v1/datasets/d1/shards/a.jsonl', bytes, { 'Content-Type': 'application/x-ndjson' });
  r.expect(201);
  assert.equal(r.json.bytes, Buffer.byteLength(bytes));
  assert.equal(r.json.records, 100);
  assert.equal(fs.readFileSync(file('d1', 'a.jsonl'), 'utf8'), bytes);
  const m = (await s.get('/v1/datasets/d1')).expect(200).json;
  assert.equal(m.records, 100);
  const list = (await s.get('/v1/datasets')).expect(200).json.items;
  assert.ok(list.some((d) => d.name === 'd1'));
});

test('the same bytes again are fine, other bytes a conflict that changes nothing', async () => {
  const one = tinyShard(10);
  (await s.put('/v1/datasets/d2/shards/a.jsonl', one)).expect(201);
  const again = await s.put('/v1/datasets/d2/shards/a.jsonl', one);
  assert.ok([200, 201].includes(again.status), again.text);
  (await s.put('/v1/datasets/d2/shards/a.jsonl', tinyShard(11))).problem(409);
  assert.equal(fs.readFileSync(file('d2', 'a.jsonl'), 'utf8'), one);
  assert.equal((await s.get('/v1/datasets/d2')).json.records, 10);
});

test('untyped and ndjson bodies are taken, others refused', async () => {
  (await s.put('/v1/datasets/d3/shards/a.jsonl', tinyShard(1))).expect(201);
  (await s.put('/v1/datasets/d3/shards/b.jsonl', tinyShard(1), { 'Content-Type': 'application/x-ndjson' })).expect(201);
  (await s.put('/v1/datasets/d3/shards/c.jsonl', tinyShard(1), { 'Content-Type': 'image/png' })).problem(415);
  assert.deepEqual(fs.readdirSync(`${s.dir}/datasets/d3`).sort(), ['a.jsonl', 'b.jsonl']);
});

test('compressed bytes are refused by name, whatever the shard is called', async () => {
  const gz = zlib.gzipSync(tinyShard(20_000, 7));
  const said = (await s.put('/v1/datasets/dz/shards/a.jsonl', gz)).problem(415);
  assert.match(said.detail, /gzip/);
  (await s.put('/v1/datasets/dz/shards/b.jsonl', Buffer.from('28b52ffd0400', 'hex'))).problem(415);
  (await s.get('/v1/datasets/dz')).problem(404);
  assert.deepEqual(fs.readdirSync(`${s.dir}/tmp`), []);
});

test('an upload that breaks off is no shard, and what is kept of it goes when it is sent anew', async () => {
  const u = new URL(s.url);
  for (const [name, framing] of [['a', { 'Content-Length': 10_000_000 }], ['b', { 'Transfer-Encoding': 'chunked' }]]) {
    const target = `/v1/datasets/d4/shards/${name}.jsonl`;
    await new Promise((done) => {
      const req = http.request({ method: 'PUT', path: target, host: u.hostname, port: u.port, agent: false,
        headers: { Authorization: `Bearer ${s.token}`, ...framing } });
      req.on('error', () => done());
      req.on('close', () => done());
      req.write(tinyShard(20_000), () => req.destroy());
    });
    await until('it to be kept', async () => (await s.request('HEAD', target)).headers['upload-offset'] === String(1 << 20));
  }
  assert.ok(!fs.existsSync(file('d4', 'a.jsonl')));
  (await s.get('/v1/datasets/d4')).problem(404);
  for (const name of ['a', 'b']) (await s.put(`/v1/datasets/d4/shards/${name}.jsonl`, tinyShard(5))).expect(201);
  await until('the temporary files to go', () => fs.readdirSync(`${s.dir}/tmp`).length === 0);
});

test('a large shard streams to disk: the server does not grow with it', async () => {
  const bytes = Buffer.from(tinyShard(50_000).repeat(12)); // ~ 40 MB
  const rss = () => Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${s.pid}/status`, 'utf8'))[1]) / 1024;
  const before = rss();
  const r = (await s.put('/v1/datasets/d5/shards/a.jsonl', bytes)).expect(201);
  assert.equal(r.json.records, 600_000);
  assert.ok(rss() - before < 24, `grew by ${rss() - before} MB`);
  assert.equal(sha256(fs.readFileSync(file('d5', 'a.jsonl'))), sha256(bytes));
});

test('two at once for one name: one wins, the file is one of the two', async () => {
  const a = tinyShard(3000), b = tinyShard(4000);
  const got = await Promise.all([a, b, a, b].map((x) => s.put('/v1/datasets/d6/shards/a.jsonl', x)));
  const statuses = got.map((r) => r.status);
  assert.ok(statuses.every((x) => [200, 201, 409].includes(x)), statuses.join());
  assert.ok(statuses.includes(201));
  const stored = fs.readFileSync(file('d6', 'a.jsonl'), 'utf8');
  assert.ok(stored === a || stored === b);
  assert.equal((await s.get('/v1/datasets/d6')).json.records, stored === a ? 3000 : 4000);
});

test('names are plain', async () => {
  for (const name of ['.x', '-x', 'a%20b', 'ä', 'a'.repeat(129), 'a%2fb', '..'])
    assert.ok([400, 404].includes((await s.put(`/v1/datasets/${name}/shards/a.jsonl`, tinyShard(1))).status), name);
});

test('a dataset that a job needs stays; one that nobody needs can go', async () => {
  await s.upload('d7', { 'a.jsonl': tinyShard(20) });
  const job = await s.submit(tinySpec({ data: { dataset: 'd7' } }));
  (await s.delete('/v1/datasets/d7/shards/a.jsonl')).problem(409);
  (await s.delete('/v1/datasets/d7')).problem(409);
  assert.ok(fs.existsSync(file('d7', 'a.jsonl')));
  (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
  await s.waitState(job.id, 'canceled');
  (await s.delete(`/v1/jobs/${job.id}`)).expect(204);
  const r = await s.delete('/v1/datasets/d7');
  assert.ok([200, 204].includes(r.status), r.text);
  (await s.get('/v1/datasets/d7')).problem(404);
  await until('the file to go', () => !fs.existsSync(file('d7', 'a.jsonl')));
});

test('uploads survive kill -9 of the server', async () => {
  await s.upload('d8', { 'a.jsonl': tinyShard(30) });
  await s.kill9();
  await s.launch();
  assert.equal((await s.get('/v1/datasets/d8')).expect(200).json.records, 30);
  assert.equal(fs.readFileSync(file('d8', 'a.jsonl'), 'utf8'), tinyShard(30));
});
