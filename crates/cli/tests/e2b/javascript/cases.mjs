// Runs the cases of the modules that are named, each by itself, and says which failed.
//
// A case is a function with a sandbox as its only parameter, or with none.

import { fail, ok } from 'node:assert'
import { Sandbox } from 'e2b'

// What a case may take at most; a healthy one takes a hundredth of it.
const PATIENCE = 120_000

export const pause = (ms) => new Promise((done) => setTimeout(done, ms))

// Asks until the answer is true.
export async function eventually(what, condition) {
  const deadline = Date.now() + PATIENCE / 2
  for (;;) {
    const answer = await condition()
    if (answer) return answer
    if (Date.now() > deadline) fail(`never: ${what()}`)
    await pause(50)
  }
}

// The error, which must be of this kind and name nothing of the host.
export async function failure(promise, kind) {
  let answer
  try {
    answer = await promise
  } catch (error) {
    ok(error instanceof kind, error)
    // The state directory of the server is below it.
    ok(!String(error).includes(process.env.HOME), error)
    return error
  }
  fail(`no ${kind.name}, but ${JSON.stringify(answer)}`)
}

async function run(function_) {
  if (function_.length === 0) return await function_()
  const sandbox = await Sandbox.create()
  try {
    await function_(sandbox)
  } finally {
    await sandbox.kill()
  }
}

async function main(modules) {
  let [count, failed] = [0, 0]
  for (const module of modules) {
    for (const [name, function_] of Object.entries((await import(`./${module}.mjs`)).cases)) {
      count += 1
      let timer
      const tooLong = new Promise((_, no) => (timer = setTimeout(() => no(new Error('it hangs')), PATIENCE)))
      try {
        await Promise.race([run(function_), tooLong])
        console.log(`ok ${module}.${name}`)
      } catch (error) {
        failed += 1
        console.log(`FAILED ${module}.${name}\n${error.stack}`)
      } finally {
        clearTimeout(timer)
      }
    }
  }
  console.log(`${count} cases, ${failed} failed`)
  process.exit(failed === 0 && count > 0 ? 0 : 1)
}

// Not awaited here: the modules of cases import this file, and would wait for its end.
if (process.argv[1]?.endsWith('cases.mjs')) main(process.argv.slice(2))
