// Kill -9 at a system call, for every one of them: strace stops a thread of pawld
// (or a worker) before its n-th write, fsync, send … of a save or a release and
// kills the process there. What lies on disk then must be whole, what had been
// answered must be there, and the job that goes on must end as if nothing had
// happened.
//
// A point is (thread, system call, n). An undisturbed run under strace tells which
// there are. deploy/check draws a sample with a seed that it prints (PAWL_SEED=n
// draws it again); --long visits them all. The worker that pawld serves there asks for
// room, saves, yields, is parked, finishes, and has a backup made on the way.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { CHUNK, FakeWorker, madeUp, stateOf } from '../fake_worker.mjs';
import { Server, bin, checkFiles, chessLines, chessSpec, gone, hasWorker, randomSource, scratch, sha256, tinyShard, tinySpec, until } from '../harness.mjs';
import { CALLS, attach, counted, each, nameOf, pointsOf, sample, skip, threads } from './strace.mjs';

const long = Boolean(process.env.TEST_LONG);

// ---- what must hold of a state folder ----------------------------------------

// Every checkpoint that is listed can be had whole: [{id, step, digest}].
async function checkCheckpoints(s, id) {
  const list = await s.checkpoints(id);
  for (const c of list) {
    try {
      await checkOne(s, id, c);
    } catch (e) { // pruned since the list was made?
      if ((await s.checkpoints(id)).some((other) => other.id === c.id)) throw e;
    }
  }
  return list;
}
async function checkOne(s, id, c) {
  const { manifest } = await s.manifest(c.id);
  const file = (await s.get(`/v1/checkpoints/${c.id}/state`)).expect(200).body;
  const bytes = file.subarray(8 + Number(file.readBigUInt64LE()));
  assert.equal(bytes.length, manifest.bytes);
  manifest.chunks.forEach((sha, i) => assert.equal(sha256(bytes.subarray(i * CHUNK, (i + 1) * CHUNK)), sha, `chunk ${i} of step ${c.step}`));
  const model = (await s.get(`/v1/jobs/${id}/model?checkpoint=${c.id}`)).expect(200).body;
  assert.equal(sha256(model), manifest.model_sha256);
}

const csv = async (s, id) => (await s.get(`/v1/jobs/${id}/metrics`, { Accept: 'text/csv' })).expect(200).text
  .split('\n').filter((l) => !l.includes('records_per_s')).sort().join('\n');

// ---- pawld, and a worker that only speaks the protocol -------------------------

const spec = tinySpec({ training: { effective_batch: 4 }, runtime: { keep: 2 }, limits: { lost: 10_000, no_progress: 10_000 } });
const STEPS = 10;
// Where it saves, and what it says then. Parked: it leaves without a save, for want
// of room, and goes on where it saved last once the server has seen that there is.
const PLAN = [{ step: 5, backup: true }, { step: 6, leave: 'parked' }, { step: 7, leave: 'yielded' }, { step: 9 }, { step: STEPS, leave: 'finished' }];
const metricsAt = (step) => [step, { loss: Math.fround(Math.sin(step)), lr: 0.01 }];

class Trainee {
  constructor(s) {
    this.s = s;
    this.answered = []; // {step, digest} of checkpoints
    this.ends = 0;      // of pawld
    this.up = Promise.resolve();
    // a process that pawld can see live, and die; marked as the server's are, so that none is left
    this.process = spawn('sleep', ['100000'], { stdio: 'ignore', env: s.env });
  }
  // kill -9 of the worker: seen as dead by the next pawld
  async die() {
    this.dead = true;
    this.process.kill('SIGKILL');
    await gone(this.process.pid);
  }

  // As the real worker does: the same request again until there is an answer.
  async insist(call, status) {
    for (;;) {
      await this.up;
      const { ends } = this;
      if (this.dead) throw new Died();
      let r = null;
      try { r = await call(); } catch (e) { if (e.name === 'AssertionError') throw e; }
      if (this.dead) throw new Died();
      if (r && [status].flat().includes(r.status)) return r;
      if (r) return r.expect(status);
      await until('the end of pawld, which broke a connection', () => this.ends > ends, { patience_ms: 20_000, every_ms: 2 });
    }
  }

  async claim() {
    this.w = new FakeWorker(this.s, { name: 'trainee', pid: this.process.pid });
    this.w.identity.local = true;
    await until('a claim', () => this.insist(() => this.w.claim({ wait: 2 }), [201, 204]).then((r) => r.status === 201));
    this.at = this.w.lease.checkpoint.manifest.step;
    this.from ??= this.at;
  }

  // Until the job's end, or until this worker dies.
  async train() {
    await this.claim();
    for (let parked = false; this.at < STEPS;) {
      const { step, leave, backup } = PLAN.find((p) => p.step > this.at && !(parked && p.leave === 'parked'));
      const w = this.w;
      const metrics = Array.from({ length: step - this.at }, (_, i) => metricsAt(this.at + 1 + i));
      const seq = ++w.seq;
      await this.insist(() => w.heartbeat({ position: w.position(step), metrics, seq }), 200);
      if (leave === 'parked') {
        parked = true;
        const error = { code: 'no_space', detail: 'no room', bytes: 1000, missing_bytes: 1000, final: false };
        await this.insist(() => w.release('failed', 'no room', step, { error }), 200);
        await this.claim();
        continue;
      }
      const manifest = await this.save(step);
      const release = leave && w.releaseBody(leave, leave === 'yielded' ? 'steps' : 'all steps are done', step);
      const r = await this.insist(() => w.checkpoint(manifest, { release }), 201);
      this.answered.push({ step, digest: r.json.digest });
      this.at = step;
      if (leave === 'yielded') await this.claim();
      if (backup) await this.takeBackup();
    }
  }
  // A copy of it all is whole, or is not answered.
  async takeBackup() {
    const { body } = await this.insist(() => this.s.get('/v1/backup'), 200);
    const dir = scratch();
    try {
      const r = spawnSync('tar', ['-xf', '-', '-C', dir], { input: body });
      assert.equal(r.status, 0, String(r.stderr));
      checkFiles(dir);
      for (const f of ['pawl.db', 'checkpoints.db', 'datasets']) assert.ok(fs.existsSync(`${dir}/${f}`), f);
    } finally {
      fs.rmSync(dir, { recursive: true });
    }
  }
  async save(step) {
    const { manifest, chunks } = stateOf(this.w.lease, step, madeUp(step), this.w.previous);
    await this.insist(() => this.s.post(`/v1/leases/${this.w.id}/room`, { token: this.w.token, bytes: manifest.bytes, step }), 204);
    for (const c of chunks) await this.insist(() => this.w.chunk(c), 204);
    return manifest;
  }
}
class Died extends Error {}

let template; // a state folder whose job yielded at step 3
let whole;    // what an undisturbed run comes to
let counts;   // how often each call is made, at most
let surely;   // and at least: housekeeping comes when it comes

const copyOf = (dir) => {
  const to = scratch();
  fs.cpSync(dir, to, { recursive: true });
  return to;
};
async function onCopy(body) {
  const dir = copyOf(template.dir);
  const s = await Server.start({ dir, workers: 0 });
  try {
    return await body(s);
  } catch (e) {
    e.message += `\n--- log of pawld\n${s.log.slice(-3000)}`;
    throw e;
  } finally {
    s.sweep();
    fs.rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
  }
}
const outcome = async (s) => {
  const job = await s.job(template.job);
  assert.equal(job.state, 'completed', job.reason);
  const model = (await s.get(`/v1/jobs/${template.job}/model`)).expect(200).body;
  assert.equal(sha256(model), job.model_sha256);
  const { records_per_s, eta_s, ...progress } = job.progress;
  return { model: job.model_sha256, csv: await csv(s, template.job), progress, exact: job.exact };
};

before(async () => {
  if (skip) return;
  const dir = scratch();
  const s = await Server.start({ dir, workers: 0 });
  await s.upload('tiny', { 'a.jsonl': tinyShard(STEPS * 4) });
  const job = await s.submit(spec);
  const w = new FakeWorker(s);
  (await w.claim()).expect(201);
  assert.equal(w.lease.steps, STEPS);
  (await w.heartbeat({ position: w.position(2), metrics: [1, 2].map(metricsAt) })).expect(200);
  (await w.checkpoint(await w.save(2))).expect(201);
  (await w.checkpoint(await w.save(3), { release: w.releaseBody('yielded', 'steps', 3, { metrics: [metricsAt(3)] }) })).expect(201);
  await s.terminate();
  s.sweep();
  template = { dir, job: job.id };

  // What is there to be killed at: two runs, since housekeeping comes when it comes.
  counts = {};
  for (let i = 0; i < 2; i++) {
    await onCopy(async (copy) => {
      const file = path.join(copy.dir, 'calls');
      const trace = await attach(copy.pid, { file });
      const tids = threads(copy.pid);
      const t = new Trainee(copy);
      await t.train();
      t.process.kill('SIGKILL');
      await trace.detach();
      const seen = counted(file, tids);
      for (const [k, n] of Object.entries(seen)) counts[k] = Math.max(counts[k] ?? 0, n);
      surely = surely ? Object.fromEntries(Object.entries(surely).map(([k, n]) => [k, Math.min(n, seen[k] ?? 0)])) : seen;
      const now = await outcome(copy);
      whole ??= now;
      assert.deepEqual(now, whole);
    });
  }
});
after(() => template && fs.rmSync(template.dir, { recursive: true, force: true }));

// Killed at its very last call? Then it does not answer any more.
async function lives(s) {
  try {
    return (await s.get('/livez')).status === 200;
  } catch {
    return false;
  }
}

// One point: true when pawld was killed there.
async function killAt(point, workerToo) {
  return onCopy(async (s) => {
    const first = new Trainee(s), second = new Trainee(s);
    try {
      const trace = await attach(s.pid, { tid: threads(s.pid)[point.thread], inject: point });
      let killed = false, over = false;
      const restart = s.exited.then(async () => {
        if (over) return;
        killed = true;
        let again;
        first.up = new Promise((done) => { again = done; });
        first.ends++;
        try {
          checkFiles(s.dir);
          if (workerToo) await first.die();
          await s.launch();
          const list = await checkCheckpoints(s, template.job);
          const newest = Math.max(...list.map((c) => c.step));
          assert.ok(list.length >= 2, `two checkpoints are always there: ${JSON.stringify(list)}`);
          for (const a of first.answered)
            assert.ok(newest > a.step || list.some((c) => c.digest === a.digest), `the checkpoint at ${a.step} had been answered`);
        } finally {
          again();
        }
      });
      let died = false;
      try { await first.train(); } catch (e) { if (!(e instanceof Died)) throw e; died = true; }
      await trace.detach(); // from here on nobody is killed
      over = !first.ends && await lives(s);
      if (!over) await restart;
      if (died && (await s.job(template.job)).state !== 'completed') {
        const newest = Math.max(...(await s.checkpoints(template.job)).map((c) => c.step));
        await second.train();
        assert.equal(second.from, newest, 'the next worker goes on at the newest checkpoint');
      }
      assert.deepEqual(await outcome(s), whole);
      await checkCheckpoints(s, template.job);
      const leases = await s.leases(template.job);
      assert.ok(leases.every((l) => l.outcome), 'every lease has ended');
      assert.equal(leases.filter((l) => l.outcome === 'finished').length, 1);
      assert.equal(leases.filter((l) => l.outcome === 'lost').length <= (died ? 1 : 0), true, 'only a dead worker loses its lease');
      over = true;
      await s.kill9();
      checkFiles(s.dir);
      return killed;
    } finally {
      for (const w of [first, second]) w.process.kill('SIGKILL');
    }
  });
}

test('pawld killed at system calls of saves and releases', { skip, timeout: 7_200_000 }, async (t) => {
  const random = randomSource(t);
  const all = pointsOf(counts).flatMap((p) => [false, true].map((workerToo) => ({ ...p, workerToo })));
  const missed = [];
  let sure = 0;
  const visited = await each(sample(all, long ? all.length : 64, random), 60, async (p) => {
    if (p.n <= (surely[`${p.thread}/${p.call}`] ?? 0)) sure++;
    if (!await killAt(p, p.workerToo)) missed.push(p);
  });
  t.diagnostic(`killed at ${visited - missed.length} of ${all.length} points; not reached: ${missed.length}`);
  const strange = missed.filter((p) => p.n <= (surely[`${p.thread}/${p.call}`] ?? 0));
  assert.ok(strange.length <= sure / 4, `${strange.length} of ${sure} points that each run should reach were not: ${strange.slice(0, 20).map(nameOf).join('; ')}`);
});

// ---- real workers ----------------------------------------------------------------

// A checkpoint after every step, and a release in the middle.
const chess = chessSpec({ training: { epochs: 2 }, runtime: { checkpoint_every: 1, restart: { every_micro_batches: 6 } }, limits: { lost: 10_000, no_progress: 10_000 } });

// Programs as they are, but that the first worker runs under strace with what stands
// in `options`; its process is pawld's child all the same.
function tracedPrograms(dir) {
  fs.mkdirSync(dir);
  fs.copyFileSync(path.join(bin, 'pawld'), `${dir}/pawld`);
  fs.writeFileSync(`${dir}/pawl-worker`, `#!/bin/sh
case " $* " in
*" --standby "*) ;; # may wait for long
*)
    if mv ${dir}/options ${dir}/taken 2>/dev/null; then
        exec strace -D -f -qq -s 40 -o ${dir}/calls $(cat ${dir}/taken) ${bin}/pawl-worker "$@"
    fi
    ;;
esac
exec ${bin}/pawl-worker "$@"
`, { mode: 0o755 });
  return dir;
}

async function onChess(body, { traced } = {}) {
  const dir = scratch();
  const programs = traced ? tracedPrograms(`${dir}/bin`) : bin;
  if (traced) fs.writeFileSync(`${dir}/bin/options`, traced);
  const s = await Server.start({ dir: `${dir}/state`, programs });
  try {
    await s.upload('chess', { 'shard-0000.jsonl': chessLines().slice(0, 96).join('\n') + '\n' });
    const job = await s.submit(chess);
    return await body(s, job.id, dir);
  } catch (e) {
    e.message += `\n--- log of pawld\n${s.log.slice(-3000)}`;
    throw e;
  } finally {
    s.sweep();
    fs.rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
  }
}

// Model and losses as in the undisturbed run, all checkpoints whole, files sound.
async function endsWell(s, id, expected) {
  const { model, series } = await s.result(id);
  assert.equal(model, expected.model);
  assert.deepEqual(series, expected.series);
  assert.equal((await s.job(id)).exact.tier, 'bit');
  await checkCheckpoints(s, id);
  await s.kill9();
  s.sweepProcesses();
  checkFiles(s.dir);
}

const noWorker = skip || (hasWorker ? false : 'there is no pawl-worker in this build');

test('a worker killed at system calls of saves and releases', { skip: noWorker, timeout: 7_200_000 }, async (t) => {
  const random = randomSource(t);
  let whole;
  // The calls of its first lease, from the first chunk on.
  const points = await onChess(async (s, id, dir) => {
    whole = await s.result(id);
    // strace writes when the worker has ended
    const lines = await until('the calls of the first worker', () => {
      const text = fs.readFileSync(`${dir}/bin/calls`, 'latin1');
      return text && text.split('\n');
    });
    const seen = {}, found = [];
    let saving = false;
    for (const line of lines) {
      const m = /^(\d+)\s+(\w+)\(/.exec(line);
      if (!m) continue;
      const key = `${m[1]}/${m[2]}`;
      seen[key] = (seen[key] ?? 0) + 1;
      saving ||= /"PUT \/v1\/leases\//.test(line);
      if (saving) found.push({ call: m[2], n: seen[key] });
    }
    assert.ok(saving, `a chunk was sent: ${lines.slice(0, 20).join('\n')}`);
    // strace counts for each thread: a point is reached by whichever thread comes first
    return [...new Map(found.map((p) => [nameOf(p), p])).values()];
  }, { traced: `-e trace=${CALLS.join(',')}` });
  const missed = [];
  const visited = await each(sample(points, long ? points.length : 8, random), 40, async (p) => {
    await onChess(async (s, id) => {
      await s.completed(id);
      const lost = (await s.leases(id)).filter((l) => l.outcome === 'lost');
      if (!lost.length) missed.push(nameOf(p));
      await endsWell(s, id, whole);
    }, { traced: `-e trace=${p.call} -e inject=${p.call}:signal=SIGKILL:when=${p.n}` });
  });
  t.diagnostic(`killed at ${visited} of ${points.length} points; none of them in a lease: ${missed.length}`);
});

test('pawld killed at system calls while a worker saves', { skip: noWorker, timeout: 7_200_000 }, async (t) => {
  const random = randomSource(t);
  let whole;
  await onChess(async (s, id) => { whole = await s.result(id); });
  const most = Object.entries(counts).filter(([, n]) => n >= 10).map(([key]) => key);
  let killed = 0;
  const visited = await each(Array.from({ length: long ? 200 : 6 }, () => {
    const [thread, call] = most[Math.floor(random() * most.length)].split('/');
    return { thread: Number(thread), call, n: 1 + Math.floor(random() * Math.min(40, counts[`${thread}/${call}`])) };
  }), 30, async (p) => {
    await onChess(async (s, id) => {
      await s.waitJob(id, 'past its first checkpoint', (j) => j.progress.step >= 1);
      const trace = await attach(s.pid, { tid: threads(s.pid)[p.thread], inject: p });
      const first = s.exited;
      const ended = await Promise.race([first, until('the end of the job', async () => {
        try { return (await s.job(id)).state === 'completed'; } catch { return null; }
      }, { every_ms: 100 })]);
      await trace.detach(); // from here on nobody is killed
      if (ended !== true || !await lives(s)) {
        await first;
        killed++;
        checkFiles(s.dir);
        await s.launch();
      }
      await endsWell(s, id, whole);
    });
  });
  t.diagnostic(`pawld killed ${killed} times at ${visited} points`);
});
