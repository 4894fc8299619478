// A crowd of workers at one server: a thousand jobs, 64 workers that speak the
// protocol and train nothing, for a minute. No request fails on the server's side,
// no cycle is anybody else's while it is held, nobody starves, and whoever is
// claimed is whose turn it was. A sample in deploy/check; `--long` for all of it.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import http from 'node:http';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { Answer, moment, randomSource, tinyShard, tinySpec, withServer } from '../harness.mjs';

const long = Boolean(process.env.TEST_LONG);
const WORKERS = 64;
const STEPS = 10;

// Requests over connections that are kept, as curl and the real worker keep theirs.
// What came of each is counted.
class Line {
  constructor(server) {
    this.server = server;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
    this.statuses = {};
    this.worst_ms = 0;
    this.bad = [];
  }
  request(method, path, body, headers = {}) {
    const data = body === undefined || Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body));
    const { hostname, port } = new URL(this.server.url);
    const begin = performance.now();
    return new Promise((resolve, reject) => {
      const req = http.request({
        method, path, hostname, port, agent: this.agent,
        headers: { Authorization: `Bearer ${this.server.token}`, ...(data ? { 'Content-Length': data.length, 'Content-Type': 'application/json' } : {}), ...headers },
      }, (res) => {
        const parts = [];
        res.on('data', (d) => parts.push(d));
        res.on('error', reject);
        res.on('end', () => {
          const a = new Answer(res.statusCode, res.headers, Buffer.concat(parts));
          this.statuses[a.status] = (this.statuses[a.status] ?? 0) + 1;
          if (a.status >= 500) this.bad.push(`${method} ${path}: ${a.status} ${a.text.slice(0, 300)}`);
          if (!body?.wait) this.worst_ms = Math.max(this.worst_ms, performance.now() - begin);
          resolve(a);
        });
      });
      req.on('error', (e) => { this.bad.push(`${method} ${path}: ${e.message}`); reject(e); });
      req.end(data);
    });
  }
  post(path, body, headers) { return this.request('POST', path, body, headers); }
  put(path, body, headers) { return this.request('PUT', path, body, headers); }
  close() { this.agent.destroy(); }
}

// Who holds which job, as the workers see it.
class Book {
  constructor() {
    this.held = new Map();
    this.doubles = [];
    this.claims = []; // {job, sent, got, first, priority}
    this.letGo = new Map(); // job: when its yield was answered, till it is claimed again
    this.seen = new Set();
    this.tokens = new Map();
  }
  took(w, sent) {
    const { job, cycle_id: cycle, token } = w.lease.lease;
    if (this.held.has(job)) this.doubles.push(`job ${job}: ${w.identity.name} got it while ${this.held.get(job)} held it`);
    if (!(token > (this.tokens.get(cycle) ?? 0))) this.doubles.push(`job ${job}: token ${token} after ${this.tokens.get(cycle)}`);
    this.tokens.set(cycle, token);
    this.held.set(job, w.identity.name);
    this.claims.push({ job, sent, got: performance.now(), first: !this.seen.has(job), ready: this.letGo.get(job) ?? 0, priority: w.lease.spec.priority });
    this.seen.add(job);
    this.letGo.delete(job);
  }
  // Before it is asked for: the server may give the cycle away before we are told,
  // and then we do not know since when it was ready.
  leaves(w) {
    this.held.delete(w.lease.lease.job);
    this.letGo.set(w.lease.lease.job, Infinity);
  }
  left(w) { if (this.letGo.has(w.lease.lease.job)) this.letGo.set(w.lease.lease.job, performance.now()); }

  // Claims that came before others whose turn it was: those that were ready before
  // the claim was sent, and were claimed by a request that was sent after its answer.
  outOfTurn() {
    const wrong = [];
    for (const a of this.claims)
      for (const b of this.claims) {
        if (!(b.sent > a.got && b.ready < a.sent)) continue;
        const why = b.priority > a.priority ? 'is more urgent'
          : b.priority === a.priority && a.first && !b.first ? 'yielded, so it stands in front'
            : b.priority === a.priority && a.first && b.first && b.job < a.job ? 'came first' : null;
        if (why) wrong.push(`job ${a.job} (priority ${a.priority}) before job ${b.job} (priority ${b.priority}), which ${why}`);
      }
    return wrong;
  }
}

// One lease: beats, and a checkpoint on leaving.
async function work(w, book, random, { beats = 3, every_ms = long ? 340 : 250 } = {}) {
  let step = w.lease.checkpoint?.manifest.step ?? 0;
  for (let i = 0; i < beats && step < STEPS; i++) {
    await moment(every_ms * (0.5 + random()));
    step++;
    (await w.heartbeat({ position: w.position(step), metrics: [[step, { loss: Math.fround(1 / step) }]] })).expect(200);
  }
  const manifest = await w.save(step, { tensors: madeUp(step, 50) });
  const done = step === STEPS;
  book.leaves(w);
  (await w.checkpoint(manifest, { release: w.releaseBody(done ? 'finished' : 'yielded', done ? 'all steps are done' : 'steps', step) })).expect(201);
  book.left(w);
  return done;
}

async function claims(w, book, wait) {
  const sent = performance.now();
  const r = await w.claim({ wait });
  if (r.status === 201) book.took(w, sent);
  else r.expect(204);
  return r.status === 201;
}

test('a thousand jobs, 64 workers: no errors, no double claims, nobody starves, all in their turn', { timeout: 600_000 }, async (t) => {
  const random = randomSource(t);
  const jobs = long ? 1000 : 240;
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(STEPS * 4) });
    const line = new Line(s), book = new Book();
    const ids = [];
    for (let i = 0; i < jobs; i++)
      ids.push((await line.post('/v1/jobs', tinySpec({ priority: Math.floor(random() * 4) }))).expect(201).json.id);
    const begin = Date.now();
    let left = jobs;
    await Promise.all(Array.from({ length: WORKERS }, async (_, i) => {
      const w = new FakeWorker(line, { name: `crowd-${i}` });
      while (left > 0) {
        if (await claims(w.reborn(), book, 2) && await work(w, book, random)) left--;
      }
    }));
    const took = (Date.now() - begin) / 1000;
    assert.deepEqual(line.bad, []);
    assert.deepEqual(book.doubles, []);
    assert.deepEqual(book.outOfTurn().slice(0, 10), []);
    for (const id of ids) {
      assert.equal((await s.job(id)).state, 'completed');
      const leases = await s.leases(id);
      assert.deepEqual(leases.map((l) => l.outcome), [...leases.slice(1).map(() => 'yielded'), 'finished'], `job ${id}`);
      leases.forEach((l, i) => assert.equal(l.from_step, leases[i - 1]?.to_step ?? 0, `job ${id}: no step is lost or trained twice`));
    }
    line.close();
    t.diagnostic(`${book.claims.length} leases in ${took.toFixed(1)} s, slowest answer ${line.worst_ms.toFixed(0)} ms, ${JSON.stringify(line.statuses)}`);
  });
});

// Somebody else at the files: holds the write lock of both for 2 s in every 5.
function locker(dir) {
  const child = spawn('python3', ['-c', `
import sqlite3, sys, time
dbs = [sqlite3.connect(f"{sys.argv[1]}/{name}", isolation_level=None, timeout=30) for name in ("pawl.db", "checkpoints.db")]
while True:
    for db in dbs: db.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    time.sleep(2)
    for db in dbs: db.execute("ROLLBACK")
    print("free", flush=True)
    time.sleep(3)
`, dir], { stdio: ['ignore', 'pipe', 'pipe'] });
  const l = { times: 0, said: '' };
  child.stdout.on('data', (d) => { l.times += String(d).split('locked').length - 1; });
  child.stderr.on('data', (d) => { l.said += d; });
  l.ended = new Promise((done) => child.on('close', done));
  l.end = () => { child.kill('SIGKILL'); return l.ended; };
  return l;
}

test('QUE-05: sixteen clients, and another process that locks the files again and again: no error, no double claim, nothing missing', { timeout: 600_000 }, async (t) => {
  const random = randomSource(t);
  const seconds = long ? 60 : 12;
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(STEPS * 4) });
    const line = new Line(s), book = new Book(), submitted = [];
    const end = Date.now() + seconds * 1000;
    const other = locker(s.dir);
    const submit = async (i) => {
      for (let n = 0; Date.now() < end; n++) {
        const r = (await line.post('/v1/jobs', tinySpec({ name: `${i}-${n}` }), { 'Idempotency-Key': `${i}-${n}` })).expect(201);
        submitted.push([r.json.id, `${i}-${n}`]);
        await moment(50 * random());
      }
    };
    const claim = async (i) => {
      const w = new FakeWorker(line, { name: `claimer-${i}` });
      while (Date.now() < end) if (await claims(w.reborn(), book, 1)) await work(w, book, random, { beats: 1, every_ms: 10 });
    };
    // holds on to one job for the whole time
    const beat = async (i) => {
      const w = new FakeWorker(line, { name: `beater-${i}` });
      while (!await claims(w, book, 1));
      let slowest = 0;
      while (Date.now() < end) {
        const begin = Date.now();
        (await w.heartbeat({ position: w.position(1) })).expect(200);
        slowest = Math.max(slowest, Date.now() - begin);
        await moment(20);
      }
      assert.ok(slowest < 15_000, `a heartbeat took ${slowest} ms`);
      await work(w, book, random, { beats: STEPS, every_ms: 1 });
    };
    try {
      await Promise.all([0, 1, 2, 3].flatMap((i) => [submit(i), beat(i), claim(i), claim(i + 4)]));
    } finally {
      await other.end();
    }
    assert.equal(other.said, '', 'the other process could lock the files');
    assert.ok(other.times >= seconds / 6, `locked ${other.times} times`);
    assert.deepEqual(line.bad, []);
    assert.deepEqual(book.doubles, []);
    assert.equal(new Set(submitted.map(([id]) => id)).size, submitted.length, 'a job each');
    for (const [id, name] of submitted) {
      const job = await s.job(id);
      assert.equal(job.name, name);
      assert.ok(['queued', 'completed'].includes(job.state), `${id}: ${job.state}: ${job.reason}`);
      for (const l of await s.leases(id)) assert.notEqual(l.outcome, 'lost');
    }
    line.close();
    t.diagnostic(`${submitted.length} jobs, ${book.claims.length} claims, locked ${other.times} times, slowest answer ${line.worst_ms.toFixed(0)} ms, ${JSON.stringify(line.statuses)}`);
  });
});
