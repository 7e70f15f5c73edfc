// Volumes: directories that outlive sandboxes.

import { get, may, part, post, remove } from '../api.js';
import { ask, button, bytes, clock, field, h, named, notify, replace, table } from '../dom.js';

export async function volumesView(context) {
  const listed = h('div');
  const change = may('create');

  async function draw() {
    const { volumes } = await get('/v1/volumes', { signal: context.signal });
    replace(listed, table('Volumes', ['Volume', 'Id', 'Size', 'Files', 'Writers', 'Use', 'Bucket', 'Made', ''], volumes.map((one) => [
      named(one.name), h('span', { class: 'mono' }, one.id), bytes(one.size_mib * 1048576), one.inodes,
      one.shared ? 'many' : 'one',
      h('span', { class: `badge ${one.in_use ? 'good' : 'dull'}` }, one.in_use ? 'in use' : 'free'),
      one.bucket ? named(one.bucket.url) : '', clock(one.created_at),
      change && h('div', { class: 'tools' },
        one.bucket && button('Sync', async () => {
          const told = await post(`/v1/volumes/${part(one.id)}/sync`);
          notify(`${told.fetched} fetched, ${told.sent} sent, ${told.conflicts.count} conflicts, ${told.failed.count} failed.`, told.failed.count ? 'bad' : 'good');
        }, { class: 'small' }),
        !one.in_use && button('Remove', async () => {
          const sure = await ask('Remove this volume?', h('p', {}, 'All its files are lost: ', named(one.name)), {
            confirm: 'Remove', danger: true, read: async () => {
              await remove(`/v1/volumes/${part(one.id)}`);
              return true;
            },
          });
          if (sure) draw();
        }, { class: 'small', 'aria-label': `Remove volume ${one.id}` })),
    ]), 'There is no volume.'));
  }

  await draw();
  return [
    h('div', { class: 'tools' }, h('h1', { class: 'grow' }, 'Volumes'), button('Look again', draw), change && button('New volume', async () => {
      const name = h('input', { type: 'text', required: true, maxlength: 63 });
      const size = h('input', { type: 'number', min: 1, value: 1024 });
      const shared = h('input', { type: 'checkbox' });
      const made = await ask('New volume', h('div', {}, field('Name', name), field('Size, MiB', size),
        h('div', { class: 'field' }, h('label', {}, shared, ' Many sandboxes may write to it at the same time'))), {
        confirm: 'Make', read: () => post('/v1/volumes', { name: name.value.trim(), size_mib: Number(size.value), shared: shared.checked }),
      });
      if (made) draw();
    }, { class: 'primary' })),
    listed,
  ];
}
