"""From arguments to the bodies of requests."""

from __future__ import annotations

import inspect
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode

from ._connection import REQUEST_TIMEOUT
from ._errors import InvalidArgumentException
from ._models import Volume

#: What every address is: where it is denied, all is closed that is not allowed.
ALL_TRAFFIC = "0.0.0.0/0"

#: Fields of `network` that only E2B's route takes, and their names there.
_RULES = {
    "rules": "rules",
    "dns_servers": "dnsServers",
    "egress_proxy": "egressProxy",
    "mask_request_host": "maskRequestHost",
    "https_ports": "httpsPorts",
}
_KNOWN = {*_RULES, "allow_out", "deny_out", "allow_public_traffic"}


def without_none(fields: Mapping[str, Any]) -> Dict[str, Any]:
    """What of it was said."""
    return {name: value for name, value in fields.items() if value is not None}


def segment(text: str) -> str:
    """Text as a part of a path."""
    return quote(text, safe="")


def new_key() -> str:
    """What nobody else knows, nor says again."""
    return str(uuid.uuid4())


def query(**fields: Any) -> str:
    """A query of what was said, with its question mark."""
    said = without_none(fields)
    return f"?{urlencode(said)}" if said else ""


def network_body(network: Optional[Mapping[str, Any]], internet: Optional[bool] = None) -> Dict[str, Any]:
    """`network` as E2B's route takes it."""
    network = dict(network or {})
    unknown = set(network) - _KNOWN
    if unknown:
        raise InvalidArgumentException(f"network: `{sorted(unknown)[0]}` is not known")
    rules = network.get("rules") or {}

    def listed(name: str) -> Optional[List[str]]:
        value = network.get(name)
        if callable(value):
            value = value(_Selector(rules))
        return None if value is None else list(value)

    body = {name: network.get(field) for field, name in _RULES.items()}
    body["allowOut"], body["denyOut"] = listed("allow_out"), listed("deny_out")
    body["allowPublicTraffic"] = network.get("allow_public_traffic")
    body["allow_internet_access"] = internet
    return without_none(body)


class _Selector:
    """What a function that selects hosts is given."""

    def __init__(self, rules: Mapping[str, Any]):
        self.all_traffic = ALL_TRAFFIC
        self.rules = rules


def has_rules(body: Mapping[str, Any]) -> bool:
    """Whether a network has what the native route does not take."""
    return any(body.get(name) for name in _RULES.values())


#: A volume or its name, or `{"volume": NAME, "read_only": True}`, by the path that it has inside.
VolumeMounts = Mapping[str, Union[str, Volume, Mapping[str, Any]]]
Milliseconds = int


def sandbox_body(
    *,
    template: Optional[str] = None,
    timeout: Optional[int] = None,
    metadata: Optional[Mapping[str, str]] = None,
    envs: Optional[Mapping[str, str]] = None,
    network: Optional[Mapping[str, Any]] = None,
    lifecycle: Optional[Mapping[str, Any]] = None,
    volume_mounts: Optional[VolumeMounts] = None,
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
    tool_grants: Optional[Sequence[str]] = None,
    answered: Sequence[Mapping[str, Any]] = (),
) -> Dict[str, Any]:
    """A sandbox as the native route takes it; `network` is in the form of E2B's route."""
    labels = dict(metadata or {})
    if level is not None:
        labels["offleash.level"] = level
    network = network or {}
    policy = {
        "internet": network.get("allow_internet_access"),
        "allow": network.get("allowOut"),
        "deny": network.get("denyOut"),
        "public_ports": network.get("allowPublicTraffic"),
    }
    limits = without_none({"cpus": cpus, "memory_mib": memory_mib, "disk_mib": disk_mib, "pids": pids})
    tools = without_none({"grants": tool_grants, "answered": list(answered) or None})
    body = {
        "template": template,
        "image": image,
        "snapshot": snapshot,
        "name": name,
        "timeout_seconds": timeout,
        "metadata": labels or None,
        "env": dict(envs) if envs else None,
        "volumes": [_mount(path, volume) for path, volume in (volume_mounts or {}).items()] or None,
        "limits": limits or None,
        "policy": without_none(policy) or None,
        "tools": tools or None,
        "idle_seconds": idle,
        "checkpoint_every_seconds": checkpoint_every,
        "checkpoint_before": list(checkpoint_before) if checkpoint_before is not None else None,
        "ask_before": list(ask_before) if ask_before is not None else None,
        "ask_before_restore": ask_before_restore,
        **_lifecycle(lifecycle or {}),
    }
    return without_none(body)


def _mount(path: str, volume: Union[str, Volume, Mapping[str, Any]]) -> Dict[str, Any]:
    if isinstance(volume, Mapping):
        return {**volume, "path": path}
    return {"volume": volume.name if isinstance(volume, Volume) else volume, "path": path}


def _lifecycle(lifecycle: Mapping[str, Any]) -> Dict[str, Any]:
    action = lifecycle.get("on_timeout")
    mode = None
    if isinstance(action, Mapping):
        mode = action.get("mode")
        if mode is None and action.get("keep_memory") is False:
            mode = "filesystem"
        action = action.get("action")
    if action not in (None, "kill", "pause"):
        raise InvalidArgumentException(f"lifecycle: on_timeout is `kill` or `pause`, not `{action}`")
    return {
        "pause_on_timeout": None if action is None else action == "pause",
        "pause_mode": mode,
        "auto_resume": lifecycle.get("auto_resume"),
    }


def command_body(
    command: Union[str, Sequence[str]],
    envs: Optional[Mapping[str, str]],
    cwd: Optional[str],
    user: Optional[str],
    stdin: Optional[str],
    timeout: Optional[float],
) -> Dict[str, Any]:
    """A command as the native route takes it: a line of a shell, or words."""
    what = {"shell": command} if isinstance(command, str) else {"argv": list(command)}
    rest = {
        "env": dict(envs) if envs else None,
        "cwd": cwd,
        "user": user,
        "stdin": stdin,
        "timeout_ms": milliseconds(timeout),
    }
    return {**what, **without_none(rest)}


def milliseconds(seconds: Optional[float]) -> Optional[Milliseconds]:
    """Zero is without a limit, as E2B's SDK has it."""
    return max(1, round(seconds * 1000)) if seconds else None


def patience(timeout: Optional[float]) -> float:
    """How long an answer that comes when a command has ended is waited for; zero is without end."""
    return timeout + REQUEST_TIMEOUT if timeout else 0


_JSON_TYPES: List[Tuple[type, str]] = [(bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")]


def schema_of(function: Callable[..., Any]) -> Dict[str, Any]:
    """The JSON schema of a function's parameters, as far as their annotations say."""
    properties: Dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidArgumentException(f"tool `{function.__name__}`: parameter `{parameter.name}` has to have a name")
        properties[parameter.name] = _schema_of_type(parameter.annotation)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema_of_type(annotation: Any) -> Dict[str, Any]:
    for kind, name in _JSON_TYPES:
        if annotation in (kind, kind.__name__):
            return {"type": name}
    origin = getattr(annotation, "__origin__", annotation)
    if origin in (list, "list"):
        return {"type": "array"}
    if origin in (dict, "dict"):
        return {"type": "object"}
    return {}
