// proxy.mjs - what a network between a worker and its server may do, on demand.
import http from 'node:http';
import { request } from './harness.mjs';

// Between a worker and pawld: passes all on, but holds back the requests that
// `hold` picks for as long as it says so.
export async function proxy(to) {
  const p = { hold: () => false, held: [], chunks: new Set(), sent: 0, most: 0, under: 0, seen: [] };
  p.letGo = () => { p.hold = () => false; for (const go of p.held.splice(0)) go(); };
  const server = http.createServer((req, res) => {
    const parts = [];
    req.on('data', (d) => parts.push(d));
    req.on('error', () => {});
    res.on('error', () => {});
    req.on('end', async () => {
      const what = { method: req.method, path: req.url, body: Buffer.concat(parts) };
      p.seen.push(`${what.method} ${what.path}`);
      const chunk = req.method === 'PUT' && /\/chunks\//.test(req.url);
      if (chunk) p.most = Math.max(p.most, ++p.under);
      if (p.hold(what)) await new Promise((go) => { p.held.push(go); req.socket.on('close', go); });
      if (!req.socket.destroyed) {
        try {
          const headers = { ...req.headers, host: new URL(to).host };
          const r = await request(to, { method: req.method, path: req.url, headers, body: what.body.length ? what.body : undefined });
          delete r.headers['transfer-encoding'];
          res.writeHead(r.status, req.method === 'HEAD' ? r.headers : { ...r.headers, 'content-length': r.body.length });
          res.end(req.method === 'HEAD' ? undefined : r.body);
        } catch { req.socket.destroy(); }
      }
      if (chunk) p.under--;
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  p.url = `http://127.0.0.1:${server.address().port}`;
  p.close = () => { p.letGo(); server.closeAllConnections(); server.close(); };
  return p;
}
