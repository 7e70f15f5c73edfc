"""Directories that are watched: the server keeps what happens until it is asked."""

from __future__ import annotations

from typing import List, Optional

from .. import _errors
from .._models import FilesystemEvent
from .api import Services


class WatchHandle:
    """A directory that is watched."""

    def __init__(self, services: Services, watcher: str):
        self._services = services
        self._watcher = watcher

    def get_new_events(self) -> List[FilesystemEvent]:
        """What has happened since this was asked last."""
        answer = self._services.call("filesystem.Filesystem/GetWatcherEvents", {"watcherId": self._watcher})
        return [FilesystemEvent.of(event) for event in answer.get("events", [])]

    def stop(self) -> None:
        """Watches no more."""
        self._services.call("filesystem.Filesystem/RemoveWatcher", {"watcherId": self._watcher})


class Watching:
    """How directories are watched."""

    def __init__(self, services: Services):
        self.__services = services

    def watch_dir(
        self,
        path: str,
        user: Optional[str] = None,
        request_timeout: Optional[float] = None,
        recursive: bool = False,
    ) -> WatchHandle:
        """Watches a directory until the handle is stopped."""
        message = {"path": path, "recursive": recursive}
        answer = self.__services.call(
            "filesystem.Filesystem/CreateWatcher",
            message,
            user=user,
            timeout=request_timeout,
            not_found=_errors.FileNotFoundException,
        )
        return WatchHandle(self.__services, answer["watcherId"])
