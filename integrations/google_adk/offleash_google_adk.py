"""A code executor of Google's Agent Development Kit: code of the model runs in a sandbox of offleash."""

import mimetypes
from typing import Any, Dict, Optional

from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionResult, File
from pydantic import PrivateAttr

import offleash

#: Where files of a call are put, and where files that code leaves are looked for.
WORK = "/home/user/work"


class OffleashCodeExecutor(BaseCodeExecutor):
    """`LlmAgent(code_executor=OffleashCodeExecutor())`. Variables stay from one block to the next with `stateful`."""

    #: What `offleash.Sandbox.create` takes.
    options: Dict[str, Any] = {}
    stateful: bool = True

    _sandbox: Optional[offleash.Sandbox] = PrivateAttr(default=None)

    def execute_code(self, invocation_context, code_execution_input):
        sandbox = self._opened()
        for file in code_execution_input.input_files:
            sandbox.files.write(f"{WORK}/{file.name}", file.content)
        before = self._files(sandbox)
        context = sandbox.create_code_context(cwd=WORK) if not self.stateful else self._context
        try:
            execution = sandbox.run_code(code_execution_input.code, context=context, timeout=self.timeout_seconds or 300)
        except offleash.TimeoutException as error:
            return CodeExecutionResult(stderr=str(error), exit_code=124)
        finally:
            if not self.stateful:
                sandbox.remove_code_context(context)
        left = {path: entry for path, entry in self._files(sandbox).items() if before.get(path) != entry}
        error = execution.error.traceback or str(execution.error.value) if execution.error else ""
        return CodeExecutionResult(
            stdout="".join(execution.logs.stdout),
            stderr="".join(execution.logs.stderr) + error,
            output_files=[self._file(sandbox, path) for path in left],
            exit_code=1 if execution.error else 0,
        )

    def _opened(self):
        if self._sandbox is None:
            self._sandbox = offleash.Sandbox.create(**self.options)
            self._sandbox.files.make_dir(WORK)
            self._context = self._sandbox.create_code_context(cwd=WORK)
        return self._sandbox

    _context: Any = PrivateAttr(default=None)

    def _files(self, sandbox):
        found = sandbox.files.list(WORK)
        return {entry.path: (entry.size, entry.modified_time) for entry in found if entry.type is offleash.FileType.FILE}

    def _file(self, sandbox, path):
        name = path.rsplit("/", 1)[1]
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return File(name=name, content=bytes(sandbox.files.read(path, "bytes")), mime_type=kind)

    def close(self):
        """Ends the sandbox."""
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox = None
