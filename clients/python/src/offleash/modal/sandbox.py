"""Sandboxes, by the names that Modal's library has for them."""

from __future__ import annotations

import asyncio
import datetime
import math
from typing import Any, AsyncIterator, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

from .. import _errors
from .._async.api import open_api
from .._async.files import AsyncFiles
from .._async.sandbox import AsyncSandboxCore
from .._local import read_plain
from .._models import SandboxQuery, SandboxState
from .._requests import ALL_TRAFFIC
from . import exception
from ._both import both, both_of_class, iterated_of_class
from ._both import wait as waited
from ._tunnel import Tunnel
from .app import App, checked_name, refuse_client
from .container_process import USER, ContainerProcess, checked_arguments
from .filesystem import FileIO, SandboxFilesystem
from .image import Image, files_of
from .io_streams import StreamReader, StreamType, StreamWriter
from .secret import Secret, variables_of
from .volume import Volume

#: What labels of ours begin with; Modal's tags are all the others.
OURS = ("modal.", "offleash.")
#: What the command of a sandbox is known by.
MAIN = "modal-main"
#: Exit codes of a sandbox that was ended, and of one whose time was up.
TERMINATED, TIMED_OUT = 137, 124
#: How often it is asked whether a sandbox without a command is there, seconds.
POLL = 0.5
#: The time that snapshots live if nobody says; here they live until they are removed.
SNAPSHOT_TTL = 30 * 24 * 3600

#: Arguments of `create` that offleash has nothing for, what they are if nobody says them, and what to do instead.
_ABSENT: Dict[str, Tuple[Any, str]] = {
    "network_file_systems": ({}, "`volumes`"),
    "idle_timeout": (None, "`offleash.Sandbox.create(idle=…)` lets a sandbox sleep that nobody uses"),
    "gpu": (None, "a server's sandboxes have no graphics cards; `offleash run --gpu` has"),
    "cloud": (None, ""),
    "region": (None, ""),
    "runtime": (None, "`offleash.Sandbox.create(level=…)` says how a sandbox is isolated"),
    "_experimental_outbound_policy": (None, "`offleash.Sandbox.create(network={'rules': …})`"),
    "inbound_cidr_allowlist": (None, "`offleash.Sandbox.create(network={'allow_public_traffic': False})`"),
    "pty": (False, "`exec(…, pty=True)` has a terminal"),
    "h2_ports": ([], "`encrypted_ports`"),
    "custom_domain": (None, ""),
    "proxy": (None, ""),
    "include_oidc_identity_token": (False, ""),
    "readiness_probe": (None, "wait for what a command says, with `exec`"),
    "verbose": (False, ""),
    "experimental_options": (None, ""),
    "_experimental_enable_snapshot": (False, "`snapshot_filesystem`"),
    "_experimental_persistent": (False, ""),
    "environment_name": (None, ""),
    "pty_info": (None, ""),
    "client": (None, "OFFLEASH_URL and OFFLEASH_API_KEY name a server"),
}


def _refuse(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name not in _ABSENT:
            raise TypeError(f"create() got an unexpected keyword argument '{name}'")
        usual, hint = _ABSENT[name]
        if value is not None and value != usual and not (usual == [] and not list(value)):
            raise exception.not_here(f"`{name}` of a sandbox", hint)


def _limit(wanted: Union[float, Tuple[float, float], None], name: str) -> Optional[int]:
    """What is asked for and at most used is one here: the limit if there is one, rounded up."""
    if wanted is None:
        return None
    numbers = wanted if isinstance(wanted, tuple) else (wanted,)
    if len(numbers) > 2 or not all(isinstance(number, (int, float)) and number > 0 for number in numbers):
        raise exception.InvalidError(f"{name}: a number above 0, or two, a request and a limit")
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        raise exception.InvalidError(f"{name}: the request is above the limit")
    return math.ceil(numbers[-1])


def _network(block: bool, cidrs: Optional[Sequence[str]], domains: Optional[Sequence[str]]) -> Dict[str, Any]:
    if block and cidrs is not None:
        raise exception.InvalidError("`outbound_cidr_allowlist` cannot be used when `block_network` is enabled")
    if block and domains is not None:
        raise exception.InvalidError("`outbound_domain_allowlist` cannot be used when `block_network` is enabled")
    if block:
        return {"allow_internet_access": False}
    # `*` is every domain.
    if (cidrs is None and domains is None) or "*" in (domains or ()):
        return {}
    return {"network": {"allow_out": [*(cidrs or ()), *(domains or ())], "deny_out": [ALL_TRAFFIC]}}


class Sandbox:
    """A sandbox. It ends when its command does, when its time is up, or when it is terminated."""

    def __init__(self, core: Any, main: Optional[ContainerProcess] = None):
        self._core = core
        self._main = main
        self._code: Optional[int] = None
        self._watch: Optional["asyncio.Task[None]"] = None
        self._is_attached = True
        # Whether it is known if it has a command.
        self._is_found = True
        self.filesystem = SandboxFilesystem(self._files)
        # Where commands start that say nothing else.
        self._cwd: Optional[str] = core.get_label("modal.workdir")

    @both_of_class
    async def create(
        cls,
        *args: str,
        app: Optional[App] = None,
        name: Optional[str] = None,
        tags: Optional[Mapping[str, str]] = None,
        image: Optional[Image] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
        secrets: Optional[Iterable[Secret]] = None,
        timeout: Optional[int] = 300,
        workdir: Optional[str] = None,
        cpu: Union[float, Tuple[float, float], None] = None,
        memory: Union[int, Tuple[int, int], None] = None,
        block_network: bool = False,
        outbound_cidr_allowlist: Optional[Sequence[str]] = None,
        outbound_domain_allowlist: Optional[Sequence[str]] = None,
        volumes: Mapping[str, Volume] = {},
        encrypted_ports: Sequence[int] = (),
        unencrypted_ports: Sequence[int] = (),
        cidr_allowlist: Optional[Sequence[str]] = None,
        **absent: Any,
    ) -> "Sandbox":
        """Makes a sandbox, and starts its command if it has one; an app is not needed.

        Raises:
            UnimplementedError: something was asked for that Modal has and offleash has not.
            AlreadyExistsError: another sandbox has that name.
        """
        _refuse(absent)
        if timeout is None or timeout <= 0:
            raise exception.InvalidError("timeout: a number of seconds above 0")
        if workdir is not None and not workdir.startswith("/"):
            raise exception.InvalidError(f"workdir must be an absolute path, got: {workdir}")
        if cidr_allowlist is not None and outbound_cidr_allowlist is not None:
            raise exception.InvalidError("Cannot specify both `cidr_allowlist` and `outbound_cidr_allowlist`.")
        image = image or Image.debian_slim()
        command = [*image._entrypoint, *(checked_arguments(args) or image._command)]
        labels = _labels(app, tags, workdir, [*encrypted_ports, *unencrypted_ports])
        network = _network(block_network, cidr_allowlist or outbound_cidr_allowlist, outbound_domain_allowlist)
        limits = {"cpus": _limit(cpu, "cpu"), "memory_mib": _limit(memory, "memory")}
        mounts = await _mounts(volumes)
        base = await image._ready(await open_api())
        try:
            core = await _Core.create(
                timeout=timeout,
                name=None if name is None else checked_name(name, "sandbox"),
                metadata=labels,
                envs=variables_of(env, secrets),
                volume_mounts=mounts,
                **base,
                **network,
                **limits,
            )
        except _errors.ConflictException as error:
            if name is None:
                raise
            raise exception.AlreadyExistsError(error.message, code=error.code, hint=error.hint) from error
        sandbox = cls(core)
        try:
            await sandbox._begin(image, workdir, command)
        except BaseException:
            await core.kill()
            raise
        return sandbox

    async def _begin(self, image: Image, workdir: Optional[str], command: Sequence[str]) -> None:
        for source, target in files_of(image):
            await self._core.files.write(target, read_plain(source), user=USER)
        if workdir is not None:
            await self._core.files.make_dir(workdir, user=USER)
        if command:
            main = ContainerProcess(self._core._services, by_line=True)
            self._main = await main._start(command, None, self._cwd, {}, MAIN)
            self._watch = asyncio.ensure_future(self._end_with_main())

    async def _end_with_main(self) -> None:
        """A sandbox ends with its command, as long as this program is there."""
        assert self._main is not None and self._main._end is not None
        await self._main._end.wait()
        if self._main._code is not None and self._code is None:
            self._code = self._main._code
            await self._core.kill()

    @both_of_class
    async def from_id(cls, sandbox_id: str, client: Any = None) -> "Sandbox":
        """A sandbox, by its id. Its command is heard from now on."""
        refuse_client(client)
        return await cls._attached(sandbox_id)

    @classmethod
    async def _attached(cls, sandbox_id: str, find: bool = True) -> "Sandbox":
        try:
            sandbox = cls(await _Core.connect(sandbox_id))
        except _errors.NotFoundException as error:
            raise exception.NotFoundError(f"there is no sandbox `{sandbox_id}`", code=404) from error
        sandbox._is_found = False
        if find:
            await sandbox._find_main()
        return sandbox

    async def _find_main(self) -> None:
        """Hears of its command, if it has one."""
        if self._is_found:
            return
        try:
            self._main = await ContainerProcess(self._core._services, by_line=True)._connect(MAIN)
        except (_errors.NotFoundException, _errors.SandboxNotRunningException):
            # It has none, or has ended.
            pass
        self._is_found = True

    @both_of_class
    async def from_name(
        cls,
        app_name: str,
        name: str,
        *,
        environment_name: Optional[str] = None,
        include_terminated: bool = False,
        client: Any = None,
    ) -> "Sandbox":
        """A sandbox of an app that runs, by its name."""
        refuse_client(client, environment_name)
        if include_terminated:
            raise exception.not_here("`include_terminated`", "`offleash record` knows sandboxes that have ended")
        query = SandboxQuery(metadata={"modal.app": app_name, "offleash.name": name}, state=[SandboxState.RUNNING])
        async for known in AsyncSandboxCore.list(query):
            return await cls._attached(known.sandbox_id)
        raise exception.NotFoundError(f"no sandbox `{name}` of the app `{app_name}` runs")

    @iterated_of_class
    async def list(
        cls, *, app_id: Optional[str] = None, tags: Optional[Mapping[str, str]] = None, client: Any = None
    ) -> AsyncIterator["Sandbox"]:
        """The sandboxes of an app, or all that were made here, with at least these tags."""
        refuse_client(client)
        wanted = {**(tags or {}), "modal.sandbox": "1", **({"modal.app": app_id} if app_id else {})}
        # Those that are paused would be resumed by it.
        async for known in AsyncSandboxCore.list(SandboxQuery(metadata=wanted, state=[SandboxState.RUNNING])):
            try:
                yield await cls._attached(known.sandbox_id, find=False)
            except exception.NotFoundError:
                # It has ended meanwhile.
                continue

    def __repr__(self) -> str:
        return f"Sandbox({self.object_id!r})"

    @property
    def object_id(self) -> str:
        """Its id."""
        return str(self._core.sandbox_id)

    def _attached_core(self) -> Any:
        if not self._is_attached:
            raise exception.ClientClosed("Unable to perform operation on a detached sandbox")
        return self._core

    def _files(self) -> AsyncFiles:
        return self._attached_core().files

    @both
    async def exec(
        self,
        *args: str,
        stdout: StreamType = StreamType.PIPE,
        stderr: StreamType = StreamType.PIPE,
        timeout: Optional[int] = None,
        workdir: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
        secrets: Optional[Iterable[Secret]] = None,
        text: bool = True,
        bufsize: int = -1,
        pty: bool = False,
        pty_info: Any = None,
        _pty_info: Any = None,
    ) -> ContainerProcess:
        """Starts a command, which is a program and its arguments; a shell has to be named."""
        core = self._attached_core()
        if pty_info is not None or _pty_info is not None:
            raise exception.not_here("`pty_info`", "`pty=True`")
        if bufsize not in (-1, 1) or (bufsize == 1 and not text):
            raise exception.InvalidError("bufsize: -1, or 1 for lines of text")
        if workdir is not None and not workdir.startswith("/"):
            raise exception.InvalidError(f"workdir must be an absolute path, got: {workdir}")
        if not checked_arguments(args):
            raise exception.InvalidError("exec: a program has to be named")
        process = ContainerProcess(core._services, StreamType(stdout), StreamType(stderr), text, bufsize == 1, pty)
        try:
            return await process._start(args, timeout, workdir or self._cwd, variables_of(env, secrets))
        except _errors.SandboxNotRunningException as error:
            raise exception.NotFoundError(f"sandbox `{self.object_id}` does not run", code=error.code) from error

    def _stream(self, name: str) -> Any:
        self._attached_core()
        if not self._is_found:
            waited(self._find_main())
        if self._main is None:
            raise exception.InvalidError("the sandbox was made without a command", hint="`Sandbox.create('program', …)`")
        return getattr(self._main, name)

    @property
    def stdout(self) -> StreamReader:
        """What its command writes, in lines."""
        return self._stream("stdout")

    @property
    def stderr(self) -> StreamReader:
        """What its command writes to standard error, in lines."""
        return self._stream("stderr")

    @property
    def stdin(self) -> StreamWriter:
        """What its command reads."""
        return self._stream("stdin")

    @property
    def returncode(self) -> Optional[int]:
        """The exit code of its command, 137 if it was terminated, 124 if its time was up, nothing while it runs."""
        return self._code

    async def _look(self) -> None:
        """Notes how it ended, if it has."""
        if self._code is not None:
            return
        await self._find_main()
        if self._main is not None and self._main._end is not None and self._main._end.is_set() and self._main._code is not None:
            self._code = self._main._code
        elif not await self._core.is_running():
            self._code = TIMED_OUT if self._core.is_late() else TERMINATED

    @both
    async def poll(self) -> Optional[int]:
        """Its exit code, or nothing while it runs."""
        self._attached_core()
        await self._look()
        return self._code

    @both
    async def wait(self, raise_on_termination: bool = True) -> None:
        """Waits for its end.

        Raises:
            SandboxTimeoutError: its time was up.
            SandboxTerminatedError: it was terminated, if that is to be raised.
        """
        await self._find_main()
        while self._code is None:
            if self._main is not None and self._main._end is not None and not self._main._end.is_set():
                await self._main._end.wait()
            else:
                await asyncio.sleep(POLL)
            await self._look()
        ended = self._main is not None and self._main._code is not None
        if self._code == TIMED_OUT and not ended:
            raise exception.SandboxTimeoutError(f"the time of sandbox `{self.object_id}` was up")
        if self._code == TERMINATED and not ended and raise_on_termination:
            raise exception.SandboxTerminatedError(f"sandbox `{self.object_id}` was terminated")

    @both
    async def terminate(self, *, wait: bool = False) -> Optional[int]:
        """Ends it; with `wait` it answers the exit code."""
        await self._attached_core().kill()
        if self._code is None:
            self._code = TERMINATED
        return self._code if wait else None

    @both
    async def detach(self) -> None:
        """Uses it no more; it goes on."""
        if self._is_attached:
            self._is_attached = False
            for job in (self._watch, self._main._pump if self._main is not None else None):
                if job is not None:
                    job.cancel()

    @both
    async def tunnels(self, timeout: int = 50) -> Dict[int, Tunnel]:
        """The ways to the ports that were said when it was made."""
        core = self._attached_core()
        ports = [int(port) for port in (core.get_label("modal.ports") or "").split(",") if port]
        return {port: _tunnel(core, port) for port in ports}

    @both
    async def get_tags(self) -> Dict[str, str]:
        """Its tags."""
        metadata = (await self._attached_core().get_info()).metadata
        return {name: value for name, value in metadata.items() if not name.startswith(OURS)}

    @both
    async def set_tags(self, tags: Mapping[str, str], *, client: Any = None) -> None:
        """Replaces its tags."""
        core = self._attached_core()
        kept = {name: value for name, value in (await core.get_info()).metadata.items() if name.startswith("modal.")}
        await core.set_metadata({**_tags(tags), **kept})

    @both
    async def snapshot_filesystem(self, timeout: int = 55, *, ttl: Optional[int] = SNAPSHOT_TTL) -> Image:
        """An image of its files, which stays until `offleash snapshot rm` removes it."""
        if ttl not in (None, SNAPSHOT_TTL):
            raise exception.not_here("`ttl` of snapshots", "`ttl=None`; `offleash snapshot rm` removes one")
        try:
            taken = await asyncio.wait_for(self._attached_core().create_snapshot(), timeout)
        except asyncio.TimeoutError:
            raise exception.TimeoutError(f"the snapshot was not there within {timeout} s") from None
        return Image.from_id(taken.snapshot_id)

    @both
    async def set_outbound_network_policy(
        self, *, outbound_cidr_allowlist: Optional[Sequence[str]] = None, outbound_domain_allowlist: Optional[Sequence[str]] = None
    ) -> None:
        """Replaces what it may reach."""
        network = _network(False, outbound_cidr_allowlist, outbound_domain_allowlist).get("network", {})
        await self._attached_core().update_network(network)

    @both
    async def reload_volumes(self, *, timeout: int = 55) -> None:
        """Nothing is to be done: what others wrote into its volumes is there."""
        self._attached_core()

    def open(self, path: str, mode: str = "r") -> FileIO:
        """A file, as Modal's library had it before `filesystem`."""
        self._attached_core()
        return FileIO(self.filesystem, path, mode)

    @both
    async def ls(self, path: str) -> List[str]:
        """The names in a directory."""
        return [entry.name for entry in await self.filesystem._list(path)]

    @both
    async def mkdir(self, path: str, parents: bool = False) -> None:
        """Makes a directory."""
        await self.filesystem._make(path, parents)

    @both
    async def rm(self, path: str, recursive: bool = False) -> None:
        """Removes a file, or with `recursive` a directory."""
        await self.filesystem._remove(path, recursive)


def _absent_method(name: str, hint: str) -> Any:
    async def absent(self: Sandbox, *_: Any, **__: Any) -> None:
        raise exception.not_here(f"`Sandbox.{name}`", hint)

    absent.__name__, absent.__doc__ = name, "Not here."
    return both(absent)


for _name, _hint in {
    "create_connect_token": "`tunnels` has the way to a port",
    "mount_image": "`volumes`, or `snapshot_filesystem`",
    "snapshot_directory": "`snapshot_filesystem`, or `volumes`",
    "unmount_image": "",
    "wait_until_ready": "wait for what a command says, with `exec`",
}.items():
    setattr(Sandbox, _name, _absent_method(_name, _hint))
del _name, _hint


class _Core(AsyncSandboxCore):
    """A sandbox of this library, with what is remembered of it."""

    def get_label(self, name: str) -> Optional[str]:
        """One of its labels, as they were when it was made."""
        return self._known().metadata.get(name)

    def is_late(self) -> bool:
        """Whether its time was up."""
        ends = self._known().end_at
        return ends is not None and datetime.datetime.now(datetime.timezone.utc) >= ends


def _tags(tags: Optional[Mapping[str, str]]) -> Dict[str, str]:
    reserved = next((name for name in tags or {} if name.startswith(OURS)), None)
    if reserved:
        raise exception.InvalidError(f"tags: `{reserved}` begins with what offleash keeps for itself")
    return dict(tags or {})


def _labels(app: Optional[App], tags: Optional[Mapping[str, str]], workdir: Optional[str], ports: Sequence[int]) -> Dict[str, str]:
    labels = _tags(tags)
    if app is not None and app.app_id is None:
        raise exception.InvalidError("the app has no name", hint="`App.lookup('my-app', create_if_missing=True)`")
    if any(not isinstance(port, int) or not 1 <= port <= 65535 for port in ports):
        raise exception.InvalidError("ports: numbers from 1 to 65535")
    ours = {
        "modal.sandbox": "1",
        "modal.app": app.app_id if app is not None else None,
        "modal.workdir": workdir,
        "modal.ports": ",".join(map(str, ports)) or None,
    }
    return {**labels, **{name: value for name, value in ours.items() if value is not None}}


async def _mounts(volumes: Mapping[str, Volume]) -> Dict[str, Any]:
    mounts = {}
    for path, volume in volumes.items():
        if not isinstance(volume, Volume):
            raise exception.not_here(f"`{type(volume).__name__}` at `{path}`", "a `Volume`")
        mounts[str(path)] = await volume._mount()
    return mounts


def _tunnel(core: Any, port: int) -> Tunnel:
    server = urlsplit(core._addressed().url)
    usual = 443 if server.scheme == "https" else 80
    # The name without the server's port, which is a field of its own.
    return Tunnel(core.get_host(port).partition(":")[0], server.port or usual, core.get_url(port))
