"""Harbor's environment: tasks of an evaluation run in sandboxes of offleash.

    harbor run -p TASKS -a AGENT -e offleash_harbor:OffleashEnvironment

A task's `docker_image`, or its Dockerfile, is what its sandbox is of. `--environment-kwarg template=NAME` names a template instead.
"""

import math
import shlex
import uuid
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.tar_transfer import extract_dir_from_bytes, pack_dir_to_bytes

import offleash.modal as modal
from offleash import AsyncSandbox

#: How long a sandbox lives, seconds; Harbor ends it before.
LIFE = 24 * 3600


class OffleashEnvironment(BaseEnvironment):
    """An environment of a task."""

    def __init__(self, *arguments, template=None, level=None, **named):
        self._template, self._level, self._sandbox = template, level, None
        super().__init__(*arguments, **named)

    @staticmethod
    def type():
        return "offleash"

    @property
    def capabilities(self):
        names = ("disable_internet", "network_allowlist", "network_allowlist_hostnames", "network_allowlist_wildcard_hostnames")
        addresses = ("network_allowlist_ipv4_addresses", "network_allowlist_ipv4_cidrs")
        return EnvironmentCapabilities(**dict.fromkeys((*names, *addresses), True))

    @classmethod
    def resource_capabilities(cls):
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self):
        if self._template or self.task_env_config.docker_image or (self.environment_dir / "Dockerfile").is_file():
            return
        raise FileNotFoundError(f"the task has no `docker_image`, and there is no {self.environment_dir / 'Dockerfile'}")

    async def _base(self, force_build):
        """What the sandbox is of."""
        if self._template:
            return {"template": self._template}
        if self.task_env_config.docker_image:
            return {"image": self.task_env_config.docker_image}
        dockerfile = self.environment_dir / "Dockerfile"
        image = modal.Image.from_dockerfile(dockerfile, context_dir=self.environment_dir, force_build=force_build)
        await image.build.aio()
        return {"template": image.object_id} if image.has_steps else {"image": image.object_id}

    async def start(self, force_build):
        network = {"allow_internet_access": not self._network_disabled}
        if self._network_is_allowlist:
            network = {"network": {"allow_out": list(self.network_policy.allowed_hosts), "deny_out": ["0.0.0.0/0"]}}
        self._sandbox = await AsyncSandbox.create(
            timeout=LIFE,
            metadata={"harbor.session": self.session_id},
            envs=self._startup_env() or None,
            cpus=math.ceil(self._effective_cpus) if self._effective_cpus else None,
            memory_mib=self._effective_memory_mb,
            disk_mib=self._effective_storage_mb,
            level=self._level,
            **await self._base(force_build),
            **network,
        )
        made = " ".join(shlex.quote(str(path)) for path in ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution"))
        await self._done(f"mkdir -p {made} && chmod 777 {made}")

    async def stop(self, delete):
        """Ends it; a sandbox that is not deleted is paused with its files."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await (sandbox.kill() if delete else sandbox.pause(mode="filesystem"))

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        who = self._resolve_user(user)
        result = await self._running().run(
            command,
            cwd=cwd or self.task_env_config.workdir,
            envs=self._merge_env(env),
            user="root" if who is None else str(who),
            timeout=timeout_sec,
        )
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        left_out = "\n[more than 1 MiB: the rest was left out]" if result.truncated else ""
        return ExecResult(stdout=result.stdout + left_out, stderr=result.stderr, return_code=code)

    def _running(self):
        if self._sandbox is None:
            raise RuntimeError("the environment was not started")
        return self._sandbox

    async def _done(self, command):
        result = await self._running().run(command, user="root")
        if not result.ok:
            raise RuntimeError(f"`{command}` failed: {result.stderr.strip()}")

    async def upload_file(self, source_path, target_path):
        await self._running().files.write(str(target_path), Path(source_path).read_bytes(), user="root")

    async def upload_dir(self, source_dir, target_dir):
        archive, into = f"/tmp/{uuid.uuid4()}.tar", shlex.quote(str(target_dir))
        await self._running().files.write(archive, pack_dir_to_bytes(source_dir).getvalue(), user="root")
        await self._done(f"mkdir -p {into} && tar -xf {archive} -C {into} --no-same-owner; code=$?; rm -f {archive}; exit $code")

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(await self._running().files.read(str(source_path), "bytes", user="root"))

    async def download_dir(self, source_dir, target_dir):
        archive = f"/tmp/{uuid.uuid4()}.tar"
        await self._done(f"tar -cf {archive} -C {shlex.quote(str(source_dir))} .")
        try:
            # It leaves out what would be outside.
            extract_dir_from_bytes(bytes(await self._running().files.read(archive, "bytes", user="root")), target_dir)
        finally:
            await self._done(f"rm -f {archive}")
