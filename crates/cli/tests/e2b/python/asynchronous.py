"""The same through the asynchronous half of the SDK, whose streams are others."""

import asyncio

from e2b import AsyncSandbox, CommandExitException, FilesystemEventType, NotFoundException, SandboxQuery, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize

from cases import case, equal, raises_later


@case
async def lives():
    sandbox = await AsyncSandbox.create(metadata={"async": "yes"}, envs={"A": "b"})
    assert await sandbox.is_running()
    paginator = AsyncSandbox.list(query=SandboxQuery(metadata={"async": "yes"}))
    equal([found.sandbox_id for found in await paginator.next_items()], [sandbox.sandbox_id])
    equal((await sandbox.get_info()).metadata, {"async": "yes"})
    await sandbox.set_timeout(600)
    await sandbox.pause()
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    equal((await again.commands.run("echo $A")).stdout, "b\n")
    equal(await again.kill(), True)
    equal(await again.kill(), False)
    await raises_later(NotFoundException, again.get_info())
    await raises_later((TimeoutException, NotFoundException), again.commands.run("true"))


@case
async def commands_answer(sandbox):
    equal((await sandbox.commands.run("echo a; echo b >&2")).stderr, "b\n")
    error = await raises_later(CommandExitException, sandbox.commands.run("exit 9"))
    equal(error.exit_code, 9)
    handle = await sandbox.commands.run("cat", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "hello")
    await sandbox.commands.close_stdin(handle.pid)
    equal((await handle.wait()).stdout, "hello")
    answers = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(50)))
    equal([answer.stdout for answer in answers], [f"{number}\n" for number in range(50)])
    await raises_later(TimeoutException, sandbox.commands.run("sleep 3600", timeout=1))
    handle = await sandbox.commands.run("sleep 3600", background=True)
    equal(await handle.kill(), True)


@case
async def files_are_kept(sandbox):
    await sandbox.files.write("a", b"\0\1\2")
    equal(bytes(await sandbox.files.read("a", format="bytes")), b"\0\1\2")
    parts = [part async for part in await sandbox.files.read("a", format="stream")]
    equal(b"".join(parts), b"\0\1\2")
    equal([entry.name for entry in await sandbox.files.list("/home/user") if entry.name == "a"], ["a"])
    await sandbox.files.rename("a", "b")
    await sandbox.files.remove("b")
    await raises_later(NotFoundException, sandbox.files.read("b"))


@case
async def directories_are_watched(sandbox):
    await sandbox.files.make_dir("w")
    seen, ended = [], asyncio.Event()
    watch = await sandbox.files.watch_dir("w", on_event=lambda event: seen.append(event), on_exit=lambda _: ended.set())
    await sandbox.files.write("w/a", "x")
    while len(seen) < 3:
        await asyncio.sleep(0.02)
    kinds = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    equal([(event.name, event.type) for event in seen], [("a", kind) for kind in kinds])
    await watch.stop()


@case
async def terminals_answer(sandbox):
    seen = []
    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=lambda data: seen.append(data))
    await sandbox.pty.send_stdin(handle.pid, b"echo $((6 * 7))x\nexit\n")
    await handle.wait()
    assert b"42x" in b"".join(seen), seen
