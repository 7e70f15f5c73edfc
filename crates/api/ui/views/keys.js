// Keys and quotas: one's own, and with the scope `admin` all.

import { get, may, part, post, remove, session } from '../api.js';
import { ask, button, clock, facts, field, h, named, notify, replace, table } from '../dom.js';

function quota(of) {
  const words = [['sandboxes', ''], ['cpus', ' CPUs'], ['memory_mib', ' MiB memory'], ['disk_mib', ' MiB disk']];
  const told = words.filter(([name]) => of[name] !== null).map(([name, unit]) => `${of[name]}${unit || ' sandboxes'}`);
  return told.length ? told.join(', ') : 'without limit';
}

export async function keysView(context) {
  const listed = h('div');
  const own = h('div');
  const admin = may('admin');

  async function draw() {
    const usage = await get('/v1/usage', { signal: context.signal });
    replace(own, facts([
      ['Your key', usage.key], ['It may', usage.scopes.join(', ')], ['Running sandboxes', usage.running], ['Quota', quota(usage.quota)],
    ]));
    if (!admin) return;
    const { keys } = await get('/v1/keys', { signal: context.signal });
    replace(listed, table('Keys', ['Name', 'Id', 'Begins with', 'Scopes', 'Quota', 'Made', 'State', ''], keys.map((one) => [
      named(one.name), h('span', { class: 'mono' }, one.id), h('span', { class: 'mono' }, one.prefix), one.scopes.join(', '), quota(one.quota), clock(one.created_ms),
      one.revoked_ms === null ? h('span', { class: 'badge good' }, 'valid') : h('span', { class: 'badge dull' }, `revoked ${clock(one.revoked_ms)}`),
      one.revoked_ms === null && button('Revoke', async () => {
        const stops = h('input', { type: 'checkbox' });
        const sure = await ask('Revoke this key?', h('div', {}, h('p', {}, named(one.name), one.id === session().key ? '. It is the one that you are logged in with.' : ''),
          h('div', { class: 'field' }, h('label', {}, stops, ' End its sandboxes, too'))), {
          confirm: 'Revoke', danger: true, read: async () => {
            await remove(`/v1/keys/${part(one.id)}${stops.checked ? '?stop_sandboxes=true' : ''}`);
            return true;
          },
        });
        if (sure) draw();
      }, { class: 'small', 'aria-label': `Revoke key ${one.id}` }),
    ])));
  }

  async function create() {
    const name = h('input', { type: 'text', required: true, maxlength: 100 });
    const scope = h('select', {}, ['create', 'read', 'overview', 'admin'].map((value) => h('option', { value }, value)));
    const limits = { sandboxes: 'Sandboxes', cpus: 'CPUs', memory_mib: 'Memory, MiB', disk_mib: 'Disk, MiB' };
    const inputs = Object.fromEntries(Object.keys(limits).map((one) => [one, h('input', { type: 'number', min: 1, placeholder: 'without limit' })]));
    const made = await ask('New key', h('div', {}, field('Name', name), field('It may', scope), Object.entries(limits).map(([one, word]) => field(word, inputs[one]))), {
      confirm: 'Make',
      read: () => post('/v1/keys', {
        name: name.value.trim(), scopes: [scope.value],
        quota: Object.fromEntries(Object.entries(inputs).filter(([, input]) => input.value).map(([one, input]) => [one, Number(input.value)])),
      }),
    });
    if (!made) return;
    const shownKey = h('input', { type: 'text', class: 'mono', readonly: true, value: made.key });
    await ask('The key', field('It is shown this once', shownKey), { confirm: 'I have it', read: () => true });
    notify(`Key ${made.about.id} is made.`);
    draw();
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Keys and quotas'), admin && button('New key', create, { class: 'primary' })),
    own, listed,
  ];
}
