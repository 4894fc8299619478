// metrics.js - the job's time series as the server gives them, laid on one axis.
import { get, withQuery } from './api.js';

const POINTS = 1000; // a series: lowest and highest of each stretch, if it has more

// One axis for all cycles: step n of a cycle comes after all steps of those
// before it. Cycles' lengths: [{number, steps}].
export class Steps {
  constructor(cycles) {
    this.base = new Map();
    this.total = 0;
    for (const { number, steps } of [...cycles].sort((a, b) => a.number - b.number)) {
      this.base.set(number, this.total);
      this.total += steps ?? 0;
    }
  }

  of(cycle, step) {
    return (this.base.get(cycle) ?? 0) + step;
  }
}

// {name: [[x, value], …]} of the named series; null: of all there are.
export async function loadSeries(id, names, steps, signal) {
  const answer = await get(withQuery(`/v1/jobs/${id}/metrics`,
    { series: names?.join(',') ?? null, points: POINTS }), { signal });
  const series = {};
  for (const { cycle, series: name, points } of answer.items)
    (series[name] ??= []).push(...points.map(([step, value]) => [steps.of(cycle, step), value]));
  return series;
}

// Series that share a unit share a plot: loss, loss/policy, validation/loss.
export const familyOf = name => name.replace(/^validation\//, '').split('/')[0];

const first = ['loss', 'lr', 'grad_norm', 'records_per_s'];
export function inOrder(names) {
  const rank = name => {
    const i = first.indexOf(familyOf(name));
    return i < 0 ? first.length : i;
  };
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0));
}
