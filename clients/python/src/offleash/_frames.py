"""The Connect protocol with JSON, as a sandbox's services speak it: one flag byte, four of the length, then the message."""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator, Type

from . import _errors

#: Most bytes of one message that is taken from a server.
MAX_FRAME = 64 * 1024 * 1024

_HEAD = struct.Struct(">BI")
_END = 0x02


def frame(message: Dict[str, Any]) -> bytes:
    """A message as it is sent."""
    text = json.dumps(message).encode()
    return _HEAD.pack(0, len(text)) + text


class FrameReader:
    """Puts the messages of a stream together from its pieces."""

    def __init__(self, not_found: Type[_errors.OffleashError] = _errors.NotFoundException):
        self._bytes = bytearray()
        self._not_found = not_found
        #: Whether the stream has ended as it should; otherwise it was cut.
        self.ended = False

    def feed(self, piece: bytes) -> Iterator[Dict[str, Any]]:
        """The messages that are whole with this piece; raises the error that the stream ends with."""
        self._bytes += piece
        while len(self._bytes) >= _HEAD.size:
            flags, length = _HEAD.unpack_from(self._bytes)
            if length > MAX_FRAME:
                raise _errors.SandboxException(f"a message of {length} bytes is longer than any may be")
            if len(self._bytes) < _HEAD.size + length:
                return
            text = bytes(self._bytes[_HEAD.size : _HEAD.size + length])
            del self._bytes[: _HEAD.size + length]
            message = json.loads(text or b"{}")
            if flags & _END:
                self.ended = True
                error = message.get("error")
                if error:
                    word = error.get("code", "unknown")
                    raise _errors.of_word(word, error.get("message", word), self._not_found)
                return
            yield message
