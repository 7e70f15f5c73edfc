"""Sandboxes come, are looked at, are listed, wait and go, through the asynchronous half of the SDK."""

import asyncio
import datetime

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    NotFoundException,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from cases import case, equal, eventually_later, raises_later


async def ids(paginator):
    found = []
    while paginator.has_next:
        found += [sandbox.sandbox_id for sandbox in await paginator.next_items()]
    return found


@case
async def lives_and_dies():
    before = datetime.datetime.now(datetime.timezone.utc)
    sandbox = await AsyncSandbox.create(timeout=600, metadata={"async": "a & b = ü"}, envs={"FRUIT": "apple"})
    assert await sandbox.is_running()
    info = await sandbox.get_info()
    equal((info.sandbox_id, info.state), (sandbox.sandbox_id, SandboxState.RUNNING))
    equal(info.metadata, {"async": "a & b = ü"})
    assert info.cpu_count >= 1 and info.memory_mb >= 64, info
    assert abs((info.started_at - before).total_seconds()) < 120, info
    equal((await sandbox.commands.run("echo $FRUIT")).stdout, "apple\n")
    equal((await sandbox.commands.run("echo $FRUIT", envs={"FRUIT": "pear"})).stdout, "pear\n")
    equal(await sandbox.kill(), True)
    equal(await sandbox.kill(), False)
    equal(await AsyncSandbox.kill(sandbox.sandbox_id), False)
    assert not await sandbox.is_running()
    await raises_later(NotFoundException, sandbox.get_info())
    await raises_later(NotFoundException, sandbox.set_timeout(60))
    await raises_later(NotFoundException, AsyncSandbox.connect(sandbox.sandbox_id))
    await raises_later((TimeoutException, NotFoundException), sandbox.commands.run("true"))
    await raises_later(Exception, sandbox.files.read("note"))


@case
async def lives_as_long_as_it_is_asked_to(sandbox):
    first = (await sandbox.get_info()).end_at
    await sandbox.set_timeout(3000)
    assert (await sandbox.get_info()).end_at > first
    short = await AsyncSandbox.create(timeout=1)

    async def is_over():
        return not await short.is_running()

    await eventually_later(lambda: "its end", is_over)
    equal(await short.kill(), False)


@case
async def is_found_by_its_metadata_and_in_pages():
    made = [await AsyncSandbox.create(metadata={"of": "async", "number": str(number)}) for number in range(3)]
    try:
        query = SandboxQuery(metadata={"of": "async"}, state=[SandboxState.RUNNING])
        paginator = AsyncSandbox.list(query=query, limit=2)
        pages = [await paginator.next_items(), await paginator.next_items()]
        equal([len(page) for page in pages], [2, 1])
        assert not paginator.has_next
        found = [sandbox.sandbox_id for page in pages for sandbox in page]
        equal(found, [sandbox.sandbox_id for sandbox in reversed(made)])
        one = SandboxQuery(metadata={"of": "async", "number": "1"})
        equal(await ids(AsyncSandbox.list(query=one)), [made[1].sandbox_id])
        equal(await ids(AsyncSandbox.list(query=SandboxQuery(metadata={"of": "nobody"}))), [])
    finally:
        await asyncio.gather(*(sandbox.kill() for sandbox in made))


@case
async def pauses_and_goes_on_where_it_was(sandbox):
    await sandbox.files.write("note", "kept")
    counter = await sandbox.commands.run("while true; do echo x >>ticks; sleep 0.05; done", background=True)
    await sandbox.pause()
    equal((await sandbox.get_info()).state, SandboxState.PAUSED)
    assert sandbox.sandbox_id in await ids(AsyncSandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])))
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    equal((await again.get_info()).state, SandboxState.RUNNING)
    equal(await again.files.read("note"), "kept")
    assert counter.pid in [process.pid for process in await again.commands.list()]
    await again.files.remove("ticks")
    await again.commands.run("until test -s ticks; do sleep 0.05; done")


@case
async def cannot_be_made_of_what_is_not_there():
    await raises_later(AuthenticationException, AsyncSandbox.create(api_key="e2b_" + 40 * "0"))
    await raises_later(SandboxException, AsyncSandbox.create(template="no-such-template"))


@case
async def is_measured(sandbox):
    last = (await eventually_later(lambda: "metrics", sandbox.get_metrics))[-1]
    assert last.cpu_count >= 1 and last.mem_total > 0 and last.disk_total > 0, last
    assert 0 <= last.mem_used <= last.mem_total, last


@case
async def is_made_of_a_snapshot():
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.files.write("/home/user/one", "first")
        snapshot = await sandbox.create_snapshot()
        paginator = AsyncSandbox.list_snapshots(sandbox_id=sandbox.sandbox_id)
        equal([found.snapshot_id for found in await paginator.next_items()], [snapshot.snapshot_id])
    made = await asyncio.gather(*[AsyncSandbox.create(snapshot.snapshot_id) for _ in range(2)])
    for sandbox in made:
        equal(await sandbox.files.read("/home/user/one"), "first")
        equal(await sandbox.kill(), True)
    equal(await AsyncSandbox.delete_snapshot(snapshot.snapshot_id), True)
    equal(await AsyncSandbox.delete_snapshot(snapshot.snapshot_id), False)
