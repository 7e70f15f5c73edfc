// Sandboxes by the names of `@vercel/sandbox`.

import type { Readable, Writable } from 'node:stream'
import type { OffleashError } from './index.js'

export { OffleashError as APIError } from './index.js'

export type NetworkPolicy =
  | 'allow-all'
  | 'deny-all'
  | { allow?: string[] | Record<string, never[]>; subnets?: { allow?: string[]; deny?: string[] } }

export interface CreateSandboxParams {
  name?: string
  source?: { type: 'git'; url: string; depth?: number; revision?: string } | { type: 'snapshot'; snapshotId: string }
  /** At most 15. */
  ports?: number[]
  /** How long it lives, milliseconds; 300,000 if absent. */
  timeout?: number
  /** Each has 2048 MiB of memory. */
  resources?: { vcpus: number }
  /** `node:22` and so on; the template `base` if neither this nor `image` is said. */
  runtime?: 'node22' | 'node24' | 'node26' | 'python3.13'
  /** An image of containers. */
  image?: string
  networkPolicy?: NetworkPolicy
  env?: Record<string, string>
  /** At most 5. */
  tags?: Record<string, string>
  /** Whether its files are kept when it is stopped; they are if absent. */
  persistent?: boolean
  signal?: AbortSignal
}

export interface RunCommandParams {
  cmd: string
  args?: string[]
  cwd?: string
  env?: Record<string, string>
  /** As `root`. */
  sudo?: boolean
  detached?: boolean
  stdout?: Writable
  stderr?: Writable
  /** Kills it. */
  signal?: AbortSignal
  /** After how long it is killed, milliseconds. */
  timeoutMs?: number
}

export interface LogOutputLine {
  stream: 'stdout' | 'stderr'
  data: string
}

export class Command {
  readonly cmdId: string
  readonly cwd: string | undefined
  readonly startedAt: number
  readonly durationMs?: number
  exitCode: number | null
  logs(): AsyncGenerator<LogOutputLine, void, void>
  wait(options?: { signal?: AbortSignal }): Promise<CommandFinished>
  output(stream?: 'stdout' | 'stderr' | 'both'): Promise<string>
  stdout(): Promise<string>
  stderr(): Promise<string>
  kill(signal?: 'SIGTERM' | 'SIGKILL' | 9 | 15): Promise<void>
}

export class CommandFinished extends Command {
  /** 128 and the number of a signal that ended it, or its exit code. */
  exitCode: number
}

export interface FileStats {
  size: number
  mode: number
  mtime: Date | undefined
  mtimeMs: number
  isFile(): boolean
  isDirectory(): boolean
  isSymbolicLink(): boolean
}

export class FileSystem {
  readFile(path: string): Promise<Buffer>
  readFile(path: string, encoding: BufferEncoding | { encoding: BufferEncoding }): Promise<string>
  writeFile(path: string, data: string | Uint8Array): Promise<void>
  appendFile(path: string, data: string | Uint8Array): Promise<void>
  mkdir(path: string, options?: { recursive?: boolean }): Promise<void>
  readdir(path: string): Promise<string[]>
  stat(path: string): Promise<FileStats>
  exists(path: string): Promise<boolean>
  access(path: string): Promise<void>
  chmod(path: string, mode: number): Promise<void>
  rm(path: string, options?: { recursive?: boolean; force?: boolean }): Promise<void>
  unlink(path: string): Promise<void>
  rename(oldPath: string, newPath: string): Promise<void>
}

export interface SandboxMetaData {
  name: string
  status: 'running' | 'stopped'
  createdAt: number
  persistent: boolean
  vcpus: number
  memory: number
  tags: Record<string, string>
}

export type Listed<Name extends string, Item> = { [name in Name]: Item[] } & {
  pagination: { count: number; next: null }
  toArray(): Promise<Item[]>
  [Symbol.asyncIterator](): AsyncIterator<Item>
}

export class Sandbox {
  static create(params?: CreateSandboxParams): Promise<Sandbox>
  static get(params: { name: string; resume?: boolean; signal?: AbortSignal }): Promise<Sandbox>
  static getOrCreate(params?: CreateSandboxParams & { resume?: boolean; onCreate?: (sandbox: Sandbox) => Promise<void> }): Promise<Sandbox>
  static fork(params: { sourceSandbox: string; name?: string }): Promise<Sandbox>
  static list(params?: { namePrefix?: string; tags?: Record<string, string>; limit?: number }): Promise<Listed<'sandboxes', SandboxMetaData>>
  readonly name: string
  readonly sandboxId: string
  /** `/vercel/sandbox`. */
  readonly cwd: string
  readonly status: 'running' | 'stopped'
  readonly vcpus: number
  readonly memory: number
  readonly createdAt: Date
  readonly expiresAt: Date
  readonly timeout: number
  readonly persistent: boolean
  readonly tags: Record<string, string>
  readonly routes: { port: number; url: string }[]
  readonly fs: FileSystem
  runCommand(cmd: string, args?: string[], options?: { signal?: AbortSignal; timeoutMs?: number }): Promise<CommandFinished>
  runCommand(params: RunCommandParams & { detached: true }): Promise<Command>
  runCommand(params: RunCommandParams): Promise<CommandFinished>
  getCommand(cmdId: string): Promise<Command>
  mkDir(path: string): Promise<void>
  readFile(file: { path: string; cwd?: string }): Promise<Readable | null>
  readFileToBuffer(file: { path: string; cwd?: string }): Promise<Buffer | null>
  downloadFile(
    src: { path: string; cwd?: string },
    dst: { path: string; cwd?: string },
    options?: { mkdirRecursive?: boolean }
  ): Promise<string | null>
  writeFiles(files: { path: string; content: string | Uint8Array; mode?: number }[]): Promise<void>
  /** A path of the server, without TLS where the server has none. */
  domain(port: number): string
  stop(): Promise<{ id: string; status: 'stopped' }>
  delete(): Promise<void>
  extendTimeout(duration: number): Promise<void>
  updateNetworkPolicy(policy: NetworkPolicy): Promise<NetworkPolicy>
  update(params: { tags?: Record<string, string>; networkPolicy?: NetworkPolicy }): Promise<void>
  snapshot(options?: { expiration?: 0 }): Promise<Snapshot>
}

export class Snapshot {
  static get(params: { snapshotId: string }): Promise<Snapshot>
  static list(params?: { limit?: number }): Promise<Listed<'snapshots', { id: string; sizeBytes: number; createdAt: number; status: 'created' }>>
  readonly snapshotId: string
  readonly sizeBytes: number
  readonly createdAt: Date
  readonly status: 'created'
  delete(): Promise<void>
}

export type { OffleashError }
