"""Sandboxes come, are looked at, are listed, wait and go."""

import datetime
import time

from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from cases import case, equal, eventually, raises, sdk_at_least


# Older ones have another word for it.
FILES_ALONE = {"mode": "filesystem"} if sdk_at_least(2, 63) else {"keep_memory": False}


def ids(paginator):
    found = []
    while paginator.has_next:
        found += [sandbox.sandbox_id for sandbox in paginator.next_items()]
    return found


@case
def is_created_and_killed():
    sandbox = Sandbox.create()
    assert sandbox.sandbox_id.isalnum(), sandbox.sandbox_id
    assert sandbox.is_running()
    equal(sandbox.kill(), True)
    equal(sandbox.kill(), False)
    equal(Sandbox.kill(sandbox.sandbox_id), False)
    assert not sandbox.is_running()


@case
def tells_what_it_is():
    before = datetime.datetime.now(datetime.timezone.utc)
    with Sandbox.create(timeout=600, metadata={"purpose": "a & b = ü"}) as sandbox:
        info = sandbox.get_info()
        equal(info.sandbox_id, sandbox.sandbox_id)
        equal(info.state, SandboxState.RUNNING)
        equal(info.metadata, {"purpose": "a & b = ü"})
        assert info.cpu_count >= 1 and info.memory_mb >= 64, info
        assert abs((info.started_at - before).total_seconds()) < 120, info
        assert 590 <= (info.end_at - info.started_at).total_seconds() <= 610, info


@case
def has_the_environment_it_was_given():
    with Sandbox.create(envs={"FRUIT": "apple", "TREE": "a 'b' \"c\" $d"}) as sandbox:
        equal(sandbox.commands.run("echo $FRUIT/$TREE").stdout, "apple/a 'b' \"c\" $d\n")
        equal(sandbox.commands.run("echo $FRUIT", envs={"FRUIT": "pear"}).stdout, "pear\n")


@case
def lives_longer_when_asked():
    with Sandbox.create(timeout=60) as sandbox:
        first = sandbox.get_info().end_at
        sandbox.set_timeout(600)
        later = sandbox.get_info().end_at
        assert (later - first).total_seconds() > 500, (first, later)
        sandbox.set_timeout(120)
        assert sandbox.get_info().end_at < later


@case
def is_killed_when_its_time_is_over():
    sandbox = Sandbox.create(timeout=1)
    deadline = time.monotonic() + 60
    while sandbox.is_running():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.1)
    equal(sandbox.kill(), False)


@case
def is_found_by_its_metadata():
    with Sandbox.create(metadata={"owner": "ann=bob&c", "kind": "x"}) as ann:
        with Sandbox.create(metadata={"owner": "eve", "kind": "x"}) as eve:
            one = ids(Sandbox.list(query=SandboxQuery(metadata={"owner": "ann=bob&c"})))
            equal(one, [ann.sandbox_id])
            both = ids(Sandbox.list(query=SandboxQuery(metadata={"kind": "x"})))
            equal(set(both), {ann.sandbox_id, eve.sandbox_id})
            none = ids(Sandbox.list(query=SandboxQuery(metadata={"kind": "x", "owner": "nobody"})))
            equal(none, [])


@case
def is_listed_in_pages():
    made = [Sandbox.create(metadata={"pages": "yes"}) for _ in range(5)]
    try:
        query = SandboxQuery(metadata={"pages": "yes"}, state=[SandboxState.RUNNING])
        paginator = Sandbox.list(query=query, limit=2)
        sizes, found = [], []
        while paginator.has_next:
            page = paginator.next_items()
            sizes.append(len(page))
            found += [sandbox.sandbox_id for sandbox in page]
        equal(sizes, [2, 2, 1])
        equal(found, [sandbox.sandbox_id for sandbox in reversed(made)])
        equal(ids(Sandbox.list(query=SandboxQuery(metadata={"pages": "yes"}, state=[SandboxState.PAUSED]))), [])
    finally:
        for sandbox in made:
            sandbox.kill()


@case
def is_found_again_by_its_id(sandbox):
    sandbox.files.write("note", "kept")
    again = Sandbox.connect(sandbox.sandbox_id)
    equal(again.files.read("note"), "kept")


@case
def pauses_and_goes_on_where_it_was(sandbox):
    sandbox.files.write("note", "kept")
    counter = sandbox.commands.run("while true; do echo x >>ticks; sleep 0.05; done", background=True)
    boot = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    sandbox.pause()
    equal(sandbox.get_info().state, SandboxState.PAUSED)
    assert sandbox.sandbox_id in ids(Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])))
    again = Sandbox.connect(sandbox.sandbox_id)
    equal(again.get_info().state, SandboxState.RUNNING)
    equal(again.files.read("note"), "kept")
    equal(again.files.read("/proc/sys/kernel/random/boot_id"), boot)
    assert counter.pid in [process.pid for process in again.commands.list()]
    again.files.remove("ticks")
    again.commands.run("until test -s ticks; do sleep 0.05; done")


@case
def pauses_without_memory_and_goes_on_with_its_files(sandbox):
    sandbox.files.write("note", "kept")
    counter = sandbox.commands.run("sleep 3600", background=True)
    equal(sandbox.pause(**FILES_ALONE), True)
    equal(sandbox.pause(**FILES_ALONE), False)
    equal(sandbox.get_info().state, SandboxState.PAUSED)
    assert sandbox.sandbox_id in ids(Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])))
    snapshot = sandbox.create_snapshot()
    with Sandbox.create(snapshot.snapshot_id) as copy:
        equal(copy.files.read("note"), "kept")
    equal(sandbox.get_info().state, SandboxState.PAUSED)
    again = Sandbox.connect(sandbox.sandbox_id)
    equal(again.get_info().state, SandboxState.RUNNING)
    equal(again.sandbox_id, sandbox.sandbox_id)
    equal(again.files.read("note"), "kept")
    assert counter.pid not in [process.pid for process in again.commands.list()]
    # The one that knew it before reaches it, too: its token is the same.
    equal(sandbox.files.read("note"), "kept")
    if not sdk_at_least(2, 63):
        return
    counter = sandbox.commands.run("sleep 3600", background=True)
    equal(sandbox.beta_pause(), True)
    rebooted = Sandbox.connect(sandbox.sandbox_id, on_resume="reboot")
    equal(rebooted.files.read("note"), "kept")
    assert counter.pid not in [process.pid for process in rebooted.commands.list()]


@case
def may_be_paused_without_memory_when_its_time_is_up():
    lifecycle = {"on_timeout": {"action": "pause", **FILES_ALONE}}
    with Sandbox.create(timeout=600, lifecycle=lifecycle) as sandbox:
        equal(sandbox.get_info().lifecycle["on_timeout"], "pause")
        sandbox.files.write("note", "kept")
        sandbox.set_timeout(0)
        eventually(lambda: "its pause", lambda: sandbox.get_info().state == SandboxState.PAUSED)
        again = Sandbox.connect(sandbox.sandbox_id)
        equal(again.files.read("note"), "kept")


@case
def sleeps_when_nobody_uses_it_and_is_woken_by_its_next_use():
    with Sandbox.create(timeout=600, metadata={"offleash.idle": "1s"}) as sandbox:
        sandbox.files.write("note", "kept")
        eventually(lambda: "its sleep", lambda: sandbox.get_info().state == SandboxState.PAUSED)
        equal(sandbox.files.read("note"), "kept")
        equal(sandbox.get_info().state, SandboxState.RUNNING)
        eventually(lambda: "its sleep", lambda: sandbox.get_info().state == SandboxState.PAUSED)
        equal(sandbox.commands.run("cat note").stdout, "kept")
    for value in ["soon", "-1s"]:
        raises(SandboxException, Sandbox.create, metadata={"offleash.idle": value})


@case
def is_forked_with_its_files(sandbox):
    if not hasattr(Sandbox, "fork"):
        # Older ones know nothing of it.
        return
    sandbox.files.write("note", "of the source")
    sandbox.commands.run("mkdir -p deep/er && ln -s ../note deep/link && sudo -n true 2>/dev/null; echo x >/tmp/x")
    counter = sandbox.commands.run("sleep 3600", background=True)
    forks = sandbox.fork(count=2, timeout=120)
    forks += Sandbox.fork(sandbox.sandbox_id)
    try:
        equal(len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}), 4)
        for fork in forks:
            equal(fork.files.read("note"), "of the source")
            equal(fork.commands.run("cat deep/link /tmp/x").stdout, "of the sourcex\n")
            assert counter.pid not in [process.pid for process in fork.commands.list()]
            fork.files.write("note", fork.sandbox_id)
        for fork in forks:
            equal(fork.files.read("note"), fork.sandbox_id)
        equal(sandbox.files.read("note"), "of the source")
        left = forks[0].get_info().end_at - datetime.datetime.now(datetime.timezone.utc)
        assert left <= datetime.timedelta(seconds=120), left
    finally:
        for fork in forks:
            fork.kill()
    sandbox.pause()
    for fork in sandbox.fork():
        try:
            equal(fork.files.read("note"), "of the source")
        finally:
            fork.kill()
    equal(sandbox.get_info().state, SandboxState.PAUSED)
    raises(NotFoundException, Sandbox.fork, "inobody")


@case
def is_not_there_for_commands_when_it_was_killed():
    sandbox = Sandbox.create()
    sandbox.kill()
    raises((TimeoutException, NotFoundException), sandbox.commands.run, "true")
    raises(Exception, sandbox.files.read, "note")
    raises(NotFoundException, sandbox.get_info)
    raises(NotFoundException, sandbox.set_timeout, 60)
    raises(NotFoundException, Sandbox.connect, sandbox.sandbox_id)


@case
def cannot_be_made_with_a_key_that_nobody_has():
    wrong = "e2b_" + 40 * "0"
    raises(AuthenticationException, Sandbox.create, api_key=wrong)
    raises(AuthenticationException, Sandbox.list(api_key=wrong).next_items)


@case
def cannot_be_made_of_a_template_that_is_not_there():
    raises((NotFoundException, SandboxException), Sandbox.create, template="no-such-template")


@case
def is_measured(sandbox):
    deadline = time.monotonic() + 60
    while not (metrics := sandbox.get_metrics()):
        assert time.monotonic() < deadline, "no metrics"
        time.sleep(0.2)
    last = metrics[-1]
    assert last.cpu_count >= 1 and last.mem_total > 0 and last.disk_total > 0, last
    assert 0 <= last.mem_used <= last.mem_total, last


@case
def is_made_of_a_snapshot():
    with Sandbox.create(envs={"FRUIT": "apple"}) as sandbox:
        sandbox.files.write("/home/user/one", "first")
        first = sandbox.create_snapshot()
        sandbox.files.write("/home/user/one", "second")
        second = sandbox.create_snapshot("e2b-of-tests")
        assert any(name.startswith("e2b-of-tests") for name in second.names), second
        equal(sandbox.commands.run("cat one").stdout, "second")
        of_sandbox = []
        paginator = sandbox.list_snapshots(limit=1)
        while paginator.has_next:
            of_sandbox += [snapshot.snapshot_id for snapshot in paginator.next_items()]
        equal(of_sandbox, [second.snapshot_id, first.snapshot_id])
    made = [Sandbox.create(which) for which in (first.snapshot_id, second.snapshot_id, "e2b-of-tests")]
    try:
        found = [sandbox.commands.run("cat one; echo /$FRUIT").stdout for sandbox in made]
        equal(found, ["first/apple\n", "second/apple\n", "second/apple\n"])
        made[1].files.write("/home/user/one", "mine")
        equal(made[2].files.read("/home/user/one"), "second")
        equal(Sandbox.delete_snapshot(second.snapshot_id), True)
        equal(Sandbox.delete_snapshot(second.snapshot_id), False)
        equal(made[2].files.read("/home/user/one"), "second")
        raises(SandboxException, lambda: Sandbox.create(second.snapshot_id))
    finally:
        for sandbox in made:
            sandbox.kill()
    equal(Sandbox.delete_snapshot(first.snapshot_id), True)
    raises(NotFoundException, lambda: made[0].create_snapshot())
