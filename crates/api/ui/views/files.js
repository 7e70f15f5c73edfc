// Files of a sandbox: directories, what is in a file as text, and the ways in and out.

import { ask, button, bytes, clock, cut, field, h, named, notify, pre, replace, save, table } from '../dom.js';

/** Bytes of a file that are shown, and entries of a directory. */
const MAX_SHOWN = 256 * 1024;
const MAX_ENTRIES = 1000;
const MAX_DOWNLOAD = 512 * 1024 * 1024;

const KINDS = { FILE_TYPE_DIRECTORY: 'directory', FILE_TYPE_FILE: 'file', FILE_TYPE_SYMLINK: 'link' };

function above(path) {
  return path.replace(/\/[^/]*\/?$/, '') || '/';
}

function below(directory, name) {
  return `${directory.replace(/\/$/, '')}/${name}`;
}

/** Text, or bytes in hexadecimal where it is none. */
function readable(data) {
  if (!data.includes(0)) return new TextDecoder().decode(data);
  const lines = [];
  for (let place = 0; place < Math.min(data.length, 4096); place += 16) {
    const row = [...data.subarray(place, place + 16)];
    const hex = row.map((one) => one.toString(16).padStart(2, '0')).join(' ');
    const letters = row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : '.')).join('');
    lines.push(`${place.toString(16).padStart(8, '0')}  ${hex.padEnd(47)}  ${letters}`);
  }
  return lines.join('\n');
}

export function filesTab(context) {
  const { inside } = context;
  const where = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', class: 'mono', 'aria-label': 'Directory', value: '/home/user', maxlength: 4095 });
  const listed = h('div');
  const content = h('div', { 'aria-live': 'polite' });
  const failure = h('p', { class: 'failure', role: 'alert' });
  let directory = '/home/user';

  async function open(path) {
    failure.textContent = '';
    try {
      const entries = await inside.list(path);
      if (context.signal.aborted) return;
      directory = path;
      where.value = path;
      draw(entries);
    } catch (error) {
      replace(failure, error.message);
    }
  }

  async function show(entry) {
    const data = await inside.read(entry.path, MAX_SHOWN);
    const size = Number(entry.size ?? 0);
    replace(content,
      h('h2', {}, named(entry.name)),
      h('p', { class: 'faint' }, size > data.length ? `The first ${bytes(data.length)} of ${bytes(size)}` : bytes(size)),
      pre(readable(data), { 'aria-label': 'Content of the file' }));
  }

  async function fetchFile(entry) {
    if (Number(entry.size ?? 0) > MAX_DOWNLOAD) throw new Error(`It is larger than ${bytes(MAX_DOWNLOAD)}: fetch it with an SDK.`);
    save(await inside.download(entry.path), entry.name.replace(/[^\w.\- ]/g, '_').slice(0, 120) || 'file');
  }

  function draw(entries) {
    const order = (one) => (one.type === 'FILE_TYPE_DIRECTORY' ? 0 : 1);
    entries.sort((a, b) => order(a) - order(b) || (a.name < b.name ? -1 : 1));
    const rows = entries.slice(0, MAX_ENTRIES).map((entry) => {
      const isDirectory = entry.type === 'FILE_TYPE_DIRECTORY';
      const look = button(h('bdi', { class: 'name' }, cut(entry.name, 120)), () => (isDirectory ? open(below(directory, entry.name)) : show(entry)), { class: 'quiet small', title: entry.name });
      return [
        look,
        KINDS[entry.type] ?? 'other',
        isDirectory ? '' : bytes(Number(entry.size ?? 0)),
        h('span', { class: 'mono' }, entry.permissions ?? ''),
        named(`${entry.owner ?? ''}:${entry.group ?? ''}`),
        clock(entry.modifiedTime),
        h('div', { class: 'tools' },
          !isDirectory && button('Download', () => fetchFile(entry), { class: 'small', 'aria-label': `Download ${cut(entry.name, 80)}` }),
          button('Remove', async () => {
            const sure = await ask('Remove?', h('p', {}, named(entry.path)), { confirm: 'Remove', danger: true, read: async () => {
              await inside.removeFile(entry.path);
              return true;
            } });
            if (sure) open(directory);
          }, { class: 'small', 'aria-label': `Remove ${cut(entry.name, 80)}` })),
      ];
    });
    replace(listed, table('Files', ['Name', 'Kind', 'Size', 'Mode', 'Owner', 'Changed', ''], rows, 'The directory is empty.'),
      entries.length > MAX_ENTRIES && h('p', { class: 'faint' }, `${entries.length} entries; the first ${MAX_ENTRIES} are shown.`));
  }

  const upload = h('input', { type: 'file', multiple: true, 'aria-label': 'Files to upload' });
  upload.addEventListener('change', async () => {
    for (const file of upload.files) {
      try {
        await inside.upload(below(directory, file.name), file);
        notify(`${file.name} is there.`);
      } catch (error) {
        notify(error.message, 'bad');
      }
    }
    upload.value = '';
    open(directory);
  });
  const form = h('form', { class: 'tools' },
    button('Up', () => open(above(directory)), { title: 'The directory above' }),
    h('div', { class: 'grow' }, where),
    h('button', { type: 'submit' }, 'Go'),
    button('New directory', async () => {
      const name = h('input', { type: 'text', maxlength: 255 });
      const made = await ask('New directory', field('Name', name), { confirm: 'Make', read: () => inside.makeDirectory(below(directory, name.value)) });
      if (made) open(directory);
    }),
    h('label', { class: 'tools' }, 'Upload ', upload));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    open(where.value.trim() || '/');
  });
  open(directory);
  return [form, failure, listed, content];
}
