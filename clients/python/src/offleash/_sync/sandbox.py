# Made by scripts/make_sync.py; change `_async` instead.
"""A sandbox: what makes it, what happens to it, and the way to what is in it."""

from __future__ import annotations

import datetime
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from .. import _errors, _requests
from .._either import either
from .._errors import ConflictException, NotFoundException
from .._execution import CodeContext, Execution
from .._connection import ServerAddress
from .._models import RunResult, SandboxInfo, SandboxMetrics, SandboxQuery, Snapshot
from .._requests import query as query_of
from .._requests import segment, without_none
from .._tool import Tool, as_tool
from . import backend, cells, snapshots
from .api import Api, Services, open_api
from .checkpoints import Checkpoints
from .commands import Commands, Pty
from .files import Files
from .pages import SandboxPages, SnapshotPages
from .ports import Ports
from .tools import answer_calls

#: How long it may take until calls of tools are heard, seconds.
LISTEN_TIMEOUT = 30.0


class SandboxCore(Ports):
    """A sandbox. With `with` it is killed at the end."""

    @classmethod
    def create(
        cls,
        template: Optional[str] = None,
        timeout: Optional[int] = None,
        metadata: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
        secure: Optional[bool] = None,
        allow_internet_access: Optional[bool] = None,
        network: Optional[Mapping[str, Any]] = None,
        lifecycle: Optional[Mapping[str, Any]] = None,
        volume_mounts: Optional[_requests.VolumeMounts] = None,
        *,
        mcp: Optional[Mapping[str, Any]] = None,
        image: Optional[str] = None,
        snapshot: Optional[str] = None,
        name: Optional[str] = None,
        level: Optional[str] = None,
        cpus: Optional[int] = None,
        memory_mib: Optional[int] = None,
        disk_mib: Optional[int] = None,
        pids: Optional[int] = None,
        idle: Optional[int] = None,
        checkpoint_every: Optional[int] = None,
        checkpoint_before: Optional[Sequence[str]] = None,
        ask_before: Optional[Sequence[str]] = None,
        ask_before_restore: Optional[bool] = None,
        tools: Sequence[Union[Tool, Callable[..., Any]]] = (),
        tool_grants: Optional[Sequence[str]] = None,
        idempotency_key: Optional[str] = None,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        request_timeout: Optional[float] = None,
    ) -> Any:
        """Makes a sandbox.

        Args:
            template: A template, a snapshot's id, or `image:NAME`; `base` if absent.
            timeout: How long it lives, seconds; 300 if absent.
            network: What it may reach: `allow_out`, `deny_out`, `rules`, `allow_public_traffic` and so on.
            lifecycle: `{"on_timeout": "kill" or "pause" or {"action": …, "mode": …}, "auto_resume": bool}`.
            volume_mounts: Volumes, or their names, by the path that they have inside.
            secure: Taken for E2B's sake: every sandbox has a token.
            mcp: Servers of the Model Context Protocol that are started inside, by their names.
            image: The image of containers that it is of, instead of a template.
            snapshot: The snapshot that it is made of.
            name: What it is called; no other living sandbox of the caller has that name.
            level: How it is isolated, as in `process` or `microvm`; as the server's configuration says if absent.
            idle: After how many seconds it sleeps while nobody uses it; 0 is never.
            checkpoint_every: How often a checkpoint is made by itself, seconds.
            checkpoint_before: Commands before which one is made, such as `rm -rf`.
            ask_before: Commands before which a person is asked, such as `git push`.
            ask_before_restore: Whether a person is asked before it is put back to a checkpoint.
            tools: Functions of this program that code inside may call.
            tool_grants: Which of the server's tools it has, a grant each.
            url, api_key: The server; one of this user's own if absent.
        """
        api = open_api(url, api_key, request_timeout)
        network_body = _requests.network_body(network, allow_internet_access)
        made = {tool.name: tool for tool in map(as_tool, tools)}
        body = _requests.sandbox_body(
            template=template or ("mcp-gateway" if mcp is not None else None),
            timeout=timeout,
            metadata=metadata,
            envs=envs,
            network=network_body,
            lifecycle=lifecycle,
            volume_mounts=volume_mounts,
            image=image,
            snapshot=snapshot,
            name=name,
            level=level,
            cpus=cpus,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            pids=pids,
            idle=idle,
            checkpoint_every=checkpoint_every,
            checkpoint_before=checkpoint_before,
            ask_before=ask_before,
            ask_before_restore=ask_before_restore,
            tool_grants=tool_grants,
            answered=[tool.declared() for tool in made.values()],
        )
        headers = {"Idempotency-Key": idempotency_key or _requests.new_key()}
        info = SandboxInfo.of(api.ask("POST", "/v1/sandboxes", body, headers=headers))
        sandbox = cls._of(api, info, api.address(info.sandbox_id))
        try:
            if mcp is not None:
                sandbox._start_mcp(mcp)
            if _requests.has_rules(network_body):
                api.ask("PUT", f"/sandboxes/{sandbox._id}/network", network_body)
            if made:
                sandbox._listen(made)
        except BaseException:
            sandbox.kill()
            raise
        return sandbox

    @classmethod
    def _of(cls, api: Api, info: SandboxInfo, address: ServerAddress) -> Any:
        self = cls.__new__(cls)
        self._open(api, info.sandbox_id, info, address)
        return self

    @classmethod
    def _on(cls, sandbox_id: str, connection: Any, function: Any, arguments: Any, named: Any) -> Any:
        """Calls a method of a sandbox that is known by its id alone."""
        self = cls.__new__(cls)
        self._open(open_api(**connection), sandbox_id, None, None)
        return function(self, *arguments, **named)

    def _open(self, api: Api, sandbox_id: str, info: Optional[SandboxInfo], address: Optional[ServerAddress]) -> None:
        self._api, self._id, self._info, self._address = api, sandbox_id, info, address
        self._jobs: List[backend.Job] = []
        self._mcp_token = None
        if info is not None:
            services = Services(api, sandbox_id, info.raw["access_token"])
            self.commands = Commands(services)
            self.pty = Pty(services)
            self.files = Files(services)
            self.checkpoints = Checkpoints(api, sandbox_id)
            self._services = services

    def _listen(self, tools: Dict[str, Tool]) -> None:
        heard: List[Optional[Exception]] = []
        self._jobs.append(backend.Job(answer_calls, self._api, self._id, tools, heard.append))
        waited = 0.0
        while not heard and waited < LISTEN_TIMEOUT:
            backend.sleep(0.002)
            waited += 0.002
        if not heard:
            raise _errors.TimeoutException("the server does not tell calls of tools")
        if heard[0] is not None:
            raise heard[0]

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}>"

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self._id

    @property
    def level(self) -> str:
        """How it is isolated, as in `process`."""
        return self._known().level

    @property
    def traffic_access_token(self) -> Optional[str]:
        """What its ports ask for, if anything."""
        return self._known().raw["traffic_token"]

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{segment(self._id)}"

    def run(
        self,
        command: Union[str, Sequence[str]],
        *,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> RunResult:
        """Runs a line of a shell, or words, waits, and answers what came of it whatever the exit code: one request."""
        body = _requests.command_body(command, envs, cwd, user, stdin, timeout)
        # It lasts as long as the command.
        return RunResult.of(self._api.ask("POST", f"{self._path}/run", body, timeout=_requests.patience(timeout)))

    def run_code(
        self,
        code: str,
        language: Optional[str] = None,
        context: Optional[cells.ContextName] = None,
        on_stdout: Optional[cells.Listener] = None,
        on_stderr: Optional[cells.Listener] = None,
        on_result: Optional[cells.Listener] = None,
        on_error: Optional[cells.Listener] = None,
        envs: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = cells.CELL_TIMEOUT,
        request_timeout: Optional[float] = None,
    ) -> Execution:
        """Runs a cell of code in a context, or in the default one of its language; state stays from one to the next.

        Raises:
            TimeoutException: it was interrupted after `timeout` seconds.
        """
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error}
        return cells.run_cell(self._api, self._id, code, language, context, listeners, envs, timeout)

    def create_code_context(
        self, cwd: Optional[str] = None, language: Optional[str] = None, request_timeout: Optional[float] = None
    ) -> CodeContext:
        """Makes a context of code."""
        return cells.make_context(self._api, self._id, cwd, language, request_timeout)

    def list_code_contexts(self) -> List[CodeContext]:
        """The contexts that there are."""
        return cells.list_contexts(self._api, self._id)

    def remove_code_context(self, context: cells.ContextName) -> None:
        """Ends a context."""
        cells.end_context(self._api, self._id, context)

    def restart_code_context(self, context: cells.ContextName) -> None:
        """Starts a context anew, without its state."""
        cells.to_context(self._api, self._id, context, "restart")

    def interrupt_code_context(self, context: cells.ContextName) -> None:
        """Interrupts the cell that runs in a context."""
        cells.to_context(self._api, self._id, context, "interrupt")

    @either
    def kill(self, request_timeout: Optional[float] = None) -> bool:
        """Ends it; answers whether it was there."""
        for job in self._jobs:
            job.abandon()
        try:
            self._api.ask("DELETE", self._path, timeout=request_timeout)
        except NotFoundException:
            return False
        return True

    @either
    def pause(
        self, keep_memory: Optional[bool] = None, *, mode: Optional[str] = None, request_timeout: Optional[float] = None
    ) -> bool:
        """Pauses it with its memory (`full`), or with its files alone (`filesystem`); answers whether it ran."""
        if mode is None and keep_memory is not None:
            mode = "full" if keep_memory else "filesystem"
        try:
            self._api.ask("POST", f"{self._path}/pause", without_none({"mode": mode}), timeout=request_timeout)
        except ConflictException:
            if (self._get()).state.value == "paused":
                return False
            raise
        return True

    beta_pause = pause

    @either
    def connect(self, timeout: Optional[int] = None, *, on_resume: str = "restore") -> Any:
        """The sandbox, which is resumed if it is paused; `reboot` is with its files alone."""
        mode = "filesystem" if on_resume == "reboot" else None
        body = without_none({"timeout_seconds": timeout, "mode": mode})
        info = SandboxInfo.of(self._api.ask("POST", f"{self._path}/resume", body))
        self._open(self._api, info.sandbox_id, info, self._api.address(info.sandbox_id))
        return self

    def _get(self) -> SandboxInfo:
        return SandboxInfo.of(self._api.ask("GET", self._path))

    @either
    def get_info(self, request_timeout: Optional[float] = None) -> SandboxInfo:
        """What the server says of it."""
        return SandboxInfo.of(self._api.ask("GET", self._path, timeout=request_timeout))

    @either
    def set_timeout(self, timeout: int, request_timeout: Optional[float] = None) -> None:
        """Says how long it lives from now on, seconds."""
        self._api.ask("POST", f"/sandboxes/{segment(self._id)}/timeout", {"timeout": timeout}, timeout=request_timeout)

    def is_running(self, request_timeout: Optional[float] = None) -> bool:
        """Whether it runs."""
        try:
            self._api.send("GET", "/health", headers=self._services.headers(), timeout=request_timeout)
        except _errors.SandboxNotRunningException:
            return False
        return True

    @either
    def get_metrics(
        self, start: Optional[datetime.datetime] = None, end: Optional[datetime.datetime] = None
    ) -> List[SandboxMetrics]:
        """What it used over time."""
        times = {name: int(time.timestamp()) for name, time in (("start", start), ("end", end)) if time}
        answer = self._api.ask("GET", f"/sandboxes/{segment(self._id)}/metrics{query_of(**times)}")
        return [SandboxMetrics.of(metric) for metric in answer]

    @either
    def get_usage(self) -> Dict[str, int]:
        """What it uses now (`SandboxUsage` of the native REST)."""
        return self._api.ask("GET", f"{self._path}/usage")

    @either
    def update_network(self, network: Mapping[str, Any]) -> None:
        """Replaces what it may reach; what is not said is as if nothing was ever said."""
        internet = network.get("allow_internet_access")
        rest = {name: value for name, value in network.items() if name != "allow_internet_access"}
        self._api.ask("PUT", f"/sandboxes/{segment(self._id)}/network", _requests.network_body(rest, internet))

    @either
    def set_metadata(self, metadata: Mapping[str, str]) -> SandboxInfo:
        """Replaces its labels; those that begin with `offleash.` stay as they are."""
        self._info = SandboxInfo.of(self._api.ask("PUT", f"{self._path}/metadata", {"metadata": dict(metadata)}))
        return self._info

    @either
    def fork(
        self,
        timeout: Optional[int] = None,
        count: int = 1,
        *,
        contexts: Optional[str] = None,
        name: Optional[str] = None,
    ) -> List[Any]:
        """Makes sandboxes that begin as copies of it: a sandbox for each, or the error why it was not made.

        Args:
            contexts: What they have of contexts of code: `all`, `possible` or `none`.
        """
        body = without_none({"count": count, "timeout_seconds": timeout, "contexts": contexts, "name": name})
        forks = (self._api.ask("POST", f"{self._path}/fork", body))["forks"]
        address = self._api.address(self._id)
        return [self._forked(fork, address) for fork in forks]

    def _forked(self, fork: Mapping[str, Any], address: ServerAddress) -> Any:
        if fork["sandbox"]:
            return type(self)._of(self._api, SandboxInfo.of(fork["sandbox"]), address)
        return _errors.of_status(fork["error"]["code"], fork["error"])

    @either
    def create_snapshot(self, name: Optional[str] = None, *, contexts: Optional[str] = None) -> Snapshot:
        """Makes a snapshot, of which others can be made: `Sandbox.create(snapshot=…)`."""
        body = without_none({"name": name, "contexts": contexts})
        return Snapshot.of(self._api.ask("POST", f"{self._path}/snapshots", body))

    @classmethod
    def list(
        cls,
        query: Optional[SandboxQuery] = None,
        limit: Optional[int] = None,
        next_token: Optional[str] = None,
        order: Optional[str] = None,
        **connection: Any,
    ) -> SandboxPages:
        """The caller's sandboxes in pages, the newest first unless `order` is `asc`."""
        wanted = {**(query.wanted() if query else {}), "limit": limit, "order": order}
        return SandboxPages(connection, wanted, next_token)

    @classmethod
    def list_snapshots(cls, sandbox_id: Optional[str] = None, **connection: Any) -> SnapshotPages:
        """Snapshots in pages, the newest first."""
        return SnapshotPages(connection, {"sandbox": sandbox_id})

    @classmethod
    def delete_snapshot(cls, snapshot_id: str, **connection: Any) -> bool:
        """Removes a snapshot; answers whether it was there."""
        try:
            (open_api(**connection)).ask("DELETE", f"/v1/snapshots/{segment(snapshot_id)}")
        except NotFoundException:
            return False
        return True

    @classmethod
    def export_snapshot(cls, snapshot_id: str, file: IO[bytes], **connection: Any) -> None:
        """Writes a snapshot to a file, as an archive of which any server can make it again."""
        snapshots.export_to(open_api(**connection), snapshot_id, file)

    @classmethod
    def import_snapshot(cls, file: IO[bytes], name: Optional[str] = None, **connection: Any) -> Snapshot:
        """Makes a snapshot of such a file, which need not be trusted."""
        return snapshots.import_from(open_api(**connection), file, name)

    def restore(self, checkpoint: Any) -> None:
        """Puts it back to a checkpoint."""
        self.checkpoints.restore(checkpoint)
