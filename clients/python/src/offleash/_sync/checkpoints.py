# Made by scripts/make_sync.py; change `_async` instead.
"""Checkpoints of one sandbox, to which it can be put back."""

from __future__ import annotations

from typing import List, Optional, Union

from .._models import Checkpoint, Snapshot
from .._requests import segment, without_none
from .api import Api


class Checkpoints:
    """The checkpoints of a sandbox."""

    def __init__(self, api: Api, sandbox_id: str):
        self._api = api
        self._sandbox = f"/v1/sandboxes/{segment(sandbox_id)}"

    def create(self, name: Optional[str] = None) -> Checkpoint:
        """Makes one of the files; the sandbox stands still for a moment."""
        answer = self._api.ask("POST", f"{self._sandbox}/checkpoints", without_none({"name": name}))
        return Snapshot.of(answer)

    def list(self) -> List[Checkpoint]:
        """Those that there are, the oldest first."""
        answer = self._api.ask("GET", f"{self._sandbox}/checkpoints")
        return [Snapshot.of(checkpoint) for checkpoint in answer["checkpoints"]]

    def remove(self, checkpoint: Union[Checkpoint, str]) -> None:
        """Removes one."""
        self._api.ask("DELETE", f"{self._sandbox}/checkpoints/{segment(_id(checkpoint))}")

    def restore(self, checkpoint: Union[Checkpoint, str]) -> None:
        """Puts the sandbox back to one: its processes end, and its files are those of the checkpoint."""
        self._api.ask("POST", f"{self._sandbox}/restore", {"checkpoint": _id(checkpoint)})


def _id(checkpoint: Union[Checkpoint, str]) -> str:
    return checkpoint.snapshot_id if isinstance(checkpoint, Snapshot) else checkpoint
