"""Ray: functions, commands and cells of code in sandboxes on the nodes of a cluster.

    @offleash_ray.sandboxed(num_cpus=1, sandbox={"allow_internet_access": False})
    def count(text):
        return len(text.split())

    ray.get([count.remote(text) for text in texts])

Ray decides the node. A sandbox is made there by that node's own server, which the library starts. What Ray counts as `num_cpus` and
`memory` of a call, which Ray itself does not enforce, is what the sandbox may use.
"""

import base64
import functools
import json
import math
import os
import stat
import sys
import tempfile
from pathlib import Path

import cloudpickle
import ray
from ray.util import ActorPool

import offleash

#: How much longer than a call its sandbox may live, seconds: what is left behind by a node that died ends by itself.
GRACE_SECONDS = 60
#: What a call may take at most unless it says otherwise, seconds.
TIMEOUT = 300
#: Most bytes of a result.
MAX_RESULT = 64 << 20
#: Deepest nesting of a result.
MAX_DEPTH = 100

# Runs inside. What it is given is ours and unpickled; what it answers is written down as JSON, because nobody outside may unpickle it.
_RUNNER = r"""
import base64, json, os, pickle, sys, traceback

def told(value, depth=0):
    kind = type(value)
    if depth > MAX_DEPTH:
        raise TypeError("it is nested too deeply")
    if kind is int and value.bit_length() > 10000:
        raise TypeError("a number of so many digits cannot leave a sandbox")
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind in (list, tuple):
        return {kind.__name__: [told(item, depth + 1) for item in value]}
    if kind is dict:
        return {"dict": [[told(key, depth + 1), told(item, depth + 1)] for key, item in value.items()]}
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and not value.dtype.hasobject:
        import io, numpy
        out = io.BytesIO()
        numpy.save(out, value, allow_pickle=False)
        return {"ndarray": base64.b64encode(out.getvalue()).decode()}
    raise TypeError(f"a `{kind.__module__}.{kind.__qualname__}` cannot leave a sandbox")

def main(here):
    sys.path.insert(0, here)
    with open(here + "/call.json") as file:
        call = json.load(file)
    if call["python"] != list(sys.version_info[:2]):
        return {"python": list(sys.version_info[:2])}
    try:
        function, args, kwargs = pickle.loads(base64.b64decode(call["pickled"]))
        value = pickle.loads(function)(*args, **kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return {"error": type(error).__name__, "message": str(error), "traceback": text}
    try:
        return {"value": told(value)}
    except TypeError as error:
        return {"unknown": str(error)}

here = os.path.dirname(os.path.abspath(__file__))
answer = json.dumps(main(here))
with open(here + "/answer.new", "w") as file:
    file.write(answer)
os.rename(here + "/answer.new", here + "/answer.json")
""".replace("MAX_DEPTH", str(MAX_DEPTH))


class CallError(Exception):
    """A call in a sandbox has no result."""

    def __init__(self, message, *rest):
        # What Ray carries to another process is made again of its arguments.
        super().__init__(message, *rest)
        self.message = message

    def __str__(self):
        return self.message


class FunctionRaised(CallError):
    """The function raised; `name` is its exception's class, by the word of the code inside."""

    def __init__(self, message, name, traceback):
        super().__init__(message, name, traceback)
        self.name, self.traceback = name, traceback


class CallTimedOut(CallError):
    """It took longer than it may."""


class OutOfMemory(CallError):
    """It took more memory than its sandbox has."""


class CallDied(CallError):
    """The interpreter inside ended without an answer."""


class PythonDiffers(CallError):
    """The sandbox's Python is not the cluster's: functions are carried as bytecode."""


class ResultRefused(CallError):
    """What came back is none of what may leave a sandbox, or too much."""


def _node_state():
    """Has the library keep this node's server in a directory of this machine's own, and not in a home that nodes share."""
    if os.environ.get("OFFLEASH_URL") or os.environ.get("XDG_STATE_HOME"):
        return
    place = Path(tempfile.gettempdir()) / f"offleash-ray-{os.geteuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise offleash.DaemonException(
            f"`{place}` is not a directory of this user alone", hint="remove it, or set XDG_STATE_HOME on every node"
        )
    os.environ["XDG_STATE_HOME"] = str(place)


@functools.lru_cache(maxsize=1)
def _cloudpickle_files():
    """The module that functions are carried with, as the sandbox needs it; its template may not have it."""
    here = Path(cloudpickle.__file__).parent
    return [(f"cloudpickle/{file.name}", file.read_bytes()) for file in sorted(here.glob("*.py"))]


def _value(told, depth=0):
    """A result that a sandbox wrote down; nothing of it is trusted."""
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if not isinstance(told, dict):
        if isinstance(told, list):
            raise ValueError("it has a list that says of what kind it is nowhere")
        return told
    ((kind, content),) = told.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_value(item, depth + 1) for item in content)
    if kind == "dict":
        return {_value(key, depth + 1): _value(item, depth + 1) for key, item in content}
    if kind == "ndarray":
        import io

        import numpy

        packed = base64.b64decode(content, validate=True)
        if not packed.startswith(numpy.lib.format.MAGIC_PREFIX):
            # An archive of arrays is loaded, too, and is something else.
            raise ValueError("it has no array where one should be")
        return numpy.load(io.BytesIO(packed), allow_pickle=False)
    raise ValueError(f"it has a `{kind}`")


def _answer(raw):
    """What a sandbox answered to a call."""
    try:
        told = json.loads(raw)
        if "value" in told:
            return _value(told["value"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise ResultRefused(f"the sandbox's answer is refused: {error}") from None
    if not isinstance(told, dict):
        raise ResultRefused("the sandbox's answer is refused: it is no object")
    if "python" in told:
        ours = ".".join(map(str, sys.version_info[:2]))
        theirs = ".".join(str(number) for number in told["python"]) if isinstance(told["python"], list) else "another"
        raise PythonDiffers(f"this cluster has Python {ours}, the sandbox {theirs}; take a template or an image with Python {ours}")
    if "unknown" in told:
        raise ResultRefused(f"the result is refused: {told['unknown']}")
    name, message, traceback = (str(told.get(word, "")) for word in ("error", "message", "traceback"))
    raise FunctionRaised(f"{name or 'an error'}: {message}", name, traceback)


def _call_in(sandbox, pickled, timeout):
    """Calls a function in a sandbox, in an interpreter of its own."""
    # Not below its home: what the function does there is its own matter.
    here = f"/tmp/offleash-call-{base64.b32encode(os.urandom(10)).decode().lower()}"
    call = {"python": list(sys.version_info[:2]), "pickled": base64.b64encode(pickled).decode()}
    files = [*_cloudpickle_files(), ("call.json", json.dumps(call)), ("run.py", _RUNNER)]
    for name, content in files:
        sandbox.files.write(f"{here}/{name}", content)
    ended = sandbox.run(["python3", f"{here}/run.py"], timeout=timeout)
    for text, stream in ((ended.stdout, sys.stdout), (ended.stderr, sys.stderr)):
        if text:
            print(text, end="" if text.endswith("\n") else "\n", file=stream, flush=True)
    try:
        if ended.timed_out:
            raise CallTimedOut(f"the call was ended after {timeout} s")
        if ended.out_of_memory:
            raise OutOfMemory("the call took more memory than its sandbox has")
        try:
            size = sandbox.files.get_info(f"{here}/answer.json").size
            if size > MAX_RESULT:
                raise ResultRefused(f"the result is refused: it has {size} bytes of at most {MAX_RESULT}")
            raw = _at_most(sandbox.files.read(f"{here}/answer.json", "stream"), MAX_RESULT)
        except offleash.NotFoundException:
            how = f"exit code {ended.exit_code}" if ended.exit_code is not None else f"signal {ended.signal}"
            last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise CallDied(f"the interpreter ended with {how} and without an answer: {last}") from None
    finally:
        sandbox.run(["rm", "-rf", here])
    return _answer(raw)


def _at_most(pieces, most):
    """What a sandbox sends, which may be more than it said."""
    got = bytearray()
    for piece in pieces:
        got += piece
        if len(got) > most:
            raise ResultRefused(f"the result is refused: it has more than {most} bytes")
    return bytes(got)


def _limits(ray_options):
    """What Ray counts for a call, as limits of its sandbox."""
    limits = {"cpus": max(1, math.ceil(ray_options["num_cpus"]))} if ray_options.get("num_cpus") else {}
    if ray_options.get("memory"):
        limits["memory_mib"] = max(1, int(ray_options["memory"]) >> 20)
    return limits


def _call(_offleash_pickled, _offleash_options, _offleash_timeout, *args, **kwargs):
    """What Ray runs on a node: a sandbox, a call in it, and its end."""
    _node_state()
    # The function stays bytes here: nothing of it, its globals included, comes to life outside of the sandbox.
    pickled = cloudpickle.dumps((_offleash_pickled, args, kwargs))
    with offleash.Sandbox.create(timeout=math.ceil(_offleash_timeout) + GRACE_SECONDS, **_offleash_options) as sandbox:
        return _call_in(sandbox, pickled, _offleash_timeout)


class SandboxedFunction:
    """A function whose calls are tasks of Ray, each in a sandbox of its own."""

    def __init__(self, function, timeout=TIMEOUT, sandbox=None, **ray_options):
        functools.update_wrapper(self, function)
        self._function, self._timeout, self._sandbox = function, timeout, dict(sandbox or {})
        self._ray = {"num_cpus": 1, **ray_options}

    def options(self, timeout=None, sandbox=None, **ray_options):
        """The same function with other options; those that are not said stay."""
        timeout = self._timeout if timeout is None else timeout
        return SandboxedFunction(self._function, timeout, {**self._sandbox, **(sandbox or {})}, **{**self._ray, **ray_options})

    def remote(self, *args, **kwargs):
        """Begins a call; answers what `ray.get` waits for. Arguments that are references of Ray are resolved, as with `ray.remote`."""
        options = {**_limits(self._ray), **self._sandbox}
        task = ray.remote(_call).options(name=self._function.__qualname__, **self._ray)
        return task.remote(_by_value(self._function), options, self._timeout, *args, **kwargs)

    def __call__(self, *_, **__):
        raise TypeError(f"call `{self.__name__}.remote(…)`, as with `ray.remote`")


def _by_value(function):
    """A function as bytes that need no module of the caller's: the one that it is defined in goes along."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    # What is built in, or the standard library's, is in the sandbox, too.
    is_ours = module is not None and module.__name__.partition(".")[0] not in {"__main__", *sys.stdlib_module_names}
    if not is_ours:
        return cloudpickle.dumps(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def sandboxed(*given, **options):
    """Has calls of a function run in sandboxes on the cluster: `@sandboxed`, or `@sandboxed(…)`.

    Args:
        timeout: How long a call may take, seconds.
        sandbox: What `offleash.Sandbox.create` takes.
        Everything else is what `ray.remote` takes (`num_cpus`, `memory`, `resources`, `max_retries`, `scheduling_strategy` …).
    """
    if len(given) == 1 and callable(given[0]) and not options:
        return SandboxedFunction(given[0])
    if given:
        raise TypeError("`sandboxed` takes options by their names")
    return lambda function: SandboxedFunction(function, **options)


class SandboxActor:
    """An actor of Ray that has one sandbox as long as it lives; made by `SandboxPool`, or by `ray.remote(SandboxActor)`."""

    def __init__(self, sandbox=None):
        _node_state()
        options = {"timeout": 86400, **(sandbox or {})}
        self._sandbox = offleash.Sandbox.create(**options)

    def sandbox_id(self):
        return self._sandbox.sandbox_id

    def call(self, pickled, arguments, timeout=TIMEOUT):
        """Calls a function in the sandbox, in an interpreter of its own; files stay from one call to the next."""
        return _call_in(self._sandbox, cloudpickle.dumps((pickled, arguments, {})), timeout)

    def run(self, command, **options):
        """What `Sandbox.run` does."""
        return self._sandbox.run(command, **options)

    def run_code(self, code, **options):
        """What `Sandbox.run_code` does: variables stay from one cell to the next."""
        return self._sandbox.run_code(code, **options)

    def close(self):
        return self._sandbox.kill()


class SandboxPool:
    """Actors with a sandbox each, over the nodes of a cluster; what one call leaves in its sandbox, a later one finds.

    With `with` they end. `ray_options` are an actor's, such as `num_cpus` and `scheduling_strategy="SPREAD"`.
    """

    def __init__(self, size, sandbox=None, timeout=TIMEOUT, **ray_options):
        if size < 1:
            raise ValueError("a pool has at least one sandbox")
        self._timeout = timeout
        ray_options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **ray_options}
        options = {**_limits(ray_options), **(sandbox or {})}
        made = ray.remote(SandboxActor).options(**ray_options)
        self.actors = [made.remote(options) for _ in range(size)]
        self._pool = ActorPool(self.actors)

    def map(self, function, values):
        """Results of a function of each value, in the order of the values."""
        pickled = _by_value(function)
        return self._pool.map(lambda actor, value: actor.call.remote(pickled, (value,), self._timeout), values)

    def map_unordered(self, function, values):
        """Results as they come."""
        pickled = _by_value(function)
        return self._pool.map_unordered(lambda actor, value: actor.call.remote(pickled, (value,), self._timeout), values)

    def run(self, command, **options):
        """Runs a command in every sandbox; answers when all have ended."""
        return ray.get([actor.run.remote(command, **options) for actor in self.actors])

    def close(self):
        """Ends the sandboxes and their actors."""
        closing = [actor.close.remote() for actor in self.actors]
        # Of an actor whose node is gone there is nothing to be closed.
        ray.wait(closing, num_returns=len(closing), timeout=60)
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
