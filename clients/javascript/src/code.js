// Code that keeps its state from one cell to the next.

import { linesOf } from './api.js'
import { InvalidArgumentError, SandboxNotRunningError, TimeoutError } from './errors.js'
import { said } from './requests.js'

/** How long a cell may run if nobody says. */
const CELL_TIMEOUT_MS = 300_000
/** How long the server may be silent in a cell: it shows that it is alive every five seconds. */
const MAX_SILENCE_MS = 60_000

const FIELDS = {
  'text/plain': 'text',
  'text/html': 'html',
  'text/markdown': 'markdown',
  'image/svg+xml': 'svg',
  'image/png': 'png',
  'image/jpeg': 'jpeg',
  'application/pdf': 'pdf',
  'text/latex': 'latex',
  'application/json': 'json',
  'application/javascript': 'javascript',
  'e2b/data': 'data',
  'e2b/chart': 'chart',
}

function resultOf({ is_main: isMainResult, forms, omitted = {} }) {
  const result = { isMainResult, extra: {} }
  for (const [mime, form] of Object.entries(forms)) {
    if (!FIELDS[mime]) result.extra[mime] = form
    else if (mime === 'text/plain') result.text = String(form).replace(/^(['"])([^]*)\1$/, '$2')
    else result[FIELDS[mime]] = form
  }
  if (Object.keys(omitted).length) result.extra['offleash/omitted'] = omitted
  result.formats = () => [...Object.values(FIELDS).filter((name) => result[name]), ...Object.keys(result.extra)]
  return result
}

/** What came of a cell. */
class Execution {
  results = []
  logs = { stdout: [], stderr: [] }
  error = undefined
  executionCount = undefined
  /** `done` (also after an error), `interrupted`, `timed_out`, `died` or `not_run`. */
  outcome = undefined

  /** The text of the last expression's value. */
  get text() {
    return this.results.find((result) => result.isMainResult)?.text
  }

  // Takes in what happened; answers what a listener is to hear of it.
  take(event) {
    switch (event.kind) {
      case 'begin':
        this.executionCount = event.count
        return undefined
      case 'stdout':
      case 'stderr':
        this.logs[event.kind].push(event.text)
        return { line: event.text, timestamp: event.at, error: event.kind === 'stderr' }
      case 'result':
        this.results.push(resultOf(event.result))
        return this.results.at(-1)
      case 'error':
        this.error = event.error
        return event.error
      case 'end':
        this.outcome = event.outcome
        if (['died', 'not_run'].includes(event.outcome)) {
          this.error ??= { name: 'ContextDied', value: event.reason ?? 'the context has lost its state', traceback: '' }
        }
        return undefined
      default:
        return undefined
    }
  }
}

const idOf = (context) => encodeURIComponent(context.id ?? context)

/** Runs a cell and tells what happens to it. */
export async function runCell(api, path, code, options = {}) {
  const { language, context, envs, timeoutMs = CELL_TIMEOUT_MS } = options
  if (language && context) throw new InvalidArgumentError('a cell has a language or a context, not both')
  const where = context ? `${path}/contexts/${idOf(context)}` : path
  const listeners = { stdout: options.onStdout, stderr: options.onStderr, result: options.onResult, error: options.onError }
  const content = JSON.stringify(said({ code, language, env: envs, timeout_ms: timeoutMs || undefined }))
  const headers = { 'Content-Type': 'application/json' }
  const answer = await api.stream('POST', `${where}/execute`, { headers, content, silenceMs: MAX_SILENCE_MS })
  const execution = new Execution()
  for await (const line of linesOf(answer)) {
    if (!line) continue
    const event = JSON.parse(line)
    const heard = execution.take(event)
    if (heard !== undefined) await listeners[event.kind]?.(heard)
  }
  if (!execution.outcome) throw new SandboxNotRunningError('the answer was cut: the sandbox or the server has ended')
  if (execution.outcome === 'timed_out') {
    throw new TimeoutError(`the cell was interrupted after ${timeoutMs} ms`, { hint: 'give `timeoutMs`; 0 is without end' })
  }
  return execution
}

export async function makeContext(api, path, { cwd, language, requestTimeoutMs } = {}) {
  return contextOf(await api.ask('POST', `${path}/contexts`, said({ cwd, language }), { timeoutMs: requestTimeoutMs }))
}

export async function listContexts(api, path) {
  return (await api.ask('GET', `${path}/contexts`)).contexts.map(contextOf)
}

export async function endContext(api, path, context) {
  await api.ask('DELETE', `${path}/contexts/${idOf(context)}`)
}

export async function toContext(api, path, context, verb) {
  await api.ask('POST', `${path}/contexts/${idOf(context)}/${verb}`)
}

const contextOf = ({ id, language, cwd }) => ({ id, language, cwd })
