"""Languages of Open Interpreter whose code runs in a sandbox of offleash, each in a context that keeps its state."""

import queue
import threading

import offleash


class _Language:
    """What the languages have in common. A sandbox is made when the first code runs, and shared by all of them."""

    options = {}
    _sandbox = None

    def __init__(self):
        self._context = None

    def run(self, code):
        """What running it says, as it comes."""
        if _Language._sandbox is None:
            _Language._sandbox = offleash.Sandbox.create(**self.options)
        sandbox = _Language._sandbox
        if self._context is None:
            self._context = sandbox.create_code_context(language=self.context_language)
        said = queue.Queue()

        def tell(output):
            said.put({"type": "console", "format": "output", "content": str(output)})

        def work():
            try:
                execution = sandbox.run_code(code, context=self._context, on_stdout=tell, on_stderr=tell)
                if execution.error:
                    tell(execution.error.traceback)
                elif execution.text:
                    tell(execution.text)
            except offleash.OffleashError as error:
                tell(error)
            said.put(None)

        threading.Thread(target=work, daemon=True).start()
        yield from iter(said.get, None)

    def stop(self):
        """Interrupts what runs; the state stays."""
        if self._context is not None:
            _Language._sandbox.interrupt_code_context(self._context)

    def terminate(self):
        """Ends the context, and the sandbox with the last one."""
        sandbox, _Language._sandbox, self._context = _Language._sandbox, None, None
        if sandbox is not None:
            sandbox.kill()


class Python(_Language):
    name, file_extension, aliases, context_language = "python", "py", ["py"], "python"


class Shell(_Language):
    name, file_extension, aliases, context_language = "shell", "sh", ["bash", "sh", "zsh"], "bash"


def use(interpreter, **options):
    """Has an interpreter run its code in a sandbox, and nothing anywhere else; options are those of `offleash.Sandbox.create`."""
    _Language.options = options
    interpreter.computer.terminal.languages = [Python, Shell]
    # What it would run on this machine by itself: a shell's `apt install`, its API of the computer, its skills.
    interpreter.computer.terminal.sudo_install = lambda package: False
    interpreter.computer.import_computer_api = False
    interpreter.computer.import_skills = False
