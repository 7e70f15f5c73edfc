"""Commands in a sandbox."""

from __future__ import annotations

import asyncio
import base64
import signal
from typing import Any, AsyncIterator, Dict, Mapping, Optional, Sequence

from .. import _errors
from .._async.api import AsyncServices
from .._async.commands import close_input, send_input
from .._requests import milliseconds
from . import exception
from ._both import both
from .io_streams import StreamReader, StreamType, StreamWriter

#: The most bytes of a command's arguments.
MAX_ARGUMENTS = 2**16
#: What commands run as; Modal's containers have no other user.
USER = "root"
#: What an exit code is that nobody knows: its time was up.
TIMED_OUT = -1

_SIGNALS = {(signal.strsignal(number) or "").lower(): int(number) for number in signal.valid_signals()}


def checked_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """The words of a command."""
    if not all(isinstance(argument, str) for argument in arguments):
        raise exception.InvalidError("All entrypoint arguments must be strings")
    length = sum(len(argument) for argument in arguments)
    if length > MAX_ARGUMENTS:
        raise exception.InvalidError(f"arguments: they have {length} bytes, and may have {MAX_ARGUMENTS}")
    return arguments


class ContainerProcess:
    """A command that was started in a sandbox."""

    def __init__(
        self,
        services: AsyncServices,
        stdout: StreamType = StreamType.PIPE,
        stderr: StreamType = StreamType.PIPE,
        text: bool = True,
        by_line: bool = False,
        pty: bool = False,
    ):
        self._services = services
        self._input = "pty" if pty else "stdin"
        self._pid: Optional[int] = None
        self._code: Optional[int] = None
        # Whether the program was told it: a command that ends by itself changes nothing for who did not ask.
        self._is_told = False
        self._error: Optional[BaseException] = None
        self._end: Optional[asyncio.Event] = None
        self._pump: Optional["asyncio.Task[None]"] = None
        self.stdout = StreamReader(1, stdout, text, by_line)
        self.stderr = StreamReader(2, stderr, text, by_line)
        self.stdin = StreamWriter(self._send, self._close)

    def __repr__(self) -> str:
        return f"ContainerProcess(pid={self._pid!r})"

    async def _start(
        self, arguments: Sequence[str], timeout: Optional[float], cwd: Optional[str], env: Mapping[str, str], tag: Optional[str] = None
    ) -> "ContainerProcess":
        config: Dict[str, Any] = {"cmd": arguments[0], "args": list(arguments[1:]), "envs": dict(env)}
        if cwd is not None:
            config["cwd"] = cwd
        message: Dict[str, Any] = {"process": config, "stdin": self._input == "stdin"}
        if self._input == "pty":
            message["pty"] = {"size": {"cols": 80, "rows": 24}}
        if tag is not None:
            message["tag"] = tag
        return await self._hear("process.Process/Start", message, timeout)

    async def _connect(self, tag: str) -> "ContainerProcess":
        return await self._hear("process.Process/Connect", {"process": {"tag": tag}}, None)

    async def _hear(self, method: str, message: Dict[str, Any], timeout: Optional[float]) -> "ContainerProcess":
        self._end = asyncio.Event()
        events = self._services.events(method, message, user=USER, timeout_ms=milliseconds(timeout))
        try:
            first = await events.__anext__()
        except StopAsyncIteration:
            raise exception.RemoteError("the command was not started") from None
        self._pid = first["event"]["start"]["pid"]
        self._pump = asyncio.ensure_future(self._listen(events))
        return self

    async def _listen(self, events: AsyncIterator[Dict[str, Any]]) -> None:
        """Reads what it writes until its end."""
        try:
            async for message in events:
                self._take(message.get("event", {}))
            if self._code is None:
                raise _errors.SandboxNotRunningException("the command was let go of before it ended")
        except _errors.SandboxNotRunningException as error:
            self._error = self._error or exception.of(error)
        except _errors.TimeoutException:
            self._code = TIMED_OUT
        except _errors.OffleashError as error:
            self._error = exception.of(error)
        finally:
            for stream in (self.stdout, self.stderr):
                stream._end(self._error)
            assert self._end is not None
            self._end.set()

    def _take(self, event: Mapping[str, Any]) -> None:
        for name, piece in event.get("data", {}).items():
            # What a terminal shows is its standard output.
            (self.stderr if name == "stderr" else self.stdout)._feed(base64.b64decode(piece))
        if "end" in event:
            self._code = exit_code(event["end"])

    async def _send(self, piece: bytes) -> None:
        try:
            await send_input(self._services, self._known_pid(), self._input, piece, None)
        except _errors.NotFoundException as error:
            raise ValueError("the command has ended, and reads no more") from error

    async def _close(self) -> None:
        try:
            if self._input == "pty":
                await send_input(self._services, self._known_pid(), self._input, b"\x04", None)
            else:
                await close_input(self._services, self._known_pid(), None)
        except _errors.NotFoundException:
            # It has ended, and with it what it reads.
            pass

    def _known_pid(self) -> int:
        if self._pid is None:
            raise exception.InvalidError("the command was not started")
        return self._pid

    @property
    def returncode(self) -> int:
        """Its exit code, once `wait` or `poll` has answered it."""
        if self._code is None or not self._is_told:
            raise exception.InvalidError("You must call wait() before accessing the returncode.", hint="`poll()` asks whether it runs")
        return self._code

    async def _wait(self) -> int:
        assert self._end is not None
        await self._end.wait()
        if self._code is None:
            raise self._error or exception.RemoteError("how the command ended is not known")
        self._is_told = True
        return self._code

    @both
    async def wait(self) -> int:
        """Waits for its end; answers its exit code: 128 and the number of a signal that ended it, or -1 if its time was up."""
        return await self._wait()

    @both
    async def poll(self) -> Optional[int]:
        """Its exit code, or nothing while it runs."""
        return await self._wait() if self._end is not None and self._end.is_set() else None

    def attach(self) -> None:
        """Not here."""
        raise exception.not_here("`ContainerProcess.attach`", "`offleash exec -it ID` has a terminal")


def exit_code(end: Mapping[str, Any]) -> int:
    """An exit code as Modal has it."""
    status = str(end.get("status", ""))
    kind, _, name = status.partition(": ")
    if kind == "signal":
        return 128 + _SIGNALS.get(name.split(" (")[0].lower(), 0)
    return int(end.get("exitCode", 0))
