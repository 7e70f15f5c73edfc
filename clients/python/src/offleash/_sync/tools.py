# Made by scripts/make_sync.py; change `_async` instead.
"""Answers the calls of tools that code in a sandbox makes."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

import httpx

from .. import _errors
from .._requests import segment
from .._tool import Tool
from . import backend
from .api import Api

#: How long the stream of calls may be silent, seconds: the server shows that it is alive every fifteen.
MAX_SILENCE = 60.0


def answer_calls(api: Api, sandbox_id: str, tools: Mapping[str, Tool], ready: Any) -> None:
    """Answers calls until the sandbox ends; `ready` is called when none is missed any more."""
    calls = f"/v1/sandboxes/{segment(sandbox_id)}/tools/calls"
    try:
        with api.stream("GET", calls, silence=MAX_SILENCE) as answer:
            ready(None)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    call = json.loads(line[len("data: ") :])
                    if call["kind"] == "call":
                        # One that takes long holds up no other.
                        backend.Job(_answer, api, calls, tools, call)
    except (_errors.OffleashError, httpx.HTTPError) as error:
        ready(error)


def _answer(api: Api, calls: str, tools: Mapping[str, Tool], call: Dict[str, Any]) -> None:
    try:
        result = backend.called(tools[call["tool"]].function, call["parameters"])
        outcome = {"result": result}
        json.dumps(outcome)
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    try:
        api.ask("POST", f"{calls}/{call['id']}", outcome)
    except _errors.OffleashError:
        # It was withdrawn: whoever called has gone, or waits no more.
        pass
