"""Runs code that an AI wrote in sandboxes, by the names of E2B's SDK.

    from offleash import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.commands.run("echo hi").stdout)

A server is started where none runs; OFFLEASH_URL, or OFFLEASH_HOST as for the command line, names another.
"""

from typing import Any, Mapping, Optional, Sequence, Union

from . import _daemon as daemon
from . import _requests
from ._async import approvals as async_approvals
from ._async import volumes as async_volumes
from ._async.api import open_api as _async_open_api
from ._async.commands import AsyncCommandHandle
from ._async.sandbox import AsyncSandboxCore
from ._async.watch import AsyncWatchHandle
from ._errors import (
    AuthenticationException,
    ConflictException,
    DaemonException,
    FileNotFoundException,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    OffleashError,
    PermissionDeniedException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
    TemplateException,
    TimeoutException,
    UnsupportedException,
)
from ._execution import CodeContext, Context, Execution, ExecutionError, Logs, OutputMessage, Result
from ._models import (
    Approval,
    Checkpoint,
    CommandExitException,
    CommandResult,
    EntryInfo,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    ProcessInfo,
    PtySize,
    RunResult,
    SandboxInfo,
    SandboxMetrics,
    SandboxQuery,
    SandboxState,
    Snapshot,
    SnapshotInfo,
    Volume,
    WriteEntry,
    WriteInfo,
)
from ._requests import ALL_TRAFFIC
from ._sync import approvals, volumes
from ._sync.api import open_api as _open_api
from ._sync.commands import CommandHandle
from ._sync.sandbox import SandboxCore
from ._sync.watch import WatchHandle
from ._tool import Tool, tool

__version__ = "0.1.0"


class Sandbox(SandboxCore):
    """A sandbox. `Sandbox(…)` is the same as `Sandbox.create(…)`. With `with` it is killed at the end."""

    def __init__(self, template: Optional[str] = None, timeout: Optional[int] = None, **options: Any):
        self.__dict__.update(type(self).create(template, timeout, **options).__dict__)


class AsyncSandbox(AsyncSandboxCore):
    """A sandbox of a program with an event loop: `await AsyncSandbox.create(…)`."""


def _run_body(
    command: Union[str, Sequence[str]],
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    user: Optional[str],
    stdin: Optional[str],
    timeout: Optional[float],
    sandbox: Mapping[str, Any],
) -> Any:
    network = _requests.network_body(sandbox.get("network"), sandbox.get("allow_internet_access"))
    rest = {name: value for name, value in sandbox.items() if name not in ("network", "allow_internet_access")}
    if _requests.has_rules(network):
        raise UnsupportedException("`run` has no `rules` and the like", hint="make a `Sandbox` with them, and run it there")
    return {
        "command": _requests.command_body(command, envs, cwd, user, stdin, timeout),
        "sandbox": _requests.sandbox_body(network=network, **rest),
    }


def run(
    command: Union[str, Sequence[str]],
    *,
    envs: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    user: Optional[str] = None,
    stdin: Optional[str] = None,
    timeout: Optional[float] = None,
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    **sandbox: Any,
) -> RunResult:
    """Runs a line of a shell, or words, in a sandbox that is made for it and killed after it: one request.

    `sandbox` says what the sandbox is like, as with `Sandbox.create`, but for tools of this program.
    """
    body = _run_body(command, envs, cwd, user, stdin, timeout, sandbox)
    return RunResult.of(_open_api(url, api_key).ask("POST", "/v1/run", body, timeout=_requests.patience(timeout)))


async def async_run(
    command: Union[str, Sequence[str]],
    *,
    envs: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    user: Optional[str] = None,
    stdin: Optional[str] = None,
    timeout: Optional[float] = None,
    url: Optional[str] = None,
    api_key: Optional[str] = None,
    **sandbox: Any,
) -> RunResult:
    """The same for a program with an event loop."""
    body = _run_body(command, envs, cwd, user, stdin, timeout, sandbox)
    return RunResult.of(await (await _async_open_api(url, api_key)).ask("POST", "/v1/run", body, timeout=_requests.patience(timeout)))


__all__ = [name for name in dir() if not name.startswith("_") and name not in ("Any", "Mapping", "Optional", "Sequence", "Union")]
