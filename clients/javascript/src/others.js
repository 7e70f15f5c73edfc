// Volumes, questions about calls of tools, checkpoints, and lists that come in pages.

import { openApi } from './api.js'
import { query, said } from './requests.js'

export const infoOf = (answer) => ({
  sandboxId: answer.id,
  templateId: answer.template,
  name: answer.metadata['offleash.name'],
  metadata: answer.metadata,
  startedAt: new Date(answer.started_at),
  endAt: new Date(answer.ends_at),
  state: answer.state,
  cpuCount: answer.limits.cpus,
  memoryMB: answer.limits.memory_mib,
  diskMB: answer.limits.disk_mib,
  level: answer.level,
  notEnforced: answer.not_enforced,
  forkOf: answer.fork_of ?? undefined,
  snapshot: answer.snapshot ?? undefined,
  raw: answer,
})

export const snapshotOf = (answer) => ({
  snapshotId: answer.id,
  name: answer.name ?? undefined,
  names: answer.name ? [answer.name] : [],
  sandboxId: answer.sandbox ?? undefined,
  templateId: answer.template,
  parent: answer.parent ?? undefined,
  bytes: answer.bytes,
  files: answer.files,
  heldMs: answer.held_ms,
  createdAt: new Date(answer.created_at),
})

const volumeOf = (answer) => ({
  volumeId: answer.id,
  name: answer.name,
  sizeMib: answer.size_mib,
  inodes: answer.inodes,
  shared: answer.shared,
  inUse: answer.in_use,
  createdAt: new Date(answer.created_at),
})

const approvalOf = (answer) => ({
  id: answer.id,
  sandboxId: answer.sandbox,
  tool: answer.tool,
  parameters: answer.parameters,
  leftMs: answer.left_ms,
  kind: answer.kind,
  answeredBy: answer.answered_by,
})

export const runResultOf = (answer) => ({
  stdout: answer.stdout,
  stderr: answer.stderr,
  exitCode: answer.exit_code ?? undefined,
  signal: answer.signal ?? undefined,
  timedOut: answer.timed_out,
  outOfMemory: answer.out_of_memory,
  truncated: answer.truncated,
  tookMs: answer.took_ms,
  sandboxId: answer.sandbox,
  ok: answer.exit_code === 0,
})

/** Directories that outlive sandboxes. */
export const volumes = {
  async create(name, { sizeMib, inodes, shared, ...connection } = {}) {
    const body = said({ name, size_mib: sizeMib, inodes, shared })
    return volumeOf(await (await openApi(connection)).ask('POST', '/v1/volumes', body))
  },
  async get(volume, connection) {
    return volumeOf(await (await openApi(connection)).ask('GET', `/v1/volumes/${volumeId(volume)}`))
  },
  async list(connection) {
    return (await (await openApi(connection)).ask('GET', '/v1/volumes')).volumes.map(volumeOf)
  },
  async remove(volume, connection) {
    await (await openApi(connection)).ask('DELETE', `/v1/volumes/${volumeId(volume)}`)
  },
}

const volumeId = (volume) => encodeURIComponent(volume.volumeId ?? volume)

/** Questions about calls of tools that wait for a person. */
export const approvals = {
  async list(connection) {
    return (await (await openApi(connection)).ask('GET', '/v1/approvals')).approvals.map(approvalOf)
  },
  /** Allows the call (`once`), or the tool for its sandbox within its grant (`sandbox`). */
  async approve(approval, { scope = 'once', ...connection } = {}) {
    await (await openApi(connection)).ask('POST', `/v1/approvals/${approvalId(approval)}/approve`, { scope })
  },
  /** Refuses the call, and later ones of the sandbox with the same parameters. */
  async deny(approval, connection) {
    await (await openApi(connection)).ask('POST', `/v1/approvals/${approvalId(approval)}/deny`, {})
  },
}

const approvalId = (approval) => encodeURIComponent(approval.id ?? approval)

/** The checkpoints of one sandbox, to which it can be put back. */
export class Checkpoints {
  #api
  #path

  constructor(api, path) {
    this.#api = api
    this.#path = path
  }

  async create(name) {
    return snapshotOf(await this.#api.ask('POST', `${this.#path}/checkpoints`, said({ name })))
  }

  /** Those that there are, the oldest first. */
  async list() {
    return (await this.#api.ask('GET', `${this.#path}/checkpoints`)).checkpoints.map(snapshotOf)
  }

  async remove(checkpoint) {
    await this.#api.ask('DELETE', `${this.#path}/checkpoints/${encodeURIComponent(checkpoint.snapshotId ?? checkpoint)}`)
  }

  /** Puts the sandbox back to one: its processes end, and its files are those of the checkpoint. */
  async restore(checkpoint) {
    await this.#api.ask('POST', `${this.#path}/restore`, { checkpoint: checkpoint.snapshotId ?? checkpoint })
  }
}

/** A list of which a page is asked for at a time. */
export class Pages {
  #connection
  #route
  #key
  #wanted
  #shape
  hasNext = true
  nextToken

  constructor(connection, route, key, wanted, shape) {
    this.#connection = connection
    this.#route = route
    this.#key = key
    this.#wanted = wanted
    this.#shape = shape
    this.nextToken = wanted.nextToken
  }

  /** The next page. */
  async nextItems() {
    const api = await openApi(this.#connection)
    const answer = await api.ask('GET', this.#route + query({ ...this.#wanted, nextToken: this.nextToken }))
    this.nextToken = answer.next ?? undefined
    this.hasNext = this.nextToken !== undefined
    return answer[this.#key].map(this.#shape)
  }

  async *[Symbol.asyncIterator]() {
    while (this.hasNext) yield* await this.nextItems()
  }
}
