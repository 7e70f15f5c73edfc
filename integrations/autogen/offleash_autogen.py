"""AutoGen's code executor: blocks of code run in a sandbox of offleash, Python with its variables."""

import asyncio

from autogen_core import Component
from autogen_core.code_executor import CodeExecutor, CodeResult
from pydantic import BaseModel

from offleash import AsyncSandbox, TimeoutException


class OffleashConfig(BaseModel):
    """What a declared component says of it."""

    timeout: int = 60
    options: dict = {}


class OffleashExecutor(CodeExecutor, Component[OffleashConfig]):
    """`CodeExecutorAgent("runner", code_executor=OffleashExecutor())`; options are those of `AsyncSandbox.create`."""

    component_config_schema = OffleashConfig
    component_provider_override = "offleash_autogen.OffleashExecutor"

    def __init__(self, timeout=60, **options):
        self._timeout, self._options, self._sandbox = timeout, options, None

    async def start(self):
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox.create(**self._options)

    async def stop(self):
        if self._sandbox is not None:
            await self._sandbox.kill()
            self._sandbox = None

    async def restart(self):
        await self.stop()
        await self.start()

    async def execute_code_blocks(self, code_blocks, cancellation_token):
        """Runs them one after the other, until one fails."""
        if self._sandbox is None:
            raise ValueError("the executor was not started")
        said = ""
        for block in code_blocks:
            running = asyncio.ensure_future(self._ran(block))
            cancellation_token.link_future(running)
            try:
                exit_code, output = await running
            except TimeoutException as error:
                # Others of AutoGen's executors answer with this exit code.
                return CodeResult(exit_code=124, output=f"{said}{error}")
            said += output
            if exit_code != 0:
                return CodeResult(exit_code=exit_code, output=said)
        return CodeResult(exit_code=0, output=said)

    async def _ran(self, block):
        language = {"py": "python", "": "python", "sh": "bash", "shell": "bash"}.get(block.language.lower(), block.language.lower())
        execution = await self._sandbox.run_code(block.code, language=language, timeout=self._timeout)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        if execution.error:
            return 1, said + execution.error.traceback
        return 0, said + (execution.text or "")

    def _to_config(self):
        return OffleashConfig(timeout=self._timeout, options=self._options)

    @classmethod
    def _from_config(cls, config):
        return cls(config.timeout, **config.options)
