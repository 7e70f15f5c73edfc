// The driver of JavaScript and TypeScript contexts: runs cells inside a sandbox, one after another, in one Node.
//
// The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). It is two processes in one
// process group. The first, the speaker, holds the way to the host and never runs code of a cell: it prepares cells,
// counts output and notices how the second ends. The second, the runner, is started by the first with the same line
// and the same source; cells share it and can do to it whatever they like. So what cells and their children write to
// descriptors 1 and 2 is output whatever it looks like.
//
// Node 18 and newer. `source`, `role`, `load` (of modules of Node) and `bootstrap` come from the line that reads this.

"use strict";

const fs = load("fs");
const vm = load("vm");
const util = load("util");
const path = load("path");
const { createRequire } = load("module");

const NOBODY = "0".repeat(32);
// What this file is called in stacks.
const OURS = "<offleash>";
// What a frame may have; a form of a result that is larger is left out, and its size told.
const MOST_PAYLOAD = 16 * 1024 * 1024;
// Forms that an object may hold to be taken for those of a result, and how long their names are; the host takes no longer ones,
// and some more of them.
const MOST_FORMS = 48;
const MOST_MIME = 128;
// How much output is sent at once.
const CHUNK = 48 * 1024;
// How much of a message is written at once: so little goes into a socket whole or not at all.
const PIECE = 16 * 1024;
// What is done between the two processes: descriptors of the runner.
const ORDERS = 3;
const ACKNOWLEDGED = 4;
const TOLD = 5;

// Captured before any cell can replace them.
const { writeSync, readSync, fstatSync, openSync, closeSync } = fs;
const { from: bufferFrom, alloc, concat, byteLength } = Buffer;

function writeAll(descriptor, data) {
  for (let at = 0; at < data.length; ) {
    try {
      at += writeSync(descriptor, data, at, data.length - at);
    } catch (error) {
      if (error.code !== "EAGAIN" && error.code !== "EINTR") throw error;
    }
  }
}

// Bytes read, 0 at the end. Other than when writing, Node gives up where a signal comes in between.
function readSome(descriptor, data, at, length) {
  for (;;) {
    try {
      return readSync(descriptor, data, at, length);
    } catch (error) {
      if (error.code !== "EINTR") throw error;
    }
  }
}

// Splits a stream of frames `KIND ID LENGTH\nPAYLOAD`.
function decoder(take) {
  let pieces = [];
  let size = 0;
  let wanted = 0;
  return (piece) => {
    pieces.push(piece);
    size += piece.length;
    if (size < wanted) return;
    let all = pieces.length === 1 ? pieces[0] : concat(pieces);
    wanted = 0;
    for (;;) {
      const end = all.indexOf(10);
      if (end < 0) break;
      const [kind, id, length] = all.toString("latin1", 0, end).split(" ");
      const rest = end + 1 + Number(length);
      if (all.length < rest) {
        wanted = rest;
        break;
      }
      take(kind, id, all.subarray(end + 1, rest));
      all = all.subarray(rest);
    }
    pieces = [all];
    size = all.length;
  };
}

// The speaker.

function speak() {
  const { spawn } = load("child_process");
  const { Socket } = load("net");
  const prepare = preparation(role === "typescript");
  const waiting = [];
  let busy = true;
  let code = [];
  let env = {};
  let count = 0;
  let cell = NOBODY;
  let room = 0;
  let dropped = 0;

  // Interrupts are for the runner and what it started.
  let wasInterrupted = false;
  process.on("SIGINT", () => (wasInterrupted = true));

  const runner = spawn(process.execPath, ["-e", bootstrap, "runner"], {
    stdio: ["ignore", "pipe", "pipe", "pipe", "pipe", "pipe"],
  });
  const [, stdout, stderr, orders, acknowledged, told] = runner.stdio;
  for (const stream of [orders, acknowledged, stdout, stderr, told]) stream.on("error", () => {});
  const order = (kind, id, payload) => {
    orders.write(`${kind} ${id} ${payload.length}\n`);
    orders.write(payload);
  };
  order("source", NOBODY, source);

  const send = (kind, id, payload) => {
    try {
      writeAll(1, concat([bufferFrom(`${kind} ${id} ${payload.length}\n`), payload]));
    } catch {
      end();
    }
  };
  const end = () => {
    // Nobody will ever ask for anything again.
    runner.kill("SIGKILL");
    process.exit(0);
  };
  const output = (kind, data) => {
    const size = Math.min(data.length, room);
    dropped += data.length - size;
    room -= size;
    for (let at = 0; at < size; at += CHUNK) send(kind, cell, data.subarray(at, Math.min(size, at + CHUNK)));
  };
  stdout.on("data", (data) => output("stdout", data));
  stderr.on("data", (data) => output("stderr", data));
  // What was written before something was told comes before it.
  const buffer = alloc(CHUNK);
  const drain = () => {
    for (const [stream, kind] of [[stdout, "stdout"], [stderr, "stderr"]]) {
      const descriptor = stream._handle ? stream._handle.fd : -1;
      // As much as there may be at one time, and not what a child goes on to write for ever.
      for (let turn = 0; descriptor >= 0 && turn < 64; turn++) {
        let size = 0;
        try {
          size = readSome(descriptor, buffer, 0, CHUNK);
        } catch {}
        if (!size) break;
        output(kind, buffer.subarray(0, size));
      }
    }
  };

  const take = (kind, payload) => {
    if (kind === "ready") {
      busy = false;
      next();
    } else if (kind === "done") {
      if (dropped) send("truncated", cell, bufferFrom(String(dropped)));
      send("done", cell, payload);
      cell = NOBODY;
      room = dropped = 0;
      busy = false;
      next();
    } else if (kind === "to_stdout" || kind === "to_stderr") {
      output(kind.slice(3), payload);
    } else if (kind !== "barrier" && cell !== NOBODY) {
      send(kind, cell, payload);
    }
  };
  let parts = [];
  let received = alloc(0);
  told.on("data", (data) => {
    received = received.length ? concat([received, data]) : data;
    while (received.length >= 16) {
      const size = received.readUInt32LE(4);
      // Code of a cell can write here, too: what it breaks is its own context.
      if (received.readUInt32LE(0) !== MAGIC || size > PIECE) return end();
      if (received.length < 16 + size) return;
      const flags = received.readUInt32LE(12);
      // One that an interrupt cut in two is followed by another beginning.
      if (flags & FIRST) parts = [];
      parts.push(bufferFrom(received.subarray(16, 16 + size)));
      if (flags & LAST) {
        const whole = concat(parts);
        const line = whole.indexOf(10);
        parts = [];
        drain();
        take(whole.toString("latin1", 0, line), whole.subarray(line + 1));
        acknowledged.write(received.subarray(8, 12));
      }
      received = received.subarray(16 + size);
    }
  });

  runner.on("exit", (status, signal) => {
    drain();
    if (signal) {
      process.removeAllListeners("SIGINT");
      process.kill(process.pid, signal);
      // A signal that is not deadly for this one is, for the host, the end all the same.
      setTimeout(() => process.exit(70), 1000);
    } else {
      process.exit(status);
    }
  });

  const next = () => {
    while (!busy && waiting.length) {
      const [kind, id, payload] = waiting.shift();
      if (kind === "sync") {
        code = [];
        env = {};
        send("sync", id, bufferFrom(String(count)));
      } else if (kind === "code") {
        code.push(payload);
      } else if (kind === "env") {
        const text = payload.toString("utf8");
        const at = text.indexOf("=");
        env[text.slice(0, at)] = text.slice(at + 1);
      } else if (kind === "run") {
        // A cell for one that is gone has not begun: its end is told soon.
        if (!lives(runner.pid)) return;
        busy = true;
        drain();
        cell = id;
        room = Number(payload.toString("latin1").split(" ")[0]);
        dropped = 0;
        count += 1;
        send("count", id, bufferFrom(String(count)));
        const prepared = prepare(concat(code).toString("utf8"), cellName(count));
        order("run", id, bufferFrom(JSON.stringify({ ...prepared, env, count, wasInterrupted })));
        wasInterrupted = false;
        code = [];
        env = {};
      }
    }
  };
  const input = new Socket({ fd: 0, readable: true, writable: false });
  input.on("error", end);
  input.on("end", end);
  input.on("data", decoder((...frame) => {
    waiting.push(frame);
    next();
  }));
}

const MAGIC = 0x6c66666f;
// That signal in a set of them.
const KILLED = 1n << 8n;
const FIRST = 1;
const LAST = 2;

// Whether a child goes on that may have been killed without anybody having heard of it: it has ended, or has a signal before it
// that nothing stops.
function lives(pid) {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, "latin1");
    const pending = [...status.matchAll(/^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$/gm)];
    return !/^State:\s*[ZX]/m.test(status) && pending.every(([, mask]) => !(BigInt(`0x${mask}`) & KILLED));
  } catch {
    return false;
  }
}

function cellName(count) {
  return `<cell ${count}>`;
}

// Makes of a cell a script that Node runs: an object of `code`, `awaits`, or `failed`, an error with name, value and
// stack.
function preparation(typed) {
  const strip = typed ? stripper() : (code) => code;
  const awaits = internal("internal/repl/await", "processTopLevelAwait");
  const parser = internal("internal/deps/acorn/acorn/dist/acorn", "parse");
  const compile = (code, filename) => new vm.Script(code, { filename });
  return (original, filename) => {
    let code;
    try {
      code = strip(original, filename);
    } catch (error) {
      return { failed: described(error) };
    }
    // An object, and not a block with a label, as in Node's own console.
    if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
      try {
        compile(`(${code.trim()}\n)`, filename);
        return { code: `(${code.trim()}\n)` };
      } catch {}
    }
    try {
      compile(code, filename);
      return { code };
    } catch (error) {
      if (!/\b(await|import)\b/.test(code)) return { failed: described(error) };
      try {
        const dynamic = parser ? withoutImports(parser, code) : code;
        const wrapped = awaits && awaits(dynamic);
        if (!wrapped) return { failed: described(error) };
        compile(wrapped, filename);
        return { code: wrapped, awaits: true };
      } catch (second) {
        // Of the two, what is said of the code as it was written is of more use, unless it is about `await` itself.
        return { failed: described(/await|import/.test(error.message) ? second : error) };
      }
    }
  };
}

// Something of Node's own console: only the speaker can load it, and only where it is.
function internal(name, key) {
  try {
    return load(name)[key];
  } catch {
    return undefined;
  }
}

// Makes `import ... from` at the top level, which scripts do not have, a dynamic one.
function withoutImports(parse, code) {
  if (!/\bimport\b/.test(code)) return code;
  const options = { ecmaVersion: "latest", sourceType: "module", allowAwaitOutsideFunction: true };
  let tree;
  try {
    tree = parse(code, options);
  } catch {
    // No module, then, but perhaps a script.
    return code;
  }
  const word = (node) => (node.type === "Literal" ? node.raw : node.name);
  let made = "";
  let at = 0;
  for (const node of tree.body) {
    if (node.type !== "ImportDeclaration") continue;
    const loaded = `await import(${node.source.raw})`;
    const names = [];
    const statements = [];
    for (const one of node.specifiers) {
      if (one.type === "ImportNamespaceSpecifier") statements.push(`const ${one.local.name} = ${loaded};`);
      else names.push(`${one.imported ? word(one.imported) : "default"}: ${one.local.name}`);
    }
    if (names.length) statements.push(`const { ${names.join(", ")} } = ${loaded};`);
    if (!statements.length) statements.push(`${loaded};`);
    // Lines keep their numbers.
    const lines = code.slice(node.start, node.end).split("\n").length - 1;
    made += code.slice(at, node.start) + statements.join(" ") + "\n".repeat(lines);
    at = node.end;
  }
  return made + code.slice(at);
}

// What takes types out of TypeScript: Node itself, or the package `typescript`.
function stripper() {
  const { stripTypeScriptTypes } = load("module");
  if (stripTypeScriptTypes) {
    process.removeAllListeners("warning");
    return (code) => stripTypeScriptTypes(code, { mode: "transform" });
  }
  const prefix = path.join(path.dirname(process.execPath), "..");
  const shared = [`${prefix}/lib/node_modules`, "/usr/local/lib/node_modules", "/usr/share/nodejs"];
  const names = ["typescript", ...shared.map((place) => `${place}/typescript`)];
  const needs =
    `it needs Node 22.13 or newer, or a package \`typescript\` that translates (\`npm install typescript@5\` in ` +
    `${process.cwd()}, or \`npm install -g typescript@5\`); this is Node ${process.versions.node} without it`;
  let typescript;
  for (const name of names) {
    try {
      typescript ??= createRequire(path.join(process.cwd(), "cell.js"))(name);
    } catch {}
  }
  if (!typescript || !typescript.transpileModule) {
    writeAll(2, bufferFrom(`${needs}\n`));
    // As a shell says that something is not there.
    process.exit(127);
  }
  const { ScriptTarget, ModuleKind, flattenDiagnosticMessageText } = typescript;
  // What is imported in one cell is used in another.
  const compilerOptions = { target: ScriptTarget.ES2022, module: ModuleKind.ESNext, verbatimModuleSyntax: true };
  return (code, fileName) => {
    const options = { compilerOptions, reportDiagnostics: true, fileName: "cell.ts" };
    const { outputText, diagnostics } = typescript.transpileModule(code, options);
    if (diagnostics.length) {
      const [{ messageText, start, file }] = diagnostics;
      const line = file ? file.getLineAndCharacterOfPosition(start).line + 1 : 1;
      const error = new SyntaxError(flattenDiagnosticMessageText(messageText, "\n"));
      error.stack = `${fileName}:${line}\n${error.name}: ${error.message}`;
      throw error;
    }
    // That it is a module is said with an empty export.
    return outputText.replace(/^export \{\};\s*$/m, "");
  };
}

// Name, value and stack of anything that was thrown; an error's getters are a cell's code, too.
function described(error) {
  const text = (make, otherwise) => {
    try {
      return String(make());
    } catch {
      return otherwise;
    }
  };
  if (!util.types.isNativeError(error) && !(error instanceof Error)) {
    const value = text(() => (typeof error === "string" ? error : util.inspect(error)), "a value that cannot be shown");
    return { name: "Error", value, stack: `Uncaught ${value}` };
  }
  const name = text(() => error.name, "Error");
  const value = text(() => error.message, "");
  const whole = text(() => error.stack || `${name}: ${value}`, `${name}: ${value}`);
  let cause = "";
  if (text(() => error.cause !== undefined, "false") === "true") {
    const inner = described(error.cause);
    cause = `\n[cause]: ${inner.stack}`;
  }
  return { name, value, stack: withoutOurs(whole) + cause };
}

// The lines of a stack that are of the cell.
function withoutOurs(stack) {
  const isOurs = (line) => /^\s+at /.test(line) && (line.includes(OURS) || /\(?node:(vm|internal|events|net|stream)\b/.test(line));
  return stack
    .split("\n")
    .filter((line) => !isOurs(line))
    .join("\n");
}

// The runner.

function run() {
  const { Socket } = load("net");
  const { Writable } = load("stream");
  const { Console } = load("console");
  const childProcess = load("child_process");
  const soon = setImmediate;
  const { inspect } = util;
  const { runInThisContext } = vm.Script.prototype;
  const { stringify, parse } = JSON;
  const environment = process.env;

  let told = 0;
  const acknowledgement = alloc(4);
  // Tells the speaker something, and waits until all that was written before is on its way, and this.
  const tell = (kind, payload = alloc(0)) => {
    const whole = concat([bufferFrom(`${kind}\n`), payload]);
    told = (told + 1) >>> 0;
    for (let at = 0; at < whole.length; at += PIECE) {
      const part = whole.subarray(at, at + PIECE);
      const head = alloc(16);
      head.writeUInt32LE(MAGIC, 0);
      head.writeUInt32LE(part.length, 4);
      head.writeUInt32LE(told, 8);
      head.writeUInt32LE((at ? 0 : FIRST) | (at + PIECE < whole.length ? 0 : LAST), 12);
      writeAll(TOLD, concat([head, part]));
    }
    // An interrupt may have left the answer to an earlier one.
    do {
      for (let at = 0; at < 4; ) {
        const size = readSome(ACKNOWLEDGED, acknowledgement, at, 4 - at);
        if (!size) process.reallyExit(70);
        at += size;
      }
    } while (acknowledgement.readUInt32LE(0) !== told);
  };

  // Output.

  const identity = (descriptor) => {
    try {
      const { dev, ino } = fstatSync(descriptor);
      return `${dev}:${ino}`;
    } catch {
      return undefined;
    }
  };
  const ends = { stdout: 1, stderr: 2 };
  const identities = { stdout: identity(1), stderr: identity(2) };
  let last = "stdout";
  const emit = (kind, data) => {
    if (identity(ends[kind]) !== identities[kind]) return tell(`to_${kind}`, data);
    if (last !== kind) tell("barrier");
    last = kind;
    writeAll(ends[kind], data);
  };
  const stream = (kind) => {
    const made = new Writable();
    // Not by way of the stream's own queue: an interrupt in the middle would leave that waiting for ever.
    made.write = (data, encoding, done) => {
      if (typeof data !== "string" && !ArrayBuffer.isView(data)) {
        throw new TypeError("what is written has to be a string, a Buffer, a TypedArray or a DataView");
      }
      const bytes =
        typeof data === "string"
          ? bufferFrom(data, typeof encoding === "string" ? encoding : "utf8")
          : bufferFrom(data.buffer, data.byteOffset, data.byteLength);
      emit(kind, bytes);
      const told = typeof encoding === "function" ? encoding : done;
      if (typeof told === "function") soon(told);
      return true;
    };
    // Somebody else may still want to write.
    made.end = made.destroy = function (data, ...rest) {
      if (typeof data === "string" || ArrayBuffer.isView(data)) made.write(data);
      const done = rest.find((one) => typeof one === "function");
      if (done) soon(done);
      return made;
    };
    made.fd = ends[kind];
    made._type = "pipe";
    made.isTTY = false;
    made.setMaxListeners(0);
    return made;
  };
  const streams = { stdout: stream("stdout"), stderr: stream("stderr") };
  const ours = new Console({ stdout: streams.stdout, stderr: streams.stderr, ignoreErrors: false });
  const originals = { ...ours };
  const writes = { stdout: streams.stdout.write, stderr: streams.stderr.write };
  // What a child wrote to one stream comes before what is then written to the other.
  for (const name of ["spawnSync", "execSync", "execFileSync"]) {
    const original = childProcess[name];
    childProcess[name] = function (...given) {
      tell("barrier");
      try {
        return original.apply(this, given);
      } finally {
        tell("barrier");
      }
    };
  }
  load("module").syncBuiltinESMExports();
  const define = (object, name, value) =>
    Object.defineProperty(object, name, { value, writable: true, configurable: true, enumerable: false });
  // Puts back in place what a cell closed or replaced.
  const mend = () => {
    Object.assign(ours, originals);
    define(globalThis, "console", ours);
    define(globalThis, "display", display);
    for (const kind of ["stdout", "stderr"]) {
      streams[kind].write = writes[kind];
      Object.defineProperty(process, kind, { value: streams[kind], writable: true, configurable: true, enumerable: true });
    }
    // A file that is opened next must not stand in for output.
    while ([0, 1, 2].some((descriptor) => identity(descriptor) === undefined)) {
      if (openSync("/dev/null", "r+") > 2) break;
    }
    for (const [event, listener] of Object.entries(listeners)) {
      if (!process.listeners(event).includes(listener)) process.on(event, listener);
    }
  };

  // Results.

  const makers = { _toHtml: "text/html", _toMarkdown: "text/markdown", _toSvg: "image/svg+xml", _toPng: "image/png", _toJpeg: "image/jpeg" };
  const isBundle = (value) => {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
    const names = Object.keys(value);
    if (names.length === 0 || names.length > MOST_FORMS) return false;
    return names.every((name) => name.length <= MOST_MIME && /^[\w.-]+\/[\w.+-]+$/.test(name));
  };
  const forms = (value) => {
    let made = {};
    if (value !== null && (typeof value === "object" || typeof value === "function")) {
      const shown = value[Symbol.for("Jupyter.display")];
      if (typeof shown === "function") {
        const bundle = shown.call(value);
        if (isBundle(bundle)) made = { ...bundle };
      }
      for (const [name, mime] of Object.entries(makers)) {
        if (typeof value[name] === "function" && !(mime in made)) made[mime] = value[name]();
      }
    }
    // The host takes these quotes away.
    made["text/plain"] ??= typeof value === "string" ? `'${value}'` : inspect(value);
    return made;
  };
  const publish = (made, kind) => {
    for (const [mime, form] of Object.entries(made)) {
      if (form === undefined || form === null) continue;
      const isJson = /^application\/(.+\+)?json$/.test(mime) || typeof form !== "string";
      const isBytes = ArrayBuffer.isView(form);
      const text = isBytes ? Buffer.from(form.buffer, form.byteOffset, form.byteLength).toString("base64") : isJson ? stringify(form) : form;
      if (text === undefined) continue;
      const head = `${mime}\n`;
      const size = byteLength(text);
      if (head.length + size > MOST_PAYLOAD) tell("omitted", bufferFrom(head + size));
      else tell(isJson && !isBytes ? "json" : "text", bufferFrom(head + text));
    }
    tell("result", bufferFrom(kind));
  };
  const display = (...values) => {
    for (const value of values) publish(isBundle(value) ? value : forms(value), "display");
  };
  const fail = ({ name, value, stack }) => {
    const bounded = (text) => bufferFrom(text).subarray(0, MOST_PAYLOAD / 4);
    tell("error_name", bounded(name));
    tell("error_value", bounded(value));
    tell("error", bounded(stack));
  };

  // Cells.

  let interrupt;
  const interrupted = () => ({ name: "KeyboardInterrupt", value: "interrupted", stack: "KeyboardInterrupt: interrupted" });
  const late = (error) => emit("stderr", bufferFrom(`Uncaught ${described(error).stack}\n`));
  const listeners = {
    SIGINT: () => interrupt && interrupt(),
    unhandledRejection: late,
    uncaughtException: late,
  };
  const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? ((specifier) => dynamicImport(specifier));
  const script = (code, filename) => new vm.Script(code, { filename, importModuleDynamically });
  const execute = (one) => runInThisContext.call(one, { breakOnSigint: true, displayErrors: false });
  // Calls a function so that an interrupt ends it.
  let called;
  define(globalThis, Symbol.for("offleash.call"), () => called());
  const call = script(`globalThis[Symbol.for("offleash.call")]()`, OURS);
  const interruptible = (work) => {
    called = work;
    return execute(call);
  };
  const INTERRUPTED = {};
  // Node keeps an interrupt that comes in the last moment of what it interrupts for whatever it runs next: its thread for them
  // finds a semaphore that was raised for an earlier one. It gets time to find it where nothing is lost.
  const { wait } = Atomics;
  const idle = new Int32Array(new SharedArrayBuffer(4));
  const settle = () => {
    try {
      interruptible(() => {
        for (let turn = 0; turn < 20; turn++) wait(idle, 0, 0, 1);
      });
    } catch {}
  };

  // Node warns, once, that the way in which scripts import is an experiment. That is our choice and not the cell's, so it
  // is said while nobody listens.
  let mayImport = false;
  const prepareImports = () => {
    mayImport = true;
    const { emitWarning } = process;
    process.emitWarning = () => {};
    try {
      execute(script("import('node:vm')", OURS));
    } finally {
      process.emitWarning = emitWarning;
    }
  };

  const evaluate = async ({ code, awaits, count }) => {
    if (!mayImport && /\bimport\b/.test(code)) prepareImports();
    let value = execute(script(code, cellName(count)));
    if (awaits) {
      const stopped = new Promise((resolve) => (interrupt = () => resolve(INTERRUPTED)));
      // What holds the loop open while nothing else may.
      const holding = setInterval(() => {}, 1 << 30);
      try {
        value = await Promise.race([value, stopped]);
      } finally {
        clearInterval(holding);
        interrupt = undefined;
      }
      if (value === INTERRUPTED) return fail(interrupted());
      value = value && typeof value === "object" && "value" in value ? value.value : undefined;
    }
    if (value === undefined) return;
    define(globalThis, "_", value);
    publish(interruptible(() => forms(value)), "main");
  };
  const runCell = async (cell) => {
    mend();
    if (cell.wasInterrupted) settle();
    const saved = Object.keys(cell.env).map((name) => [name, environment[name]]);
    Object.assign(environment, cell.env);
    try {
      if (cell.failed) fail(cell.failed);
      else await evaluate(cell);
    } catch (error) {
      const isInterrupt = error && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED";
      fail(isInterrupt ? interrupted() : described(error));
    }
    // Rejections that nobody handles are known by then.
    await new Promise((resolve) => soon(resolve));
    for (const [name, value] of saved) {
      if (value === undefined) delete environment[name];
      else environment[name] = value;
    }
    tell("done");
  };

  define(globalThis, "require", createRequire(path.join(process.cwd(), "cell.js")));
  process.argv.length = 1;
  const orders = new Socket({ fd: ORDERS, readable: true, writable: false });
  orders.on("error", () => process.reallyExit(0));
  orders.on("end", () => process.reallyExit(0));
  orders.on("data", decoder((kind, _cell, payload) => {
    if (kind === "run") runCell(parse(payload.toString("utf8")));
  }));
  mend();
  tell("ready");
}

if (role === "runner") run();
else speak();
