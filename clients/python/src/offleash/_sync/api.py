# Made by scripts/make_sync.py; change `_async` instead.
"""Requests to a server, and what their answers mean."""

from __future__ import annotations

import json
from typing import Any, Iterator, Dict, Mapping, Optional, Type
from contextlib import contextmanager

import httpx

from .. import _connection, _daemon, _errors, _frames
from .._connection import Connection, ServerAddress
from .._requests import segment
from . import backend

#: How often a request is sent again that the server says to send again.
MAX_RETRIES = 3
#: The longest that is waited before that, seconds.
MAX_RETRY_WAIT = 10.0
#: How often the server shows that a stream without news is alive, seconds.
KEEPALIVE = 50

# A request of these can be sent twice.
_REPEATABLE = ("GET", "PUT", "DELETE")


def open_api(
    url: Optional[str] = None, api_key: Optional[str] = None, request_timeout: Optional[float] = None
) -> "Api":
    """The server that is named, or one of this user's own."""
    return Api(backend.blocking(_connection.resolve, url, api_key, request_timeout))


class Api:
    """A server."""

    def __init__(self, connection: Connection):
        self.connection = connection

    def address(self, sandbox_id: str) -> ServerAddress:
        """Where ports of its sandboxes are reached, as it says of one of them."""
        known = _connection.addresses.get(self.connection)
        if known is None:
            detail = self.ask("GET", f"/sandboxes/{segment(sandbox_id)}")
            url = self.connection.url or (self.ask("GET", "/v1/version"))["url"]
            known = ServerAddress(detail.get("domain") or "localhost", url)
            _connection.addresses[self.connection] = known
        return known

    def _start_again(self) -> None:
        if self.connection.private:
            _connection.addresses.pop(self.connection, None)
            backend.blocking(_daemon.ensure)

    def ask(
        self,
        method: str,
        path: str,
        body: Optional[Any] = None,
        *,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> Any:
        """Sends JSON, and answers with what comes back: JSON, or `None`."""
        answer = self.send(method, path, json=body, headers=headers, timeout=timeout)
        return answer.json() if answer.content else None

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
        not_found: Optional[Type[_errors.OffleashError]] = None,
        **content: Any,
    ) -> httpx.Response:
        """Sends a request, again where that is of use, and raises what the server refuses."""
        seconds = self.connection.request_timeout if timeout is None else timeout
        if content.get("json", 0) is None:
            del content["json"]
        tries = 0
        while True:
            answer = self._reached(method, path, headers, seconds or None, content)
            if answer.status_code < 400:
                return answer
            wait = _retry_wait(answer)
            if wait is None or tries == MAX_RETRIES:
                raise refusal(answer.status_code, answer.content, not_found)
            tries += 1
            backend.sleep(wait)

    def _reached(
        self, method: str, path: str, headers: Any, seconds: Optional[float], content: Dict[str, Any]
    ) -> httpx.Response:
        """An answer, of a server that is started again if it was ours and has ended."""
        for last in (False, True):
            client = backend.http_client(self.connection)
            try:
                return client.request(method, path, headers=headers, timeout=seconds, **content)
            except httpx.TimeoutException as error:
                raise _errors.TimeoutException(f"the server did not answer within {seconds:g} s") from error
            except httpx.TransportError as error:
                may_repeat = method in _REPEATABLE or "Idempotency-Key" in (headers or {})
                if last or not (may_repeat or isinstance(error, httpx.ConnectError)):
                    raise _unreached(self.connection, error) from error
                self._start_again()
        raise AssertionError("a request is sent twice at most")

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        headers: Optional[Mapping[str, str]] = None,
        silence: Optional[float] = None,
        not_found: Optional[Type[_errors.OffleashError]] = None,
        **content: Any,
    ) -> Iterator[httpx.Response]:
        """An answer that comes in pieces, which may be `silence` seconds apart."""
        timeout = httpx.Timeout(self.connection.request_timeout, read=silence)
        client = backend.http_client(self.connection)
        request = client.build_request(method, path, headers=headers, timeout=timeout, **content)
        try:
            answer = client.send(request, stream=True)
        except httpx.ConnectError as error:
            if not self.connection.private:
                raise _unreached(self.connection, error) from error
            self._start_again()
            answer = client.send(client.build_request(method, path, headers=headers, timeout=timeout, **content), stream=True)
        except httpx.TimeoutException as error:
            raise _errors.TimeoutException("the server did not answer in time") from error
        except httpx.TransportError as error:
            raise _unreached(self.connection, error) from error
        try:
            if answer.status_code >= 400:
                raise refusal(answer.status_code, answer.read(), not_found)
            yield answer
        except httpx.TimeoutException as error:
            raise _errors.TimeoutException("the server has gone silent") from error
        except httpx.TransportError as error:
            raise _errors.SandboxNotRunningException("the connection was cut: the sandbox or the server has ended") from error
        finally:
            answer.close()


class Services:
    """The file and process services of one sandbox."""

    def __init__(self, api: Api, sandbox_id: str, token: Optional[str]):
        self.api = api
        self._headers = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983"}
        if token:
            self._headers["X-Access-Token"] = token

    def headers(self, user: Optional[str] = None, **more: str) -> Dict[str, str]:
        """What a request to them has, as a user."""
        headers = {**self._headers, **more}
        if user:
            headers["Authorization"] = "Basic " + _base64(f"{user}:")
        return headers

    def call(
        self,
        method: str,
        message: Dict[str, Any],
        *,
        user: Optional[str] = None,
        timeout: Optional[float] = None,
        not_found: Type[_errors.OffleashError] = _errors.NotFoundException,
    ) -> Dict[str, Any]:
        """Calls a method that has one answer."""
        headers = self.headers(user, **{"Connect-Protocol-Version": "1"})
        answer = self.api.send("POST", f"/{method}", json=message, headers=headers, timeout=timeout, not_found=not_found)
        return answer.json() if answer.content else {}

    def events(
        self,
        method: str,
        message: Dict[str, Any],
        *,
        user: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        not_found: Type[_errors.OffleashError] = _errors.NotFoundException,
    ) -> Iterator[Dict[str, Any]]:
        """The messages that a method answers with, as they come."""
        headers = self.headers(user, **{"Connect-Protocol-Version": "1", "Content-Type": "application/connect+json"})
        headers["Keepalive-Ping-Interval"] = str(KEEPALIVE)
        if timeout_ms:
            headers["Connect-Timeout-Ms"] = str(timeout_ms)
        reader = _frames.FrameReader(not_found)
        content = _frames.frame(message)
        with self.api.stream(
            "POST", f"/{method}", headers=headers, silence=3 * KEEPALIVE, not_found=not_found, content=content
        ) as answer:
            for piece in answer.iter_bytes():
                for event in reader.feed(piece):
                    yield event
        if not reader.ended:
            raise _errors.SandboxNotRunningException("the answer was cut: the sandbox or the server has ended")


def refusal(
    status: int, content: bytes, not_found: Optional[Type[_errors.OffleashError]] = None
) -> _errors.OffleashError:
    """The error that an answer stands for; `code` of services is a word, that of the server a number."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    word = body.get("code") if isinstance(body, dict) else None
    if isinstance(word, str):
        return _errors.of_word(word, body.get("message", word), not_found or _errors.NotFoundException)
    error = _errors.of_status(status, body, content.decode(errors="replace")[:1000])
    if not_found is not None and status == 404:
        return not_found(error.message, code=status, hint=error.hint)
    return error


def _retry_wait(answer: httpx.Response) -> Optional[float]:
    if answer.headers.get("should-retry") != "true":
        return None
    try:
        return min(float(answer.headers.get("retry-after", "1")), MAX_RETRY_WAIT)
    except ValueError:
        return 1.0


def _unreached(connection: Connection, error: Exception) -> _errors.OffleashError:
    where = connection.url or connection.socket
    hint = "is `offleash serve` running there?"
    if any(word in str(error) for word in ("issuer certificate", "self-signed", "self signed")):
        hint = "OFFLEASH_CA names a file with authorities (PEM) that are trusted beside the usual ones"
    return _errors.DaemonException(f"the server at `{where}` is not reached: {error}", hint=hint)


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()
