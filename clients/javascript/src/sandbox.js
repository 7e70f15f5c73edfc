// A sandbox: what makes it, what happens to it, and the way to what is in it.

import { randomUUID } from 'node:crypto'
import { Services, openApi } from './api.js'
import { endContext, listContexts, makeContext, runCell, toContext } from './code.js'
import { Commands, Pty } from './commands.js'
import { ConflictError, NotFoundError, SandboxNotRunningError, ofAnswer } from './errors.js'
import { Files, bytesOf, signature } from './files.js'
import { Checkpoints, Pages, infoOf, runResultOf, snapshotOf } from './others.js'
import { commandBody, hasRules, networkBody, patience, said, sandboxBody, seconds } from './requests.js'
import { answerCalls } from './tools.js'

/** How long the server may take for a piece of a snapshot, and to say what it made of all of them. */
const SNAPSHOT_SILENCE_MS = 300_000
const pathOf = (sandboxId) => `/v1/sandboxes/${encodeURIComponent(sandboxId)}`
const E2bPath = (sandboxId) => `/sandboxes/${encodeURIComponent(sandboxId)}`

/** A sandbox. With `await using` it is killed at the end. */
export class Sandbox {
  #api
  #info
  #place
  #silenced = () => {}
  #mcpToken

  /** Use `Sandbox.create` or `Sandbox.connect`. */
  constructor(api, info, place) {
    this.#api = api
    this.#info = info
    this.#place = place
    const services = new Services(api, info.sandboxId, info.raw.access_token)
    this.sandboxId = info.sandboxId
    this.commands = new Commands(services)
    this.pty = new Pty(services)
    this.files = new Files(services)
    this.checkpoints = new Checkpoints(api, pathOf(info.sandboxId))
    this.#services = services
  }
  #services

  /** Makes a sandbox: `create()`, `create(template)`, `create(options)` or `create(template, options)`. */
  static async create(template, options = {}) {
    if (typeof template === 'object') options = template
    else options = { ...options, template }
    const api = await openApi(options)
    const network = networkBody(options.network, options.allowInternetAccess)
    const tools = options.tools ?? []
    const body = sandboxBody(options, network, tools.map((tool) => tool.declared))
    const headers = { 'Idempotency-Key': options.idempotencyKey ?? randomUUID() }
    const info = infoOf(await api.ask('POST', '/v1/sandboxes', body, { headers }))
    const sandbox = new this(api, info, await api.place(info.sandboxId))
    try {
      if (options.mcp) await sandbox.#startMcp(options.mcp)
      if (hasRules(network)) await api.ask('PUT', `${E2bPath(info.sandboxId)}/network`, network)
      if (tools.length) sandbox.#silenced = await answerCalls(api, pathOf(info.sandboxId), tools)
    } catch (error) {
      await sandbox.kill()
      throw error
    }
    return sandbox
  }

  /** The sandbox of an id, which is resumed if it is paused. */
  static async connect(sandboxId, { timeoutMs, onResume, ...connection } = {}) {
    const api = await openApi(connection)
    const body = said({ timeout_seconds: seconds(timeoutMs), mode: onResume === 'reboot' ? 'filesystem' : undefined })
    const info = infoOf(await api.ask('POST', `${pathOf(sandboxId)}/resume`, body))
    return new this(api, info, await api.place(info.sandboxId))
  }

  async connect({ timeoutMs, onResume } = {}) {
    const body = said({ timeout_seconds: seconds(timeoutMs), mode: onResume === 'reboot' ? 'filesystem' : undefined })
    this.#info = infoOf(await this.#api.ask('POST', `${pathOf(this.sandboxId)}/resume`, body))
    return this
  }

  /** The caller's sandboxes in pages, the newest first unless `order` is `asc`. */
  static list({ query = {}, limit, nextToken, order, ...connection } = {}) {
    const metadata = new URLSearchParams()
    for (const [name, value] of Object.entries(query.metadata ?? {})) {
      metadata.set(encodeURIComponent(name), encodeURIComponent(value))
    }
    const wanted = {
      metadata: metadata.size ? metadata.toString() : undefined,
      state: query.state?.length ? query.state.join(',') : undefined,
      template: query.template,
      startedAfter: query.startedAfter?.toISOString(),
      limit,
      nextToken,
      order,
    }
    return new Pages(connection, '/v1/sandboxes', 'sandboxes', wanted, infoOf)
  }

  /** Ends it; answers whether it was there. */
  static async kill(sandboxId, connection) {
    return killed(await openApi(connection), sandboxId)
  }

  async kill() {
    this.#silenced()
    return killed(this.#api, this.sandboxId)
  }

  /** Pauses it with its memory (`full`), or with its files alone (`filesystem`); answers whether it ran. */
  static async pause(sandboxId, { mode, ...connection } = {}) {
    return paused(await openApi(connection), sandboxId, mode)
  }

  async pause({ mode } = {}) {
    return paused(this.#api, this.sandboxId, mode)
  }

  static async getInfo(sandboxId, connection) {
    return infoOf(await (await openApi(connection)).ask('GET', pathOf(sandboxId)))
  }

  /** What the server says of it. */
  async getInfo() {
    return infoOf(await this.#api.ask('GET', pathOf(this.sandboxId)))
  }

  static async setTimeout(sandboxId, timeoutMs, connection) {
    await (await openApi(connection)).ask('POST', `${E2bPath(sandboxId)}/timeout`, { timeout: seconds(timeoutMs) })
  }

  /** Says how long it lives from now on. */
  async setTimeout(timeoutMs) {
    await this.#api.ask('POST', `${E2bPath(this.sandboxId)}/timeout`, { timeout: seconds(timeoutMs) })
  }

  /** Whether it runs. */
  async isRunning() {
    try {
      await this.#api.bytes('GET', '/health', { headers: this.#services.headers() })
    } catch (error) {
      if (error instanceof SandboxNotRunningError) return false
      throw error
    }
    return true
  }

  /** How it is isolated, as in `process`. */
  get level() {
    return this.#info.level
  }

  /** What its ports ask for, if anything. */
  get trafficAccessToken() {
    return this.#info.raw.traffic_token ?? undefined
  }

  /** Runs a line of a shell, or words, waits, and answers what came of it whatever the exit code: one request. */
  async run(command, options) {
    // It lasts as long as the command.
    const how = { timeoutMs: patience(options?.timeoutMs) }
    return runResultOf(await this.#api.ask('POST', `${pathOf(this.sandboxId)}/run`, commandBody(command, options), how))
  }

  /** Runs a cell of code in a context, or in the default one of its language; state stays from one to the next. */
  runCode(code, options) {
    return runCell(this.#api, pathOf(this.sandboxId), code, options)
  }

  createCodeContext(options) {
    return makeContext(this.#api, pathOf(this.sandboxId), options)
  }

  listCodeContexts() {
    return listContexts(this.#api, pathOf(this.sandboxId))
  }

  removeCodeContext(context) {
    return endContext(this.#api, pathOf(this.sandboxId), context)
  }

  restartCodeContext(context) {
    return toContext(this.#api, pathOf(this.sandboxId), context, 'restart')
  }

  interruptCodeContext(context) {
    return toContext(this.#api, pathOf(this.sandboxId), context, 'interrupt')
  }

  /** What it used over time. */
  async getMetrics({ start, end } = {}) {
    const at = (name, time) => (time ? [[name, String(Math.floor(time.getTime() / 1000))]] : [])
    const query = new URLSearchParams([...at('start', start), ...at('end', end)]).toString()
    const metrics = await this.#api.ask('GET', `${E2bPath(this.sandboxId)}/metrics${query && `?${query}`}`)
    return metrics.map(({ timestampUnix: _, ...metric }) => ({ ...metric, timestamp: new Date(metric.timestamp) }))
  }

  /** What it uses now (`SandboxUsage` of the native REST). */
  getUsage() {
    return this.#api.ask('GET', `${pathOf(this.sandboxId)}/usage`)
  }

  /** Replaces what it may reach; what is not said is as if nothing was ever said. */
  async updateNetwork({ allowInternetAccess, ...network }) {
    await this.#api.ask('PUT', `${E2bPath(this.sandboxId)}/network`, networkBody(network, allowInternetAccess))
  }

  /** Replaces its labels; those that begin with `offleash.` stay as they are. */
  async setMetadata(metadata) {
    return infoOf(await this.#api.ask('PUT', `${pathOf(this.sandboxId)}/metadata`, { metadata }))
  }

  /** Makes sandboxes that begin as copies of it: a sandbox for each, or the error why it was not made. */
  async fork({ count = 1, timeoutMs, contexts, name } = {}) {
    const body = said({ count, timeout_seconds: seconds(timeoutMs), contexts, name })
    const { forks } = await this.#api.ask('POST', `${pathOf(this.sandboxId)}/fork`, body)
    return forks.map(({ sandbox, error }) =>
      sandbox ? new this.constructor(this.#api, infoOf(sandbox), this.#place) : ofAnswer(error.code, JSON.stringify(error))
    )
  }

  /** Makes a snapshot, of which others can be made: `Sandbox.create({ snapshot })`. */
  async createSnapshot({ name, contexts } = {}) {
    return snapshotOf(await this.#api.ask('POST', `${pathOf(this.sandboxId)}/snapshots`, said({ name, contexts })))
  }

  static listSnapshots({ sandboxId, limit, nextToken, ...connection } = {}) {
    return new Pages(connection, '/v1/snapshots', 'snapshots', { sandbox: sandboxId, limit, nextToken }, snapshotOf)
  }

  /** Removes a snapshot; answers whether it was there. */
  static async deleteSnapshot(snapshotId, connection) {
    return removed((await openApi(connection)).ask('DELETE', `/v1/snapshots/${encodeURIComponent(snapshotId)}`))
  }

  /** A snapshot as an archive, of which any server can make it again, as a stream. */
  static async exportSnapshot(snapshotId, connection) {
    const path = `/v1/snapshots/${encodeURIComponent(snapshotId)}/export`
    return (await openApi(connection)).stream('GET', path, { silenceMs: SNAPSHOT_SILENCE_MS })
  }

  /** Makes a snapshot of such an archive, which need not be trusted. */
  static async importSnapshot(data, { name, ...connection } = {}) {
    const path = `/v1/snapshots/import${name ? `?name=${encodeURIComponent(name)}` : ''}`
    const headers = { 'Content-Type': 'application/x-tar' }
    const options = { headers, content: await bytesOf(data), timeoutMs: SNAPSHOT_SILENCE_MS }
    return snapshotOf(JSON.parse((await (await openApi(connection)).bytes('POST', path, options)).toString()))
  }

  /** Puts it back to a checkpoint. */
  restore(checkpoint) {
    return this.checkpoints.restore(checkpoint)
  }

  /** The host name of one of its ports, which is asked at the server's port. */
  getHost(port) {
    return `${port}-${this.sandboxId}.${this.#place.domain}`
  }

  /** Where programs ask one of its ports without knowing names: a path of the server. */
  getUrl(port) {
    return `${this.#place.url}/_port/${this.sandboxId}/${port}/`
  }

  /** Where one file is read by whoever has the URL. */
  async downloadUrl(path, options) {
    return this.#signed(path, 'read', options)
  }

  /** Where one file is written by whoever has the URL. */
  async uploadUrl(path, options) {
    return this.#signed(path, 'write', options)
  }

  #signed(path, operation, { user, useSignatureExpiration } = {}) {
    const query = signature(path, operation, user, this.#info.raw.access_token ?? '', useSignatureExpiration)
    return `${this.#place.url}/files?${query}`
  }

  async #startMcp(servers) {
    this.#mcpToken = randomUUID()
    const word = `'${JSON.stringify(servers).replaceAll("'", "'\\''")}'`
    const envs = { GATEWAY_ACCESS_TOKEN: this.#mcpToken }
    await this.commands.run(`mcp-gateway --config ${word}`, { user: 'root', envs })
  }

  /** Where the servers inside are asked that `mcp` named. */
  getMcpUrl() {
    return `${this.getUrl(50005)}mcp`
  }

  /** What they ask for. */
  async getMcpToken() {
    this.#mcpToken ??= await this.files.read('/etc/mcp-gateway/.token', { user: 'root' })
    return this.#mcpToken
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.kill()
  }
}

async function removed(asked) {
  try {
    await asked
  } catch (error) {
    if (error instanceof NotFoundError) return false
    throw error
  }
  return true
}

const killed = (api, sandboxId) => removed(api.ask('DELETE', pathOf(sandboxId)))

async function paused(api, sandboxId, mode) {
  try {
    await api.ask('POST', `${pathOf(sandboxId)}/pause`, said({ mode }))
  } catch (error) {
    if (!(error instanceof ConflictError)) throw error
    if ((await api.ask('GET', pathOf(sandboxId))).state === 'paused') return false
    throw error
  }
  return true
}
