// state.js - states and outcomes as a word with a shape, so that nobody has to
// tell them apart by colour.
import { attribute, h, s, text } from './dom.js';

// 12 × 12, drawn in the text's colour. `fill` shapes are solid.
const shapes = {
  queued:    { d: 'M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 0 1 0-9z' },
  running:   { d: 'M3 1.2 10.5 6 3 10.8z', fill: true },
  paused:    { d: 'M2.5 1.5h2.4v9H2.5zM7.1 1.5h2.4v9H7.1z', fill: true },
  completed: { d: 'M1.5 6.5 4.7 9.7 10.5 2.5' },
  failed:    { d: 'M2 2l8 8M10 2l-8 8' },
  canceled:  { d: 'M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 0 1 0-9zM2.9 2.9l6.2 6.2' },
  yielded:   { d: 'M10 4.2A4.6 4.6 0 1 0 10.6 6.5M10.6 1.3v3.2H7.4' },
  lost:      { d: 'M6 1.2 11 10.6H1zM6 4.6v2.8M6 9v.2' },
};
const same = { finished: 'completed', training: 'running', done: 'completed' };

export function stateShape(word) {
  const shape = shapes[same[word] ?? word];
  return s('svg.shape', { viewBox: '0 0 12 12', width: 12, height: 12, 'aria-hidden': 'true' },
    shape && s(shape.fill ? 'path.solid' : 'path', { d: shape.d }));
}

// A label that can change its state.
export class StateLabel {
  constructor(extra = '') {
    this.word = h('span');
    this.node = h(`span.state${extra}`, null, this.word);
  }

  update(word) {
    if (this.now === word)
      return;
    this.now = word;
    this.node.replaceChildren(stateShape(word), text(this.word, word));
    attribute(this.node, 'data-state', same[word] ?? word);
  }
}

export class ProgressBar {
  constructor() {
    this.fill = h('div.fill');
    this.node = h('div.bar', { role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100 },
      this.fill);
  }

  // `fraction` null: not known, and shown as such.
  update(fraction, state, label) {
    const known = typeof fraction === 'number';
    attribute(this.node, 'data-state', state);
    attribute(this.node, 'aria-valuenow', known ? Math.floor(fraction * 100) : null);
    attribute(this.node, 'aria-valuetext', label);
    attribute(this.node, 'aria-label', 'progress');
    this.fill.style.width = `${known ? Math.min(1, Math.max(0, fraction)) * 100 : 0}%`;
  }
}
