"""Tools that this sandbox was given: each is a function of this module.

    from offleash_tools import search
    search(query="x")

What a tool answers is the value of its function. A call that is refused, or fails, raises ToolError, whose `kind` is one
of refused, invalid, failed, timeout, unknown_tool.
"""

import json as _json
import socket as _socket
import struct as _struct
import time as _time

_ADDRESS = "\0offleash-tools"


class ToolError(Exception):
    """A call that has no result."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def _connect():
    # The sandbox's first command may be sooner there than who takes calls.
    for attempt in range(200):
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.connect(_ADDRESS)
            return connection
        except (ConnectionRefusedError, BlockingIOError):
            connection.close()
            if attempt == 199:
                raise ToolError("failed", "no tools are offered here") from None
            _time.sleep(0.01)


def _receive(connection, length):
    parts = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            raise ToolError("failed", "there was no answer")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _ask(request):
    body = _json.dumps(request).encode()
    if len(body) > 256 * 1024:
        raise ToolError("invalid", "a call is 256 KiB at most")
    with _connect() as connection:
        connection.sendall(_struct.pack("<I", len(body)) + body)
        (length,) = _struct.unpack("<I", _receive(connection, 4))
        answer = _json.loads(_receive(connection, length))
    if "error" in answer:
        raise ToolError(answer["error"]["kind"], answer["error"]["message"])
    return answer["result"]


def call(tool, **parameters):
    """Calls a tool by its name."""
    return _ask({"form": "json", "tool": tool, "parameters": parameters})


def tools():
    """What tools there are: a list with `name`, `function`, `description` and `parameters`, a JSON schema, of each."""
    return _ask({"form": "list"})


def __dir__():
    return ["ToolError", "call", "tools"] + [tool["function"] for tool in tools()]


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    for tool in tools():
        if tool["function"] == name:

            def function(**parameters):
                return call(tool["name"], **parameters)

            function.__name__ = function.__qualname__ = name
            function.__doc__ = tool["description"]
            return function
    raise AttributeError(f"there is no tool {name!r} here")
