"""Images: what sandboxes begin as. Steps are built by the server, once, when the first sandbox needs them."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import json
import os
import re
import shlex
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlsplit

from .._async import backend
from .._async.api import AsyncApi, open_api
from .._connection import names_key
from .._errors import NotFoundException
from .._local import files_below
from .._requests import segment
from . import exception
from ._both import both, both_of_class
from .app import App, refuse_client
from .secret import Secret, variables_of

#: How often the server is asked how a build goes on, seconds.
BUILD_POLL = 0.2

Step = Mapping[str, Any]


def _step(kind: str, *arguments: str, files: Optional[Tuple[str, str]] = None) -> Step:
    """A step as the server takes it; `files` are a local path, and what it is called in the archive.

    `secrets` are variables of a command whose values are in nothing that is kept.
    """
    return {"type": kind, "args": list(arguments), "files": files, "secrets": {}}


def _flat(arguments: Sequence[Any], what: str) -> List[str]:
    """Texts, and lists of texts, one after the other."""
    texts: List[str] = []
    for argument in arguments:
        texts += [argument] if isinstance(argument, str) else list(argument)
    if not all(isinstance(text, str) for text in texts):
        raise exception.InvalidError(f"{what}: all must be text")
    return texts


class Image:
    """What sandboxes begin as: a template, an image of containers or a snapshot, with steps on top of it."""

    def __init__(self, base: Mapping[str, str], steps: Sequence[Step] = (), **more: Any):
        self._base = dict(base)
        self._steps = tuple(steps)
        #: What is put into each sandbox: local paths, and where they go.
        self._files: Tuple[Tuple[str, str], ...] = tuple(more.get("files", ()))
        self._command: Tuple[str, ...] = tuple(more.get("command", ()))
        self._entrypoint: Tuple[str, ...] = tuple(more.get("entrypoint", ()))
        self._force = bool(more.get("force", False))

    def _with(self, *steps: Step, secrets: Any = None, gpu: Any = None, force_build: bool = False, **more: Any) -> "Image":
        if gpu is not None:
            raise exception.not_here("`gpu` for steps of an image")
        if "snapshot" in self._base and steps:
            raise exception.not_here("steps on top of a snapshot", "run them in a sandbox of it, and make another snapshot")
        if self._files and steps:
            raise exception.InvalidError("steps after local files", hint="add local files last, or with `copy=True`")
        # Secrets are variables of their own step, and are not kept in the image.
        hidden = variables_of(None, secrets)
        steps = tuple({**step, "secrets": {**step["secrets"], **hidden}} if step["type"] == "RUN" else step for step in steps)
        kept = {"files": self._files, "command": self._command, "entrypoint": self._entrypoint}
        return Image(self._base, self._steps + steps, force=self._force or force_build, **{**kept, **more})

    @property
    def object_id(self) -> str:
        """The id of the template, the image or the snapshot that it is."""
        if self._steps:
            return self._name()
        return next(iter(self._base.values()))

    @property
    def has_steps(self) -> bool:
        """Whether it is a template of its own, of what it begins with and steps."""
        return bool(self._steps)

    def __repr__(self) -> str:
        return f"Image({self.object_id!r})"

    @classmethod
    def debian_slim(cls, python_version: Optional[str] = None, force_build: bool = False) -> "Image":
        """Debian with Python: the server's template `base` where nothing is said, else Docker's image of that Python.

        Steps are built over that image, too, of the Python of this program if no other is named.
        """
        if python_version is None:
            return cls({"debian": f"{sys.version_info[0]}.{sys.version_info[1]}"}, force=force_build)
        if not re.match(r"^3\.\d+(\.\d+)?$", python_version):
            raise exception.InvalidError(f"python_version: `{python_version}` is no version of Python")
        return cls({"image": _python_image(python_version)}, force=force_build)

    @classmethod
    def from_registry(
        cls,
        tag: str,
        secret: Optional[Secret] = None,
        *,
        setup_dockerfile_commands: Sequence[str] = (),
        force_build: bool = False,
        add_python: Optional[str] = None,
        **_: Any,
    ) -> "Image":
        """An image of containers. Nothing is added to it; Python is there if the image has it."""
        if secret is not None:
            raise exception.not_here("`secret` of a registry", "the server's configuration has it: `[images]`")
        if add_python is not None:
            raise exception.not_here("`add_python`", "take an image that has it, or `apt_install`")
        return cls({"image": tag}, force=force_build).dockerfile_commands(*setup_dockerfile_commands)

    @classmethod
    def from_dockerfile(
        cls,
        path: Union[str, Path] = "Dockerfile",
        *,
        force_build: bool = False,
        context_dir: Union[str, Path, None] = None,
        secrets: Any = None,
        gpu: Any = None,
        add_python: Optional[str] = None,
        build_args: Mapping[str, str] = {},
        **more: Any,
    ) -> "Image":
        """An image of a Dockerfile with one stage."""
        if add_python is not None:
            raise exception.not_here("`add_python`")
        if more:
            raise exception.not_here(f"`{next(iter(more))}`")
        base, rest, arguments = _from_of(_instructions(Path(path).read_text()), build_args)
        context = Path(context_dir) if context_dir is not None else Path.cwd()
        image = cls({"image": base}, force=force_build)
        return image._of_instructions(rest, context, arguments, secrets=secrets, gpu=gpu)

    @classmethod
    def from_id(cls, image_id: str, client: Any = None) -> "Image":
        """A snapshot of a sandbox's files, by its id."""
        refuse_client(client)
        return cls({"snapshot": image_id})

    @classmethod
    def from_name(cls, name: str, *, tag: Optional[str] = None, environment_name: Optional[str] = None, client: Any = None) -> "Image":
        """A template of the server, by its name."""
        refuse_client(client, environment_name)
        return cls({"template": f"{name}:{tag}" if tag else name})

    def pip_install(
        self,
        *packages: Union[str, Sequence[str]],
        find_links: Optional[str] = None,
        index_url: Optional[str] = None,
        extra_index_url: Optional[str] = None,
        pre: bool = False,
        extra_options: str = "",
        **more: Any,
    ) -> "Image":
        """Installs packages with pip."""
        names = _flat(packages, "pip_install")
        if not names:
            return self
        flags = [("--find-links", find_links), ("--index-url", index_url), ("--extra-index-url", extra_index_url)]
        words = [f"{flag} {shlex.quote(value)}" for flag, value in flags if value] + ["--pre"] * pre
        words += [extra_options] * bool(extra_options) + [shlex.quote(name) for name in sorted(names)]
        return self._with(_step("RUN", f"python -m pip install {' '.join(words)}"), **more)

    def pip_install_from_requirements(self, requirements_txt: str, **more: Any) -> "Image":
        """Installs what a local file lists."""
        lines = (line.split(" #")[0].strip() for line in Path(requirements_txt).read_text().splitlines())
        names = [line for line in lines if line and not line.startswith("#")]
        other = next((name for name in names if name.startswith("-")), None)
        if other:
            raise exception.not_here(f"`{other}` of a file of requirements", "`pip_install` has options")
        return self.pip_install(*names, **more)

    def apt_install(self, *packages: Union[str, Sequence[str]], **more: Any) -> "Image":
        """Installs packages of Debian."""
        names = _flat(packages, "apt_install")
        if not names:
            return self
        words = " ".join(shlex.quote(name) for name in sorted(names))
        line = f"apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {words}"
        return self._with(_step("RUN", line), **more)

    def run_commands(self, *commands: Union[str, Sequence[str]], volumes: Any = None, **more: Any) -> "Image":
        """Runs lines of a shell."""
        if volumes:
            raise exception.not_here("`volumes` for steps of an image")
        return self._with(*(_step("RUN", line) for line in _flat(commands, "run_commands")), **more)

    def env(self, vars: Mapping[str, str]) -> "Image":
        """Sets variables, for later steps and for commands."""
        pairs = variables_of(vars, None)
        if len(pairs) != len(vars):
            raise exception.InvalidError("env: values must be text")
        return self._with(*(_step("ENV", name, value) for name, value in pairs.items()))

    def workdir(self, path: Any) -> "Image":
        """Sets the directory, for later steps and for commands."""
        return self._with(_step("WORKDIR", str(path)))

    def dockerfile_commands(
        self, *dockerfile_commands: Union[str, Sequence[str]], context_dir: Union[str, Path, None] = None, **more: Any
    ) -> "Image":
        """Adds what lines of a Dockerfile say."""
        lines = _instructions("\n".join(_flat(dockerfile_commands, "dockerfile_commands")))
        context = Path(context_dir) if context_dir is not None else Path.cwd()
        return self._of_instructions(lines, context, {}, **more)

    def entrypoint(self, entrypoint_commands: Sequence[str]) -> "Image":
        """What stands before the command of a sandbox."""
        return self._with(entrypoint=_flat([entrypoint_commands], "entrypoint"))

    def cmd(self, cmd: Sequence[str]) -> "Image":
        """The command of a sandbox for which none is said."""
        return self._with(command=_flat([cmd], "cmd"))

    def pipe(self, func: Any, *arguments: Any, **named: Any) -> "Image":
        """What a function makes of it."""
        return func(self, *arguments, **named)

    def add_local_file(self, local_path: Union[str, Path], remote_path: str, *, copy: bool = False) -> "Image":
        """Puts a file into each sandbox, or with `copy` into the image."""
        source = Path(local_path)
        if not source.is_file():
            raise FileNotFoundError(local_path)
        target = _absolute(remote_path, "add_local_file")
        target = f"{target}/{source.name}" if str(remote_path).endswith("/") else target
        if copy:
            return self._with(_step("COPY", source.name, target, "", "", files=(os.path.realpath(source), source.name)))
        # A link that is named itself is meant.
        return self._with(files=(*self._files, (os.path.realpath(source), target)))

    def add_local_dir(
        self, local_path: Union[str, Path], remote_path: str, *, copy: bool = False, ignore: Any = ()
    ) -> "Image":
        """Puts the files of a directory into each sandbox, or with `copy` into the image.

        Links are not followed: they are left out, or with `copy` stay links.
        """
        if ignore:
            raise exception.not_here("`ignore` of `add_local_dir`")
        source = Path(local_path)
        if not source.is_dir():
            raise FileNotFoundError(local_path)
        target = _absolute(remote_path, "add_local_dir")
        if copy:
            return self._with(_step("COPY", "files", target, "", "", files=(os.path.realpath(source), "files")))
        added = tuple((str(path), f"{target}/{path.relative_to(source).as_posix()}") for path in files_below(source))
        return self._with(files=(*self._files, *added))

    def _of_instructions(
        self, instructions: Sequence[Tuple[str, str]], context: Path, arguments: Dict[str, str], **more: Any
    ) -> "Image":
        image = self
        # Arguments hold for the steps after them, and are not kept in the image.
        declared: Dict[str, str] = {}
        for kind, rest in instructions:
            if kind != "RUN":
                rest = _expanded(rest, declared)
            if kind == "ARG":
                name = _argument(rest, arguments)
                declared[name] = arguments[name]
            elif kind == "RUN":
                words = _words_of(rest)
                step = _step("RUN", shlex.join(words) if words is not None else rest)
                image = image._with({**step, "secrets": dict(declared)}, **more)
            elif kind == "ENV":
                pairs = _pairs(rest)
                # From here on the argument of that name is the variable.
                declared = {name: value for name, value in declared.items() if name not in dict(pairs)}
                image = image._with(*(_step("ENV", *pair) for pair in pairs))
            elif kind in ("WORKDIR", "USER"):
                image = image._with(_step(kind, rest))
            elif kind in ("COPY", "ADD"):
                image = image._with(*_copies(kind, rest, context))
            elif kind in ("CMD", "ENTRYPOINT"):
                words = _words_of(rest)
                named = {"command" if kind == "CMD" else "entrypoint": words if words is not None else ["/bin/sh", "-c", rest]}
                image = image._with(**named)
            elif kind not in ("LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL"):
                raise exception.not_here(f"`{kind}` of a Dockerfile", "`offleash template build -f` has it")
        return image

    def _definition(self) -> Dict[str, Any]:
        """What is asked of the server: what the image begins with, and its steps. Secrets of a step are a field of their own."""
        base = {"fromImage": _python_image(self._base["debian"])} if "debian" in self._base else {}
        base = base or {"fromImage": self._base["image"]} if "template" not in self._base else {"fromTemplate": self._base["template"]}
        # The server begins with its own user, in that one's home; Modal's steps are those of root.
        steps: List[Dict[str, Any]] = [{"type": "USER", "args": ["root"]}]
        steps += [{"type": "WORKDIR", "args": ["/"]}] * ("fromImage" in base)
        for step in self._steps:
            made: Dict[str, Any] = {"type": step["type"], "args": list(step["args"])}
            if step["secrets"]:
                made["secrets"] = dict(step["secrets"])
            if step["files"]:
                made["filesHash"] = _archive(*step["files"])[0]
            steps.append(made)
        return {**base, "steps": steps}

    def _name(self) -> str:
        """The name of its template: the same for the same steps. Nobody else can find out by trying what secrets it is of."""
        definition = json.dumps(self._definition(), sort_keys=True).encode()
        if not any(step["secrets"] for step in self._steps):
            return f"modal-{hashlib.sha256(definition).hexdigest()[:24]}"
        return f"modal-{hmac.new(names_key(), definition, hashlib.sha256).hexdigest()[:24]}"

    async def _ready(self, api: AsyncApi) -> Dict[str, str]:
        """What a sandbox is made of; steps are built where they are not yet."""
        if not self._steps:
            return {} if "debian" in self._base else self._base
        name = self._name()
        if self._force or not await _is_there(api, name):
            await _build(api, name, self)
            self._force = False
        return {"template": name}

    @both
    async def build(self, app: Optional[App] = None) -> "Image":
        """Builds its steps now."""
        await self._ready(await open_api())
        return self

def _absent(name: str, is_maker: bool) -> Any:
    def absent(*_: Any, **__: Any) -> NoReturn:
        raise exception.not_here(f"`Image.{name}`", "`from_registry` and `run_commands` are here")

    absent.__name__, absent.__doc__ = name, "Not here."
    return staticmethod(absent) if is_maker else absent


for _name in ("micromamba", "from_gcp_artifact_registry", "from_aws_ecr", "from_scratch"):
    setattr(Image, _name, _absent(_name, True))
for _name in (
    "add_local_python_source",
    "micromamba_install",
    "pip_install_from_pyproject",
    "pip_install_private_repos",
    "poetry_install_from_file",
    "publish",
    "run_function",
    "shell",
    "uv_pip_install",
    "uv_sync",
):
    setattr(Image, _name, _absent(_name, False))
del _name


def _python_image(version: str) -> str:
    return f"python:{version}-slim-bookworm"


def _absolute(path: Any, what: str) -> str:
    if not str(path).startswith("/"):
        raise exception.InvalidError(f"{what}: `{path}` is not absolute")
    return str(path).rstrip("/")


def _instructions(text: str) -> List[Tuple[str, str]]:
    """The instructions of a Dockerfile: what each is, and the rest of its line."""
    found, line = [], ""
    for raw in text.splitlines():
        if raw.lstrip().startswith("#") or (not line and not raw.strip()):
            continue
        if raw.rstrip().endswith("\\"):
            line += raw.rstrip()[:-1] + " "
            continue
        line += raw
        if "<<" in line and line.lstrip()[:3].upper() in ("RUN", "COP"):
            raise exception.not_here("here-documents of a Dockerfile", "`offleash template build -f` has them")
        kind, _, rest = line.strip().partition(" ")
        found.append((kind.upper(), rest.strip()))
        line = ""
    return found


def _from_of(
    instructions: Sequence[Tuple[str, str]], given: Mapping[str, str]
) -> Tuple[str, List[Tuple[str, str]], Dict[str, str]]:
    """What a Dockerfile is of, what comes after it, and what its arguments are."""
    arguments = dict(given)
    for number, (kind, rest) in enumerate(instructions):
        if kind == "ARG":
            _argument(rest, arguments)
        elif kind == "FROM":
            after = list(instructions[number + 1 :])
            if any(other == "FROM" for other, _ in after) or rest.startswith("--"):
                raise exception.not_here("stages and platforms of a Dockerfile", "`offleash template build -f` has stages")
            return _expanded(rest.split()[0], arguments), after, dict(given)
        else:
            break
    raise exception.InvalidError("the Dockerfile does not begin with `FROM`")


def _argument(rest: str, arguments: Dict[str, str]) -> str:
    """The name of an `ARG`, whose value is noted unless another one was given."""
    name, _, value = rest.partition("=")
    arguments.setdefault(name.strip(), value.strip().strip("'\""))
    return name.strip()


def _expanded(text: str, arguments: Mapping[str, str]) -> str:
    """Text with the values of arguments; other variables are the server's to know."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: arguments.get(found[1] or found[2], found[0]), text)


def _words_of(rest: str) -> Optional[List[str]]:
    """The words of an instruction in its form of JSON."""
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _pairs(rest: str) -> List[Tuple[str, str]]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        return [(words[0], rest.split(None, 1)[1])]
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


def _copies(kind: str, rest: str, context: Path) -> List[Step]:
    words = _words_of(rest) or shlex.split(rest)
    if any(word.startswith("--") for word in words):
        raise exception.not_here(f"flags of `{kind}`", "`offleash template build -f` has them")
    *sources, target = words
    steps = []
    for source in sources:
        local = (context / source.lstrip("/")).resolve()
        if "://" in source or any(letter in source for letter in "*?[") or (kind == "ADD" and source.endswith((".tar", ".gz"))):
            raise exception.not_here(f"`{kind} {source}`", "`offleash template build -f` has it")
        if not local.is_relative_to(context.resolve()):
            raise exception.InvalidError(f"{kind}: `{source}` is outside of the context `{context}`")
        if not local.exists():
            raise exception.InvalidError(f"{kind}: `{source}` is not there")
        name = local.name if local.is_file() else "files"
        steps.append(_step("COPY", name, target, "", "", files=(str(local), name)))
    return steps


def _archive(path: str, name: str) -> Tuple[str, bytes]:
    """An archive of a file or a directory, the same for the same files, and its hash."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            return entry

        archive.add(path, name, filter=plain)
    content = packed.getvalue()
    return hashlib.sha256(content).hexdigest(), content


async def _is_there(api: AsyncApi, name: str) -> bool:
    """Whether a template of that name was built and can be used."""
    try:
        # A build that failed leaves its template without a tag.
        return bool((await api.ask("GET", f"/v1/templates/{segment(name)}"))["tags"])
    except NotFoundException:
        return False


async def _build(api: AsyncApi, name: str, image: Image) -> None:
    definition = image._definition()
    asked = await api.ask("POST", "/v3/templates", {"name": name})
    template, build = segment(asked["templateID"]), segment(asked["buildID"])
    for step in image._steps:
        if step["files"]:
            await _upload(api, template, *_archive(*step["files"]))
    await api.ask("POST", f"/v2/templates/{template}/builds/{build}", {**definition, "force": image._force})
    seen: List[str] = []
    while True:
        state = await api.ask("GET", f"/templates/{template}/builds/{build}/status?logsOffset={len(seen)}")
        seen += [str(line.get("message", "")) for line in state.get("logEntries", [])]
        if state["status"] == "ready":
            return
        if state["status"] == "error":
            reason = (state.get("reason") or {}).get("message") or "the build failed"
            hint = "`offleash image pull` brings it, or `[images]` of the server's configuration" if "is no image" in reason else None
            raise exception.ImageBuildError("\n".join([reason, *seen[-10:]]), hint=hint)
        await backend.sleep(BUILD_POLL)


async def _upload(api: AsyncApi, template: str, digest: str, content: bytes) -> None:
    answer = await api.ask("GET", f"/templates/{template}/files/{digest}")
    if not answer.get("present"):
        url = urlsplit(answer["url"])
        # The server's own address: it is asked as every other route is.
        await api.send("PUT", quote(url.path, safe="/%") + (f"?{url.query}" if url.query else ""), content=content)


def files_of(image: Image) -> List[Tuple[str, str]]:
    """What is put into each sandbox of an image: local paths, and where they go."""
    return [(os.fspath(source), target) for source, target in image._files]
