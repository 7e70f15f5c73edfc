"""A sandbox of level `simulated`: what its users do with it, and what it says of the rest."""

import io
import threading

from e2b import CommandExitException, FileType, FilesystemEventType, NotFoundException, Sandbox, SandboxException, TimeoutException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from cases import case, equal, eventually, raises, says, sdk_at_least


@case
def answers_what_commands_wrote_and_how_they_ended(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))
    error = raises(CommandExitException, sandbox.commands.run, "echo before; exit 3")
    equal((error.exit_code, error.stdout), (3, "before\n"))
    out, err = [], []
    sandbox.commands.run("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c", on_stdout=out.append, on_stderr=err.append)
    equal(("".join(out), "".join(err)), ("a\nc\n", "b\n"))


@case
def runs_commands_as_who_where_and_with_what_is_asked_for(sandbox):
    equal(sandbox.commands.run("echo $HOME:$USER:$LOGNAME; pwd").stdout, "/home/user:user:user\n/home/user\n")
    equal(sandbox.commands.run("echo $HOME:$USER; whoami", user="root").stdout.split("\n")[0], "/root:root")
    equal(sandbox.commands.run("pwd; echo $A", cwd="/tmp", envs={"A": "b c"}).stdout, "/tmp\nb c\n")
    error = raises(InvalidArgumentException, sandbox.commands.run, "true", cwd="/not/there")
    says(error, "/not/there", "does not exist")
    says(raises(AuthenticationException, sandbox.commands.run, "true", user="nobody-there"), "invalid username")


@case
def runs_several_at_once(sandbox):
    handles = [
        sandbox.commands.run(f"until test -e go; do sleep 0.02; done; echo {number}", background=True) for number in range(8)
    ]
    equal(len({handle.pid for handle in handles}), 8)
    equal(len([process for process in sandbox.commands.list() if "until" in str(process.args)]), 8)
    sandbox.files.write("go", "")
    equal([handle.wait().stdout for handle in handles], [f"{number}\n" for number in range(8)])


@case
def reads_its_input_once_that_is_complete(sandbox):
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "é")
    for _ in range(3):
        sandbox.commands.send_stdin(handle.pid, 100_000 * "x")
    sandbox.commands.close_stdin(handle.pid)
    equal(handle.wait().stdout.strip(), "300002")


@case
def runs_on_when_nobody_listens_and_is_killed(sandbox):
    handle = sandbox.commands.run("echo start; until test -e stop; do sleep 0.02; done; exit 7", background=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.files.write("stop", "")
    equal(raises(CommandExitException, again.wait).exit_code, 7)
    handle = sandbox.commands.run("sleep 3600", background=True)
    equal(sandbox.commands.kill(handle.pid), True)
    equal(raises(CommandExitException, handle.wait).exit_code, -1)
    equal(sandbox.commands.kill(handle.pid), False)
    raises(TimeoutException, sandbox.commands.run, "while :; do :; done", timeout=1)
    equal(sandbox.commands.run("echo alive").stdout, "alive\n")


@case
def keeps_files_as_they_were_written(sandbox):
    everything = bytes(range(256)) * 4096
    for path, data in [("a.txt", "text ä"), ("/tmp/b/c/d.bin", everything), ("~/stream", io.BytesIO(everything)), ("empty", "")]:
        equal(sandbox.files.write(path, data).type, FileType.FILE)
        wanted = data.encode() if isinstance(data, str) else everything
        equal(bytes(sandbox.files.read(path, format="bytes")), wanted)
        equal(b"".join(sandbox.files.read(path, format="stream")), wanted)
    equal(sandbox.commands.run("sha256sum < /tmp/b/c/d.bin | cut -c 1-8; cat a.txt").stdout[8:], "\ntext ä")
    sandbox.commands.run("printf 'of a command' > made")
    equal(sandbox.files.read("made"), "of a command")
    says(raises(NotFoundException, sandbox.files.read, "/gone"), "path '/gone' does not exist")
    names = [f"many/{number:03} é.txt" for number in range(100)]
    sandbox.files.write_files([{"path": name, "data": name} for name in names])
    equal((len(sandbox.files.list("many")), sandbox.files.read(names[77])), (100, names[77]))


@case
def lists_renames_and_removes_files(sandbox):
    for name in ["d/1", "d/2", "d/e/3", "d/e/f/4"]:
        sandbox.files.write(name, name)
    sandbox.commands.run("ln -s /home/user/d/1 d/link; ln -s /nowhere d/broken; chmod 640 d/2")
    names = sorted(entry.name for entry in sandbox.files.list("d"))
    equal(names, ["1", "2", "broken", "e", "link"])
    deep = [entry.path for entry in sandbox.files.list("d", depth=2)]
    assert "/home/user/d/e/f" in deep and "/home/user/d/e/f/4" not in deep, deep
    info = sandbox.files.get_info("d/2")
    equal((info.mode, info.permissions, info.owner, info.size), (0o640, "-rw-r-----", "user", 3))
    equal(sandbox.files.get_info("d/link").symlink_target, "/home/user/d/1")
    equal(sandbox.files.rename("d/1", "new/1").path, "/home/user/new/1")
    equal((sandbox.files.exists("d/1"), sandbox.files.read("new/1")), (False, "d/1"))
    equal((sandbox.files.make_dir("p/q"), sandbox.files.make_dir("p/q")), (True, False))
    raises(InvalidArgumentException, sandbox.files.make_dir, "d/2")
    sandbox.files.remove("d")
    sandbox.files.remove("d")
    equal(sandbox.files.exists("d"), False)
    raises(NotFoundException, sandbox.files.list, "d")


@case
def tells_of_changes_in_a_directory(sandbox):
    sandbox.files.make_dir("w/below")
    watch = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.write("w/f", "x")
    sandbox.commands.run("mkdir w/below/made; mv w/f w/g; rm w/g")
    seen = []

    def all_seen():
        seen.extend((event.name, event.type) for event in watch.get_new_events())
        return ("g", FilesystemEventType.REMOVE) in seen

    eventually(lambda: seen, all_seen)
    for wanted in [
        ("f", FilesystemEventType.CREATE),
        ("f", FilesystemEventType.WRITE),
        ("below/made", FilesystemEventType.CREATE),
        ("f", FilesystemEventType.RENAME),
        ("g", FilesystemEventType.CREATE),
    ]:
        assert wanted in seen, (wanted, seen)
    watch.stop()


@case
def is_paused_and_goes_on(sandbox):
    sandbox.files.write("kept", "x")
    handle = sandbox.commands.run("until test -e go; do sleep 0.02; done; echo went on", background=True)
    handle.disconnect()
    sandbox.pause()
    again = Sandbox.connect(sandbox.sandbox_id)
    equal(again.files.read("kept"), "x")
    connected = again.commands.connect(handle.pid)
    again.files.write("go", "")
    equal(connected.wait().stdout, "went on\n")


@case
def is_what_snapshots_are_made_of(sandbox):
    if not sdk_at_least(2, 40):
        return
    sandbox.commands.run("mkdir -p a/b; echo kept > a/b/c")
    made = sandbox.create_snapshot()
    with Sandbox.create(made.snapshot_id) as copy:
        equal(copy.commands.run("cat a/b/c").stdout, "kept\n")
    Sandbox.delete_snapshot(made.snapshot_id)


@case
def says_of_what_it_does_not_have_which_level_has_it(sandbox):
    from e2b import PtySize

    error = raises(SandboxException, sandbox.pty.create, PtySize(rows=24, cols=80))
    says(error, "simulated", "terminal")
    error = raises(CommandExitException, sandbox.commands.run, "perl -v")
    equal(error.exit_code, 126)
    says(error.stderr, "needs level process")


@case
def outlives_a_reader_that_leaves_and_output_without_end(sandbox):
    handle = sandbox.commands.run("while :; do printf '%01000d' 7; done", background=True)
    taken = 0
    for stdout, _, _ in handle:
        taken += len(stdout or "")
        if taken > 1 << 20:
            break
    handle.disconnect()
    equal(sandbox.commands.run("echo others run").stdout, "others run\n")
    equal(sandbox.commands.kill(handle.pid), True)
    done = threading.Event()
    threading.Thread(target=lambda: (sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x"), done.set())).start()
    eventually(lambda: "the end", done.is_set)
