// Tools of Mastra: code and commands of its agents run in a sandbox of offleash.

import { createTool } from '@mastra/core/tools'
import { z } from 'zod'

/** What a tool is given: Mastra's releases before the first put it into `context`. */
const given = (input) => input.context ?? input

/** `new Agent({ tools: offleashTools(sandbox) })` with a `Sandbox` of `offleash`. */
export function offleashTools(sandbox, { timeoutMs = 300_000 } = {}) {
  const runCode = createTool({
    id: 'run_code',
    description: 'Runs Python that keeps its variables, and answers with what it printed and its last value.',
    inputSchema: z.object({ code: z.string().describe('the Python to run') }),
    execute: async (input) => {
      const { logs, error, text } = await sandbox.runCode(given(input).code)
      return [...logs.stdout, ...logs.stderr].join('') + (error ? error.traceback : (text ?? ''))
    },
  })
  const runCommand = createTool({
    id: 'run_command',
    description: 'Runs a line of bash, and answers with what it wrote.',
    inputSchema: z.object({ command: z.string().describe('a line of bash') }),
    execute: async (input) => {
      const { stdout, stderr, exitCode } = await sandbox.run(given(input).command, { timeoutMs })
      return stdout + stderr + (exitCode === 0 ? '' : `\nexit code ${exitCode}`)
    },
  })
  return { run_code: runCode, run_command: runCommand }
}
