"""Commands and terminals through the asynchronous half of the SDK, whose streams are others."""

import asyncio

from e2b import CommandExitException, NotFoundException, TimeoutException
from e2b.exceptions import AuthenticationException, InvalidArgumentException
from e2b.sandbox.commands.command_handle import PtySize

from cases import case, equal, eventually_later, raises_later, says


async def numbers(sandbox):
    return [process.pid for process in await sandbox.commands.list()]


@case
async def answer(sandbox):
    result = await sandbox.commands.run("echo out; echo err >&2")
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))
    error = await raises_later(CommandExitException, sandbox.commands.run("echo before; exit 9"))
    equal((error.exit_code, error.stdout, error.error), (9, "before\n", "exit status 9"))
    out, err = [], []
    await sandbox.commands.run("echo a; echo b >&2; echo c", on_stdout=out.append, on_stderr=err.append)
    equal(("".join(out), "".join(err)), ("a\nc\n", "b\n"))
    much = await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    equal(len(much.stdout), 3_000_000)


@case
async def run_as_whom_and_where_they_are_asked_to(sandbox):
    equal((await sandbox.commands.run("echo $HOME:$USER; pwd")).stdout, "/home/user:user\n/home/user\n")
    equal((await sandbox.commands.run("echo $HOME:$USER", user="root")).stdout, "/root:root\n")
    equal((await sandbox.commands.run("echo $A; pwd", cwd="/tmp", envs={"A": "b"})).stdout, "b\n/tmp\n")
    says(await raises_later(AuthenticationException, sandbox.commands.run("true", user="nobody-there")), "nobody-there")
    says(await raises_later(InvalidArgumentException, sandbox.commands.run("true", cwd="/not/there")), "/not/there")


@case
async def read_what_is_sent(sandbox):
    handle = await sandbox.commands.run("wc -c", background=True, stdin=True)
    for _ in range(3):
        await sandbox.commands.send_stdin(handle.pid, 100_000 * "x")
    await sandbox.commands.close_stdin(handle.pid)
    equal((await handle.wait()).stdout.strip(), "300000")


@case
async def run_on_when_nobody_listens(sandbox):
    handle = await sandbox.commands.run("until test -e go; do sleep 0.05; done; echo end; exit 7", background=True)
    await handle.disconnect()
    assert handle.pid in await numbers(sandbox)
    again = await sandbox.commands.connect(handle.pid)
    await sandbox.files.write("go", "")
    error = await raises_later(CommandExitException, again.wait())
    equal((error.exit_code, error.stdout), (7, "end\n"))
    says(await raises_later(NotFoundException, sandbox.commands.connect(999999)), "process with pid 999999 not found")


@case
async def end_when_they_must(sandbox):
    await raises_later(TimeoutException, sandbox.commands.run("sleep 3601", timeout=1))

    async def is_over():
        return not [process for process in await sandbox.commands.list() if "sleep 3601" in process.args]

    await eventually_later(lambda: "its end", is_over)
    handle = await sandbox.commands.run("sleep 3600", background=True)
    equal(await handle.kill(), True)
    error = await raises_later(CommandExitException, handle.wait())
    equal((error.exit_code, error.error), (-1, "signal: killed"))
    equal(await sandbox.commands.kill(handle.pid), False)


@case
async def run_beside_one_another(sandbox):
    answers = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(50)))
    equal([answer.stdout for answer in answers], [f"{number}\n" for number in range(50)])


@case
async def have_terminals(sandbox):
    seen = []
    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=seen.append, envs={"FRUIT": "apple"})
    await sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=110))
    await sandbox.pty.send_stdin(handle.pid, b"echo $FRUIT-$((6 * 7)); stty size; exit\n")
    await handle.wait()
    text = b"".join(seen).decode()
    assert "apple-42" in text and "40 110" in text, text
    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=lambda _: None)
    equal((await sandbox.pty.kill(handle.pid), await sandbox.pty.kill(999999)), (True, False))
