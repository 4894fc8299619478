// handover - how long nobody trains between a yield and the next process's first
// step: with pawld's stand-by, and with a worker that starts from nothing.
//
//   node tests/bench/handover.mjs [LEASES]
//
// Times are those of the memory samples, one at each optimizer step.
import { chessSpec, withServer } from '../harness.mjs';

const n = Number(process.argv[2] ?? 12);
// n leases of 7 steps each, and the last one
const spec = chessSpec({ training: { epochs: Math.ceil(n * 7 / 25) }, runtime: { checkpoint_every: 0, restart: { every_micro_batches: 28 } } });

// From the last step of each lease to the first step after it.
async function gaps(s, id) {
  const { items } = (await s.get(`/v1/jobs/${id}/memory?points=100000`)).expect(200).json;
  const out = [];
  let last = null;
  for (const x of items.filter((i) => i.step > 0)) {
    if (last && x.step <= last.step) continue; // a sample after loading, not after a step
    if (last && x.lease !== last.lease) out.push(Date.parse(x.at) - Date.parse(last.at));
    last = x;
  }
  return out;
}
function report(what, ms) {
  ms.sort((a, b) => a - b);
  console.log(`${what.padEnd(10)} ${ms.length} handovers: median ${ms[Math.floor(ms.length / 2)]} ms, shortest ${ms[0]}, longest ${ms.at(-1)}`);
}

await withServer({ workers: 1 }, async (s) => {
  await s.uploadChess();
  const job = await s.submit(spec);
  await s.completed(job.id);
  report('stand-by', await gaps(s, job.id));
});
await withServer({ workers: 0 }, async (s) => {
  await s.uploadChess();
  const job = await s.submit(spec);
  while ((await s.job(job.id)).state !== 'completed') await s.runWorker();
  report('cold', await gaps(s, job.id));
});
