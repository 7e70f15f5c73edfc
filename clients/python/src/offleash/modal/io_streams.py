"""What a command writes, and what it reads."""

from __future__ import annotations

import asyncio
import codecs
from enum import Enum
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, List, Optional, Union

from . import exception
from ._both import both, each, each_awaited

#: The most that a writer takes before it is drained, bytes.
MAX_BUFFER = 2 * 1024 * 1024

Data = Union[bytes, bytearray, memoryview, str]


class StreamType(Enum):
    """What becomes of what a command writes; the numbers are those of `subprocess`."""

    PIPE = -1
    STDOUT = -2
    DEVNULL = -3


class StreamReader:
    """What a command writes. Iterate it for pieces, or lines; `read` waits for its end. Each piece is read once."""

    def __init__(self, descriptor: int, kind: StreamType, text: bool, by_line: bool):
        if kind is not StreamType.PIPE and not text:
            raise exception.InvalidError("`text=False` goes with a stream that is a pipe alone")
        self.file_descriptor = descriptor
        self._kind = kind
        self._text = text
        self._by_line = by_line
        self._pieces: List[bytes] = []
        self._ended = False
        self._error: Optional[BaseException] = None
        self._changed: Optional[asyncio.Event] = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # What was taken of the pieces and not given out yet.
        self._rest = bytearray()

    # From here on all is done in the loop of `_both`.
    def _feed(self, piece: bytes) -> None:
        if self._kind is StreamType.STDOUT:
            print(self._decoder.decode(piece), end="", flush=True)
        elif self._kind is StreamType.PIPE:
            self._pieces.append(piece)
            self._wake()

    def _end(self, error: Optional[BaseException] = None) -> None:
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _more(self) -> bool:
        """Waits until something was written; whether anything was before the end."""
        if self._kind is not StreamType.PIPE:
            raise exception.InvalidError("the output of this command is not kept", hint="`stdout=StreamType.PIPE`")
        while not self._pieces and not self._ended:
            self._changed = asyncio.Event()
            await self._changed.wait()
        if not self._pieces and self._error is not None:
            raise self._error
        return bool(self._pieces)

    def _shown(self, piece: bytes, last: bool = False) -> Any:
        return self._decoder.decode(piece, last) if self._text else piece

    @both
    async def read(self) -> Any:
        """All that was not read yet, when the command has closed it."""
        while await self._more():
            self._take()
        whole = bytes(self._rest)
        self._rest.clear()
        return self._shown(whole, True)

    def _take(self) -> None:
        for piece in self._pieces:
            self._rest += piece
        self._pieces.clear()

    async def _items(self) -> AsyncIterator[Any]:
        while True:
            end = self._rest.find(b"\n") + 1 if self._by_line else len(self._rest)
            if end:
                piece = bytes(self._rest[:end])
                del self._rest[:end]
                shown = self._shown(piece)
                if shown:
                    yield shown
            elif await self._more():
                self._take()
            else:
                break
        whole = bytes(self._rest)
        self._rest.clear()
        shown = self._shown(whole, True)
        if shown:
            yield shown

    def __iter__(self) -> Iterator[Any]:
        return each(self._items())

    def __aiter__(self) -> AsyncIterator[Any]:
        return each_awaited(self._items())


class StreamWriter:
    """What a command reads. `write` keeps it, and `drain` sends it."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], close: Callable[[], Awaitable[None]]):
        self._send, self._close = send, close
        self._buffer = bytearray()
        self._is_closed = False
        self._is_told = False

    def write(self, data: Data) -> None:
        """Keeps something that `drain` sends."""
        if self._is_closed:
            raise ValueError("Stdin is closed. Cannot write to it.")
        if not isinstance(data, (bytes, bytearray, memoryview, str)):
            raise TypeError(f"data argument must be a bytes-like object or text, not {type(data).__name__}")
        piece = data.encode() if isinstance(data, str) else bytes(data)
        if len(self._buffer) + len(piece) > MAX_BUFFER:
            raise BufferError("Buffer size exceed limit. Call drain to clear the buffer.")
        self._buffer += piece

    def write_eof(self) -> None:
        """Has the command read the end of its input, once this is drained."""
        self._is_closed = True

    @both
    async def drain(self) -> None:
        """Sends what was kept."""
        piece = bytes(self._buffer)
        self._buffer.clear()
        if piece:
            await self._send(piece)
        if self._is_closed and not self._is_told:
            self._is_told = True
            await self._close()
