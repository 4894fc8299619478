// Shards on their way in, and what stops them: kill -9 of pawld at any moment and at
// system calls, calls that fail, a full disk. What was answered is there, whole; what
// was not is there whole or not at all; nothing else is left behind; and the same
// upload again ends well.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { Server, checkFiles, chessLines, moment, randomSource, scratch, sha256, smallDisk, tinyRecord, tinyShard, until } from '../harness.mjs';
import { forms, seekable, zstd } from '../bad_lines.mjs';
import { attach, counted, each, nameOf, pointsOf, sample, skip, threads } from './strace.mjs';

const long = Boolean(process.env.TEST_LONG);
const chess = `${chessLines().slice(0, 300).join('\n')}\n`;
const text = (n) => tinyShard(n);

// What is done, in this order; each may be done again and comes to the same.
const WORK = [
  { put: 'plain.jsonl', body: chess },
  { put: 'b.jsonl.gz', text: chess.slice(0, 150_000), body: forms.gz.pack(chess.slice(0, 150_000)) },
  { put: 'c.jsonl.zst', text: `${chess}\n`, body: zstd(`${chess}\n`) },
  { put: 'd.jsonl.zst', text: `${chess}\n\n`, body: seekable(`${chess}\n\n`) },
  { append: 'k-1', body: text(300) },
  { append: 'k-2', text: text(200), body: forms.gz.pack(text(200)), encoding: 'gzip' },
  { describe: 'checked' },
  { put: 'e.jsonl', dataset: 'checked', body: text(500) },
  { put: 'gone.jsonl', body: `${text(50)}\n` },
  { remove: 'gone.jsonl' },
];

async function doOne(s, w, headers = {}) {
  const dataset = w.dataset ?? 'set';
  if (w.put) return (await s.put(`/v1/datasets/${dataset}/shards/${w.put}`, w.body, headers));
  if (w.append) return (await s.post(`/v1/datasets/${dataset}/records`, w.body, { 'Idempotency-Key': w.append, 'Content-Type': 'application/x-ndjson', 'Content-Encoding': w.encoding ?? null, ...headers }));
  if (w.describe) return (await s.put(`/v1/datasets/${w.describe}`, { record: tinyRecord }));
  return (await s.delete(`/v1/datasets/${dataset}/shards/${w.remove}`));
}
// A deletion that was done and not answered finds nothing the second time.
const isFine = (w, status, again) => (w.remove ? status === 204 || status === 200 || (again && status === 404) : status === 201 || status === 200);

// Each until it is answered; pawld may die under it, and is back when `up` is.
class Uploader {
  constructor(s) {
    this.s = s;
    this.answered = []; // {dataset, name, sha256} that must be there
    this.ends = 0;
    this.up = Promise.resolve();
  }
  // refused: an answer that may come from a call that failed; then it is done again.
  async work(refused = () => false) {
    for (const w of WORK) {
      for (let again = false; ; again = true) {
        await this.up;
        const { ends } = this;
        let r = null;
        if (w.remove) this.answered = this.answered.filter((a) => a.name !== w.remove); // may go from here on
        try { r = await doOne(this.s, w); } catch (e) { if (e.name === 'AssertionError') throw e; }
        if (r && isFine(w, r.status, again)) {
          if (w.put || w.append) {
            const shard = r.json;
            const want = w.text ?? w.body;
            assert.equal(shard.sha256, sha256(want), `${w.put ?? w.append}: the answer is of its text`);
            this.answered.push({ dataset: w.dataset ?? 'set', name: shard.name, sha256: shard.sha256 });
          }
          break;
        }
        if (r && refused(r)) continue;
        if (r) assert.fail(`${JSON.stringify(w).slice(0, 80)}: ${r.status} ${r.text}`);
        await until('the end of pawld, which broke a connection', () => this.ends > ends || refused(null), { patience_ms: 30_000, every_ms: 2 });
      }
    }
  }
}

// Everything listed is whole, everything answered is listed. `settled`: no request is
// under way, so that nothing else may lie about.
async function check(s, answered, { settled = false } = {}) {
  const listed = [], texts = new Set();
  for (const { name: dataset } of (await s.get('/v1/datasets?limit=100')).expect(200).json.items) {
    for (const shard of (await s.get(`/v1/datasets/${dataset}`)).expect(200).json.shards) {
      const body = (await s.get(`/v1/datasets/${dataset}/shards/${shard.name}`)).expect(200).body;
      assert.deepEqual([body.length, sha256(body)], [shard.bytes, shard.sha256], `${dataset}/${shard.name} is not whole`);
      listed.push(`${dataset}/${shard.name} ${shard.sha256}`);
      texts.add(shard.sha256);
    }
  }
  for (const a of answered)
    assert.ok(listed.includes(`${a.dataset}/${a.name} ${a.sha256}`), `${a.name} had been answered; there are ${listed.join(', ')}`);
  if (!settled) return listed;
  // what was removed goes soon after
  const ls = (folder) => (fs.existsSync(folder) ? fs.readdirSync(folder) : []);
  const stray = () => [...ls(`${s.dir}/tmp`).map((f) => `tmp/${f}`), ...ls(`${s.dir}/index`).filter((i) => !texts.has(i)),
    ...ls(`${s.dir}/datasets`).flatMap((d) => ls(`${s.dir}/datasets/${d}`).map((f) => `${d}/${f}`)).filter((f) => !listed.some((l) => l.startsWith(`${f} `)))];
  await until('nothing else to be left', () => stray().length === 0, { patience_ms: 20_000 }).catch((e) => { throw new Error(`${e.message}: ${stray()}`); });
  return listed;
}

async function onNew(body, options = {}) {
  const dir = options.dir ?? scratch();
  const s = await Server.start({ workers: 0, dir });
  try {
    return await body(s);
  } catch (e) {
    e.message += `\n--- log of pawld\n${s.log.slice(-3000)}`;
    throw e;
  } finally {
    s.sweep();
    if (!options.dir) fs.rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
  }
}

// What an undisturbed run comes to, and the calls it makes.
let whole, counts, took_ms;
async function measure() {
  if (whole) return;
  counts = {};
  for (let i = 0; i < 2; i++) {
    await onNew(async (s) => {
      const file = path.join(s.dir, 'calls');
      const trace = i && !skip ? await attach(s.pid, { file }) : null; // the first is for the time it takes
      const tids = threads(s.pid);
      const u = new Uploader(s);
      const begin = Date.now();
      await u.work();
      took_ms ??= Date.now() - begin;
      await trace?.detach();
      if (trace) {
        for (const [key, n] of Object.entries(counted(file, tids))) {
          const call = `0/${key.split('/')[1]}`;
          counts[call] = Math.max(counts[call] ?? 0, n);
        }
        fs.rmSync(file);
      }
      const now = await check(s, u.answered, { settled: true });
      whole ??= now;
      assert.deepEqual(now, whole);
      assert.equal(now.length, WORK.filter((w) => w.put || w.append).length - 1);
    });
  }
}

// pawld is killed by `kill` while it works; true when it was.
async function killed(s, kill) {
  const u = new Uploader(s);
  let over = false, was = false;
  const restart = s.exited.then(async () => {
    if (over) return;
    was = true;
    let again;
    u.up = new Promise((done) => { again = done; });
    u.ends++;
    try {
      checkFiles(s.dir);
      await s.launch();
      await check(s, u.answered, { settled: true }); // nobody asks for anything meanwhile
    } finally {
      again();
    }
  });
  const undo = await kill();
  await u.work();
  await undo?.();
  over = true;
  if (u.ends || await s.get('/livez').then(() => false, () => true)) await restart;
  assert.deepEqual(await check(s, u.answered, { settled: true }), whole);
  return was;
}

test('pawld killed at any moment of uploads', { timeout: 600_000 }, async (t) => {
  const random = randomSource(t);
  await measure();
  let was = 0;
  const rounds = await each(Array.from({ length: long ? 200 : 12 }, () => ({ call: 'moment', n: Math.round(random() * took_ms) })), 8, async (p) => {
    await onNew(async (s) => {
      was += await killed(s, async () => {
        let late = false;
        moment(p.n).then(() => late || process.kill(s.pid, 'SIGKILL'));
        return () => { late = true; };
      });
    });
  });
  t.diagnostic(`killed ${was} times in ${rounds} rounds`);
  assert.ok(was >= rounds / 3, `${was} of ${rounds}`);
});

test('pawld killed at system calls of uploads', { skip, timeout: 7_200_000 }, async (t) => {
  const random = randomSource(t);
  await measure();
  const points = pointsOf(counts).map(({ call, n }) => ({ call, n }));
  let was = 0;
  const visited = await each(sample(points, long ? points.length : 40, random), 15, async (p) => {
    await onNew(async (s) => {
      was += await killed(s, async () => {
        const trace = await attach(s.pid, { inject: p });
        return () => trace.detach();
      });
    });
  });
  t.diagnostic(`killed ${was} times at ${visited} of ${points.length} points`);
  assert.ok(was >= visited / 4, `${was} of ${visited}`);
});

test('a call that fails is an answer, and leaves nothing behind', { skip, timeout: 7_200_000 }, async (t) => {
  const random = randomSource(t);
  await measure();
  // write is left out: pawld wakes its own threads with it. The disk below is full for it.
  const of = { pwrite64: ['ENOSPC', 'EIO'], fsync: ['EIO'], fdatasync: ['EIO'], rename: ['ENOSPC', 'EIO'] };
  const points = pointsOf(counts).flatMap(({ call, n }) => (of[call] ?? []).map((error) => ({ call, n, error })));
  let told = 0;
  const visited = await each(sample(points, long ? points.length : 40, random), 12, async (p) => {
    await onNew(async (s) => {
      const u = new Uploader(s);
      const trace = await attach(s.pid, { inject: p });
      await u.work((r) => {
        if (!r) return true; // a connection that broke
        if (r.status < 500) return false;
        told++;
        r.problem(r.status);
        return true;
      });
      await trace.detach();
      assert.deepEqual(await check(s, u.answered, { settled: true }), whole, nameOf(p));
      // and it is still there after a restart
      await s.kill9();
      checkFiles(s.dir);
      await s.launch();
      assert.deepEqual(await check(s, u.answered, { settled: true }), whole);
    });
  });
  t.diagnostic(`${visited} of ${points.length} calls failed, ${told} of them were told`);
  assert.ok(told > 0, `${told} of ${visited}`);
});

test('a disk that is full takes no part of a shard', { timeout: 120_000 }, async (t) => {
  const disk = smallDisk(64);
  if (!disk) return t.skip('no file system may be mounted here');
  try {
    await onNew(async (s) => {
      const big = `${chessLines().join('\n')}\n`; // 1.3 MB
      await s.upload('set', { 'first.jsonl': chess });
      const before = await check(s, [], { settled: true });
      const all = [
        ['plain.jsonl', big, {}], ['b.jsonl.gz', forms.gz.pack(big), {}], ['c.jsonl.zst', zstd(big), {}], ['d.jsonl.zst', seekable(big), {}],
      ];
      disk.fill(200 * 1024);
      for (const [name, body] of all) {
        const r = await s.put(`/v1/datasets/set/shards/${name}`, body);
        assert.ok(r.problem(507).detail, name);
        assert.equal(fs.existsSync(`${s.dir}/datasets/set/${name}`), false);
      }
      (await s.post('/v1/datasets/set/records', big, { 'Content-Type': 'application/x-ndjson' })).problem(507);
      assert.deepEqual(await check(s, [], { settled: true }), before);
      disk.free();
      for (const [name, body] of all) (await s.put(`/v1/datasets/set/shards/${name}`, body)).expect(201);
      (await s.post('/v1/datasets/set/records', big, { 'Content-Type': 'application/x-ndjson' })).expect(201);
      assert.equal((await check(s, [], { settled: true })).length, before.length + 5);
      await s.terminate();
    }, { dir: `${disk.dir}/state` });
  } finally {
    disk.done();
  }
});
