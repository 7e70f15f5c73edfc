"""A zygote: a Python that has imported what contexts need, and of which copies are moved into sandboxes.

It runs in a sandbox of its own, above the user namespaces of those that it serves. A supervisor connects to its socket
and sends three messages (`isolation::process::door` is the other side): the namespaces of users and of process ids in which a
copy is to be; when there is one, the cgroup; and, when the sandbox is made, an order, as whom, under which limits and filters, with which variables, with
descriptors. The zygote takes the first one alone. A copy says with its pidfd that it is there, takes the order, enters what
is left of the sandbox, takes on all of it, says so with the listener of its system call filter, waits for the word
and then is the driver of a context as if it had been started there. The supervisor believes only what the kernel says of
the copy.

Making a copy takes longest, and needs nothing but those two namespaces: it is asked for while all else of the sandbox is made.

Every later copy finds what was ever in the zygote's memory, also what was freed there. So no byte that is a sandbox's own
is read by the zygote or by a process that has its memory: what they get of one are descriptors.

`places.py` comes before this, of the same program. Nothing but memory comes along: no descriptor, thread, variable, signal handler or state of a generator of random numbers.

Python 3.9 and newer.
"""

import _signal
import array
import ctypes
import gc
import os
import mmap
import platform
import random
import resource
import select
import signal
import socket
import ssl
import struct
import sys
import tempfile
import time
import traceback
import uuid

# Supervisors that ask in another way look for another name, and so find none.
SOCKET = "/tmp/.offleash-zygote-5"
# The message that comes with the descriptors, and the most bytes of an order.
ENTER, MOST_ORDER = b"enter", 256 * 1024
# What a copy is told before its order, with the entrances of its cgroup.
GROUP = b"group"
# What is imported ahead, where it is installed. Importing is all that is done with it.
AHEAD = (
    "IPython.core.interactiveshell",
    "numpy",
    "pandas",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
)
# About what objects of these take, in bytes.
AHEAD_SIZE = 44 * 1024 * 1024
# As the driver has it, because matplotlib reads it when it is imported.
BACKEND = "module://matplotlib_inline.backend_inline"
# How much of a frame is looked at at once, in bytes.
PIECE = 2048
# The shortest first line of those that are asked for here.
LEAST_HEAD = len(b"source %032d 0\n" % 0)
# Seconds for a message that follows at once.
PATIENCE = 10

DEFAULTED = int(signal.SIGCHLD), int(signal.SIGPIPE), int(signal.SIGTERM)
# The same, with the interpreter's lock held.
HELD = ctypes.PyDLL(None, use_errno=True)
PRCTL = HELD.prctl
PRCTL.argtypes = ctypes.c_int, *(ctypes.c_ulong,) * 4
SECCOMP = {"x86_64": 317, "aarch64": 277}.get(platform.machine())
LANDLOCK_RESTRICT_SELF = 446
# clone(2): user and pid, which a copy is made in; mount, network, ipc, uts and cgroup, which it enters.
MADE_IN = 0x10000000, 0x20000000
ENTERED = 0x00020000, 0x40000000, 0x08000000, 0x04000000, 0x02000000
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 4, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
PR_SCHED_CORE, PR_SCHED_CORE_CREATE, PR_SCHED_CORE_SHARE_FROM = 62, 1, 3
SECCOMP_SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5
EINVAL = 22
# The first question to a driver, and the beginning of its answer (`src/protocol.rs`).
QUESTION = b"sync %b 0\n" % (b"7" * 32)
ANSWER = QUESTION[:-2]
# clone(2), and the stack of a process that has this one's memory: as large as that of a process usually is.
CLONE_VM, CLONE_VFORK = 0x100, 0x4000
STACK = 8 * 1024 * 1024
MAP_NORESERVE, MAP_STACK = 0x4000, 0x20000
PR_GET_DUMPABLE = 3


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def prctl(option, one=0, two=0, three=0, four=0):
    return check(PRCTL(option, one, two, three, four))


def take(count):
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def take_head():
    """How much follows in the next frame; `src/protocol.rs` is the reference of frames."""
    line = take(LEAST_HEAD)
    while not line.endswith(b"\n"):
        line += take(1)
    return int(line.split()[2])


def take_frame():
    """The payload of the next frame."""
    return take(take_head())


def take_frame_if_other(known):
    """The payload of the next frame, unless it is that one; no page is written to for one that is."""
    size = take_head()
    if size != len(known):
        return take(size)
    for at in range(0, size, PIECE):
        piece = take(min(PIECE, size - at))
        if piece != known[at : at + PIECE]:
            return known[:at] + piece + take(size - at - len(piece))
    return None


def import_ahead(more):
    missing = object()
    backend = os.environ.get("MPLBACKEND", missing)
    os.environ["MPLBACKEND"] = BACKEND
    for name in (*AHEAD, *more):
        try:
            __import__(name)
        except Exception:
            # Not installed, or broken; whoever imports it in a cell hears of that.
            pass
    if backend is missing:
        del os.environ["MPLBACKEND"]
    else:
        os.environ["MPLBACKEND"] = backend


def load_driver(source):
    driver = {"__name__": "offleash_driver_ahead"}
    exec(compile(source, "<offleash>", "exec"), driver)
    driver["__name__"] = "offleash_driver"
    return driver


class Order:
    """What a copy is to take on. Only a copy reads it, in memory of its own."""

    def __init__(self, message, descriptors):
        self.env, self.limits, self.cpus = [], [], []
        self.cwd = b"/"
        for line in message.decode("ascii").split("\n"):
            word, *values = line.split(" ")
            if word == "env":
                self.env.append(tuple(bytes.fromhex(value) for value in values))
            elif word == "limit":
                self.limits.append((values[0], int(values[1])))
            elif word == "cpus":
                self.cpus = [int(value) for value in values]
            elif word in ("cwd", "filter"):
                setattr(self, word, bytes.fromhex(values[0]))
            else:
                setattr(self, word, int(values[0]))
        count = len(ENTERED)
        self.namespaces, self.streams, rest = descriptors[:count], descriptors[count : count + 3], descriptors[count + 3 :]
        self.landlock = rest.pop(0) if self.ruleset else None


def begin_in(namespaces):
    """Has the children of this process, which is made for that, begin in namespaces of users and of process ids; answers the
    id of one, to which it is 0."""
    # `Between` gives the zygote's memory back what it had.
    prctl(PR_SET_DUMPABLE, 0)
    for namespace, kind in zip(namespaces, MADE_IN):
        check(HELD.setns(ctypes.c_int(namespace), ctypes.c_int(kind)))
    # A process changes its process ids only for its children.
    return os.fork()


def enter(namespaces):
    """Enters all else of the sandbox. Not by its first process, which is none that this one may look into."""
    for namespace, kind in zip(namespaces, ENTERED):
        check(HELD.setns(ctypes.c_int(namespace), ctypes.c_int(kind)))


class Between:
    """Runs what has to be done in a process between the zygote and a copy, which only its children are of use for.

    That process has the zygote's memory instead of a copy of it, and a stack of its own; the zygote stands still until
    it has ended. Making the one copy takes as long as all else together.
    """

    def __init__(self):
        rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        HELD.mmap.restype = ctypes.c_void_p
        place = HELD.mmap(None, ctypes.c_size_t(STACK), rights, kind | MAP_NORESERVE | MAP_STACK, -1, ctypes.c_long(0))
        if place == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "no memory for a stack")
        self.top = ctypes.c_void_p(place + STACK)
        self.call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.begin)
        self.work = None
        self.is_dumpable = prctl(PR_GET_DUMPABLE) == 1

    def begin(self, _):
        self.work()
        return 0

    def run(self, work):
        """Has it run `work`, which raises nothing; a copy never comes back from it."""
        self.work = work
        try:
            pid = HELD.clone(self.call, self.top, ctypes.c_int(CLONE_VM | CLONE_VFORK | signal.SIGCHLD), None)
            if pid < 0:
                raise OSError(ctypes.get_errno(), "there is no process for a copy")
            # What enters takes that away from the memory that it has.
            prctl(PR_SET_DUMPABLE, int(self.is_dumpable))
            os.waitpid(pid, 0)
        finally:
            self.work = None


def share_core():
    for command, pid, kind in ((PR_SCHED_CORE_SHARE_FROM, 1, 0), (PR_SCHED_CORE_CREATE, 0, 1)):
        try:
            return prctl(PR_SCHED_CORE, command, pid, kind, 0)
        except OSError:
            # On a processor without threads of its own there is nothing to share, or an older kernel.
            pass


def limit(name, value):
    number = getattr(resource, name)
    limits = resource.getrlimit(number)
    soft, hard = (value if now == resource.RLIM_INFINITY else min(now, value) for now in limits)
    if name == "RLIMIT_DATA":
        # The supervisor makes room for what is reserved.
        hard = limits[1]
    if name == "RLIMIT_CPU":
        # Warned of a second before.
        soft = max(1, min(soft, hard - 1))
    resource.setrlimit(number, (soft, hard))


def drop_capabilities():
    for number in range(64):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            break
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(LIBC.capset(header, (ctypes.c_uint32 * 6)()))
    prctl(PR_SET_NO_NEW_PRIVS, 1)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def filter_calls(instructions):
    """Takes the filter on; answers its listener."""
    program = Program(len(instructions) // 8, instructions)
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        result = LIBC.syscall(
            ctypes.c_long(SECCOMP),
            ctypes.c_ulong(SECCOMP_SET_MODE_FILTER),
            ctypes.c_ulong(flags),
            ctypes.byref(program),
        )
        if result >= 0 or ctypes.get_errno() != EINVAL:
            break
    return check(result)


def take_on(order, supervisor):
    """Takes on what every process of the sandbox has, in the order in which each step still has what it needs.

    Until all of it is, and the filter's listener is gone from here, no process of the sandbox may trace this one or write to
    its memory: it is not dumpable since before it was made, and where there is no Landlock nothing else is in their way.
    """
    enter(order.namespaces)
    try:
        os.setgroups([])
    except PermissionError:
        # Nothing is mapped but our own; the groups that stay are nobody's here.
        pass
    os.setresgid(order.gid, order.gid, order.gid)
    os.setresuid(order.uid, order.uid, order.uid)
    # That sets it to what `fs.suid_dumpable` says.
    prctl(PR_SET_DUMPABLE, 0)
    os.setsid()
    os.umask(0o022)
    share_core()
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    for name, value in order.limits:
        limit(name, value)
    drop_capabilities()
    if order.landlock is not None:
        check(LIBC.syscall(ctypes.c_long(LANDLOCK_RESTRICT_SELF), ctypes.c_int(order.landlock), ctypes.c_uint32(0)))
    for number, stream in enumerate(order.streams):
        os.dup2(stream, number)
    os.chdir(order.cwd)
    kept = supervisor.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 65536)
    listener = filter_calls(order.filter)
    socket.send_fds(supervisor, [b"entered"], [listener])
    os.close(listener)
    # As any program that has been started.
    prctl(PR_SET_DUMPABLE, 1)
    supervisor.send(b"bare")


def say_it_waits(supervisor):
    own = os.pidfd_open(os.getpid())
    socket.send_fds(supervisor, [b"waiting"], [own])
    os.close(own)


def take_message(supervisor, most):
    # It may take longer than anybody who asks has patience for: then the sandbox is still being made, or no code is run there.
    waiting = select.poll()
    waiting.register(supervisor, select.POLLIN)
    waiting.poll()
    message, descriptors, _, _ = socket.recv_fds(supervisor, most, 64)
    if not message:
        os._exit(0)
    return message, list(descriptors)


def enter_group(supervisor):
    """Enters the cgroup of the sandbox, so that what is written to from now on is counted there."""
    message, entrances = take_message(supervisor, len(GROUP))
    if message != GROUP:
        raise ValueError("what came is no group to enter")
    for entrance in entrances:
        try:
            os.write(entrance, b"0")
        except OSError:
            # The supervisor does it, or finds that it was not done.
            pass
        os.close(entrance)


def take_order(supervisor):
    return Order(*take_message(supervisor, MOST_ORDER))


def await_word(supervisor):
    """Waits until the supervisor has found that this process is what it is to be."""
    if supervisor.recv(16) != b"go":
        os._exit(0)
    supervisor.close()


class Seeds:
    """Has generators of random numbers begin anew, with what nobody else has."""

    # Words of the state of numpy's own generator.
    WORDS = 624

    def __init__(self):
        self.numpy, self.place = sys.modules.get("numpy"), None
        # What that makes when it is done first is megabytes, which copies share.
        self.pid = os.getpid()
        self.sow()
        if self.numpy is not None:
            self.find_place()

    def find_place(self):
        """Finds where numpy keeps that state: to have it make one out of a seed takes it a hundred times as long."""
        try:
            place = self.numpy.random.mtrand._rand._bit_generator.ctypes.state_address
            key, position = self.numpy.random.get_state()[1:3]
            there = ctypes.string_at(place, 4 * self.WORDS + 4)
            if there == struct.pack(f"{self.WORDS}Ii", *key.tolist(), position):
                self.place = place
        except Exception:
            # Another release may have it elsewhere.
            pass

    def sow(self):
        random.seed()
        # It asks for new seeds when its process has another id than when it began, which this one may have had in its
        # namespace. What gives numbers takes its seed from what this is given to, and there is none yet in a process
        # that has only called this.
        if os.getpid() == self.pid:
            ssl.RAND_add(os.urandom(48), 48.0)
        if self.place is not None:
            # All of it is used up, so that it makes new ones of them first.
            state = os.urandom(4 * self.WORDS) + struct.pack("i", self.WORDS)
            ctypes.memmove(self.place, state, len(state))
        elif self.numpy is not None:
            self.numpy.random.seed()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.seed()


def forget(order):
    """Makes this process one that nobody could tell from another that was just started, but by what it has imported."""
    given = dict(order.env)
    for name in [name for name in os.environb if name not in given]:
        del os.environb[name]
    for name, value in given.items():
        # Most are what they were.
        if os.environb.get(name) != value:
            os.environb[name] = value
    uuid._last_timestamp = uuid._node = None
    tempfile._name_sequence = tempfile.tempdir = None
    time.tzset()


def become_driver(source, serve):
    gc.enable()
    asked = take_frame_if_other(source)
    if asked is None:
        serve()
    else:
        exec(compile(asked, "<offleash>", "exec"), {"__name__": "offleash_driver"})


def try_out(told, seeds, serve):
    """What a copy does until it waits for its first cell, which `told` hears of."""
    hears, tells = os.pipe()
    os.write(tells, QUESTION)
    signal.set_wakeup_fd(-1)
    os.dup2(hears, 0)
    os.dup2(told, 1)
    seeds.sow()
    gc.enable()
    serve()


def copy(supervisor, source, seeds, places, serve):
    """What a copy of the zygote does; does not return."""
    code = 125
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULTED:
            # Without the names that `signal` has for what comes back.
            _signal.signal(number, _signal.SIG_DFL)
        say_it_waits(supervisor)
        enter_group(supervisor)
        # While the sandbox is made.
        populate(places)
        seeds.sow()
        order = take_order(supervisor)
        take_on(order, supervisor)
        # While it is looked at.
        forget(order)
        await_word(supervisor)
    except BaseException as error:
        try:
            supervisor.send(failure(error))
        finally:
            os._exit(code)
    try:
        become_driver(source, serve)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def failure(error):
    return f"failed: {type(error).__name__}: {error}".encode()[:900]


class Zygote:
    def __init__(self, source, driver, prepared, seeds):
        self.source, self.driver, self.prepared, self.seeds = source, driver, prepared, seeds
        self.running = {}
        # What copies write to.
        self.places = array.array("Q")
        self.is_closed = False
        # From 3.14 on Python tells by addresses how much there is left of the stack that it began with.
        self.between = Between() if sys.version_info < (3, 14) else None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.unlink(SOCKET)
        except FileNotFoundError:
            pass
        self.listener.bind(SOCKET)
        # Nobody but the supervisor sees this directory.
        os.chmod(SOCKET, 0o777)
        self.listener.listen(128)
        # Copies become children of this process when the one between ends.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.woken, wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self):
        waiting = select.poll()
        for descriptor in (0, self.listener.fileno(), self.woken):
            waiting.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if 0 in ready and not os.read(0, 4096):
                # Nobody needs it any more; its copies go on, and their ends are told as before.
                for descriptor in (0, self.listener.fileno()):
                    waiting.unregister(descriptor)
                self.listener.close()
                os.unlink(SOCKET)
                self.is_closed = True
            if self.woken in ready:
                try:
                    os.read(self.woken, 4096)
                except BlockingIOError:
                    pass
            self.reap()
            if self.is_closed:
                if not self.running:
                    os._exit(0)
            elif self.listener.fileno() in ready:
                self.hear()

    def hear(self):
        supervisor, _ = self.listener.accept()
        supervisor.settimeout(PATIENCE)
        descriptors = []
        try:
            # Not a byte more, whatever was sent.
            message, descriptors, _, _ = socket.recv_fds(supervisor, len(ENTER), 64)
            descriptors = list(descriptors)
            if message != ENTER or len(descriptors) != len(MADE_IN):
                raise ValueError("what came is no sandbox to enter")
            self.fork(descriptors, supervisor)
        except Exception as error:
            try:
                supervisor.send(failure(error))
            except OSError:
                pass
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def fork(self, descriptors, supervisor):
        hears, told = os.pipe()
        try:
            self.fork_between(lambda: self.make(descriptors, supervisor, told))
        finally:
            os.close(told)
            number = os.read(hears, 4)
            os.close(hears)
        if len(number) == 4:
            self.running[struct.unpack("i", number)[0]] = supervisor

    def fork_between(self, work):
        if self.between is not None:
            self.between.run(work)
            return
        # What is to be done in Python behind a fork is done behind the second one.
        pid = HELD.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(0)
        if pid < 0:
            raise OSError("there is no process for a copy")
        os.waitpid(pid, 0)

    def make(self, descriptors, supervisor, told):
        """Makes a copy in the sandbox, and says which it is. Done by a process that ends then."""
        try:
            made = begin_in(descriptors)
        except BaseException as error:
            supervisor.send(failure(error))
            return
        if made == 0:
            copy(supervisor, self.source, self.seeds, self.places, self.be_driver)
        os.write(told, struct.pack("i", made))

    def be_driver(self):
        self.driver["main"](self.prepared)

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            supervisor = self.running.pop(pid, None)
            if supervisor is None:
                continue
            how = f"signaled {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exited {os.WEXITSTATUS(status)}"
            try:
                supervisor.send(how.encode())
            except OSError:
                # The sandbox has gone before it.
                pass
            supervisor.close()


def main():
    if SECCOMP is None:
        raise SystemExit("no numbers of system calls are known for this machine")
    source, more = take_frame(), take_frame().decode().split()
    names = [sys.intern(name) for name in rehearse(lambda gather: load_driver(source)["prepare"](gather))]
    reserved = reserve(AHEAD_SIZE)
    driver = load_driver(source)
    import_ahead(more)
    gc.collect()
    fill_holes()
    zygote = Zygote(source, driver, driver["prepare"](gather), Seeds())
    del reserved, names
    gc.collect()
    fill_holes()
    # So that looking for garbage in a copy does not write to all that was imported.
    gc.disable()
    gc.freeze()
    collapse()
    zygote.places = written_by(lambda told: try_out(told, zygote.seeds, zygote.be_driver), ANSWER)
    os.write(1, b"ready\n")
    zygote.serve()


if __name__ == "offleash_driver":
    main()
