// Commands and terminals in a sandbox.

import { CommandExitError, NotFoundError, SandboxError } from './errors.js'

/** How long a command may run if nobody says. */
const COMMAND_TIMEOUT_MS = 60_000

/** A command that was started. */
export class CommandHandle {
  #services
  #events
  #texts = { stdout: '', stderr: '' }
  #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }
  #listeners
  #done

  constructor(services, events, pid, listeners = {}) {
    this.#services = services
    this.#events = events
    this.pid = pid
    this.#listeners = listeners
    this.#done = this.#follow()
    // Whoever waits is told.
    this.#done.catch(() => {})
  }

  /** What it wrote until now. */
  get stdout() {
    return this.#texts.stdout
  }

  get stderr() {
    return this.#texts.stderr
  }

  get exitCode() {
    return this.result?.exitCode
  }

  get error() {
    return this.result?.error
  }

  async #follow() {
    for await (const { event = {} } of this.#events) {
      if (event.data?.pty !== undefined) await this.#listeners.onPty?.(new Uint8Array(Buffer.from(event.data.pty, 'base64')))
      for (const name of ['stdout', 'stderr']) {
        if (event.data?.[name] !== undefined) await this.#take(name, Buffer.from(event.data[name], 'base64'))
      }
      if (event.end) await this.#ended(event.end)
    }
  }

  async #take(name, bytes) {
    const text = this.#decoders[name].decode(bytes, { stream: bytes !== undefined })
    if (!text) return
    this.#texts[name] += text
    await this.#listeners[name === 'stdout' ? 'onStdout' : 'onStderr']?.(text)
  }

  async #ended({ exitCode = 0, status, error }) {
    for (const name of ['stdout', 'stderr']) await this.#take(name, undefined)
    this.result = { exitCode, error: error ?? (exitCode === 0 ? undefined : status), stdout: this.stdout, stderr: this.stderr }
  }

  /** Waits for its end; throws `CommandExitError` if its exit code is another than 0. */
  async wait() {
    await this.#done
    if (!this.result) throw new SandboxError('the command was let go of before it ended')
    if (this.result.exitCode !== 0) throw new CommandExitError(this.result)
    return this.result
  }

  /** Kills it, or ends it with `{ signal: 'SIGTERM' }`; answers whether it was there. */
  kill(options) {
    return sendSignal(this.#services, this.pid, options)
  }

  sendStdin(data, options) {
    return sendInput(this.#services, this.pid, 'stdin', data, options)
  }

  closeStdin(options) {
    return closeInput(this.#services, this.pid, options)
  }

  /** Hears no more of it; it goes on. */
  async disconnect() {
    this.#events.disconnect()
  }
}

async function sendSignal(services, pid, { signal = 'SIGKILL', ...options } = {}) {
  try {
    await services.call('process.Process/SendSignal', { process: { pid }, signal: `SIGNAL_${signal}` }, options)
  } catch (error) {
    if (error instanceof NotFoundError) return false
    throw error
  }
  return true
}

async function sendInput(services, pid, kind, data, options) {
  const input = { [kind]: Buffer.from(data).toString('base64') }
  await services.call('process.Process/SendInput', { process: { pid }, input }, options)
}

async function closeInput(services, pid, options) {
  await services.call('process.Process/CloseStdin', { process: { pid } }, options)
}

async function started(services, method, message, { user, timeoutMs = COMMAND_TIMEOUT_MS, ...listeners } = {}) {
  const events = services.events(`process.Process/${method}`, message, { user, timeoutMs })
  const first = await events.next()
  if (first.done) throw new SandboxError('the command was not started')
  return new CommandHandle(services, events, first.value.event.start.pid, listeners)
}

/** Commands in a sandbox. */
export class Commands {
  #services

  constructor(services) {
    this.#services = services
  }

  /**
   * Runs a line of a shell; answers what came of it, or with `background` a handle of the command. Throws
   * `CommandExitError` if its exit code is another than 0, `TimeoutError` when it was killed after `timeoutMs` (0 is never).
   */
  async run(cmd, options = {}) {
    const config = { cmd: '/bin/bash', args: ['-l', '-c', cmd], envs: options.envs ?? {}, cwd: options.cwd }
    const message = { process: config, stdin: options.stdin ?? false }
    const handle = await started(this.#services, 'Start', message, options)
    return options.background ? handle : handle.wait()
  }

  /** Starts a program without a shell; answers a handle of it. */
  start(cmd, args = [], { envs = {}, cwd, stdin = false, ...options } = {}) {
    return started(this.#services, 'Start', { process: { cmd, args, envs, cwd }, stdin }, options)
  }

  /** The commands that run. */
  async list(options) {
    const { processes = [] } = await this.#services.call('process.Process/List', {}, options)
    return processes.map(({ pid, tag, config = {} }) => ({ pid, tag, args: [], envs: {}, ...config }))
  }

  /** Hears of a command that was started before. */
  connect(pid, options) {
    return started(this.#services, 'Connect', { process: { pid } }, options)
  }

  kill(pid, options) {
    return sendSignal(this.#services, pid, options)
  }

  sendStdin(pid, data, options) {
    return sendInput(this.#services, pid, 'stdin', data, options)
  }

  closeStdin(pid, options) {
    return closeInput(this.#services, pid, options)
  }
}

/** Terminals in a sandbox. */
export class Pty {
  #services

  constructor(services) {
    this.#services = services
  }

  /** Starts a shell in a terminal; `onData` hears what it shows. */
  create({ cols, rows, onData, envs, cwd, ...rest }) {
    const usual = { TERM: 'xterm-256color', LANG: 'C.UTF-8', LC_ALL: 'C.UTF-8' }
    const config = { cmd: '/bin/bash', args: ['-i', '-l'], envs: { ...usual, ...envs }, cwd }
    return started(this.#services, 'Start', { process: config, pty: { size: { cols, rows } } }, { ...rest, onPty: onData })
  }

  /** Hears of a terminal that was started before. */
  connect(pid, { onData, ...rest } = {}) {
    return started(this.#services, 'Connect', { process: { pid } }, { ...rest, onPty: onData })
  }

  /** Types something. */
  sendInput(pid, data, options) {
    return sendInput(this.#services, pid, 'pty', data, options)
  }

  async resize(pid, { cols, rows }, options) {
    await this.#services.call('process.Process/Update', { process: { pid }, pty: { size: { cols, rows } } }, options)
  }

  kill(pid, options) {
    return sendSignal(this.#services, pid, options)
  }
}
