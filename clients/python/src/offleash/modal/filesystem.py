"""Files in a sandbox."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Union

from .. import _errors
from .._async.files import AsyncFiles
from .._local import written_anew
from .._models import EntryInfo
from .._models import FileType as EntryType
from . import exception
from ._both import both, wait
from .container_process import USER

#: What the server says of a path, and what Modal calls it.
_SAID = (
    ("Permission denied", exception.SandboxFilesystemPermissionError),
    ("Not a directory", exception.SandboxFilesystemNotADirectoryError),
    ("is not a directory", exception.SandboxFilesystemNotADirectoryError),
    ("is a directory", exception.SandboxFilesystemIsADirectoryError),
)


class FileType(Enum):
    """What is at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True)
class FileInfo:
    """What is at a path."""

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    #: Seconds since 1970.
    modified_time: float
    symlink_target: Optional[str]

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self.type is FileType.FILE

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type is FileType.DIRECTORY

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self.type is FileType.SYMLINK


def _info(entry: EntryInfo) -> FileInfo:
    kinds = {EntryType.DIR: FileType.DIRECTORY, EntryType.SYMLINK: FileType.SYMLINK}
    return FileInfo(
        name=entry.name,
        path=entry.path,
        type=FileType.FILE if entry.type is None else kinds.get(entry.type, FileType.FILE),
        size=entry.size,
        mode=entry.mode,
        permissions=entry.permissions,
        owner=entry.owner,
        group=entry.group,
        modified_time=entry.modified_time.timestamp() if entry.modified_time else 0.0,
        symlink_target=entry.symlink_target,
    )


@contextmanager
def _of_path(path: str) -> Iterator[None]:
    """Names errors of files as Modal does."""
    try:
        yield
    except exception.Error:
        raise
    except _errors.FileNotFoundException as error:
        raise exception.SandboxFilesystemNotFoundError(f"{path}: {error.message}", code=error.code) from error
    except (_errors.InvalidArgumentException, _errors.ConflictException, _errors.PermissionDeniedException) as error:
        kind = next((kind for said, kind in _SAID if said in error.message), exception.SandboxFilesystemError)
        raise kind(f"{path}: {error.message}", code=error.code, hint=error.hint) from error


def _checked(path: str, what: str) -> str:
    if not isinstance(path, str) or not path.startswith("/"):
        raise exception.InvalidError(f"{what}: `{path}` is not absolute")
    return path


class SandboxFilesystem:
    """Files in a sandbox, by absolute paths."""

    def __init__(self, files: Callable[[], AsyncFiles]):
        self._files = files

    @both
    async def read_bytes(self, remote_path: str) -> bytes:
        """A file."""
        with _of_path(_checked(remote_path, "read_bytes")):
            return bytes(await self._files().read(remote_path, "bytes", user=USER))

    @both
    async def read_text(self, remote_path: str) -> str:
        """A file, as UTF-8."""
        with _of_path(_checked(remote_path, "read_text")):
            return bytes(await self._files().read(remote_path, "bytes", user=USER)).decode()

    @both
    async def write_bytes(self, data: Union[bytes, bytearray, memoryview], remote_path: str) -> None:
        """Writes a file; directories on the way to it are made."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        await self._write(bytes(data), _checked(remote_path, "write_bytes"))

    @both
    async def write_text(self, data: str, remote_path: str) -> None:
        """The same with text."""
        if not isinstance(data, str):
            raise TypeError(f"data must be text, not {type(data).__name__}")
        await self._write(data.encode(), _checked(remote_path, "write_text"))

    async def _write(self, data: bytes, path: str) -> None:
        with _of_path(path):
            await self._files().write(path, data, user=USER)

    @both
    async def copy_from_local(self, local_path: Union[str, "os.PathLike[str]"], remote_path: str) -> None:
        """Writes a file of this machine into the sandbox."""
        _checked(remote_path, "copy_from_local")
        await self._write(Path(local_path).read_bytes(), remote_path)

    @both
    async def copy_to_local(self, remote_path: str, local_path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes a file of the sandbox to this machine, which its owner alone can read."""
        target = Path(local_path)
        with _of_path(_checked(remote_path, "copy_to_local")):
            pieces = await self._files().read(remote_path, "stream", user=USER)
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_anew(target) as file:
                async for piece in pieces:
                    file.write(piece)

    @both
    async def list_files(self, remote_path: str) -> List[FileInfo]:
        """What is in a directory."""
        return await self._list(_checked(remote_path, "list_files"))

    async def _list(self, path: str) -> List[FileInfo]:
        with _of_path(path):
            return [_info(entry) for entry in await self._files().list(path, user=USER)]

    @both
    async def stat(self, remote_path: str) -> FileInfo:
        """What is at a path."""
        with _of_path(_checked(remote_path, "stat")):
            return _info(await self._files().get_info(remote_path, user=USER))

    @both
    async def make_directory(self, remote_path: str, *, create_parents: bool = True) -> None:
        """Makes a directory, which may be there if those on the way to it may."""
        await self._make(_checked(remote_path, "make_directory"), create_parents)

    async def _make(self, path: str, parents: bool) -> None:
        with _of_path(path):
            if not parents and not await self._files().exists(os.path.dirname(path.rstrip("/")) or "/", user=USER):
                raise exception.SandboxFilesystemNotFoundError(f"{path}: the directory that it is to be in is not there")
            if not await self._files().make_dir(path, user=USER) and not parents:
                raise exception.SandboxFilesystemPathAlreadyExistsError(f"{path}: it is there")

    @both
    async def remove(self, remote_path: str, *, recursive: bool = False) -> None:
        """Removes a file, an empty directory, or with `recursive` any."""
        await self._remove(_checked(remote_path, "remove"), recursive)

    async def _remove(self, path: str, recursive: bool) -> None:
        with _of_path(path):
            found = await self._files().get_info(path, user=USER)
            if not recursive and found.type is EntryType.DIR and await self._files().list(path, user=USER):
                raise exception.SandboxFilesystemDirectoryNotEmptyError(f"{path}: it is not empty")
            await self._files().remove(path, user=USER)

    @both
    async def watch(self, *_: Any, **__: Any) -> None:
        """Not here."""
        raise exception.not_here("`filesystem.watch`", "`offleash.Sandbox.connect(ID).files.watch_dir` watches a directory")


class FileIO:
    """A file of a sandbox that was opened: it was read whole, and is written whole when it is flushed or closed."""

    def __init__(self, filesystem: SandboxFilesystem, path: str, mode: str):
        kinds = set(mode) - set("bt+")
        if len(kinds) != 1 or not kinds <= set("rwax") or set("bt") <= set(mode) or len(set(mode)) != len(mode):
            raise ValueError(f"Invalid file mode: {mode}")
        kind = kinds.pop()
        self._filesystem, self._path, self._is_text = filesystem, path, "b" not in mode
        self._may_read, self._may_write = kind == "r" or "+" in mode, kind != "r" or "+" in mode
        self._changed = kind in "wx"
        content = b"" if kind in "wx" else self._before(kind == "r")
        if kind == "x" and wait(filesystem._files().exists(path, user=USER)):
            raise FileExistsError(path)
        self._content = io.BytesIO(content)
        self._content.seek(len(content) if kind == "a" else 0)
        self.closed = False

    def _before(self, must_be_there: bool) -> bytes:
        try:
            return self._filesystem.read_bytes(self._path)
        except exception.SandboxFilesystemNotFoundError:
            if must_be_there:
                raise FileNotFoundError(self._path) from None
            return b""

    def _shown(self, content: bytes) -> Any:
        return content.decode() if self._is_text else content

    def _checked(self, may: bool, what: str) -> io.BytesIO:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not may:
            raise io.UnsupportedOperation(f"not {what}")
        return self._content

    def read(self, n: Optional[int] = None) -> Any:
        """What is left of it, or `n` bytes."""
        return self._shown(self._checked(self._may_read, "readable").read(-1 if n is None else n))

    def readline(self) -> Any:
        """A line."""
        return self._shown(self._checked(self._may_read, "readable").readline())

    def readlines(self) -> List[Any]:
        """The lines that are left."""
        return [self._shown(line) for line in self._checked(self._may_read, "readable").readlines()]

    def write(self, data: Any) -> None:
        """Writes at the present place."""
        content = self._checked(self._may_write, "writable")
        if self._is_text != isinstance(data, str):
            raise TypeError(f"a file in this mode does not take {type(data).__name__}")
        content.write(data.encode() if self._is_text else data)
        self._changed = True

    def seek(self, offset: int, whence: int = 0) -> None:
        """Moves the present place."""
        self._checked(True, "open").seek(offset, whence)

    def flush(self) -> None:
        """Writes the file."""
        content = self._checked(True, "open")
        if self._changed:
            self._filesystem.write_bytes(content.getvalue(), self._path)
            self._changed = False

    def close(self) -> None:
        """Writes the file if it was changed, and ends."""
        if not self.closed:
            self.flush()
            self.closed = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.readlines())

    def __enter__(self) -> "FileIO":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
