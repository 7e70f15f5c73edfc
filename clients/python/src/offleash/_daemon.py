"""A server of one's own, where none runs: started when it is first needed, shared by all programs of the user, ended when idle.

The state directory's own lock decides who starts it: of two servers that are started at once the second ends, and its
starter uses the first.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import IO, List, Optional

from ._errors import DaemonException
from ._local import opened_to_append, own_directory, written_anew

#: How long a server may take to listen, seconds; one that ends first finishes its requests.
START_TIMEOUT = 60.0
#: How long it lives without a running sandbox, seconds.
IDLE_SECONDS = 600
#: Most bytes of its log that are kept when it is started again.
MAX_LOG = 1024 * 1024

#: No sandbox waits: what is made ahead would stay when the server is gone.
CONFIG = """\
listen = "127.0.0.1:0"

[pool]
min = 0
max = 0
"""

# Runs the server, and ends it when no sandbox has run for some time. Arguments: program, state, configuration, seconds.
KEEPER = """\
"$1" serve --state "$2" --config "$3" >/dev/null &
server=$!
(
    idle=0
    while sleep 15 && kill -0 $server 2>/dev/null; do
        case "$("$1" ls --state "$2" 2>&1)" in *running*) idle=0 ;; *) idle=$((idle + 15)) ;; esac
        [ $idle -lt "$4" ] || kill -TERM $server
    done
) </dev/null >/dev/null 2>&1 &
watcher=$!
wait $server
code=$?
kill $watcher 2>/dev/null
exit $code
"""

#: Said where the state directory cannot be used.
STATE_HINT = "set HOME or XDG_STATE_HOME to a directory of this user's, or OFFLEASH_URL to a server"

_BUSY = b"another daemon works on this state directory"
_starting = threading.Lock()


def state_home() -> Path:
    """Where programs of this user keep their state."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if home.startswith("/"):
        return Path(home)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise DaemonException("you have no home directory", hint="set HOME or XDG_STATE_HOME to a directory of yours") from error


def private_state() -> Path:
    """The state directory of the server that this library starts."""
    return state_home() / "offleash-library"


def usual_state() -> Path:
    """The state directory of `offleash serve`."""
    named = os.environ.get("OFFLEASH_STATE")
    if named:
        return Path(named)
    return Path("/var/lib/offleash") if os.geteuid() == 0 else state_home() / "offleash"


def _packaged() -> Optional[str]:
    """The program that came with this package, which is a script of the environment that it is installed in."""
    # Where `pip install --target` puts scripts, which its list of files does not know.
    places = [Path(__file__).parent.parent / "bin" / "offleash"]
    try:
        files = metadata.files("offleash") or []
    except metadata.PackageNotFoundError:
        files = []
    places[:0] = [Path(file.locate()).resolve() for file in files if file.parts[-2:] == ("bin", "offleash")]
    for program in places:
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    return None


def find_binary() -> str:
    """The program `offleash`: what OFFLEASH_BINARY names, what came with this package, or what PATH has."""
    named = os.environ.get("OFFLEASH_BINARY")
    if named:
        return named
    found = _packaged() or shutil.which("offleash")
    if found:
        return found
    raise DaemonException(
        "the program `offleash` is not found",
        hint="install it and see that it is in PATH, set OFFLEASH_BINARY to it, or OFFLEASH_URL to a server",
    )


@functools.lru_cache(maxsize=64)
def short_path(path: Path) -> str:
    """The same socket by a path that is short enough for its address, which may have 107 bytes."""
    if len(os.fsencode(path)) <= 100:
        return str(path)
    # It stays open as long as the program uses the path.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{directory}/{path.name}"


def answers(path: Path) -> bool:
    """Whether a server of this user listens at a socket."""
    return _pid_behind(path) is not None


def _pid_behind(path: Path) -> Optional[int]:
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISSOCK(found.st_mode):
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{directory}/{path.name}")
            said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", said)
        return pid if uid == os.geteuid() else None
    except OSError:
        return None
    finally:
        os.close(directory)


def ensure() -> Path:
    """The socket of the server of this user, which is started if it does not run.

    Raises:
        DaemonException: the program is not there, or the server did not start; its words are in the message.
    """
    state = private_state()
    path = state / "api.sock"
    if answers(path):
        return path
    with _starting:
        deadline = time.monotonic() + START_TIMEOUT
        while not answers(path):
            try:
                said = _start(state, path, deadline)
            except OSError as error:
                raise DaemonException(
                    f"a server cannot have its state in `{state}`: {error.strerror or error}",
                    hint="set XDG_STATE_HOME to a directory that you can write to, or OFFLEASH_URL to a server",
                ) from error
            if said is None:
                break
            if _BUSY not in said or time.monotonic() > deadline:
                words = said.decode(errors="replace").strip() or "it said nothing"
                raise DaemonException(f"`offleash serve` did not start: {words}", hint="`offleash doctor` says what is missing")
            time.sleep(0.02)
    return path


def _start(state: Path, path: Path, deadline: float) -> Optional[bytes]:
    """Starts a server and waits until it listens; what it said if it ended instead."""
    program = find_binary()
    config = state / "library.toml"
    try:
        # Before anything is written: a server is not started in a directory of another user's.
        with own_directory(state) as own:
            if not (own / config.name).exists():
                # Whoever starts another server at the same time finds a whole file.
                with written_anew(own / config.name) as file:
                    file.write(CONFIG.encode())
            opened = opened_to_append(own / "serve.log")
    except OSError as error:
        raise DaemonException(f"the state of a server cannot be kept in `{state}`: {error}", hint=STATE_HINT) from error
    with opened as log:
        begin = os.fstat(log.fileno()).st_size
        if begin > MAX_LOG:
            log.truncate(0)
            begin = 0
        child = _keeper([program, str(state), str(config), str(IDLE_SECONDS)], log)
        while True:
            if answers(path):
                # Nobody waits for it from here on, so that it is reaped when this program does so or ends.
                threading.Thread(target=child.wait, daemon=True).start()
                return None
            ended = child.poll() is not None
            if ended or time.monotonic() > deadline:
                return os.pread(log.fileno(), 4096, begin) or (b"" if ended else b"it does not listen yet")
            time.sleep(0.003)


def _keeper(arguments: List[str], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    # What a service manager told this program is not for the server.
    managed = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "OFFLEASH_STATE", "OFFLEASH_HOST")
    environment = {name: value for name, value in os.environ.items() if name not in managed}
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "offleash-keeper", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise DaemonException(f"cannot start `/bin/sh`: {error}") from error


def stop() -> bool:
    """Ends the server that this library started for the user, if it runs; sandboxes of it live on until the next one.

    It takes no more requests, and this answers when those that began are done. Whoever asks it meanwhile is told that it is not
    reached.
    """
    pid = _pid_behind(private_state() / "api.sock")
    if pid is None:
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        # What is readable has ended.
        select.select([process], [], [], START_TIMEOUT)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
    return True
