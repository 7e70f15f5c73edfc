"""A Python that has imported modules before it is known what it is to run, for one run: what `python3 ARGUMENTS` would do.

It is started in a sandbox that waits, as that run would have started it but for the directory: what is there is the run's, and
not looked at before. It says that it is ready, and reads the run from its input, byte for byte: what follows is the program's
own. `src/ahead.rs` is the other side:

    BYTES\\n              how many bytes follow
    directory\\0word\\0…   where the command is started, and the command

What this cannot do as Python itself would is left to Python: it is started in this process's place.

Python 3.9 and newer.
"""

import sys

# It is not where the program will be.
if sys.path and not sys.path[0]:
    del sys.path[0]

import gc
import os
from importlib.machinery import SourceFileLoader

READY = b"ready\n"
# Whether Python is to take no module from the directory of what it runs.
NOT_FROM_HERE = getattr(sys.flags, "safe_path", False)
# What Matplotlib reads in the directory in which it is imported.
SETTINGS = "matplotlibrc"
# Variables of Python's own that this is started with as Python would be. With others that is left to Python.
HARMLESS = {b"PYTHONUNBUFFERED", b"PYTHONIOENCODING", b"PYTHONUTF8", b"PYTHONHASHSEED", b"PYTHONDONTWRITEBYTECODE"}


def take(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def take_run():
    """The directory and the command."""
    line = b""
    while not line.endswith(b"\n"):
        line += take(1)
    directory, *words, _ = take(int(line)).split(b"\0")
    return directory, words


class Asked:
    """Notes what is looked for, whether it is found or not: libraries do without some of what they use."""

    def __init__(self):
        self.names = set()

    def find_spec(self, name, path=None, target=None):
        self.names.add(name.partition(".")[0])


def import_ahead(names):
    """Answers what was looked for. What libraries say when they are imported is of no use."""
    asked = Asked()
    sys.meta_path.insert(0, asked)
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream, _ in kept:
        os.dup2(nowhere, stream)
    os.close(nowhere)
    for name in names:
        try:
            __import__(name)
        except Exception:
            # Not installed, or broken; who imports it hears of that.
            pass
    for file in (sys.stdout, sys.stderr):
        file.flush()
    for stream, copy in kept:
        os.dup2(copy, stream)
        os.close(copy)
    sys.meta_path.remove(asked)
    # What is imported stays until the end, and then goes with the process: to look at all of it takes Python longer than to
    # start.
    gc.freeze()
    return asked.names


def has_others(asked, directory):
    """Whether something in there would have been imported, or read by what was imported."""
    try:
        names = os.listdir(directory or os.curdir)
        if SETTINGS in os.listdir(os.curdir):
            return True
    except OSError:
        return True
    imported = asked.union(name.partition(".")[0] for name in sys.modules)
    return not imported.isdisjoint(name.partition(".")[0] for name in names)


class Program:
    """What is executed as `__main__`."""

    def __init__(self, source, name, directory, arguments):
        self.source, self.name, self.directory, self.arguments = source, name, directory, arguments

    @classmethod
    def of(cls, words):
        """That of the command; `None` if it asks for something else than code or a file with code."""
        words = [os.fsdecode(word) for word in words]
        if len(words) > 2 and words[1] == "-c":
            code = words[2] + "\n"
            # Newer ones take off what is indented throughout; what is no text is refused.
            if code[:1].isspace() or any("\ud800" <= letter <= "\udfff" for letter in code):
                return None
            return cls(code, None, "", ["-c", *words[3:]])
        if len(words) < 2 or words[1].startswith("-") or not os.path.isfile(words[1]):
            return None
        with open(words[1], "rb") as file:
            code = file.read()
        # Archives and compiled files have one.
        if b"\0" in code:
            return None
        try:
            code.decode()
        except UnicodeDecodeError:
            # Whether a line says what it is, and what there is to say if none does, Python knows.
            return None
        return cls(code, words[1], os.path.dirname(os.path.realpath(words[1])), words[1:])

    def prepare(self):
        main = sys.modules["__main__"].__dict__
        sys.argv[:] = self.arguments
        if not NOT_FROM_HERE:
            sys.path.insert(0, self.directory)
        if self.name is None:
            return "<string>", main
        file = self.name if os.path.isabs(self.name) else os.path.join(os.getcwd(), self.name)
        main.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
        return file, main


def execute(program):
    file, main = program.prepare()
    exec(compile(program.source, file, "exec", dont_inherit=True), main)


def tell_without_us():
    """Has the traceback of an exception that nobody catches begin where the program does."""
    hook = sys.excepthook

    def tell(kind, error, trace):
        sys.excepthook = hook
        while trace is not None:
            code, trace = trace.tb_frame.f_code, trace.tb_next
            if code is execute.__code__:
                break
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = tell


def program_of(words, asked, started_with):
    """What to execute; `None` if that is for Python itself to do."""
    if any(name.startswith(b"PYTHON") for name in started_with.keys() - HARMLESS):
        return None
    try:
        program = Program.of(words)
    except OSError:
        return None
    if program is None or (not NOT_FROM_HERE and has_others(asked, program.directory)):
        return None
    return program


def run(directory, words, asked, started_with):
    os.chdir(directory)
    program = program_of(words, asked, started_with)
    if program is None:
        os.execvpe(words[0], words, started_with)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = [os.fsdecode(word) for word in words[1:]]
    try:
        execute(program)
    except SystemExit:
        raise
    except BaseException:
        tell_without_us()
        raise


def main():
    started_with = dict(os.environb)
    names = sys.argv[1:]
    asked = import_ahead(names)
    os.write(1, READY)
    directory, words = take_run()
    run(directory, words, asked, started_with)


main()
