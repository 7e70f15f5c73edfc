"""The library against a server of its own that it starts itself.

Arguments: documents whose examples are run, too. OFFLEASH_BINARY names the program; XDG_STATE_HOME where its state is.
"""

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import patch

import offleash
from harness import ROOT, case, equal, eventually, main, raises
from offleash import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    ConflictException,
    DaemonException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PermissionDeniedException,
    PtySize,
    Sandbox,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    TimeoutException,
    WriteEntry,
    approvals,
    volumes,
)


@case
def programs_of_a_user_share_one_server():
    def started(_):
        code = "from offleash import run; print(run('echo hi').stdout, end='')"
        return subprocess.run([sys.executable, "-s", "-c", code], capture_output=True, text=True)

    with ThreadPoolExecutor(2) as pool:
        for ended in pool.map(started, range(2)):
            equal((ended.stdout, ended.stderr), ("hi\n", ""))
    assert offleash.daemon.answers(offleash.daemon.private_state() / "api.sock")


@case
def a_server_is_started_in_a_directory_of_ones_own_alone():
    before = os.environ["XDG_STATE_HOME"]
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "precious").write_text("mine")
        state = here / "offleash-library"
        state.mkdir(mode=0o700)
        (state / "serve.log").symlink_to(here / "precious")
        os.environ["XDG_STATE_HOME"] = name
        try:
            raises(DaemonException, offleash.daemon.ensure)
            state.chmod(0o770)
            assert "can be written to" in raises(DaemonException, offleash.daemon.ensure).message
            if os.geteuid() == 0:
                state.chmod(0o700)
                os.chown(state, 4242, 4242)
                assert "belongs to user 4242" in raises(DaemonException, offleash.daemon.ensure).message
                os.chown(here, 4242, 4242)
                os.environ["XDG_STATE_HOME"] = f"{name}/new"
                raises(DaemonException, offleash.daemon.ensure)
        finally:
            os.environ["XDG_STATE_HOME"] = before
        equal((sorted(os.listdir(here)), (here / "precious").read_text()), (["offleash-library", "precious"], "mine"))


@case
def a_sandbox_is_made_in_one_word():
    sandbox = Sandbox(timeout=60)
    result = sandbox.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin="in", envs={"A": "b"})
    equal((result.stdout, result.stderr, result.exit_code, result.ok), ("in", "err\n", 3, False))
    assert sandbox.run("sleep 9", timeout=0.2).timed_out
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    raises(SandboxNotFoundException, sandbox.run, "true")
    raises(SandboxNotRunningException, sandbox.commands.run, "true")


@case
def commands_are_those_of_e2b(sandbox):
    heard = []
    result = sandbox.commands.run("echo out; echo err >&2; pwd", on_stdout=heard.append, cwd="/tmp")
    equal((result.stdout, result.stderr, result.exit_code, "".join(heard)), ("out\n/tmp\n", "err\n", 0, "out\n/tmp\n"))
    error = raises(CommandExitException, sandbox.commands.run, "echo before; exit 3")
    equal((error.exit_code, error.stdout, error.error), (3, "before\n", "exit status 3"))
    raises(TimeoutException, sandbox.commands.run, "sleep 9", timeout=0.2)
    equal(sandbox.commands.run("printf 'é%.0s' $(seq 40000)").stdout, "é" * 40000)
    equal(sandbox.commands.run("echo $A", envs={"A": "b"}, user="root").stdout, "b\n")
    raises(InvalidArgumentException, sandbox.commands.run, "true", cwd="/not/there")


@case
def commands_go_on_in_the_background(sandbox):
    handle = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    assert any(process.pid == handle.pid for process in sandbox.commands.list())
    handle.send_stdin("word\n")
    equal(handle.wait().stdout, "got word\n")
    other = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.close_stdin(other.pid)
    equal([out for out, _, _ in other], ["end\n"])
    left = sandbox.commands.run("sleep 99", background=True)
    left.disconnect()
    again = sandbox.commands.connect(left.pid)
    assert sandbox.commands.kill(left.pid)
    equal(raises(CommandExitException, again.wait).error, "signal: killed")
    assert not sandbox.commands.kill(left.pid)


@case
def terminals_are_there(sandbox):
    shown = []
    handle = sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/tmp")
    sandbox.pty.resize(handle.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit\n")
    handle.wait(on_pty=shown.append)
    assert b"30 100" in b"".join(shown), shown


@case
def files_are_those_of_e2b(sandbox):
    files = sandbox.files
    written = files.write("/home/user/dir/a.txt", "text")
    equal((written.name, written.path, written.type), ("a.txt", "/home/user/dir/a.txt", FileType.FILE))
    files.write_files([WriteEntry("dir/b", b"\x00\xff"), {"path": "dir/c", "data": "c"}])
    equal(files.read("dir/a.txt"), "text")
    equal(bytes(files.read("dir/b", "bytes")), b"\x00\xff")
    equal(b"".join(files.read("dir/b", "stream")), b"\x00\xff")
    equal(sorted(entry.name for entry in files.list("dir")), ["a.txt", "b", "c"])
    assert files.exists("dir/a.txt") and not files.exists("none")
    info = files.get_info("dir/a.txt")
    equal((info.size, info.owner, info.permissions), (4, "user", "-rw-r--r--"))
    assert info.modified_time is not None
    equal(files.rename("dir/a.txt", "dir/d.txt").name, "d.txt")
    assert files.make_dir("made") and not files.make_dir("made")
    # Who reads and writes is who is named.
    equal((files.write("/srv/mine", "x", user="root").path, files.get_info("/srv/mine").owner), ("/srv/mine", ROOT[0]))
    if ROOT[1] == 0:
        raises(PermissionDeniedException, files.write, "/srv/other", "x")
    files.remove("dir")
    equal(raises(FileNotFoundException, files.read, "dir/d.txt").code, 404)
    raises(FileNotFoundException, files.list, "dir")


@case
def directories_are_watched(sandbox):
    sandbox.files.make_dir("/home/user/watched")
    handle = sandbox.files.watch_dir("/home/user/watched")
    sandbox.files.write("/home/user/watched/new", "x")
    events = []
    eventually(lambda: events.extend(handle.get_new_events()) or any(event.type.value == "write" for event in events))
    equal(events[0].name, "new")
    handle.stop()


@case
def code_keeps_its_state(sandbox):
    sandbox.run_code("x = 41")
    heard = []
    execution = sandbox.run_code("import os\nprint('hi', os.environ['A'])\nx + 1", envs={"A": "b"}, on_stdout=heard.append)
    equal((execution.text, execution.logs.stdout, str(heard[0])), ("42", ["hi b\n"], "hi b\n"))
    error = sandbox.run_code("1 / 0").error
    equal((error.name, error.value), ("ZeroDivisionError", "division by zero"))
    raises(TimeoutException, sandbox.run_code, "while True: pass", timeout=0.3)
    equal(sandbox.run_code("x").text, "41")
    context = sandbox.create_code_context(cwd="/tmp", language="bash")
    equal(sandbox.run_code("y=1; pwd", context=context).logs.stdout, ["/tmp\n"])
    equal(sandbox.run_code("exit_with() { return 7; }; exit_with", context=context).error.value, "7")
    assert context.id in [known.id for known in sandbox.list_code_contexts()]
    sandbox.restart_code_context(context)
    equal("".join(sandbox.run_code("echo $y", context=context).logs.stdout), "\n")
    sandbox.remove_code_context(context)
    raises(NotFoundException, sandbox.run_code, "true", context=context)


@case
def checkpoints_and_forks_are_there(sandbox):
    sandbox.files.write("state", "one")
    checkpoint = sandbox.checkpoints.create("before")
    sandbox.files.write("state", "two")
    fork = sandbox.fork()[0]
    equal(fork.files.read("state"), "two")
    equal(fork.get_info().fork_of, sandbox.sandbox_id)
    fork.kill()
    sandbox.restore(checkpoint)
    equal(sandbox.files.read("state"), "one")
    equal([known.name for known in sandbox.checkpoints.list()], ["before"])
    sandbox.checkpoints.remove("before")
    snapshot = sandbox.create_snapshot("ready")
    equal([known.snapshot_id for known in Sandbox.list_snapshots()], [snapshot.snapshot_id])
    with Sandbox.create(snapshot.snapshot_id) as copy:
        equal(copy.files.read("state"), "one")
    with tempfile.TemporaryFile() as file:
        Sandbox.export_snapshot("ready", file)
        file.seek(0)
        again = Sandbox.import_snapshot(file, "again")
    equal((again.name, again.sandbox_id), ("again", None))
    with Sandbox.create(again.snapshot_id) as copy:
        equal(copy.files.read("state"), "one")
    raises(InvalidArgumentException, Sandbox.import_snapshot, io.BytesIO(b"no archive"))
    assert Sandbox.delete_snapshot("again")
    assert Sandbox.delete_snapshot("ready") and not Sandbox.delete_snapshot("ready")


@case
def lives_are_those_of_e2b(sandbox):
    sandbox.set_timeout(1000)
    info = sandbox.get_info()
    equal((info.sandbox_id, info.state.value, info.level), (sandbox.sandbox_id, "running", sandbox.level))
    assert 900 < (info.end_at - info.started_at).total_seconds() < 1100, info
    assert sandbox.pause()
    assert not sandbox.pause()
    equal(Sandbox.get_info(sandbox.sandbox_id).state.value, "paused")
    same = Sandbox.connect(sandbox.sandbox_id, timeout=2000)
    equal(same.commands.run("echo back").stdout, "back\n")
    assert same.is_running()
    assert sandbox.get_usage()["memory_limit_bytes"] > 0
    assert isinstance(sandbox.get_metrics(), list)


@case
def options_reach_the_server():
    made = Sandbox.create(
        name="called",
        metadata={"purpose": "te&st"},
        envs={"A": "b"},
        cpus=1,
        memory_mib=256,
        level="process",
        timeout=100,
        lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}},
        network={"allow_out": ["example.com"], "deny_out": lambda context: [context.all_traffic]},
    )
    with made as sandbox:
        info = sandbox.get_info()
        equal((info.name, info.cpu_count, info.memory_mb, info.level), ("called", 1, 256, "process"))
        equal((info.raw["policy"]["allow"], info.raw["policy"]["deny"]), (["example.com"], ["0.0.0.0/0"]))
        equal((info.raw["pause_on_timeout"], info.raw["lifecycle"]["timeout_mode"]), (True, "filesystem"))
        equal(sandbox.commands.run("echo $A").stdout, "b\n")
        found = [known.sandbox_id for known in Sandbox.list(SandboxQuery(metadata={"purpose": "te&st"}))]
        equal(found, [sandbox.sandbox_id])
        raises(ConflictException, Sandbox.create, name="called")
        sandbox.update_network({"allow_internet_access": False})
        equal(sandbox.get_info().raw["policy"]["internet"], False)
        changed = sandbox.set_metadata({**sandbox.get_info().metadata, "purpose": "other"})
        equal((changed.name, changed.metadata["purpose"]), ("called", "other"))
        equal(sandbox.set_metadata({}).metadata, {name: value for name, value in changed.metadata.items() if name.startswith("offleash.")})
        raises(InvalidArgumentException, sandbox.set_metadata, {"offleash.name": "another"})
    error = raises(NotFoundException, Sandbox.create, "no-such-template")
    equal(error.code, 404)
    raises(InvalidArgumentException, Sandbox.create, network={"unknown": 1})


@case
def ports_are_reached(sandbox):
    import urllib.request

    sandbox.files.write("index.html", "served")
    sandbox.commands.run("python3 -m http.server 8000", background=True, timeout=0)

    def served():
        try:
            return urllib.request.urlopen(sandbox.get_url(8000), timeout=5).read()
        except OSError:
            return b""

    equal(eventually(served), b"served")
    assert sandbox.get_host(8000).startswith(f"8000-{sandbox.sandbox_id}.")
    equal(urllib.request.urlopen(sandbox.download_url("/home/user/index.html")).read(), b"served")


@case
def volumes_outlive_sandboxes():
    volume = volumes.create("data", size_mib=16)
    with Sandbox.create(volume_mounts={"/data": volume}) as sandbox:
        sandbox.files.write("/data/kept", "kept")
        assert volumes.get("data").in_use
    eventually(lambda: not volumes.get("data").in_use)
    with Sandbox.create(volume_mounts={"/data": "data"}) as sandbox:
        equal(sandbox.files.read("/data/kept"), "kept")
    eventually(lambda: not volumes.get("data").in_use)
    equal([known.name for known in volumes.list()], ["data"])
    volumes.remove(volume)
    equal(volumes.list(), [])


@case
def functions_of_the_program_are_tools():
    def look_up(word: str) -> int:
        """Counts letters."""
        if word == "bad":
            raise ValueError("no such word")
        return len(word)

    @offleash.tool(name="pay", grant="where amount < 5 ask", timeout=20)
    def spend(amount: int) -> str:
        return f"spent {amount}"

    with Sandbox.create(tools=[look_up, spend]) as sandbox:
        equal(sandbox.commands.run("look_up hello").stdout.strip(), "5")
        failed = raises(CommandExitException, sandbox.commands.run, "look_up bad")
        assert "ValueError: no such word" in failed.stderr, failed
        answers = []
        asking = threading.Thread(target=lambda: answers.append(sandbox.run("pay 3")))
        asking.start()
        question = eventually(approvals.list)[0]
        equal((question.tool, question.parameters, question.sandbox_id), ("pay", {"amount": 3}, sandbox.sandbox_id))
        approvals.approve(question)
        asking.join()
        equal(answers[0].stdout.strip().strip('"'), "spent 3")
        equal(sandbox.run("pay 9").exit_code, 126)


@case
def a_server_that_never_answers_is_not_waited_for_long():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        equal(offleash._open_api(url).connection.request_timeout, 60)
        there = {"url": url, "api_key": "e2b_0", "request_timeout": 0.1}
        raises(TimeoutException, Sandbox.create, **there)
        raises(TimeoutException, lambda: list(Sandbox.list(**there)))
        raises(TimeoutException, Sandbox.kill, "sandbox", **there)


@case
def the_server_and_the_key_of_the_command_line_are_used():
    shown = []

    class Listing(BaseHTTPRequestHandler):
        def do_GET(self):
            shown.append(self.headers["X-API-KEY"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"sandboxes": [], "next": null}')

        def log_message(self, *_):
            pass

    def listed():
        equal(list(Sandbox.list()), [])
        return shown.pop()

    with HTTPServer(("127.0.0.1", 0), Listing) as server, tempfile.TemporaryDirectory() as config:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        keys = Path(config, "offleash", "keys.json")
        keys.parent.mkdir()
        with patch.dict(os.environ, {"OFFLEASH_HOST": f"{host}/", "XDG_CONFIG_HOME": config}):
            raises(AuthenticationException, listed)
            keys.write_text(json.dumps({host: "e2b_kept"}))
            keys.chmod(0o600)
            equal(listed(), "e2b_kept")
            with patch.dict(os.environ, {"OFFLEASH_API_KEY": "e2b_said"}):
                equal(listed(), "e2b_said")
            keys.chmod(0o640)
            raises(PermissionDeniedException, listed)
            # The other variable goes before it.
            with patch.dict(os.environ, {"OFFLEASH_URL": "nothing"}):
                raises(InvalidArgumentException, listed)
            for refused in ("box:3000", "http://box.example.com", f"{host}/path", "https://secret@box.example.com"):
                with patch.dict(os.environ, {"OFFLEASH_HOST": refused}):
                    assert "secret" not in str(raises(InvalidArgumentException, listed))
        server.shutdown()


@case
def a_server_without_a_place_for_its_state_is_told_of():
    with tempfile.NamedTemporaryFile() as file, patch.dict(os.environ, {"XDG_STATE_HOME": f"{file.name}/below"}):
        error = raises(DaemonException, Sandbox.create)
        assert "XDG_STATE_HOME" in error.hint and file.name in error.message, error


@case
def a_server_that_has_ended_is_started_again(sandbox):
    assert offleash.daemon.stop()
    equal(sandbox.run("echo still").stdout, "still\n")
    assert offleash.daemon.stop()
    equal(sandbox.commands.run("echo again").stdout, "again\n")


@case
async def the_other_half_has_an_event_loop():
    async with await AsyncSandbox.create() as sandbox:
        run = [sandbox.commands.run(f"sleep 0.2; echo {number}") for number in range(4)]
        equal([result.stdout for result in await asyncio.gather(*run)], ["0\n", "1\n", "2\n", "3\n"])
        equal((await sandbox.run("exit 3")).exit_code, 3)
        await sandbox.files.write("a", "text")
        equal(await sandbox.files.read("a"), "text")
        equal(b"".join([piece async for piece in await sandbox.files.read("a", "stream")]), b"text")
        events = asyncio.Queue()
        handle = await sandbox.files.watch_dir("/home/user", events.put)
        await sandbox.files.write("b", "text")
        equal((await asyncio.wait_for(events.get(), 30)).name, "b")
        await handle.stop()
        heard = []

        async def listen(output):
            heard.append(output.line)

        equal((await sandbox.run_code("print('hi')\n6 * 7", on_stdout=listen)).text, "42")
        equal(heard, ["hi\n"])
        background = await sandbox.commands.run("echo a; echo b >&2", background=True)
        equal(sorted([out or err async for out, err, _ in background]), ["a\n", "b\n"])
        found = [known.sandbox_id async for known in AsyncSandbox.list()]
        assert sandbox.sandbox_id in found
        assert await AsyncSandbox.pause(sandbox.sandbox_id)
        await sandbox.connect()
        checkpoint = await sandbox.checkpoints.create()
        await sandbox.restore(checkpoint)
    assert not await AsyncSandbox.kill(sandbox.sandbox_id)
    equal((await offleash.async_run("echo one")).stdout, "one\n")


@case
async def tools_may_be_coroutines():
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    async with await AsyncSandbox.create(tools=[slow]) as sandbox:
        answers = await asyncio.gather(*(sandbox.run("slow 0.2") for _ in range(3)))
        equal([answer.stdout.strip().strip('"') for answer in answers], ["slept"] * 3)


@case
def a_server_of_somebody_else_needs_a_key():
    url = offleash.Sandbox.create(timeout=5)._address.url
    error = raises(offleash.AuthenticationException, Sandbox.create, url=url, api_key="e2b_" + "0" * 40)
    equal(error.code, 401)
    assert "OFFLEASH_API_KEY" in error.hint
    error = raises(offleash.DaemonException, Sandbox.create, url="http://127.0.0.1:9")
    assert "127.0.0.1:9" in str(error) and error.hint
    raises(InvalidArgumentException, Sandbox.create, url="ftp://x")


@case
def without_the_program_it_says_so():
    code = "import offleash\ntry: offleash.run('true')\nexcept offleash.DaemonException as error: print(error)"
    bare = {"PATH": "/nowhere", "HOME": "/nowhere", "XDG_STATE_HOME": "/nowhere", "PYTHONPATH": os.environ["PYTHONPATH"]}
    said = subprocess.run([sys.executable, "-s", "-c", code], env=bare, capture_output=True, text=True).stdout
    assert "`offleash` is not found" in said and "OFFLEASH_BINARY" in said, said


# Its cases are run after these, which begin without a server.
import modal_cases  # noqa: E402, F401

if __name__ == "__main__":
    main()
