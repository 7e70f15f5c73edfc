"""What came of a cell of code, as E2B's SDK for code shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional

#: MIME types that have a field of their own.
_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


@dataclass
class CodeContext:
    """Code that keeps its state from one cell to the next."""

    id: str
    language: str
    cwd: str

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "CodeContext":
        return cls(answer["id"], answer["language"], answer["cwd"])


Context = CodeContext


@dataclass
class OutputMessage:
    """Something that a cell wrote."""

    line: str
    #: When the server heard of it, RFC 3339.
    timestamp: str
    error: bool = False

    def __str__(self) -> str:
        return self.line


@dataclass
class ExecutionError:
    """Why a cell failed, in its language's words."""

    name: str
    value: str
    traceback: str


@dataclass(repr=False)
class Result:
    """The value of a cell, or something that it displays: text, and base64 of images and of PDF."""

    text: Optional[str] = None
    html: Optional[str] = None
    markdown: Optional[str] = None
    svg: Optional[str] = None
    png: Optional[str] = None
    jpeg: Optional[str] = None
    pdf: Optional[str] = None
    latex: Optional[str] = None
    json: Optional[Any] = None
    javascript: Optional[str] = None
    data: Optional[Any] = None
    chart: Optional[Any] = None
    #: Whether it is the value of the last expression.
    is_main_result: bool = False
    #: Forms of other MIME types; `offleash/omitted` has the sizes of those that were too large.
    extra: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Result":
        result = cls(is_main_result=answer["is_main"])
        for mime, form in answer["forms"].items():
            if mime not in _FIELDS:
                result.extra[mime] = form
                continue
            if mime == "text/plain" and isinstance(form, str):
                form = _without_quotes(form)
            setattr(result, _FIELDS[mime], form)
        if answer.get("omitted"):
            result.extra["offleash/omitted"] = answer["omitted"]
        return result

    def formats(self) -> Iterator[str]:
        """The forms that there are."""
        yield from (name for name in _FIELDS.values() if getattr(self, name))
        yield from self.extra

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"Result({self.text})" if self.text else f"Result(Formats: {', '.join(self.formats())})"

    def _repr_html_(self) -> Optional[str]:
        return self.html

    def _repr_png_(self) -> Optional[str]:
        return self.png


def _without_quotes(text: str) -> str:
    for quote in "'\"":
        if len(text) > 1 and text[0] == quote == text[-1]:
            return text[1:-1]
    return text


@dataclass
class Logs:
    """What a cell wrote."""

    stdout: List[str] = field(default_factory=list)
    stderr: List[str] = field(default_factory=list)


@dataclass(repr=False)
class Execution:
    """What came of a cell."""

    results: List[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: Optional[ExecutionError] = None
    execution_count: Optional[int] = None
    #: `done` (also after an error), `interrupted`, `timed_out`, `died` or `not_run`.
    outcome: Optional[str] = None

    @property
    def text(self) -> Optional[str]:
        """The text of the last expression's value."""
        return next((result.text for result in self.results if result.is_main_result), None)

    def __repr__(self) -> str:
        return f"Execution(Results: {self.results}, Logs: {self.logs}, Error: {self.error})"

    def to_json(self) -> str:
        """The same as JSON, without what is not there."""
        results = [{name: result[name] for name in result.formats() if hasattr(result, name)} for result in self.results]
        error = vars(self.error) if self.error else None
        return json.dumps({"results": results, "logs": vars(self.logs), "error": error})

    def take(self, event: Mapping[str, Any]) -> Any:
        """Takes in what happened; answers what a listener is to hear of it."""
        kind = event["kind"]
        if kind == "begin":
            self.execution_count = event["count"]
        elif kind in ("stdout", "stderr"):
            getattr(self.logs, kind).append(event["text"])
            return OutputMessage(event["text"], event["at"], kind == "stderr")
        elif kind == "result":
            self.results.append(Result.of(event["result"]))
            return self.results[-1]
        elif kind == "error":
            self.error = ExecutionError(**event["error"])
            return self.error
        elif kind == "end":
            self.outcome = event["outcome"]
            lost = {"died": "ContextDied", "not_run": "ContextDied"}.get(self.outcome)
            if lost and self.error is None:
                self.error = ExecutionError(lost, event.get("reason") or "the context has lost its state", "")
        return None
