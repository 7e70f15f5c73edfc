"""Errors, by the names that E2B's SDK has for them; what has no name there has one of its own."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type


class OffleashError(Exception):
    """Whatever this library raises."""

    def __init__(self, message: str = "", *, code: Optional[object] = None, hint: Optional[str] = None):
        super().__init__(message)
        #: What the server or the library says.
        self.message = message
        #: The HTTP status, or the word of a service of the sandbox, such as `not_found`.
        self.code = code
        #: What to do about it, where that is known.
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class SandboxException(OffleashError):
    """A sandbox, or the server, did not do what it was asked."""


class TimeoutException(SandboxException):
    """It took longer than it may."""


class SandboxNotRunningException(TimeoutException):
    """The sandbox is gone, or paused and not resumed by traffic."""


class InvalidArgumentException(SandboxException):
    """What was asked makes no sense."""


class NotEnoughSpaceException(SandboxException):
    """The disk, or the sandbox's limit of it, is full."""


class NotFoundException(SandboxException):
    """What was asked for is not there."""


class FileNotFoundException(NotFoundException):
    """There is nothing at a path."""


class SandboxNotFoundException(NotFoundException):
    """There is no such sandbox."""


class TemplateException(SandboxException):
    """A template cannot be used."""


class RateLimitException(SandboxException):
    """A quota is used up, or too much was asked at a time."""


class ConflictException(SandboxException):
    """It cannot be done in the state that things are in."""


class PermissionDeniedException(SandboxException):
    """The caller may not."""


class UnsupportedException(SandboxException):
    """The server cannot do this."""


class AuthenticationException(OffleashError):
    """The key, the token or the user was not accepted."""


class ServiceBusyException(OffleashError):
    """The server has too little left now."""


class DaemonException(OffleashError):
    """No server is reached, and none could be started."""


_OF_STATUS: Dict[int, Type[OffleashError]] = {
    400: InvalidArgumentException,
    401: AuthenticationException,
    403: PermissionDeniedException,
    404: NotFoundException,
    409: ConflictException,
    413: InvalidArgumentException,
    429: RateLimitException,
    501: UnsupportedException,
    503: ServiceBusyException,
    504: TimeoutException,
    507: NotEnoughSpaceException,
}

_OF_WORD: Dict[str, Type[OffleashError]] = {
    "invalid_argument": InvalidArgumentException,
    "unauthenticated": AuthenticationException,
    "permission_denied": PermissionDeniedException,
    "not_found": NotFoundException,
    "already_exists": ConflictException,
    "failed_precondition": ConflictException,
    "resource_exhausted": RateLimitException,
    "unimplemented": UnsupportedException,
    "canceled": TimeoutException,
    "deadline_exceeded": TimeoutException,
    "unavailable": TimeoutException,
}

_HINTS: Dict[Type[OffleashError], str] = {
    AuthenticationException: "give `api_key=`, or set OFFLEASH_API_KEY to what `offleash key create` printed",
}


def of_status(status: int, body: Any, text: str = "") -> OffleashError:
    """The error that an answer of the server stands for."""
    told = body if isinstance(body, dict) else {}
    message = str(told.get("message") or text or f"the server answered {status}")
    kind = _OF_STATUS.get(status, SandboxException)
    if status == 404 and message.startswith("sandbox"):
        kind = SandboxNotFoundException
    if status == 502 and "sandboxId" in told:
        kind = SandboxNotRunningException
    return kind(message, code=status, hint=told.get("hint") or _HINTS.get(kind))


def of_word(word: str, message: str, not_found: Type[OffleashError] = NotFoundException) -> OffleashError:
    """The error that the end of a call of a sandbox's services stands for."""
    kind = not_found if word == "not_found" else _OF_WORD.get(word, SandboxException)
    return kind(message, code=word)
