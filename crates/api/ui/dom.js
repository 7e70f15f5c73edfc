// Elements, and text in them. All that a sandbox says passes `shown`, whatever it says, and becomes text.

// Controls of terminals, of writing direction and of layout, what has no width, and halves of characters.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}/gu;

function escaped(character) {
  return `\\u{${character.codePointAt(0).toString(16)}}`;
}

/** Text in which nothing is hidden: what cannot be seen is written as `\u{…}`. */
export function shown(text) {
  return String(text).replace(HIDDEN, escaped);
}

/** The same for output: lines and tabs stay, and the end of a line of terminals. */
export function shownLines(text) {
  return String(text).replace(/\r\n/g, '\n').replace(HIDDEN, (one) => (one === '\n' || one === '\t' ? one : escaped(one)));
}

/** At most `most` characters of a text, with a mark where it was cut. */
export function cut(text, most = 200) {
  const all = [...String(text).slice(0, most * 2 + 2)];
  return all.length > most ? `${all.slice(0, most).join('')}…` : String(text);
}

const BOOLEAN = new Set(['disabled', 'hidden', 'required', 'checked', 'selected', 'open', 'multiple', 'autofocus', 'readonly']);
const TEXT = new Set([
  'id', 'class', 'type', 'name', 'value', 'placeholder', 'title', 'role', 'for', 'tabindex', 'autocomplete', 'min', 'max',
  'step', 'rows', 'maxlength', 'scope', 'colspan', 'download', 'rel', 'target', 'lang', 'dir', 'spellcheck', 'pattern',
  'viewBox', 'd', 'points', 'width', 'height', 'preserveAspectRatio', 'x', 'y', 'x1', 'x2', 'y1', 'y2', 'inputmode', 'method',
]);

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith('on') && typeof value === 'function') {
    element.addEventListener(name.slice(2), value);
  } else if (name === 'href') {
    // A page of ours, a file that was made here, or a port of a sandbox; never a program.
    if (!/^(#|\/_port\/|blob:|http:\/\/[0-9]+-[a-z0-9]+\.|https:\/\/[0-9]+-[a-z0-9]+\.)/.test(value)) throw new Error('no such link');
    element.setAttribute('href', value);
  } else if (BOOLEAN.has(name)) {
    element[name === 'readonly' ? 'readOnly' : name] = Boolean(value);
  } else if (name.startsWith('aria-') || name.startsWith('data-') || TEXT.has(name)) {
    element.setAttribute(name, shown(value));
  } else {
    throw new Error(`no attribute ${name} is set here`);
  }
}

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
  return element;
}

/** An element with attributes, listeners (`onclick`) and children; strings become text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  return fill(element, children);
}

/** The same of SVG. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  return fill(element, children);
}

/** Puts children in place of those that there are. */
export function replace(element, ...children) {
  element.replaceChildren();
  return fill(element, children);
}

/** Says `text` in an element unless it does already. */
export function say(element, text) {
  const wanted = shown(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Output of a program. */
export function pre(text, attributes = {}) {
  const element = h('pre', { tabindex: '0', ...attributes });
  element.textContent = shownLines(text);
  return element;
}

/** A name that somebody else chose: what is written to the left or right in it moves nothing beside it. */
export function named(text, attributes = {}) {
  return h('bdi', { class: 'name', title: text, ...attributes }, cut(text));
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(count) {
  let value = Number(count);
  if (!Number.isFinite(value)) return '–';
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 1 : 0)} ${UNITS[unit]}`;
}

export function percent(value) {
  return Number.isFinite(value) ? `${value.toFixed(value < 10 ? 1 : 0)} %` : '–';
}

/** A time between two moments, in one or two units. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function clock(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? '–' : date.toLocaleString();
}

/** Tells of something for a while. */
export function notify(text, kind = 'good') {
  const notice = h('div', { class: `notice ${kind}` }, cut(text, 500));
  const place = document.getElementById('notices');
  place.append(notice);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  setTimeout(() => notice.remove(), kind === 'bad' ? 10000 : 5000);
}

/** A button that does something, once at a time, and says what went wrong. */
export function button(label, work, attributes = {}) {
  const element = h('button', { type: 'button', ...attributes }, label);
  element.addEventListener('click', async () => {
    if (element.getAttribute('aria-busy') === 'true') return;
    element.setAttribute('aria-busy', 'true');
    try {
      await work();
    } catch (error) {
      notify(error.message, 'bad');
    } finally {
      element.removeAttribute('aria-busy');
    }
  });
  return element;
}

/** A field with its label. */
export function field(label, input, hint) {
  input.id ||= `f${(field.count = (field.count ?? 0) + 1)}`;
  const told = hint && h('span', { class: 'hint', id: `${input.id}-hint` }, hint);
  if (told) input.setAttribute('aria-describedby', told.id);
  return h('div', { class: 'field' }, h('label', { for: input.id }, label), input, told);
}

/** Asks in a dialog; resolves to what `read` gives when it is confirmed, and to `null` if it is not. */
export function ask(title, content, { confirm = 'OK', danger = false, read = () => true } = {}) {
  return new Promise((resolve) => {
    const heading = h('h2', { id: 'dialog-title' }, title);
    const failure = h('p', { class: 'failure', role: 'alert' });
    const yes = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, confirm);
    const no = h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel');
    const form = h('form', { method: 'dialog' }, heading, content, failure, h('div', { class: 'actions' }, no, yes));
    const dialog = h('dialog', { 'aria-labelledby': 'dialog-title' }, form);
    let answer = null;
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      yes.disabled = true;
      failure.textContent = '';
      try {
        answer = await read();
        dialog.close();
      } catch (error) {
        failure.textContent = shown(error.message);
      } finally {
        yes.disabled = false;
      }
    });
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A table: heads, and rows of cells. */
export function table(caption, heads, rows, empty = 'There is nothing here.') {
  const row = (cells) => h('tr', {}, cells.map((cell) => h('td', {}, cell)));
  const body = rows.length ? rows.map(row) : h('tr', {}, h('td', { colspan: heads.length, class: 'empty' }, empty));
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    h('table', {},
      h('caption', { class: 'unseen' }, caption),
      h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head || h('span', { class: 'unseen' }, 'Actions'))))),
      h('tbody', {}, body)));
}

/** Pairs of words and values. */
export function facts(pairs) {
  return h('dl', { class: 'facts' }, pairs.filter(Boolean).map(([word, value]) =>
    h('div', {}, h('dt', {}, word), h('dd', {}, value ?? '–'))));
}

/** Saves bytes as a file of the person's. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h('a', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
