// The services inside a sandbox: its commands and files, as E2B's SDKs ask for them.

import { Refusal } from './api.js';

const MAX_FRAME = 8 * 1024 * 1024;
const START = '/process.Process/';
const FILES = '/filesystem.Filesystem/';

/** One sandbox's services. */
export class Inside {
  constructor(sandbox, user = 'user') {
    this.sandbox = sandbox;
    this.user = user;
  }

  headers(type) {
    const all = {
      'E2b-Sandbox-Id': this.sandbox.id,
      'E2b-Sandbox-Port': '49983',
      Authorization: `Basic ${btoa(`${this.user}:`)}`,
    };
    if (this.sandbox.access_token) all['X-Access-Token'] = this.sandbox.access_token;
    if (type) all['Content-Type'] = type;
    return all;
  }

  async fetch(path, options) {
    let answer;
    try {
      answer = await fetch(path, { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options });
    } catch (error) {
      if (error.name === 'AbortError') throw error;
      throw new Refusal(0, 'The server does not answer.');
    }
    if (answer.ok) return answer;
    let message = `the sandbox answered ${answer.status}`;
    try {
      message = JSON.parse((await answer.text()).slice(0, 65536)).message ?? message;
    } catch {
      // It is told by its status.
    }
    throw new Refusal(answer.status, String(message).slice(0, 1000));
  }

  async unary(service, method, body, signal) {
    const answer = await this.fetch(service + method, {
      method: 'POST', headers: this.headers('application/json'), body: JSON.stringify(body), signal,
    });
    return answer.json();
  }

  /**
   * Starts a command and tells `on` of what happens: `{start}`, `{data}`, `{end}`. Nothing more is read until what `on`
   * gives is there. Resolves when it has ended.
   */
  async start(request, on, signal, headers = {}) {
    const answer = await this.fetch(`${START}Start`, {
      method: 'POST', headers: { ...this.headers('application/connect+json'), ...headers }, body: framed(request), signal,
    });
    await frames(answer.body, (message) => message.event && on(message.event));
  }

  input(pid, data) {
    return this.unary(START, 'SendInput', { process: { pid }, input: { pty: base64(data) } });
  }

  resize(pid, cols, rows) {
    return this.unary(START, 'Update', { process: { pid }, pty: { size: { cols, rows } } });
  }

  signal(pid, name) {
    return this.unary(START, 'SendSignal', { process: { pid }, signal: name });
  }

  async processes() {
    return (await this.unary(START, 'List', {})).processes ?? [];
  }

  async list(path) {
    return (await this.unary(FILES, 'ListDir', { path, depth: 1 })).entries ?? [];
  }

  removeFile(path) {
    return this.unary(FILES, 'Remove', { path });
  }

  makeDirectory(path) {
    return this.unary(FILES, 'MakeDir', { path });
  }

  url(path) {
    return `/files?${new URLSearchParams({ path, username: this.user })}`;
  }

  /** At most `most` bytes of a file. */
  async read(path, most) {
    const answer = await this.fetch(this.url(path), { headers: this.headers() });
    return bounded(answer.body, most);
  }

  async download(path) {
    return (await this.fetch(this.url(path), { headers: this.headers() })).blob();
  }

  async upload(path, file) {
    const form = new FormData();
    form.append('file', file, path);
    await this.fetch(this.url(path), { method: 'POST', headers: this.headers(), body: form });
  }
}

/** Bytes as base64. */
export function base64(data) {
  let text = '';
  for (let place = 0; place < data.length; place += 8192) text += String.fromCharCode(...data.subarray(place, place + 8192));
  return btoa(text);
}

/** Bytes of base64. */
export function unbase64(text) {
  return Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
}

function framed(message) {
  const body = new TextEncoder().encode(JSON.stringify(message));
  const frame = new Uint8Array(5 + body.length);
  new DataView(frame.buffer).setUint32(1, body.length);
  frame.set(body, 5);
  return frame;
}

async function frames(stream, on) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let pieces = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refusal(0, 'The sandbox is gone.');
    const all = new Uint8Array(pieces.length + value.length);
    all.set(pieces);
    all.set(value, pieces.length);
    pieces = all;
    while (pieces.length >= 5) {
      const length = new DataView(pieces.buffer, pieces.byteOffset).getUint32(1);
      if (length > MAX_FRAME) throw new Refusal(0, 'The server said more at once than is taken.');
      if (pieces.length < 5 + length) break;
      const isLast = (pieces[0] & 2) !== 0;
      const message = JSON.parse(decoder.decode(pieces.subarray(5, 5 + length)) || '{}');
      pieces = pieces.slice(5 + length);
      if (isLast) {
        if (message.error) throw new Refusal(0, String(message.error.message ?? message.error.code).slice(0, 1000));
        return;
      }
      const taken = on(message);
      if (taken) await taken;
    }
  }
}

async function bounded(stream, most) {
  const reader = stream.getReader();
  const pieces = [];
  let size = 0;
  while (size < most) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value.subarray(0, most - size));
    size += pieces.at(-1).length;
  }
  await reader.cancel();
  const all = new Uint8Array(size);
  let place = 0;
  for (const piece of pieces) {
    all.set(piece, place);
    place += piece.length;
  }
  return all;
}
