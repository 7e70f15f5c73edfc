import ctypes, errno, os, signal, struct, sys, time

arguments = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


def checked(result):
    """A result of the C library; an error becomes an exception."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def native(number):
    """The number that a call of x86-64 has on this processor; -1, which no call has, where there is none."""
    if NUMBERS is None or number < 0:
        return number
    low = number & 0xffffffff
    return NUMBERS.get(low, low) | number >> 32 << 32


def call(number, *values):
    """A system call by its number on x86-64."""
    ctypes.set_errno(0)
    number = native(number)
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return checked(libc.syscall(ctypes.c_long(number), *converted))


def c(name, *values):
    """A function of the C library by its name."""
    ctypes.set_errno(0)
    return checked(getattr(libc, name)(*values))


def explain(failure):
    if isinstance(failure, OSError) and failure.errno is not None:
        return errno.errorcode.get(failure.errno, str(failure.errno))
    return ascii(type(failure).__name__ + " " + str(failure))


def report(name, verdict, detail):
    sys.stdout.write("@\t%s\t%s\t%s\n" % (name, verdict, detail))
    sys.stdout.flush()


def attempt(name, action, *values):
    """Makes an attempt and says what came of it; what the kernel refuses, and what is not there, is a refusal."""
    try:
        report(name, "done", ascii(action(*values)))
    except (OSError, RuntimeError, MemoryError) as failure:
        report(name, "refused", explain(failure))
    except BaseException as failure:
        # A mistake in the attack must not pass for a refusal.
        report(name, "broken", explain(failure))


def in_child(action, *values):
    """Does something in a process of its own, whose state is gone afterwards."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            try:
                answer = "+" + ascii(action(*values))
            except OSError as failure:
                answer = "-%d" % (failure.errno or 0)
            except RuntimeError as failure:
                answer = "!" + explain(failure)
            except BaseException as failure:
                answer = "?" + explain(failure)
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = b""
    while piece := os.read(reader, 65536):
        answer += piece
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise RuntimeError("killed by " + signal.Signals(os.WTERMSIG(status)).name)
    answer = answer.decode()
    if answer.startswith("+"):
        return answer[1:]
    if answer.startswith("-"):
        raise OSError(int(answer[1:]), os.strerror(int(answer[1:])))
    if answer.startswith("?"):
        raise ValueError(answer[1:])
    raise RuntimeError(answer[1:] or "ended without an answer")


def read(path, size=4096):
    with open(path, "rb", buffering=0) as file:
        return file.read(size)


def write(path, contents=b"pwned"):
    with open(path, "wb") as file:
        file.write(contents)


def opened(path, flags):
    """Opens and closes; proves a right without using it."""
    os.close(os.open(path, flags | os.O_CLOEXEC))
    return path


def must(condition, why):
    if not condition:
        raise RuntimeError(why)
    return condition


def end():
    report("", "end", "")
