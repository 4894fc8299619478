// Kills at random under load: several jobs that save and hand over all the time, two
// workers, clients that ask, and every second or so something dies: pawld, a worker,
// both, by kill -9 or SIGTERM. After each death of pawld the files are sound; in the
// end each job has the model and the losses that it has when nothing ever dies, each
// step once. A sample in deploy/check; `--long` goes on for minutes.
import test from 'node:test';
import assert from 'node:assert/strict';
import { checkFiles, chessSpec, hasWorker, moment, randomSource, signal, until, withServer } from '../harness.mjs';

const seconds = process.env.TEST_LONG ? 300 : 25;

// Every few steps a checkpoint, every dozen another process.
const spec = (seed, more = {}) => chessSpec({
  name: `seed ${seed}`, training: { seed, epochs: 4, effective_batch: 32 },
  runtime: { checkpoint_every: 4, restart: { every_micro_batches: 24 } },
  limits: { lost: 100_000, failures: 100_000, no_progress: 100_000 }, ...more,
});
const SEEDS = [1, 2, 3];

// Steps 1, 2, 3 … once each, in the order of the cycle.
function eachOnce(series, id) {
  const steps = series.filter((l) => l.split(',')[2] === 'loss').map((l) => Number(l.split(',')[1])).sort((a, b) => a - b);
  steps.forEach((n, i) => assert.equal(n, i + 1, `job ${id}: step ${i + 1} is lost or there twice`));
}

test('killed at random under load: nothing is lost, nothing is doubled, the same models', { skip: !hasWorker && 'there is no pawl-worker in this build', timeout: 1_800_000 }, async (t) => {
  const random = randomSource(t);
  const pick = (list) => list[Math.floor(random() * list.length)];
  await withServer({ workers: 2 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const whole = {};
    for (const seed of SEEDS) whole[seed] = await s.result((await s.submit(spec(seed))).id);

    // submitted with a key, again and again until there is an answer
    const jobs = new Map(); // id: seed
    let keys = 0;
    async function submit() {
      const seed = SEEDS[keys % SEEDS.length], key = `load-${keys++}`;
      const job = await until('an answer to a submission', async () => {
        try {
          const r = await s.post('/v1/jobs', spec(seed, { priority: Math.floor(random() * 3) }), { 'Idempotency-Key': key });
          return r.expect(201).json;
        } catch (e) {
          if (e.name === 'AssertionError') throw e;
          return null; // pawld was killed in between
        }
      });
      jobs.set(job.id, seed);
    }
    for (let i = 0; i < 4; i++) await submit();

    const killed = { pawld: 0, worker: 0, 'worker (TERM)': 0, both: 0, 'pawld (TERM)': 0 };
    const end = Date.now() + seconds * 1000;
    let over = false, asked = 0;
    const reader = (async () => { // somebody looks on all the while
      while (!over) {
        try { (await s.get(`/v1/jobs/${pick([...jobs.keys()])}/metrics?as=csv`)).expect(200); asked++; } catch (e) { if (e.name === 'AssertionError') throw e; }
        await moment(50);
      }
    })();
    while (Date.now() < end) {
      await moment(200 + random() * 1000);
      const whom = pick(Object.keys(killed)), workers = s.workerProcesses();
      if (/worker|both/.test(whom)) {
        if (!workers.length) continue;
        signal(pick(workers).pid, whom === 'worker (TERM)' ? 'SIGTERM' : 'SIGKILL');
      }
      if (/pawld|both/.test(whom)) {
        if (whom === 'pawld (TERM)') assert.equal((await s.terminate()).code, 0, s.log.slice(-2000));
        else await s.kill9();
        checkFiles(s.dir);
        await s.launch();
      }
      killed[whom]++;
      const states = await Promise.all([...jobs.keys()].map((id) => s.job(id)));
      for (const j of states) assert.notEqual(j.state, 'failed', `${j.id}: ${j.reason}`);
      if (states.filter((j) => j.state !== 'completed').length < 3) await submit();
    }
    over = true;
    await reader;
    let leases = 0, lost = 0;
    for (const [id, seed] of jobs) {
      const got = await s.result(id);
      assert.equal(got.model, whole[seed].model, `job ${id}`);
      assert.deepEqual(got.series, whole[seed].series, `job ${id}`);
      eachOnce(got.series, id);
      assert.equal(got.job.exact.tier, 'bit');
      const all = await s.leases(id);
      all.slice(1).forEach((l, i) => assert.ok(l.from_step >= all[i].from_step, `job ${id}: a lease went back to step ${l.from_step}`));
      assert.equal(all.filter((l) => l.outcome === 'finished').length, 1);
      leases += all.length;
      lost += all.filter((l) => l.outcome === 'lost').length;
      await s.wholeCheckpoints(id);
    }
    await s.terminate();
    checkFiles(s.dir);
    t.diagnostic(`${jobs.size} jobs, ${leases} leases, ${lost} of them lost; killed ${Object.entries(killed).map(([k, n]) => `${k} ${n}`).join(', ')}; ${asked} readings`);
  });
});
