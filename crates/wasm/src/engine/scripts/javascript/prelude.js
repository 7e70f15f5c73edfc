// What scripts have beside the language: the part of Node.js that needs files, streams, timers and nothing else of a machine.
// The value of this file is a function of the host's calls. A call that fails answers a negative error number.
(function (host) {
  "use strict";

  const ERRORS = {
    1: ["EPERM", "operation not permitted"], 2: ["ENOENT", "no such file or directory"], 5: ["EIO", "i/o error"],
    9: ["EBADF", "bad file descriptor"], 13: ["EACCES", "permission denied"], 16: ["EBUSY", "resource busy or locked"],
    17: ["EEXIST", "file already exists"], 18: ["EXDEV", "cross-device link not permitted"],
    20: ["ENOTDIR", "not a directory"], 21: ["EISDIR", "illegal operation on a directory"],
    22: ["EINVAL", "invalid argument"], 27: ["EFBIG", "file too large"], 28: ["ENOSPC", "no space left on device"],
    30: ["EROFS", "read-only file system"], 36: ["ENAMETOOLONG", "name too long"], 39: ["ENOTEMPTY", "directory not empty"],
    40: ["ELOOP", "too many symbolic links encountered"], 95: ["ENOTSUP", "operation not supported on socket"],
    122: ["EDQUOT", "disk quota exceeded"],
  };

  function failure(errno, syscall, path, dest) {
    const [code, words] = ERRORS[errno] ?? ["EIO", "error " + errno];
    const where = path === undefined ? "" : ` '${path}'` + (dest === undefined ? "" : ` -> '${dest}'`);
    const error = new Error(`${code}: ${words}, ${syscall}${where}`);
    return Object.assign(error, { errno: -errno, code, syscall }, path === undefined ? {} : { path });
  }

  function done(answer, syscall, path, dest) {
    if (typeof answer === "number" && answer < 0) throw failure(-answer, syscall, path, dest);
    return answer;
  }

  // ---- text and bytes

  const encode = (text) => host.encode(String(text));
  function bytesOf(view) {
    if (view instanceof ArrayBuffer) return view;
    return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  }
  const decode = (view) => host.decode(bytesOf(view));

  class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return encode(text); }
  }
  class TextDecoder {
    constructor(label = "utf-8") {
      if (!/^utf-?8$/i.test(label)) throw new RangeError(`The "${label}" encoding is not supported`);
    }
    get encoding() { return "utf-8"; }
    decode(view = new Uint8Array()) { return decode(view).replace(/^\uFEFF/, ""); }
  }

  const HEX = "0123456789abcdef";
  class Buffer extends Uint8Array {
    static from(value, encoding, length) {
      if (typeof value === "string") {
        switch ((encoding ?? "utf8").toLowerCase()) {
          case "utf8": case "utf-8": return view(encode(value));
          case "hex": return view(Uint8Array.from(value.match(/../g) ?? [], (pair) => parseInt(pair, 16)));
          case "base64": case "base64url": {
            const text = atob(value.replace(/-/g, "+").replace(/_/g, "/").replace(/[^A-Za-z0-9+/]/g, ""));
            return view(Uint8Array.from(text, (character) => character.charCodeAt(0)));
          }
          case "latin1": case "binary": case "ascii":
            return view(Uint8Array.from(value, (character) => character.charCodeAt(0) & 255));
          default: throw new TypeError("Unknown encoding: " + encoding);
        }
      }
      if (value instanceof ArrayBuffer) return new Buffer(value, encoding, length);
      return view(Uint8Array.from(value));
    }
    static alloc(size, fill = 0) { return new Buffer(size).fill(fill); }
    static allocUnsafe(size) { return new Buffer(size); }
    static isBuffer(value) { return value instanceof Buffer; }
    static byteLength(value) { return typeof value === "string" ? encode(value).length : value.byteLength; }
    static concat(list) {
      const whole = new Buffer(list.reduce((sum, part) => sum + part.length, 0));
      let at = 0;
      for (const part of list) { whole.set(part, at); at += part.length; }
      return whole;
    }
    toString(encoding = "utf8", start = 0, end = this.length) {
      const part = this.subarray(start, end);
      const latin = () => Array.from(part, (byte) => String.fromCharCode(byte)).join("");
      switch (encoding.toLowerCase()) {
        case "utf8": case "utf-8": return decode(part);
        case "hex": return Array.from(part, (byte) => HEX[byte >> 4] + HEX[byte & 15]).join("");
        case "base64": return btoa(latin());
        case "base64url": return btoa(latin()).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
        case "latin1": case "binary": case "ascii": return latin();
        default: throw new TypeError("Unknown encoding: " + encoding);
      }
    }
    toJSON() { return { type: "Buffer", data: Array.from(this) }; }
    equals(other) { return this.length === other.length && this.every((byte, at) => byte === other[at]); }
    slice(start, end) { return this.subarray(start, end); }
  }
  function view(bytes) { return new Buffer(bytes.buffer, bytes.byteOffset, bytes.byteLength); }

  // ---- how values are shown

  const QUOTED = { "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v", "\\": "\\\\" };
  function quoted(text) {
    const mark = !text.includes("'") ? "'" : !text.includes('"') ? '"' : !text.includes("`") ? "`" : "'";
    const shown = text.replace(/[\x00-\x1f\x7f\\]/g, (c) => QUOTED[c] ?? "\\x" + c.charCodeAt(0).toString(16).padStart(2, "0").toUpperCase());
    return mark + (mark === "'" ? shown.replace(/'/g, "\\'") : shown) + mark;
  }
  const isName = (key) => /^[A-Za-z_$][A-Za-z0-9_$]*$/.test(key);
  function shownNumber(value) { return Object.is(value, -0) ? "-0" : String(value); }

  function inspect(value, options = {}) {
    const state = { depth: options.depth === undefined ? 2 : options.depth ?? Infinity, seen: [], circular: new Map(), deepest: 0, width: options.breakLength ?? 80 };
    return shown(value, state, 0, 0, false);
  }

  function shownError(error) {
    const name = error.name ?? "Error";
    const head = error.message ? `${name}: ${error.message}` : String(name);
    const stack = typeof error.stack === "string" ? error.stack.trimEnd() : "";
    return stack ? head + "\n" + stack : head;
  }

  function nameOf(value) {
    for (let at = value; at !== null; at = Object.getPrototypeOf(at)) {
      const maker = Object.getOwnPropertyDescriptor(at, "constructor")?.value;
      if (typeof maker === "function" && maker.name) return maker.name;
    }
    return null;
  }

  function shown(value, state, level, indentation, isKeyed) {
    switch (typeof value) {
      case "string": return level === 0 && state.isPlain ? value : quoted(value);
      case "number": return shownNumber(value);
      case "bigint": return value + "n";
      case "boolean": case "undefined": return String(value);
      case "symbol": return value.toString();
    }
    if (value === null) return "null";
    if (state.seen.includes(value)) {
      if (!state.circular.has(value)) state.circular.set(value, state.circular.size + 1);
      return `[Circular *${state.circular.get(value)}]`;
    }
    return shownObject(value, state, level, indentation);
  }

  function shownObject(value, state, level, indentation) {
    const maker = nameOf(value);
    const tag = value[Symbol.toStringTag];
    let prefix = maker === null ? "[Object: null prototype] " : maker === "Object" ? "" : maker + " ";
    if (typeof tag === "string" && tag !== "" && tag !== maker) prefix = (prefix || "Object ") + `[${tag}] `;
    let keys = Object.keys(value);
    const symbols = Object.getOwnPropertySymbols(value).filter((key) => Object.getOwnPropertyDescriptor(value, key).enumerable);
    const isList = Array.isArray(value) || ArrayBuffer.isView(value) && !(value instanceof DataView);
    let open = "{", close = "}", base = "", items = null;
    if (typeof value === "function") {
      const kind = /^class\b/.test(Function.prototype.toString.call(value)) ? "class" : maker ?? "Function";
      base = kind === "class" ? `[class ${value.name || "(anonymous)"}]` : `[${kind}${value.name ? ": " + value.name : " (anonymous)"}]`;
      prefix = "";
    } else if (isList) {
      keys = keys.filter((key) => !/^(0|[1-9][0-9]*)$/.test(key));
      open = "["; close = "]";
      prefix = Array.isArray(value) && maker === "Array" ? "" : `${maker}(${value.length}) `;
      if (value instanceof Buffer) return `<Buffer${Array.from(value.subarray(0, 50), (b) => " " + HEX[b >> 4] + HEX[b & 15]).join("")}${value.length > 50 ? ` ... ${value.length - 50} more bytes` : ""}>`;
    } else if (value instanceof Map || value instanceof Set) {
      prefix = `${maker}(${value.size}) `;
    } else if (value instanceof Date) {
      base = Number.isNaN(value.getTime()) ? "Invalid Date" : value.toISOString(); prefix = "";
    } else if (value instanceof RegExp) { base = String(value); prefix = "";
    } else if (value instanceof Error) {
      base = shownError(value); prefix = "";
      keys = keys.filter((key) => !["stack", "message", "name"].includes(key));
      if (level > 0 && !base.includes("\n")) base = `[${base}]`;
      base = base.replace(/\n/g, "\n" + " ".repeat(indentation));
    } else if (value instanceof Promise) {
      return "Promise { <pending> }";
    } else if (value instanceof WeakMap || value instanceof WeakSet) {
      return `${maker} { <items unknown> }`;
    } else if (value instanceof String || value instanceof Number || value instanceof Boolean) {
      base = `[${maker}: ${shown(value.valueOf(), state, 1, 0)}]`; prefix = "";
      keys = keys.filter((key) => !/^[0-9]+$/.test(key));
    }
    const hasItems = isList ? value.length > 0 : (value instanceof Map || value instanceof Set) && value.size > 0;
    if (!hasItems && keys.length === 0 && symbols.length === 0) return base || `${prefix}${open}${close}`;
    if (level > state.depth) return `[${isList ? "Array" : (prefix || "Object").trim().replace(/\(.*/, "")}]`;

    state.seen.push(value);
    state.deepest = level;
    const inner = indentation + 2;
    const parts = [];
    if (isList) {
      const most = Math.min(100, value.length);
      let holes = 0;
      for (let at = 0; at < most || holes > 0 && at <= most; at++) {
        if (at < most && Array.isArray(value) && !(at in value)) { holes++; continue; }
        if (holes > 0) { parts.push(`<${holes} empty item${holes > 1 ? "s" : ""}>`); holes = 0; }
        if (at < most) parts.push(shown(value[at], state, level + 1, inner));
      }
      if (value.length > most) parts.push(`... ${value.length - most} more item${value.length - most > 1 ? "s" : ""}`);
    } else if (value instanceof Map) {
      for (const [key, item] of value) parts.push(`${shown(key, state, level + 1, inner)} => ${shown(item, state, level + 1, inner)}`);
    } else if (value instanceof Set) {
      for (const item of value) parts.push(shown(item, state, level + 1, inner));
    }
    for (const key of [...keys, ...symbols]) {
      const found = Object.getOwnPropertyDescriptor(value, key);
      const name = typeof key === "symbol" ? `[${String(key)}]` : isName(key) ? key : quoted(key);
      const text = found.get ? (found.set ? "[Getter/Setter]" : "[Getter]") : found.set ? "[Setter]" : shown(found.value, state, level + 1, inner);
      parts.push(`${name}: ${text}`);
    }
    state.seen.pop();
    const reference = state.circular.has(value) ? `<ref *${state.circular.get(value)}> ` : "";
    if (base) prefix = "";
    const head = reference + prefix + open + (base ? " " + base : "");
    return joined(parts, isList, value, head, close, indentation, level, state);
  }

  // Parts stand on one line if they fit and are not nested deeper than three, and else each on its own.
  function joined(parts, isList, list, head, close, indentation, level, state) {
    const rows = isList && parts.length > 6 ? grouped(parts, list, indentation, state) : parts;
    if (state.deepest - level < 3 && rows.length === parts.length) {
      const length = parts.reduce((sum, part) => sum + part.length, 2 * parts.length + indentation + head.length + 10);
      if (length <= state.width && !parts.some((part) => part.includes("\n")) && !head.includes("\n")) {
        return `${head} ${parts.join(", ")} ${close}`;
      }
    }
    const indent = "\n" + " ".repeat(indentation);
    return `${head}${indent}  ${rows.join(`,${indent}  `)}${indent}${close}`;
  }

  // Long lists of short items stand in columns, as many as make them some 2.5 times as wide as they are high.
  function grouped(parts, list, indentation, state) {
    const count = list.length > 100 ? parts.length - 1 : parts.length;
    const lengths = parts.slice(0, count).map((part) => part.length);
    const total = lengths.reduce((sum, length) => sum + length + 2, 0);
    const longest = Math.max(...lengths), most = longest + 2;
    if (most * 3 + indentation >= state.width || !(total / most > 5 || longest <= 6)) return parts;
    const usual = Math.max(most - 3 - Math.sqrt(most - total / parts.length), 1);
    const columns = Math.min(Math.round(Math.sqrt(2.5 * usual * count) / usual), Math.floor((state.width - indentation) / most), 12);
    if (columns <= 1) return parts;
    const widths = Array.from({ length: columns }, (_, column) => {
      let width = 0;
      for (let at = column; at < count; at += columns) width = Math.max(width, lengths[at]);
      return width + 2;
    });
    const isRight = Array.prototype.every.call(list, (item) => typeof item === "number" || typeof item === "bigint");
    const rows = [];
    for (let at = 0; at < count; at += columns) {
      const last = Math.min(at + columns, count) - 1;
      let row = "";
      for (let place = at; place < last; place++) row += (parts[place] + ", ")[isRight ? "padStart" : "padEnd"](widths[place - at]);
      rows.push(row + (isRight ? parts[last].padStart(widths[last - at] - 2) : parts[last]));
    }
    return count < parts.length ? [...rows, parts[count]] : rows;
  }

  function format(first, ...rest) {
    let text = "", begin = rest;
    if (typeof first === "string") {
      text = first.replace(/%[sdifjoOc%]/g, (mark) => {
        if (mark === "%%") return "%";
        if (begin.length === 0) return mark;
        const [value, ...others] = begin;
        begin = others;
        switch (mark) {
          case "%s": return typeof value === "object" && value !== null || typeof value === "function" ? inspect(value, { depth: 0 }) : typeof value === "bigint" ? value + "n" : Object.is(value, -0) ? "-0" : String(value);
          case "%d": return typeof value === "object" ? "NaN" : typeof value === "bigint" ? value + "n" : shownNumber(Number(value));
          case "%i": return shownNumber(parseInt(value, 10));
          case "%f": return shownNumber(parseFloat(value));
          case "%j": try { return JSON.stringify(value); } catch { return "[Circular]"; }
          case "%c": return "";
          default: return inspect(value, { depth: mark === "%o" ? 4 : 2 });
        }
      });
    } else if (arguments.length > 0) text = inspect(first);
    for (const value of begin) text += " " + (typeof value === "string" ? value : inspect(value));
    return text;
  }

  // ---- streams and console

  const write = (fd, data) => { host.write(fd, bytesOf(typeof data === "string" ? encode(data) : data)); return true; };
  let indent = "";
  const say = (fd) => (...values) => {
    const text = format(...values);
    write(fd, (indent ? indent + text.replace(/\n/g, "\n" + indent) : text) + "\n");
  };
  const counts = new Map(), times = new Map();
  const console = {
    log: say(1), info: say(1), debug: say(1), error: say(2), warn: say(2),
    dir: (value, options) => write(1, inspect(value, options) + "\n"),
    trace: (...values) => console.error("Trace: " + format(...values)),
    assert: (holds, ...values) => { if (!holds) console.error(...(values.length ? ["Assertion failed: " + format(...values)] : ["Assertion failed"])); },
    count: (label = "default") => { counts.set(label, (counts.get(label) ?? 0) + 1); console.log(`${label}: ${counts.get(label)}`); },
    countReset: (label = "default") => counts.delete(label),
    group: (...values) => { if (values.length) console.log(...values); indent += "  "; },
    groupEnd: () => { indent = indent.slice(2); },
    time: (label = "default") => times.set(label, host.now()),
    timeEnd: (label = "default") => { console.log(`${label}: ${(host.now() - times.get(label)).toFixed(3)}ms`); times.delete(label); },
    table: (value) => console.log(value),
  };
  console.groupCollapsed = console.group;

  // ---- timers

  const timers = new Map();
  let nextTimer = 1;
  class Timeout {
    constructor(id) { this.id = id; }
    ref() { return this; }
    unref() { const timer = timers.get(this.id); if (timer) timer.isLeft = true; return this; }
    hasRef() { return !timers.get(this.id)?.isLeft; }
    [Symbol.toPrimitive]() { return this.id; }
  }
  function start(callback, delay, values, repeats) {
    if (typeof callback !== "function") throw new TypeError('The "callback" argument must be of type function.');
    const every = Math.max(1, Math.min(Number(delay) || 1, 2147483647));
    const id = nextTimer++;
    timers.set(id, { callback, values, due: host.now() + (delay === -1 ? 0 : every), every: repeats ? every : 0, order: id });
    return new Timeout(id);
  }
  const stop = (timer) => { if (timer != null) timers.delete(typeof timer === "object" ? timer.id : Number(timer)); };
  const setTimeout = (callback, delay, ...values) => start(callback, delay, values, false);
  const setInterval = (callback, delay, ...values) => start(callback, delay, values, true);
  const setImmediate = (callback, ...values) => start(callback, -1, values, false);

  // Runs the timer that is due first; how long it is to the next one, or less than nothing if there is none.
  function tick() {
    let first = null, isHeld = false;
    for (const timer of timers.values()) {
      isHeld ||= !timer.isLeft;
      if (first === null || timer.due < first.due || timer.due === first.due && timer.order < first.order) first = timer;
    }
    if (first === null || !isHeld) return -1;
    const wait = first.due - host.now();
    if (wait > 0) return wait;
    if (first.every) first.due = host.now() + first.every;
    else timers.delete(first.order);
    guarded(() => first.callback(...first.values));
    return 0;
  }

  // ---- events

  class EventEmitter {
    #listeners = new Map();
    on(name, listener) { const all = this.#listeners.get(name) ?? []; this.#listeners.set(name, [...all, { listener }]); return this; }
    addListener(name, listener) { return this.on(name, listener); }
    once(name, listener) { const all = this.#listeners.get(name) ?? []; this.#listeners.set(name, [...all, { listener, once: true }]); return this; }
    off(name, listener) {
      const all = this.#listeners.get(name) ?? [];
      const at = all.findLastIndex((entry) => entry.listener === listener);
      if (at >= 0) this.#listeners.set(name, all.toSpliced(at, 1));
      return this;
    }
    removeListener(name, listener) { return this.off(name, listener); }
    removeAllListeners(name) { if (name === undefined) this.#listeners.clear(); else this.#listeners.delete(name); return this; }
    listenerCount(name) { return this.#listeners.get(name)?.length ?? 0; }
    listeners(name) { return (this.#listeners.get(name) ?? []).map((entry) => entry.listener); }
    setMaxListeners() { return this; }
    emit(name, ...values) {
      const all = this.#listeners.get(name) ?? [];
      if (all.length === 0) {
        if (name === "error") throw values[0] instanceof Error ? values[0] : new Error("Unhandled error. (" + inspect(values[0]) + ")");
        return false;
      }
      for (const entry of all) {
        if (entry.once) this.#listeners.set(name, (this.#listeners.get(name) ?? []).filter((other) => other !== entry));
        entry.listener.apply(this, values);
      }
      return true;
    }
  }
  EventEmitter.EventEmitter = EventEmitter;

  // ---- paths

  function normalize(path) {
    if (path === "") return ".";
    const isAbsolute = path.startsWith("/"), names = [];
    for (const name of path.split("/")) {
      if (name === "" || name === ".") continue;
      if (name === ".." && names.length > 0 && names.at(-1) !== "..") names.pop();
      else if (name !== ".." || !isAbsolute) names.push(name);
    }
    const text = (isAbsolute ? "/" : "") + names.join("/");
    return (text || ".") + (path.endsWith("/") && names.length > 0 ? "/" : "");
  }
  const path = {
    sep: "/", delimiter: ":", normalize,
    join: (...parts) => normalize(parts.filter((part) => part !== "").join("/")),
    resolve: (...parts) => {
      let whole = "";
      for (const part of [process.cwd(), ...parts]) whole = part.startsWith("/") ? part : part === "" ? whole : whole + "/" + part;
      const text = normalize(whole);
      return text.length > 1 ? text.replace(/\/+$/, "") : text;
    },
    isAbsolute: (text) => text.startsWith("/"),
    dirname: (text) => { const at = text.replace(/\/+$/, "").lastIndexOf("/"); return at < 0 ? "." : text.slice(0, at) || "/"; },
    basename: (text, end = "") => { const name = text.replace(/\/+$/, "").split("/").pop(); return end && name !== end && name.endsWith(end) ? name.slice(0, -end.length) : name; },
    extname: (text) => { const name = path.basename(text), at = name.lastIndexOf("."); return at > 0 ? name.slice(at) : ""; },
    relative: (from, to) => {
      const a = path.resolve(from).split("/").filter(Boolean), b = path.resolve(to).split("/").filter(Boolean);
      let same = 0;
      while (same < a.length && same < b.length && a[same] === b[same]) same++;
      return [...a.slice(same).map(() => ".."), ...b.slice(same)].join("/");
    },
    parse: (text) => { const base = path.basename(text), ext = path.extname(text); return { root: text.startsWith("/") ? "/" : "", dir: path.dirname(text) === "." && !text.startsWith("./") ? "" : path.dirname(text), base, ext, name: ext ? base.slice(0, -ext.length) : base }; },
    format: ({ dir, root = "", base, name = "", ext = "" }) => (dir ? dir + (dir === root ? "" : "/") : root) + (base ?? name + ext),
  };
  path.posix = path;

  // ---- files

  const located = (name) => path.resolve(typeof name === "object" && name !== null && name.href ? decodeURIComponent(name.href.replace(/^file:\/\//, "")) : String(name));
  const encodingOf = (options) => typeof options === "string" ? options : options?.encoding;
  const KINDS = ["file", "directory", "symlink", "special"];
  class Stats {
    constructor(text) {
      const [kind, mode, size, time] = text.split(" ").map(Number);
      const type = [0o100000, 0o040000, 0o120000, 0o010000][kind];
      Object.assign(this, { mode: type | mode, size, mtimeMs: time, ctimeMs: time, atimeMs: time, birthtimeMs: time, nlink: 1, uid: 0, gid: 0 });
      Object.defineProperty(this, "kind", { value: KINDS[kind] });
      this.mtime = this.ctime = this.atime = this.birthtime = new Date(time);
    }
    isFile() { return this.kind === "file"; }
    isDirectory() { return this.kind === "directory"; }
    isSymbolicLink() { return this.kind === "symlink"; }
  }
  class Dirent {
    constructor(name, kind, parentPath) { this.name = name; this.parentPath = this.path = parentPath; Object.defineProperty(this, "kind", { value: KINDS[kind] }); }
    isFile() { return this.kind === "file"; }
    isDirectory() { return this.kind === "directory"; }
    isSymbolicLink() { return this.kind === "symlink"; }
  }

  const open = new Map();
  let nextDescriptor = 3;
  const WRITES = { r: [false, false], "r+": [false, false], w: [true, true], "w+": [true, true], wx: [true, true], a: [true, false], "a+": [true, false], ax: [true, false] };

  function readAll(file, syscall = "open") {
    const parts = [];
    for (let offset = 0; ;) {
      const piece = done(host.read(file, offset), syscall, file);
      if (piece.length === 0) break;
      parts.push(piece);
      offset += piece.length;
    }
    return parts.length === 1 ? view(parts[0]) : Buffer.concat(parts);
  }
  function writeAll(file, offset, data) {
    const bytes = typeof data === "string" ? encode(data) : ArrayBuffer.isView(data) ? data : encode(String(data));
    for (let at = 0; at < bytes.byteLength; at += 1 << 20) {
      const piece = bytesOf(new Uint8Array(bytes.buffer, bytes.byteOffset + at, Math.min(1 << 20, bytes.byteLength - at)));
      done(host.writeAt(file, offset < 0 ? -1 : offset + at, piece), "write", file);
    }
  }
  function create(file, flag) {
    const [creates, truncates] = WRITES[flag] ?? [false, false];
    if (!(flag in WRITES)) throw new TypeError("unknown flag: " + flag);
    done(host.open(file, creates ? 1 : 0, flag.includes("x") ? 1 : 0, truncates ? 1 : 0), "open", file);
  }

  const fs = {
    constants: { F_OK: 0, X_OK: 1, W_OK: 2, R_OK: 4 },
    readFileSync(name, options) {
      const bytes = name === 0 || name === "/dev/stdin" ? view(host.stdin()) : readAll(typeof name === "number" ? open.get(name)?.file : located(name));
      const encoding = encodingOf(options);
      return encoding ? bytes.toString(encoding) : bytes;
    },
    writeFileSync(name, data, options) {
      if (name === 1 || name === 2) return void write(name, data);
      const file = located(name), flag = options?.flag ?? "w";
      create(file, flag);
      writeAll(file, flag.startsWith("a") ? -1 : 0, typeof data === "string" && encodingOf(options) ? Buffer.from(data, encodingOf(options)) : data);
    },
    appendFileSync: (name, data) => fs.writeFileSync(name, data, { flag: "a" }),
    existsSync(name) { try { return typeof host.stat(located(name), 1) === "string"; } catch { return false; } },
    statSync(name, options) {
      const answer = host.stat(located(name), 1);
      if (answer === -2 && options?.throwIfNoEntry === false) return undefined;
      return new Stats(done(answer, "stat", String(name)));
    },
    lstatSync: (name) => new Stats(done(host.stat(located(name), 0), "lstat", String(name))),
    accessSync(name) { done(host.stat(located(name), 1), "access", String(name)); },
    readdirSync(name, options) {
      const found = [];
      const visit = (directory, prefix) => {
        const text = done(host.list(directory), "scandir", String(name));
        const entries = text === "" ? [] : text.split("\0").map((entry) => [entry.slice(1), Number(entry[0])]);
        entries.sort(([a], [b]) => (a < b ? -1 : 1));
        for (const [entry, kind] of entries) {
          found.push(options?.withFileTypes ? new Dirent(entry, kind, directory) : prefix + entry);
          if (options?.recursive && kind === 1) visit(directory + "/" + entry, prefix + entry + "/");
        }
      };
      visit(located(name), "");
      return found;
    },
    mkdirSync(name, options) {
      const file = located(name);
      if (!(options?.recursive ?? false)) return void done(host.mkdir(file), "mkdir", String(name));
      let first;
      for (let at = file.indexOf("/", 1); ; at = file.indexOf("/", at + 1)) {
        const part = at < 0 ? file : file.slice(0, at);
        const answer = host.mkdir(part);
        if (answer >= 0) first ??= part;
        else if (answer !== -17 && !fs.existsSync(part)) done(answer, "mkdir", String(name));
        if (at < 0) return first;
      }
    },
    rmdirSync(name) { done(host.remove(located(name), 1), "rmdir", String(name)); },
    unlinkSync(name) { done(host.remove(located(name), 0), "unlink", String(name)); },
    rmSync(name, options = {}) {
      const found = host.stat(located(name), 0);
      if (found === -2 && options.force) return;
      if (!new Stats(done(found, "rm", String(name))).isDirectory()) return fs.unlinkSync(name);
      if (!options.recursive) throw failure(21, "rm", String(name));
      for (const entry of fs.readdirSync(name)) fs.rmSync(located(name) + "/" + entry, options);
      fs.rmdirSync(name);
    },
    renameSync(from, to) { done(host.rename(located(from), located(to)), "rename", String(from), String(to)); },
    copyFileSync(from, to) { fs.writeFileSync(to, fs.readFileSync(from)); },
    symlinkSync(target, name) { done(host.symlink(String(target), located(name)), "symlink", String(target), String(name)); },
    readlinkSync: (name) => done(host.readlink(located(name)), "readlink", String(name)),
    realpathSync: (name) => { fs.statSync(name); return located(name); },
    chmodSync(name, mode) { done(host.chmod(located(name), typeof mode === "string" ? parseInt(mode, 8) : mode), "chmod", String(name)); },
    utimesSync(name, _atime, mtime) { done(host.touch(located(name), mtime instanceof Date ? mtime.getTime() : Number(mtime) * 1000), "utime", String(name)); },
    truncateSync(name, size = 0) { done(host.truncate(located(name), size), "truncate", String(name)); },
    mkdtempSync(prefix) { const name = prefix + Buffer.from(host.random(3)).toString("hex"); fs.mkdirSync(name); return name; },
    openSync(name, flag = "r") {
      const file = located(name);
      create(file, flag);
      open.set(nextDescriptor, { file, position: 0, appends: flag.startsWith("a") });
      return nextDescriptor++;
    },
    closeSync(fd) { if (!open.delete(fd)) throw failure(9, "close"); },
    fstatSync: (fd) => fs.statSync(open.get(fd)?.file ?? (() => { throw failure(9, "fstat"); })()),
    readSync(fd, buffer, offset = 0, length = buffer.byteLength - offset, position = null) {
      if (typeof offset === "object") return fs.readSync(fd, buffer, offset.offset, offset.length, offset.position);
      const entry = open.get(fd);
      if (!entry) throw failure(9, "read");
      const from = position ?? entry.position;
      const piece = done(host.read(entry.file, from), "read").subarray(0, length);
      new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength).set(piece, offset);
      if (position === null) entry.position += piece.length;
      return piece.length;
    },
    writeSync(fd, data, ...rest) {
      let bytes = typeof data === "string" ? encode(data) : data;
      if (typeof data !== "string" && rest.length > 0) bytes = bytes.subarray(rest[0], rest[0] + (rest[1] ?? bytes.length));
      if (fd === 1 || fd === 2) { write(fd, bytes); return bytes.length; }
      const entry = open.get(fd);
      if (!entry) throw failure(9, "write");
      writeAll(entry.file, entry.appends ? -1 : entry.position, bytes);
      entry.position += bytes.length;
      return bytes.length;
    },
  };
  fs.cpSync = (from, to, options = {}) => {
    if (!fs.statSync(from).isDirectory()) return fs.copyFileSync(from, to);
    if (!options.recursive) throw failure(21, "cp", String(from));
    fs.mkdirSync(to, { recursive: true });
    for (const entry of fs.readdirSync(from)) fs.cpSync(path.join(from, entry), path.join(to, entry), options);
  };
  // The same with promises, and with callbacks.
  fs.promises = {};
  for (const name of Object.keys(fs).filter((name) => name.endsWith("Sync"))) {
    const plain = name.slice(0, -4), call = fs[name];
    fs.promises[plain] = async (...values) => call(...values);
    if (plain === "exists") { fs.exists = (file, callback) => void setImmediate(() => callback(call(file))); continue; }
    fs[plain] = (...values) => {
      const callback = values.pop();
      if (typeof callback !== "function") throw new TypeError('The "cb" argument must be of type function.');
      let answer, error = null;
      try { answer = call(...values); } catch (caught) { error = caught; }
      setImmediate(() => (error ? callback(error) : callback(null, answer)));
    };
  }

  // ---- the process

  class ExitAsked { }
  class Stream extends EventEmitter {
    constructor(fd) { super(); this.fd = fd; this.isTTY = false; this.writable = true; this.columns = 80; }
    write(data, encoding, callback) {
      write(this.fd, typeof data === "string" && typeof encoding === "string" ? Buffer.from(data, encoding) : data);
      const told = typeof encoding === "function" ? encoding : callback;
      if (told) setImmediate(told);
      return true;
    }
    end(data) { if (data !== undefined) this.write(data); this.emit("finish"); return this; }
  }
  class InputStream extends EventEmitter {
    constructor() { super(); this.fd = 0; this.isTTY = false; }
    #encoding = null;
    #isFlowing = false;
    setEncoding(encoding) { this.#encoding = encoding; return this; }
    #all() { const bytes = view(host.stdin()); return this.#encoding ? bytes.toString(this.#encoding) : bytes; }
    on(name, listener) { super.on(name, listener); if (name === "data" || name === "end" || name === "readable") this.resume(); return this; }
    once(name, listener) { super.once(name, listener); if (name === "data" || name === "end") this.resume(); return this; }
    resume() {
      if (this.#isFlowing) return this;
      this.#isFlowing = true;
      setImmediate(() => { const all = this.#all(); if (all.length) this.emit("data", all); this.emit("end"); this.emit("close"); });
      return this;
    }
    pause() { return this; }
    read() { const all = this.#all(); return all.length ? all : null; }
    async *[Symbol.asyncIterator]() { const all = this.#all(); if (all.length) yield all; }
  }

  const process = Object.assign(new EventEmitter(), {
    argv: [], argv0: "node", execArgv: [], env: {}, exitCode: undefined, pid: 1, ppid: 0, platform: "linux", arch: "wasm32", title: "node",
    version: "v22.0.0-quickjs", versions: { node: "22.0.0-quickjs", quickjs: host.version }, release: { name: "node" },
    stdout: new Stream(1), stderr: new Stream(2), stdin: new InputStream(),
    exit(code) { if (code !== undefined) process.exitCode = code; if (!process.isEnding) { process.isEnding = true; process.emit("exit", process.exitCode ?? 0); } host.exit(Number(process.exitCode ?? 0)); },
    cwd: () => directory,
    chdir(name) { const to = path.resolve(name); if (!fs.statSync(to).isDirectory()) throw failure(20, "chdir", name); directory = to; },
    nextTick: (callback, ...values) => queueMicrotask(() => callback(...values)),
    hrtime: Object.assign((before) => { const now = host.now(); const s = Math.floor(now / 1e3), ns = Math.floor((now % 1e3) * 1e6); return before ? [s - before[0] - (ns < before[1] ? 1 : 0), (ns - before[1] + 1e9) % 1e9] : [s, ns]; }, { bigint: () => BigInt(Math.floor(host.now() * 1e6)) }),
    uptime: () => host.now() / 1000,
    memoryUsage: () => ({ rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 }),
    umask: () => 0o022, getuid: () => 0, getgid: () => 0,
    emitWarning: (warning) => console.error(`(node:1) ${warning?.name ?? "Warning"}: ${warning?.message ?? warning}`),
    abort: () => host.exit(134), kill() { throw failure(1, "kill"); },
  });
  Object.defineProperty(process, "isEnding", { value: false, writable: true });
  let directory = "/";

  // ---- other modules

  function refuse(name) {
    return new Proxy({}, { get: (_, key) => { if (key === "then" || typeof key === "symbol") return undefined; throw Object.assign(new Error(`needs level process: module '${name}' has no use without an operating system`), { code: "ERR_NEEDS_LEVEL_PROCESS" }); } });
  }
  class AssertionError extends Error {
    constructor({ message, actual, expected, operator }) { super(message); this.name = "AssertionError"; this.code = "ERR_ASSERTION"; Object.assign(this, { actual, expected, operator }); }
  }
  function isEqual(a, b, strict) {
    if (strict ? Object.is(a, b) : a == b || a !== a && b !== b) return true;
    if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
    if (strict && Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
    if (a instanceof Date && b instanceof Date) return a.getTime() === b.getTime();
    if (a instanceof RegExp && b instanceof RegExp) return String(a) === String(b);
    if (a instanceof Map && b instanceof Map) return a.size === b.size && [...a].every(([key, value]) => b.has(key) && isEqual(value, b.get(key), strict));
    if (a instanceof Set && b instanceof Set) return a.size === b.size && [...a].every((item) => b.has(item) || [...b].some((other) => isEqual(item, other, strict)));
    if (a instanceof Error && (a.message !== b.message || a.name !== b.name)) return false;
    if (Array.isArray(a) !== Array.isArray(b)) return false;
    const keys = Object.keys(a);
    return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key], strict));
  }
  const check = (holds, message, actual, expected, operator) => {
    if (holds) return;
    if (message instanceof Error) throw message;
    throw new AssertionError({ message: message ?? `Expected values to be ${operator}:\n\n${inspect(actual)}\n\nshould ${operator}\n\n${inspect(expected)}`, actual, expected, operator });
  };
  const assert = Object.assign((value, message) => check(value, message ?? "The expression evaluated to a falsy value", value, true, "=="), {
    AssertionError,
    ok: (value, message) => assert(value, message),
    equal: (a, b, message) => check(a == b || a !== a && b !== b, message, a, b, "loosely equal"),
    notEqual: (a, b, message) => check(a != b, message, a, b, "loosely unequal"),
    strictEqual: (a, b, message) => check(Object.is(a, b), message, a, b, "strictly equal"),
    notStrictEqual: (a, b, message) => check(!Object.is(a, b), message, a, b, "strictly unequal"),
    deepEqual: (a, b, message) => check(isEqual(a, b, false), message, a, b, "loosely deep-equal"),
    deepStrictEqual: (a, b, message) => check(isEqual(a, b, true), message, a, b, "strictly deep-equal"),
    notDeepStrictEqual: (a, b, message) => check(!isEqual(a, b, true), message, a, b, "strictly unequal"),
    match: (text, pattern, message) => check(pattern.test(text), message, text, pattern, "match"),
    fail: (message = "Failed") => check(false, message),
    throws: (call, expected, message) => {
      try { call(); } catch (error) {
        if (expected instanceof RegExp) check(expected.test(String(error)), message, error, expected, "match");
        else if (typeof expected === "function" && expected.prototype instanceof Error) check(error instanceof expected, message, error, expected, "be an instance of");
        return;
      }
      check(false, typeof expected === "string" ? expected : message ?? "Missing expected exception.");
    },
    rejects: async (promise, expected) => {
      try { await (typeof promise === "function" ? promise() : promise); } catch (error) { assert.throws(() => { throw error; }, expected); return; }
      check(false, "Missing expected rejection.");
    },
  });
  assert.strict = assert;

  const util = {
    inspect, format, isDeepStrictEqual: (a, b) => isEqual(a, b, true), TextEncoder, TextDecoder,
    promisify: (call) => (...values) => new Promise((resolve, reject) => call(...values, (error, answer) => (error ? reject(error) : resolve(answer)))),
    callbackify: (call) => (...values) => { const callback = values.pop(); call(...values).then((answer) => callback(null, answer), callback); },
    inherits: (child, parent) => Object.setPrototypeOf(child.prototype, parent.prototype),
    types: { isPromise: (value) => value instanceof Promise, isDate: (value) => value instanceof Date, isRegExp: (value) => value instanceof RegExp },
    deprecate: (call) => call,
  };
  const os = {
    EOL: "\n", platform: () => "linux", type: () => "Linux", arch: () => "wasm32", release: () => "0", hostname: () => process.env.HOSTNAME ?? "sandbox",
    homedir: () => process.env.HOME ?? "/", tmpdir: () => process.env.TMPDIR ?? "/tmp", cpus: () => [{ model: "wasm32", speed: 0 }],
    availableParallelism: () => 1, totalmem: () => 0, freemem: () => 0, uptime: () => host.now() / 1000, endianness: () => "LE",
    userInfo: () => ({ username: process.env.USER ?? "user", homedir: process.env.HOME ?? "/", uid: 0, gid: 0, shell: null }),
  };
  const uuid = () => {
    const bytes = host.random(16);
    bytes[6] = bytes[6] & 15 | 64; bytes[8] = bytes[8] & 63 | 128;
    const text = Buffer.from(bytes).toString("hex");
    return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join("-");
  };
  const crypto = {
    randomUUID: uuid, randomBytes: (size) => view(host.random(size)),
    randomInt: (low, high) => { if (high === undefined) [low, high] = [0, low]; return low + Math.floor(Math.random() * (high - low)); },
    getRandomValues: (array) => { new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(host.random(array.byteLength)); return array; },
    createHash() { throw new Error("needs level process: this level has no digests in JavaScript; `sha256sum` is a command of the shell"); },
  };
  const readline = {
    createInterface: ({ input }) => {
      const lines = new EventEmitter();
      const all = () => { const text = (input?.file ? fs.readFileSync(input.file, "utf8") : view(host.stdin()).toString()); const list = text.split(/\r?\n/); if (list.at(-1) === "") list.pop(); return list; };
      setImmediate(() => { if (lines.listenerCount("line") + lines.listenerCount("close") === 0) return; for (const line of all()) lines.emit("line", line); lines.emit("close"); });
      return Object.assign(lines, { close() { return this; }, async *[Symbol.asyncIterator]() { yield* all(); } });
    },
  };
  const modules = {
    fs, "fs/promises": fs.promises, path, "path/posix": path, os, util, assert, "assert/strict": assert, events: EventEmitter, process, console, crypto, readline,
    buffer: { Buffer }, timers: { setTimeout, setInterval, setImmediate, clearTimeout: stop, clearInterval: stop, clearImmediate: stop },
    "timers/promises": { setTimeout: (delay, value) => new Promise((resolve) => setTimeout(resolve, delay, value)), setImmediate: (value) => new Promise((resolve) => setImmediate(resolve, value)) },
    perf_hooks: { performance: globalThis.performance },
    url: { fileURLToPath: (url) => decodeURIComponent(String(url.href ?? url).replace(/^file:\/\//, "")), pathToFileURL: (name) => ({ href: "file://" + path.resolve(name), toString() { return this.href; } }) },
    module: { createRequire: (from) => requireFrom(path.dirname(String(from).replace(/^file:\/\//, ""))) },
  };
  for (const name of ["child_process", "cluster", "dgram", "dns", "http", "http2", "https", "net", "tls", "vm", "worker_threads", "zlib", "stream"]) modules[name] = refuse(name);
  modules.stream = Object.assign(modules.stream, {});
  const builtin = (name) => modules[name.replace(/^node:/, "")];

  // ---- modules in files

  const ENDINGS = ["", ".js", ".cjs", ".mjs", ".json", "/index.js", "/index.mjs", "/index.json"];
  const isFile = (name) => { const found = host.stat(name, 1); return typeof found === "string" && found.startsWith("0"); };
  function find(from, name) {
    if (/^(\.{0,2}\/|\.{1,2}$)/.test(name)) {
      const whole = name.startsWith("/") ? normalize(name) : path.resolve(from, name);
      return withEnding(whole);
    }
    for (let at = from; ; at = path.dirname(at)) {
      const found = withEnding(path.join(at, "node_modules", name));
      if (found || at === "/") return found;
    }
  }
  function withEnding(whole) {
    const plain = ENDINGS.slice(0, 5).find((ending) => isFile(whole + ending));
    if (plain !== undefined) return whole + plain;
    const description = whole + "/package.json";
    if (isFile(description)) {
      const { main, module, exports } = JSON.parse(fs.readFileSync(description, "utf8"));
      const entry = (value) => typeof value === "string" ? value : value && entry(value["."] ?? value.import ?? value.require ?? value.default);
      const named = entry(exports) ?? main ?? module;
      const found = typeof named === "string" && ENDINGS.find((ending) => isFile(path.join(whole, named) + ending));
      if (typeof found === "string") return path.join(whole, named) + found;
    }
    const index = ENDINGS.slice(5).find((ending) => isFile(whole + ending));
    return index === undefined ? undefined : whole + index;
  }
  const missing = (name, from) => Object.assign(new Error(`Cannot find module '${name}'` + (from ? `\nRequire stack:\n- ${from}` : "")), { code: "MODULE_NOT_FOUND" });

  const cache = Object.create(null);
  function requireFrom(from, file) {
    const require = (name) => {
      const own = builtin(String(name));
      if (own !== undefined) return own;
      const found = find(from, String(name));
      if (found === undefined) throw missing(name, file);
      return loadFile(found).exports;
    };
    require.resolve = (name) => { const found = builtin(String(name)) ? name : find(from, String(name)); if (found === undefined) throw missing(name, file); return found; };
    require.cache = cache;
    return require;
  }
  function loadFile(file) {
    if (cache[file]) return cache[file];
    const module = cache[file] = { exports: {}, id: file, filename: file, loaded: false, children: [], paths: [] };
    try {
      const source = fs.readFileSync(file, "utf8");
      if (file.endsWith(".json")) module.exports = JSON.parse(source);
      else carryOut(source, file, module);
    } catch (error) { delete cache[file]; throw error; }
    module.loaded = true;
    return module;
  }
  function carryOut(source, file, module) {
    const text = source.replace(/^#!.*/, "");
    const call = host.evaluate("(function (exports, require, module, __filename, __dirname) {" + text + "\n})", file, 0);
    const from = path.dirname(file);
    const require = requireFrom(from, file);
    require.main = main;
    module.require = require;
    call.call(module.exports, module.exports, require, module, file, from);
  }
  let main;

  // What an import finds: its whole name, and then its source.
  function resolve(base, name) {
    if (builtin(name) !== undefined) return "node:" + name.replace(/^node:/, "");
    const from = base.startsWith("/") ? path.dirname(base) : process.cwd();
    const found = find(from, name.replace(/^file:\/\//, ""));
    if (found === undefined) throw Object.assign(new Error(`Cannot find module '${name}' imported from ${base}`), { code: "ERR_MODULE_NOT_FOUND" });
    return found;
  }
  const given = (value) => ["export default m;", ...Object.keys(value).filter((key) => isName(key) && key !== "default" && !RESERVED.has(key)).map((key) => `export const ${key} = m.${key};`)].join("");
  const RESERVED = new Set("break case catch class const continue debugger delete do else enum export extends false finally for function if import in instanceof new null return super switch this throw true try typeof var void while with yield let static await".split(" "));
  function sourceOf(name) {
    if (name.startsWith("node:")) return `const m = globalThis[Symbol.for("offleash.module")](${JSON.stringify(name)});` + given(builtin(name));
    const source = fs.readFileSync(name, "utf8");
    if (name.endsWith(".json")) return "export default " + source;
    if (isModule(name, source)) return source;
    const exports = loadFile(name).exports;
    return `const m = globalThis[Symbol.for("offleash.module")](${JSON.stringify(name)});` + given(Object(exports));
  }
  Object.defineProperty(globalThis, Symbol.for("offleash.module"), { value: (name) => name.startsWith("node:") ? builtin(name) : loadFile(name).exports });
  function isModule(file, source) {
    if (/\.mjs$/.test(file)) return true;
    if (/\.cjs$/.test(file)) return false;
    if (/^\s*(import\s*[\w{*"']|export\s+(default|const|let|var|function|async|class|\{|\*)|export\s*\{)/m.test(source)) return true;
    for (let at = path.dirname(file); file.startsWith("/"); at = path.dirname(at)) {
      if (isFile(at + "/package.json")) { try { return JSON.parse(fs.readFileSync(at + "/package.json", "utf8")).type === "module"; } catch { return false; } }
      if (at === "/") break;
    }
    return false;
  }

  // ---- the command

  function report(error, words = "Uncaught") {
    const isError = error instanceof Error;
    const own = isError ? inspect(error) : inspect(error);
    write(2, `${words} ${isError ? own : own}\n`);
  }
  function guarded(call) {
    try { return call(); } catch (error) {
      if (process.listenerCount("uncaughtException") > 0) { process.emit("uncaughtException", error); return undefined; }
      report(error);
      process.exit(1);
    }
  }
  const USAGE = "Usage: node [-e CODE | -p CODE | FILE | -] [ARGUMENT...]\n\n  -e, --eval CODE    run the code\n  -p, --print CODE   run it, and print what it is\n  -v, --version      print the version\n  -h, --help         print this\n      --input-type=module   the code is an ES module\n";

  function command(words) {
    let code, prints = false, isModuleAsked = false, at = 0;
    for (; at < words.length && words[at].startsWith("-") && words[at] !== "-"; at++) {
      const [option, value] = words[at].split(/=(.*)/s);
      switch (option) {
        case "-e": case "--eval": case "-p": case "--print": case "-pe": case "-c":
          prints = option.includes("p");
          code = value ?? words[++at];
          if (code === undefined) { write(2, `node: ${option} requires an argument\n`); return { status: 9 }; }
          break;
        case "--input-type": isModuleAsked = value === "module"; break;
        case "-v": case "--version": write(1, process.version + "\n"); return { status: 0 };
        case "-h": case "--help": write(1, USAGE); return { status: 0 };
        case "--": return { code, prints, isModuleAsked, rest: words.slice(at + 1) };
        case "-i": case "--interactive": write(2, "node: -i: this level has no terminal\n"); return { status: 9 };
        case "--no-warnings": case "--trace-warnings": case "--trace-uncaught": case "--enable-source-maps": case "-r": case "--require": if (option.startsWith("-r") || option === "--require") at++; break;
        default: write(2, `node: bad option: ${words[at]}\n`); return { status: 9 };
      }
    }
    return { code, prints, isModuleAsked, rest: words.slice(at) };
  }

  function run(text) {
    const { argv, env, cwd } = JSON.parse(text);
    directory = cwd;
    for (const [name, value] of env) process.env[name] = value;
    const { status, code, prints, isModuleAsked, rest } = command(argv.slice(1));
    if (status !== undefined) { process.exitCode = status; return; }
    const name = "/usr/bin/node";
    guarded(() => {
      if (code !== undefined) {
        process.argv = [name, ...rest];
        return evaluated(code, path.join(directory, "[eval]"), prints, isModuleAsked);
      }
      if (rest.length === 0 || rest[0] === "-") {
        process.argv = [name, ...(rest.length ? ["-", ...rest.slice(1)] : [])];
        return evaluated(view(host.stdin()).toString(), path.join(directory, "[stdin]"), false, isModuleAsked);
      }
      const file = find(directory, rest[0].startsWith("/") || rest[0].startsWith(".") ? rest[0] : "./" + rest[0]);
      if (file === undefined) throw missing(path.resolve(rest[0]));
      process.argv = [name, file, ...rest.slice(1)];
      if (isModule(file, fs.readFileSync(file, "utf8"))) return void host.evaluate(`import ${JSON.stringify(file)};`, path.join(directory, "[main]"), 1);
      main = cache[file] = { exports: {}, id: ".", filename: file, loaded: false, children: [], paths: [] };
      carryOut(fs.readFileSync(file, "utf8"), file, main);
      main.loaded = true;
    });
  }
  function evaluated(source, file, prints, isModuleAsked) {
    if (isModuleAsked || isModule("[eval].js", source)) return void host.evaluate(source, file, 1);
    const module = { exports: {}, id: "[eval]", filename: file, loaded: false, children: [], paths: [] };
    Object.assign(globalThis, { require: requireFrom(directory), module, exports: module.exports, __filename: file, __dirname: "." });
    const value = host.evaluate(source, file, 0);
    if (prints) console.log(value);
  }

  function reject(reason) {
    if (process.listenerCount("unhandledRejection") > 0) { guarded(() => process.emit("unhandledRejection", reason, null)); return; }
    report(reason, reason instanceof Error ? "Uncaught (in promise)" : "Uncaught (in promise)");
    process.exit(1);
  }
  function finish() {
    if (!process.isEnding) { process.isEnding = true; guarded(() => process.emit("exit", process.exitCode ?? 0)); }
    return Number(process.exitCode ?? 0);
  }

  const global = { console, process, Buffer, TextEncoder, TextDecoder, setTimeout, setInterval, setImmediate, clearTimeout: stop, clearInterval: stop, clearImmediate: stop, crypto, global: globalThis };
  for (const [name, value] of Object.entries(global)) Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  globalThis.fetch ??= () => Promise.reject(new Error("needs level process: this level has no network"));
  globalThis.queueMicrotask ??= (callback) => void Promise.resolve().then(() => guarded(callback));
  return { run, tick, reject, finish, resolve, sourceOf };
})
