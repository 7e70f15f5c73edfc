// What happened to sandboxes, the newest first.

import { get, may, part } from '../api.js';
import { button, clock, facts, h, named, replace, table } from '../dom.js';

const KINDS = { created: 'good', resumed: 'good', paused: 'dull', updated: 'dull', timed_out: 'warn', killed: 'warn', died: 'bad' };
const EVERY_MS = 5000;

/** The machine's audit log, which each line vouches for: whether it is as it was written. */
function verification(context) {
  const result = h('div', { role: 'status' });
  const verify = button('Verify', async () => {
    replace(result, h('p', { class: 'loading' }, 'Each line is checked…'));
    const told = await get('/v1/audit/verification', { signal: context.signal }).catch((error) => {
      replace(result);
      throw error;
    });
    replace(result, facts([
      ['The log', h('span', { class: `badge ${told.unbroken ? 'good' : 'bad'}` }, told.unbroken ? 'unbroken' : 'broken')],
      ['Lines', told.lines],
      told.torn > 0 && ['Cut short by a crash, and vouched for', told.torn],
      !told.unbroken && ['Not to be trusted from line', told.first_bad],
      !told.unbroken && ['Why', named(told.why)],
    ]));
  });
  return [
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'The audit log of the machine'), verify),
    h('p', { class: 'faint' }, 'What runs and sandboxes did, a line each with the hash of the line before. ', h('code', {}, 'offleash audit'), ' shows it.'),
    result,
  ];
}

export async function auditView(context) {
  const listed = h('div');
  const sandbox = h('input', { type: 'search', placeholder: 'Id of a sandbox', 'aria-label': 'Id of a sandbox', maxlength: 64 });
  let newest = -1;

  async function draw() {
    const query = new URLSearchParams({ limit: '500' });
    if (sandbox.value.trim()) query.set('sandbox', sandbox.value.trim());
    const { events } = await get(`/v1/audit?${query}`, { signal: context.signal });
    newest = events[0]?.number ?? 0;
    replace(listed, table('Events', ['Number', 'When', 'What', 'Sandbox', 'Template', 'Why'], events.map((one) => [
      one.number, clock(one.at), h('span', { class: `badge ${KINDS[one.kind] ?? 'dull'}` }, one.kind),
      h('a', { href: `#/sandboxes/${part(one.sandbox)}/log` }, named(one.name ?? one.sandbox)), named(one.template), one.reason ? named(one.reason) : '',
    ]), 'Nothing has happened.'));
  }

  sandbox.addEventListener('change', () => draw().catch((error) => replace(listed, error.message)));
  const timer = setInterval(async () => {
    if (document.visibilityState !== 'visible') return;
    // Few bytes as long as nothing happens.
    const { events } = await get(`/v1/audit?limit=1&after=${newest}`, { signal: context.signal }).catch(() => ({ events: [] }));
    if (events.length) await draw().catch(() => {});
  }, EVERY_MS);
  context.onEnd(() => clearInterval(timer));
  await draw();
  return [
    h('h1', {}, 'Audit'),
    h('div', { class: 'tools' }, h('div', { class: 'grow' }, sandbox), button('Look again', draw)),
    listed,
    may('admin') && verification(context),
  ];
}
