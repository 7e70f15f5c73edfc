# Made by scripts/make_sync.py; change `_async` instead.
"""Snapshots in files."""

from __future__ import annotations

import json
from typing import IO, Iterator, Optional
from urllib.parse import urlencode

from .._models import Snapshot
from .._requests import segment
from . import backend
from .api import Api

# How long the server may take for a piece, and to say what it made of all of them, seconds.
_SILENCE = 300
_PIECE = 256 << 10


def export_to(api: Api, snapshot_id: str, file: IO[bytes]) -> None:
    """Writes a snapshot to a file, piece by piece."""
    with api.stream("GET", f"/v1/snapshots/{segment(snapshot_id)}/export", silence=_SILENCE) as answer:
        for piece in answer.iter_bytes():
            backend.blocking(file.write, piece)


def import_from(api: Api, file: IO[bytes], name: Optional[str]) -> Snapshot:
    """Sends a file, piece by piece."""
    path = "/v1/snapshots/import" + (f"?{urlencode({'name': name})}" if name else "")
    headers = {"Content-Type": "application/x-tar"}
    # What was read of a file is sent once.
    with api.stream("POST", path, headers=headers, silence=_SILENCE, content=_pieces(file)) as answer:
        return Snapshot.of(json.loads(answer.read()))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while True:
        piece = backend.blocking(file.read, _PIECE)
        if not piece:
            return
        yield piece
