# Made by scripts/make_sync.py; change `_async` instead.
"""Ports of a sandbox, and what is reached by an address alone."""

from __future__ import annotations

import json
import shlex
from typing import Any, Mapping, Optional
from urllib.parse import urlencode

from .. import _requests
from .._connection import ServerAddress
from .._errors import NotFoundException
from .._models import SandboxInfo
from .api import Api
from .commands import Commands
from .files import Files, signature


class Ports:
    """What addresses a sandbox has."""

    commands: Commands
    files: Files
    _api: Api
    _id: str
    _info: Optional[SandboxInfo]
    _address: Optional[ServerAddress]
    _mcp_token: Optional[str]

    def _known(self) -> SandboxInfo:
        if self._info is None:
            raise NotFoundException(f"sandbox `{self._id}` is known by its id alone; connect to it first")
        return self._info

    def get_host(self, port: int) -> str:
        """The host name of one of its ports, which is asked at the server's port."""
        return f"{port}-{self._id}.{self._addressed().domain}"

    def get_url(self, port: int) -> str:
        """Where programs ask one of its ports without knowing names: a path of the server."""
        return f"{self._addressed().url}/_port/{self._id}/{port}/"

    def _addressed(self) -> ServerAddress:
        self._known()
        assert self._address is not None
        return self._address

    def download_url(
        self, path: str, user: Optional[str] = None, use_signature_expiration: Optional[int] = None
    ) -> str:
        """Where one file is read by whoever has the URL, for that many seconds."""
        return self._signed(path, "read", user, use_signature_expiration)

    def upload_url(
        self, path: str, user: Optional[str] = None, use_signature_expiration: Optional[int] = None
    ) -> str:
        """Where one file is written by whoever has the URL, for that many seconds."""
        return self._signed(path, "write", user, use_signature_expiration)

    def _signed(self, path: str, operation: str, user: Optional[str], seconds: Optional[int]) -> str:
        token = self._known().raw["access_token"] or ""
        signed = signature(path, operation, user or "", token, seconds)
        return f"{self._addressed().url}/files?{urlencode(signed)}"

    def _start_mcp(self, servers: Mapping[str, Any]) -> None:
        self._mcp_token = _requests.new_key()
        command = f"mcp-gateway --config {shlex.quote(json.dumps(servers))}"
        self.commands.run(command, user="root", envs={"GATEWAY_ACCESS_TOKEN": self._mcp_token})

    def get_mcp_url(self) -> str:
        """Where the servers inside are asked that `mcp` named."""
        return f"{self.get_url(50005)}mcp"

    def get_mcp_token(self) -> Optional[str]:
        """What they ask for."""
        if self._mcp_token is None:
            self._mcp_token = self.files.read("/etc/mcp-gateway/.token", user="root")
        return self._mcp_token
