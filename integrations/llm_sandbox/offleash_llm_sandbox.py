"""A backend of llm-sandbox: `SandboxSession(backend="offleash")`; its code runs in a sandbox of offleash."""

import io
import posixpath
import shlex
import tarfile
from pathlib import Path

from llm_sandbox.backends import BackendCapabilities, register_backend
from llm_sandbox.core.config import SessionConfig
from llm_sandbox.core.session_base import BaseSession

import offleash


class _Container:
    """What llm-sandbox asks a container, asked of a sandbox."""

    def execute_command(self, sandbox, command, workdir=None, **_):
        result = sandbox.run(command, cwd=workdir)
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        return code, (result.stdout, result.stderr)

    def copy_to_container(self, sandbox, src, dest, **_):
        source = Path(src)
        for path in [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]:
            target = dest if path == source else posixpath.join(dest, path.relative_to(source).as_posix())
            sandbox.files.write(target, path.read_bytes())

    def copy_from_container(self, sandbox, src, **_):
        parent, name = posixpath.split(src.rstrip("/"))
        archive = "/tmp/.copied.tar"
        packed = sandbox.run(f"tar -cf {archive} -C {shlex.quote(parent or '/')} -- {shlex.quote(name)}")
        if not packed.ok:
            return b"", {"size": 0}
        content = bytes(sandbox.files.read(archive, "bytes"))
        sandbox.files.remove(archive)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            return content, {"name": name, "size": sum(max(member.size, 1) for member in tar.getmembers())}


class OffleashSession(BaseSession):
    """A session. `options` is what `offleash.Sandbox.create` takes; an image is one of containers."""

    def __init__(self, *, lang="python", image=None, container_id=None, workdir="/home/user/sandbox", options=None, **kwargs):
        libraries = kwargs.pop("libraries", None)
        names = ("verbose", "default_timeout", "execution_timeout", "session_timeout", "security_policy")
        config = SessionConfig(
            lang=lang,
            image=image,
            container_id=container_id,
            workdir=workdir,
            skip_environment_setup=kwargs.get("skip_environment_setup", True),
            **{name: kwargs[name] for name in names if name in kwargs},
        )
        super().__init__(config, libraries=libraries)
        self.stream = False
        self.container_api = _Container()
        self._options = {**({"image": image} if image else {}), **(options or {})}

    def open(self):
        super().open()
        if self.config.container_id:
            self._connect_to_existing_container(self.config.container_id)
        else:
            self.container = offleash.Sandbox.create(**self._options)
        self.container.files.make_dir(self.config.workdir)
        if self.lang_needs_python():
            # Its programs are called `python`, which Debian has not.
            self.container.run("command -v python >/dev/null || ln -s $(command -v python3) /usr/local/bin/python", user="root")
        self.environment_setup()

    def lang_needs_python(self):
        return self.language_handler.name == "python"

    def close(self):
        super().close()
        sandbox, self.container = self.container, None
        if sandbox is not None and not self.config.container_id:
            sandbox.kill()

    def _connect_to_existing_container(self, container_id):
        self.container = offleash.Sandbox.connect(container_id)

    def _handle_timeout(self):
        self.close()

    def _ensure_directory_exists(self, path):
        self.container.files.make_dir(path)

    def _ensure_ownership(self, paths):
        """Files are the sandbox's user's from the start."""

    def _process_non_stream_output(self, output):
        return output

    def _process_stream_output(self, output, on_stdout=None, on_stderr=None):
        for listener, text in zip((on_stdout, on_stderr), output):
            if listener and text:
                listener(text)
        return output


register_backend("offleash", OffleashSession, capabilities=BackendCapabilities(container_images=True))
