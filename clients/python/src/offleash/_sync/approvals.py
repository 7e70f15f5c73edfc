# Made by scripts/make_sync.py; change `_async` instead.
"""Questions about calls of tools that wait for a person."""

from __future__ import annotations

from typing import Any, List, Union

from .._models import Approval
from .._requests import segment
from .api import open_api


def list(**connection: Any) -> List[Approval]:
    """Those that wait: of the caller's sandboxes, one of each at most."""
    answer = (open_api(**connection)).ask("GET", "/v1/approvals")
    return [Approval.of(approval) for approval in answer["approvals"]]


def approve(approval: Union[Approval, str], scope: str = "once", **connection: Any) -> None:
    """Allows the call (`once`), or the tool for its sandbox within its grant (`sandbox`)."""
    api = open_api(**connection)
    api.ask("POST", f"/v1/approvals/{segment(_id(approval))}/approve", {"scope": scope})


def deny(approval: Union[Approval, str], **connection: Any) -> None:
    """Refuses the call, and later ones of the sandbox with the same parameters."""
    api = open_api(**connection)
    api.ask("POST", f"/v1/approvals/{segment(_id(approval))}/deny", {})


def _id(approval: Union[Approval, str]) -> str:
    return approval.id if isinstance(approval, Approval) else approval
