"""The driver of Python contexts: runs cells inside a sandbox, one after another, in one interpreter.

The host starts it and speaks to it in frames (`src/protocol.rs` is their reference). Cells run in IPython's
`InteractiveShell` where IPython is installed, and in a small shell of our own otherwise. Code of cells shares this
process and can do to it whatever it likes; the host believes nothing that comes from here. What is written here
only makes sure that code that means no harm does not do it by accident.

Python 3.9 and newer.
"""

import sys

# Names that a cell may replace are taken before any cell runs.
import _signal
import _thread
import ast
import base64
import builtins
import collections
import contextlib
import fcntl
import importlib
import importlib.util
import io
import json
import linecache
import os
import re
import select
import signal
import site
import threading
import time
import traceback
import types
import warnings

# What is defined from here on finds these, whatever cells put in their place.
__builtins__ = dict(vars(builtins))

NOBODY = "0" * 32
# What this file is called in tracebacks.
OURS = "<offleash>"
# How names of files begin whose frames are no part of what is told of an error.
HIDDEN = [OURS]
# Frames of one exception's traceback that are told, of all that led to one another, and of one of very many; the others are
# counted. Each takes time.
MOST_FRAMES, ALL_FRAMES, LEAST_FRAMES = 100, 500, 4
# Exceptions that led to one another that IPython is given.
MOST_ERRORS = 50
# What stands for a frame where others are left out, and the line that Python makes of it.
GAP = "\0"
GAP_LINE = re.compile(r'File "\0(\d+)", line 0.*')
# Exceptions that hold several, where Python has them.
GROUPS = getattr(builtins, "BaseExceptionGroup", ())
# What a frame may have; a form of a result that is larger is left out, and its size told.
MOST_PAYLOAD = 16 * 1024 * 1024
# The names that a form may have, and how many a result; the host takes no others.
MOST_MIME, MOST_FORMS = 128, 64
# Kinds of values that no library gives a form of its own, unless somebody asks IPython for that.
SIMPLE = frozenset((int, float, complex, bool, str, bytes, type(None)))
MIME = re.compile(r"[!-~]{1,%d}" % MOST_MIME)
# How much output is sent at once.
CHUNK = 48 * 1024
# Seconds between two pieces of output after which the second is sent before the cell goes on.
REST = 0.02
# Pieces of output that may wait.
MOST_UNSENT = 4096
# Descriptors from here on are ours.
HIGH = 200
PIPE_SIZE = 1024 * 1024
# Cells whose source is kept for tracebacks, and values that are kept in `Out`.
KEPT_CELLS = 1000
# Characters of such sources, and of what else is kept of cells, beyond the last one's.
MOST_KEPT = 8 * 1024 * 1024
# What is told of an exception beside its error.
MOST_SAID = 10_000
# Cells of a data frame, and points of a chart, that are worth sending as data.
MOST_DATA = 500_000
NO_WARNINGS = [("ignore", None, Warning, None, 0)]
# What IPython takes for the first word of a line.
FIRST_WORD = re.compile(r"[\w.]*")
# Cells that nobody sees: one that fails, and those that have Python specialise the code on the way of every cell. These come
# last, because what was looked up last is what Python keeps.
WARMING = ("1 / 0",) * 2 + ("def f():\n    return 1\n\nf()",) * 4 + ("import sys; 0",) * 16

_read, _write, _close, _dup2, _fstat, _getpid = os.read, os.write, os.close, os.dup2, os.fstat, os.getpid
_fork, _kill, _waitpid, _open, _unlink = os.fork, os.kill, os.waitpid, os.open, os.unlink
_dumps, _loads = json.dumps, json.loads
INTERRUPT, BLOCK, EVERY_SIGNAL = int(signal.SIGINT), int(signal.SIG_BLOCK), [int(one) for one in signal.valid_signals()]
_monotonic, _sleep, _exit = time.monotonic, time.sleep, os._exit
_default_input = builtins.input


class Interrupts:
    """Turns `SIGINT` into `KeyboardInterrupt` in code of a cell, and never within the driver's own.

    The driver's code runs `shielded`: an interrupt meanwhile is raised when the shield is left for a cell's code.
    Only the main thread ever hears of signals, so only that one counts.
    """

    def __init__(self):
        self.main = threading.get_ident()
        self.depth = 1
        self.pending = False
        # How many were raised at once.
        self.raised = 0
        self.install()

    def install(self):
        # Without the names that `signal` has for what comes back.
        _signal.signal(INTERRUPT, self.hear)

    def hear(self, _number, _frame):
        if self.depth:
            self.pending = True
        else:
            self.raised += 1
            raise KeyboardInterrupt

    def __enter__(self):
        if threading.get_ident() == self.main:
            self.depth += 1

    def __exit__(self, *_):
        if threading.get_ident() == self.main:
            self.depth -= 1
            if not self.depth and self.pending:
                self.pending = False
                raise KeyboardInterrupt


INTERRUPTS = Interrupts()


class Exposed:
    """Code of a cell runs in this, and can be interrupted."""

    def __enter__(self):
        INTERRUPTS.depth = 0

    def __exit__(self, *_):
        INTERRUPTS.depth = 1


class Channel:
    """The way to the host and back, and the output of cells.

    One thread, the pump, reads and writes both ways. The main thread runs cells, and with them handlers of signals that
    raise whatever they like wherever they like: so it only ever takes whole frames from a queue and puts whole frames
    into another.

    Output of Python code is put there directly; output of children and of libraries comes through two pipes in place
    of descriptors 1 and 2. Before any output of the first kind is put, what waits in the pipes is: it was written
    before.
    """

    # Whether an error of the cell that runs was told.
    failed = False

    def __init__(self):
        self.pid = _getpid()
        self.input = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, HIGH)
        self.output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, HIGH)
        # Where the host looks when this process does not start, or does not go on.
        self.errors = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, HIGH)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        _dup2(null, 0)
        _close(null)
        self.pipes = {}
        self.ends = {}
        for descriptor, kind in ((1, "stdout"), (2, "stderr")):
            reader, writer = new_pipe()
            try:
                # Code that holds the interpreter's lock while it writes has to fit: the pump needs that lock.
                fcntl.fcntl(writer, getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE_SIZE)
            except OSError:
                pass
            os.set_blocking(reader, False)
            _dup2(writer, descriptor)
            self.pipes[reader] = kind
            self.ends[descriptor] = (writer, identity(writer))
        self.poll = select.poll()
        for reader in self.pipes:
            self.poll.register(reader, select.POLLIN)
        # What tells the pump of frames to send, and the main thread of frames that came.
        self.wake_reader, self.wake_writer = new_pipe()
        self.came_reader, self.came_writer = new_pipe()
        for descriptor in (self.wake_reader, self.wake_writer, self.came_writer):
            os.set_blocking(descriptor, False)
        # Held while output is taken from the pipes or put into the queue, which has an order.
        self.lock = threading.RLock()
        # Held by who writes to the host.
        self.writing = threading.Lock()
        self.unsent = collections.deque()
        self.sending = False
        self.awake = False
        self.rested = 0.0
        self.came = collections.deque()
        self.cell = NOBODY
        self.room = 0
        self.dropped = 0
        os.register_at_fork(after_in_child=self.become_child)
        # Not one of `threading`, which takes longer and which cells would find there.
        self.pump_ident = _thread.start_new_thread(self.pump, ())

    def is_child(self):
        return _getpid() != self.pid

    def become_child(self):
        """A copy that a cell made of this process says what it says through the pipes, as any child does."""
        for descriptor in (self.input, self.output, self.came_writer, self.wake_writer, *self.pipes):
            try:
                _close(descriptor)
            except OSError:
                pass
        self.lock, self.writing = threading.RLock(), threading.Lock()

    def mend(self):
        """Puts back in place what a cell closed or replaced."""
        for descriptor, (writer, which) in self.ends.items():
            if identity(descriptor) != which:
                _dup2(writer, descriptor)
        if identity(0) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != 0:
                _dup2(null, 0)
                _close(null)

    # The main thread's side.

    def next(self):
        """The next frame from the host; waits for it."""
        while not self.came:
            _read(self.came_reader, 4096)
        return self.came.popleft()

    def send(self, kind, payload=b"", soon=True):
        """Sends a frame of the cell that runs, after all output so far; unless that is to be soon, with what is sent next."""
        if self.is_child():
            return
        with self.lock:
            self.drain()
            self.unsent.append((kind, self.cell, payload))
        if soon or len(payload) >= PIPE_SIZE:
            self.wake()
        if len(payload) >= PIPE_SIZE:
            self.settle(None)

    def send_now(self, kind, payload):
        """Sends a short frame of the cell that runs, which is with the host when this returns: the cell may crash."""
        with self.lock:
            self.drain()
        if not self.unsent and self.writing.acquire(False):
            try:
                if not self.unsent:
                    return self.write(kind, self.cell, payload)
            finally:
                self.writing.release()
        self.send(kind, payload)
        self.settle(1.0)

    def begin(self, cell, room):
        with self.lock:
            self.drain()
            self.cell, self.room, self.dropped, self.failed = cell, room, 0, False

    def end(self):
        with self.lock:
            self.drain()
            if self.dropped:
                self.unsent.append(("truncated", self.cell, str(self.dropped).encode()))
            self.unsent.append(("done", self.cell, b""))
            self.cell, self.room = NOBODY, 0
        self.wake()

    def emit(self, kind, data):
        """Output of Python code, as bytes."""
        if self.is_child():
            descriptor = 1 if kind == "stdout" else 2
            view = memoryview(data)
            while view:
                view = view[_write(descriptor, view) :]
            return
        with self.lock:
            self.drain()
            self.put(kind, data)
        self.wake()
        now = _monotonic()
        if now - self.rested >= REST and data.endswith(b"\n"):
            # What is written now and then is on its way before the cell goes on: that may crash.
            self.rested = now
            self.settle(REST)
        elif len(self.unsent) > MOST_UNSENT:
            self.settle(None)

    def settle(self, patience):
        """Waits until everything was sent, or as long as that."""
        if threading.get_ident() == self.pump_ident:
            return
        until = None if patience is None else _monotonic() + patience
        while (self.unsent or self.sending) and (until is None or _monotonic() < until):
            _sleep(0.0001)

    def wake(self):
        if not self.awake:
            self.awake = True
            try:
                _write(self.wake_writer, b"x")
            except OSError:
                pass

    # Both sides; the lock is held.

    def put(self, kind, data):
        """Output, as much of it as is of use."""
        size = len(data)
        if size > self.room:
            self.dropped += size - self.room
            data = data[: self.room]
            size = self.room
        self.room -= size
        if size:
            self.unsent.append((kind, self.cell, data))

    def drain(self):
        """Takes what children wrote, as much as there may be at one time."""
        for _ in range(64):
            ready = self.poll.poll(0)
            if not ready:
                return
            for reader, _events in ready:
                try:
                    data = _read(reader, CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    self.die()
                if not data:
                    self.die()
                self.put(self.pipes[reader], data)

    # The pump's side.

    def pump(self):
        self.pump_ident = threading.get_ident()
        try:
            _signal.pthread_sigmask(BLOCK, EVERY_SIGNAL)
            poll = select.poll()
            for reader in (*self.pipes, self.wake_reader, self.input):
                poll.register(reader, select.POLLIN)
            received = bytearray()
            while True:
                ready = {descriptor for descriptor, _events in poll.poll(None)}
                if self.input in ready:
                    self.receive(received)
                if self.wake_reader in ready:
                    _read(self.wake_reader, 4096)
                # Whoever puts a frame from here on writes another byte; what was put before is sent below.
                self.awake = False
                # The rest of a line is likely to be written at once.
                for _ in range(10):
                    if not self.is_partial():
                        break
                    _sleep(0.0005)
                if not ready.isdisjoint(self.pipes):
                    # As long as nobody takes what is there already, children wait.
                    with self.lock:
                        self.drain()
                self.send_all()
        except BaseException:
            self.complain()
            self.die()

    def is_partial(self):
        """Whether what waits ends within a line."""
        try:
            kind, _cell, payload = self.unsent[-1]
        except IndexError:
            return False
        return kind in ("stdout", "stderr") and not payload.endswith(b"\n")

    def receive(self, received):
        piece = _read(self.input, 256 * 1024)
        if not piece:
            # Nobody will ever ask for anything again.
            os._exit(0)
        received += piece
        while True:
            end = received.find(b"\n", 0, 80)
            if end < 0:
                return
            kind, cell, length = received[:end].decode("ascii").split()
            rest = end + 1 + int(length)
            if len(received) < rest:
                return
            self.came.append((kind, cell, bytes(received[end + 1 : rest])))
            del received[:rest]
            _write(self.came_writer, b"x")

    def send_all(self):
        """Sends what waits; pieces of output that follow each other go together."""
        with self.writing:
            self.send_waiting()

    def send_waiting(self):
        self.sending = True
        unsent = self.unsent
        while unsent:
            kind, cell, payload = unsent.popleft()
            if kind == "stdout" or kind == "stderr":
                pieces = [payload]
                size = len(payload)
                while unsent and size < CHUNK and unsent[0][0] == kind and unsent[0][1] == cell:
                    piece = unsent.popleft()[2]
                    pieces.append(piece)
                    size += len(piece)
                view = memoryview(b"".join(pieces))
                while view:
                    self.write(kind, cell, view[:CHUNK])
                    view = view[CHUNK:]
            else:
                self.write(kind, cell, payload)
        self.sending = False

    def write(self, kind, cell, payload):
        head = f"{kind} {cell} {len(payload)}\n".encode("ascii")
        view = memoryview(head + payload)
        while view:
            view = view[_write(self.output, view) :]

    def complain(self):
        """Says on the original standard error what is being handled."""
        try:
            _write(self.errors, traceback.format_exc().encode("utf-8", "replace"))
        except BaseException:
            pass

    def die(self):
        """The host cannot be told anything any more, and sees this end."""
        _exit(70)


def new_pipe():
    """A pipe whose ends no child inherits and that are where cells do not look."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, HIGH))
        _close(end)
    return ends


def identity(descriptor):
    try:
        status = _fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Bytes(io.RawIOBase):
    """What `sys.stdout.buffer` is."""

    def __init__(self, channel, kind):
        self.channel = channel
        self.kind = kind

    def writable(self):
        return True

    def fileno(self):
        return 1 if self.kind == "stdout" else 2

    def write(self, data):
        view = memoryview(data).cast("B")
        with INTERRUPTS:
            self.channel.emit(self.kind, bytes(view))
        return len(view)


class Stream(io.TextIOBase):
    """What `sys.stdout` and `sys.stderr` are."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True

    def __init__(self, channel, kind):
        self.channel = channel
        self.kind = kind
        self.name = f"<{kind}>"
        self.buffer = Bytes(channel, kind)

    def writable(self):
        return True

    def fileno(self):
        return self.buffer.fileno()

    def isatty(self):
        return False

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        # A gigabyte of text is not encoded for the part of it that is of use.
        room = self.channel.room
        if len(text) > room + CHUNK and not self.channel.is_child():
            self.channel.dropped += len(text) - room - CHUNK
            encoded = text[: room + CHUNK].encode("utf-8", "backslashreplace")
        else:
            encoded = text.encode("utf-8", "backslashreplace")
        with INTERRUPTS:
            self.channel.emit(self.kind, encoded)
        return len(text)

    def flush(self):
        if not self.channel.is_child():
            self.channel.settle(REST)

    def close(self):
        """Somebody else may still want to write."""

    def reconfigure(self, **_options):
        """It stays as it is."""


# Results.

TEXT_TYPES = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


def form_payload(mime, value):
    """The kind and payload of the frame for one form of a result."""
    if isinstance(value, (bytes, bytearray)):
        value = base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        kind, data = "text", value.encode("utf-8", "backslashreplace")
        if mime == "application/json" or mime.endswith("+json"):
            # A text that is JSON already, as some give it; any other text is one in JSON, too.
            kind, odd = "json", []
            try:
                # Python writes and reads numbers that are none; JSON has no word for them.
                found = json.loads(value, parse_constant=odd.append)
                if odd:
                    data = _dumps(found).encode("utf-8")
            except ValueError:
                data = _dumps(value).encode("utf-8", "backslashreplace")
    else:
        kind, data = "json", _dumps(plain(value), allow_nan=False, check_circular=False).encode("utf-8")
    return kind, mime.encode("ascii", "replace") + b"\n", data


def plain(value, depth=0):
    """`value` in what JSON has: numbers that are none become null, what is not known becomes text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value and value not in (float("inf"), float("-inf")) else None
    if depth > 60:
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one, depth + 1) for one in value]
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        item = value.tolist()
        return plain(item, depth + 1) if not hasattr(item, "tolist") else str(item)
    if type(value).__name__ == "NAType":
        return None
    return str(value)


def publish(channel, forms, is_main, soon=True):
    """Sends a result, with what is sent next unless that is to be soon."""
    with INTERRUPTS:
        sent = 0
        for mime, value in forms.items():
            if value is None:
                continue
            if not isinstance(mime, str) or not MIME.fullmatch(mime) or sent == MOST_FORMS:
                why = f"a result has {MOST_FORMS} at most" if sent == MOST_FORMS else "that is no MIME type"
                words = f"offleash: a form of a result is left out, {ascii(mime)[:MOST_MIME]}: {why}\n"
                channel.emit("stderr", words.encode("ascii"))
                continue
            sent += 1
            try:
                kind, head, data = form_payload(mime, value)
            except Exception:
                kind, head, data = "text", mime.encode("ascii") + b"\n", str(value).encode("utf-8", "replace")
            if len(head) + len(data) > MOST_PAYLOAD:
                channel.send("omitted", head + str(len(data)).encode())
            else:
                channel.send(kind, head + data, False)
        channel.send("result", b"main" if is_main else b"display", soon)


def send_error(channel, name, value, lines):
    """Tells the error of a cell, which has one."""
    if channel.failed:
        return
    channel.failed = True
    text = lambda one: str(one).encode("utf-8", "backslashreplace")[: MOST_PAYLOAD // 4]
    with INTERRUPTS:
        channel.send("error_name", text(name), False)
        channel.send("error_value", text(value), False)
        channel.send("error", text(lines))


def tell(channel, error):
    """Tells an exception as the error of a cell, whatever cells have done to what that needs."""
    try:
        lines = native(error)
    except BaseException:
        lines = by_hand(error)
    send_error(channel, type(error).__name__, safe_text(error), lines)


def is_hidden(name):
    return name.startswith(tuple(HIDDEN))


def chain(error):
    """An exception, those that led to it, and those that they hold."""
    waiting, known = [error], set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in known:
            known.add(id(one))
            yield one
            waiting += (one.__context__, one.__cause__)
            if isinstance(one, GROUPS):
                waiting += one.exceptions


def most_frames(errors):
    """How many frames of each of them are told."""
    return max(LEAST_FRAMES, min(MOST_FRAMES, ALL_FRAMES // errors))


def ends(trace, most):
    """The first and the last frames of a traceback as tracebacks of their own, without hidden ones, and how many are between."""
    frames = []
    while trace is not None:
        if not is_hidden(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    if len(frames) <= most:
        return frames, [], 0
    return frames[: most // 2], frames[-(most // 2) :], len(frames) - most // 2 * 2


def linked(frames):
    """One traceback of several frames of others."""
    trace = None
    for one in reversed(frames):
        trace = types.TracebackType(trace, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return trace


def native(error):
    """What Python writes of an exception, without frames that are no cell's."""
    errors = list(chain(error))
    most = most_frames(len(errors))
    # Whatever a class has in place of these.
    take, put = BaseException.__traceback__.__get__, BaseException.__traceback__.__set__
    before = [take(one) for one in errors]
    gaps = {}
    try:
        for one, trace in zip(errors, before):
            first, last, between = ends(trace, most)
            put(one, linked(first + last))
            if between:
                gaps[id(one)] = len(first), between
        written = traceback.TracebackException(type(error), error, take(error))
    finally:
        for one, trace in zip(errors, before):
            put(one, trace)
    waiting = [(written, error)] if gaps else []
    while waiting:
        told, one = waiting.pop()
        if id(one) in gaps:
            at, between = gaps.pop(id(one))
            told.stack.insert(at, traceback.FrameSummary(f"{GAP}{between}", 0, "", lookup_line=False, line=""))
        for name in ("__cause__", "__context__"):
            if getattr(told, name) is not None:
                waiting.append((getattr(told, name), getattr(one, name)))
        waiting += zip(getattr(told, "exceptions", None) or (), getattr(one, "exceptions", ()))
    return GAP_LINE.sub(lambda found: left_out(found.group(1)), "".join(written.format())).rstrip("\n")


def left_out(count):
    return f"[... {count} frames left out]"


class Gap:
    """A line of IPython's tracebacks that stands for frames."""

    _sd = None
    frame = types.SimpleNamespace(f_locals={})

    def __init__(self, count):
        self.count = count


def shorten(tracebacks, shown):
    """Has IPython tell the ends of tracebacks only; `shown` says of which exception."""
    records, record = tracebacks.get_records, tracebacks.format_record

    def get_records(trace, context, _offset):
        # The frames that older releases leave out by their number are gone already.
        first, last, between = ends(trace, most_frames(sum(1 for _ in chain(shown()))))
        parts = [first, last] if between else [first]
        found = [records(linked(part), context, 0) for part in parts if part]
        return [*found[0], Gap(between), *found[1]] if between else found[0] if found else []

    tracebacks.get_records = get_records
    tracebacks.format_record = lambda one: f"    {left_out(one.count)}\n" if isinstance(one, Gap) else record(one)


def by_hand(error):
    """The same by nothing but what the language itself has."""
    lines = ["Traceback (most recent call last):"]
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_hidden(code.co_filename):
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
        trace = trace.tb_next
    return "\n".join([*lines, f"{type(error).__name__}: {safe_text(error)}"])


def safe_text(value):
    """What an exception says, whatever its `__str__` does."""
    try:
        return str(value)
    except BaseException:
        return f"<{type(value).__name__}, which cannot be shown>"


class Pictures:
    """Shows pictures that PIL is to show or saves, as E2B's code interpreter does: there is no screen to show them on.

    What matplotlib saves is a picture to PIL, too. That is shown when the cell is over, unless the cell has shown a figure.
    """

    # Figures of one cell that are kept until it is over.
    MOST_KEPT = 20

    def __init__(self):
        self.display = None
        self.begin()

    def begin(self):
        self.has_figure = False
        self.kept = []

    def install(self):
        loaded = sys.modules.get("PIL.Image")
        if loaded is not None:
            # By a process of which this one is a copy, and whose shell another one may have been.
            self.change(loaded.Image)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        """Stands among the finders of modules until PIL is looked for."""
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is not None and found.loader is not None:
            run = found.loader.exec_module

            def exec_module(module):
                run(module)
                self.change(module.Image)

            found.loader.exec_module = exec_module
        return found

    def change(self, kind):
        save = getattr(kind.save, "offleash_shows", kind.save)

        def save_and_show(image, fp, format=None, **params):
            done = save(image, fp, format, **params)
            if isinstance(fp, (str, bytes, os.PathLike)):
                self.saved(image, sys._getframe(1).f_globals.get("__name__", ""))
            return done

        save_and_show.__doc__, save_and_show.__name__ = save.__doc__, save.__name__
        save_and_show.offleash_shows = save
        kind.save = save_and_show
        kind.show = lambda image, title=None, **_options: self.display and self.display(image)

    def saved(self, image, by):
        if self.display is None:
            return
        try:
            if not by.startswith("matplotlib."):
                self.display(image)
            elif len(self.kept) < self.MOST_KEPT:
                self.kept.append((repr(image).partition(" at 0x")[0].rstrip(">") + ">", image._repr_png_()))
        except Exception:
            # It is saved, and that is what was asked for.
            pass

    def end(self, channel):
        """The cell is over."""
        if not self.has_figure:
            for text, picture in self.kept:
                if picture is not None:
                    publish(channel, {"text/plain": text, "image/png": picture}, False)
        self.begin()


PICTURES = Pictures()

# Data and charts, from objects of libraries that are there only if a cell imported them.


def more_forms(value):
    """Forms that E2B's SDKs know and that no library makes by itself."""
    forms = {}
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())):
        try:
            forms["e2b/data"] = frame_data(value)
        except Exception:
            pass
    figure = sys.modules.get("matplotlib.figure")
    if figure is not None and isinstance(value, getattr(figure, "Figure", ())):
        PICTURES.has_figure = True
        try:
            forms["e2b/chart"] = figure_chart(value)
        except Exception:
            # Whatever else is drawn, there is its picture.
            pass
    return forms


def frame_data(frame):
    """A data frame as lists by the names of its columns; none when it is too large to be of use, or would lose a column."""
    names = [str(name) for name in frame.columns]
    if frame.size > MOST_DATA or len(set(names)) < len(names):
        return None
    return {name: plain(frame.iloc[:, number].tolist()) for number, name in enumerate(names)}


def figure_chart(figure):
    """What a figure of matplotlib shows, as data; none when it shows nothing."""
    axes = [ax for ax in figure.get_axes() if ax.has_data()]
    if not axes:
        return None
    if len(axes) == 1:
        return axes_chart(axes[0])
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else getattr(figure._suptitle, "get_text", str)()
    return {"type": "superchart", "title": title or None, "elements": [axes_chart(ax) for ax in axes]}


def axes_chart(ax):
    """What one pair of axes shows. Which kind of chart it is, is seen by what was drawn."""
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle, Wedge

    lines = list(ax.lines)
    others = [*ax.patches, *ax.collections, *ax.images]
    only = lambda kind: others and all(isinstance(one, kind) for one in others)
    marks = all(is_mark(one) for one in lines)
    chart = {"type": "unknown", "title": ax.get_title() or None, "elements": []}
    if hasattr(ax, "zaxis"):
        # What is drawn in space has other coordinates than these.
        return chart
    boxes = box_parts(ax, lines, others)
    if boxes is not None:
        return {**chart, "type": "box_and_whisker", **labels(ax, boxes["flipped"]), "elements": boxes["elements"]}
    if lines and not others:
        return {**chart, "type": "line", **labels(ax), **scales(ax), "elements": line_elements(ax, lines)}
    if only(PathCollection) and marks:
        return {**chart, "type": "scatter", **labels(ax), **scales(ax), "elements": scatter_elements(ax, others)}
    if only(Wedge) and marks:
        return {**chart, "type": "pie", "elements": [pie_element(one) for one in others]}
    # Lines on bars say how sure one is of them.
    bars = [one for one in ax.containers if hasattr(one, "patches")]
    if bars and all(isinstance(one, Rectangle) for one in ax.patches):
        flipped = bars[0].orientation == "horizontal"
        return {**chart, "type": "bar", **labels(ax, flipped), "elements": bar_elements(ax, bars, flipped)}
    return chart


def is_mark(line):
    """Whether a line only points something out, such as one across the axes."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def labels(ax, flipped=False):
    """What the axes are called, and the units in it, as in `time (s)` or `time [s]`."""
    found = {}
    texts = [ax.get_xlabel(), ax.get_ylabel()]
    for axis, text in zip("xy", reversed(texts) if flipped else texts):
        unit = re.search(r"\s\((.*?)\)|\[(.*?)\]", text)
        found[f"{axis}_label"] = text or None
        found[f"{axis}_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return found


def scales(ax):
    found = {}
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        ticks = axis.get_ticklocs()
        texts = [label.get_text() for label in axis.get_ticklabels()]
        if is_of_time(axis):
            import matplotlib.dates

            shown = [matplotlib.dates.num2date(tick).isoformat() for tick in ticks]
            scale = "datetime"
        elif period_of(axis) is not None:
            shown = [value_of(tick, period_of(axis)) for tick in ticks]
            scale = "datetime"
        else:
            shown = [plain(float(tick)) for tick in ticks]
            scale = "categorical" if is_of_categories(axis) else axis.get_scale()
        found.update({f"{name}_ticks": shown, f"{name}_tick_labels": texts, f"{name}_scale": scale})
    return found


def converter_of(axis):
    """The name of what makes numbers of what was drawn."""
    return type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__


def is_of_time(axis):
    kind = converter_of(axis)
    return "Date" in kind or "Datetime" in kind or "Timestamp" in kind


def is_of_categories(axis):
    return converter_of(axis) == "StrCategoryConverter"


def drawn_along(axis):
    """What makes of a number along an axis what was drawn there, for what keeps numbers alone."""
    if is_of_time(axis):
        import matplotlib.dates

        # In the zone of what was drawn, if it has one.
        if hasattr(axis.units, "utcoffset"):
            return lambda number: matplotlib.dates.num2date(number, axis.units)
        return lambda number: matplotlib.dates.num2date(number).replace(tzinfo=None)
    if is_of_categories(axis):
        texts = {number: text for text, number in axis.units._mapping.items()}
        return lambda number: texts.get(number, number)
    return lambda number: number


def period_of(axis):
    """What pandas counts along an axis from 1970 on, such as days; none for other axes."""
    return getattr(axis, "freq", getattr(axis.axes, "freq", None)) if converter_of(axis) == "PeriodConverter" else None


def value_of(one, period=None):
    """A coordinate as JSON has it: a number, or text for times and categories."""
    if one is None:
        return None
    if hasattr(one, "isoformat"):
        return one.isoformat()
    if hasattr(one, "to_timestamp"):
        return one.to_timestamp().isoformat()
    kind = type(one)
    if kind.__module__ == "numpy" and kind.__name__ == "datetime64":
        return str(one.astype("datetime64[s]"))
    if isinstance(one, str):
        return str(one)
    number = plain(float(one))
    if period is None or number is None:
        return number
    return sys.modules["pandas"].Period(ordinal=int(number), freq=period).to_timestamp().isoformat()


def points(ax, x, y):
    if len(x) > MOST_DATA:
        raise ValueError("more points than are of use")
    along, up = period_of(ax.xaxis), period_of(ax.yaxis)
    return [[value_of(a, along), value_of(b, up)] for a, b in zip(x, y)]


def named(label, prefix, word):
    """What matplotlib names by itself gets a name for people."""
    label = str(label)
    number = label[len(prefix) :]
    return f"{word} {number}" if label.startswith(prefix) and number.isdigit() else label


def line_elements(ax, lines):
    wanted = [one for one in lines if not is_mark(one)] or lines
    return [
        {"label": named(one.get_label(), "_child", "Line"), "points": points(ax, one.get_xdata(), one.get_ydata())}
        for one in wanted
    ]


def scatter_elements(ax, drawn):
    elements = []
    for one in drawn:
        # What is not drawn has its place all the same, as on a line.
        numbers = getattr(one.get_offsets(), "data", one.get_offsets())
        x, y = (
            [told(number) if number - number == 0 else None for number in numbers[:, at].tolist()]
            for at, told in enumerate((drawn_along(ax.xaxis), drawn_along(ax.yaxis)))
        )
        elements.append({"label": named(one.get_label(), "_child", "Scatter"), "points": points(ax, x, y)})
    return elements


def pie_element(wedge):
    angle = abs(float(wedge.theta2) - float(wedge.theta1))
    return {"label": wedge.get_label(), "angle": rounded(angle), "radius": float(wedge.r)}


def bar_elements(ax, bars, flipped):
    axis = ax.yaxis if flipped else ax.xaxis
    ticks = [float(tick) for tick in axis.get_ticklocs()]
    texts = [label.get_text() for label in axis.get_ticklabels()]
    is_category = is_of_categories(axis)
    place, has_own_texts = places_along(axis)
    # Where each begins, how wide it is, and its value.
    drawn = [
        [
            (bar.get_y(), bar.get_height(), bar.get_width()) if flipped else (bar.get_x(), bar.get_width(), bar.get_height())
            for bar in container.patches
        ]
        for container in bars
    ]
    shared = shared_centres(drawn)
    elements = []
    for container, group in zip(bars, drawn):
        name = named(container.get_label(), "_container", "Group")
        bins = not has_own_texts and are_bins(group)
        for number, (along, width, value) in enumerate(group):
            centre = along + width / 2
            # Bars of several groups stand beside the tick that they share.
            beside = abs(width) * len(bars) / 2 if len(bars) > 1 else 1e-9
            near = min(range(len(ticks)), key=lambda tick: abs(ticks[tick] - centre), default=None)
            has_tick = near is not None and near < len(texts) and (is_category or abs(ticks[near] - centre) <= beside)
            if bins:
                # The last one has its end, too, as everywhere.
                label = f"[{place(along)}, {place(along + width)}{']' if number == len(group) - 1 else ')'}"
            elif has_own_texts and has_tick and texts[near]:
                label = texts[near]
            else:
                label = place(shared[number] if shared else centre)
            elements.append({"label": label, "group": name, "value": plain(float(value))})
    return elements


def shared_centres(drawn):
    """The middle of the first bars of all groups, of the second ones and so on, if these stand together."""
    if len({len(group) for group in drawn}) != 1:
        return None
    middles = []
    for together in zip(*drawn):
        centres = [along + width / 2 for along, width, _ in together]
        if max(centres) - min(centres) > sum(abs(width) for _, width, _ in together):
            return None
        middles.append(sum(centres) / len(centres))
    return middles


def places_along(axis):
    """What tells a place along an axis, and whether the texts at its ticks tell more: those that matplotlib chose are for who
    sees all of them."""
    by = type(axis.get_major_formatter()).__name__
    period = period_of(axis)
    if period is not None:
        ordinal = lambda number: without_midnight(value_of(round(number), period))
        return lambda number: ordinal(number) if is_finite(number) else numeral(number), by != "TimeSeries_DateFormatter"
    if is_of_time(axis):
        told = drawn_along(axis)

        def moment(number):
            if not is_finite(number):
                return numeral(number)
            # Without what arithmetic of floating point adds: to the nearest millisecond.
            exact = told(number)
            later = exact + type(exact - exact)(microseconds=500)
            return without_midnight(later.replace(microsecond=later.microsecond // 1000 * 1000).isoformat())

        return moment, not by.endswith("DateFormatter")
    return numeral, by != "ScalarFormatter" or is_of_categories(axis)


def is_finite(number):
    return number - number == 0


def without_midnight(moment):
    """A day as such."""
    return moment[:-9] if moment.endswith("T00:00:00") else moment


def numeral(number):
    """As people write it."""
    number = rounded(float(number))
    if number is None:
        return "nan"
    return f"{number:.0f}" if abs(number) < 1e15 and number == int(number) else f"{number}"


def are_bins(drawn):
    """Whether bars are those of a histogram: each begins where the one before ends. Those of width 1 around whole numbers
    are taken for bars of these numbers."""
    ends = [along + width for along, width, _ in drawn]
    if len(drawn) < 2 or any(width <= 0 or not is_finite(along) for along, width, _ in drawn):
        return False
    if all(is_near(width, 1) and is_near(along + 0.5, round(along + 0.5)) for along, width, _ in drawn):
        return False
    return all(abs(end - along) <= 1e-6 * width for end, (along, width, _) in zip(ends, drawn[1:]))


def box_parts(ax, lines, others):
    """Boxes with their whiskers, if that is what was drawn; none otherwise."""
    from matplotlib.patches import PathPatch

    if not lines or any(not isinstance(one, PathPatch) for one in others):
        return None
    drawn = [one.get_path().vertices for one in others]
    if not drawn:
        # Boxes that are not filled are lines around: five points, of which the last is the first.
        # A box of values of which one is no number has none of its own.
        same = lambda one, other: all(a == b or (a != a and b != b) for a, b in zip(one, other))
        is_around = lambda line: len(line.get_xdata()) == 5 and same(line.get_xydata()[0], line.get_xydata()[4])
        drawn = [line.get_xydata() for line in lines if is_around(line)]
        lines = [line for line in lines if not is_around(line)]
    is_points = lambda line: line.get_linestyle() == "None"
    is_part = lambda line: len(line.get_xdata()) <= 2 or is_points(line)
    if not drawn or not all(is_part(line) for line in lines):
        return None
    boxes = [Box([float(x) for x, _ in corners], [float(y) for _, y in corners]) for corners in drawn]
    # Means are drawn as far points are, with a mark of their own.
    import matplotlib

    mean = matplotlib.rcParams["boxplot.meanprops.marker"]
    lines = [one for one in lines if len(one.get_xdata()) and not (is_points(one) and one.get_marker() == mean)]
    parts = [(list(map(float, one.get_xdata())), list(map(float, one.get_ydata())), is_points(one)) for one in lines]
    upright = any(box.has_whisker(x, y) for box in boxes for x, y, _ in parts)
    lying = [box.turned() for box in boxes]
    flipped = not upright and any(box.has_whisker(y, x) for box in lying for x, y, _ in parts)
    if flipped:
        boxes = lying
        parts = [(y, x, are_points) for x, y, are_points in parts]
    texts = [label.get_text() for label in (ax.yaxis if flipped else ax.xaxis).get_ticklabels()]
    texts += [""] * (len(boxes) - len(texts))
    return {"flipped": flipped, "elements": [box.element(text, parts) for box, text in zip(boxes, texts)]}


class Box:
    """The middle half of some values, drawn upright."""

    def __init__(self, x, y):
        self.x, self.y = x, y
        self.left, self.right, self.low, self.high = min(x), max(x), min(y), max(y)

    def turned(self):
        return Box(self.y, self.x)

    def has_whisker(self, x, y):
        """Whether a line goes from the middle of one of the edges to somewhere else."""
        on_edge = [any(is_near(one, edge) for edge in (self.low, self.high)) for one in y]
        return len(x) == 2 and x[0] == x[1] and is_near(x[0], (self.left + self.right) / 2) and on_edge[0] != on_edge[1]

    def element(self, label, parts):
        lowest, median, highest, outliers = self.low, self.low, self.high, []
        for x, y, are_points in parts:
            if not all(self.left - 1e-9 <= one <= self.right + 1e-9 for one in x):
                continue
            if are_points:
                outliers.extend(y)
            elif len(x) == 2 and y[0] == y[1] and is_near(abs(x[1] - x[0]), self.right - self.left):
                median = y[0]
            elif len(x) == 2 and x[0] == x[1]:
                lowest, highest = min(lowest, *y), max(highest, *y)
        return {
            "label": label,
            "min": rounded(lowest),
            "first_quartile": rounded(self.low),
            "median": rounded(median),
            "third_quartile": rounded(self.high),
            "max": rounded(highest),
            "outliers": [rounded(one) for one in outliers],
        }


def is_near(one, other):
    return abs(one - other) < 1e-9


def rounded(number):
    """Without what arithmetic of floating point adds."""
    return plain(float(f"{number:.10g}")) if isinstance(number, float) else number


# Shells.


def without_ours(traceback_of_cell):
    """A traceback without the driver's own functions."""
    first = previous = None
    while traceback_of_cell is not None:
        following = traceback_of_cell.tb_next
        if traceback_of_cell.tb_frame.f_code.co_filename != OURS:
            if previous is None:
                first = traceback_of_cell
            # Python looks for a loop in all of it each time.
            elif previous.tb_next is not traceback_of_cell:
                previous.tb_next = traceback_of_cell
            previous = traceback_of_cell
        traceback_of_cell = following
    if previous is not None and previous.tb_next is not None:
        previous.tb_next = None
    return first


class Latest:
    """What is kept of cells: of the last ones only, so many and so much of them."""

    def __init__(self):
        self.entries = collections.deque()
        self.size = 0

    def add(self, entry, size):
        self.entries.append((entry, size))
        self.size += size

    def outdated(self):
        """Takes out what is to be kept no longer."""
        while len(self.entries) > KEPT_CELLS or (self.size > MOST_KEPT and len(self.entries) > 1):
            entry, size = self.entries.popleft()
            self.size -= size
            yield entry


def cell_name(count):
    return f"<cell {count}>"


class PlainShell:
    """Runs cells where IPython is not installed: state, last expressions, `await`, and no magics."""

    def __init__(self, channel):
        self.channel = channel
        self.count = 0
        self.sources = Latest()
        main = types.ModuleType("__main__")
        main.__builtins__ = builtins
        main.display = self.display
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.loop = None
        self.figures = None

    def display(self, *values, **_options):
        """Shows values as results of the cell."""
        for value in values:
            publish(self.channel, self.forms(value), False)

    def forms(self, value):
        forms = {}
        bundle = getattr(type(value), "_repr_mimebundle_", None)
        if bundle is not None:
            try:
                made = value._repr_mimebundle_()
                forms.update(made[0] if isinstance(made, tuple) else made)
            except Exception:
                pass
        for method, mime in TEXT_TYPES.items():
            if mime not in forms and callable(getattr(type(value), method, None)):
                try:
                    form = getattr(value, method)()
                except Exception:
                    continue
                if isinstance(form, tuple):
                    form = form[0]
                if form is not None:
                    forms[mime] = form
        figure = sys.modules.get("matplotlib.figure")
        if figure is not None and isinstance(value, figure.Figure):
            picture = io.BytesIO()
            value.savefig(picture, format="png", bbox_inches="tight")
            forms["image/png"] = picture.getvalue()
        forms.update(more_forms(value))
        forms.setdefault("text/plain", repr(value))
        return forms

    def warm(self, gather=None):
        """Everything is loaded."""

    def settle_in(self):
        """Nothing was found out."""

    def run(self, code):
        self.count += 1
        name = cell_name(self.count)
        linecache.cache[name] = (len(code), None, [line + "\n" for line in code.splitlines()], name)
        self.sources.add(name, len(code))
        for old in self.sources.outdated():
            linecache.cache.pop(old, None)
        try:
            with Exposed():
                self.run_code(code, name)
        except BaseException as error:
            tell(self.channel, error)

    def run_code(self, code, name):
        try:
            tree = ast.parse(code, name)
        except SyntaxError:
            if any(line.lstrip().startswith(("%", "!")) for line in code.splitlines()):
                raise SyntaxError(
                    "lines that begin with % or ! need IPython, which this sandbox lacks: use the template "
                    "`code-interpreter`, or `pip install ipython` and restart the context"
                ) from None
            raise
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        if tree.body:
            self.evaluate(compile(tree, name, "exec", flags, dont_inherit=True))
        if last is not None:
            value = self.evaluate(compile(last, name, "eval", flags, dont_inherit=True))
            if value is not None:
                self.namespace["_"] = value
                publish(self.channel, self.forms(value), True)
        self.show_figures()

    def evaluate(self, compiled):
        value = eval(compiled, self.namespace)
        # CO_COROUTINE: there was an `await` in it.
        if compiled.co_flags & 0x80:
            import asyncio

            if self.loop is None or self.loop.is_closed():
                self.loop = asyncio.new_event_loop()
            value = self.loop.run_until_complete(value)
        return value

    def show_figures(self):
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            self.display(pyplot.figure(number))
        pyplot.close("all")


def plain_backend(shell):
    """A backend of matplotlib that shows figures as results; loaded when matplotlib asks for it."""
    module = types.ModuleType("offleash_figures")

    def load(name):
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.FigureCanvas = FigureCanvasAgg
        module.FigureManager = FigureManagerBase
        try:
            return module.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None

    module.__getattr__ = load
    module.show = lambda *_arguments, **_options: shell.show_figures()
    sys.modules[module.__name__] = module
    os.environ.setdefault("MPLBACKEND", "module://offleash_figures")


def ipython_shell(channel):
    """IPython's shell, whose results and errors go to the host."""
    import IPython
    from IPython.core.autocall import IPyAutocall
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.macro import Macro
    from traitlets.config import Config

    class Formatter(DisplayFormatter):
        def format(self, obj, include=None, exclude=None):
            if type(obj) in SIMPLE and include is exclude is None and self.has_text_alone(obj):
                return {"text/plain": self.formatters["text/plain"](obj)}, {}
            forms, metadata = super().format(obj, include, exclude)
            with INTERRUPTS:
                forms.update(more_forms(obj))
            return forms, metadata

        def has_text_alone(self, value):
            """Whether no form but text is known for it; each of IPython's formatters takes long to find that out."""
            if type(self).format is not Formatter.format or not self.formatters["text/plain"].enabled:
                return False
            kinds = type(value).__mro__
            for formatter in (*self.formatters.values(), self.ipython_display_formatter, self.mimebundle_formatter):
                if formatter is self.formatters["text/plain"]:
                    continue
                printers, later = formatter.type_printers, formatter.deferred_printers
                if printers and any(kind in printers for kind in kinds):
                    return False
                if later and any((kind.__module__, kind.__name__) in later for kind in kinds):
                    return False
                if id(value) in formatter.singleton_printers:
                    return False
            return True

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def start_displayhook(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            # The last one ends the cell.
            publish(channel, format_dict, True, self.shell.ast_node_interactivity == "all")

        def finish_displayhook(self):
            pass

        def log_output(self, format_dict):
            # As IPython's own, which keeps every other form, too.
            text = format_dict.get("text/plain")
            if text is not None:
                if self.shell.logger.log_output:
                    self.shell.logger.log_write(text, "output")
                self.shell.history_manager.output_hist_reprs[self.prompt_count] = text

        def cull_cache(self):
            # As IPython's own, without a warning for every one.
            kept = self.shell.user_ns["_oh"]
            for number in sorted(kept)[: max(1, len(kept) // 5)]:
                self.shell.user_ns.pop(f"_{number}", None)
                kept.pop(number, None)

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
            publish(channel, data, False)

        def clear_output(self, wait=False):
            pass

    class Compiler(CachingCompiler):
        def get_code_name(self, raw_code, code, number):
            # As IPython's own, without a library for it.
            return f"<ipython-input-{number}-{hash(code) & 0xFFFF_FFFF_FFFF:012x}>"

    class Shell(InteractiveShell):
        compiler_class = Compiler
        # What IPython changes in cells that are not Python; extensions may add to it.
        own_transformers = None

        def init_display_formatter(self):
            self.display_formatter = Formatter(parent=self)
            self.configurables.append(self.display_formatter)

        def system(self, command):
            # As IPython's own, of which an interrupt ends the command and not the cell; by way of our pipes, not of a terminal.
            import subprocess

            command = self.var_expand(command, depth=1)
            code = subprocess.call(command, shell=True, executable=os.environ.get("SHELL"))
            self.user_ns["_exit_code"] = 128 - code if code > 128 else code
            if code and getattr(self, "system_raise_on_error", False):
                raise subprocess.CalledProcessError(code, command)

        def getoutput(self, cmd, split=True, depth=0):
            before = INTERRUPTS.raised
            output = super().getoutput(cmd, split=split, depth=depth + 1)
            if INTERRUPTS.raised != before:
                raise KeyboardInterrupt
            return output

        def _find_with_lazy_load(self, type_, magic_name):
            found = super()._find_with_lazy_load(type_, magic_name)
            # Newer releases load them when they are looked for.
            scripts = dict.get(self.magics_manager.registry, "ScriptMagics")
            if scripts is not None and "shebang" not in vars(scripts):
                mend_scripts(scripts, self.magics_manager.magics["cell"])
                found = super()._find_with_lazy_load(type_, magic_name)
            return found

        def _tee(self, channel):
            # IPython's own keeps all that is written.
            return contextlib.nullcontext()

        def _format_exception_for_storage(self, exception, *_arguments, **_options):
            # IPython's own formats the traceback again, to keep it.
            return {"ename": type(exception).__name__, "evalue": safe_text(exception)[:MOST_SAID], "traceback": []}

        def _get_exc_info(self, exc_tuple=None):
            etype, value, traceback_of_cell = super()._get_exc_info(exc_tuple)
            return etype, value, without_ours(traceback_of_cell)

        def init_traceback_handlers(self, custom_exceptions):
            super().init_traceback_handlers(custom_exceptions)
            shorten(self.InteractiveTB, lambda: sys.last_value)

        def showtraceback(self, exc_tuple=None, *arguments, **options):
            try:
                etype, value, traceback_of_cell = self._get_exc_info(exc_tuple)
            except ValueError:
                return super().showtraceback(exc_tuple, *arguments, **options)
            errors = list(chain(value))
            if len(errors) > MOST_ERRORS or any(isinstance(one, GROUPS) for one in errors):
                # IPython leaves groups to Python, which knows neither our way nor what to leave out; many take it long.
                return tell(channel, value)
            return super().showtraceback((etype, value, traceback_of_cell), *arguments, **options)

        def _showtraceback(self, etype, evalue, stb):
            send_error(channel, etype.__name__, safe_text(evalue), "\n".join(stb))

        def show_usage_error(self, exc):
            super().show_usage_error(exc)
            send_error(channel, type(exc).__name__, safe_text(exc), f"UsageError: {safe_text(exc)}")

        def transform_cell(self, raw_cell):
            if self.is_python(raw_cell):
                return raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
            return super().transform_cell(raw_cell)

        def is_python(self, cell):
            """Whether IPython would leave a cell as it is; that takes it many times as long to find out."""
            # It takes these away, and what follows may be Python all the same.
            if not cell or cell[0].isspace() or cell.startswith("In ["):
                return False
            if self.autocall or self.input_transformers_post or self.transformers() != self.own_transformers:
                return False
            if "\n" not in cell.rstrip("\n"):
                # A line alone may be a magic, a macro or something that is called by its name.
                word = FIRST_WORD.match(cell).group()
                if isinstance(self.user_ns.get(word), (Macro, IPyAutocall)) or self.find_magic(word):
                    return False
            try:
                # What Python warns of it does again when the cell is compiled.
                filters, warnings.filters = warnings.filters, NO_WARNINGS
                try:
                    ast.parse(cell)
                finally:
                    warnings.filters = filters
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return False
            return True

        def transformers(self):
            manager = self.input_transformer_manager
            return [*manager.cleanup_transforms, *manager.line_transforms, *manager.token_transformers]

        def should_run_async(self, raw_cell, **options):
            # It is compiled to find out where it may be.
            may_wait = "await" in raw_cell or "async" in raw_cell
            return may_wait and super().should_run_async(raw_cell, **options)

        def init_io(self):
            pass

        def init_readline(self):
            pass

        def enable_gui(self, gui=None):
            pass

        def ask_exit(self):
            pass

    HIDDEN.append(os.path.dirname(IPython.__file__) + os.sep)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.cache_size = KEPT_CELLS
    config.InteractiveShell.autocall = 0
        # Newer releases write it in small letters, older ones do not know it so.
    config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    Shell.displayhook_class = Hook
    Shell.display_pub_class = Publisher
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    shell = Shell.instance(config=config, user_module=main)
    shell.own_transformers = shell.transformers()
    InteractiveShell._instance = shell
    return shell


def mend_scripts(scripts, magics):
    """Has an interrupt of `%%bash` and its like end the program and the cell, as one of `!command` does. IPython's own leaves a
    program alone that ignores the interrupt, and tells of one that failed."""
    import functools

    run = scripts.shebang

    @functools.wraps(run)
    def shebang(line, cell):
        import asyncio

        create, raised, started, over = asyncio.create_subprocess_exec, INTERRUPTS.raised, [], []

        async def noted(*arguments, **options):
            program = await create(*arguments, **options)
            if asyncio.get_running_loop() is scripts.event_loop:
                started.append(program)
                if over:
                    # The interrupt came while it was started.
                    program._transport.close()
            return program

        asyncio.create_subprocess_exec = noted
        try:
            return run(line, cell)
        finally:
            asyncio.create_subprocess_exec = create
            if INTERRUPTS.raised != raised:
                over.append(True)
                for program in started:
                    if program.returncode is None:
                        scripts.event_loop.call_soon_threadsafe(program._transport.close)
                raise KeyboardInterrupt from None

    scripts.shebang = magics["script"] = shebang


class Traces:
    """What cells leave in IPython's shell, to be taken away again."""

    def __init__(self, shell):
        history, hook = shell.history_manager, shell.displayhook
        holders = (
            (history, ("_i00", "_i", "_ii", "_iii")),
            (hook, ("_", "__", "___")),
            (shell, ("execution_count", "last_execution_succeeded", "last_execution_result")),
            (sys, ("last_type", "last_value", "last_traceback", "last_exc")),
        )
        self.values = [(one, name, getattr(one, name, self)) for one, names in holders for name in names]
        tables = (
            shell.user_ns,
            shell.user_ns_hidden,
            shell.user_ns["_oh"],
            linecache.cache,
            getattr(linecache, "_ipython_cache", {}),
            getattr(shell.compile, "_filename_map", {}),
            getattr(history, "outputs", {}),
            getattr(history, "exceptions", {}),
        )
        self.tables = [(table, dict(table)) for table in tables]
        lists = (history.input_hist_parsed, history.input_hist_raw, history.db_input_cache)
        self.lists = [(one, list(one)) for one in lists]

    def remove(self):
        for one, name, value in self.values:
            if value is not self:
                setattr(one, name, value)
            elif hasattr(one, name):
                delattr(one, name)
        for table, before in self.tables:
            for name in [name for name in table if name not in before]:
                del table[name]
            table.update(before)
        for one, before in self.lists:
            one[:] = before


class IPythonShell:
    """Runs cells in IPython."""

    def __init__(self, channel, shell):
        self.channel = channel
        self.shell = shell
        self.count = 0
        self.keep_nothing()
        self.is_warm = False
        self.started_in = os.getcwd()
        self.profile = shell.profile_dir.location

    def keep_nothing(self):
        self.sources, self.inputs, self.texts = Latest(), Latest(), Latest()

    def warm(self, gather=None):
        """Goes the way of a cell, of which nothing is left, so that the first one finds everything loaded and made."""
        if self.is_warm:
            return
        self.is_warm = True
        traces = Traces(self.shell)
        # Nobody is told of these.
        self.channel.send = lambda *_: None
        try:
            if gather is not None:
                self.run(WARMING[-1])
                gather(lambda: self.run(WARMING[-1]))
            for code in WARMING:
                self.run(code)
        finally:
            del self.channel.send
            self.count = 0
            self.keep_nothing()
            traces.remove()

    def settle_in(self):
        """Finds out anew what it found out when it was made, in another place."""
        here = os.getcwd()
        if here != self.started_in:
            self.shell.starting_dir = here
            visited = self.shell.user_ns["_dh"]
            visited[:] = [type(visited[0])(here)]
        for directory in (os.path.dirname(self.profile), self.profile):
            try:
                os.mkdir(directory)
            except OSError:
                # It is there, or the home directory is one that cannot be written to.
                pass

    def run(self, code):
        self.count += 1
        shell = self.shell
        # A cell may have left another number.
        shell.execution_count = self.count
        known = set(linecache.cache)
        try:
            with Exposed():
                result = shell.run_cell(code, store_history=True)
            # What IPython may not have shown.
            error = result.error_in_exec if result.error_before_exec is None else result.error_before_exec
            if error is not None:
                tell(self.channel, error)
            # This function is in its traceback, and would hold what holds it.
            del error, result
        except BaseException as error:
            tell(self.channel, error)
        self.forget(known, len(code))

    def forget(self, known, size):
        """Keeps what is of the latest cells, where IPython keeps all."""
        shell, history = self.shell, self.shell.history_manager
        for name in list(linecache.cache):
            if name not in known and "ipython-input" in name:
                self.sources.add(name, size)
        for name in self.sources.outdated():
            linecache.cache.pop(name, None)
            getattr(linecache, "_ipython_cache", {}).pop(name, None)
            getattr(shell.compile, "_filename_map", {}).pop(name, None)
        self.inputs.add(self.count, size)
        for old in self.inputs.outdated():
            for inputs in (history.input_hist_parsed, history.input_hist_raw):
                if 0 < old < len(inputs):
                    inputs[old] = ""
            for names in (shell.user_ns, shell.user_ns_hidden):
                names.pop(f"_i{old}", None)
            for kept in (getattr(history, "outputs", {}), getattr(history, "exceptions", {})):
                kept.pop(old, None)
        text = history.output_hist_reprs.get(self.count)
        if isinstance(text, str):
            self.texts.add(self.count, len(text))
        for old in self.texts.outdated():
            history.output_hist_reprs.pop(old, None)
        # It waits for a database, of which there is none.
        del history.db_input_cache[:]


def make_shell(channel):
    try:
        shell = IPythonShell(channel, ipython_shell(channel))
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        PICTURES.display = importlib.import_module("IPython.display").display
    except ImportError:
        shell = PlainShell(channel)
        plain_backend(shell)
        PICTURES.display = shell.display
    PICTURES.install()
    return shell


# Cells.

# What this driver was given beside itself.
PARTS = []
# Files that hold the state of this context, until the host asks for anything more.
SAVED = []


def remove(path):
    try:
        _unlink(path)
    except OSError:
        # A cell, or who copied it, was faster.
        pass


def restore(saved):
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def load(names):
    """Imports modules that cells are likely to want; one that cannot be is that of a cell that asks for it."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            pass


def see_own_packages():
    """Has what `pip` puts into the user's home found, as a Python that is started now would: the directory may not have been
    there when this process, or the one of which it is a copy, was started."""
    if not site.ENABLE_USER_SITE:
        return
    # By the home directory that it has here.
    site.USER_BASE = site.USER_SITE = None
    place = site.getusersitepackages()
    if place in sys.path or not os.path.isdir(place):
        return
    before = len(sys.path)
    site.addsitedir(place)
    added = sys.path[before:]
    del sys.path[before:]
    ends = ("site-packages", "dist-packages")
    at = next((number for number, path in enumerate(sys.path) if path.endswith(ends)), before)
    sys.path[at:at] = added
    importlib.invalidate_caches()


def run_cell(channel, shell, cell, code, variables, room):
    channel.begin(cell, room)
    channel.mend()
    INTERRUPTS.install()
    sys.stdout, sys.stderr = STREAMS
    INTERRUPTS.pending = False
    channel.send_now("count", str(shell.count + 1).encode())
    saved = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        os.environ[name] = value
    try:
        see_own_packages()
    except Exception:
        # A cell may have done anything to what this needs.
        pass
    PICTURES.begin()
    try:
        shell.run(code)
    finally:
        restore(saved)
    PICTURES.end(channel)
    if channel.is_child():
        # A copy of this process that a cell made and that has come to the end of its code.
        _exit(0)
    channel.end()


def serve(channel, shell):
    code, variables = [], {}
    while True:
        kind, cell, payload = channel.next()
        while SAVED:
            remove(SAVED.pop())
        if kind == "sync":
            code, variables = [], {}
            channel.unsent.append(("sync", cell, str(shell.count).encode()))
            channel.wake()
        elif kind == "code":
            code.append(payload)
        elif kind == "env":
            name, _, value = payload.decode("utf-8", "surrogateescape").partition("=")
            variables[name] = value
        elif kind == "import":
            load(payload.decode("utf-8", "replace").split())
            shell.warm()
        elif kind == "variable":
            # What a cell has set since is the cell's.
            if not shell.count:
                name, _, value = payload.decode("utf-8", "surrogateescape").partition("=")
                os.environ[name] = STARTED[name] = value
        elif kind == "part":
            if payload not in PARTS:
                exec(compile(payload, OURS, "exec"), globals())
                PARTS.append(payload)
        elif kind in ("save", "load"):
            try:
                globals()[f"{kind}_state"](channel, shell, cell, payload)
            except BaseException as error:
                # Something that it needs is what a cell put there.
                words = f"other\n{type(error).__name__}: {safe_text(error)}"
                channel.unsent.append(("refused", cell, words.encode("utf-8", "replace")[:CHUNK]))
                channel.wake()
        elif kind == "run":
            text = b"".join(code).decode("utf-8", "replace")
            room = int(payload.split()[0])
            taken, code, variables = variables, [], {}
            run_cell(channel, shell, cell, text, taken, room)


def prepare(gather):
    """What takes longest of a start, for a process of which copies are to go on with `main`.

    `gather` moves together what is run by what it is given.
    """
    before = dict(os.environ)
    # It has its descriptors and its thread when `main` begins.
    channel = Channel.__new__(Channel)
    shell = make_shell(channel)
    shell.warm(gather)
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return channel, shell, variables, streams(channel)


def streams(channel):
    """What cells write to, and what they read."""
    return Stream(channel, "stdout"), Stream(channel, "stderr"), open(0, closefd=False)


def main(prepared=None):
    global STARTED, STREAMS
    if prepared is None:
        channel = Channel.__new__(Channel)
        prepared = channel, None, {}, streams(channel)
    channel, shell, variables, (output, errors, sys.stdin) = prepared
    # Found by cells, and not by what was loaded before them.
    channel.__init__()
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    STREAMS = output, errors
    sys.stdout, sys.stderr = STREAMS
    sys.argv = [""]
    try:
        if shell is None:
            shell = make_shell(channel)
        else:
            shell.settle_in()
    except BaseException:
        channel.complain()
        raise
    sys.path.insert(0, "")
    STARTED = dict(os.environ)
    channel_exit = os._exit

    def leave(status):
        if not channel.is_child():
            channel.settle(1.0)
        channel_exit(status)

    os._exit = leave
    while True:
        try:
            serve(channel, shell)
        except BaseException as error:
            # Raised by something that a cell left behind.
            if channel.is_child():
                _exit(1)
            if channel.cell != NOBODY:
                tell(channel, error)
                channel.end()


if __name__ == "offleash_driver":
    main()
