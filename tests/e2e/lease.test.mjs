// Leases of real workers: steps that outlast them, renewals that do not get through,
// jobs that kill whoever takes them, jobs that are canceled at the worst moment.
import test from 'node:test';
import assert from 'node:assert/strict';
import http from 'node:http';
import { FakeWorker } from '../fake_worker.mjs';
import { chessSpec, gone, moment, signal, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const LEASE_S = 3;
const args = ['--lease', String(LEASE_S)];

// Steps of about so many seconds, whatever machine this is: a larger net, and as
// many records in a batch as that takes.
async function slowSpec(s, seconds) {
  const spec = (batch) => chessSpec({
    model: { d_model: 128, layers: 4, heads: 4, ff: 512 },
    training: { epochs: 4, effective_batch: batch }, runtime: { micro_batch: 4, checkpoint_every: 0 },
  });
  const probe = await s.submit(spec(40));
  const w = s.startWorker({ args: ['--once'] });
  const [speed] = await until('a first figure', async () => {
    const v = await s.values(probe.id, 'records_per_s');
    return v.length && v.map(Number);
  });
  for (let i = 0; i < 2; i++) (await s.post(`/v1/jobs/${probe.id}/cancel`)).expect(200);
  await s.waitState(probe.id, 'canceled');
  await w.ended;
  return spec(Math.min(1600, Math.ceil(speed * seconds)));
}

test('QUE-02: a step may outlast its lease many times over; nobody else gets the job', async (t) => {
  await withServer({ workers: 0, args }, async (s) => {
    await s.uploadChess();
    const job = await s.submit(await slowSpec(s, 6 * LEASE_S));
    const w = s.startWorker({ args: ['--once'] });
    await s.openLease(job.id);
    const idle = new FakeWorker(s, { name: 'idle' });
    let asked = 0, over = false;
    const asks = (async () => {
      while (!over) {
        (await idle.reborn().claim()).expect(204);
        asked++;
        await moment(200);
      }
    })();
    try {
      await s.waitJob(job.id, 'past its first step', (j) => j.progress.step >= 1);
    } finally {
      over = true;
      await asks;
    }
    const [lease] = await s.leases(job.id);
    const took = (Date.now() - Date.parse(lease.started_at)) / 1000;
    t.diagnostic(`a step of ${took.toFixed(1)} s, ${asked} claims of another worker meanwhile`);
    assert.ok(took > 2 * LEASE_S, `the step took ${took} s: too fast for this test`);
    assert.equal(lease.outcome, null);
    signal(w.pid, 'SIGKILL');
    await w.ended;
  });
});

// Between a worker and its server: requests that `holds` picks get no answer, ever;
// of those that `cuts` picks the connection breaks.
async function proxyTo(s) {
  const p = { holds: () => false, cuts: () => false, seen: [] };
  const server = http.createServer((req, res) => {
    if (p.cuts(req)) return void req.socket.destroy();
    if (p.holds(req)) return void req.resume();
    const { hostname, port } = new URL(s.url);
    const out = http.request({ hostname, port, method: req.method, path: req.url, headers: req.headers, agent: false }, (r) => {
      p.seen.push({ method: req.method, path: req.url, status: r.statusCode, at: Date.now() });
      res.writeHead(r.statusCode, r.headers);
      r.pipe(res);
    });
    out.on('error', () => res.destroy());
    res.on('close', () => out.destroy());
    req.pipe(out);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  p.url = `http://127.0.0.1:${server.address().port}`;
  p.close = () => { server.closeAllConnections?.(); server.close(); };
  return p;
}

test('QUE-02: when only its renewals are lost, what a worker still sends after another\'s claim is refused, and it ends', async () => {
  await withServer({ workers: 0, args }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const spec = chessSpec({ training: { epochs: 60 }, runtime: { checkpoint_every: 4 } });
    const job = await s.submit(spec);
    const p = await proxyTo(s);
    try {
      const a = Object.assign(Object.create(s), { url: p.url }).startWorker();
      await s.waitJob(job.id, 'at step 5', (j) => j.progress.step >= 5);
      p.holds = (req) => /heartbeat$/.test(req.url);
      p.cuts = (req) => /(checkpoints|room)$/.test(req.url) && req.method === 'POST'; // a save renews the lease, too
      await until('the lease to be lost', async () => (await s.leases(job.id))[0].outcome === 'lost');
      assert.match((await s.job(job.id)).reason, new RegExp(`was not heard of for ${LEASE_S} s`));
      const b = s.startWorker();
      const second = await s.openLease(job.id, 2);
      const since = Date.now();
      p.cuts = () => false; // its save gets through now
      const end = await a.ended;
      assert.equal(end.signal, null, end.output);
      const late = p.seen.filter((r) => r.at > since && r.method !== 'GET' && /^\/v1\/leases\/\d+\//.test(r.path));
      assert.ok(late.length > 0, 'the first worker went on to send');
      for (const r of late) assert.equal(r.status, 409, `${r.method} ${r.path}`);
      assert.equal(p.seen.filter((r) => r.at > since && r.path === '/v1/leases' && r.status === 201).length, 0);
      await s.waitJob(job.id, 'further', (j) => j.progress.step > second.lease.from_step);
      assert.deepEqual((await s.leases(job.id)).map((l) => l.outcome), ['lost', null]);
      (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
      await s.waitState(job.id, 'canceled');
      await b.ended;
    } finally {
      p.close();
    }
  });
});

test('QUE-04: a job that kills its workers fails after three of them, with the evidence; others run on', async () => {
  await withServer({ workers: 2 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    const bad = await s.submit(chessSpec({ name: 'killer', priority: 5, training: { epochs: 60 }, runtime: { checkpoint_every: 0 }, limits: { lost: 3 } }));
    const other = await s.submit(chessSpec({ name: 'healthy', training: { epochs: 4 }, runtime: { checkpoint_every: 8 } }));
    for (let nth = 1; nth <= 3; nth++) {
      const { worker } = await s.openLease(bad.id, nth);
      await s.waitJob(bad.id, 'at step 3', (j) => j.state === 'running' && j.progress.step >= 3);
      signal(worker.pid, 'SIGKILL');
      await until('the loss to be seen', async () => (await s.leases(bad.id))[nth - 1].outcome);
    }
    const job = await s.failed(bad.id);
    assert.match(job.reason, /^3 workers were lost without a new checkpoint: it kills its workers/);
    assert.match(job.reason, /killed by signal 9/);
    assert.match(JSON.stringify(job.error), /signal 9/);
    const leases = await s.leases(bad.id);
    assert.deepEqual(leases.map((l) => l.outcome), ['lost', 'lost', 'lost']);
    const healthy = await s.completed(other.id);
    assert.deepEqual((await s.leases(other.id)).map((l) => l.outcome), ['finished'], 'the other one was not disturbed');
    assert.ok(healthy.model_sha256);
    assert.equal((await s.leases(bad.id)).length, 3, 'nobody takes it again');
  });
});

test('QUE-04: fifty pauses for memory with steady progress cost nothing', async (t) => {
  // 64 MB a step, so that each lease gets two
  const env = { PAWL_MEMORY_PROBE: 'fake:start_mb=100,per_step_mb=64,recommended_mb=25559' };
  await withServer({ env }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(103 * 4) });
    const spec = (mb) => tinySpec({ runtime: { restart: { device_memory_mb: mb } }, limits: { failures: 1, lost: 1, no_progress: 2 } });
    const whole = await s.result((await s.submit(spec(0))).id);
    const job = await s.submit(spec(200)); // two steps, and the next would cross it
    const got = await s.result(job.id);
    const leases = await s.leases(job.id);
    t.diagnostic(`${leases.length} leases`);
    assert.ok(leases.length >= 51);
    for (const l of leases.slice(0, -1)) {
      assert.equal(l.outcome, 'yielded');
      assert.ok(['memory', 'forecast'].includes(l.reason), l.reason);
    }
    assert.equal(got.model, whole.model);
    assert.deepEqual(got.series, whole.series);
  });
});

// Every process of the job's is gone: none has the lease's pid any more.
const leavesNothing = async (s, pid) => {
  await gone(pid);
  assert.ok(!s.workerProcesses().some((p) => p.pid === pid));
};

test('QUE-07: canceled as soon as it is claimed, or in the middle of a long step', async () => {
  await withServer({ args }, async (s) => {
    await s.uploadChess();
    const early = await s.submit(chessSpec({ training: { epochs: 60 } }));
    const first = await s.openLease(early.id);
    (await s.post(`/v1/jobs/${early.id}/cancel`)).expect(200);
    await s.waitState(early.id, 'canceled');
    await leavesNothing(s, first.worker.pid);

    // One cancel: the step is finished and saved.
    const slow = await s.submit(await slowSpec(s, 5));
    const second = await s.openLease(slow.id);
    await until('the first step to begin', async () => (await s.leases(slow.id))[0].stage !== 'load');
    (await s.post(`/v1/jobs/${slow.id}/cancel`)).expect(200);
    const stopping = await s.job(slow.id);
    assert.deepEqual([stopping.state, stopping.reason], ['running', 'canceling: the worker saves first']);
    await s.waitState(slow.id, 'canceled');
    await leavesNothing(s, second.worker.pid);
    const [lease] = await s.leases(slow.id);
    assert.ok(lease.to_step <= 1, `it stopped within a step, at ${lease.to_step}`);
    for (const id of [early.id, slow.id]) {
      const ends = (await s.get(`/v1/jobs/${id}/events?limit=1000`, { Accept: 'application/json' })).expect(200).text;
      assert.ok(!/"kind": ?"(completed|failed)"/.test(ends), ends);
    }
  });
});
