"""Which server is asked, and what it is shown."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional, Union

import httpx

from . import _daemon, _logins
from ._errors import InvalidArgumentException
from ._local import own_directory, read_plain, written_anew

#: How long a request may take, seconds.
REQUEST_TIMEOUT = 60.0


@dataclass(frozen=True)
class Connection:
    """A server: by its address and a key, or by the socket at which it serves its owner."""

    url: Optional[str] = None
    api_key: Optional[str] = None
    socket: Optional[str] = None
    #: Whether it is the server that this library starts, which is started again when it has ended.
    private: bool = False
    request_timeout: float = REQUEST_TIMEOUT
    #: A file with authorities (PEM) that are trusted beside the usual ones.
    authorities: Optional[str] = None

    @property
    def base_url(self) -> str:
        """What paths are put behind."""
        return self.url or "http://localhost"

    @property
    def trusts_environment(self) -> bool:
        """Whether proxies that the environment names are used: a key to this machine is told to none."""
        return self.url is not None and (self.url.startswith("https:") or not _logins.is_loopback(self.url))

    @property
    def headers(self) -> Dict[str, str]:
        """What every request has."""
        return {"X-API-KEY": self.api_key} if self.api_key else {}


@dataclass(frozen=True)
class ServerAddress:
    """Where the ports of a server's sandboxes are reached."""

    #: What host names of ports end with.
    domain: str
    #: The server's address.
    url: str


#: Those that are known. A server that is started again is at another port.
addresses: Dict[Connection, ServerAddress] = {}


def resolve(
    url: Optional[str] = None, api_key: Optional[str] = None, request_timeout: Optional[float] = None
) -> Connection:
    """The server that is named, by arguments, OFFLEASH_URL or OFFLEASH_HOST; else one of this user that runs; else one of its own.

    `unix:PATH` is a server's socket, `api.sock` in its state directory. A key is an argument, OFFLEASH_API_KEY, or what
    `offleash login` kept.
    """
    timeout = REQUEST_TIMEOUT if request_timeout is None else request_timeout
    key = api_key or os.environ.get("OFFLEASH_API_KEY") or None
    authorities = os.environ.get("OFFLEASH_CA") or None
    url = url or os.environ.get("OFFLEASH_URL") or None
    if url is None:
        url = _logins.host_of_environment()
        if url is not None:
            return Connection(url, key or _logins.needed_key_of(url), request_timeout=timeout, authorities=authorities)
        usual = _daemon.usual_state() / "api.sock"
        private = not _daemon.answers(usual)
        path = _daemon.ensure() if private else usual
        return Connection(socket=_daemon.short_path(path), private=private, request_timeout=timeout)
    if url.startswith("unix:"):
        path = Path(url[len("unix:") :])
        return Connection(socket=_daemon.short_path(path), request_timeout=timeout)
    if not url.startswith(("http://", "https://")):
        raise InvalidArgumentException(f"`{url}` is no address of a server", hint="as in `http://127.0.0.1:3000`")
    url = url.rstrip("/")
    return Connection(url, key or _logins.key_of(url), request_timeout=timeout, authorities=authorities)


def names_key() -> bytes:
    """What names are made with that nobody else can make: the key that servers know, or one that is kept for this user.

    Raises:
        InvalidArgumentException: there is none, and none can be kept.
    """
    given = os.environ.get("OFFLEASH_API_KEY")
    if given:
        return given.encode()
    try:
        with own_directory(_daemon.private_state()) as state:
            path = state / "names.key"
            if not path.exists():
                with written_anew(path) as file:
                    file.write(os.urandom(32))
            return read_plain(path)
    except OSError as error:
        raise InvalidArgumentException(f"secrets of images need a key that is kept: {error}", hint=_daemon.STATE_HINT) from error


def trusted(connection: Connection) -> Union[bool, ssl.SSLContext]:
    """Whose certificates are trusted."""
    if connection.authorities is None:
        return True
    context = httpx.create_ssl_context()
    try:
        context.load_verify_locations(connection.authorities)
    except OSError as error:
        message = f"the authorities in `{connection.authorities}` cannot be read: {error.strerror or error}"
        raise InvalidArgumentException(message, hint="OFFLEASH_CA names a file with certificates (PEM)") from error
    return context
