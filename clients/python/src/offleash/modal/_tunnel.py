"""Ways to the ports of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple
from urllib.parse import urlsplit

from . import exception


@dataclass(frozen=True)
class Tunnel:
    """A way to a port of a sandbox, by the server: HTTP, and encrypted as far as the server's address is."""

    #: The host and port of the server, which knows the sandbox by the path of `url`, or by this name.
    host: str
    port: int
    #: A path of the server that programs can ask without knowing names.
    url: str

    @property
    def tls_socket(self) -> Tuple[str, int]:
        """The server's host and port, if they are encrypted."""
        if urlsplit(self.url).scheme != "https":
            raise exception.not_here("encryption at this server", "put a proxy that has it before the server; `url` is without")
        return (self.host, self.port)

    @property
    def tcp_socket(self) -> Tuple[str, int]:
        """Not here."""
        raise exception.not_here("tunnels for other protocols than HTTP", "`url` is for HTTP and web sockets")
