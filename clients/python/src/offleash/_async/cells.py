"""Code that keeps its state from one cell to the next."""

from __future__ import annotations

import json
from typing import Any, Callable, List, Mapping, Optional, Union

from .. import _errors
from .._execution import CodeContext, Execution
from .._requests import milliseconds, segment, without_none
from . import backend
from .api import AsyncApi

#: How long a cell may run if nobody says, seconds.
CELL_TIMEOUT = 300.0
#: How long the server may be silent in a cell, seconds: it shows that it is alive every five.
MAX_SILENCE = 60.0

Listener = Callable[[Any], Any]
ContextName = Union[CodeContext, str]


async def run_cell(
    api: AsyncApi,
    sandbox_id: str,
    code: str,
    language: Optional[str],
    context: Optional[ContextName],
    listeners: Mapping[str, Optional[Listener]],
    envs: Optional[Mapping[str, str]],
    timeout: Optional[float],
) -> Execution:
    """Runs a cell and tells what happens to it."""
    if language and context:
        raise _errors.InvalidArgumentException("a cell has a language or a context, not both")
    where = f"/v1/sandboxes/{segment(sandbox_id)}"
    if context:
        where += f"/contexts/{segment(_id(context))}"
    body = without_none({"code": code, "language": language, "env": dict(envs) if envs else None, "timeout_ms": milliseconds(timeout)})
    execution = Execution()
    async with api.stream("POST", f"{where}/execute", silence=MAX_SILENCE, json=body) as answer:
        async for line in answer.aiter_lines():
            if line:
                event = json.loads(line)
                heard = execution.take(event)
                if heard is not None:
                    await backend.told(listeners.get(event["kind"]), heard)
    if execution.outcome is None:
        raise _errors.SandboxNotRunningException("the answer was cut: the sandbox or the server has ended")
    if execution.outcome == "timed_out":
        raise _errors.TimeoutException(f"the cell was interrupted after {timeout:g} s", hint="give `timeout=`; 0 is without end")
    return execution


async def make_context(
    api: AsyncApi, sandbox_id: str, cwd: Optional[str], language: Optional[str], timeout: Optional[float]
) -> CodeContext:
    body = without_none({"cwd": cwd, "language": language})
    return CodeContext.of(await api.ask("POST", f"/v1/sandboxes/{segment(sandbox_id)}/contexts", body, timeout=timeout))


async def list_contexts(api: AsyncApi, sandbox_id: str) -> List[CodeContext]:
    answer = await api.ask("GET", f"/v1/sandboxes/{segment(sandbox_id)}/contexts")
    return [CodeContext.of(context) for context in answer["contexts"]]


async def end_context(api: AsyncApi, sandbox_id: str, context: ContextName) -> None:
    await api.ask("DELETE", f"/v1/sandboxes/{segment(sandbox_id)}/contexts/{segment(_id(context))}")


async def to_context(api: AsyncApi, sandbox_id: str, context: ContextName, verb: str) -> None:
    await api.ask("POST", f"/v1/sandboxes/{segment(sandbox_id)}/contexts/{segment(_id(context))}/{verb}")


def _id(context: ContextName) -> str:
    return context.id if isinstance(context, CodeContext) else context
