// leases.js - who trained from which step to which, and why each one ended.
import { pages } from './api.js';
import { attribute, h, Rows, text } from './dom.js';
import { bytes, count, duration, join, moment, secondsBetween } from './format.js';
import { StateLabel } from './state.js';

// A job's leases, oldest first. Full pages of ended ones are asked for once: a
// job may have thousands, and only the newest still changes.
export class LeaseList {
  constructor(id) {
    this.path = `/v1/jobs/${id}/leases`;
    this.settled = [];
    this.cursor = null;
  }

  async load(signal) {
    let open = [];
    for await (const { items, next } of pages(this.path, { cursor: this.cursor }, { signal })) {
      open.push(...items);
      if (next && open.every(l => l.outcome)) {
        this.settled.push(...open);
        this.cursor = next;
        open = [];
      }
    }
    return [...this.settled, ...open];
  }
}

const yields = {
  memory: 'memory threshold reached', forecast: 'memory threshold foreseen',
  steps: 'step threshold reached', time: 'time threshold reached',
  drain: 'asked to make way', pause: 'job paused',
};

// Why a lease ended, as words.
export function reasonText(lease) {
  return join(': ', yields[lease.reason] ?? lease.reason, lease.detail);
}

// The highest level each kind of memory reached. A CPU's device is the process.
export function peakText({ peak, device }) {
  return peak && join(' · ',
    peak.device_bytes != null && device !== 'cpu' ? `${bytes(peak.device_bytes)} device` : null,
    peak.allocated_bytes != null ? `${bytes(peak.allocated_bytes)} allocated` : null,
    peak.rss_bytes != null ? `${bytes(peak.rss_bytes)} process` : null);
}

// Lines for the plots: every end of a lease that was not the end of its cycle.
export function leaseMarks(leases, stepOf) {
  return leases.filter(l => l.outcome && l.outcome !== 'finished').map(l => ({
    x: stepOf(l.cycle, l.to_step),
    kind: l.outcome,
    text: `step ${count(l.to_step)}: ${join(', ', l.outcome, reasonText(l))}`,
  })).filter(m => Number.isFinite(m.x));
}

function leaseRow(id) {
  const outcome = new StateLabel();
  const cell = name => h(`td.${name}`, { role: 'cell' });
  const [number, worker, steps, reason, peak, took] =
    ['number', 'worker', 'steps', 'reason', 'peak', 'took'].map(cell);
  const node = h('tr.lease', { role: 'row', 'data-id': id }, number, worker, steps,
    h('td.outcome', { role: 'cell' }, outcome.node), reason, peak, took);
  return {
    node,
    update({ lease, cycles }) {
      outcome.update(lease.outcome ?? 'training');
      attribute(node, 'data-outcome', lease.outcome ?? 'training');
      text(number, String(lease.id));
      text(worker, typeof lease.worker === 'object' ? lease.worker?.name : String(lease.worker ?? '—'));
      text(steps, join(' ', cycles ? `cycle ${lease.cycle}:` : null,
        `${count(lease.from_step) ?? '—'} → ${count(lease.to_step) ?? '…'}`));
      text(reason, reasonText(lease));
      text(peak, peakText(lease) ?? '—');
      text(took, lease.ended_at
        ? duration(secondsBetween(lease.started_at, lease.ended_at)) : '');
      attribute(took, 'title', join(' – ', moment(lease.started_at), moment(lease.ended_at)));
    },
  };
}

const FIRST = 12;

export class LeaseTable {
  constructor() {
    const body = h('tbody', { role: 'rowgroup' });
    this.rows = new Rows(body, leaseRow);
    this.all = false;
    this.items = [];
    this.more = h('button', {
      type: 'button', hidden: true,
      onclick: () => {
        this.all = true;
        this.show();
      },
    });
    this.none = h('p.muted', null, 'No worker has taken this job yet.');
    this.table = h('table.leases', { role: 'table', hidden: true, 'aria-label': 'leases' },
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
        ['Lease', 'Worker', 'Steps', 'Outcome', 'Reason', 'Peak memory', 'Took']
          .map(title => h('th', { role: 'columnheader', scope: 'col' }, title)))),
      body);
    this.node = h('section', { 'aria-labelledby': 'leases-title' },
      h('h2', { id: 'leases-title' }, 'Leases'), this.none, this.table, this.more);
  }

  update(leases) {
    this.items = [...leases].sort((a, b) => b.id - a.id);
    this.show();
  }

  show() {
    const cycles = this.items.some(l => l.cycle > 1);
    const shown = this.all ? this.items : this.items.slice(0, FIRST);
    this.rows.update(shown.map(lease => ({ lease, cycles })), row => row.lease.id);
    this.none.hidden = this.items.length > 0;
    this.table.hidden = this.items.length === 0;
    this.more.hidden = shown.length === this.items.length;
    text(this.more, `Show all ${count(this.items.length)}`);
  }
}
