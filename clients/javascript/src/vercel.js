// Sandboxes by the names of `@vercel/sandbox`: `import { Sandbox } from 'offleash/vercel'`.
//
// What that has and offleash has not throws `UnsupportedError` when it is asked for.

import { randomBytes } from 'node:crypto'
import { mkdir } from 'node:fs/promises'
import { dirname, posix, resolve } from 'node:path'
import { Readable } from 'node:stream'
import { FileNotFoundError, InvalidArgumentError, NotFoundError, SandboxNotRunningError, UnsupportedError } from './errors.js'
import { writeAnew } from './local.js'
import { ALL_TRAFFIC } from './requests.js'
import { Sandbox as Core } from './sandbox.js'
import { Command, CommandFinished } from './vercel_command.js'
import { FileSystem } from './vercel_files.js'

export { OffleashError as APIError } from './errors.js'
export { Command, CommandFinished, FileSystem }

/** Where commands start, and relative paths begin. */
const CWD = '/vercel/sandbox'
/** How long a sandbox lives if nobody says. */
const TIMEOUT_MS = 300_000
/** What a virtual CPU has of memory. */
const MIB_PER_CPU = 2048
const MAX_PORTS = 15
const MAX_TAGS = 5
/** What labels of ours begin with; tags are all the others. */
const OURS = /^(vercel|offleash)\./

const RUNTIMES = { node22: 'node:22', node24: 'node:24', node26: 'node:26', 'python3.13': 'python:3.13' }

/** Options that offleash has nothing for, and what to do instead. */
const ABSENT = {
  failoverRegions: '',
  keepLastSnapshots: 'snapshots stay until `offleash snapshot rm` removes one',
  mounts: '`volumes` of `offleash`',
  networkId: '',
  onResume: 'run what is to be run after `Sandbox.get`',
  projectId: 'OFFLEASH_URL and OFFLEASH_API_KEY name a server',
  region: '',
  snapshotExpiration: 'snapshots stay until `offleash snapshot rm` removes one',
  teamId: 'OFFLEASH_URL and OFFLEASH_API_KEY name a server',
  token: 'OFFLEASH_URL and OFFLEASH_API_KEY name a server',
}
const KNOWN = ['env', 'image', 'name', 'networkPolicy', 'persistent', 'ports', 'resources', 'runtime', 'signal', 'source', 'tags', 'timeout']

const notHere = (what, hint) => new UnsupportedError(`offleash has no ${what}`, { hint: hint || undefined })

function refuse(options) {
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || KNOWN.includes(name)) continue
    if (!(name in ABSENT)) throw new InvalidArgumentError(`\`${name}\` is not known`)
    throw notHere(`\`${name}\` of a sandbox`, ABSENT[name])
  }
}

/** What a sandbox begins as, as `Sandbox.create` of this library takes it. */
function baseOf({ runtime, image, source }) {
  if (source?.type === 'snapshot') return { snapshot: source.snapshotId }
  if (image?.startsWith('vercel/')) throw notHere(`\`${image}\``, 'take an image of containers, as in `node:24`')
  if (runtime && !(runtime in RUNTIMES)) throw new InvalidArgumentError(`runtime: \`${runtime}\` is not known`)
  if (image && runtime) throw new InvalidArgumentError('runtime and image exclude each other')
  return image || runtime ? { image: image ?? RUNTIMES[runtime] } : {}
}

/** A network policy, as `network` of this library has it. */
function networkOf(policy = 'allow-all') {
  if (policy === 'allow-all') return { allowInternetAccess: true }
  if (policy === 'deny-all') return { allowInternetAccess: false }
  const { allow = [], subnets = {}, ...other } = policy
  if (Object.keys(other).length) throw new InvalidArgumentError(`networkPolicy: \`${Object.keys(other)[0]}\` is not known`)
  if (!Array.isArray(allow) && Object.values(allow).some((rules) => rules.length)) {
    throw notHere('rules of a network policy', '`rules` of `network` of `offleash` have headers')
  }
  const hosts = [...(Array.isArray(allow) ? allow : Object.keys(allow)), ...(subnets.allow ?? [])]
  if (hosts.length && subnets.deny?.length) throw notHere('network policies that allow and deny', 'say what is allowed')
  if (subnets.deny?.length) return { network: { denyOut: subnets.deny } }
  return { network: { allowOut: hosts, denyOut: [ALL_TRAFFIC] } }
}

function tagsOf(tags) {
  if (Object.keys(tags).length > MAX_TAGS) throw new InvalidArgumentError(`tags: there may be ${MAX_TAGS}`)
  const reserved = Object.keys(tags).find((name) => OURS.test(name))
  if (reserved) throw new InvalidArgumentError(`tags: \`${reserved}\` begins with what offleash keeps for itself`)
  return tags
}

function labelsOf({ tags = {}, ports = [], persistent = true }) {
  if (ports.length > MAX_PORTS) throw new InvalidArgumentError(`ports: there may be ${MAX_PORTS}`)
  if (ports.some((port) => !Number.isInteger(port) || port < 1 || port > 65535)) {
    throw new InvalidArgumentError('ports: numbers from 1 to 65535')
  }
  return { ...tagsOf(tags), 'vercel.sandbox': '1', 'vercel.ports': ports.join(','), 'vercel.persistent': String(persistent) }
}

/** A sandbox. With `await using` it is stopped at the end. */
export class Sandbox {
  #core
  #info

  /** Use `Sandbox.create` or `Sandbox.get`. */
  constructor(core, info) {
    this.#core = core
    this.#info = info
    const run = (words) => this.#running((running) => running.run(words))
    this.fs = new FileSystem(() => this.#files(), (path) => this.#path(path), run)
  }

  /** Makes a sandbox. */
  static async create(options = {}) {
    refuse(options)
    const { resources, source, persistent = true, signal } = options
    signal?.throwIfAborted()
    const vcpus = resources?.vcpus
    if (vcpus !== undefined && !(Number.isInteger(vcpus) && vcpus > 0)) throw new InvalidArgumentError('resources: vcpus is a whole number')
    const core = await Core.create({
      ...baseOf(options),
      ...networkOf(options.networkPolicy),
      name: options.name ?? `sbx-${randomBytes(8).toString('hex')}`,
      timeoutMs: options.timeout ?? TIMEOUT_MS,
      metadata: labelsOf(options),
      envs: options.env,
      cpus: vcpus,
      memoryMib: vcpus && vcpus * MIB_PER_CPU,
      lifecycle: persistent ? { onTimeout: { action: 'pause', mode: 'filesystem' } } : undefined,
    })
    try {
      const sandbox = new this(core, await core.getInfo())
      await core.run(['mkdir', '-p', '-m', '777', CWD], { user: 'root' })
      if (source && source.type !== 'snapshot') await sandbox.#fill(source)
      signal?.throwIfAborted()
      return sandbox
    } catch (error) {
      await core.kill()
      throw error
    }
  }

  /** A sandbox, by its name or id; it is resumed when it is used. */
  static async get({ name, resume, signal, ...other }) {
    refuse(other)
    signal?.throwIfAborted()
    const found = (await Sandbox.#found({ 'offleash.name': name }))[0]
    const id = found?.sandboxId ?? name
    try {
      // To be connected to is to be resumed.
      const core = await Core.connect(id)
      return new this(core, await core.getInfo())
    } catch (error) {
      if (error instanceof NotFoundError) throw new NotFoundError(`there is no sandbox \`${name}\``, { code: 404 })
      throw error
    }
  }

  /** The sandbox of a name, which is made if it is not there; `onCreate` is called then. */
  static async getOrCreate({ onCreate, resume, ...options } = {}) {
    if (options.name) {
      try {
        return await this.get({ name: options.name, resume })
      } catch (error) {
        if (!(error instanceof NotFoundError)) throw error
      }
    }
    const sandbox = await this.create(options)
    await onCreate?.(sandbox)
    return sandbox
  }

  /** A copy of a sandbox, with its settings. */
  static async fork({ sourceSandbox, name, ...other }) {
    const unknown = Object.keys(other).find((option) => other[option] !== undefined)
    if (unknown) throw notHere(`\`${unknown}\` of a fork`, 'make a sandbox of a snapshot')
    const source = await this.get({ name: sourceSandbox })
    const [fork] = await source.#core.fork({ name: name ?? `sbx-${randomBytes(8).toString('hex')}` })
    if (fork instanceof Error) throw fork
    return new this(fork, await fork.getInfo())
  }

  /** Sandboxes: `sandboxes` has them, and so has `for await`. */
  static async list({ namePrefix = '', tags = {}, limit, ...other } = {}) {
    refuse(other)
    const found = (await Sandbox.#found({ 'vercel.sandbox': '1', ...tags })).map(shownOf)
    const sandboxes = found.filter(({ name }) => name.startsWith(namePrefix)).slice(0, limit)
    return paged('sandboxes', sandboxes)
  }

  static async #found(metadata) {
    const found = []
    for await (const info of Core.list({ query: { metadata, state: ['running', 'paused'] } })) found.push(info)
    return found
  }

  async #fill({ type, url, depth, revision, username, password }) {
    if (type !== 'git') throw notHere(`sources of the kind \`${type}\``, '`writeFiles`, or a command that fetches it')
    if (username || password) throw notHere('passwords of a source', 'a command that has them as variables fetches it')
    const flags = depth ? ['--depth', String(depth)] : []
    const lines = [['git', 'clone', '--quiet', ...flags, '--', url, '.']]
    if (revision) lines.push(['git', 'fetch', '--quiet', ...flags, 'origin', revision], ['git', 'checkout', '--quiet', 'FETCH_HEAD'])
    for (const words of lines) {
      const { exitCode, stderr } = await this.#core.run(words, { cwd: CWD })
      if (exitCode !== 0) throw new InvalidArgumentError(`source: \`${words.slice(0, 2).join(' ')}\` failed: ${stderr.trim()}`)
    }
  }

  get name() {
    return this.#info.name ?? this.#info.sandboxId
  }

  get sandboxId() {
    return this.#info.sandboxId
  }

  get cwd() {
    return CWD
  }

  get status() {
    return this.#info.state === 'paused' ? 'stopped' : 'running'
  }

  get vcpus() {
    return this.#info.cpuCount
  }

  get memory() {
    return this.#info.memoryMB
  }

  get createdAt() {
    return this.#info.startedAt
  }

  get expiresAt() {
    return this.#info.endAt
  }

  get timeout() {
    return this.#info.endAt - this.#info.startedAt
  }

  get persistent() {
    return this.#info.metadata['vercel.persistent'] !== 'false'
  }

  get tags() {
    return shownOf(this.#info).tags
  }

  get routes() {
    return this.#ports().map((port) => ({ port, url: this.domain(port) }))
  }

  #ports() {
    return (this.#info.metadata['vercel.ports'] ?? '').split(',').filter(Boolean).map(Number)
  }

  #path(path, cwd = CWD) {
    return posix.resolve(CWD, cwd, path)
  }

  /** Files, of a sandbox that runs. */
  async #files() {
    if (!(await this.#core.isRunning())) await this.#resume()
    return this.#core.files
  }

  async #resume() {
    await this.#core.connect()
    this.#info = await this.#core.getInfo()
  }

  /** Does something, in a sandbox that is resumed if it was stopped. */
  async #running(what) {
    try {
      return await what(this.#core)
    } catch (error) {
      if (!(error instanceof SandboxNotRunningError) || !this.persistent) throw error
      await this.#resume()
      return what(this.#core)
    }
  }

  /** Runs a program: `runCommand(program, arguments)` or `runCommand({ cmd, args, … })`; waits for it unless it is `detached`. */
  async runCommand(cmd, args, options) {
    const wanted = typeof cmd === 'string' ? { cmd, args, ...options } : cmd
    wanted.signal?.throwIfAborted()
    const cwd = this.#path(wanted.cwd ?? '.')
    const command = await this.#running((core) => Command.start(core, wanted, cwd))
    return wanted.detached ? command : command.wait({ signal: wanted.signal })
  }

  /** A command that runs, by its `cmdId`. */
  getCommand(cmdId) {
    return Command.connect(this.#core, cmdId)
  }

  /** Makes a directory. */
  async mkDir(path) {
    await (await this.#files()).makeDir(this.#path(path))
  }

  /** A file as a stream, or `null` where there is none. */
  async readFile(file) {
    const content = await this.readFileToBuffer(file)
    return content && Readable.from([content], { objectMode: false })
  }

  /** A file as a buffer, or `null` where there is none. */
  async readFileToBuffer({ path, cwd }) {
    try {
      return Buffer.from(await (await this.#files()).read(this.#path(path, cwd), { format: 'bytes' }))
    } catch (error) {
      if (error instanceof FileNotFoundError) return null
      throw error
    }
  }

  /** Writes a file of the sandbox to this machine, for its owner alone; answers its path, or `null` where there is none. */
  async downloadFile(src, dst, { mkdirRecursive = false } = {}) {
    const content = await this.readFileToBuffer(src)
    if (content === null) return null
    const target = resolve(dst.cwd ?? '.', dst.path)
    if (mkdirRecursive) await mkdir(dirname(target), { recursive: true })
    writeAnew(target, content)
    return target
  }

  /** Writes files; directories on the way to them are made. */
  async writeFiles(files) {
    const into = await this.#files()
    for (const { path, content, mode } of files) {
      await into.write(this.#path(path), content)
      if (mode !== undefined) await this.fs.chmod(path, mode)
    }
  }

  /** Where one of the ports is reached that were said when the sandbox was made. */
  domain(port) {
    if (!this.#ports().includes(port)) throw new InvalidArgumentError(`No route for port ${port}`, { hint: '`Sandbox.create({ ports })`' })
    return this.#core.getUrl(port).replace(/\/$/, '')
  }

  /** Stops it: with its files kept if it is `persistent`, else for good. */
  async stop() {
    if (this.persistent) await this.#core.pause({ mode: 'filesystem' })
    else await this.#core.kill()
    this.#info = { ...this.#info, state: 'paused' }
    return { id: this.sandboxId, status: this.status }
  }

  /** Ends it, with its files. */
  async delete() {
    await this.#core.kill()
  }

  /** Lets it live longer. */
  async extendTimeout(duration) {
    const { endAt } = await this.#core.getInfo()
    await this.#core.setTimeout(endAt - Date.now() + duration)
    this.#info = await this.#core.getInfo()
  }

  /** Replaces what it may reach. */
  async updateNetworkPolicy(policy) {
    const { network, allowInternetAccess } = networkOf(policy)
    await this.#core.updateNetwork({ ...network, allowInternetAccess })
    return policy
  }

  /** Replaces its tags, and what it may reach. */
  async update({ tags, networkPolicy, ...others } = {}) {
    const [other] = Object.keys(others).filter((name) => others[name] !== undefined)
    if (other) throw notHere(`settings that change: \`${other}\``, 'make a sandbox that has them')
    if (networkPolicy) await this.updateNetworkPolicy(networkPolicy)
    if (!tags) return
    const kept = Object.entries((await this.#core.getInfo()).metadata).filter(([name]) => name.startsWith('vercel.'))
    this.#info = await this.#core.setMetadata({ ...tagsOf(tags), ...Object.fromEntries(kept) })
  }

  /** A snapshot of its files; the sandbox is stopped then. */
  async snapshot({ expiration } = {}) {
    if (expiration) throw notHere('`expiration` of snapshots', '`snapshot.delete()` removes one')
    const taken = await this.#running((core) => core.createSnapshot())
    await this.stop()
    return new Snapshot(taken)
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.stop()
  }
}

const METHODS = {
  addUserToGroup: 'users of a sandbox',
  asUser: 'users of a sandbox',
  createGroup: 'users of a sandbox',
  createUser: 'users of a sandbox',
  currentSession: 'sessions',
  getDefaultUser: 'users of a sandbox',
  listSessions: 'sessions',
  listSnapshots: 'snapshots of one sandbox',
  openInteractive: 'web sockets of terminals',
  removeUserFromGroup: 'users of a sandbox',
}
const INSTEAD = { 'web sockets of terminals': '`offleash exec -it`', 'snapshots of one sandbox': '`Snapshot.list`' }
for (const [name, what] of Object.entries(METHODS)) {
  Sandbox.prototype[name] = () => {
    throw notHere(`${what}: \`${name}\``, INSTEAD[what])
  }
}

/** A snapshot of a sandbox's files. */
export class Snapshot {
  #taken

  /** Use `sandbox.snapshot()`, `Snapshot.get` or `Snapshot.list`. */
  constructor(taken) {
    this.#taken = taken
  }

  static async get({ snapshotId }) {
    for await (const taken of Core.listSnapshots()) if (taken.snapshotId === snapshotId) return new Snapshot(taken)
    throw new NotFoundError(`there is no snapshot \`${snapshotId}\``, { code: 404 })
  }

  /** Snapshots: `snapshots` has them, and so has `for await`. */
  static async list({ limit } = {}) {
    const found = []
    for await (const { snapshotId, bytes, createdAt } of Core.listSnapshots()) {
      found.push({ id: snapshotId, sizeBytes: bytes, createdAt: Number(createdAt), status: 'created' })
    }
    return paged('snapshots', found.slice(0, limit))
  }

  get snapshotId() {
    return this.#taken.snapshotId
  }

  get sizeBytes() {
    return this.#taken.bytes
  }

  get createdAt() {
    return this.#taken.createdAt
  }

  get status() {
    return 'created'
  }

  /** Removes it. */
  async delete() {
    if (!(await Core.deleteSnapshot(this.snapshotId))) throw new NotFoundError(`there is no snapshot \`${this.snapshotId}\``, { code: 404 })
  }
}

function shownOf(info) {
  const tags = Object.fromEntries(Object.entries(info.metadata).filter(([name]) => !OURS.test(name)))
  return {
    name: info.name ?? info.sandboxId,
    status: info.state === 'paused' ? 'stopped' : 'running',
    createdAt: Number(info.startedAt),
    persistent: info.metadata['vercel.persistent'] !== 'false',
    vcpus: info.cpuCount,
    memory: info.memoryMB,
    tags,
  }
}

/** A list in one page. */
function paged(name, items) {
  return {
    [name]: items,
    pagination: { count: items.length, next: null },
    toArray: async () => items,
    async *[Symbol.asyncIterator]() {
      yield* items
    },
  }
}
