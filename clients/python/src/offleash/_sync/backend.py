"""What differs between the two halves of this library: here, how it is with threads."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional

import httpx

from .._connection import Connection, trusted

HttpClient = httpx.Client

_clients: Dict[Connection, httpx.Client] = {}
_making = threading.Lock()


def http_client(connection: Connection) -> httpx.Client:
    """The client of a server, which all threads share."""
    with _making:
        client = _clients.get(connection)
        if client is None or client.is_closed:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=300)
            own = connection.socket is not None
            client = httpx.Client(
                base_url=connection.base_url,
                headers=connection.headers,
                transport=httpx.HTTPTransport(uds=connection.socket, limits=limits) if own else None,
                limits=limits,
                trust_env=connection.trusts_environment,
                verify=own or trusted(connection),
            )
            _clients[connection] = client
        return client


def blocking(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what may take long."""
    return function(*arguments)


def told(listener: Optional[Callable[[Any], Any]], what: Any) -> None:
    """Calls a listener."""
    if listener is not None:
        listener(what)


def called(function: Callable[..., Any], parameters: Dict[str, Any]) -> Any:
    """Calls a tool."""
    return function(**parameters)


sleep = time.sleep


class Job:
    """Something that goes on beside; it ends with the program."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self._thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """It ends by itself when what it reads from is closed."""
