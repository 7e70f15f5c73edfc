# Made by scripts/make_sync.py; change `_async` instead.
"""Commands and terminals in a sandbox."""

from __future__ import annotations

import base64
import codecs
from typing import Any, Iterator, Callable, Dict, List, Mapping, Optional, Tuple, Union

from .. import _errors
from .._models import CommandExitException, CommandResult, ProcessInfo, PtySize
from .._requests import milliseconds
from . import backend
from .api import Services

#: How long a command may run if nobody says, seconds.
COMMAND_TIMEOUT = 60.0

Listener = Callable[[Any], Any]
#: What a command writes: to its standard output, its standard error, or its terminal.
Output = Tuple[Optional[str], Optional[str], Optional[bytes]]


class CommandHandle:
    """A command that was started. Iterate it for its output, or wait for its end."""

    def __init__(self, services: Services, events: Iterator[Dict[str, Any]], pid: int):
        self._services = services
        self._events = events
        self._pid = pid
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._written: Dict[str, List[str]] = {"stdout": [], "stderr": []}
        self._result: Optional[CommandResult] = None

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._pid

    @property
    def stdout(self) -> str:
        """What it wrote to standard output until now."""
        return "".join(self._written["stdout"])

    @property
    def stderr(self) -> str:
        """What it wrote to standard error until now."""
        return "".join(self._written["stderr"])

    def __iter__(self) -> Iterator[Output]:
        for event in self._events:
            event = event.get("event", {})
            if "data" in event:
                output = self._output(event["data"])
                if output is not None:
                    yield output
            elif "end" in event:
                # The stream goes on to its own end, so that its connection can be used again.
                for output in self._ended(event["end"]):
                    yield output

    def _output(self, data: Mapping[str, str]) -> Optional[Output]:
        if "pty" in data:
            return None, None, base64.b64decode(data["pty"])
        for name in ("stdout", "stderr"):
            if name in data:
                return self._text(name, base64.b64decode(data[name]), False)
        return None

    def _text(self, name: str, piece: bytes, is_last: bool) -> Optional[Output]:
        text = self._decoders[name].decode(piece, is_last)
        if not text:
            return None
        self._written[name].append(text)
        return (text, None, None) if name == "stdout" else (None, text, None)

    def _ended(self, end: Mapping[str, Any]) -> List[Output]:
        """What is left of its output, and how it ended."""
        left = [self._text(name, b"", True) for name in ("stdout", "stderr")]
        code = int(end.get("exitCode", 0))
        status = end.get("status")
        error = end.get("error") or (status if code != 0 else None)
        self._result = CommandResult(self.stderr, self.stdout, code, error)
        return [output for output in left if output is not None]

    def wait(
        self,
        on_stdout: Optional[Listener] = None,
        on_stderr: Optional[Listener] = None,
        on_pty: Optional[Listener] = None,
    ) -> CommandResult:
        """Waits for its end.

        Raises:
            CommandExitException: it ended with another exit code than 0.
            TimeoutException: its time was up, and it was killed.
        """
        if self._result is None:
            for out, err, pty in self:
                listener, what = (on_stdout, out) if out is not None else (on_stderr, err) if err is not None else (on_pty, pty)
                backend.told(listener, what)
        if self._result is None:
            raise _errors.SandboxException("the command was let go of before it ended")
        if self._result.exit_code != 0:
            raise CommandExitException(self._result)
        return self._result

    def kill(self) -> bool:
        """Kills it; answers whether it was there."""
        return send_signal(self._services, self._pid, None)

    def send_stdin(self, data: Union[str, bytes], request_timeout: Optional[float] = None) -> None:
        """Gives it something to read."""
        send_input(self._services, self._pid, "stdin", data, request_timeout)

    def close_stdin(self, request_timeout: Optional[float] = None) -> None:
        """Lets it read the end of its input."""
        close_input(self._services, self._pid, request_timeout)

    def disconnect(self) -> None:
        """Hears no more of it; it goes on."""
        self._events.close()  # type: ignore[attr-defined]


def send_signal(services: Services, pid: int, request_timeout: Optional[float]) -> bool:
    message = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
    try:
        services.call("process.Process/SendSignal", message, timeout=request_timeout)
    except _errors.NotFoundException:
        return False
    return True


def send_input(
    services: Services, pid: int, kind: str, data: Union[str, bytes], request_timeout: Optional[float]
) -> None:
    content = data.encode() if isinstance(data, str) else bytes(data)
    message = {"process": {"pid": pid}, "input": {kind: base64.b64encode(content).decode()}}
    services.call("process.Process/SendInput", message, timeout=request_timeout)


def close_input(services: Services, pid: int, request_timeout: Optional[float]) -> None:
    services.call("process.Process/CloseStdin", {"process": {"pid": pid}}, timeout=request_timeout)


def _started(services: Services, method: str, message: Dict[str, Any], **how: Any) -> CommandHandle:
    events = services.events(method, message, **how)
    try:
        # Until it is known what became of it, nobody has a handle.
        first = events.__next__()
    except StopIteration:
        raise _errors.SandboxException("the command was not started") from None
    return CommandHandle(services, events, first["event"]["start"]["pid"])


class Commands:
    """Commands in a sandbox."""

    def __init__(self, services: Services):
        self._services = services

    def run(
        self,
        cmd: str,
        background: bool = False,
        envs: Optional[Mapping[str, str]] = None,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[Listener] = None,
        on_stderr: Optional[Listener] = None,
        stdin: bool = False,
        timeout: Optional[float] = COMMAND_TIMEOUT,
        request_timeout: Optional[float] = None,
    ) -> Any:
        """Runs a line of a shell; answers a `CommandResult`, or with `background` a handle of the command.

        Args:
            timeout: After how many seconds it is killed; 0 is never.

        Raises:
            CommandExitException: it ended with another exit code than 0.
            TimeoutException: its time was up, and it was killed.
        """
        config = {"cmd": "/bin/bash", "args": ["-l", "-c", cmd], "envs": dict(envs or {})}
        if cwd is not None:
            config["cwd"] = cwd
        message = {"process": config, "stdin": stdin}
        how = {"user": user, "timeout_ms": milliseconds(timeout)}
        handle = _started(self._services, "process.Process/Start", message, **how)
        return handle if background else handle.wait(on_stdout, on_stderr)

    def list(self, request_timeout: Optional[float] = None) -> List[ProcessInfo]:
        """The commands that run."""
        answer = self._services.call("process.Process/List", {}, timeout=request_timeout)
        return [ProcessInfo.of(process) for process in answer.get("processes", [])]

    def connect(self, pid: int, timeout: Optional[float] = COMMAND_TIMEOUT) -> CommandHandle:
        """Hears of a command that was started before."""
        message = {"process": {"pid": pid}}
        return _started(self._services, "process.Process/Connect", message, timeout_ms=milliseconds(timeout))

    def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Kills a command; answers whether it was there."""
        return send_signal(self._services, pid, request_timeout)

    def send_stdin(self, pid: int, data: Union[str, bytes], request_timeout: Optional[float] = None) -> None:
        """Gives a command something to read."""
        send_input(self._services, pid, "stdin", data, request_timeout)

    def close_stdin(self, pid: int, request_timeout: Optional[float] = None) -> None:
        """Lets a command read the end of its input."""
        close_input(self._services, pid, request_timeout)


class Pty:
    """Terminals in a sandbox."""

    def __init__(self, services: Services):
        self._services = services

    def create(
        self,
        size: PtySize,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = COMMAND_TIMEOUT,
    ) -> CommandHandle:
        """Starts a shell in a terminal; `wait(on_pty=…)` of what it answers hears what it shows."""
        usual = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        config = {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {**usual, **(envs or {})}}
        if cwd is not None:
            config["cwd"] = cwd
        message = {"process": config, "pty": _size(size)}
        how = {"user": user, "timeout_ms": milliseconds(timeout)}
        return _started(self._services, "process.Process/Start", message, **how)

    def connect(self, pid: int, timeout: Optional[float] = COMMAND_TIMEOUT) -> CommandHandle:
        """Hears of a terminal that was started before."""
        message = {"process": {"pid": pid}}
        return _started(self._services, "process.Process/Connect", message, timeout_ms=milliseconds(timeout))

    def send_stdin(self, pid: int, data: Union[str, bytes], request_timeout: Optional[float] = None) -> None:
        """Types something."""
        send_input(self._services, pid, "pty", data, request_timeout)

    def resize(self, pid: int, size: PtySize, request_timeout: Optional[float] = None) -> None:
        """Gives a terminal another size."""
        message = {"process": {"pid": pid}, "pty": _size(size)}
        self._services.call("process.Process/Update", message, timeout=request_timeout)

    def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Kills what runs in a terminal; answers whether it was there."""
        return send_signal(self._services, pid, request_timeout)


def _size(size: PtySize) -> Dict[str, Any]:
    return {"size": {"cols": size.cols, "rows": size.rows}}
