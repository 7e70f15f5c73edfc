// Commands by the names of `@vercel/sandbox`.

import { CommandExitError, InvalidArgumentError, SandboxNotRunningError, TimeoutError } from './errors.js'

/** Exit codes of signals, by what the server calls them. */
const SIGNALS = {
  hangup: 1,
  interrupt: 2,
  quit: 3,
  'illegal instruction': 4,
  aborted: 6,
  killed: 9,
  'segmentation fault': 11,
  'broken pipe': 13,
  'alarm clock': 14,
  terminated: 15,
}
const KILLED = 137

/** What a command ended with. */
function exitCodeOf({ exitCode, error }) {
  const signal = /^signal: ([a-z ]+)/.exec(error ?? '')?.[1].trim()
  return signal ? 128 + (SIGNALS[signal] ?? 0) : exitCode
}

/** A command that was started. */
export class Command {
  #handle
  #lines = []
  #ended = false
  #failure
  #wake = () => {}
  #changed
  #done

  /** Use `sandbox.runCommand`. */
  constructor(cwd) {
    this.cwd = cwd
    this.startedAt = Date.now()
    this.exitCode = null
    this.#change()
  }

  static async start(core, { cmd, args, env, sudo, stdout, stderr, timeoutMs = 0, signal }, cwd) {
    const command = new Command(cwd)
    const options = { envs: env, cwd, user: sudo ? 'root' : undefined, timeoutMs, ...command.#listeners(stdout, stderr) }
    command.#follow(await core.commands.start(cmd, args ?? [], options))
    signal?.addEventListener('abort', () => command.kill('SIGKILL').catch(() => {}), { once: true })
    return command
  }

  static async connect(core, cmdId) {
    const command = new Command(undefined)
    const pid = Number(cmdId)
    if (!Number.isInteger(pid)) throw new InvalidArgumentError(`\`${cmdId}\` is no command`)
    command.#follow(await core.commands.connect(pid, { timeoutMs: 0, ...command.#listeners() }))
    return command
  }

  #listeners(stdout, stderr) {
    const listener = (stream, into) => (data) => {
      this.#lines.push({ stream, data })
      into?.write(data)
      this.#change()
    }
    return { onStdout: listener('stdout', stdout), onStderr: listener('stderr', stderr) }
  }

  /** Tells whoever waits for something new. */
  #change() {
    this.#wake()
    this.#changed = new Promise((wake) => (this.#wake = wake))
  }

  #follow(handle) {
    this.#handle = handle
    this.#done = this.#finish(handle)
    // Whoever waits is told.
    this.#done.catch(() => {})
  }

  async #finish(handle) {
    try {
      this.exitCode = exitCodeOf(await handle.wait())
    } catch (error) {
      if (error instanceof CommandExitError) this.exitCode = exitCodeOf(error)
      // Its time was up, and it was killed.
      else if (error instanceof TimeoutError && !(error instanceof SandboxNotRunningError)) this.exitCode = KILLED
      else this.#failure = error
    }
    this.durationMs = Date.now() - this.startedAt
    this.#ended = true
    this.#change()
    if (this.#failure) throw this.#failure
  }

  /** What names it to `getCommand` while it runs. */
  get cmdId() {
    return String(this.#handle.pid)
  }

  /** What it writes, as it comes: `{ stream, data }`. */
  async *logs() {
    for (let next = 0; ; ) {
      while (next < this.#lines.length) yield this.#lines[next++]
      if (this.#ended) break
      await this.#changed
    }
    if (this.#failure) throw this.#failure
  }

  /** Waits for its end. */
  async wait({ signal } = {}) {
    const aborted = new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason), { once: true }))
    signal?.throwIfAborted()
    await Promise.race([this.#done, aborted])
    return Object.setPrototypeOf(this, CommandFinished.prototype)
  }

  /** What it wrote, when it has ended. */
  async output(stream = 'both') {
    await this.#done
    const wanted = this.#lines.filter((line) => stream === 'both' || line.stream === stream)
    return wanted.map(({ data }) => data).join('')
  }

  stdout() {
    return this.output('stdout')
  }

  stderr() {
    return this.output('stderr')
  }

  /** Ends it. */
  async kill(signal = 'SIGTERM') {
    if (!['SIGTERM', 'SIGKILL', 9, 15].includes(signal)) {
      throw new InvalidArgumentError(`signal: SIGTERM or SIGKILL, not \`${signal}\``)
    }
    await this.#handle.kill({ signal: signal === 9 ? 'SIGKILL' : signal === 15 ? 'SIGTERM' : signal })
  }
}

/** A command that has ended: `exitCode` is its exit code, 128 and the number of a signal that ended it. */
export class CommandFinished extends Command {}
