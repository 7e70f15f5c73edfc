"""Volumes: directories that outlive sandboxes."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import IO, Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import urlencode

from .._async import volumes
from .._async.api import AsyncApi, open_api
from .._errors import NotFoundException
from .._local import files_below, read_plain
from .._models import Volume as Held
from .._models import time_of
from .._requests import segment
from . import exception
from ._both import awaited, both, both_of_class, iterated, wait
from .app import checked_name, refuse_client


class FileEntryType(IntEnum):
    """What is at a path of a volume."""

    UNSPECIFIED = 0
    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3


@dataclass(frozen=True)
class FileEntry:
    """What is at a path of a volume."""

    path: str
    type: FileEntryType
    mtime: int
    size: int


class Volume:
    """A directory that outlives sandboxes. What one sandbox writes, others see at once."""

    def __init__(self, name: str, create_if_missing: bool = False, read_only: bool = False):
        self._name, self._create, self._read_only = name, create_if_missing, read_only
        self._held: Optional[Held] = None
        self._token: Optional[str] = None

    def __repr__(self) -> str:
        return f"Volume.from_name({self._name!r})"

    @classmethod
    def from_name(
        cls,
        name: str,
        *,
        environment_name: Optional[str] = None,
        create_if_missing: bool = False,
        version: Optional[int] = None,
        client: Any = None,
        **more: Any,
    ) -> "Volume":
        """A volume of that name, which is asked for when it is needed; `version` says what only Modal tells apart."""
        refuse_client(client, environment_name)
        if more:
            raise exception.not_here(f"`{next(iter(more))}` of a volume")
        return cls(checked_name(name, "volume"), create_if_missing)

    @classmethod
    @contextmanager
    def ephemeral(cls, **_: Any) -> Iterator["Volume"]:
        """A volume that is removed at the end."""
        volume = cls(f"modal-{uuid.uuid4().hex[:16]}", True)
        volume.hydrate()
        try:
            yield volume
        finally:
            wait(volumes.remove(volume._name))

    def read_only(self) -> "Volume":
        """The same, to be mounted without being written to."""
        return Volume(self._name, self._create, True)

    def with_mount_options(self, *, read_only: bool = False, sub_path: Any = None) -> "Volume":
        """The same, to be mounted in another way."""
        if sub_path is not None:
            raise exception.not_here("`sub_path` of a volume")
        return Volume(self._name, self._create, read_only)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def object_id(self) -> str:
        """Its id, once it is known."""
        if self._held is None:
            raise exception.InvalidError("the volume was not asked for yet", hint="`hydrate()` does")
        return self._held.volume_id

    async def _found(self) -> Held:
        if self._held is None:
            try:
                self._held = await volumes.get(self._name)
            except NotFoundException:
                if not self._create:
                    raise exception.NotFoundError(f"there is no volume `{self._name}`", hint="`create_if_missing=True` makes it") from None
                # Modal's volumes may be written to by many.
                self._held = await volumes.create(self._name, shared=True)
        return self._held

    @both
    async def hydrate(self, client: Any = None) -> "Volume":
        """Asks for it now."""
        refuse_client(client)
        await self._found()
        return self

    @both
    async def commit(self) -> None:
        """Nothing is to be done: what is written is there for all."""
        await self._found()

    @both
    async def reload(self) -> None:
        """Nothing is to be done: what others wrote is there."""
        await self._found()

    async def _opened(self) -> Tuple[AsyncApi, str, Dict[str, str]]:
        api, held = await open_api(), await self._found()
        path = f"/volumes/{segment(held.volume_id)}"
        if self._token is None:
            self._token = (await api.ask("GET", path))["token"]
        return api, f"/volumecontent/{segment(held.volume_id)}", {"Authorization": f"Bearer {self._token}"}

    @iterated
    async def read_file(self, path: str) -> AsyncIterator[bytes]:
        """The pieces of a file."""
        api, content, headers = await self._opened()
        target = f"{content}/file?{urlencode({'path': _absolute(path)})}"
        async with api.stream("GET", target, headers=headers, silence=60) as answer:
            async for piece in answer.aiter_bytes():
                yield piece

    @both
    async def listdir(self, path: str, *, recursive: bool = False) -> List[FileEntry]:
        """What is in a directory."""
        return [entry async for entry in self._entries(path, recursive)]

    @iterated
    async def iterdir(self, path: str, *, recursive: bool = True) -> AsyncIterator[FileEntry]:
        """The same, one by one."""
        async for entry in self._entries(path, recursive):
            yield entry

    async def _entries(self, path: str, recursive: bool) -> AsyncIterator[FileEntry]:
        api, content, headers = await self._opened()
        depth = 64 if recursive else 1
        query = urlencode({"path": _absolute(path), "depth": depth})
        for entry in await api.ask("GET", f"{content}/dir?{query}", headers=headers):
            yield _entry(entry)

    @both
    async def remove_file(self, path: str, recursive: bool = False) -> None:
        """Removes a file, or with `recursive` a directory."""
        api, content, headers = await self._opened()
        if not recursive:
            found = _entry(await api.ask("GET", f"{content}/path?{urlencode({'path': _absolute(path)})}", headers=headers))
            if found.type is FileEntryType.DIRECTORY:
                raise exception.InvalidError(f"remove_file: `{path}` is a directory", hint="`recursive=True`")
        await api.ask("DELETE", f"{content}/path?{urlencode({'path': _absolute(path)})}", headers=headers)

    async def _put(self, path: str, data: bytes, force: bool) -> None:
        api, content, headers = await self._opened()
        if not force:
            try:
                await api.ask("GET", f"{content}/path?{urlencode({'path': path})}", headers=headers)
            except NotFoundException:
                pass
            else:
                raise FileExistsError(path)
        target = f"{content}/file?{urlencode({'path': path, 'force': 'true'})}"
        await api.send("PUT", target, headers={**headers, "Content-Type": "application/octet-stream"}, content=data)

    def batch_upload(self, force: bool = False) -> "VolumeUpload":
        """Files that are written at the end of a `with`."""
        return VolumeUpload(self, force)

    @both_of_class
    async def rename(cls, *_: Any, **__: Any) -> None:
        """Not here."""
        raise exception.not_here("other names for a volume")

    @both
    async def copy_files(self, *_: Any, **__: Any) -> None:
        """Not here."""
        raise exception.not_here("`copy_files` of a volume", "a command of a sandbox that has it copies")

    @both_of_class
    async def delete(cls, name: str, *, allow_missing: bool = False, environment_name: Optional[str] = None, client: Any = None) -> None:
        """Removes a volume that no sandbox uses."""
        refuse_client(client, environment_name)
        try:
            await volumes.remove(name)
        except NotFoundException:
            if not allow_missing:
                raise

    async def _mount(self) -> Any:
        held = await self._found()
        return {"volume": held.name, "read_only": True} if self._read_only else held


class VolumeUpload:
    """Files that are written into a volume at the end of a `with`."""

    def __init__(self, volume: Volume, force: bool):
        self._volume, self._force = volume, force
        self._files: List[Tuple[Any, str]] = []

    def put_file(self, local_file: Union[str, Path, IO[bytes]], remote_path: Union[str, PurePosixPath], mode: Optional[int] = None) -> None:
        """Has a file written: one of this machine, or what is read."""
        if mode is not None:
            raise exception.not_here("`mode` of `put_file`")
        name = _absolute(remote_path)
        if str(remote_path).endswith("/"):
            if not isinstance(local_file, (str, Path)):
                raise exception.InvalidError("put_file: what is read has to be given a name")
            name = f"{name.rstrip('/')}/{Path(local_file).name}"
        # A link that is named itself is meant.
        self._files.append((os.path.realpath(local_file) if isinstance(local_file, (str, Path)) else local_file, name))

    def put_directory(self, local_path: Union[str, Path], remote_path: Union[str, PurePosixPath], recursive: bool = True) -> None:
        """Has the files of a directory written. Links are left out, wherever they lead."""
        for path in files_below(Path(local_path), recursive):
            name = path.relative_to(local_path).as_posix()
            self._files.append((path, f"{_absolute(remote_path).rstrip('/')}/{name}"))

    async def _write(self) -> None:
        for source, name in self._files:
            data = read_plain(source) if isinstance(source, (str, Path)) else source.read()
            await self._volume._put(name, data, self._force)

    def __enter__(self) -> "VolumeUpload":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            wait(self._write())

    async def __aenter__(self) -> "VolumeUpload":
        return self

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            await awaited(self._write())


def _absolute(path: Union[str, PurePosixPath]) -> str:
    return f"/{str(path).lstrip('/')}"


def _entry(entry: Mapping[str, Any]) -> FileEntry:
    kinds = {"file": FileEntryType.FILE, "directory": FileEntryType.DIRECTORY, "symlink": FileEntryType.SYMLINK}
    changed = time_of(entry.get("mtime"))
    return FileEntry(
        path=str(entry.get("path", "")).lstrip("/"),
        type=kinds.get(str(entry.get("type")), FileEntryType.UNSPECIFIED),
        mtime=int(changed.timestamp()) if changed else 0,
        size=int(entry.get("size", 0)),
    )
