"""Where things lie in a zygote's memory, of which its copies write to as few pages as may be.

A page that a copy writes to is copied for it, and Python writes to whatever it only looks at: it counts who holds a thing
beside the thing. So what copies use lies together. `zygote.py`, which the host puts behind this, says when.

Python 3.9 and newer.
"""

import array
import ctypes
import gc
import mmap
import os
import select
import signal
import sys
import types

LIBC = ctypes.CDLL(None, use_errno=True)
# madvise(2), since Linux 6.1; and what one large page of a processor holds.
MADV_COLLAPSE, LARGE = 25, 2 * 1024 * 1024
# madvise(2), since Linux 5.14; and of each page what the kernel says of it (proc_pid_pagemap(5)): whether it is there, and
# whether nobody else has it.
MADV_POPULATE_WRITE, PAGE = 23, mmap.PAGESIZE
PRESENT, EXCLUSIVE = 1 << 63, 1 << 56
POPULATE = ctypes.PyDLL(None).madvise
POPULATE.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
PR_SET_PDEATHSIG = 1
# How long a copy that is tried out may say nothing, in milliseconds.
TRIES = 10_000
# What holds places that nothing is to be put in.
HELD_PLACES = []


def reserve(size):
    """Has memory for so many bytes of small objects in one place, as long as what this answers is held.

    Python maps it a megabyte at a time wherever there is room, which is between libraries, where no large page fits.
    """
    # With its head it takes 480, of which a kilobyte has two and Python keeps no others.
    piece = 440
    pieces = [None] * (size // 512)
    for number in range(len(pieces)):
        pieces[number] = bytes(piece)
    # One of each few keeps all of it; the others' places are what is to be had.
    return pieces[::1024]


def fill_holes():
    """Has all that is made from here on lie together, instead of in what was freed between other things.

    A copy writes to what it makes, and a page that it writes to is its own from then on.
    """
    try:
        for size, count in free_blocks():
            HELD_PLACES.append([make_block(size, number) for number in range(count)])
    except (AttributeError, ValueError, OSError):
        # Another Python may keep its memory in another way, or not say how.
        pass
    try:
        fill_heap()
    except AttributeError:
        # Nor is every library that of GNU.
        pass


def free_blocks():
    """The sizes of Python's small objects, and how many more of each have a place beside others."""
    said = os.memfd_create("said", os.MFD_CLOEXEC)
    errors = os.dup(2)
    try:
        os.dup2(said, 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(errors, 2)
        lines = os.pread(said, 1024 * 1024, 0).decode().split("\n")
    finally:
        os.close(said)
        os.close(errors)
    # Class, size, pools, blocks in use, and those that are not.
    rows = [line.split() for line in lines]
    return [(int(row[1]), int(row[4])) for row in rows if len(row) == 5 and "".join(row).isdigit()]


def make_block(size, number):
    """Something of that size, of which there is only one."""
    if size < 32:
        return object()
    # What `bytes` has beside its bytes is 33; a number takes 28.
    return number + 1000 if size == 32 else bytes(size - 33)


def fill_heap():
    """Takes what is free between other things of the C library's; nobody gives it back."""
    LIBC.sbrk.restype = LIBC.malloc.restype = ctypes.c_void_p
    LIBC.mallinfo2.restype = HeapUse
    for size in (*(1 << power for power in range(16, 10, -1)), *range(1016, 23, -16)):
        # What follows the last that is used is free as a whole.
        rest = LIBC.sbrk(0) - LIBC.mallinfo2().keepcost
        while True:
            place = LIBC.malloc(ctypes.c_size_t(size))
            if place is None or place >= rest:
                LIBC.free(ctypes.c_void_p(place))
                break


class HeapUse(ctypes.Structure):
    """mallinfo(3)"""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def rehearse(prepare):
    """The names in all code that runs in what `prepare` has gathered, as found out by another process, which ends then.

    Python keeps a name once, where it was first seen. Who has those made first has them lie together.
    """
    hears, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hears)
            names = {}
            prepare(lambda work: names.update(dict.fromkeys(names_of(codes_of(work)))))
            with open(tells, "wb") as told:
                told.write("\0".join(names).encode("utf-8", "surrogatepass"))
        finally:
            # Whatever went wrong does so again where it is to be, and is told there.
            os._exit(0)
    os.close(tells)
    with open(hears, "rb") as heard:
        names = heard.read().decode("utf-8", "surrogatepass").split("\0")
    os.waitpid(pid, 0)
    return [name for name in names if name]


def codes_of(work):
    """All code that `work` runs."""
    ran = {}
    sys.setprofile(lambda frame, *_: ran.setdefault(id(frame.f_code), frame.f_code))
    try:
        work()
    finally:
        sys.setprofile(None)
    return ran.values()


def names_of(codes):
    """What Python holds but once of the strings in code, that of the functions within included."""
    for code in codes:
        yield from (code.co_name, getattr(code, "co_qualname", code.co_name), *code.co_names)
        yield from (one for one in code.co_consts if type(one) is str and one.isidentifier())
        yield from names_of(one for one in code.co_consts if type(one) is types.CodeType)


def move(code, ran):
    """The same code in another place, with that within which ran."""
    within = [move(one, ran) if type(one) is types.CodeType and id(one) in ran else one for one in code.co_consts]
    return code.replace(co_consts=tuple(within))


def gather(work):
    """Has all code that `work` runs lie together: a copy writes to every function that it calls, and so by fewer pages."""
    ran = {id(code): code for code in codes_of(work)}
    functions = [one for one in gc.get_objects() if type(one) is types.FunctionType]
    functions = [one for one in functions if id(one.__code__) in ran or one.__module__ == "offleash_driver"]
    # What was there before keeps its place until all have another one.
    before = [one.__code__ for one in functions]
    fill_holes()
    moved = [move(code, ran) for code in before]
    for one, code in zip(functions, moved):
        one.__code__ = code
    # Python keeps the names of attributes that were looked up last. A copy that looks up another one writes to that which
    # was kept in its place, which lies anywhere.
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()


def collapse():
    """Has large pages hold this process's memory: a copy is made by page, and these are hundreds times fewer.

    What a copy then writes to is copied by small pages, as before.
    """
    with open("/proc/self/maps") as maps:
        areas = [line.split() for line in maps]
    for place, rights, _, _, _, *name in areas:
        # Of no file, and not a stack.
        if rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(number, 16) for number in place.split("-"))
        begin, end = -(-begin // LARGE) * LARGE, end // LARGE * LARGE
        # One by one: a large page with nothing in it is refused, and so is the whole of which it is a part.
        for page in range(begin, end, LARGE):
            # Where it cannot be had, copies take as long as they do.
            LIBC.madvise(ctypes.c_void_p(page), ctypes.c_size_t(LARGE), MADV_COLLAPSE)


def private_areas():
    """Where this process has memory that it writes to and shares with nobody but its copies."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    return [tuple(int(number, 16) for number in line[0].split("-")) for line in lines if line[1] == "rw-p"]


def own_pages(pagemap, begin, end):
    """Of each page there, whether it is that process's alone."""
    pagemap.seek(begin // PAGE * 8)
    pages = pagemap.read((end - begin) // PAGE * 8)
    return [page & PRESENT and page & EXCLUSIVE for page in memoryview(pages[: len(pages) // 8 * 8]).cast("Q")]


def share():
    """Has all memory that this process has now shared with another one as long as both live, whoever else writes to it."""
    maker = os.getpid()
    if os.fork():
        return
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.closerange(0, 65536)
    while os.getppid() == maker:
        signal.pause()
    os._exit(0)


def written_by(work, answer):
    """The places of this process's memory, as numbers of which each second is how many bytes there are, that a copy of it has
    written to when it says `answer`; `work` is what the copy does, and is given what it says that to.

    They are nearly the same in all copies. More would be memory that sandboxes in which no cell runs have for nothing.
    """
    areas, places = private_areas(), array.array("Q")
    hears, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            share()
            work(told)
        finally:
            os._exit(0)
    os.close(told)
    try:
        waiting = select.poll()
        waiting.register(hears, select.POLLIN)
        said = b""
        while answer not in said:
            piece = os.read(hears, 65536) if waiting.poll(TRIES) else b""
            if not piece:
                return places
            said += piece
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
            for begin, end in areas:
                pages = zip(range(begin, end, PAGE), own_pages(pagemap, begin, end))
                for at in [at for at, is_own in pages if is_own]:
                    if places and places[-2] + places[-1] == at:
                        places[-1] += PAGE
                    else:
                        places.extend((at, PAGE))
    except OSError:
        # Then copies find out themselves.
        pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(hears)
    return places


def populate(places):
    """Has this process pages of its own in these places, which it would have when it writes there, all at once."""
    for number in range(0, len(places), 2):
        if POPULATE(places[number], places[number + 1], MADV_POPULATE_WRITE) < 0:
            # An older kernel, or something that lies there no more.
            return
