"""What the cells of a Python context left, written to a file and read from one: more of the driver (`python.py`).

The host has the driver run this, behind `objects.py`, when it first asks for either, so that contexts that are never copied
do not hold it.

It is written by a copy of the process, which knows what this one knows and can be ended: code of cells runs in it
(`__reduce__`, `__getstate__`), and whatever that does to itself is not done to the context.

Python 3.9 and newer.
"""

import errno
from _pickle import Unpickler

MAGIC = b"offleash-state-1"
# The stack is for C, which follows objects by calling itself.
STACK, DEEPEST = 256 * 1024 * 1024, 20_000
# What may be told of obstacles.
MOST_OBSTACLES, MOST_TEXT, MOST_REPORT = 100, 300, 1 << 20


class NotWritten(BaseException):
    """The file cannot have it."""

    def __init__(self, why, reason):
        self.why, self.reason = why, reason


class File:
    """What is written to; only counts where there is no descriptor."""

    def __init__(self, descriptor, most):
        self.descriptor, self.most, self.size = descriptor, most, 0

    def write(self, data):
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self.size > self.most:
            raise NotWritten("large", f"it has more than {self.most} bytes")
        try:
            while self.descriptor is not None and view:
                view = view[_write(self.descriptor, view) :]
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise NotWritten("full" if is_full else "other", f"it could not be written: {error}") from None


# What a context is made of.


def names_of(shell):
    return shell.shell.user_ns if isinstance(shell, IPythonShell) else shell.namespace


def variables_of(shell):
    """What cells assigned to, and what the shell remembers of their values."""
    names = names_of(shell)
    variables = {name: value for name, value in names.items() if name not in NOT_OF_CELLS}
    if isinstance(shell, IPythonShell):
        hidden, nothing = shell.shell.user_ns_hidden, object()
        variables = {name: value for name, value in variables.items() if hidden.get(name, nothing) is not value}
        hook = shell.shell.displayhook
        remembered = {str(number): value for number, value in names["_oh"].items()}
        remembered.update((name, getattr(hook, name)) for name in ("_", "__", "___"))
    else:
        if variables.get("display") == shell.display:
            del variables["display"]
        remembered = {"_": variables.pop("_")} if "_" in variables else {}
    return variables, remembered


def surroundings_of(shell):
    """What is there beside variables, in words and numbers."""
    environ = {name: os.environ.get(name) for name in {*STARTED, *os.environ}}
    found = {
        "python": sys.implementation.cache_tag,
        "count": shell.count,
        "cwd": os.getcwd(),
        "path": [str(one) for one in sys.path if isinstance(one, (str, os.PathLike))],
        "environ": {name: value for name, value in environ.items() if STARTED.get(name) != value},
    }
    pyplot = sys.modules.get("matplotlib.pyplot")
    found["draws"] = getattr(pyplot, "_backend_mod", None) is not None
    if isinstance(shell, IPythonShell):
        history = shell.shell.history_manager
        found["inputs"] = [[str(one) for one in inputs] for inputs in (history.input_hist_parsed, history.input_hist_raw)]
    entries = ((name, linecache.cache.get(name)) for name, _ in shell.sources.entries)
    found["sources"] = [[name, [str(line) for line in entry[2]]] for name, entry in entries if entry and len(entry) == 4]
    return found


def put_variables(shell, variables, remembered):
    names = names_of(shell)
    names.update(variables)
    if not isinstance(shell, IPythonShell):
        names.update(remembered)
        return
    hidden, hook = {}, shell.shell.displayhook
    for name, value in remembered.items():
        if name.isdigit():
            names["_oh"][int(name)] = value
            hidden[f"_{name}"] = value
        else:
            setattr(hook, name, value)
            hidden[name] = value
    shell.shell.push(hidden, interactive=False)


def put_surroundings(shell, found):
    """All but the variables, before those are made: where modules are found is a part of it. Answers what could not be had."""
    missing = []
    for name, value in found["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.path[:] = found["path"]
    try:
        os.chdir(found["cwd"])
    except OSError as error:
        missing.append(("(working directory)", "str", str(error)))
    shell.count = found["count"]
    for name, lines in found["sources"]:
        size = sum(map(len, lines))
        linecache.cache[name] = (size, None, lines, name)
        shell.sources.add(name, size)
    if isinstance(shell, IPythonShell):
        history = shell.shell.history_manager
        parsed, raw = found["inputs"]
        history.input_hist_parsed[:], history.input_hist_raw[:] = parsed, raw
        last = (raw[:0:-1] + [""] * 4)[:4]
        history._i00, history._i, history._ii, history._iii = last
        for number, text in enumerate(raw):
            shell.inputs.add(number, len(text))
        hidden = {f"_i{number}": text for number, text in enumerate(raw) if number and text}
        shell.shell.push({"_i": last[1], "_ii": last[2], "_iii": last[3], **hidden}, interactive=False)
        shell.shell.execution_count = shell.count + 1
    return missing


# Saving.


def save_state(channel, shell, number, payload):
    """Has a copy of this process write the state, and tells the host what came of it."""
    head, path = payload.split(b"\n", 1)
    seconds, most, skips = (int(word) for word in head.split())
    reader, writer = new_pipe()
    threads = [
        (f"(thread) {one.name}", kind_of(one), "a thread that runs")
        for one in threading.enumerate()
        if one is not threading.main_thread() and not one.daemon
    ]
    try:
        pid = _fork()
    except OSError as error:
        _close(reader)
        _close(writer)
        return refuse(channel, number, "other", f"no process could be made for it: {error}")
    if not pid:
        try:
            _close(reader)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            report = Report(writer)
            deeply(lambda: save_here(shell, path, most, bool(skips), threads, report))
        finally:
            _exit(0)
    _close(writer)
    report = hear(reader, seconds)
    _close(reader)
    try:
        _kill(pid, signal.SIGKILL)
        _, status = _waitpid(pid, 0)
    except OSError:
        # A cell has them waited for by nobody.
        status = 0
    obstacles, answer = read_report(report)
    if answer is None and report is None:
        answer = "refused", "time", f"it took longer than {seconds} seconds"
    elif answer is None:
        code = status & 127 or status >> 8
        how = "by signal" if status & 127 else "with status"
        answer = "refused", "other", f"the process that saves it ended, {how} {code}, by code of the context or for lack of memory"
    for obstacle in obstacles:
        say(channel, "obstacle", number, "\n".join(obstacle))
    if answer[0] == "saved":
        SAVED.append(path)
        return say(channel, "saved", number, answer[1])
    remove(path)
    refuse(channel, number, *answer[1:])


class Report:
    """What the copy says, one line for each thing; the last is how it went."""

    def __init__(self, descriptor):
        self.descriptor, self.obstacles = descriptor, 0

    def line(self, *words):
        view = memoryview((_dumps(words) + "\n").encode("ascii"))
        while view:
            view = view[_write(self.descriptor, view) :]

    def obstacle(self, name, kind, reason):
        self.obstacles += 1
        if self.obstacles <= MOST_OBSTACLES:
            self.line("obstacle", *(text[:MOST_TEXT] for text in (name, kind, reason)))


def hear(reader, seconds):
    """All that the copy says; none when it takes too long."""
    until = _monotonic() + seconds
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    heard = bytearray()
    while len(heard) < MOST_REPORT:
        if not poll.poll(max(0, until - _monotonic()) * 1000):
            return None
        piece = _read(reader, CHUNK)
        heard += piece
        # Children of the copy may hold the other end.
        if not piece or re.search(rb'^\["(saved|refused)".*\]\n\Z', heard, re.M):
            return bytes(heard)
    return bytes(heard)


def read_report(report):
    obstacles, answer = [], None
    for line in (report or b"").splitlines():
        try:
            kind, *words = _loads(line)
            words = [" ".join(str(word).split())[:MOST_TEXT] for word in words]
        except ValueError:
            continue
        if kind == "obstacle" and len(words) == 3 and len(obstacles) < MOST_OBSTACLES:
            obstacles.append(words)
        elif (kind, len(words)) in (("saved", 1), ("refused", 2)):
            answer = (kind, *words)
    return obstacles, answer


def deeply(call):
    """Calls it with a stack for objects that hold each other in long chains."""
    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    before = threading.stack_size()
    try:
        threading.stack_size(STACK)
        thread = threading.Thread(target=call)
        thread.start()
    except (RuntimeError, ValueError, MemoryError):
        threading.stack_size(before)
        return call()
    thread.join()


def save_here(shell, path, most, skips, threads, report):
    gc.disable()
    try:
        for thread in threads:
            report.obstacle(*thread)
        if threads and not skips:
            find_obstacles(shell, most, report)
            return report.line("refused", "obstacles", "")
        report.line("saved", str(write_state(shell, path, most, skips, report)))
    except NotWritten as error:
        report.line("refused", error.why, error.reason[:MOST_TEXT])
    except BaseException as error:
        report.line("refused", "other", reason_of(error)[:MOST_TEXT])


def write_state(shell, path, most, skips, report):
    """Writes it all to a new file; answers how many bytes that are."""
    try:
        descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotWritten("full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "other", str(error)) from None
    head = marshal.dumps(surroundings_of(shell))
    variables, remembered = variables_of(shell)
    findable = {HELPERS: True}
    with Helpers(shell) as helpers:
        for attempt in range(2):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            file = File(descriptor, most)
            file.write(MAGIC + b" %d\n" % len(head) + head)
            try:
                Saver(file, helpers, findable).dump((variables, remembered))
                return file.size
            except NotWritten:
                raise
            except BaseException as error:
                bad = obstacles_in(variables, most, helpers, findable, report)
                forgotten = obstacles_in(remembered, most, helpers, findable, None)
                if bad and not skips:
                    raise NotWritten("obstacles", "") from None
                if attempt or not (bad or forgotten):
                    raise error
                for names, gone in ((variables, bad), (remembered, forgotten)):
                    for name in gone:
                        del names[name]


def find_obstacles(shell, most, report):
    with Helpers(shell) as helpers:
        obstacles_in(variables_of(shell)[0], most, helpers, {HELPERS: True}, report)


def obstacles_in(names, most, helpers, findable, report):
    """The names of what cannot be carried; those are told."""
    found = []
    for name, value in names.items():
        try:
            Saver(File(None, most), helpers, findable).dump(value)
        except NotWritten:
            raise
        except BaseException as error:
            found.append(name)
            if report is not None:
                report.obstacle(name if isinstance(name, str) else repr(name), kind_of(value), reason_of(error))
    return found


def kind_of(value):
    kind = type(value)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def reason_of(error):
    return safe_text(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {safe_text(error)}"


def say(channel, kind, number, text):
    channel.unsent.append((kind, number, text.encode("utf-8", "replace")))
    channel.wake()


def refuse(channel, number, why, reason):
    say(channel, "refused", number, f"{why}\n{reason}")


# Loading.


def seed():
    """Has generators of random numbers of modules begin anew, with what nobody else has."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "ssl" in modules:
        # It asks for new seeds by process id, and two copies may have the same one in their namespaces. What gives numbers
        # takes its seed from what this is given to, and there is none yet in a process that has only called this.
        modules["ssl"].RAND_add(os.urandom(48), 48.0)
    if "numpy" in modules:
        modules["numpy"].random.seed()
    if "torch" in modules:
        modules["torch"].seed()


def load_state(channel, shell, number, path):
    """Makes the state that is in a file this context's."""
    missing, failure = [], None
    try:
        missing = read_state(shell, path)
    except BaseException as error:
        failure = f"{type(error).__name__}: {safe_text(error)}"[:MOST_TEXT]
    remove(path)
    # Whatever code of the context has just set.
    seed()
    if failure is not None:
        return refuse(channel, number, "other", failure)
    for one in missing:
        say(channel, "obstacle", number, "\n".join(" ".join(text.split())[:MOST_TEXT] for text in one))
    say(channel, "loaded", number, str(shell.count))


def read_state(shell, path):
    descriptor = _open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        magic, size = file.readline(80).split()
        if magic != MAGIC:
            raise ValueError("the file is no state of a context")
        found = marshal.loads(file.read(int(size)))
        if found["python"] != sys.implementation.cache_tag:
            raise ValueError(f"it is of {found['python']}, and this is {sys.implementation.cache_tag}")
        missing = put_surroundings(shell, found)
        with Helpers(shell):
            variables, remembered = Unpickler(file).load()
    put_variables(shell, variables, remembered)
    if found["draws"]:
        # Only what draws figures makes them results.
        import matplotlib.pyplot

        matplotlib.pyplot.switch_backend(matplotlib.get_backend())
    return missing
