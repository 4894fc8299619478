// What a look at a dataset foretells, and what training then measures.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chessSpec, hasWorker, withServer } from '../harness.mjs';

test('an advised padding, pasted into a job, wastes what was foretold', { skip: !hasWorker && 'no pawl-worker' }, () =>
  withServer({ workers: 1 }, async (server) => {
    await server.uploadChess();
    const submit = (padding) => {
      const spec = chessSpec({ runtime: { checkpoint_every: 0 } });
      spec.runtime.padding = padding;
      return server.submit(spec);
    };
    const first = await submit({ mode: 'dynamic' });
    const { advice } = (await server.get(`/v1/datasets/chess/inspect?whole=1&job=${first.id}`)).expect(200).json;
    for (const [one, job] of [[advice.dynamic, first], [advice.stable.p99], [advice.ladder[4]]]) {
      const { id, runtime: { padding: { mode } } } = job ?? await submit(one.padding);
      await server.completed(id);
      // Each step has as many records, so steps weigh nearly alike.
      const values = (await server.values(id, 'padding_waste')).map(Number);
      assert.equal(values.length, 25);
      const measured = values.reduce((a, b) => a + b, 0) / values.length;
      assert.ok(Math.abs(measured - one.waste) < 0.02, `${mode}: measured ${measured}, foretold ${one.waste}`);
      const shapes = Number((await server.values(id, 'shapes')).at(-1));
      assert.ok(shapes <= one.shapes, `${mode}: ${shapes} shapes, at most ${one.shapes} were foretold`);
    }
  }));
