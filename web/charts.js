// charts.js - a job's curves: a plot for each kind of series, and the choice of
// which to show.
import { attribute, h } from './dom.js';
import * as format from './format.js';
import { familyOf, inOrder, loadSeries } from './metrics.js';
import { Plot } from './plot.js';

const titles = { loss: 'Loss', lr: 'Learning rate', grad_norm: 'Gradient norm',
  records_per_s: 'Records per second', shapes: 'Distinct shapes of batches',
  padding_waste: 'Padding that holds nothing', shapes_exceeded: 'Records longer than foreseen' };
const SHOWN = ['loss', 'loss/policy', 'loss/value', 'validation/loss']; // unless the URL says otherwise
const COLOURS = 6;

// A tick's text with just the digits that its neighbours differ in.
function tick(v, step) {
  if (Math.abs(v) < step / 1e6)
    return '0';
  if (Math.abs(v) >= 1e6 || step < 1e-3)
    return v.toExponential(1).replace('.0e', 'e').replace('e+', 'e');
  return v.toFixed(Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))));
}

export class Charts {
  // `chosen`: names from the URL, or null; `choose` is told of each change.
  constructor(id, chosen, choose) {
    this.id = id;
    this.chosen = chosen ? new Set(chosen.split(',')) : null;
    this.choose = choose;
    this.plots = new Map();   // family → Plot
    this.others = [];         // plots elsewhere that share the cursor
    this.boxes = new Map();   // series → its checkbox
    this.picker = h('fieldset.picker', null, h('legend.unseen', null, 'Series'));
    this.none = h('p.muted', null, 'Nothing measured yet.');
    this.body = h('div');
    this.node = h('section', { 'aria-labelledby': 'curves-title' },
      h('div.bar-title', null, h('h2', { id: 'curves-title' }, 'Curves'), this.picker),
      this.none, this.body);
  }

  shows(name) {
    return this.chosen ? this.chosen.has(name) : SHOWN.includes(name);
  }

  async load(steps, marks, signal) {
    this.series = await loadSeries(this.id, null, steps, signal);
    this.names = inOrder(Object.keys(this.series).filter(n => this.series[n].length));
    this.to = steps.total;
    this.marks = marks;
    this.show();
  }

  toggle(name, on) {
    this.chosen = new Set(this.names.filter(n => n === name ? on : this.shows(n)));
    this.choose([...this.chosen].join(','));
    this.show();
  }

  show() {
    for (const name of this.names) {
      if (this.boxes.has(name))
        continue;
      const box = h('input', {
        type: 'checkbox', value: name, onchange: () => this.toggle(name, box.checked),
      });
      this.boxes.set(name, box);
      this.picker.append(h('label', null, box, name));
    }
    const families = new Map();
    for (const name of this.names) {
      this.boxes.get(name).checked = this.shows(name);
      if (!this.shows(name))
        continue;
      const family = familyOf(name);
      families.set(family, [...families.get(family) ?? [], name]);
    }
    for (const [family, plot] of this.plots) {
      if (!families.has(family)) {
        plot.close();
        plot.node.remove();
        this.plots.delete(family);
      }
    }
    this.none.hidden = this.names.length > 0;
    let last = 0;
    for (const name of this.names)
      last = Math.max(last, this.series[name].at(-1)[0]);
    for (const [family, names] of families)
      this.plotOf(family).draw({
        series: names.map(name => ({
          name, points: this.series[name], colour: this.colourOf(name),
        })),
        marks: this.marks, from: 0, to: Math.max(this.to, last),
      });
    // In the order of the names, whatever order they were chosen in.
    this.body.append(...[...families.keys()].map(f => this.plots.get(f).node)
      .filter((node, i) => this.body.children[i] !== node));
    attribute(this.node, 'data-points', this.names.length ? last : 0);
  }

  // A series keeps its colour when others come and go.
  colourOf(name) {
    const family = familyOf(name);
    return this.names.filter(n => familyOf(n) === family).indexOf(name) % COLOURS;
  }

  plotOf(family) {
    let plot = this.plots.get(family);
    if (!plot) {
      plot = new Plot({
        title: titles[family] ?? family, height: family === 'loss' ? 260 : 150,
        format: v => format.value(v), tick, onCursor: x => this.cursor(x),
      });
      this.plots.set(family, plot);
    }
    return plot;
  }

  cursor(x) {
    for (const plot of [...this.plots.values(), ...this.others])
      plot.cursor(x);
  }

  close() {
    for (const plot of this.plots.values())
      plot.close();
  }
}
