// The machine: its version, its levels and what `offleash doctor` finds.

import { call, get, may } from '../api.js';
import { facts, h, named, table } from '../dom.js';

const WORDS = { ok: 'good', limited: 'warn', missing: 'bad' };

/** What is told of the numbers of `/metrics`, by their names there. */
const COUNTS = {
  'offleash_sandboxes{state="running"}': 'Sandboxes of all keys that run',
  'offleash_sandboxes{state="paused"}': 'that are paused',
  'offleash_sandboxes{state="pooled"}': 'that wait to be handed out',
  'offleash_creates_total{from="pool"}': 'Created from those that waited',
  'offleash_creates_total{from="scratch"}': 'Created from nothing',
  offleash_creates_failed_total: 'Creates that failed',
  offleash_http_connections: 'Connections of clients',
};

/** The numbers of a page for Prometheus that are told of, with their words. */
export function counts(text) {
  const found = new Map(text.split('\n').map((line) => line.split(' ')));
  return Object.entries(COUNTS).filter(([name]) => found.has(name)).map(([name, word]) => [word, found.get(name)]);
}

export async function machineView(context) {
  const admin = may('admin');
  const [version, usage, machine, metrics] = await Promise.all([
    get('/v1/version', { signal: context.signal }),
    get('/v1/usage', { signal: context.signal }),
    admin ? get('/v1/machine', { signal: context.signal }) : null,
    admin ? call('GET', '/metrics', undefined, { signal: context.signal }).then((answer) => answer.text()) : '',
  ]);
  return [
    h('h1', {}, 'Machine'),
    facts([
      ['Version', version.version],
      ['Services of sandboxes', `envd ${version.envd_version}`],
      ['Address', version.url],
      ['Your running sandboxes', usage.running],
      ...counts(metrics),
    ]),
    machine ? [
      h('h2', {}, 'Levels'),
      table('Levels', ['Level', 'Here', 'Why'], machine.levels.map((one) => [
        one.level, h('span', { class: `badge ${one.available ? 'good' : 'dull'}` }, one.available ? 'available' : 'not here'), named(one.why),
      ])),
      h('h2', {}, 'What was found'),
      table('What was found', ['Feature', 'State', 'Found', 'Needed for', 'What mends it'], machine.checks.map((one) => [
        one.name, h('span', { class: `badge ${WORDS[one.status] ?? 'dull'}` }, one.status), h('bdi', { class: 'name' }, one.found), one.needed_for,
        one.mend ? h('bdi', { class: 'name' }, one.mend, ' ', h('code', {}, 'offleash doctor'), ' prints the commands.') : '',
      ])),
    ] : h('p', { class: 'faint' }, 'What the machine offers is shown to keys with the scope admin.'),
  ];
}
