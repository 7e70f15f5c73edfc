// Runs code that an AI wrote in sandboxes, by the names of E2B's SDK.

import { openApi } from './api.js'
import { UnsupportedError } from './errors.js'
import { runResultOf } from './others.js'
import { commandBody, hasRules, networkBody, patience, sandboxBody } from './requests.js'
import { Sandbox } from './sandbox.js'

export {
  AuthenticationError,
  CommandExitError,
  ConflictError,
  DaemonError,
  FileNotFoundError,
  InvalidArgumentError,
  NotEnoughSpaceError,
  NotFoundError,
  OffleashError,
  PermissionDeniedError,
  RateLimitError,
  SandboxError,
  SandboxNotFoundError,
  SandboxNotRunningError,
  ServiceBusyError,
  TemplateError,
  TimeoutError,
  UnsupportedError,
} from './errors.js'
export { CommandHandle } from './commands.js'
export { approvals, volumes } from './others.js'
export { ALL_TRAFFIC } from './requests.js'
export { tool } from './tools.js'
export { Sandbox }
export default Sandbox

/** Runs a line of a shell, or words, in a sandbox that is made for it and killed after it: one request. */
export async function run(command, { envs, cwd, user, stdin, timeoutMs, url, apiKey, ...sandbox } = {}) {
  const network = networkBody(sandbox.network, sandbox.allowInternetAccess)
  if (hasRules(network)) throw new UnsupportedError('`run` has no `rules` and the like', { hint: 'make a `Sandbox` with them' })
  const body = {
    command: commandBody(command, { envs, cwd, user, stdin, timeoutMs }),
    sandbox: sandboxBody(sandbox, network),
  }
  return runResultOf(await (await openApi({ url, apiKey })).ask('POST', '/v1/run', body, { timeoutMs: patience(timeoutMs) }))
}
