// Snapshots, of which sandboxes can be made.

import { get, may, part, remove } from '../api.js';
import { ask, button, bytes, clock, h, named, notify, replace, table } from '../dom.js';
import { createSandbox } from './create.js';

export async function snapshotsView(context) {
  const listed = h('div');
  const change = may('create');
  let after = null;

  async function draw() {
    const query = after ? `?nextToken=${part(after)}` : '';
    const { snapshots, next } = await get(`/v1/snapshots${query}`, { signal: context.signal });
    replace(listed,
      table('Snapshots', ['Snapshot', 'Of sandbox', 'Template', 'Size', 'Files', 'Made', ''], snapshots.map((one) => [
        named(one.name ?? one.id),
        one.sandbox ? h('span', { class: 'mono' }, one.sandbox) : 'imported',
        named(one.template), bytes(one.bytes), one.files, clock(one.created_at),
        change && h('div', { class: 'tools' },
          button('New sandbox', () => createSandbox({ snapshot: one.id }), { class: 'small', 'aria-label': `New sandbox of snapshot ${one.id}` }),
          button('Remove', async () => {
            const sure = await ask('Remove this snapshot?', h('p', {}, named(one.name ?? one.id)), {
              confirm: 'Remove', danger: true, read: async () => {
                await remove(`/v1/snapshots/${part(one.id)}`);
                return true;
              },
            });
            if (!sure) return;
            notify('It is removed.');
            draw();
          }, { class: 'small', 'aria-label': `Remove snapshot ${one.id}` })),
      ]), 'There is no snapshot.'),
      next && button('Next page', () => {
        after = next;
        return draw();
      }),
      after && button('First page', () => {
        after = null;
        return draw();
      }));
  }

  await draw();
  return [h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Snapshots'), button('Look again', draw)), listed];
}
