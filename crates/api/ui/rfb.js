// The Remote Framebuffer Protocol (RFC 6143) over WebSocket, drawn on a canvas.
//
// What the server of the screen says is hostile: sizes are bounded, rectangles lie within the screen, and pixels are all
// that comes of it.

const VERSION = 'RFB 003.008\n';
const MAX_PIXELS = 3840 * 2160;
const MAX_TEXT = 1 << 20;
/** What may wait to be drawn, bytes. */
const MAX_WAITING = 128 << 20;

const RAW = 0;
const COPY = 1;
const ZLIB = 6;
const SIZE = -223;
/** Packed a little: what is packed much takes longer than it saves. */
const LEVEL = -254;
const ENCODINGS = [COPY, ZLIB, RAW, SIZE, LEVEL];
/** Four bytes a pixel: red, green, blue and nothing. */
const PIXELS = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0];

/** Bytes that come in pieces and are taken in others. */
class ByteQueue {
  constructor() {
    this.chunks = [];
    this.length = 0;
    this.waits = null;
    this.failure = null;
  }

  push(bytes) {
    if (this.failure) return;
    this.chunks.push(bytes);
    this.length += bytes.length;
    if (this.length > MAX_WAITING) this.fail(new Error('The screen says too much.'));
    else this.give();
  }

  fail(error) {
    this.failure ??= error;
    this.give();
  }

  give() {
    if (!this.waits) return;
    const { count, resolve, reject } = this.waits;
    if (this.length >= count) {
      this.waits = null;
      resolve(this.cut(count));
    } else if (this.failure) {
      this.waits = null;
      reject(this.failure);
    }
  }

  cut(count) {
    const taken = new Uint8Array(count);
    let filled = 0;
    while (filled < count) {
      const first = this.chunks[0];
      const part = first.subarray(0, count - filled);
      taken.set(part, filled);
      filled += part.length;
      if (part.length === first.length) this.chunks.shift();
      else this.chunks[0] = first.subarray(part.length);
    }
    this.length -= count;
    return taken;
  }

  read(count) {
    return new Promise((resolve, reject) => {
      this.waits = { count, resolve, reject };
      this.give();
    });
  }
}

/** One stream of zlib that goes through all rectangles. */
class Unpacker {
  constructor() {
    const stream = new DecompressionStream('deflate');
    this.writer = stream.writable.getWriter();
    this.out = new ByteQueue();
    this.pump(stream.readable.getReader());
  }

  async pump(reader) {
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        this.out.push(value);
        if (this.out.failure) {
          // A little that is packed may be a lot.
          await reader.cancel();
          return;
        }
      }
    } catch {
      // What waits for it is told.
    }
    this.out.fail(new Error('The screen is packed wrongly.'));
  }

  take(packed, count) {
    this.writer.write(packed).catch((error) => this.out.fail(error));
    return this.out.read(count);
  }
}

const u16 = (bytes, at) => (bytes[at] << 8) | bytes[at + 1];
const u32 = (bytes, at) => u16(bytes, at) * 65536 + u16(bytes, at + 2);
const of16 = (value) => [(value >> 8) & 255, value & 255];
const of32 = (value) => [(value >>> 24) & 255, (value >>> 16) & 255, (value >>> 8) & 255, value & 255];

/** A viewer of a screen, which is drawn on `canvas`. */
export class Viewer {
  constructor(address, canvas) {
    this.canvas = canvas;
    this.drawn = canvas.getContext('2d', { alpha: false });
    this.queue = new ByteQueue();
    this.unpacker = new Unpacker();
    this.socket = new WebSocket(address);
    this.socket.binaryType = 'arraybuffer';
    this.socket.addEventListener('message', ({ data }) => {
      if (data instanceof ArrayBuffer) this.queue.push(new Uint8Array(data));
    });
    this.socket.addEventListener('close', () => this.queue.fail(new Error('The screen hung up.')));
  }

  send(...bytes) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(Uint8Array.from(bytes));
  }

  close() {
    this.socket.close();
  }

  async byte() {
    return (await this.queue.read(1))[0];
  }

  /** Is let in, and calls `begun` then; goes on until the screen hangs up or says what it must not, and throws why. */
  async run(begun) {
    try {
      await this.enter();
      begun();
      this.ask(false);
      for (;;) await this.message();
    } finally {
      this.close();
    }
  }

  async enter() {
    const version = String.fromCharCode(...await this.queue.read(VERSION.length));
    if (!version.startsWith('RFB 003.')) throw new Error('This is no screen.');
    this.send(...VERSION.split('').map((one) => one.charCodeAt(0)));
    const kinds = await this.queue.read(await this.byte());
    if (!kinds.includes(1)) throw new Error('The screen asks for a password.');
    this.send(1);
    if (u32(await this.queue.read(4), 0) !== 0) throw new Error('The screen lets nobody in.');
    this.send(1);
    const told = await this.queue.read(24);
    this.resize(u16(told, 0), u16(told, 2));
    await this.text(u32(told, 20));
    this.send(0, 0, 0, 0, ...PIXELS);
    this.send(2, 0, ...of16(ENCODINGS.length), ...ENCODINGS.flatMap(of32));
  }

  async text(length) {
    if (length > MAX_TEXT) throw new Error('The screen says too much.');
    await this.queue.read(length);
  }

  resize(width, height) {
    if (!width || !height || width * height > MAX_PIXELS) throw new Error('The screen has no size that is drawn.');
    this.canvas.width = width;
    this.canvas.height = height;
  }

  ask(changes) {
    this.send(3, changes ? 1 : 0, 0, 0, 0, 0, ...of16(this.canvas.width), ...of16(this.canvas.height));
  }

  async message() {
    const kind = await this.byte();
    if (kind === 0) {
      const count = u16(await this.queue.read(3), 1);
      let resized = false;
      for (let number = 0; number < count; number += 1) resized = (await this.rectangle()) || resized;
      this.ask(!resized);
    } else if (kind === 1) {
      await this.queue.read(u16(await this.queue.read(5), 3) * 6);
    } else if (kind === 3) {
      await this.text(u32(await this.queue.read(7), 3));
    } else if (kind !== 2) {
      throw new Error('The screen says what is not understood.');
    }
  }

  /** Whether it was another size. */
  async rectangle() {
    const head = await this.queue.read(12);
    const [x, y, width, height] = [0, 2, 4, 6].map((at) => u16(head, at));
    const encoding = u32(head, 8) | 0;
    if (encoding === SIZE) {
      this.resize(width, height);
      return true;
    }
    if (x + width > this.canvas.width || y + height > this.canvas.height) throw new Error('The screen draws beside itself.');
    if (encoding === COPY) {
      const from = await this.queue.read(4);
      this.drawn.drawImage(this.canvas, u16(from, 0), u16(from, 2), width, height, x, y, width, height);
      return false;
    }
    const bytes = width * height * 4;
    let pixels;
    if (encoding === RAW) {
      pixels = await this.queue.read(bytes);
    } else if (encoding === ZLIB) {
      const packed = u32(await this.queue.read(4), 0);
      if (packed > bytes + 65536) throw new Error('The screen says too much.');
      pixels = await this.unpacker.take(await this.queue.read(packed), bytes);
    } else {
      throw new Error('The screen draws what is not understood.');
    }
    if (!bytes) return false;
    for (let at = 3; at < bytes; at += 4) pixels[at] = 255;
    this.drawn.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width, height), x, y);
    return false;
  }

  /** The mouse is there, and these of its buttons are down: one bit each. */
  pointer(x, y, buttons) {
    const within = (value, most) => Math.max(0, Math.min(Math.round(value), most - 1));
    this.send(5, buttons, ...of16(within(x, this.canvas.width)), ...of16(within(y, this.canvas.height)));
  }

  /** A key, as X11 numbers it, is pressed or let go. */
  key(number, down) {
    this.send(4, down ? 1 : 0, 0, 0, ...of32(number));
  }
}

const NAMED = {
  Backspace: 0xff08, Tab: 0xff09, Enter: 0xff0d, Pause: 0xff13, ScrollLock: 0xff14, Escape: 0xff1b, Home: 0xff50,
  ArrowLeft: 0xff51, ArrowUp: 0xff52, ArrowRight: 0xff53, ArrowDown: 0xff54, PageUp: 0xff55, PageDown: 0xff56, End: 0xff57,
  PrintScreen: 0xff61, Insert: 0xff63, ContextMenu: 0xff67, NumLock: 0xff7f, CapsLock: 0xffe5, Delete: 0xffff, AltGraph: 0xfe03,
};
const SIDED = { Shift: [0xffe1, 0xffe2], Control: [0xffe3, 0xffe4], Meta: [0xffeb, 0xffec], Alt: [0xffe9, 0xffea] };

/** How X11 numbers the key of an event; `null` for one that it has not. */
export function keyNumber({ key, location: side }) {
  if (SIDED[key]) return SIDED[key][side === 2 ? 1 : 0];
  if (NAMED[key]) return NAMED[key];
  const f = /^F([1-9]|1[0-2])$/.exec(key);
  if (f) return 0xffbd + Number(f[1]);
  const [first, ...more] = [...key];
  if (!first || more.length) return null;
  const point = first.codePointAt(0);
  return point < 0x100 ? point : 0x1000000 + point;
}
