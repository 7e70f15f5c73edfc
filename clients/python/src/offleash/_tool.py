"""Functions of this program that code in a sandbox may call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Union

from ._requests import milliseconds, schema_of, without_none


@dataclass
class Tool:
    """A function that code in a sandbox may call as a command, and as a function of `offleash_tools`."""

    function: Callable[..., Any]
    name: str
    description: str
    #: The JSON schema of its parameters.
    parameters: Mapping[str, Any]
    #: What the parameters have to be, how many calls there may be and whether a person is asked, as in `calls 3 ask`.
    grant: Optional[str] = None
    #: How long a call may take, seconds.
    timeout: Optional[float] = None

    def declared(self) -> Dict[str, Any]:
        """What the server is told of it."""
        return without_none(
            {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
                "grant": self.grant,
                "timeout_ms": milliseconds(self.timeout),
            }
        )


def tool(
    function: Optional[Callable[..., Any]] = None,
    *,
    name: Optional[str] = None,
    description: Optional[str] = None,
    parameters: Optional[Mapping[str, Any]] = None,
    grant: Optional[str] = None,
    timeout: Optional[float] = None,
) -> Any:
    """Makes a tool of a function, by its name, docstring and annotations where nothing else is said. A decorator, too."""

    def made(function: Callable[..., Any]) -> Tool:
        return Tool(
            function=function,
            name=name or function.__name__,
            description=description if description is not None else (inspect.getdoc(function) or ""),
            parameters=parameters if parameters is not None else schema_of(function),
            grant=grant,
            timeout=timeout,
        )

    return made if function is None else made(function)


def as_tool(given: Union[Tool, Callable[..., Any]]) -> Tool:
    """What was given, as a tool."""
    return given if isinstance(given, Tool) else tool(given)
