/// <reference lib="esnext.disposable" />
/// <reference types="node" />

/** Which server is asked: one of this user's own if absent. `unix:PATH` is a server's socket. */
export interface ConnectionOptions {
  url?: string
  apiKey?: string
  requestTimeoutMs?: number
}

export interface NetworkContext {
  allTraffic: string
  rules: Map<string, unknown>
}

/** What a sandbox may reach, and who may reach it. */
export interface NetworkOptions {
  allowOut?: string[] | ((context: NetworkContext) => string[])
  denyOut?: string[] | ((context: NetworkContext) => string[])
  allowPublicTraffic?: boolean
  rules?: Record<string, { transform?: { headers?: Record<string, string> } }[]>
  dnsServers?: string[]
  egressProxy?: { address: string; username?: string; password?: string }
  maskRequestHost?: string
  httpsPorts?: number[]
}

export type PauseMode = 'full' | 'filesystem'
export type Level = 'process' | 'container' | 'microvm' | (string & {})

export interface Lifecycle {
  onTimeout?: 'kill' | 'pause' | { action: 'kill' | 'pause'; mode?: PauseMode }
  autoResume?: boolean
}

/** A function of this program that code inside may call. */
export interface Tool {
  name: string
  call: (parameters: any) => unknown
  declared: Record<string, unknown>
}

export interface CreateOptions extends ConnectionOptions {
  template?: string
  timeoutMs?: number
  metadata?: Record<string, string>
  envs?: Record<string, string>
  secure?: boolean
  allowInternetAccess?: boolean
  network?: NetworkOptions
  lifecycle?: Lifecycle
  volumeMounts?: Record<string, string | Volume>
  mcp?: Record<string, unknown>
  image?: string
  snapshot?: string
  name?: string
  level?: Level
  cpus?: number
  memoryMib?: number
  diskMib?: number
  pids?: number
  idleMs?: number
  checkpointEveryMs?: number
  checkpointBefore?: string[]
  askBefore?: string[]
  askBeforeRestore?: boolean
  tools?: Tool[]
  toolGrants?: string[]
  idempotencyKey?: string
}

export interface RunOptions {
  envs?: Record<string, string>
  cwd?: string
  user?: string
  stdin?: string
  timeoutMs?: number
}

export interface RunResult {
  stdout: string
  stderr: string
  exitCode?: number
  signal?: number
  timedOut: boolean
  outOfMemory: boolean
  truncated: boolean
  tookMs: number
  sandboxId: string
  ok: boolean
}

export interface CommandResult {
  exitCode: number
  error?: string
  stdout: string
  stderr: string
}

export interface StartOptions {
  envs?: Record<string, string>
  user?: string
  cwd?: string
  stdin?: boolean
  onStdout?: (text: string) => unknown
  onStderr?: (text: string) => unknown
  timeoutMs?: number
}

export interface RequestOptions {
  requestTimeoutMs?: number
}

export interface KillOptions extends RequestOptions {
  /** `SIGKILL` if absent. */
  signal?: 'SIGKILL' | 'SIGTERM'
}

export class CommandHandle {
  readonly pid: number
  readonly stdout: string
  readonly stderr: string
  readonly exitCode: number | undefined
  readonly error: string | undefined
  wait(): Promise<CommandResult>
  kill(options?: KillOptions): Promise<boolean>
  sendStdin(data: string | Uint8Array, options?: RequestOptions): Promise<void>
  closeStdin(options?: RequestOptions): Promise<void>
  disconnect(): Promise<void>
}

export interface ProcessInfo {
  pid: number
  tag?: string
  cmd: string
  args: string[]
  envs: Record<string, string>
  cwd?: string
}

export interface Commands {
  run(cmd: string, options: StartOptions & { background: true }): Promise<CommandHandle>
  run(cmd: string, options?: StartOptions & { background?: false }): Promise<CommandResult>
  start(cmd: string, args?: string[], options?: StartOptions): Promise<CommandHandle>
  list(options?: RequestOptions): Promise<ProcessInfo[]>
  connect(pid: number, options?: StartOptions): Promise<CommandHandle>
  kill(pid: number, options?: RequestOptions): Promise<boolean>
  sendStdin(pid: number, data: string | Uint8Array, options?: RequestOptions): Promise<void>
  closeStdin(pid: number, options?: RequestOptions): Promise<void>
}

export interface PtyOptions {
  cols: number
  rows: number
  onData?: (data: Uint8Array) => unknown
  envs?: Record<string, string>
  cwd?: string
  user?: string
  timeoutMs?: number
}

export interface Pty {
  create(options: PtyOptions): Promise<CommandHandle>
  connect(pid: number, options?: { onData?: (data: Uint8Array) => unknown; timeoutMs?: number }): Promise<CommandHandle>
  sendInput(pid: number, data: string | Uint8Array, options?: RequestOptions): Promise<void>
  resize(pid: number, size: { cols: number; rows: number }, options?: RequestOptions): Promise<void>
  kill(pid: number, options?: RequestOptions): Promise<boolean>
}

export type FileType = 'file' | 'dir' | 'symlink'

export interface WriteInfo {
  name: string
  type?: FileType
  path: string
}

export interface EntryInfo extends WriteInfo {
  size: number
  mode: number
  permissions: string
  owner: string
  group: string
  modifiedTime?: Date
  symlinkTarget?: string
}

export interface FilesystemEvent {
  name: string
  type: 'create' | 'write' | 'remove' | 'rename' | 'chmod'
}

export type FileData = string | Uint8Array | ArrayBuffer | Blob | AsyncIterable<string | Uint8Array>

export interface FileOptions extends RequestOptions {
  user?: string
}

export interface Files {
  read(path: string, options?: FileOptions & { format?: 'text' }): Promise<string>
  read(path: string, options: FileOptions & { format: 'bytes' }): Promise<Uint8Array>
  read(path: string, options: FileOptions & { format: 'blob' }): Promise<Blob>
  read(path: string, options: FileOptions & { format: 'stream' }): Promise<import('node:stream').Readable>
  write(path: string, data: FileData, options?: FileOptions): Promise<WriteInfo>
  write(files: { path: string; data: FileData }[], options?: FileOptions): Promise<WriteInfo[]>
  writeFiles(files: { path: string; data: FileData }[], options?: FileOptions): Promise<WriteInfo[]>
  list(path: string, options?: FileOptions & { depth?: number }): Promise<EntryInfo[]>
  exists(path: string, options?: FileOptions): Promise<boolean>
  getInfo(path: string, options?: FileOptions): Promise<EntryInfo>
  remove(path: string, options?: FileOptions): Promise<void>
  rename(oldPath: string, newPath: string, options?: FileOptions): Promise<EntryInfo>
  makeDir(path: string, options?: FileOptions): Promise<boolean>
  watchDir(
    path: string,
    onEvent: (event: FilesystemEvent) => unknown,
    options?: { recursive?: boolean; timeoutMs?: number; onExit?: (error?: Error) => unknown; user?: string }
  ): Promise<{ stop(): Promise<void> }>
}

export interface CodeContext {
  id: string
  language: string
  cwd: string
}

export interface OutputMessage {
  line: string
  timestamp: string
  error: boolean
}

export interface ExecutionError {
  name: string
  value: string
  traceback: string
}

export interface Result {
  text?: string
  html?: string
  markdown?: string
  svg?: string
  png?: string
  jpeg?: string
  pdf?: string
  latex?: string
  json?: unknown
  javascript?: string
  data?: unknown
  chart?: unknown
  isMainResult: boolean
  extra: Record<string, unknown>
  formats(): string[]
}

export interface Execution {
  results: Result[]
  logs: { stdout: string[]; stderr: string[] }
  error?: ExecutionError
  executionCount?: number
  outcome?: 'done' | 'interrupted' | 'timed_out' | 'died' | 'not_run'
  readonly text: string | undefined
}

export interface RunCodeOptions {
  language?: 'python' | 'javascript' | 'typescript' | 'bash' | 'r' | 'java' | (string & {})
  context?: CodeContext | string
  onStdout?: (output: OutputMessage) => unknown
  onStderr?: (output: OutputMessage) => unknown
  onResult?: (result: Result) => unknown
  onError?: (error: ExecutionError) => unknown
  envs?: Record<string, string>
  timeoutMs?: number
}

export interface SandboxInfo {
  sandboxId: string
  templateId: string
  name?: string
  metadata: Record<string, string>
  startedAt: Date
  endAt: Date
  state: 'running' | 'paused'
  cpuCount: number
  memoryMB: number
  diskMB: number
  level: Level
  notEnforced: Record<string, string>
  forkOf?: string
  snapshot?: string
  raw: Record<string, unknown>
}

export interface Snapshot {
  snapshotId: string
  name?: string
  names: string[]
  sandboxId?: string
  templateId: string
  parent?: string
  bytes: number
  files: number
  heldMs: number
  createdAt: Date
}

export type Checkpoint = Snapshot

export interface Checkpoints {
  create(name?: string): Promise<Checkpoint>
  list(): Promise<Checkpoint[]>
  remove(checkpoint: Checkpoint | string): Promise<void>
  restore(checkpoint: Checkpoint | string): Promise<void>
}

export interface Volume {
  volumeId: string
  name: string
  sizeMib: number
  inodes: number
  shared: boolean
  inUse: boolean
  createdAt: Date
}

export interface Approval {
  id: string
  sandboxId: string
  tool: string
  parameters: unknown
  leftMs: number
  kind: 'tool' | 'connection' | 'command' | 'restore'
  answeredBy: 'create' | 'admin'
}

export interface SandboxMetrics {
  cpuCount: number
  cpuUsedPct: number
  memUsed: number
  memTotal: number
  memCache: number
  diskUsed: number
  diskTotal: number
  timestamp: Date
}

export interface Pages<T> extends AsyncIterable<T> {
  readonly hasNext: boolean
  readonly nextToken: string | undefined
  nextItems(): Promise<T[]>
}

export interface ListOptions extends ConnectionOptions {
  query?: { metadata?: Record<string, string>; state?: ('running' | 'paused')[]; template?: string; startedAfter?: Date }
  limit?: number
  nextToken?: string
  order?: 'asc' | 'desc'
}

export interface ConnectOptions extends ConnectionOptions {
  timeoutMs?: number
  onResume?: 'restore' | 'reboot'
}

export interface UrlOptions {
  user?: string
  /** For how many seconds. */
  useSignatureExpiration?: number
}

export class Sandbox {
  readonly sandboxId: string
  readonly commands: Commands
  readonly pty: Pty
  readonly files: Files
  readonly checkpoints: Checkpoints
  readonly level: Level
  readonly trafficAccessToken: string | undefined
  static create(options?: CreateOptions): Promise<Sandbox>
  static create(template: string, options?: CreateOptions): Promise<Sandbox>
  static connect(sandboxId: string, options?: ConnectOptions): Promise<Sandbox>
  connect(options?: ConnectOptions): Promise<Sandbox>
  static list(options?: ListOptions): Pages<SandboxInfo>
  static kill(sandboxId: string, options?: ConnectionOptions): Promise<boolean>
  kill(): Promise<boolean>
  static pause(sandboxId: string, options?: ConnectionOptions & { mode?: PauseMode }): Promise<boolean>
  pause(options?: { mode?: PauseMode }): Promise<boolean>
  static getInfo(sandboxId: string, options?: ConnectionOptions): Promise<SandboxInfo>
  getInfo(): Promise<SandboxInfo>
  static setTimeout(sandboxId: string, timeoutMs: number, options?: ConnectionOptions): Promise<void>
  setTimeout(timeoutMs: number): Promise<void>
  isRunning(): Promise<boolean>
  run(command: string | string[], options?: RunOptions): Promise<RunResult>
  runCode(code: string, options?: RunCodeOptions): Promise<Execution>
  createCodeContext(options?: { cwd?: string; language?: string } & RequestOptions): Promise<CodeContext>
  listCodeContexts(): Promise<CodeContext[]>
  removeCodeContext(context: CodeContext | string): Promise<void>
  restartCodeContext(context: CodeContext | string): Promise<void>
  interruptCodeContext(context: CodeContext | string): Promise<void>
  getMetrics(options?: { start?: Date; end?: Date }): Promise<SandboxMetrics[]>
  getUsage(): Promise<Record<string, number>>
  updateNetwork(network: NetworkOptions & { allowInternetAccess?: boolean }): Promise<void>
  setMetadata(metadata: Record<string, string>): Promise<SandboxInfo>
  fork(options?: {
    count?: number
    timeoutMs?: number
    contexts?: 'all' | 'possible' | 'none'
    name?: string
  }): Promise<(Sandbox | OffleashError)[]>
  createSnapshot(options?: { name?: string; contexts?: 'all' | 'possible' | 'none' }): Promise<Snapshot>
  static listSnapshots(
    options?: ConnectionOptions & { sandboxId?: string; limit?: number; nextToken?: string }
  ): Pages<Snapshot>
  static deleteSnapshot(snapshotId: string, options?: ConnectionOptions): Promise<boolean>
  static exportSnapshot(snapshotId: string, options?: ConnectionOptions): Promise<AsyncIterable<Uint8Array>>
  static importSnapshot(data: FileData, options?: ConnectionOptions & { name?: string }): Promise<Snapshot>
  restore(checkpoint: Checkpoint | string): Promise<void>
  getHost(port: number): string
  getUrl(port: number): string
  downloadUrl(path: string, options?: UrlOptions): Promise<string>
  uploadUrl(path: string, options?: UrlOptions): Promise<string>
  getMcpUrl(): string
  getMcpToken(): Promise<string>
  [Symbol.asyncDispose](): Promise<void>
}

export default Sandbox

export function run(command: string | string[], options?: RunOptions & Omit<CreateOptions, 'tools'>): Promise<RunResult>

export function tool(
  name: string,
  about: {
    description?: string
    parameters?: Record<string, unknown>
    grant?: string
    timeoutMs?: number
    call: (parameters: any) => unknown
  }
): Tool

export const volumes: {
  create(
    name: string,
    options?: ConnectionOptions & { sizeMib?: number; inodes?: number; shared?: boolean }
  ): Promise<Volume>
  get(volume: Volume | string, options?: ConnectionOptions): Promise<Volume>
  list(options?: ConnectionOptions): Promise<Volume[]>
  remove(volume: Volume | string, options?: ConnectionOptions): Promise<void>
}

export const approvals: {
  list(options?: ConnectionOptions): Promise<Approval[]>
  approve(approval: Approval | string, options?: ConnectionOptions & { scope?: 'once' | 'sandbox' }): Promise<void>
  deny(approval: Approval | string, options?: ConnectionOptions): Promise<void>
}

/** What every address is: where it is denied, all is closed that is not allowed. */
export const ALL_TRAFFIC: '0.0.0.0/0'

export class OffleashError extends Error {
  code?: number | string
  hint?: string
}
export class SandboxError extends OffleashError {}
export class TimeoutError extends SandboxError {}
export class SandboxNotRunningError extends TimeoutError {}
export class InvalidArgumentError extends SandboxError {}
export class NotEnoughSpaceError extends SandboxError {}
export class NotFoundError extends SandboxError {}
export class FileNotFoundError extends NotFoundError {}
export class SandboxNotFoundError extends NotFoundError {}
export class TemplateError extends SandboxError {}
export class RateLimitError extends SandboxError {}
export class ConflictError extends SandboxError {}
export class PermissionDeniedError extends SandboxError {}
export class UnsupportedError extends SandboxError {}
export class AuthenticationError extends OffleashError {}
export class ServiceBusyError extends OffleashError {}
export class DaemonError extends OffleashError {}
export class CommandExitError extends SandboxError implements CommandResult {
  exitCode: number
  error?: string
  stdout: string
  stderr: string
}
