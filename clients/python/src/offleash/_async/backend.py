"""What differs between the two halves of this library: here, how it is with asyncio."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from typing import Any, Callable, Dict, MutableMapping, Optional

import httpx

from .._connection import Connection, trusted

HttpClient = httpx.AsyncClient

_clients: MutableMapping[Any, Dict[Connection, httpx.AsyncClient]] = weakref.WeakKeyDictionary()


def http_client(connection: Connection) -> httpx.AsyncClient:
    """The client of a server: one for each event loop, because its connections belong to that."""
    of_loop = _clients.setdefault(asyncio.get_running_loop(), {})
    client = of_loop.get(connection)
    if client is None or client.is_closed:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=300)
        transport = httpx.AsyncHTTPTransport(uds=connection.socket, limits=limits)
        own = connection.socket is not None
        client = httpx.AsyncClient(
            base_url=connection.base_url,
            headers=connection.headers,
            transport=transport if own else None,
            limits=limits,
            trust_env=connection.trusts_environment,
            verify=own or trusted(connection),
        )
        of_loop[connection] = client
    return client


async def blocking(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what may take long, without holding up others."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: function(*arguments))


async def told(listener: Optional[Callable[[Any], Any]], what: Any) -> None:
    """Calls a listener, which may be a coroutine function."""
    if listener is not None:
        answer = listener(what)
        if inspect.isawaitable(answer):
            await answer


async def called(function: Callable[..., Any], parameters: Dict[str, Any]) -> Any:
    """Calls a tool: a coroutine function here, another in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**parameters)
    return await blocking(lambda: function(**parameters))


sleep = asyncio.sleep


class Job:
    """Something that goes on beside."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self._task = asyncio.ensure_future(function(*arguments))

    def abandon(self) -> None:
        """It is of no use any more."""
        self._task.cancel()
