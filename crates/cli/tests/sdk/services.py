"""What the services of a sandbox do for E2B's SDK for Python, as released.

Each function is a case and gets a sandbox; the ones named on the command line are run, all of them without any.
"""

import hashlib
import io
import os
import sys
import time
import urllib.error
import urllib.request

from e2b import CommandExitException, FilesystemEventType, FileType, NotFoundException, Sandbox
from e2b.exceptions import AuthenticationException, InvalidArgumentException, SandboxException, TimeoutException


def raises(kind, work, *words):
    try:
        work()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def eventually(condition, what):
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")


def commands_run(sbx):
    result = sbx.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None), result
    failed = raises(CommandExitException, lambda: sbx.commands.run("echo x; exit 3"))
    assert (failed.exit_code, failed.stdout, failed.error) == (3, "x\n", "exit status 3"), failed
    seen = []
    sbx.commands.run("printf 'é%.0s' $(seq 40000)", on_stdout=seen.append)
    assert "".join(seen) == "é" * 40000, len("".join(seen))


def commands_have_directory_environment_and_user(sbx):
    assert sbx.commands.run("pwd").stdout == "/home/user\n"
    assert sbx.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sbx.commands.run("echo $A-$OF_ALL", envs={"A": "b"}).stdout == "b-everywhere\n"
    assert sbx.commands.run("echo $OF_ALL", envs={"OF_ALL": "mine"}).stdout == "mine\n"
    assert sbx.commands.run("echo $USER $HOME").stdout == "user /home/user\n"
    assert sbx.commands.run("echo $USER $HOME", user="root").stdout == "root /root\n"
    raises(InvalidArgumentException, lambda: sbx.commands.run("true", cwd="/nowhere"), "/nowhere", "does not exist")
    raises(AuthenticationException, lambda: sbx.commands.run("true", user="nobody-here"), "invalid username: 'nobody-here'")


def commands_in_the_background(sbx):
    handle = sbx.commands.run("echo begun; sleep 1000", background=True)
    assert handle.pid in [process.pid for process in sbx.commands.list()]
    handle.disconnect()
    time.sleep(0.3)
    assert handle.pid in [process.pid for process in sbx.commands.list()], "a command ends with its connection"
    again = sbx.commands.connect(handle.pid)
    assert again.kill()
    killed = raises(CommandExitException, again.wait)
    assert (killed.exit_code, killed.error) == (-1, "signal: killed"), killed
    assert not sbx.commands.kill(handle.pid), "a command that ended can be killed"
    raises(NotFoundException, lambda: sbx.commands.connect(999999), "process with pid 999999 not found")


def a_late_connection_hears_the_end(sbx):
    handle = sbx.commands.run("sleep 0.5; exit 7", background=True)
    handle.disconnect()
    eventually(lambda: handle.pid not in [process.pid for process in sbx.commands.list()], "the command ends")
    late = raises(CommandExitException, lambda: sbx.commands.connect(handle.pid).wait())
    assert late.exit_code == 7, late


def commands_take_input(sbx):
    handle = sbx.commands.run("cat; echo end", background=True, stdin=True)
    sbx.commands.send_stdin(handle.pid, "hé\n")
    sbx.commands.send_stdin(handle.pid, "x" * 300_000)
    if hasattr(sbx.commands, "close_stdin"):
        sbx.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "hé\n" + "x" * 300_000 + "end\n"
    else:
        handle.kill()


def commands_time_out(sbx):
    begun = time.time()
    raises(TimeoutException, lambda: sbx.commands.run("sleep 1001", timeout=1))
    assert time.time() - begun < 60
    eventually(
        lambda: sbx.commands.run("pgrep -f 'sleep 100[1]' || true").stdout == "", "a command ends with its timeout"
    )


def terminals_work(sbx):
    from e2b import PtySize

    output = bytearray()
    handle = sbx.pty.create(PtySize(rows=20, cols=90), envs={"MARK": "here"})
    sbx.pty.resize(handle.pid, PtySize(rows=30, cols=100))
    sbx.pty.send_stdin(handle.pid, b"stty size; echo $MARK; exit\n")
    handle.wait(on_pty=output.extend)
    assert b"30 100" in output and b"\nhere" in output.replace(b"\r", b""), output
    handle = sbx.pty.create(PtySize(rows=20, cols=90))
    assert sbx.pty.kill(handle.pid)


def files_are_written_and_read(sbx):
    info = sbx.files.write("/home/user/a.txt", "hello")
    assert (info.name, info.type, info.path) == ("a.txt", FileType.FILE, "/home/user/a.txt"), info
    assert sbx.files.read("/home/user/a.txt") == "hello"
    assert sbx.files.read("a.txt") == "hello" and sbx.files.read("~/a.txt") == "hello"
    sbx.files.write("/home/user/a.txt", "")
    assert sbx.files.read("/home/user/a.txt") == ""
    data = bytes(range(256)) * 1000
    sbx.files.write("new/deep/é 中 \"q\" 'x'.bin", data)
    assert bytes(sbx.files.read("new/deep/é 中 \"q\" 'x'.bin", format="bytes")) == data
    assert b"".join(sbx.files.read("new/deep/é 中 \"q\" 'x'.bin", format="stream")) == data
    assert sbx.commands.run("stat -c '%U %a' new/deep").stdout == "user 755\n"
    raises(NotFoundException, lambda: sbx.files.read("/gone"), "path '/gone' does not exist")
    raises(InvalidArgumentException, lambda: sbx.files.read("/home/user"), "is a directory")
    raises(AuthenticationException, lambda: sbx.files.read("a.txt", user="nobody-here"))
    assert "processor" in sbx.files.read("/proc/cpuinfo"), "files of /proc say that they are empty"


def several_files_at_once(sbx):
    from e2b.sandbox.filesystem.filesystem import WriteEntry

    names = [f"many/{index:03} é.txt" for index in range(200)]
    written = sbx.files.write_files([WriteEntry(path=name, data=name * 10) for name in names])
    assert [info.path for info in written] == [f"/home/user/{name}" for name in names], written
    assert len(sbx.files.list("many")) == 200
    assert sbx.files.read(names[77]) == names[77] * 10
    assert sbx.files.write_files([]) == []


def packed_transfers(sbx):
    data = b"a lot of the same " * 100_000
    sbx.files.write("packed.bin", data, gzip=True)
    assert sbx.commands.run("sha256sum < packed.bin").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert bytes(sbx.files.read("packed.bin", format="bytes", gzip=True)) == data


def big_files(sbx):
    size = 200 * 1024 * 1024
    piece = os.urandom(1024 * 1024)
    expected = hashlib.sha256(piece * (size // len(piece))).hexdigest()

    class Big(io.RawIOBase):
        left = size

        def readable(self):
            return True

        def read(self, length=-1):
            length = min(self.left, len(piece) if length < 0 else min(length, len(piece)))
            offset = (size - self.left) % len(piece)
            given = piece[offset : offset + length]
            self.left -= len(given)
            return given

    sbx.files.write("big.bin", Big(), request_timeout=300)
    assert sbx.commands.run("sha256sum < big.bin", timeout=300).stdout.split()[0] == expected
    found = hashlib.sha256()
    for chunk in sbx.files.read("big.bin", format="stream", request_timeout=300):
        found.update(chunk)
    assert found.hexdigest() == expected
    sbx.files.remove("big.bin")


def files_are_listed_moved_and_removed(sbx):
    assert sbx.files.make_dir("tree/one/two") is True
    assert sbx.files.make_dir("tree/one") is False
    sbx.files.write("tree/one/b.txt", "12345")
    sbx.commands.run("ln -s b.txt tree/one/a-link; ln -s /nowhere tree/one/broken; chmod 640 tree/one/b.txt")
    names = [(entry.name, entry.type) for entry in sbx.files.list("tree/one")]
    assert names[1:] == [("b.txt", FileType.FILE), ("broken", FileType.SYMLINK), ("two", FileType.DIR)], names
    # Newer releases tell links from files, older ones say what they lead to.
    assert names[0] in [("a-link", FileType.SYMLINK), ("a-link", FileType.FILE)], names
    assert [entry.path for entry in sbx.files.list("tree", depth=2)][:2] == [
        "/home/user/tree/one",
        "/home/user/tree/one/a-link",
    ]
    info = sbx.files.get_info("tree/one/b.txt")
    assert (info.size, info.permissions, info.mode, info.owner) == (5, "-rw-r-----", 0o640, "user"), info
    assert sbx.files.get_info("tree/one/a-link").symlink_target == "/home/user/tree/one/b.txt"
    moved = sbx.files.rename("tree/one/b.txt", "other/place/c.txt")
    assert moved.path == "/home/user/other/place/c.txt"
    assert sbx.files.exists("other/place/c.txt") and not sbx.files.exists("tree/one/b.txt")
    sbx.files.remove("tree")
    sbx.files.remove("tree")
    assert not sbx.files.exists("tree")
    raises(NotFoundException, lambda: sbx.files.list("tree"))
    raises(NotFoundException, lambda: sbx.files.rename("tree", "x"))
    raises(NotFoundException, lambda: sbx.files.get_info("tree"))
    raises(InvalidArgumentException, lambda: sbx.files.list("other/place/c.txt"))
    raises(InvalidArgumentException, lambda: sbx.files.make_dir("other/place/c.txt"))


def files_are_annotated(sbx):
    if "metadata" not in sbx.files.write.__code__.co_varnames:
        return
    info = sbx.files.write("noted.txt", "x", metadata={"Kind": "a test", "b": "2"})
    assert info.metadata == {"kind": "a test", "b": "2"}, info
    assert sbx.files.get_info("noted.txt").metadata == {"kind": "a test", "b": "2"}
    sbx.files.write("noted.txt", "y", metadata={"b": "3"})
    assert sbx.files.get_info("noted.txt").metadata == {"b": "3"}


def directories_are_watched(sbx):
    sbx.files.make_dir("watched")
    handle = sbx.files.watch_dir("watched")
    seen = []

    def kinds(name):
        seen.extend(handle.get_new_events())
        return [event.type for event in seen if event.name == name]

    sbx.files.write("watched/new.txt", "x")
    expected = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    eventually(lambda: len(kinds("new.txt")) >= 3, "three events")
    assert kinds("new.txt") == expected, seen
    sbx.files.remove("watched/new.txt")
    eventually(lambda: FilesystemEventType.REMOVE in kinds("new.txt"), "a removal")
    handle.stop()
    recursive = sbx.files.watch_dir("watched", recursive=True)
    sbx.files.write("watched/sub/deep/file.txt", "x")
    names = []

    def deep():
        names.extend(event.name for event in recursive.get_new_events())
        return "sub/deep/file.txt" in names

    eventually(deep, f"an event in a directory that was made: {names}")
    recursive.stop()
    raises(NotFoundException, lambda: sbx.files.watch_dir("nowhere-at-all"))
    sbx.files.write("plain.txt", "x")
    raises(InvalidArgumentException, lambda: sbx.files.watch_dir("plain.txt"))


def urls_are_signed(sbx):
    sbx.files.write("signed+ü.txt", "signed contents")
    url = sbx.download_url("signed+ü.txt", user="user", use_signature_expiration=600)
    assert urllib.request.urlopen(url).read() == b"signed contents"
    ranged = urllib.request.Request(url, headers={"Range": "bytes=-8"})
    with urllib.request.urlopen(ranged) as response:
        assert response.status == 206 and response.read() == b"contents"
    for wrong in [url.replace("signature=v1_", "signature=v1_A"), url.replace("signed", "other"), url.split("&sig")[0]]:
        error = raises(urllib.error.HTTPError, lambda: urllib.request.urlopen(wrong))
        assert error.code in (401, 404, 502), error
    upload = sbx.upload_url("uploaded.txt", user="user", use_signature_expiration=600)
    boundary = "XX"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nsent\r\n--{boundary}--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    urllib.request.urlopen(urllib.request.Request(upload, body.encode(), headers)).read()
    assert sbx.files.read("uploaded.txt") == "sent"


CASES = [
    commands_run,
    commands_have_directory_environment_and_user,
    commands_in_the_background,
    a_late_connection_hears_the_end,
    commands_take_input,
    commands_time_out,
    terminals_work,
    files_are_written_and_read,
    several_files_at_once,
    packed_transfers,
    big_files,
    files_are_listed_moved_and_removed,
    files_are_annotated,
    directories_are_watched,
    urls_are_signed,
]


def main():
    wanted = sys.argv[1:]
    failed = 0
    with Sandbox.create(envs={"OF_ALL": "everywhere"}, timeout=900) as sbx:
        for case in CASES:
            if wanted and case.__name__ not in wanted:
                continue
            try:
                case(sbx)
                print(f"{case.__name__}: ok", flush=True)
            except Exception as error:  # Every case is tried.
                failed += 1
                print(f"{case.__name__}: {type(error).__name__}: {error}", flush=True)
                import traceback

                traceback.print_exc()
    assert sbx.is_running() is False
    raises(SandboxException, lambda: sbx.commands.run("true"))
    sys.exit(1 if failed else 0)


main()
