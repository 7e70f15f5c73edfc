"""Errors, by the names that Modal's library has for them. Each is an `OffleashError`, too."""

from __future__ import annotations

from typing import List, Tuple, Type

from .. import _errors
from .._errors import OffleashError


class Error(OffleashError):
    """Whatever this module raises."""


class AlreadyExistsError(Error):
    """There is another one of that name."""


class AuthError(Error):
    """The key was not accepted."""


class InternalError(Error):
    """The server failed."""


class InvalidError(Error):
    """What was asked makes no sense."""


class ConflictError(InvalidError):
    """It cannot be done in the state that things are in."""


class NotFoundError(Error):
    """What was asked for is not there."""


class PermissionDeniedError(Error):
    """The caller may not."""


class ResourceExhaustedError(Error):
    """A quota is used up, or the server has too little left."""


class UnimplementedError(Error):
    """Modal has this, and offleash has not."""


class RemoteError(Error):
    """The server did not do what it was asked."""


class ImageBuildError(RemoteError):
    """A step of an image failed."""


class ConnectionError(Error):  # noqa: A001 - Modal's name
    """No server is reached."""


class TimeoutError(Error):  # noqa: A001 - Modal's name
    """It took longer than it may."""


class SandboxTimeoutError(TimeoutError):
    """The time of a sandbox was up."""


class ExecTimeoutError(TimeoutError):
    """The time of a command was up."""


class SandboxTerminatedError(Error):
    """The sandbox was ended."""


class ClientClosed(Error):
    """The sandbox was detached from."""


class SandboxFilesystemError(Error):
    """A file in a sandbox cannot be used."""


class SandboxFilesystemNotFoundError(SandboxFilesystemError):
    """There is nothing at a path."""


class SandboxFilesystemDirectoryNotEmptyError(SandboxFilesystemError):
    """A directory has something in it."""


class SandboxFilesystemIsADirectoryError(SandboxFilesystemError):
    """There is a directory where a file is wanted."""


class SandboxFilesystemNotADirectoryError(SandboxFilesystemError):
    """There is something else where a directory is wanted."""


class SandboxFilesystemPermissionError(SandboxFilesystemError):
    """A file may not be used."""


class SandboxFilesystemPathAlreadyExistsError(SandboxFilesystemError):
    """There is something at a path where nothing may be."""


# The first that fits is taken.
_KINDS: List[Tuple[Type[OffleashError], Type[Error]]] = [
    (_errors.SandboxNotRunningException, SandboxTerminatedError),
    (_errors.TimeoutException, TimeoutError),
    (_errors.InvalidArgumentException, InvalidError),
    (_errors.NotFoundException, NotFoundError),
    (_errors.ConflictException, ConflictError),
    (_errors.PermissionDeniedException, PermissionDeniedError),
    (_errors.UnsupportedException, UnimplementedError),
    (_errors.RateLimitException, ResourceExhaustedError),
    (_errors.NotEnoughSpaceException, ResourceExhaustedError),
    (_errors.ServiceBusyException, ResourceExhaustedError),
    (_errors.AuthenticationException, AuthError),
    (_errors.DaemonException, ConnectionError),
]


def of(error: OffleashError) -> Error:
    """The error of Modal's that one of this library stands for."""
    if isinstance(error, Error):
        return error
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), RemoteError)
    return kind(error.message, code=error.code, hint=error.hint)


def not_here(what: str, hint: str = "") -> UnimplementedError:
    """That offleash has not what Modal has."""
    return UnimplementedError(f"offleash has no {what}", hint=hint or None)
