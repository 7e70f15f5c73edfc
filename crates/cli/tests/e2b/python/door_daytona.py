"""Daytona's SDK, unchanged, against the door that speaks its API."""

import asyncio
import os
import time

from daytona import (
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    FileUpload,
    ListSandboxesQuery,
    SessionExecuteRequest,
    VolumeMount,
)
from daytona.common.pty import PtySize

url, key = os.environ["E2B_API_URL"], os.environ["E2B_API_KEY"]


def refused(call, *arguments, kind=DaytonaError):
    try:
        answer = call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{call} answered {answer!r}")


def eventually(what, look, wanted):
    until = time.monotonic() + 90
    while (seen := look()) != wanted:
        assert time.monotonic() < until, (what, seen)
        time.sleep(0.05)


def lives(daytona):
    """Made, found by id, name and label, changed."""
    wanted = CreateSandboxFromSnapshotParams(
        language="python", name="daytona-box", labels={"task": "door"}, env_vars={"GREETING": "hello"}
    )
    sandbox = daytona.create(wanted)
    assert sandbox.state == "started" and sandbox.auto_stop_interval == 15, sandbox
    assert daytona.get(sandbox.id).name == "daytona-box"
    assert daytona.get("daytona-box").id == sandbox.id
    listed = list(daytona.list(ListSandboxesQuery(labels={"task": "door"})))
    assert [one.id for one in listed] == [sandbox.id], listed
    assert list(daytona.list(ListSandboxesQuery(labels={"task": "other"}))) == []
    assert sandbox.set_labels({"task": "changed"}) == {"task": "changed"}
    sandbox.set_autostop_interval(30)
    assert daytona.get(sandbox.id).auto_stop_interval == 30
    return sandbox


def runs(sandbox):
    """Commands and code."""
    told = sandbox.process.exec("echo $GREETING $X; echo err >&2; exit 3", env={"X": "you"})
    assert (told.exit_code, told.result) == (3, "hello you\nerr\n"), told
    assert sandbox.process.exec("pwd", cwd="/tmp").result == "/tmp\n"
    assert "408" in str(refused(lambda: sandbox.process.exec("sleep 60", timeout=1)).status_code)
    told = sandbox.process.code_run("import sys\nprint(sum(range(10)), sys.version_info[0])")
    assert (told.exit_code, told.artifacts.stdout) == (0, "45 3\n"), told
    assert sandbox.process.code_run("raise SystemExit(4)").exit_code == 4


def keeps_sessions(sandbox):
    """A shell that keeps its state, and commands in it."""
    process = sandbox.process
    process.create_session("work")
    assert refused(process.create_session, "work").status_code == 409

    def execute(command, run_async=False):
        return process.execute_session_command("work", SessionExecuteRequest(command=command, run_async=run_async))

    execute("cd /tmp && export KEPT=yes")
    told = execute("echo $PWD $KEPT; echo bad >&2; (exit 5)")
    assert (told.exit_code, told.stdout, told.stderr) == (5, "/tmp yes\n", "bad\n"), told
    begun = execute("read line; echo got $line; sleep 0.1; echo done", run_async=True)
    process.send_session_command_input("work", begun.cmd_id, "input\n")
    eventually("its end", lambda: process.get_session_command("work", begun.cmd_id).exit_code, 0)
    logs = process.get_session_command_logs("work", begun.cmd_id)
    assert logs.stdout == "got input\ndone\n", logs
    # One that the shell has not come to is given its input when it begins.
    execute("sleep 0.5", run_async=True)
    later = execute("read line; echo later $line", run_async=True)
    process.send_session_command_input("work", later.cmd_id, "input\n")
    eventually("its end", lambda: process.get_session_command("work", later.cmd_id).exit_code, 0)
    assert process.get_session_command_logs("work", later.cmd_id).stdout == "later input\n"
    shown = process.get_session("work")
    assert [command.exit_code for command in shown.commands] == [0, 5, 0, 0, 0], shown
    assert [session.session_id for session in process.list_sessions()] == ["work"]
    process.delete_session("work")
    assert process.list_sessions() == []
    refused(process.get_session, "work", kind=DaytonaNotFoundError)
    # The name of one that was deleted is free.
    for _ in range(10):
        process.create_session("again")
        process.delete_session("again")
    process.create_session("short")
    told = process.execute_session_command("short", SessionExecuteRequest(command="echo bye; exit 3"))
    assert (told.exit_code, told.stdout) == (3, "bye\n"), told
    refused(process.get_session, "short", kind=DaytonaNotFoundError)
    for name in ["../x", "a/b", "a'b"]:
        assert refused(process.create_session, name).status_code == 400, name


def follows_logs(sandbox):
    """What a command writes, as it does."""
    process = sandbox.process
    process.create_session("followed")

    def followed(line):
        begun = process.execute_session_command("followed", SessionExecuteRequest(command=line, run_async=True))
        out, err = [], []
        asyncio.run(process.get_session_command_logs_async("followed", begun.cmd_id, out.append, err.append))
        return "".join(out), "".join(err), begun.cmd_id

    text = "ä" * 40_000
    out, err, command = followed(f"echo one; echo bad >&2; sleep 0.2; echo two; printf {text}; (exit 4)")
    assert (out, err) == (f"one\ntwo\n{text}", "bad\n"), (out[:20], err)
    assert process.get_session_command("followed", command).exit_code == 4
    # The end of the shell is that of its command.
    assert followed("echo bye; sleep 0.2; exit 3")[:2] == ("bye\n", "")
    refused(process.get_session, "followed", kind=DaytonaNotFoundError)


def has_terminals(sandbox):
    """A shell that is typed into."""
    process = sandbox.process

    def until(handle, wanted):
        shown = b""
        for piece in handle:
            shown += piece
            if wanted in shown:
                return
        raise AssertionError(shown)

    terminal = process.create_pty_session("one", cwd="/tmp", envs={"A": "b c"}, pty_size=PtySize(cols=100, rows=30))
    shown = []
    terminal.send_input("stty size; echo $A-$PWD; exit 7\n")
    result = terminal.wait(shown.append)
    assert result.exit_code == 7, result
    assert b"30 100" in b"".join(shown) and b"b c-/tmp" in b"".join(shown), shown
    kept = process.create_pty_session("kept")
    assert [one.id for one in process.list_pty_sessions()] == ["kept"]
    refused(process.create_pty_session, "kept", kind=DaytonaConflictError)
    kept.resize(PtySize(cols=132, rows=50))
    kept.disconnect()
    again = process.connect_pty_session("kept")
    again.send_input("stty size\n")
    until(again, b"50 132")
    info = process.get_pty_session_info("kept")
    assert (info.cols, info.rows, info.active, info.cwd) == (132, 50, True, sandbox.get_work_dir()), info
    again.kill()
    assert again.wait().exit_code == 137
    refused(process.get_pty_session_info, "kept", kind=DaytonaNotFoundError)
    for name in ["../x", "a/b"]:
        assert refused(process.create_pty_session, name).status_code == 400, name


def keeps_contexts(sandbox):
    """Code that keeps its state."""
    interpreter = sandbox.code_interpreter
    heard = []
    told = interpreter.run_code("x = 41; import sys; print(x); print('bad', file=sys.stderr)", on_stdout=lambda it: heard.append(it.output))
    assert (told.stdout, told.stderr, told.error, heard) == ("41\n", "bad\n", None, ["41\n"]), told
    assert interpreter.run_code("import os; print(x + 1, os.environ['A'])", envs={"A": "b"}).stdout == "42 b\n"
    context = interpreter.create_context("/tmp")
    assert [one.id for one in interpreter.list_contexts()] == [context.id]
    told = interpreter.run_code("import os; print(os.getcwd()); x", context=context)
    assert (told.stdout, told.error.name) == ("/tmp\n", "NameError"), told
    refused(lambda: interpreter.run_code("import time; time.sleep(60)", timeout=1), kind=DaytonaTimeoutError)
    interpreter.delete_context(context)
    refused(lambda: interpreter.run_code("1", context=context))


def has_volumes(sandbox):
    """What outlives sandboxes."""
    refused(daytona.volume.get, "kept", kind=DaytonaNotFoundError)
    volume = daytona.volume.get("kept", create=True)
    assert (volume.state, daytona.volume.get("kept").id) == ("ready", volume.id), volume
    assert [one.name for one in daytona.volume.list()] == ["kept"]
    mounts = [VolumeMount(volume_id=volume.id, mount_path="/data")]
    for command, answer in [("echo there >/data/a", ""), ("cat /data/a", "there\n")]:
        other = daytona.create(CreateSandboxFromSnapshotParams(volumes=mounts))
        assert other.process.exec(command).result == answer
        other.delete()
    daytona.volume.delete(volume)
    assert daytona.volume.list() == []


def moves_files(sandbox):
    """In, out, searched and changed."""
    fs = sandbox.fs
    home = sandbox.get_work_dir()
    fs.create_folder("data", "750")
    assert fs.get_file_info("data").permissions == "0750"
    large = os.urandom(3 << 20)
    names = ["data/a.txt", 'data/ä "b".bin']
    fs.upload_files([FileUpload(b"one TODO two\n", names[0]), FileUpload(large, names[1])])
    assert fs.download_file(names[0]) == b"one TODO two\n"
    assert fs.download_file(names[1]) == large
    assert b"".join(fs.download_file_stream(names[0])) == b"one TODO two\n"
    refused(fs.download_file, "data/missing", kind=DaytonaNotFoundError)
    # It says that it is empty, and is not.
    assert b"Name:" in fs.download_file("/proc/1/status")
    listed = {entry.name: entry.size for entry in fs.list_files("data")}
    assert listed == {"a.txt": 13, 'ä "b".bin': len(large)}, listed
    found = fs.find_files("data", "TODO")
    assert [(one.line, one.content) for one in found] == [(1, "one TODO two")], found
    assert fs.search_files("data", "*.txt").files == [f"{home}/data/a.txt"]
    assert fs.find_files("data", "no such text") == []
    replaced = fs.replace_in_files(["data/a.txt", "data/missing"], "TODO", "DONE")
    assert [one.success for one in replaced] == [True, False], replaced
    assert fs.download_file("data/a.txt") == b"one DONE two\n"
    fs.set_file_permissions("data/a.txt", mode="600")
    fs.move_files("data/a.txt", "/tmp/moved.txt")
    assert fs.get_file_info("/tmp/moved.txt").permissions == "0600"
    # Names that lead upwards end at the root, as in any sandbox; NUL leads nowhere.
    assert fs.get_file_info("../../../../../../tmp/moved.txt").size == 13
    assert refused(fs.get_file_info, "a\0b").status_code == 400
    assert refused(fs.delete_file, "data").status_code == 400
    fs.delete_file("data", recursive=True)
    refused(fs.get_file_info, "data", kind=DaytonaNotFoundError)


def works_with_git(sandbox):
    """A repository that another one is cloned from, both inside."""
    git = sandbox.git
    git.init("origin", initial_branch="main")
    sandbox.fs.upload_file(b"text\n", "origin/a.txt")
    assert [(one.name, one.worktree) for one in git.status("origin").file_status] == [("a.txt", "Untracked")]
    git.add("origin", ["a.txt"])
    commit = git.commit("origin", "first", "Someone", "someone@example.com")
    assert len(commit.sha) == 40
    git.clone(f"{sandbox.get_work_dir()}/origin", "copy")
    git.create_branch("copy", "feature")
    status = git.status("copy")
    assert (status.current_branch, status.file_status) == ("feature", []), status
    branches = git.branches("copy")
    assert (sorted(branches.branches), branches.current) == (["feature", "main"], "feature"), branches
    git.checkout_branch("copy", "main")
    git.delete_branch("copy", "feature")
    assert git.branches("copy").branches == ["main"]
    assert [remote.name for remote in git.remotes("copy").remotes] == ["origin"]
    git.configure_user("A", "a@example.com", scope="local", path="copy")
    assert git.get_config("user.name", scope="local", path="copy") == "A"
    for bad in ["--upload-pack=touch /tmp/owned", "-x"]:
        assert refused(git.clone, bad, "bad").status_code == 400


def refuses(sandbox):
    """What is not there says so."""
    for call in [
        lambda: sandbox.create_lsp_server("python", "x").start(),
        sandbox.computer_use.start,
        sandbox.create_ssh_access,
        sandbox.archive,
    ]:
        error = refused(call)
        assert error.status_code == 501, error


def ends(daytona, sandbox):
    """Stopped, its files stay; deleted, it is gone."""
    sandbox.fs.upload_file(b"kept", "kept.txt")
    preview = sandbox.get_preview_link(8000)
    assert sandbox.id in preview.url and preview.token, preview
    sandbox.stop()
    assert sandbox.state == "stopped", sandbox.state
    sandbox.start()
    assert sandbox.state == "started"
    assert sandbox.fs.download_file("kept.txt") == b"kept"
    sandbox.delete()
    assert sandbox.state == "destroyed"
    refused(daytona.get, sandbox.id, kind=DaytonaNotFoundError)
    assert list(daytona.list()) == []


daytona = Daytona(DaytonaConfig(api_key=key, api_url=f"{url}/api", target="us"))
sandbox = lives(daytona)
for part in [runs, keeps_sessions, follows_logs, has_terminals, keeps_contexts, has_volumes, moves_files, works_with_git, refuses]:
    began = time.monotonic()
    part(sandbox)
    print(part.__name__, round(time.monotonic() - began, 2), flush=True)
ends(daytona, sandbox)
# Its threads would wait for events of a server that has none.
print("done", flush=True)
os._exit(0)
