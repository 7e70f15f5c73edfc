// Errors, by the names that E2B's SDK has for them; what has no name there has one of its own.

/** Whatever this library throws. */
export class OffleashError extends Error {
  /**
   * @param {string} message what the server or the library says
   * @param {{code?: number | string, hint?: string, cause?: unknown}} [about] `code` is the HTTP status, or the word of a
   *   service of the sandbox; `hint` says what to do
   */
  constructor(message, about = {}) {
    super(about.hint ? `${message}\nhint: ${about.hint}` : message, about.cause ? { cause: about.cause } : undefined)
    this.name = new.target.name
    this.code = about.code
    this.hint = about.hint
  }
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
/** No server is reached, and none could be started. */
export class DaemonError extends OffleashError {}

/** A command ended with another exit code than 0. */
export class CommandExitError extends SandboxError {
  constructor(result) {
    super(`Command exited with code ${result.exitCode} and error:\n${result.stderr}`, { code: result.exitCode })
    Object.assign(this, result)
  }
}

const OF_STATUS = {
  400: InvalidArgumentError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  409: ConflictError,
  413: InvalidArgumentError,
  429: RateLimitError,
  501: UnsupportedError,
  503: ServiceBusyError,
  504: TimeoutError,
  507: NotEnoughSpaceError,
}

const OF_WORD = {
  invalid_argument: InvalidArgumentError,
  unauthenticated: AuthenticationError,
  permission_denied: PermissionDeniedError,
  not_found: NotFoundError,
  already_exists: ConflictError,
  failed_precondition: ConflictError,
  resource_exhausted: RateLimitError,
  unimplemented: UnsupportedError,
  canceled: TimeoutError,
  deadline_exceeded: TimeoutError,
  unavailable: TimeoutError,
}

const KEY_HINT = 'give `apiKey`, or set OFFLEASH_API_KEY to what `offleash key create` printed'

/** The error that an answer stands for; `code` of services is a word, that of the server a number. */
export function ofAnswer(status, text, notFound) {
  let body
  try {
    body = JSON.parse(text)
  } catch {
    body = {}
  }
  if (typeof body?.code === 'string') return ofWord(body.code, body.message ?? body.code, notFound)
  const message = body?.message ?? (text.slice(0, 1000) || `the server answered ${status}`)
  let kind = OF_STATUS[status] ?? SandboxError
  if (status === 404) kind = notFound ?? (message.startsWith('sandbox') ? SandboxNotFoundError : NotFoundError)
  if (status === 502 && body?.sandboxId) kind = SandboxNotRunningError
  return new kind(message, { code: status, hint: body?.hint ?? (status === 401 ? KEY_HINT : undefined) })
}

/** The error that the end of a call of a sandbox's services stands for. */
export function ofWord(word, message, notFound = NotFoundError) {
  const kind = word === 'not_found' ? notFound : (OF_WORD[word] ?? SandboxError)
  return new kind(message, { code: word })
}
