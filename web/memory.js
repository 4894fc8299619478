// memory.js - what the workers measured of memory, by step.
import { get, Problem, withQuery } from './api.js';
import { h } from './dom.js';
import { bytes } from './format.js';
import { Plot } from './plot.js';

const levels = [['device_bytes', 'device driver'], ['allocated_bytes', 'framework'],
  ['rss_bytes', 'process']];
const POINTS = 500;

// Points with a gap where a new process began.
function byProcess(samples, pointOf) {
  return samples.flatMap((m, i) => {
    const point = pointOf(m);
    const began = i > 0 && samples[i - 1].lease !== m.lease;
    return began ? [[point[0], null], point] : [point];
  });
}

export class MemoryPanel {
  constructor(id, charts) {
    this.id = id;
    this.plot = new Plot({
      title: 'Level', height: 150, format: bytes, tick: bytes, binary: true,
      onCursor: x => charts.cursor(x),
    });
    charts.others.push(this.plot);
    this.node = h('section', { hidden: true, 'aria-labelledby': 'memory-title' },
      h('h2', { id: 'memory-title' }, 'Memory'), this.plot.node);
  }

  async load(leases, steps, marks, signal) {
    let answer;
    try {
      answer = await get(withQuery(`/v1/jobs/${this.id}/memory`, { points: POINTS }), { signal });
    } catch (error) {
      if (error instanceof Problem && error.status === 404)
        return;
      throw error;
    }
    const cycles = new Map(leases.map(l => [l.id, l.cycle]));
    // A CPU's device level is that of the process.
    const hosts = new Set(leases.filter(l => l.device === 'cpu').map(l => l.id));
    const series = levels.map(([key, name], colour) => ({
      name, colour,
      points: byProcess(answer.items.filter(m => typeof m[key] === 'number'
          && !(key === 'device_bytes' && hosts.has(m.lease))),
        m => [steps.of(cycles.get(m.lease), m.step), m[key]]),
    })).filter(line => line.points.length);
    this.node.hidden = series.length === 0;
    const last = Math.max(0, ...series.flatMap(line => line.points.map(p => p[0])));
    this.plot.draw({ series, marks, from: 0, to: Math.max(steps.total, last) });
  }

  close() {
    this.plot.close();
  }
}
