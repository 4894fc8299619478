// A worker that has the server's address and token, and nothing else: shards come
// over HTTP, through a cache that may be small, damaged or emptied, from a server
// that may be away. The model is the one that a worker beside the data makes.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { proxy } from '../proxy.mjs';
import { bin, chessShards, chessSpec, merge, moment, signal, smallDisk, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

// 320 records, 10 steps an epoch, two micro-batches a step. They are made longer by
// a field that nobody asked for, so that a cache may be smaller than all of them.
// The third shard is kept compressed.
const STEP = 2;
const LAST = 20;
const shards = Object.fromEntries(Object.entries(chessShards({ records: 80 })).map(([name, text]) => [name,
  text.trimEnd().split('\n').map((l, i) => `${l.slice(0, -1)},"note":"${String(i).padEnd(5000, name)}"}\n`).join('')]));
const spec = (patch = {}) => merge(chessSpec({
  training: { epochs: 2, effective_batch: 32, shuffle: { mode: 'buffer', size: 60 } },
  limits: { lost: 1000, no_progress: 1000 },
  runtime: { checkpoint_every: STEP },
}), patch);
const GLOBAL = { training: { shuffle: { mode: 'global', size: null }, validation: { fraction: 0.2, every: 5 } } };
const BUFFER = { training: { validation: { dataset: 'judged', every: 6 } } };
const restart = (steps) => ({ runtime: { checkpoint_every: STEP, restart: { every_micro_batches: steps * STEP } } });

async function upload(s) {
  const { 'shard-0002.jsonl': packed, ...plain } = shards;
  await s.upload('judged', { 'held-out.jsonl': chessShards({ shards: 1, records: 20 })['shard-0000.jsonl'] });
  await s.upload('chess', { ...plain, 'shard-0002.jsonl.gz': zlib.gzipSync(packed) });
}

const same = (got, want, how) => {
  assert.deepEqual(got.series, want.series, `${how}: losses by step`);
  assert.deepEqual(got.judged, want.judged, `${how}: losses of the validation`);
  assert.equal(got.model, want.model, `${how}: the model`);
};

// One worker after the other until the job has ended.
async function train(s, id, options = {}) {
  for (let i = 0; i < 100; i++) {
    const w = await s.runWorker(options);
    assert.equal(w.code, 0, w.output);
    if ((await s.job(id)).state === 'completed') return { ...await s.result(id), judged: await s.series(id, ['validation/loss']) };
  }
  assert.fail('100 workers, and it is not completed');
}

// What a worker beside the data makes of it, which takes no cache; once for each order.
const made = {};
async function local(s, patch = {}) {
  const key = JSON.stringify(patch);
  if (!made[key]) {
    const job = await s.submit(spec(patch));
    made[key] = await train(s, job.id, { local: true });
  }
  return made[key];
}

const files = (dir) => (fs.existsSync(dir) ? fs.readdirSync(dir, { recursive: true, withFileTypes: true }) : [])
  .filter((e) => e.isFile() && /^[0-9a-f]{64}$/.test(e.name)).map((e) => path.join(e.parentPath ?? e.path, e.name));
const kept = (dir) => files(dir).reduce((sum, f) => { try { return sum + fs.statSync(f).size; } catch { return sum; } }, 0);

for (const [mode, patch] of [['buffer', BUFFER], ['global', GLOBAL]]) {
  test(`${mode}: through any cache, and with yields, the same model as beside the data`, async (t) => {
    const games = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-root-'));
    t.after(() => fs.rmSync(games, { recursive: true }));
    await withServer({ workers: 0, args: ['--data-root', `games=${games}`] }, async (s) => {
      await upload(s);
      const want = await local(s, patch);
      assert.equal(kept(s.cache), 0, 'who has the state folder needs no cache');

      const p = await proxy(s.url);
      try {
        const asked = () => p.seen.splice(0).filter((l) => /GET .*\/shards\/\d/.test(l));
        const through = (...args) => ({ args: ['--server', p.url, ...args] });
        // one that holds all: each block comes once, whoever asks
        const all = await s.submit(spec(merge(patch, restart(4))));
        same(await train(s, all.id, through()), want, 'a cache that holds all');
        assert.ok((await s.leases(all.id)).length >= 5);
        const text = Object.values(shards).reduce((n, t) => n + t.length, 0);
        assert.ok(kept(s.cache) >= text, `${kept(s.cache)} of ${text} bytes`);
        const first = asked();
        assert.ok(want.judged.length >= 3);
        assert.equal(first.filter((l) => !/index/.test(l)).length, mode === 'buffer' ? 5 : 4, first.join('\n'));
        // the next job finds them there
        const again = await s.submit(spec(patch));
        same(await train(s, again.id, through()), want, 'a cache that is warm');
        assert.deepEqual(asked(), []);
        // so does one that reads the same text elsewhere, whatever its file
        for (const [name, text] of Object.entries(shards))
          fs.writeFileSync(`${games}/${name}${/2/.test(name) ? '.gz' : ''}`, /2/.test(name) ? zlib.gzipSync(text) : text);
        const below = await s.submit(spec(merge(patch, { data: { dataset: null, root: 'games' } })));
        await until('its data to be read', async () => (await s.get(`/v1/jobs/${below.id}/cycles/1`)).json.state === 'ready');
        same(await train(s, below.id, through()), want, 'below a root');
        assert.deepEqual(asked(), []);
        // one that does not, and none at all
        for (const [mb, steps] of [['1', 8], ['0', 0]]) {
          const dir = `${s.cache}/small-${mb}`;
          const job = await s.submit(spec(merge(patch, restart(steps))));
          same(await train(s, job.id, through('--cache', dir, '--cache-mb', mb)), want, `a cache of ${mb} MB`);
          assert.ok(kept(dir) <= Number(mb) * 2 ** 20, `${kept(dir)} bytes in a cache of ${mb} MB`);
          assert.ok(asked().length > 4);
        }
      } finally {
        p.close();
      }
    });
  });
}

test('kill -9 of worker and server, a cache emptied and damaged while it trains: the same model', async (t) => {
  const sock = path.join(os.tmpdir(), `pawl-remote-${process.pid}`);
  for (const [mode, patch] of [['buffer', {}], ['global', GLOBAL]]) {
    await withServer({ workers: 0, listen: ['127.0.0.1:0', `unix:${sock}`], args: ['--lease', '6'] }, async (s) => {
      await upload(s);
      const want = await local(s, patch);
      const job = await s.submit(spec(patch));
      const args = ['--server', `unix:${sock}`];
      const past = (step) => s.waitJob(job.id, `past step ${step}`, (j) => j.progress.step >= step || j.state === 'completed');
      const damage = () => {
        for (const f of files(s.cache)) {
          try {
            const fd = fs.openSync(f, 'r+');
            fs.writeSync(fd, 'damaged', 100);
            fs.closeSync(fd);
          } catch { /* it has just gone */ }
        }
      };
      let w = s.startWorker({ args });
      await past(2);
      signal(w.pid, 'SIGKILL');
      await w.ended;
      damage();
      w = s.startWorker({ args });
      await past(5);
      fs.rmSync(s.cache, { recursive: true, force: true });
      await past(8);
      await s.kill9();
      damage();
      await s.launch(); // the worker waits for it, and goes on
      await past(12);
      signal(w.pid, 'SIGKILL');
      await w.ended;
      fs.rmSync(s.cache, { recursive: true, force: true });
      await s.kill9();
      const late = s.startWorker({ args }); // is there before its server
      await s.launch();
      const before = (await s.leases(job.id)).length;
      await until('it to have the job', async () => (await s.leases(job.id)).length > before || (await s.job(job.id)).state === 'completed');
      await past(15);
      signal(late.pid, 'SIGTERM');
      assert.equal((await late.ended).code, 0, late.output);
      same(await train(s, job.id, { args }), want, mode);
      const leases = await s.leases(job.id);
      t.diagnostic(`${mode}: ${leases.map((l) => `${l.outcome} ${l.from_step}-${l.to_step}`).join(', ')}`);
      assert.ok(leases.length >= 4);
    });
  }
});

test('a disk that is full under the cache: it trains on without', async (t) => {
  const disk = smallDisk(4);
  if (!disk) return t.skip('needs to mount a file system');
  try {
    await withServer({ workers: 0 }, async (s) => {
      await upload(s);
      const want = await local(s);
      const dir = `${disk.dir}/cache`;
      fs.mkdirSync(dir);
      disk.fill(100 * 1024);
      const job = await s.submit(spec());
      same(await train(s, job.id, { args: ['--cache', dir] }), want, 'a full disk');
      assert.ok(kept(dir) < 100 * 1024);
    });
  } finally {
    disk.done();
  }
});

// A job that has yielded at step `n`, and a file of its data.
async function paused(s, n, patch = {}) {
  await upload(s);
  const want = await local(s, patch);
  const job = await s.submit(spec(merge(patch, restart(n))));
  const w = await s.runWorker({ env: { PAWL_CACHE_MB: '0' } });
  assert.equal(w.code, 0, w.output);
  assert.equal((await s.job(job.id)).progress.step, n);
  (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
  return { id: job.id, want };
}

test('DAT-07, remotely and here: a file that shrank, became another, a link, or is gone is refused for its own reason; restored, it goes on', async () => {
  for (const [shard, patch, local] of [['shard-0003.jsonl', {}, false], ['shard-0002.jsonl', GLOBAL, false], ['shard-0002.jsonl', {}, true]]) {
    await withServer({ workers: 0 }, async (s) => {
      const { id, want } = await paused(s, 4, patch);
      const dir = `${s.dir}/datasets/chess`;
      const file = path.join(dir, fs.readdirSync(dir).find((f) => f.startsWith(shard)));
      const text = fs.readFileSync(file);
      const packed = text[0] !== '{'.charCodeAt(0);
      const other = Buffer.from(text);
      for (let i = 200; i < other.length - 2000; i += 7) other[i] ^= 1; // all over it, but for a seek table's end
      const changes = [
        [() => fs.writeFileSync(file, text.subarray(0, 3000)), packed ? /shrunk|edited|replaced/ : /has shrunk: it ends at offset 3000/],
        [() => { fs.rmSync(file); fs.writeFileSync(file, other); }, /is not what it was|was replaced|was edited/],
        [() => { fs.renameSync(file, `${s.dir}/elsewhere`); fs.symlinkSync(`${s.dir}/elsewhere`, file); }, /is a symbolic link now/],
        [() => fs.rmSync(file), /is missing/],
      ];
      const reasons = new Set();
      for (const [change, says] of changes) {
        change();
        const w = await s.runWorker({ local, env: { PAWL_CACHE_MB: '0' } });
        assert.equal(w.code, 0, w.output);
        const job = await s.failed(id);
        assert.match(job.reason, says);
        assert.ok(job.reason.includes(shard), job.reason);
        const step = Math.max(...(await s.checkpoints(id)).map((c) => c.step));
        assert.ok(step >= 4 && step < LAST, `its state is that before it, of step ${step}`);
        reasons.add(job.reason.replace(/\d+/g, ''));
        fs.rmSync(file, { force: true });
        fs.writeFileSync(file, text);
        (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
      }
      assert.equal(reasons.size, 4, [...reasons].join('\n'));
      same(await train(s, id, { local, env: { PAWL_CACHE_MB: '0' } }), want, 'restored');
    });
  }
});

test('what the cache holds is trained on, whatever became of the file', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await upload(s);
    const want = await local(s);
    const one = await s.submit(spec());
    same(await train(s, one.id), want, 'fills the cache');
    const job = await s.submit(spec());
    await s.waitState(job.id, 'queued');
    fs.rmSync(`${s.dir}/datasets/chess/shard-0001.jsonl`);
    same(await train(s, job.id), want, 'from the cache');
  });
});

test('SIGTERM while a worker waits for a server that is away: it saves what it has when it is back, or ends', async () => {
  const sock = path.join(os.tmpdir(), `pawl-away-${process.pid}`);
  await withServer({ workers: 0, listen: ['127.0.0.1:0', `unix:${sock}`] }, async (s) => {
    await upload(s);
    const p = await proxy(s.url);
    try {
      const job = await s.submit(spec({ training: { shuffle: { mode: 'none', size: null } } }));
      let n = 0;
      p.hold = ({ path: what }) => /\/shards\/[123]/.test(what) && ++n > 0; // the first shard comes, no other
      const w = s.startWorker({ args: ['--server', p.url], env: { PAWL_CACHE_MB: '0' } });
      await until('data to be waited for', () => n > 0);
      await s.waitJob(job.id, 'at its first steps', (j) => j.progress.step >= 1);
      signal(w.pid, 'SIGTERM');
      await moment(200);
      p.letGo();
      const end = await w.ended;
      assert.equal(end.code, 0, end.output);
      const [lease] = await s.leases(job.id);
      assert.deepEqual([lease.outcome, lease.reason], ['yielded', 'drain']);
    } finally {
      p.close();
    }
  });
});

test('the options of the cache: what is wrong is said at once', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const file = `${s.dir}/token`;
    for (const [args, env, word] of [
      [['--cache-mb', 'many'], {}, /--cache-mb is not a number of MB: many/],
      [['--cache-mb', '-1'], {}, /--cache-mb is not a number of MB: -1/],
      [['--cache', file], {}, /--cache: no cache of blocks can be kept in .*token: Not a directory/],
      [[], { PAWL_CACHE: `${file}/x` }, /no cache of blocks can be kept/],
    ]) {
      const w = await s.runWorker({ args, env });
      assert.equal(w.code, 2, w.output);
      assert.match(w.output, word);
    }
    // where none was asked for, it goes on without
    const job = await s.upload('tiny', { 'a.jsonl': tinyShard(20) }).then(() => s.submit(tinySpec()));
    const w = await s.startWorker({ args: ['--once'], env: { PAWL_CACHE: undefined, XDG_CACHE_HOME: file } }).ended;
    assert.equal(w.code, 0, w.output);
    assert.match(w.output, /warning: no cache of blocks can be kept/);
    await s.completed(job.id);
    const home = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-'));
    try {
      const next = await s.submit(tinySpec());
      const v = await s.startWorker({ args: ['--once'], env: { PAWL_CACHE: undefined, XDG_CACHE_HOME: home } }).ended;
      assert.equal(v.code, 0, v.output);
      await s.completed(next.id);
      assert.ok(fs.existsSync(`${home}/pawl/CACHEDIR.TAG`));
      assert.ok(kept(`${home}/pawl`) > 0);
    } finally {
      fs.rmSync(home, { recursive: true });
    }
    const help = spawnSync(path.join(bin, 'pawl-worker'), ['--help'], { encoding: 'utf8' });
    for (const word of ['--cache DIR', '--cache-mb N', 'PAWL_CACHE']) assert.ok(help.stdout.includes(word), word);
  });
});
