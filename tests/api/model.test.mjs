import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, sha256, tinyShard, tinySpec } from '../harness.mjs';

let s, job, whole, etag;
before(async () => {
  s = await Server.start({ workers: 0 });
  await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
  job = await s.submit(tinySpec());
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  await w.finish();
  const r = (await s.get(`/v1/jobs/${job.id}/model`)).expect(200);
  whole = r.body;
  etag = r.headers.etag;
});
after(() => s.stop());

const target = () => `/v1/jobs/${job.id}/model`;

test('the model is one safetensors file, named by its digest', async () => {
  const j = await s.job(job.id);
  assert.equal(sha256(whole), j.model_sha256);
  assert.ok(etag.includes(j.model_sha256), etag);
  const size = Number(whole.readBigUInt64LE(0));
  assert.equal(size % 8, 0);
  const header = JSON.parse(whole.subarray(8, 8 + size).toString());
  assert.deepEqual(Object.keys(header).sort(), ['__metadata__', 'a.weight', 'b.bias']);
  assert.ok(!JSON.stringify(header).includes(j.name), 'no name of the job in it');
});

test('HEAD tells size and ETag, and sends nothing', async () => {
  const r = (await s.request('HEAD', target())).expect(200);
  assert.equal(r.body.length, 0);
  assert.equal(Number(r.headers['content-length']), whole.length);
  assert.equal(r.headers.etag, etag);
  assert.equal(r.headers['accept-ranges'], 'bytes');
});

test('If-None-Match saves the transfer', async () => {
  const r = (await s.get(target(), { 'If-None-Match': etag })).expect(304);
  assert.equal(r.body.length, 0);
  (await s.get(target(), { 'If-None-Match': '"another"' })).expect(200);
  (await s.get(target(), { 'If-None-Match': `"another", ${etag}` })).expect(304);
  (await s.get(target(), { 'If-None-Match': '*' })).expect(304);
});

test('ranges give exactly those bytes', async () => {
  const n = whole.length;
  for (const [range, from, to] of [
    ['bytes=0-0', 0, 1], ['bytes=0-99', 0, 100], ['bytes=100-', 100, n], ['bytes=-7', n - 7, n], [`bytes=${n - 1}-${n + 50}`, n - 1, n],
    ['bytes=1048570-1048590', 1048570, 1048591], [`bytes=-${n + 5}`, 0, n],
  ]) {
    const r = (await s.get(target(), { Range: range })).expect(206);
    assert.equal(r.headers['content-range'], `bytes ${from}-${to - 1}/${n}`, range);
    assert.ok(r.body.equals(whole.subarray(from, to)), range);
  }
  const r = await s.get(target(), { Range: `bytes=${n}-` });
  r.expect(416);
  assert.equal(r.headers['content-range'], `bytes */${n}`);
  for (const Range of ['lines=0-1', 'bytes=5-2', 'bytes=x-y']) {
    const odd = await s.get(target(), { Range });
    assert.ok(odd.status === 200 ? odd.body.equals(whole) : odd.status === 416, `${Range}: ${odd.status}`);
  }
  const joined = Buffer.concat([(await s.get(target(), { Range: 'bytes=0-1000' })).body, (await s.get(target(), { Range: 'bytes=1001-' })).body]);
  assert.equal(sha256(joined), sha256(whole));
});

test('If-Range: the part while it is the same file, else the whole', async () => {
  (await s.get(target(), { Range: 'bytes=0-9', 'If-Range': etag })).expect(206);
  assert.ok((await s.get(target(), { Range: 'bytes=0-9', 'If-Range': '"another"' })).expect(200).body.equals(whole));
});

test('the same weights give the same file, whatever the job is called', async () => {
  const other = await s.submit(tinySpec({ name: 'another name', labels: { x: 'y' }, priority: 4, runtime: { checkpoint_every: 3 } }));
  const w = new FakeWorker(s, { name: 'another worker' });
  (await w.claim()).expect(201);
  await w.finish();
  assert.ok((await s.get(`/v1/jobs/${other.id}/model`)).expect(200).body.equals(whole));
});

test('a job without a checkpoint has no model yet', async () => {
  const j = await s.submit(tinySpec());
  const r = await s.get(`/v1/jobs/${j.id}/model`);
  assert.ok([404, 409].includes(r.status), r.text);
  (await s.get('/v1/jobs/987654/model')).problem(404);
});

test('the model of an earlier checkpoint can be had', async () => {
  const [c] = await s.checkpoints(job.id);
  const r = (await s.get(`${target()}?checkpoint=${c.id}`)).expect(200);
  assert.ok(r.body.equals(whole));
  (await s.get(`${target()}?checkpoint=987654`)).problem(404);
});

test('the model outlives kill -9 of the server', async () => {
  await s.kill9();
  await s.launch();
  assert.ok((await s.get(target())).expect(200).body.equals(whole));
});

test('a damaged chunk is an answer that names it, not a transfer that breaks off', async () => {
  await s.terminate();
  const script = `
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
for (sha, data) in c.execute('SELECT sha256, data FROM chunks').fetchall():
    c.execute('UPDATE chunks SET data = ? WHERE sha256 = ?', (bytes([data[0] ^ 1]) + data[1:], sha))
c.commit()`;
  assert.equal(spawnSync('python3', ['-c', script, `${s.dir}/checkpoints.db`], { stdio: 'inherit' }).status, 0);
  await s.launch();
  const said = (await s.get(target())).problem(500);
  assert.match(said.detail, /checkpoint \d+ .*chunk 1 of \d+ is damaged/);
  (await s.get(target(), { Range: 'bytes=1048570-' })).problem(500);
  (await s.get(target(), { 'If-None-Match': etag })).expect(304);
});
