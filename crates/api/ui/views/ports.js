// Ports on which programs of a sandbox listen, as its own kernel tables say, and the way to each.

import { button, h, replace, table } from '../dom.js';

const LISTENS = '0A';
const MAX_TABLE = 256 * 1024;

/** The ports of `/proc/net/tcp` and its like on which somebody listens. */
export function listening(text) {
  const found = new Map();
  for (const line of text.split('\n')) {
    const [, local, , state, , , , uid] = line.trim().split(/\s+/);
    if (state !== LISTENS || !/^[0-9A-F]+:[0-9A-F]{4}$/.test(local ?? '')) continue;
    const [address, port] = local.split(':');
    const everywhere = /^0+$/.test(address);
    found.set(Number.parseInt(port, 16), { everywhere, uid: Number(uid) });
  }
  return found;
}

export function portsTab(context) {
  const sandbox = context.sandbox();
  const listed = h('div');
  const failure = h('p', { class: 'failure', role: 'alert' });

  async function look() {
    failure.textContent = '';
    const ports = new Map();
    for (const path of ['/proc/net/tcp6', '/proc/net/tcp']) {
      try {
        const text = new TextDecoder().decode(await context.inside.read(path, MAX_TABLE));
        for (const [port, about] of listening(text)) ports.set(port, about);
      } catch (error) {
        // A kernel without IPv6 has no such table.
        if (path.endsWith('tcp')) replace(failure, error.message);
      }
    }
    const rows = [...ports].sort(([a], [b]) => a - b).map(([port, { everywhere, uid }]) => [
      port, everywhere ? 'every address' : 'one address', uid,
      sandbox.traffic_token
        ? 'needs its traffic token'
        : h('a', { href: `/_port/${sandbox.id}/${port}/`, target: '_blank', rel: 'noopener noreferrer' }, `Open port ${port}`),
    ]);
    replace(listed, table('Ports', ['Port', 'Listens at', 'User id', ''], rows, 'No program listens.'));
  }

  look();
  return [
    h('div', { class: 'tools' }, button('Look again', look)),
    failure, listed,
    h('p', { class: 'faint' }, 'What opens is a page of a program in the sandbox. The server keeps it from everything else at this address.'),
  ];
}
