// histogram.js - how long records are along one dimension: bars in SVG.
//
// Lengths that share a bar's width in pixels share a bar. The cursor, by pointer
// or arrow keys, tells of one bar how many records it holds and how many are no
// longer.
import { attribute, h, s, text } from './dom.js';
import { count, percent } from './format.js';
import { ticks } from './plot.js';

const HEIGHT = 150, TOP = 18, BOTTOM = 24, LEFT = 58, RIGHT = 14;
const BAR_PX = 4, BAR_MOST_PX = 40;

// [[length, records], …] in groups of `width` lengths: {from, to, records, upTo}.
export function groups(bars, width) {
  const all = [];
  let upTo = 0;
  for (const [length, records] of bars) {
    const from = Math.floor(length / width) * width;
    upTo += records;
    if (all.at(-1)?.from === from) {
      all.at(-1).records += records;
      all.at(-1).upTo = upTo;
      all.at(-1).last = length;
    } else {
      all.push({ from, to: from + width, first: length, last: length, records, upTo });
    }
  }
  return all;
}

export class Histogram {
  constructor(name) {
    this.width = 0;
    this.at = null; // index of the bar that is told of
    this.where = h('span.where', { 'aria-live': 'polite' });
    this.svg = s('svg.plot', { height: HEIGHT, tabindex: 0, role: 'img' });
    this.name = name;
    this.node = h('figure', { 'data-dim': name },
      h('figcaption', null, h('span.what', null, name), this.figures = h('span.keys'), this.where), this.svg);
    this.svg.addEventListener('pointermove', e => this.tell(this.barAt(e)));
    this.svg.addEventListener('pointerleave', () => this.tell(null));
    this.svg.addEventListener('blur', () => this.tell(null));
    this.svg.addEventListener('keydown', e => this.key(e));
    this.sizes = new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.paint();
    });
    this.sizes.observe(this.node);
  }

  // A dimension of the census.
  draw(dim) {
    this.dim = dim;
    const figure = (word, v) => h('span.key', null, word, h('b', null, count(v) ?? '—'));
    this.figures.replaceChildren(figure('median', dim.p50), figure('99 %', dim.p99), figure('longest', dim.max));
    attribute(this.svg, 'aria-label', `${this.name}: lengths of ${count(dim.records)} records, median `
      + `${count(dim.p50)}, 99 % at most ${count(dim.p99)}, longest ${count(dim.max)}`);
    this.paint();
  }

  close() {
    this.sizes.disconnect();
  }

  barAt(event) {
    const px = event.clientX - this.svg.getBoundingClientRect().left;
    let best = null;
    this.bars?.forEach((bar, i) => {
      const far = Math.abs(this.xOf((bar.from + bar.to) / 2) - px);
      if (best === null || far < best.far)
        best = { i, far };
    });
    return best?.i ?? null;
  }

  key(event) {
    const n = this.bars?.length ?? 0;
    const here = this.at ?? n;
    const to = { ArrowLeft: Math.max(0, here - 1), ArrowRight: Math.min(n - 1, here + 1), Home: 0, End: n - 1 }[event.key];
    if (to === undefined || !n)
      return;
    event.preventDefault();
    this.tell(to);
  }

  tell(i) {
    this.at = i;
    const bar = i === null ? null : this.bars?.[i];
    this.svg.querySelectorAll('.bin').forEach((node, k) => attribute(node, 'data-told', bar && k === i ? '' : null));
    const lengths = bar && (bar.first === bar.last ? count(bar.first) : `${count(bar.first)} to ${count(bar.last)}`);
    text(this.where, bar ? `length ${lengths}: ${count(bar.records)} records; ${percent(bar.upTo / this.dim.records)} are no longer` : '');
  }

  paint() {
    if (this.width <= 0 || !this.dim)
      return;
    const right = this.width - RIGHT, bottom = HEIGHT - BOTTOM;
    const most = Math.max(1, this.dim.max ?? 0) + 1;
    const width = Math.max(1, Math.ceil(most / ((right - LEFT) / BAR_PX)));
    this.bars = groups(this.dim.histogram, width);
    this.xOf = v => LEFT + v / most * (right - LEFT);
    const high = Math.max(1, ...this.bars.map(b => b.records));
    const yOf = v => bottom - v / high * (bottom - TOP);
    attribute(this.svg, 'width', this.width);
    attribute(this.svg, 'viewBox', `0 0 ${this.width} ${HEIGHT}`);
    const parts = [];
    for (const v of ticks(0, high, (bottom - TOP) / 32, { whole: true }).at)
      parts.push(s('line.grid', { x1: LEFT, x2: right, y1: yOf(v), y2: yOf(v) }),
        s('text.y', { x: LEFT - 8, y: yOf(v) + 4 }, count(v)));
    // A bar of one length stands over its number.
    const middle = width === 1 ? 0.5 : 0;
    for (const v of ticks(0, most - 2 * middle, Math.max(2, (right - LEFT) / 90), { whole: true }).at)
      parts.push(s('line.tick', { x1: this.xOf(v + middle), x2: this.xOf(v + middle), y1: bottom, y2: bottom + 4 }),
        s('text.x', { x: this.xOf(v + middle), y: bottom + 17 }, count(v)));
    const wide = Math.min(BAR_MOST_PX, Math.max(1, this.xOf(width) - this.xOf(0) - 0.5));
    for (const bar of this.bars)
      parts.push(s('rect.bin', { x: this.xOf((bar.from + bar.to) / 2) - wide / 2, width: wide, y: yOf(bar.records),
        height: bottom - yOf(bar.records) }));
    if (this.dim.p99 < this.dim.max)
      parts.push(s('g.limit', null,
        s('line', { x1: this.xOf(this.dim.p99 + 1), x2: this.xOf(this.dim.p99 + 1), y1: TOP - 6, y2: bottom }),
        s('text', { x: this.xOf(this.dim.p99 + 1) + (this.dim.p99 > most / 2 ? -4 : 4), y: TOP + 2,
          'text-anchor': this.dim.p99 > most / 2 ? 'end' : 'start' }, '99 %')));
    parts.push(s('line.axis', { x1: LEFT, x2: right, y1: bottom, y2: bottom }));
    this.svg.replaceChildren(...parts);
    this.tell(this.at !== null && this.at < this.bars.length ? this.at : null);
  }
}
