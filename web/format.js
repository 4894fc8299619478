// format.js - figures as people read them.
//
// Each function takes what the server measured and gives text, or null for what
// is not known: the page then shows a dash, never a made-up number.

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

const known = v => typeof v === 'number' && Number.isFinite(v);

export const count = v => known(v) ? grouped.format(v) : null;

// A measured value to `digits` significant ones: 2.345, 0.000981, 1.2e-7.
export function value(v, digits = 4) {
  if (!known(v))
    return null;
  if (v === 0)
    return '0';
  const size = Math.abs(v);
  if (size < 1e-4 || size >= 1e9)
    return v.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e');
  if (size >= 10 ** digits)
    return grouped.format(v);
  return v.toPrecision(digits);
}

export function perSecond(v) {
  return known(v) ? `${v < 100 ? Number(v.toPrecision(3)) : count(v)} records/s` : null;
}

// Down, so that 100 % means done.
export const percent = f => known(f) ? `${Math.floor(f * 100 + 1e-9)} %` : null;

export function bytes(v) {
  if (!known(v))
    return null;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let n = 0;
  while (v >= 1024 && n < units.length - 1) {
    v /= 1024;
    n++;
  }
  return `${n === 0 || v >= 100 ? count(v) : v.toPrecision(3)} ${units[n]}`;
}

export function duration(seconds) {
  if (!known(seconds) || seconds < 0)
    return null;
  if (seconds > 0 && seconds < 0.05)
    return '< 0.1 s';
  if (seconds < 10)
    return `${Number(seconds.toFixed(1))} s`;
  const t = Math.round(seconds);
  if (t < 60)
    return `${t} s`;
  const two = n => String(n).padStart(2, '0');
  if (t < 3600)
    return `${Math.floor(t / 60)} min ${two(t % 60)} s`;
  if (t < 86400)
    return `${Math.floor(t / 3600)} h ${two(Math.floor(t % 3600 / 60))} min`;
  return `${Math.floor(t / 86400)} d ${Math.floor(t % 86400 / 3600)} h`;
}

// How long ago (a time, or ms since 1970), coarse: it is read at a glance and changes seldom.
export function ago(at, now = Date.now()) {
  const seconds = (now - (known(at) ? at : Date.parse(at))) / 1000;
  if (!known(seconds))
    return null;
  if (seconds < 5)
    return 'just now';
  if (seconds < 60)
    return `${Math.floor(seconds / 5) * 5} s ago`;
  if (seconds < 3600)
    return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400)
    return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

const day = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
export function moment(at) {
  const t = Date.parse(at);
  return known(t) ? day.format(t) : null;
}

export function secondsBetween(from, to) {
  const seconds = (Date.parse(to) - Date.parse(from)) / 1000;
  return known(seconds) ? seconds : null;
}

// Parts that are known, joined; null when none is.
export function join(separator, ...parts) {
  return parts.filter(p => p !== null && p !== undefined && p !== '').join(separator) || null;
}
