"""An executor of smolagents: the code of its agents runs in a sandbox of offleash."""

import base64
from io import BytesIO

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

import offleash


class OffleashExecutor(RemotePythonExecutor):
    """`CodeAgent(executor=OffleashExecutor(…))`; takes what `offleash.Sandbox.create` takes."""

    def __init__(self, additional_imports=(), logger=None, allow_pickle=False, **options):
        super().__init__(list(additional_imports), logger or AgentLogger(), allow_pickle)
        self.sandbox = offleash.Sandbox.create(**options)
        self.installed_packages = self.install_packages(list(additional_imports))

    def install_packages(self, additional_imports):
        # Not every template has IPython, whose `!` the usual way needs. Code that lacks one says so itself: packages of tools are
        # guessed, and Pillow is always among them.
        if additional_imports:
            words = ["python3", "-m", "pip", "install", "-q", "--retries", "1", *additional_imports]
            result = self.sandbox.run(words, timeout=600)
            if not result.ok:
                self.logger.log(f"packages are not installed: {result.stderr}", level=LogLevel.ERROR)
        return additional_imports

    def run_code_raise_errors(self, code):
        execution = self.sandbox.run_code(code)
        logs = "".join(execution.logs.stdout)
        error = execution.error
        if error is not None and error.name == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(self._deserialize_final_answer(error.value, self.allow_pickle), logs, True)
        if error is not None:
            raise AgentError(f"{logs}\n{error.name}: {error.value}\n{error.traceback}", self.logger)
        main = next((result for result in execution.results if result.is_main_result), None)
        return CodeOutput(_value_of(main) if main else None, logs, False)

    def cleanup(self):
        self.sandbox.kill()


def _value_of(result):
    picture = result.png or result.jpeg
    if picture:
        import PIL.Image

        return PIL.Image.open(BytesIO(base64.b64decode(picture)))
    return next((result[name] for name in result.formats() if name != "text"), result.text)
