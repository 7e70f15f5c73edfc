"""A server elsewhere, named as for the command line, and the keys that `offleash login` kept."""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
from pathlib import Path
from typing import Iterator, Optional
from urllib.parse import urlsplit

from ._errors import AuthenticationException, InvalidArgumentException, PermissionDeniedException

#: The most that is read of the file with keys.
MAX_FILE = 1024 * 1024


def canonical(url: str) -> Optional[str]:
    """`https://HOST[:PORT]` as the command line writes it; `None` if it is something else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    more = parts.path not in ("", "/") or "?" in url or "#" in url or "@" in parts.netloc or parts.netloc.endswith(":")
    if usual is None or not parts.hostname or port == 0 or more:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


def keeps_secrets(url: str) -> bool:
    """Whether nobody reads what is sent to a server: by TLS, or on this machine."""
    return url.startswith("https:") or is_loopback(url)


def is_loopback(url: str) -> bool:
    """Whether a server is this machine by its very name."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of_environment() -> Optional[str]:
    """The server that OFFLEASH_HOST names.

    Raises:
        InvalidArgumentException: it is no address of a server, or one to which keys would go unencrypted.
    """
    named = os.environ.get("OFFLEASH_HOST")
    if not named:
        return None
    url = canonical(named)
    if url is None:
        # What stands before an `@` may be a secret.
        shown = named.rpartition("@")[2]
        raise InvalidArgumentException(f"OFFLEASH_HOST: `{shown}` is no address of a server", hint="as in `https://HOST:PORT`")
    if not keeps_secrets(url):
        raise InvalidArgumentException(
            f"OFFLEASH_HOST: `{url}` is not encrypted, and others could read the key and everything else that is sent there",
            hint="serve with `--tls-cert` and `--tls-key`; `url=` and OFFLEASH_URL send it all the same",
        )
    return url


def key_of(url: str) -> Optional[str]:
    """The key that `offleash login` kept for a server, if there is one."""
    name = canonical(url)
    directory = next(filter(_is_ours, _directories()), None)
    if name is None or directory is None or not keeps_secrets(name):
        return None
    path = directory / "offleash" / "keys.json"
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionDeniedException(
                    f"others can read the keys in `{path}`, or write them",
                    hint=f"`chmod 600 {path}` makes it yours alone; the keys in it may be known to others",
                )
            kept = json.loads(file.read(MAX_FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        # Its content is no part of the message.
        raise AuthenticationException(f"the keys in `{path}` cannot be read") from None
    key = kept.get(name) if isinstance(kept, dict) else None
    return key if isinstance(key, str) else None


def needed_key_of(url: str) -> str:
    """The same where there has to be one."""
    key = key_of(url)
    if key is None:
        hint = f"`offleash login {url}` keeps one, and OFFLEASH_API_KEY gives one to one program"
        raise AuthenticationException(f"no key of `{url}` is known", hint=hint)
    return key


def _directories() -> Iterator[Path]:
    """Where the user's configuration may be, as the command line looks for it."""
    yield Path(os.environ.get("XDG_CONFIG_HOME") or ".")
    yield Path(os.environ.get("HOME") or ".") / ".config"
    try:
        yield Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".config"
    except KeyError:
        pass


def _is_ours(path: Path) -> bool:
    """Whether a directory, or the nearest above it that exists, belongs to this user."""
    try:
        above = next(above for above in (path, *path.parents) if above.exists())
        return path.is_absolute() and above.stat().st_uid == os.geteuid()
    except OSError:
        return False
