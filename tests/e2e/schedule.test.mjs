// The learning rate and the optimizer over several cycles.
import test from 'node:test';
import assert from 'node:assert/strict';
import { merge, tinyShard, tinySpec, withServer } from '../harness.mjs';

const ran = async (s) => {
  const w = await s.runWorker();
  assert.equal(w.code, 0, w.output);
};
const every = (n) => ({ runtime: { restart: { every_micro_batches: n } } });
// 40 records in batches of 4: cycles of 10 steps.
const tens = (patch = {}) => merge(tinySpec({
  cycles: 3, training: { schedule: { type: 'cosine', warmup_steps: 3, final_fraction: 0.1 } },
}), patch);
const rates = async (s, id) => (await s.series(id, ['lr'])).map((l) => l.split(',')).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
const curve = (rows, cycle) => rows.filter((r) => r[0] === String(cycle)).map((r) => r[3]);
// The optimizer's own count of steps, as the last state has it.
async function counted(s, id) {
  const last = (await s.checkpoints(id)).sort((a, b) => b.id - a.id)[0];
  const state = (await s.get(`/v1/checkpoints/${last.id}/state`)).expect(200).body;
  const length = Number(state.readBigUInt64LE(0));
  const [begin] = JSON.parse(state.subarray(8, 8 + length))['optimizer.step'].data_offsets;
  return Number(state.readBigInt64LE(8 + length + begin));
}

test('SPL-03: one schedule over three cycles is the curve of one long run; a pause in the second changes nothing', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(40) });
    const long = await s.submit(tens({ cycles: 1, training: { epochs: 3 } }));
    await ran(s);
    await s.completed(long.id);
    const single = await s.values(long.id, 'lr');
    assert.equal(single.length, 30);

    const one = await s.submit(tens({ training: { schedule: { steps: 30 } } }));
    for (let i = 0; i < 3; i++) await ran(s);
    const straight = await s.result(one.id);
    assert.deepEqual((await rates(s, one.id)).map((r) => r[3]), single, 'the rate over the job\'s steps');
    assert.equal(await counted(s, one.id), 30, 'the moments went on');

    // the same with a yield after step 4 of the second cycle, a pause, and a yield after step 8
    const two = await s.submit(tens({ training: { schedule: { steps: 30 } } }));
    await ran(s);
    (await s.patch(`/v1/jobs/${two.id}`, every(4))).expect(200);
    await ran(s);
    (await s.post(`/v1/jobs/${two.id}/pause`)).expect(200);
    await s.waitState(two.id, 'paused');
    (await s.post(`/v1/jobs/${two.id}/resume`)).expect(200);
    await ran(s);
    (await s.patch(`/v1/jobs/${two.id}`, every(0))).expect(200);
    await ran(s);
    await ran(s);
    const stopped = await s.result(two.id);
    assert.deepEqual((await s.leases(two.id)).map((l) => [l.cycle, l.from_step, l.to_step]), [[1, 0, 10], [2, 0, 4], [2, 4, 8], [2, 8, 10], [3, 0, 10]]);
    assert.deepEqual(stopped.series, straight.series);
    assert.equal(stopped.model, straight.model);
    assert.equal(stopped.job.exact.tier, 'bit');
  });
});

test('SPL-03: restarted in each cycle: three equal curves, and moments that begin anew', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(40) });
    const job = await s.submit(tens({ training: { optimizer: { cycles: 'restart' } } }));
    await ran(s);
    (await s.patch(`/v1/jobs/${job.id}`, every(6))).expect(200);
    await ran(s);
    await ran(s);
    (await s.patch(`/v1/jobs/${job.id}`, every(0))).expect(200);
    await ran(s);
    const restarted = await s.result(job.id);
    const rows = await rates(s, job.id);
    assert.equal(curve(rows, 1).length, 10);
    assert.deepEqual(curve(rows, 2), curve(rows, 1));
    assert.deepEqual(curve(rows, 3), curve(rows, 1));
    assert.equal(await counted(s, job.id), 10, 'steps that the optimizer has counted');

    const whole = await s.submit(tens({ training: { optimizer: { cycles: 'restart' } } }));
    for (let i = 0; i < 3; i++) await ran(s);
    const straight = await s.result(whole.id);
    assert.equal(restarted.model, straight.model);
    assert.deepEqual(restarted.series, straight.series);

    // the default: the same curves, but the moments go on
    const kept = await s.submit(tens());
    for (let i = 0; i < 3; i++) await ran(s);
    const going = await s.result(kept.id);
    assert.deepEqual((await rates(s, kept.id)).map((r) => r[3]), rows.map((r) => r[3]));
    assert.equal(await counted(s, kept.id), 30);
    const losses = (r, cycle) => r.series.filter((l) => l.startsWith(`${cycle},`) && l.includes(',loss,'));
    assert.deepEqual(losses(going, 1), losses(straight, 1));
    assert.notEqual(going.model, straight.model, 'what the moments are matters');
  });
});
