"""What calls answer with, by the names that E2B's SDK has for it where it has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import quote, urlencode

from ._errors import SandboxException


def time_of(text: Optional[str]) -> Optional[datetime]:
    """A time as the server writes it: RFC 3339, to the nanosecond."""
    if not text:
        return None
    head, _, rest = text.rstrip("Z").partition(".")
    moment = datetime.strptime(head[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return moment.replace(microsecond=int(rest[:6].ljust(6, "0"))) if rest.isdigit() else moment


@dataclass
class CommandResult:
    """What a command wrote, and how it ended."""

    stderr: str
    stdout: str
    exit_code: int
    error: Optional[str] = None


class CommandExitException(SandboxException, CommandResult):
    """A command ended with another exit code than 0."""

    # Errors are told apart by what they are, not by what is in them.
    __hash__ = Exception.__hash__
    __eq__ = Exception.__eq__

    def __init__(self, result: CommandResult):
        CommandResult.__init__(self, result.stderr, result.stdout, result.exit_code, result.error)
        message = f"Command exited with code {result.exit_code} and error:\n{result.stderr}"
        SandboxException.__init__(self, message, code=result.exit_code)


@dataclass
class RunResult:
    """What `run` answers: a command that was run and waited for in one request."""

    stdout: str
    stderr: str
    #: `None` when a signal ended it.
    exit_code: Optional[int]
    signal: Optional[int]
    timed_out: bool
    out_of_memory: bool
    #: Whether it wrote more than 1 MiB to one of its streams, which is left out.
    truncated: bool
    took_ms: int
    sandbox_id: str

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "RunResult":
        names = ("stdout", "stderr", "exit_code", "signal", "timed_out", "out_of_memory", "truncated", "took_ms")
        return cls(**{name: answer[name] for name in names}, sandbox_id=answer["sandbox"])


@dataclass
class ProcessInfo:
    """A command that runs."""

    pid: int
    tag: Optional[str]
    cmd: str
    args: List[str]
    envs: Dict[str, str]
    cwd: Optional[str]

    @classmethod
    def of(cls, process: Mapping[str, Any]) -> "ProcessInfo":
        config = process.get("config") or {}
        return cls(
            pid=process["pid"],
            tag=process.get("tag"),
            cmd=config.get("cmd", ""),
            args=config.get("args", []),
            envs=config.get("envs", {}),
            cwd=config.get("cwd"),
        )


@dataclass
class PtySize:
    """The size of a terminal."""

    rows: int
    cols: int


class FileType(Enum):
    """What is at a path."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"


_TYPES = {
    "FILE_TYPE_FILE": FileType.FILE,
    "FILE_TYPE_DIRECTORY": FileType.DIR,
    "FILE_TYPE_SYMLINK": FileType.SYMLINK,
    "file": FileType.FILE,
    "dir": FileType.DIR,
}


@dataclass
class WriteInfo:
    """A file that was written."""

    name: str
    type: Optional[FileType]
    path: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "WriteInfo":
        return cls(entry["name"], _TYPES.get(entry.get("type", "")), entry["path"])


@dataclass
class WriteEntry:
    """A file that is to be written."""

    path: str
    data: Any


@dataclass
class EntryInfo(WriteInfo):
    """What is at a path."""

    size: int
    #: The permission bits.
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: Optional[datetime]
    symlink_target: Optional[str] = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "EntryInfo":
        kind = FileType.SYMLINK if entry.get("isSymlink") else _TYPES.get(entry.get("type", ""))
        return cls(
            name=entry.get("name", ""),
            type=kind,
            path=entry.get("path", ""),
            size=int(entry.get("size", 0)),
            mode=int(entry.get("mode", 0)),
            permissions=entry.get("permissions", ""),
            owner=entry.get("owner", ""),
            group=entry.get("group", ""),
            modified_time=time_of(entry.get("modifiedTime")),
            symlink_target=entry.get("symlinkTarget"),
        )


class FilesystemEventType(Enum):
    """What happened in a directory."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


@dataclass
class FilesystemEvent:
    """Something that happened in a directory that is watched."""

    #: Its path, relative to that directory.
    name: str
    type: FilesystemEventType

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "FilesystemEvent":
        kind = event.get("type", "").replace("EVENT_TYPE_", "").lower()
        return cls(event.get("name", ""), FilesystemEventType(kind))


class SandboxState(Enum):
    """Whether a sandbox runs."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass
class SandboxInfo:
    """What the server says of a sandbox."""

    sandbox_id: str
    template_id: str
    name: Optional[str]
    metadata: Dict[str, str]
    started_at: Optional[datetime]
    end_at: Optional[datetime]
    state: SandboxState
    cpu_count: int
    memory_mb: int
    disk_mb: int
    #: How it is isolated, as in `process`.
    level: str
    #: What was asked for and is not enforced on the server's machine, with the reason.
    not_enforced: Dict[str, str]
    fork_of: Optional[str]
    snapshot: Optional[str]
    #: All that the server says, as it says it (`Sandbox` of the native REST).
    raw: Dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, answer: Dict[str, Any]) -> "SandboxInfo":
        limits = answer["limits"]
        return cls(
            sandbox_id=answer["id"],
            template_id=answer["template"],
            name=answer["metadata"].get("offleash.name"),
            metadata=answer["metadata"],
            started_at=time_of(answer["started_at"]),
            end_at=time_of(answer["ends_at"]),
            state=SandboxState(answer["state"]),
            cpu_count=limits["cpus"],
            memory_mb=limits["memory_mib"],
            disk_mb=limits["disk_mib"],
            level=answer["level"],
            not_enforced=answer["not_enforced"],
            fork_of=answer["fork_of"],
            snapshot=answer["snapshot"],
            raw=answer,
        )


@dataclass
class SandboxQuery:
    """Which sandboxes are wanted."""

    metadata: Optional[Dict[str, str]] = None
    state: Optional[List[SandboxState]] = None
    template: Optional[str] = None
    started_after: Optional[datetime] = None

    def wanted(self) -> Dict[str, Optional[str]]:
        """The same as a query."""
        pairs = [(quote(name, safe=""), quote(value, safe="")) for name, value in (self.metadata or {}).items()]
        states = [state.value for state in self.state or []]
        after = self.started_after
        return {
            "metadata": urlencode(pairs) or None,
            "state": ",".join(states) or None,
            "template": self.template,
            "startedAfter": after.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if after else None,
        }


@dataclass
class SandboxMetrics:
    """What a sandbox used at one time; bytes."""

    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int
    timestamp: Optional[datetime]

    @classmethod
    def of(cls, metric: Mapping[str, Any]) -> "SandboxMetrics":
        return cls(
            cpu_count=metric["cpuCount"],
            cpu_used_pct=metric["cpuUsedPct"],
            mem_used=metric["memUsed"],
            mem_total=metric["memTotal"],
            mem_cache=metric.get("memCache", 0),
            disk_used=metric["diskUsed"],
            disk_total=metric["diskTotal"],
            timestamp=time_of(metric["timestamp"]),
        )


@dataclass
class Snapshot:
    """A snapshot, or a checkpoint of a sandbox."""

    snapshot_id: str
    name: Optional[str]
    sandbox_id: Optional[str]
    template_id: str
    #: The checkpoint that the sandbox was at before.
    parent: Optional[str]
    bytes: int
    files: int
    #: How long the sandbox stood still for it, milliseconds.
    held_ms: float
    created_at: Optional[datetime]

    @property
    def names(self) -> List[str]:
        """The same name as a list, as E2B's SDK has it."""
        return [self.name] if self.name else []

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Snapshot":
        return cls(
            snapshot_id=answer["id"],
            name=answer["name"],
            sandbox_id=answer["sandbox"],
            template_id=answer["template"],
            parent=answer["parent"],
            bytes=answer["bytes"],
            files=answer["files"],
            held_ms=answer["held_ms"],
            created_at=time_of(answer["created_at"]),
        )


SnapshotInfo = Snapshot
Checkpoint = Snapshot


@dataclass
class Volume:
    """A directory that outlives sandboxes."""

    volume_id: str
    name: str
    size_mib: int
    inodes: int
    #: Whether many sandboxes may write to it at the same time.
    shared: bool
    in_use: bool
    created_at: Optional[datetime]

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Volume":
        names = ("name", "size_mib", "inodes", "shared", "in_use")
        values = {name: answer[name] for name in names}
        return cls(volume_id=answer["id"], created_at=time_of(answer["created_at"]), **values)


@dataclass
class Approval:
    """A question that waits for a person."""

    id: str
    sandbox_id: str
    tool: str
    #: What it would be called with, all of it.
    parameters: Any
    #: How long it waits still before it is refused, milliseconds.
    left_ms: int
    #: What it is about: `tool`, `connection`, `command` or `restore`.
    kind: str
    #: The scope of the keys that may answer it: `create` or `admin`.
    answered_by: str

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Approval":
        names = ("id", "tool", "parameters", "left_ms", "kind", "answered_by")
        return cls(sandbox_id=answer["sandbox"], **{name: answer[name] for name in names})
