"""Snapshots in files."""

from __future__ import annotations

import json
from typing import IO, AsyncIterator, Optional
from urllib.parse import urlencode

from .._models import Snapshot
from .._requests import segment
from . import backend
from .api import AsyncApi

# How long the server may take for a piece, and to say what it made of all of them, seconds.
_SILENCE = 300
_PIECE = 256 << 10


async def export_to(api: AsyncApi, snapshot_id: str, file: IO[bytes]) -> None:
    """Writes a snapshot to a file, piece by piece."""
    async with api.stream("GET", f"/v1/snapshots/{segment(snapshot_id)}/export", silence=_SILENCE) as answer:
        async for piece in answer.aiter_bytes():
            await backend.blocking(file.write, piece)


async def import_from(api: AsyncApi, file: IO[bytes], name: Optional[str]) -> Snapshot:
    """Sends a file, piece by piece."""
    path = "/v1/snapshots/import" + (f"?{urlencode({'name': name})}" if name else "")
    headers = {"Content-Type": "application/x-tar"}
    # What was read of a file is sent once.
    async with api.stream("POST", path, headers=headers, silence=_SILENCE, content=_pieces(file)) as answer:
        return Snapshot.of(json.loads(await answer.aread()))


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while True:
        piece = await backend.blocking(file.read, _PIECE)
        if not piece:
            return
        yield piece
