// GET /v1/backup: what is in it, and clients that are slow, gone or many.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { moment, randomSource, Server, sha256, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const sqlite = (file, sql) => {
  const r = spawnSync('sqlite3', [file, sql], { encoding: 'utf8' });
  assert.equal(r.status, 0, r.stderr);
  return r.stdout.trim();
};
const tmp = (s) => fs.readdirSync(`${s.dir}/tmp`, { recursive: true });
// Copies have no name, but somebody may still hold them.
const held = (s) => fs.readdirSync(`/proc/${s.pid}/fd`).filter((fd) => {
  try { return fs.readlinkSync(`/proc/${s.pid}/fd/${fd}`).endsWith('(deleted)'); } catch { return false; }
});

// A job with states of `mb` each at steps 1 … n, its lease still open.
async function saved(s, { n = 3, mb = 5, keep = 100 } = {}) {
  await s.upload('tiny', { 'a.jsonl': tinyShard(24), 'b.jsonl': tinyShard(8) });
  const job = await s.submit(tinySpec({ runtime: { keep } }));
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  for (let step = 1; step <= n; step++)
    (await w.checkpoint(await w.save(step, { tensors: madeUp(step, mb * 250_000) }))).expect(201);
  return { job, w };
}

// A client that reads the head of an answer and no more than fits into its buffers.
function stalled(s) {
  return new Promise((resolve, reject) => {
    const u = new URL(s.url);
    const req = http.request({ path: '/v1/backup', host: u.hostname, port: u.port, agent: false, headers: { Authorization: `Bearer ${s.token}` } }, (res) => {
      res.pause();
      const ended = new Promise((done) => {
        res.on('end', () => done(res.complete ? 'whole' : 'cut'));
        res.on('error', () => done('cut'));
        res.on('close', () => done(res.complete ? 'whole' : 'cut'));
      });
      resolve({ status: res.statusCode, res, ended, close: () => req.destroy() });
    });
    req.on('error', reject);
    req.end();
  });
}

test('a backup holds both databases and the shards, and nothing that opens a door', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const { job } = await saved(s);
    const r = (await s.get('/v1/backup')).expect(200);
    assert.equal(r.headers['content-type'], 'application/x-tar');
    assert.match(r.headers['content-disposition'], /attachment; filename="pawl-backup\.tar"/);
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));
    try {
      const tar = spawnSync('tar', ['xvf', '-', '-C', dir], { input: r.body, encoding: 'utf8' });
      assert.equal(tar.status, 0, tar.stderr);
      assert.equal(tar.stdout, 'datasets/tiny/a.jsonl\ndatasets/tiny/b.jsonl\ncheckpoints.db\npawl.db\n', 'pawl.db comes last');
      for (const name of ['a', 'b'])
        assert.deepEqual(fs.readFileSync(`${dir}/datasets/tiny/${name}.jsonl`), fs.readFileSync(`${s.dir}/datasets/tiny/${name}.jsonl`));
      for (const db of ['pawl.db', 'checkpoints.db']) {
        assert.equal(sqlite(`${dir}/${db}`, 'PRAGMA integrity_check; PRAGMA foreign_key_check'), 'ok');
        assert.equal(sqlite(`${dir}/${db}`, 'PRAGMA user_version'), sqlite(`${s.dir}/${db}`, 'PRAGMA user_version'));
        assert.ok(!fs.readFileSync(`${dir}/${db}`).includes(s.token));
        assert.equal(fs.statSync(`${dir}/${db}`).mode & 0o777, 0o600);
      }
      assert.equal(sqlite(`${dir}/checkpoints.db`, 'PRAGMA page_size; PRAGMA auto_vacuum'), '65536\n2');
      assert.equal(sqlite(`${dir}/pawl.db`, `SELECT count(*) FROM checkpoints WHERE job_id = ${job.id}`), '3');
      assert.equal(sqlite(`${dir}/checkpoints.db`, 'SELECT count(*) FROM chunks'), '15');
    } finally {
      fs.rmSync(dir, { recursive: true, force: true });
    }
    assert.deepEqual(tmp(s), []);

    (await s.request('HEAD', '/v1/backup')).expect(200);
    (await s.get('/v1/backup', { Authorization: null })).problem(401);
    assert.equal((await s.get('/v1/backup?all=1')).problem(400).parameter, 'all');
    (await s.post('/v1/backup')).problem(405);
  });
});

test('what nobody names any more is left out', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const { job, w } = await saved(s, { n: 4 });
    await w.chunk(Buffer.from('a chunk that no manifest names'));
    const [first] = await s.checkpoints(job.id);
    (await s.delete(`/v1/checkpoints/${first.id}`)).expect(204);
    const tar = (await s.get('/v1/backup')).expect(200).body;
    assert.ok(tar.length < 3.5 * 5e6 && tar.length > 3 * 5e6, `${tar.length} bytes`);
  });
});

test('a client that does not read holds its own copy, and nothing else', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    const { job, w } = await saved(s, { n: 8 });
    const slow = await stalled(s);
    assert.equal(slow.status, 200);
    // the copies have no names; the shards' second links wait for their turn
    assert.deepEqual(tmp(s).filter((f) => /db/.test(f)), []);
    assert.equal(held(s).length, 2);
    const copied = fs.statSync(`${s.dir}/checkpoints.db`).size;

    // meanwhile what is not kept goes, bytes and all, and so do shards
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { keep: 2 } })).expect(200);
    await s.upload('other', { 'x.jsonl': tinyShard(8) });
    (await s.delete('/v1/datasets/other')).expect(204);
    await until('pruning and sweeping', () => sqlite(`${s.dir}/checkpoints.db`, 'SELECT count(*) FROM chunks') === '10');
    await until('the file to go', () => !fs.existsSync(`${s.dir}/datasets/other`));
    await until('checkpoints.db to shrink', () => fs.statSync(`${s.dir}/checkpoints.db`).size < copied - 20e6);

    // and no WAL waits for the client
    for (let i = 0; i < 40; i++)
      await Promise.all(Array.from({ length: 50 }, () => w.heartbeat({ logs: [{ at_ms: Date.now(), level: 'info', text: 'x'.repeat(2000) }] }).then((r) => r.expect(200))));
    const { store } = (await s.get('/v1/info')).expect(200).json;
    t.diagnostic(JSON.stringify(store));
    assert.ok(store.pawl_db.wal_bytes < 20e6 && store.checkpoints_db.wal_bytes < 20e6, JSON.stringify(store));

    // it hangs up: all of it goes
    slow.close();
    await until('the copies to go', () => held(s).length === 0 && tmp(s).length === 0);
    // or it reads on in the end, and has the whole
    const late = await stalled(s);
    await moment(300);
    late.res.resume();
    assert.equal(await late.ended, 'whole');
    await until('the copies to go', () => held(s).length === 0 && tmp(s).length === 0);
  });
});

test('a client that hangs up while the copies are made leaves nothing', async (t) => {
  const random = randomSource(t);
  await withServer({ workers: 0 }, async (s) => {
    await saved(s, { n: 8, mb: 8 });
    for (let i = 0; i < 8; i++) {
      const u = new URL(s.url);
      const req = http.request({ path: '/v1/backup', host: u.hostname, port: u.port, agent: false, headers: { Authorization: `Bearer ${s.token}` } });
      req.on('error', () => {});
      req.end();
      await moment(random() * 150);
      req.destroy();
    }
    await until('all to go', () => held(s).length === 0 && tmp(s).length === 0);
    (await s.get('/v1/backup')).expect(200);
  });
});

test('so many at a time and no more; each is whole', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await saved(s, { n: 2 });
    const four = await Promise.all([1, 2, 3, 4].map(() => stalled(s)));
    assert.deepEqual(four.map((c) => c.status), [200, 200, 200, 200]);
    const p = (await s.get('/v1/backup')).problem(503);
    assert.match(p.detail, /4 backups are under way/);
    (await s.get('/v1/jobs')).expect(200);
    four[0].close();
    for (const c of four.slice(1)) c.res.resume();
    assert.deepEqual(await Promise.all(four.slice(1).map((c) => c.ended)), ['whole', 'whole', 'whole']);
    await until('room for another', async () => (await s.get('/v1/backup')).status === 200);
    const sums = await Promise.all([1, 2].map(async () => sha256((await s.get('/v1/backup')).expect(200).body)));
    assert.equal(sums.length, 2);
    await until('the copies to go', () => held(s).length === 0 && tmp(s).length === 0);
  });
});

test('SIGTERM cuts a backup short in a way that its client sees, and waits for none', async (t) => {
  const random = randomSource(t);
  await withServer({ workers: 0 }, async (s) => {
    await saved(s, { n: 8, mb: 8 });
    const slow = await stalled(s);
    assert.equal(slow.status, 200);
    let began = Date.now();
    assert.equal((await s.terminate()).code, 0);
    slow.res.resume();
    assert.equal(await slow.ended, 'cut');
    t.diagnostic(`stopped after ${Date.now() - began} ms`);
    assert.ok(Date.now() - began < 15_000);
    assert.deepEqual(tmp(s), []);
    // one that is read all along
    await s.launch();
    const read = await stalled(s);
    read.res.on('data', () => { read.res.pause(); setTimeout(() => read.res.resume(), 20); });
    read.res.resume();
    began = Date.now();
    assert.equal((await s.terminate()).code, 0);
    assert.equal(await read.ended, 'cut');
    t.diagnostic(`stopped after ${Date.now() - began} ms`);
    // while the copies are made
    for (let i = 0; i < 4; i++) {
      await s.launch();
      const asked = s.get('/v1/backup').then((r) => r.status, () => 'cut');
      await moment(random() * 120);
      began = Date.now();
      assert.equal((await s.terminate()).code, 0);
      assert.ok(Date.now() - began < 15_000);
      const said = await asked;
      assert.ok(said === 'cut' || said === 503 || said === 200, String(said));
      assert.deepEqual(tmp(s), []);
    }
  });
});

test('what a killed server left of backups goes at the next start', async (t) => {
  const random = randomSource(t);
  await withServer({ workers: 0 }, async (s) => {
    await saved(s, { n: 8, mb: 8 });
    let left = 0;
    for (let i = 0; i < 6; i++) {
      const asked = s.get('/v1/backup').catch(() => null);
      await moment(20 + random() * 100);
      await s.kill9();
      await asked;
      left += tmp(s).length;
      await s.launch();
      assert.deepEqual(tmp(s), []);
    }
    t.diagnostic(`${left} files were left in all`);
    assert.equal(sqlite(`${s.dir}/checkpoints.db`, 'PRAGMA integrity_check'), 'ok');
    (await s.get('/v1/backup')).expect(200);
  });
});
