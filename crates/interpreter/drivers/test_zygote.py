"""Tests of how `zygote.py` forks, and of where things lie in its memory. That its copies are in a sandbox is tested where there are sandboxes."""

import ctypes
import os
import subprocess
import sys
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

# Copies are children of the one that forks when what lies between has ended.
BEGIN = """
    import os, sys, types
    zygote = {"__name__": "zygote"}
    for part in ("places.py", "zygote.py"):
        with open(os.path.join(sys.argv[1], part)) as file:
            exec(compile(file.read(), part, "exec"), zygote)
    zygote["prctl"](zygote["PR_SET_CHILD_SUBREAPER"], 1)
    between = zygote["Between"]() if sys.argv[2] == "between" else None
    fork_between = zygote["Zygote"].fork_between
    def fork(work):
        fork_between(types.SimpleNamespace(between=between), work)
"""
WAYS = ("between", "twice")


class Forks(unittest.TestCase):
    def run_with(self, way, code):
        """What code prints that forks in this way."""
        command = [sys.executable, "-B", "-c", textwrap.dedent(BEGIN) + textwrap.dedent(code)]
        made = subprocess.run([*command, HERE, way], capture_output=True, text=True, timeout=60)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        return made.stdout

    def test_a_copy_goes_on_alone_and_changes_nothing_here(self):
        code = """
            import threading
            held, (hears, told) = [1], os.pipe()
            def work():
                made = os.fork()
                if made:
                    return os.write(told, str(made).encode())
                try:
                    held.append(2)
                    deep = lambda left: left and deep(left - 1)
                    deep(900)
                    thread = threading.Thread(target=held.append, args=(3,))
                    thread.start()
                    thread.join()
                    os._exit(len(held))
                finally:
                    os._exit(99)
            for _ in range(3):
                fork(work)
                made = int(os.read(hears, 16))
                print(os.waitpid(made, 0)[1] >> 8, held)
        """
        for way in WAYS:
            self.assertEqual(self.run_with(way, code), "3 [1]\n" * 3, way)

    def test_what_lies_between_is_gone_and_leaves_nothing(self):
        code = """
            before = set(os.listdir("/proc/self/fd"))
            fork(lambda: os.open("/dev/null", os.O_RDONLY))
            print(set(os.listdir("/proc/self/fd")) == before)
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                print("no child")
            print(zygote["prctl"](zygote["PR_GET_DUMPABLE"]))
        """
        for way in WAYS:
            self.assertEqual(self.run_with(way, code), "True\nno child\n1\n", way)

    def test_what_a_copy_writes_to_is_found_and_is_its_own_before_it_writes(self):
        code = """
            import ctypes, mmap, struct, time
            page, count = mmap.PAGESIZE, 64
            held = mmap.mmap(-1, page * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            held.write(b"x" * (page * count))
            begin = ctypes.addressof(ctypes.c_char.from_buffer(held))
            # Neither together with what lies beside it, nor alone.
            written = [3, 4, 5, 17, 40, 41]
            def work(told):
                for number in written:
                    held[number * page + 7] = 1
                os.write(told, b"here")
                time.sleep(1000)
            places = zygote["written_by"](work, b"here")
            found = []
            for at, size in zip(places[::2], places[1::2]):
                if begin <= at < begin + page * count:
                    found.append(((at - begin) // page, size // page))
            print(found, len(places) > 6, flush=True)
            hears, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                zygote["populate"](places)
                with open("/proc/self/pagemap", "rb") as pagemap:
                    pagemap.seek(begin // page * 8)
                    pages = struct.unpack(f"{count}Q", pagemap.read(8 * count))
                own = [number for number, one in enumerate(pages) if one >> 56 & 1]
                print(own, held[:] == b"x" * (page * count), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            # One that says nothing is no example.
            print(len(zygote["written_by"](lambda told: None, b"here")))
        """
        told = "[(3, 3), (17, 1), (40, 2)] True\n[3, 4, 5, 17, 40, 41] True\n0\n"
        self.assertEqual(self.run_with("between", code), told)

    def test_a_copy_is_in_its_group_before_it_has_pages_of_its_own(self):
        code = """
            import socket
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            hears, entrance = os.pipe()
            os.set_blocking(hears, False)
            said = []
            def populate(places):
                said.append(("populates", places, os.read(hears, 16)))
            def take_order(supervisor):
                said.append("takes the order")
                raise ValueError("enough")
            def failure(error):
                return repr((said, error)).encode()
            zygote.update(populate=populate, take_order=take_order, failure=failure)
            seeds = types.SimpleNamespace(sow=lambda: None)
            socket.send_fds(ours, [b"group"], [entrance, entrance])
            os.close(entrance)
            if os.fork() == 0:
                zygote["copy"](theirs, b"", seeds, "places", None)
            os.wait()
            print(ours.recv(20).decode())
            print(ours.recv(200).decode())
        """
        told = "waiting\n([('populates', 'places', b'00'), 'takes the order'], ValueError('enough'))\n"
        self.assertEqual(self.run_with("between", code), told)

    def test_nobody_may_trace_a_copy_until_all_is_taken_on(self):
        code = """
            import socket
            get = lambda: zygote["prctl"](zygote["PR_GET_DUMPABLE"])
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            before = get()
            def setns(*_):
                theirs.send(b"enters %d" % get())
                return 0
            def filter_calls(_):
                theirs.send(b"filters %d" % get())
                return os.dup(0)
            def drop_capabilities():
                # What has none may drop none.
                theirs.send(b"drops %d" % get())
            real = zygote["HELD"]
            def work():
                zygote["HELD"] = types.SimpleNamespace(setns=setns)
                zygote.update(filter_calls=filter_calls, drop_capabilities=drop_capabilities)
                try:
                    if zygote["begin_in"]((0, 0)):
                        return
                    order = zygote["Order"](
                        b"uid %d\\ngid %d\\nruleset 0\\nfilter " % (os.getuid(), os.getgid()),
                        [0, 0, 0, 0, 0, 0, 1, 2],
                    )
                    zygote["take_on"](order, theirs)
                    theirs.send(b"taken on %d" % get())
                    os._exit(0)
                except BaseException as error:
                    theirs.send(repr(error).encode())
                    os._exit(1)
            fork(work)
            zygote["HELD"] = real
            theirs.close()
            while said := ours.recv(200):
                print(said.decode())
            print(os.waitpid(-1, 0)[1], get() == before)
        """
        told = "enters 0\n" * 7 + "drops 0\nfilters 0\nentered\nbare\ntaken on 1\n0 True\n"
        for way in WAYS:
            self.assertEqual(self.run_with(way, code), told, way)


PLACES = """
    import os, sys
    places = {"__name__": "places"}
    with open(os.path.join(sys.argv[1], "places.py")) as file:
        exec(compile(file.read(), "places.py", "exec"), places)
    def pages(things):
        return len({id(one) // 4096 for one in things})
"""


class Places(unittest.TestCase):
    def run_with(self, code):
        """What code prints that has the zygote's functions, and what it complains of."""
        command = [sys.executable, "-B", "-c", textwrap.dedent(PLACES) + textwrap.dedent(code)]
        made = subprocess.run([*command, HERE], capture_output=True, text=True, timeout=60)
        self.assertEqual(made.returncode, 0, made.stderr)
        return made.stdout, made.stderr

    def test_what_is_made_when_holes_are_filled_lies_together(self):
        # Others are left as they are.
        if not hasattr(sys, "_debugmallocstats") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
            self.skipTest("this Python or its C library does not say where it has room")
        code = """
            for size in (100, 900):
                held = [bytes(size) for _ in range(100_000)]
                del held[::50]
                before = pages([bytes(size) for _ in range(500)])
                places["fill_holes"]()
                after = pages([bytes(size) for _ in range(500)])
                least = 500 * size // 4096
                print(before > 3 * least, after < 2 * least)
        """
        self.assertEqual(self.run_with(code), ("True True\n" * 2, ""))

    def test_code_that_ran_lies_together_and_does_what_it_did(self):
        code = """
            made, others = [], []
            for number in range(300):
                space = {}
                text = f"def work(a):\\n b = {number}\\n return [a + b + c for c in range(2)], lambda: a * b\\n"
                exec(compile(text, "some", "exec"), space)
                made.append(space["work"])
                others.append([compile(text, "other", "exec") for _ in range(20)])
            def work():
                for one in made:
                    one(1)[1]()
            known = [one.__code__ for one in made]
            places["gather"](work)
            print(pages([one.__code__ for one in made]) < pages(known) / 2)
            within = lambda code: {id(one) for one in code.co_consts if hasattr(one, "co_code")}
            print(any(one.__code__ is code or within(one.__code__) & within(code) for one, code in zip(made, known)))
            print([(one(2)[0], one(2)[1]()) for one in made] == [([2 + n, 3 + n], 2 * n) for n in range(300)])
        """
        self.assertEqual(self.run_with(code), ("True\nFalse\nTrue\n", ""))

    def test_a_rehearsal_tells_names_and_leaves_nothing(self):
        code = """
            def prepare(gather):
                import wave
                def run():
                    return wave, "a_constant", missing_attribute if 0 else getattr(wave, "x", None)
                gather(run)
            before = os.listdir("/proc/self/fd")
            names = places["rehearse"](prepare)
            print({"run", "getattr", "a_constant", "missing_attribute"} <= set(names), "prepare" in names, "wave" in sys.modules)
            print(places["rehearse"](lambda gather: 1 / 0), os.listdir("/proc/self/fd") == before)
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                print("no child")
        """
        self.assertEqual(self.run_with(code), ("True False False\n[] True\nno child\n", ""))


if __name__ == "__main__":
    unittest.main()
