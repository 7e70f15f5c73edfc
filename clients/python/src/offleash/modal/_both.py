"""Methods that are called with and without an event loop: `method(…)` waits, `method.aio(…)` is awaited.

There is one source. It runs in an event loop of its own, in a thread that ends with the program, so that what a command
writes is read whatever the program does meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any, AsyncIterator, Callable, Coroutine, Iterator, Optional

from .._errors import OffleashError
from . import exception

_loop: Optional[asyncio.AbstractEventLoop] = None
_starting = threading.Lock()


def loop() -> asyncio.AbstractEventLoop:
    """The loop in which everything runs."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="offleash-modal", daemon=True).start()
        return _loop


async def _told(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Waits, and raises errors by the names of Modal's library."""
    try:
        return await coroutine
    except exception.Error:
        raise
    except OffleashError as error:
        raise exception.of(error) from error


def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Waits in this thread."""
    future = asyncio.run_coroutine_threadsafe(_told(coroutine), loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Waits in the event loop of the caller."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_told(coroutine), loop()))


class BothForms:
    """A method with both forms."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]):
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return wait(self._function(*arguments, **named))

    async def aio(self, *arguments: Any, **named: Any) -> Any:
        """The same, to be awaited."""
        return await awaited(self._function(*arguments, **named))


class BothIterators:
    """A method whose answer is iterated, with both forms."""

    def __init__(self, function: Callable[..., AsyncIterator[Any]]):
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        return each(self._function(*arguments, **named))

    def aio(self, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        """The same for `async for`."""
        return each_awaited(self._function(*arguments, **named))


async def _next(items: AsyncIterator[Any]) -> Any:
    # An end cannot pass a future as the exception that it is.
    try:
        return True, await items.__anext__()
    except StopAsyncIteration:
        return False, None


def each(items: AsyncIterator[Any]) -> Iterator[Any]:
    """Iterates in this thread."""
    while True:
        there, item = wait(_next(items))
        if not there:
            return
        yield item


async def each_awaited(items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Iterates in the event loop of the caller."""
    while True:
        there, item = await awaited(_next(items))
        if not there:
            return
        yield item


class _Bound:
    """A descriptor that gives a method its object, or its class."""

    forms: Any = BothForms

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.__doc__ = function.__doc__

    def _of(self, owner: Any) -> Any:
        bound = functools.partial(self._function, owner)
        functools.update_wrapper(bound, self._function)
        return self.forms(bound)


class both(_Bound):
    """Has a coroutine method with both forms."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else self._of(instance)


class both_of_class(_Bound):
    """The same for a method of a class."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._of(owner)


class iterated(both):
    """Has a method with both forms whose answer is iterated."""

    forms = BothIterators


class iterated_of_class(both_of_class):
    """The same for a method of a class."""

    forms = BothIterators
