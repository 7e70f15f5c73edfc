"""Directories that are watched: a task hears what happens, and tells it."""

from __future__ import annotations

from typing import Any, AsyncIterator, Callable, Dict, Optional

from .. import _errors
from .._models import FilesystemEvent
from .._requests import milliseconds
from . import backend
from .api import AsyncServices


class AsyncWatchHandle:
    """A directory that is watched."""

    def __init__(self, job: backend.Job):
        self._job = job

    async def stop(self) -> None:
        """Watches no more."""
        self._job.abandon()


class AsyncWatching:
    """How directories are watched."""

    def __init__(self, services: AsyncServices):
        self.__services = services

    async def watch_dir(
        self,
        path: str,
        on_event: Callable[[FilesystemEvent], Any],
        on_exit: Optional[Callable[[Exception], Any]] = None,
        user: Optional[str] = None,
        timeout: Optional[float] = 60,
        recursive: bool = False,
    ) -> AsyncWatchHandle:
        """Tells what happens in a directory until the handle is stopped, or for `timeout` seconds; 0 is without end."""
        message = {"path": path, "recursive": recursive}
        not_found = _errors.FileNotFoundException
        how = {"user": user, "timeout_ms": milliseconds(timeout), "not_found": not_found}
        events = self.__services.events("filesystem.Filesystem/WatchDir", message, **how)
        # The first says that nothing is missed from here on.
        await events.__anext__()
        return AsyncWatchHandle(backend.Job(_follow, events, on_event, on_exit))


async def _follow(events: AsyncIterator[Dict[str, Any]], on_event: Any, on_exit: Any) -> None:
    try:
        async for event in events:
            if "filesystem" in event:
                await backend.told(on_event, FilesystemEvent.of(event["filesystem"]))
    except Exception as error:
        await backend.told(on_exit, error)
