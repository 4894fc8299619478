// plot.js - a line plot in SVG: values by step, and lines where leases ended.
//
// One Plot holds series of one kind (losses, or the learning rate, …) and has
// an axis of its own; plots of a job share the steps axis and the cursor.
import { attribute, h, s, text } from './dom.js';
import { count } from './format.js';
import { stateShape } from './state.js';

const TOP = 20, BOTTOM = 24, LEFT = 58, RIGHT = 14;
const NEAR_PX = 3;   // marks closer than this share a line
const SHAPE_PX = 14; // and in this much room there is one shape of a kind

// About `n` round numbers from a to b; round in `unit`s.
export function ticks(a, b, n, { whole = false, unit = 1 } = {}) {
  const rough = (b - a) / unit / Math.max(1, n);
  let step = 10 ** Math.floor(Math.log10(rough));
  step *= [1, 2, 5, 10].find(f => step * f >= rough * 0.999) ?? 10;
  if (whole)
    step = Math.max(1, Math.round(step));
  step *= unit;
  const at = [];
  for (let i = Math.ceil(a / step - 1e-9) || 0; i * step <= b + step * 1e-9; i++)
    at.push(i * step);
  return { step, at };
}

// Marks that would lie on each other, as one.
export function gather(marks, xOf) {
  const groups = [];
  for (const mark of [...marks].sort((a, b) => a.x - b.x)) {
    const last = groups.at(-1);
    if (last && last.kind === mark.kind && xOf(mark.x) - xOf(last.from) < NEAR_PX)
      last.marks.push(mark);
    else
      groups.push({ kind: mark.kind, from: mark.x, marks: [mark] });
  }
  return groups;
}

// The measured point that is closest to x; of several, the last.
const nearest = (points, x) => points.reduce((best, p) =>
  p[1] !== null && Math.abs(p[0] - x) <= Math.abs(best[0] - x) ? p : best);

const finite = v => typeof v === 'number' && Number.isFinite(v);

export class Plot {
  // format: a value as text; tick: (value, step between ticks) as text;
  // binary: round numbers are those of KiB, MiB, …
  constructor({ title, height = 200, format, tick, binary = false, onCursor }) {
    Object.assign(this, { height, format, tick, binary, onCursor });
    this.series = [];
    this.marks = [];
    this.width = 0;
    this.at = null;
    this.where = h('span.where');
    this.keys = h('span.keys');
    this.note = h('span.note');
    this.svg = s('svg.plot', { height, tabindex: 0, role: 'img', 'aria-label': title });
    this.node = h('figure', { 'data-plot': title },
      h('figcaption', null, h('span.what', null, title), this.keys, this.where, this.note),
      this.svg);
    this.svg.addEventListener('pointermove', e => this.onCursor(this.stepAt(e)));
    this.svg.addEventListener('pointerleave', () => this.onCursor(null));
    this.svg.addEventListener('blur', () => this.onCursor(null));
    this.svg.addEventListener('keydown', e => this.key(e));
    this.sizes = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.paint();
    });
    this.sizes.observe(this.node);
  }

  // series: [{name, points: [[x, value or null], …]}], marks: [{x, kind, text}].
  // The same data again costs nothing.
  draw({ series, marks, from, to }) {
    Object.assign(this, { series, marks, from, to });
    this.paint();
  }

  close() {
    this.sizes.disconnect();
  }

  steps() {
    const all = new Set();
    for (const { points } of this.series)
      for (const [x] of points)
        all.add(x);
    return [...all].sort((a, b) => a - b);
  }

  stepAt(event) {
    const px = event.clientX - this.svg.getBoundingClientRect().left;
    let best = null;
    for (const x of this.steps())
      if (best === null || Math.abs(this.xOf(x) - px) < Math.abs(this.xOf(best) - px))
        best = x;
    return best;
  }

  key(event) {
    const steps = this.steps();
    const here = this.at === null ? steps.length : steps.indexOf(this.at);
    const to = {
      ArrowLeft: Math.max(0, here - 1), ArrowRight: Math.min(steps.length - 1, here + 1),
      Home: 0, End: steps.length - 1,
    }[event.key];
    if (to === undefined || !steps.length)
      return;
    event.preventDefault();
    // Read out what the keys find, but not what a passing mouse does.
    attribute(this.keys, 'aria-live', 'polite');
    this.onCursor(steps[to]);
  }

  paint() {
    if (this.width <= 0)
      return;
    const right = this.width - RIGHT, bottom = this.height - BOTTOM;
    const span = Math.max(1, this.to - this.from);
    this.xOf = x => LEFT + (x - this.from) / span * (right - LEFT);

    const values = this.series.flatMap(l => l.points.map(p => p[1])).filter(finite);
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length)
      [low, high] = [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    low = low >= 0 && low - room < 0 ? 0 : low - room;
    high += room;
    const yOf = v => bottom - (v - low) / (high - low) * (bottom - TOP);

    attribute(this.svg, 'width', this.width);
    attribute(this.svg, 'viewBox', `0 0 ${this.width} ${this.height}`);
    const parts = [];
    const unit = this.binary ? 1024 ** Math.max(0, Math.floor(Math.log2(high) / 10)) : 1;
    const ys = ticks(low, high, Math.max(2, (bottom - TOP) / 32), { unit });
    if (values.length)
      for (const v of ys.at)
        parts.push(
          s('line.grid', { x1: LEFT, x2: right, y1: yOf(v), y2: yOf(v) }),
          s('text.y', { x: LEFT - 8, y: yOf(v) + 4 }, this.tick(v, ys.step)));
    for (const v of ticks(this.from, this.to, Math.max(2, (right - LEFT) / 90), { whole: true }).at)
      parts.push(
        s('line.tick', { x1: this.xOf(v), x2: this.xOf(v), y1: bottom, y2: bottom + 4 }),
        s('text.x', { x: this.xOf(v), y: bottom + 17 }, count(v)));
    parts.push(s('line.axis', { x1: LEFT, x2: right, y1: bottom, y2: bottom }));

    const shapes = new Map(); // kind → where its last shape stands
    for (const group of gather(this.marks, this.xOf)) {
      const x = this.xOf(group.from);
      const roomy = x - (shapes.get(group.kind) ?? -Infinity) >= SHAPE_PX;
      if (roomy)
        shapes.set(group.kind, x);
      parts.push(this.paintMark(group, x, bottom, roomy));
    }
    this.series.forEach(({ points, colour }) => parts.push(this.paintLine(points, colour, yOf)));

    this.cursorLine = s('line.cursor', { y1: TOP, y2: bottom, visibility: 'hidden' });
    parts.push(this.cursorLine);
    this.yOf = yOf;
    this.svg.replaceChildren(...parts);
    this.cursor(this.at);
  }

  paintMark({ kind, marks }, x, bottom, roomy) {
    const shape = roomy ? stateShape(kind) : null;
    if (shape) {
      attribute(shape, 'x', x - 6);
      attribute(shape, 'y', 2);
    }
    return s(roomy ? 'g.mark' : 'g.mark.bare', { 'data-kind': kind, 'data-count': marks.length },
      s('title', null, marks.map(m => m.text).join('\n')),
      s('line', { x1: x, x2: x, y1: TOP - 4, y2: bottom }),
      s('line.hit', { x1: x, x2: x, y1: 0, y2: bottom }),
      shape);
  }

  // A value that is not finite leaves a gap.
  paintLine(points, colour, yOf) {
    let d = '', pen = 'M', alone = [];
    points.forEach(([x, v], i) => {
      if (!finite(v)) {
        pen = 'M';
        return;
      }
      d += `${pen}${this.xOf(x).toFixed(1)} ${yOf(v).toFixed(1)}`;
      if (pen === 'M' && !finite(points[i + 1]?.[1]))
        alone.push([x, v]);
      pen = 'L';
    });
    return s('g.line', { 'data-colour': colour, 'data-points': points.length },
      s('path', { d }),
      alone.map(([x, v]) => s('circle.alone', { cx: this.xOf(x), cy: yOf(v), r: 2.5 })));
  }

  // Show the values at step x; null: the newest ones.
  cursor(x) {
    this.at = x;
    const here = x !== null && this.xOf && this.width > 0;
    if (this.cursorLine) {
      attribute(this.cursorLine, 'visibility', here ? 'visible' : 'hidden');
      if (here) {
        attribute(this.cursorLine, 'x1', this.xOf(x));
        attribute(this.cursorLine, 'x2', this.xOf(x));
      }
    }
    const newest = Math.max(...this.series.map(l => l.points.at(-1)?.[0] ?? -Infinity));
    const shown = x ?? newest;
    text(this.where, finite(shown) ? `${x === null ? 'newest, step' : 'step'} ${count(shown)}` : '');
    this.keys.replaceChildren(...this.series.map(({ name, points, colour }) => {
      const point = x === null ? points.at(-1) : nearest(points, x);
      return h('span.key', { 'data-colour': colour }, s('svg.swatch',
        { width: 18, height: 8, 'aria-hidden': 'true' }, s('line', { x1: 0, x2: 18, y1: 4, y2: 4 })),
      name, h('b', null, this.format(point[1]) ?? 'not finite'),
      // a series of many points has not each step here
      x !== null && point[0] !== x && h('span.where', null, `at ${count(point[0])}`));
    }));
    const mark = here && this.marks.find(m => m.x === x);
    text(this.note, mark ? mark.text : '');
  }
}
