"""Methods that are called of a sandbox, or of the class with a sandbox's id before everything else."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from typing import Generic, TypeVar, overload

    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")
    R = TypeVar("R")

    class either(Generic[P, R]):
        def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None: ...
        @overload
        def __get__(self, instance: None, owner: Any) -> Callable[Concatenate[str, P], R]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Callable[P, R]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...

else:

    class either:
        def __init__(self, function: Callable[..., Any]):
            self._function = function
            functools.update_wrapper(self, function)

        def __get__(self, instance: Any, owner: Any) -> Callable[..., Any]:
            function = self._function
            if instance is not None:
                return functools.partial(function, instance)

            @functools.wraps(function)
            def of_class(sandbox_id: str, *arguments: Any, **named: Any) -> Any:
                connection = {name: named.pop(name) for name in ("url", "api_key") if name in named}
                return owner._on(sandbox_id, connection, function, arguments, named)

            return of_class
