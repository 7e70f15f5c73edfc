// From options to the bodies of requests.

import { InvalidArgumentError } from './errors.js'

/** How long the server may be silent. */
export const REQUEST_TIMEOUT_MS = 60_000

/** What every address is: where it is denied, all is closed that is not allowed. */
export const ALL_TRAFFIC = '0.0.0.0/0'

/** Fields of `network` that only E2B's route takes. */
const RULES = ['rules', 'dnsServers', 'egressProxy', 'maskRequestHost', 'httpsPorts']
const KNOWN = [...RULES, 'allowOut', 'denyOut', 'allowPublicTraffic']

/** What of it was said. */
export function said(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null))
}

const saidOrNot = (fields) => (Object.keys(said(fields)).length ? said(fields) : undefined)

/** A query of what was said, with its question mark. */
export function query(fields) {
  const text = new URLSearchParams(said(fields)).toString()
  return text && `?${text}`
}

export const seconds = (ms) => (ms === undefined ? undefined : Math.ceil(ms / 1000))

/** How long an answer that comes when a command has ended is waited for, if that has a time; zero is without end. */
export const patience = (timeoutMs) => (timeoutMs ? timeoutMs + REQUEST_TIMEOUT_MS : 0)

/** `network` as E2B's route takes it. */
export function networkBody(network = {}, internet) {
  const unknown = Object.keys(network).find((name) => !KNOWN.includes(name))
  if (unknown) throw new InvalidArgumentError(`network: \`${unknown}\` is not known`)
  const context = { allTraffic: ALL_TRAFFIC, rules: new Map(Object.entries(network.rules ?? {})) }
  const listed = (value) => (typeof value === 'function' ? value(context) : value)
  return said({
    ...network,
    allowOut: listed(network.allowOut),
    denyOut: listed(network.denyOut),
    allow_internet_access: internet,
  })
}

/** Whether a network has what the native route does not take. */
export const hasRules = (body) => RULES.some((name) => body[name] !== undefined)

/** A sandbox as the native route takes it; `network` is in the form of E2B's route. */
export function sandboxBody(options, network, answered = []) {
  const labels = { ...options.metadata, ...(options.level ? { 'offleash.level': options.level } : {}) }
  const volumes = Object.entries(options.volumeMounts ?? {}).map(([path, volume]) => ({ volume: volume.name ?? volume, path }))
  const policy = {
    internet: network.allow_internet_access,
    allow: network.allowOut,
    deny: network.denyOut,
    public_ports: network.allowPublicTraffic,
  }
  const limits = { cpus: options.cpus, memory_mib: options.memoryMib, disk_mib: options.diskMib, pids: options.pids }
  return said({
    template: options.template ?? (options.mcp ? 'mcp-gateway' : undefined),
    image: options.image,
    snapshot: options.snapshot,
    name: options.name,
    timeout_seconds: seconds(options.timeoutMs),
    metadata: saidOrNot(labels),
    env: saidOrNot(options.envs ?? {}),
    volumes: volumes.length ? volumes : undefined,
    limits: saidOrNot(limits),
    policy: saidOrNot(policy),
    tools: saidOrNot({ grants: options.toolGrants, answered: answered.length ? answered : undefined }),
    idle_seconds: seconds(options.idleMs),
    checkpoint_every_seconds: seconds(options.checkpointEveryMs),
    checkpoint_before: options.checkpointBefore,
    ask_before: options.askBefore,
    ask_before_restore: options.askBeforeRestore,
    ...lifecycle(options.lifecycle ?? {}),
  })
}

function lifecycle({ onTimeout, autoResume }) {
  const { action, mode, keepMemory } = typeof onTimeout === 'object' ? onTimeout : { action: onTimeout }
  if (![undefined, 'kill', 'pause'].includes(action)) {
    throw new InvalidArgumentError(`lifecycle: onTimeout is \`kill\` or \`pause\`, not \`${action}\``)
  }
  return {
    pause_on_timeout: action === undefined ? undefined : action === 'pause',
    pause_mode: mode ?? (keepMemory === false ? 'filesystem' : undefined),
    auto_resume: autoResume,
  }
}

/** A command as the native route takes it: a line of a shell, or words. */
export function commandBody(command, { envs, cwd, user, stdin, timeoutMs } = {}) {
  return said({
    ...(typeof command === 'string' ? { shell: command } : { argv: command }),
    env: envs,
    cwd,
    user,
    stdin,
    timeout_ms: timeoutMs || undefined,
  })
}
