// The files under load, and a state folder that cannot be used.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { FakeWorker } from '../fake_worker.mjs';
import { bin, moment, Server, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const wal = (s) => Math.max(...['pawl.db', 'checkpoints.db'].map((f) => (fs.existsSync(`${s.dir}/${f}-wal`) ? fs.statSync(`${s.dir}/${f}-wal`).size : 0)));
const run = (dir) => spawnSync(`${bin}/pawld`, ['--state', dir, '--workers', '0', '--listen', '127.0.0.1:0'], { encoding: 'utf8', timeout: 30_000 });

// A client that reads a byte each second, over a window as small as it gets.
function dribble(s, target) {
  const u = new URL(s.url);
  const socket = net.connect({ host: u.hostname, port: u.port, highWaterMark: 16 });
  socket.pause();
  socket.write(`GET ${target} HTTP/1.1\r\nHost: ${u.host}\r\nAuthorization: Bearer ${s.token}\r\n\r\n`);
  socket.on('error', () => {});
  const timer = setInterval(() => { socket.read(1); }, 1000);
  return { close: () => { clearInterval(timer); socket.destroy(); } };
}

test('QUE-06: the log stays small while somebody reads a list byte by byte and 50,000 heartbeats come', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(400) });
    for (let i = 0; i < 10; i++)
      await Promise.all(Array.from({ length: 30 }, () => s.post('/v1/jobs', tinySpec({ runtime: { restart: { seconds: 3600 } } })).then((r) => r.expect(201))));
    const workers = [];
    for (let i = 0; i < 32; i++) {
      const w = new FakeWorker(s);
      (await w.claim()).expect(201);
      workers.push(w);
    }
    const readers = ['/v1/jobs?limit=1000', '/v1/jobs?limit=1000', `/v1/jobs/${workers[0].lease.lease.job}/events`, '/v1/workers'].map((p) => dribble(s, p));
    await moment(50);
    const total = Number(process.env.TEST_BEATS ?? 50_000);
    let most = 0, sent = 0;
    try {
      await Promise.all(workers.map(async (w, k) => {
        for (let i = k; i < total; i += workers.length) {
          const step = 1 + Math.floor(i / workers.length);
          (await w.heartbeat({ position: w.position(Math.min(step, 99)), metrics: [[Math.min(step, 99), { loss: 1 / step, lr: 0.01 }]],
            memory: [{ step: Math.min(step, 99), at_ms: 1e12 + i, rss_bytes: 1e9, shapes: 1 }] })).expect(200);
          if (++sent % 500 === 0) most = Math.max(most, wal(s));
        }
      }));
      t.diagnostic(`${sent} heartbeats, the WAL had at most ${(most / 2 ** 20).toFixed(1)} MiB`);
      assert.ok(most > 0 && most < 64 * 2 ** 20);
      const { store } = (await s.get('/v1/info')).expect(200).json;
      assert.equal(store.pawl_db.wal_bytes, fs.statSync(`${s.dir}/pawl.db-wal`).size);
      assert.equal(store.warning, null);
    } finally {
      for (const r of readers) r.close();
    }
  });
});

test('/v1/info tells how large the files are, how much is free, and what to look at', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const { store } = (await s.get('/v1/info')).expect(200).json;
    for (const [name, file] of [['pawl_db', 'pawl.db'], ['checkpoints_db', 'checkpoints.db']]) {
      assert.equal(store[name].bytes, fs.statSync(`${s.dir}/${file}`).size);
      assert.ok(store[name].wal_bytes >= 0);
    }
    const { bavail, bsize } = fs.statfsSync(s.dir);
    assert.ok(Math.abs(store.free_bytes - bavail * bsize) < 2e9, `${store.free_bytes}`);
    assert.equal(store.warning, null);
  });
});

test('events page by id, oldest first, and miss none', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
    const { id } = await s.submit(tinySpec());
    for (let i = 0; i < 7; i++) {
      (await s.post(`/v1/jobs/${id}/pause`)).expect(200);
      (await s.post(`/v1/jobs/${id}/resume`)).expect(200);
    }
    const whole = (await s.get(`/v1/jobs/${id}/events?limit=1000`)).expect(200).json;
    assert.equal(whole.next, undefined);
    assert.deepEqual(whole.items.map((e) => e.kind), ['submitted', ...Array.from({ length: 7 }, () => ['paused', 'unpaused']).flat()]);
    const paged = [];
    for (let cursor = '', n = 0; ; n++) {
      const page = (await s.get(`/v1/jobs/${id}/events?limit=4${cursor}`)).expect(200).json;
      paged.push(...page.items);
      if (!page.next) { assert.equal(n, 3); break; }
      assert.equal(page.items.length, 4);
      // what comes meanwhile comes at the end
      if (n === 1) (await s.patch(`/v1/jobs/${id}`, { priority: 3 })).expect(200);
      cursor = `&cursor=${encodeURIComponent(page.next)}`;
    }
    assert.deepEqual(paged.slice(0, 15), whole.items);
    assert.deepEqual(paged.slice(15).map((e) => e.kind), ['patched']);
    for (const [i, e] of paged.entries()) {
      assert.ok(i === 0 || e.id > paged[i - 1].id);
      assert.match(e.at, /^\d{4}-\d\d-\d\dT[\d:.]+Z$/);
      assert.ok(e.cause && e.actor, JSON.stringify(e));
    }
    (await s.get(`/v1/jobs/${id}/events?cursor=x`)).problem(400);
    (await s.get('/v1/jobs/999/events')).problem(404);
  });
});

// Every change of state of job, cycle, lease and checkpoint: when, why and by whom.
test('the log of a job tells each transition, its cause and who brought it about', async () => {
  await withServer({ workers: 0, args: ['--lease', '2'] }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
    const { id } = await s.submit(tinySpec({ limits: { failures: 5 } }));
    const w = new FakeWorker(s, { name: 'ada' });
    const path_ = `/v1/jobs/${id}`;
    const all = async () => (await s.get(`${path_}/events?limit=1000`)).expect(200).json.items;
    (await w.claim()).expect(201);
    (await w.checkpoint(await w.save(1))).expect(201);
    (await s.patch(path_, { priority: 7 })).expect(200);
    (await s.post(`${path_}/pause`)).expect(200);
    (await w.checkpoint(await w.save(2), { release: w.releaseBody('yielded', 'pause', 2) })).expect(201);
    (await s.post(`${path_}/resume`)).expect(200);
    (await w.reborn().claim()).expect(201); // and falls silent
    await until('the lease to be lost', async () => (await s.leases(id)).at(-1).outcome === 'lost');
    (await w.reborn().claim()).expect(201);
    (await w.release('failed', undefined, 2, { error: { code: 'io', detail: 'the disk went', final: false } })).expect(200);
    await until('the next claim', async () => (await w.reborn().claim()).status === 201);
    (await w.release('failed', undefined, 2, { error: { code: 'data', detail: 'a bad line', final: true } })).expect(200);
    (await s.post(`${path_}/retry`)).expect(200);
    (await w.reborn().claim()).expect(201);
    (await w.checkpoint(await w.save(3))).expect(201);
    const c = (await s.checkpoints(id)).at(-1);
    (await s.patch(`/v1/checkpoints/${c.id}`, { pinned: true })).expect(200);
    (await s.patch(`/v1/checkpoints/${c.id}`, { pinned: false })).expect(200);
    (await s.delete(`/v1/checkpoints/${c.id}`)).expect(204);
    await w.finish();
    const told = (await all()).map((e) => `${e.kind} by ${e.actor}`);
    assert.deepEqual(told.filter((x) => !x.startsWith('pruned')), [
      'submitted by client',
      'started by worker ada', 'checkpoint by worker ada', 'patched by client', 'paused by client', 'checkpoint by worker ada', 'yielded by worker ada', 'unpaused by client',
      'resumed by worker ada', 'lost by server',
      'resumed by worker ada', 'failed by worker ada',
      'resumed by worker ada', 'failed by worker ada', 'failed by server', 'retried by client',
      'resumed by worker ada', 'checkpoint by worker ada', 'pinned by client', 'unpinned by client', 'deleted by client',
      'checkpoint by worker ada', 'finished by worker ada', 'completed by server',
    ]);
    for (const e of await all()) assert.ok(e.cause.length > 8 && Date.parse(e.at), JSON.stringify(e));
  });
});

test('a state folder that cannot be written is an error that names it', async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=20m', 'tmpfs', dir]).status === 0;
  try {
    if (!mounted) return t.skip('no disk can be mounted here');
    const s = await Server.start({ workers: 0, dir: `${dir}/state` });
    await s.stop();
    spawnSync('mount', ['-o', 'remount,ro', dir]);
    const r = run(`${dir}/state`);
    assert.equal(r.status, 1);
    assert.match(r.stderr, new RegExp(`^pawld: .*${dir}/state.*: Read-only file system`));
    assert.equal(r.stdout, '');
    assert.match(run(`${dir}/other`).stderr, /Read-only file system/);
  } finally {
    if (mounted) spawnSync('umount', ['-l', dir]);
    fs.rmSync(dir, { recursive: true, force: true });
  }
});
