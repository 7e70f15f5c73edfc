"""Lists that come in pages."""

from __future__ import annotations

from typing import Any, AsyncIterator, Dict, List, Mapping, Optional

from .._models import SandboxInfo, Snapshot
from .._requests import query
from .api import AsyncApi, open_api


class _Pages:
    """A list of which a page is asked for at a time."""

    _route: str
    _key: str

    def __init__(self, connection: Mapping[str, Any], wanted: Mapping[str, Any], token: Optional[str] = None):
        self._connection = connection
        self._api: Optional[AsyncApi] = None
        self._wanted = dict(wanted)
        self._next = token
        self._has_next = True

    @property
    def has_next(self) -> bool:
        """Whether there is another page."""
        return self._has_next

    @property
    def next_token(self) -> Optional[str]:
        """From where another list may go on."""
        return self._next

    async def _page(self) -> List[Dict[str, Any]]:
        if self._api is None:
            self._api = await open_api(**self._connection)
        answer = await self._api.ask("GET", self._route + query(**self._wanted, nextToken=self._next))
        self._next = answer["next"]
        self._has_next = self._next is not None
        return answer[self._key]


class AsyncSandboxPages(_Pages):
    """Sandboxes, in pages."""

    _route = "/v1/sandboxes"
    _key = "sandboxes"

    async def next_items(self) -> List[SandboxInfo]:
        """The next page."""
        return [SandboxInfo.of(sandbox) for sandbox in await self._page()]

    async def __aiter__(self) -> AsyncIterator[SandboxInfo]:
        while self._has_next:
            for item in await self.next_items():
                yield item


class AsyncSnapshotPages(_Pages):
    """Snapshots, in pages."""

    _route = "/v1/snapshots"
    _key = "snapshots"

    async def next_items(self) -> List[Snapshot]:
        """The next page."""
        return [Snapshot.of(snapshot) for snapshot in await self._page()]

    async def __aiter__(self) -> AsyncIterator[Snapshot]:
        while self._has_next:
            for item in await self.next_items():
                yield item
