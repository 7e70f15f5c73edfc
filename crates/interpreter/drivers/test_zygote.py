"""Tests of how `zygote.py` forks. That its copies are in a sandbox is tested where there are sandboxes."""

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
    with open(sys.argv[1]) as file:
        exec(compile(file.read(), "zygote.py", "exec"), zygote)
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
        made = subprocess.run([*command, os.path.join(HERE, "zygote.py"), way], capture_output=True, text=True, timeout=60)
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
                    if zygote["enter"](0):
                        return
                    order = zygote["Order"](
                        b"uid %d\\ngid %d\\nruleset 0\\nentrances 0\\nfilter " % (os.getuid(), os.getgid()),
                        [0, 0, 1, 2],
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
        told = "enters 0\ndrops 0\nfilters 0\nentered\nbare\ntaken on 1\n0 True\n"
        for way in WAYS:
            self.assertEqual(self.run_with(way, code), told, way)


if __name__ == "__main__":
    unittest.main()
