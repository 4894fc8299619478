// dom.js - making and changing elements.
//
// All text comes in as text nodes: a job named "<img src=x>" shows just that.
// Nothing here, nor anywhere in the page, parses markup.

const SVG = 'http://www.w3.org/2000/svg';

// h('a.name', {href: '#/jobs'}, 'Jobs', otherNode): an element with its class
// names, attributes, listeners (functions, by `onclick` and the like) and
// children. Children that are null, undefined or false are left out.
export function h(what, attributes, ...children) {
  const [tag, ...classes] = what.split('.');
  return fill(document.createElement(tag), classes, attributes, children);
}

// The same for SVG.
export function s(what, attributes, ...children) {
  const [tag, ...classes] = what.split('.');
  return fill(document.createElementNS(SVG, tag), classes, attributes, children);
}

function fill(node, classes, attributes, children) {
  if (classes.length)
    node.setAttribute('class', classes.join(' '));
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function')
      node.addEventListener(name.slice(2), value);
    else if (value === true)
      node.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value);
  }
  node.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return node;
}

// Change text only where it differs, so that a selection survives and no
// assistive tool reads the same thing twice.
export function text(node, value) {
  const next = value ?? '';
  if (node.textContent !== next)
    node.textContent = next;
  return node;
}

export function attribute(node, name, value) {
  if (value === null || value === undefined || value === false)
    node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value))
    node.setAttribute(name, value);
}

// Rows of a list that changes: `make(key)` builds {node, update(item)} once for
// each key; later calls move and update what is there, so that focus stays.
export class Rows {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.rows = new Map();
  }

  update(items, keyOf) {
    const seen = new Set();
    let after = null;
    for (const item of items) {
      const key = keyOf(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row)
        this.rows.set(key, row = this.make(key));
      row.update(item);
      const place = after ? after.nextSibling : this.parent.firstChild;
      if (row.node !== place)
        this.parent.insertBefore(row.node, place);
      after = row.node;
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
  }
}
