"""Files in a sandbox."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import IO, Any, AsyncIterator, Dict, Iterable, List, Optional, Union
from urllib.parse import urlencode

from .. import _errors
from .._errors import FileNotFoundException, InvalidArgumentException
from .._models import EntryInfo, WriteEntry, WriteInfo
from .._requests import without_none
from .api import AsyncServices
from .watch import AsyncWatching

Data = Union[str, bytes, IO[Any]]


class AsyncFiles(AsyncWatching):
    """Files in a sandbox. Relative paths begin in the user's home."""

    def __init__(self, services: AsyncServices):
        super().__init__(services)
        self._services = services

    async def read(
        self,
        path: str,
        format: str = "text",
        user: Optional[str] = None,
        request_timeout: Optional[float] = None,
    ) -> Any:
        """A file, as `text`, as `bytes` (a `bytearray`), or as a `stream` of pieces.

        Raises:
            FileNotFoundException: there is none.
        """
        if format == "stream":
            return self._pieces(path, user)
        if format not in ("text", "bytes"):
            raise InvalidArgumentException(f"format: `{format}` is none of `text`, `bytes` and `stream`")
        headers = self._services.headers()
        target = _target(path, user)
        answer = await self._services.api.send(
            "GET", target, headers=headers, timeout=request_timeout, not_found=FileNotFoundException
        )
        return bytearray(answer.content) if format == "bytes" else answer.content.decode(errors="replace")

    async def _pieces(self, path: str, user: Optional[str]) -> AsyncIterator[bytes]:
        target = _target(path, user)
        headers = self._services.headers()
        async with self._services.api.stream("GET", target, headers=headers, silence=120, not_found=FileNotFoundException) as answer:
            async for piece in answer.aiter_bytes():
                yield piece

    async def write(
        self, path: str, data: Data, user: Optional[str] = None, request_timeout: Optional[float] = None
    ) -> WriteInfo:
        """Writes a file; directories on the way to it are made."""
        target = _target(path, user)
        headers = self._services.headers(**{"Content-Type": "application/octet-stream"})
        answer = await self._services.api.send("POST", target, headers=headers, timeout=request_timeout, content=_content(data))
        return WriteInfo.of(answer.json()[0])

    async def write_files(
        self,
        files: Iterable[Union[WriteEntry, Dict[str, Any]]],
        user: Optional[str] = None,
        request_timeout: Optional[float] = None,
    ) -> List[WriteInfo]:
        """Writes several files."""
        written = []
        for file in files:
            path, data = (file.path, file.data) if isinstance(file, WriteEntry) else (file["path"], file["data"])
            written.append(await self.write(path, data, user, request_timeout))
        return written

    async def list(
        self, path: str, depth: int = 1, user: Optional[str] = None, request_timeout: Optional[float] = None
    ) -> List[EntryInfo]:
        """What is in a directory, and below it to a depth."""
        if depth < 1:
            raise InvalidArgumentException("depth: must be at least 1")
        answer = await self._call("ListDir", {"path": path, "depth": depth}, user, request_timeout)
        return [EntryInfo.of(entry) for entry in answer.get("entries", [])]

    async def exists(self, path: str, user: Optional[str] = None, request_timeout: Optional[float] = None) -> bool:
        """Whether there is anything at a path."""
        try:
            await self._call("Stat", {"path": path}, user, request_timeout)
        except FileNotFoundException:
            return False
        return True

    async def get_info(self, path: str, user: Optional[str] = None, request_timeout: Optional[float] = None) -> EntryInfo:
        """What is at a path."""
        return EntryInfo.of((await self._call("Stat", {"path": path}, user, request_timeout))["entry"])

    async def remove(self, path: str, user: Optional[str] = None, request_timeout: Optional[float] = None) -> None:
        """Removes a file, or a directory with all that is in it."""
        await self._call("Remove", {"path": path}, user, request_timeout)

    async def rename(
        self, old_path: str, new_path: str, user: Optional[str] = None, request_timeout: Optional[float] = None
    ) -> EntryInfo:
        """Moves something."""
        message = {"source": old_path, "destination": new_path}
        return EntryInfo.of((await self._call("Move", message, user, request_timeout))["entry"])

    async def make_dir(self, path: str, user: Optional[str] = None, request_timeout: Optional[float] = None) -> bool:
        """Makes a directory, and those on the way to it; answers whether it was not there."""
        try:
            await self._call("MakeDir", {"path": path}, user, request_timeout)
        except _errors.ConflictException:
            return False
        return True

    async def _call(self, method: str, message: Dict[str, Any], user: Optional[str], timeout: Optional[float]) -> Dict[str, Any]:
        return await self._services.call(
            f"filesystem.Filesystem/{method}", message, user=user, timeout=timeout, not_found=FileNotFoundException
        )


def _target(path: str, user: Optional[str]) -> str:
    # Files are asked for as the user of the query; other services ask the headers for it.
    return "/files?" + urlencode(without_none({"path": path, "username": user}))


def _content(data: Data) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if hasattr(data, "read"):
        return _content(data.read())
    raise InvalidArgumentException(f"data: `{type(data).__name__}` is neither text, nor bytes, nor a file")


def signature(path: str, operation: str, user: str, token: str, seconds: Optional[int]) -> Dict[str, Any]:
    """What shows that whoever has a URL may read or write one file."""
    signed = [path, operation, user, token]
    query: Dict[str, Any] = {"path": path}
    if user:
        query["username"] = user
    if seconds is not None:
        query["signature_expiration"] = int(time.time()) + seconds
        signed.append(str(query["signature_expiration"]))
    digest = base64.b64encode(hashlib.sha256(":".join(signed).encode()).digest()).decode()
    query["signature"] = "v1_" + digest.rstrip("=")
    return query
