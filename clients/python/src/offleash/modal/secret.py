"""Secrets: variables that commands have. As with Modal, code inside can read them."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence

from . import exception


class Secret:
    """Variables that commands have."""

    def __init__(self, variables: Mapping[str, str]):
        self._variables = dict(variables)

    def __repr__(self) -> str:
        return f"Secret({', '.join(f'{name}=****' for name in self._variables)})"

    @classmethod
    def from_dict(cls, env_dict: Mapping[str, Optional[str]] = {}) -> "Secret":
        """One of these variables; those that are `None` are left out."""
        return cls(checked_variables(env_dict, "from_dict"))

    @classmethod
    def from_local_environ(cls, env_keys: Sequence[str]) -> "Secret":
        """One of variables of this program."""
        for name in env_keys:
            if name not in os.environ:
                raise exception.InvalidError(f"from_local_environ: `{name}` is not set")
        return cls({name: os.environ[name] for name in env_keys})

    @classmethod
    def from_name(cls, name: str, **_: Any) -> "Secret":
        """Not here: Modal keeps secrets by their names."""
        raise exception.not_here(f"secrets that are kept by name (`{name}`)", "give its variables to `Secret.from_dict`")

    @classmethod
    def from_dotenv(cls, *_: Any, **__: Any) -> "Secret":
        """Not here."""
        raise exception.not_here("`Secret.from_dotenv`", "read the file, and give what it has to `Secret.from_dict`")


def checked_variables(variables: Optional[Mapping[str, Optional[str]]], what: str) -> Dict[str, str]:
    """Variables that are said."""
    for name, value in (variables or {}).items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise exception.InvalidError(f"{what}: variables and their values must be text")
    return {name: value for name, value in (variables or {}).items() if value is not None}


def variables_of(env: Optional[Mapping[str, Optional[str]]], secrets: Optional[Iterable[Secret]]) -> Dict[str, str]:
    """What a command has of both; `env` wins."""
    merged: Dict[str, str] = {}
    for secret in secrets or ():
        if not isinstance(secret, Secret):
            raise exception.InvalidError(f"secrets: `{type(secret).__name__}` is no `Secret`")
        merged.update(secret._variables)
    return {**merged, **checked_variables(env, "env")}
