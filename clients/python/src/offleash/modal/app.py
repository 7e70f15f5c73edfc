"""Apps: names by which sandboxes belong together."""

from __future__ import annotations

import re
from typing import Any, Optional

from . import exception
from ._both import both_of_class

_NAME = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")


def checked_name(name: str, what: str) -> str:
    """A name as Modal has it: up to 64 letters, digits, `-`, `_` and `.`."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise exception.InvalidError(f"{what}: `{name}` is no name", hint="up to 64 letters, digits, `-`, `_` and `.`")
    return name


class App:
    """A name by which sandboxes belong together. It is there as soon as it is said, and nowhere else."""

    def __init__(self, name: Optional[str] = None, **options: Any):
        if options:
            raise exception.not_here(f"`App({next(iter(options))}=…)`", "functions of Modal are not here: sandboxes alone are")
        self.name = None if name is None else checked_name(name, "app")

    @property
    def app_id(self) -> Optional[str]:
        """Its name."""
        return self.name

    @both_of_class
    async def lookup(
        cls, name: str, *, client: Any = None, environment_name: Optional[str] = None, create_if_missing: bool = False
    ) -> "App":
        """The app of that name; there is nothing to be made."""
        refuse_client(client, environment_name)
        return cls(name)

    def function(self, *_: Any, **__: Any) -> Any:
        """Not here."""
        raise exception.not_here("functions", "make a sandbox, or use `integrations/ray`")

    cls = function
    server = function
    run = function
    deploy = function


def refuse_client(client: Any, environment_name: Optional[str] = None) -> None:
    """Says that there are neither clients nor environments of Modal."""
    if client is not None:
        raise exception.not_here("`client`", "OFFLEASH_URL and OFFLEASH_API_KEY name a server")
    if environment_name:
        raise exception.not_here("`environment_name`")
