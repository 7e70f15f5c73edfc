// Functions of this program that code in a sandbox may call.

import { linesOf } from './api.js'
import { InvalidArgumentError, OffleashError } from './errors.js'
import { said } from './requests.js'

/** How long the stream of calls may be silent: the server shows that it is alive every fifteen seconds. */
const MAX_SILENCE_MS = 60_000

/** Makes a tool of a function that takes one object; what code inside may call as a command and as a function. */
export function tool(name, { description = '', parameters, grant, timeoutMs, call }) {
  if (typeof call !== 'function') throw new InvalidArgumentError(`tool \`${name}\`: \`call\` has to be a function`)
  return { name, call, declared: said({ name, description, parameters, grant, timeout_ms: timeoutMs }) }
}

/** Answers calls until the sandbox ends; what it answers is there when none is missed any more. */
export async function answerCalls(api, path, tools) {
  const answer = await api.stream('GET', `${path}/tools/calls`, { silenceMs: MAX_SILENCE_MS })
  // A program that waits for nothing else may end.
  answer.socket?.unref()
  follow(api, path, answer, new Map(tools.map((tool) => [tool.name, tool]))).catch(() => {})
  return () => answer.destroy()
}

async function follow(api, path, answer, tools) {
  for await (const line of linesOf(answer)) {
    if (!line.startsWith('data: ')) continue
    const call = JSON.parse(line.slice('data: '.length))
    // One that takes long holds up no other.
    if (call.kind === 'call') answerOne(api, path, tools.get(call.tool), call).catch(() => {})
  }
}

async function answerOne(api, path, tool, { id, parameters }) {
  let outcome
  try {
    outcome = { result: (await tool.call(parameters)) ?? null }
    JSON.stringify(outcome)
  } catch (error) {
    outcome = { error: `${error.name ?? 'Error'}: ${error.message ?? error}` }
  }
  try {
    await api.ask('POST', `${path}/tools/calls/${id}`, outcome)
  } catch (error) {
    // It was withdrawn: whoever called has gone, or waits no more.
    if (!(error instanceof OffleashError)) throw error
  }
}
