"""Languages of Open Interpreter whose code runs in a sandbox of offleash, and keeps its state there."""

import queue
import threading

from interpreter.core.computer.terminal.base_language import BaseLanguage

import offleash


def languages(sandbox):
    """`interpreter.computer.languages = languages(sandbox)`."""
    names = {"python": ("py", ["py"]), "shell": ("sh", ["bash", "sh", "zsh"]), "javascript": ("js", ["js"])}
    return [_language(sandbox, name, *about) for name, about in names.items()]


def _language(sandbox, called, extension, others):
    spoken = "bash" if called == "shell" else called

    class Language(BaseLanguage):
        name = called
        file_extension = extension
        aliases = others

        def run(self, code):
            heard = queue.Queue()
            threading.Thread(target=_run, args=(sandbox, code, spoken, heard), daemon=True).start()
            while (message := heard.get()) is not None:
                yield message

        def stop(self):
            for context in sandbox.list_code_contexts():
                if context.language == spoken:
                    sandbox.interrupt_code_context(context)

        def terminate(self):
            for context in sandbox.list_code_contexts():
                if context.language == spoken:
                    sandbox.restart_code_context(context)

    return Language


def _run(sandbox, code, language, heard):
    def say(text):
        heard.put({"type": "console", "format": "output", "content": text})

    def show(result):
        if result.png:
            heard.put({"type": "image", "format": "base64.png", "content": result.png})
        elif result.text:
            say(result.text)

    try:
        execution = sandbox.run_code(
            code,
            language=language,
            on_stdout=lambda said: say(said.line),
            on_stderr=lambda said: say(said.line),
            on_result=show,
            timeout=0,
        )
        if execution.error:
            say(execution.error.traceback or f"{execution.error.name}: {execution.error.value}")
    except offleash.OffleashError as error:
        say(str(error))
    finally:
        heard.put(None)
