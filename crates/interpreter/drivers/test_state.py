"""Tests of `state.py`: what cells of one Python context left is found by those of another."""

import os
import threading
import time
import unittest

import test_python
from carrying import Carrying
from harness import HERE
from test_python import has

# As the host gives it.
PART = b""
for _half in ("objects.py", "state.py"):
    with open(os.path.join(HERE, _half), "rb") as _file:
        PART += _file.read()

# Of objects whatever they are: which of them is which, and what is in each.
SHAPE = '''
def shape_of(root):
    import types
    seen, lines, waiting = {}, [], [root]
    def number(one):
        if isinstance(one, (int, float, str, bytes, type(None))):
            return repr(one)
        if id(one) not in seen:
            seen[id(one)] = len(seen)
            waiting.append(one)
        return f"#{seen[id(one)]}"
    number(root)
    waiting = [root]
    for one in waiting:
        kind = type(one)
        if isinstance(one, dict):
            parts = [f"{number(key)}:{number(value)}" for key, value in one.items()]
        elif isinstance(one, (set, frozenset)):
            parts = sorted(map(repr, one))
        elif isinstance(one, (list, tuple)):
            parts = [number(each) for each in one]
        elif isinstance(one, types.FunctionType):
            cells = [number(cell.cell_contents) for cell in one.__closure__ or ()]
            parts = [one.__qualname__, number(one.__defaults__), number(one.__dict__), *cells]
        elif isinstance(one, type):
            parts = [one.__qualname__, *(base.__qualname__ for base in one.__mro__)]
        else:
            parts = [number(kind), number(vars(one))]
        lines.append(f"#{seen[id(one)]} {kind.__name__} {' '.join(parts)}")
    return "\\n".join(lines)
'''

# Objects that hold each other in ways that nobody chose.
GRAPH = '''
import random as _random
def graph(seed):
    dice = _random.Random(seed)
    class Thing:
        pass
    class Other(Thing):
        def me(self):
            return super().__init__, __class__
    made = [Thing, Other]
    def any_one():
        return dice.choice(made) if dice.random() < 0.7 else dice.choice([7, "text", 2.5, None, b"x", 10**30])
    for _ in range(dice.randrange(5, 60)):
        kind = dice.randrange(8)
        if kind == 0:
            one = [any_one() for _ in range(dice.randrange(4))]
        elif kind == 1:
            one = {dice.choice(["a", "b", 3, ("k", 1)]): any_one() for _ in range(dice.randrange(4))}
        elif kind == 2:
            one = tuple(any_one() for _ in range(dice.randrange(4)))
        elif kind == 3:
            one = {dice.randrange(9) for _ in range(4)}
        elif kind in (4, 5):
            one = dice.choice([Thing, Other])()
        elif kind == 6:
            held, other = any_one(), any_one()
            def one(x, y=any_one()):
                nonlocal held
                held = x
                return held, other
            one.tag = any_one()
        else:
            held = None
            def one():
                return held
            # A function that finds itself.
            held = one
        made.append(one)
    for _ in range(len(made)):
        one, other = dice.choice(made), dice.choice(made)
        if isinstance(one, list):
            one.append(other)
        elif type(one) is dict:
            one[dice.randrange(100)] = other
        elif isinstance(one, Thing):
            setattr(one, dice.choice("pqr"), other)
    return made
'''


class Contexts(Carrying, test_python.DriverTest):
    """Without IPython."""

    part = PART

    def another(self):
        return test_python.Driver(plain=self.plain)

    def goes_on(self):
        self.assertEqual(self.run_cell("6 * 7").text, "42")

    def holds(self, driver, code):
        cell = driver.run(code)
        self.assertEqual(cell.errors, [], code)
        return cell

    def test_variables_functions_and_classes_are_those_of_one_context(self):
        other = self.carry(
            "import os.path as paths, collections.abc\nshared = [1]; a = {'s': shared}; b = (shared,)\ncount = 0\n"
            "def bump():\n    global count\n    count += 1\n    return count\n"
            "def outer():\n    n = 0\n    def add():\n        nonlocal n\n        n += 1\n        return n\n    return add, lambda: n\n"
            "add, get = outer(); add()\nchain = None\nfor _ in range(3000): chain = [chain]\nloop = []; loop.append(loop)",
            "class A:\n    kept = shared\n    def who(self): return __class__\nclass B(A):\n    __slots__ = ('q',)\n"
            "    def who(self): return super().who()\n    @property\n    def five(self): return 5\nb1 = B(); b1.q = b1",
        )
        self.holds(
            other,
            "assert a['s'] is b[0] is shared is A.kept\nassert bump() == 1 and count == 1\nassert add() == 2 and get() == 2\n"
            "assert b1.q is b1 and type(b1) is B and b1.who() is A and b1.five == 5 and B.__mro__ == (B, A, object)\n"
            "depth = 0\nwhile chain: chain = chain[0]; depth += 1\nassert depth == 3000\nassert loop[0] is loop\n"
            "assert paths.join('a', 'b') == 'a/b' and collections.abc.Sized\n"
            "import inspect\nassert 'nonlocal' in inspect.getsource(outer)",
        )
        # Neither sees the other from here on.
        self.assertEqual(self.run_cell("count, get()").text, "(0, 1)")

    def test_what_libraries_make_of_classes_is_carried(self):
        other = self.carry(
            "import abc, collections, dataclasses, enum, functools, typing\n@dataclasses.dataclass\nclass D:\n    a: int\n"
            "    b: list = dataclasses.field(default_factory=list)\nclass E(enum.Enum):\n    RED = 1\n    def hi(self): return self.name\n"
            "class F(enum.IntFlag):\n    R = 1\n    W = 2\nclass Abs(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n"
            "Abs.register(int)\nNT = collections.namedtuple('NT', 'a b')\nclass TN(typing.NamedTuple):\n    a: int\n    b: str = 'x'\n"
            "T = typing.TypeVar('T')\nclass G(typing.Generic[T]): pass\n"
            "@functools.lru_cache(maxsize=10)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
            "told = []\nclass Base:\n    def __init_subclass__(cls, *, tag): told.append(tag)\nclass Sub(Base, tag='t'): pass\n"
            "class Meta(type):\n    def __new__(m, n, b, d): return super().__new__(m, n, b, {**d, 'added': 1})\n"
            "class WithMeta(metaclass=Meta): pass\nclass C:\n    @functools.cached_property\n    def once(self): return [1]\n"
            "c = C(); first = c.once; d, e, f, nt, tn, g, wm = D(1, [2]), E.RED, F.R | F.W, NT(1, 2), TN(3), G(), WithMeta()\n"
            "keys = {'k': 1}.keys(); part = functools.partial(fib, 5)"
        )
        self.holds(
            other,
            "assert D(1, [2]) == d and dataclasses.fields(D)[1].name == 'b' and D(1).b == []\n"
            "assert e is E.RED and E(1) is e and e.hi() == 'RED' and f == F.R | F.W and list(E) == [e]\n"
            "assert isinstance(3, Abs) and Abs.__abstractmethods__ == {'f'}\ntry: Abs()\nexcept TypeError: pass\nelse: assert False\n"
            "assert nt == NT(1, 2) and type(nt) is NT and tn.b == 'x' and type(tn) is TN and G[int] and type(g) is G\n"
            "assert fib(30) == 832040 and part() == 5 and list(keys) == ['k']\n"
            "assert told == ['t'] and Sub.__mro__ == (Sub, Base, object) and type(WithMeta) is Meta and wm.added == 1\n"
            "assert c.once is first and C().once == [1]",
        )

    def test_any_objects_keep_their_values_and_who_is_who(self):
        for seed in range(40 if self.plain else 5):
            self.assertEqual(self.run_cell(SHAPE + GRAPH + f"made = graph({seed})").errors, [])
            expected = self.run_cell("print(shape_of(made))").stdout
            self.assertGreater(len(expected), 100)
            self.assertEqual(self.save()[0], "saved")
            other, _, _ = self.load()
            self.assertEqual(other.run("print(shape_of(made))").stdout, expected, f"of {seed}")

    def test_surroundings_are_carried(self):
        there = os.path.join(self.driver.directory, "dïr")
        os.mkdir(there)
        with open(os.path.join(there, "of_mine.py"), "w") as file:
            file.write("value = 3\n")
        other = self.carry(
            f"import os, sys\nos.chdir({there!r})\nos.environ['ADDED'] = 'a=b\\n'\nos.environ.pop('HOME', None)\nsys.path.append('/opt/x')",
            "import of_mine",
        )
        self.holds(
            other,
            f"import os, sys\nassert os.getcwd() == {there!r}\nassert os.environ['ADDED'] == 'a=b\\n' and 'HOME' not in os.environ\n"
            "assert '/opt/x' in sys.path and of_mine.value == 3",
        )
        # What a sandbox is given at its start is its own.
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, "rb") as file:
            self.assertNotIn(os.environ["PATH"].encode(), file.read())

    def test_a_directory_that_is_gone_is_told(self):
        there = os.path.join(self.driver.directory, "gone")
        os.mkdir(there)
        self.run_cell(f"import os; os.chdir({there!r}); x = 1")
        self.assertEqual(self.save()[0], "saved")
        os.rmdir(there)
        other, _, missing = self.load()
        self.assertEqual([one[0] for one in missing], ["(working directory)"])
        self.assertEqual(other.run("x").text, "1")

    def test_cells_are_counted_on(self):
        other = self.carry("x = 1", "x + 1")
        cell = other.run("_")
        self.assertEqual((cell.count, cell.text), (3, "2"))
        self.assertEqual(other.sync(), 3)

    def test_random_numbers_are_others(self):
        self.run_cell("import random, uuid, ssl; random.seed(7); mine = random.Random(3); from random import randrange")
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, "rb") as file:
            state = file.read()
        ask = "random.getrandbits(200), randrange(1 << 200), uuid.uuid4(), ssl.RAND_bytes(16), randrange.__self__ is random._inst"
        seen = [self.run_cell(ask).text]
        for _ in range(2):
            self.write(state)
            other, _, _ = self.load()
            seen.append(other.run(ask).text)
            # One that a variable holds is a value.
            self.assertEqual(other.run("mine.random() == random.Random(3).random()").text, "True")
        self.assertEqual(len(set(seen)), 3, seen)
        self.assertTrue(all(one.endswith("True)") for one in seen))

    def test_what_cannot_be_carried_is_named_and_nothing_saved(self):
        self.run_cell("x = 1\nimport socket, sqlite3, threading")
        bad = {
            "s": ("socket.socket()", "socket.socket", "socket"),
            "lock": ("threading.Lock()", "_thread.lock", "lock"),
            "g": ("(one for one in 'ab')", "generator", "generator"),
            "file": ("open('/dev/null')", "_io.TextIOWrapper", "TextIOWrapper"),
            "db": ("sqlite3.connect(':memory:')", "sqlite3.Connection", "Connection"),
            "nested": ("[{'deep': (threading.Lock(),)}]", "list", "lock"),
        }
        self.run_cell("\n".join(f"{name} = {value}" for name, (value, _, _) in bad.items()))
        _, obstacles = self.refused("obstacles")
        self.assertEqual([one[:2] for one in obstacles], [(name, kind) for name, (_, kind, _) in bad.items()])
        for (_, _, reason), (_, _, word) in zip(obstacles, bad.values()):
            self.assertIn(word, reason)
        word, _, left_out = self.save(skips=1)
        self.assertEqual((word, left_out), ("saved", obstacles))
        other, _, _ = self.load()
        self.assertEqual(other.run(f"x, [name for name in {list(bad)} if name in globals()]").text, "(1, [])")
        # A thread has no name, but is as much a part of it.
        self.run_cell("; ".join(f"del {name}" for name in bad) + "\nimport time\n"
                      "threading.Thread(target=time.sleep, args=(1000,), name='mine').start()")
        self.assertEqual([one[0] for one in self.refused("obstacles")[1]], ["(thread) mine"])

    def test_many_obstacles_are_told_within_bounds(self):
        self.run_cell("import threading\nfor n in range(500): globals()['v' + 'x' * 5000 + str(n)] = threading.Lock()")
        _, obstacles = self.refused("obstacles")
        self.assertEqual(len(obstacles), 100)
        self.assertTrue(all(len(text) <= 300 for one in obstacles for text in one))

    def test_a_value_that_is_only_remembered_keeps_nothing(self):
        self.run_cell("x = 1\n(one for one in 'ab')")
        self.assertEqual(self.save()[0], "saved")
        self.assertEqual(self.load()[0].run("x").text, "1")

    def test_code_of_the_context_is_run_in_a_process_of_its_own(self):
        self.run_cell("import os, time\nclass Bad:\n    def __reduce__(self): return how()\nbad = Bad(); x = 1")
        for how, why, word in (
            ("os._exit(3)", "other", "status 3"),
            ("os.kill(os.getpid(), 11); time.sleep(1000)", "other", "signal 11"),
            ("(_ for _ in ()).throw(ValueError('no\\n' * 500))", "obstacles", "ValueError: no"),
            ("(_ for _ in ()).throw(SystemExit(4))", "obstacles", "SystemExit: 4"),
            ("(_ for _ in ()).throw(KeyboardInterrupt())", "obstacles", "KeyboardInterrupt"),
            ("globals().update(x=2)", "obstacles", ""),
        ):
            self.run_cell(f"def how(): {how}")
            reason, obstacles = self.refused(why)
            self.assertIn(word, reason + "".join(one[2] for one in obstacles), how)
        self.assertEqual(self.run_cell("x").text, "1", "what it did to itself is its own")

    def test_time_and_size_are_bounded(self):
        self.run_cell("class Bad:\n    def __reduce__(self):\n        while True: pass\nbad = Bad()")
        self.assertIn("1 second", self.refused("time", seconds=1)[0])
        self.run_cell("import signal, time\nclass Bad:\n    def __reduce__(self):\n        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
                      "        if not os.fork(): time.sleep(1000)\n        time.sleep(1000)\nimport os; bad = Bad()")
        self.refused("time", seconds=1)
        self.run_cell("bad = bytearray(10_000_000)")
        self.assertIn("1000000 bytes", self.refused("large", most=1_000_000)[0])
        # One that makes more and more of it.
        self.run_cell("class More(list):\n    def __reduce__(self): return (list, (), None, iter(lambda: b'x' * 100_000 + os.urandom(4), None))\n"
                      "bad = More()")
        self.refused("large", most=50_000_000)
        self.assertEqual(self.run_cell("del bad\n1").text, "1")
        self.assertEqual(self.save(most=1_000_000)[0], "saved")

    def test_a_place_that_cannot_be_written_to_is_told(self):
        self.run_cell("x = 1")
        self.refused("other", file="/nowhere/at/all")
        os.mkdir(os.path.join(self.driver.directory, "elsewhere"))
        os.symlink(os.path.join(self.driver.directory, "elsewhere", "target"), self.file)
        word, answer, _ = self.save()
        self.assertEqual(word, "refused", "a link is not followed")
        self.assertEqual(os.listdir(os.path.join(self.driver.directory, "elsewhere")), [])

    def test_a_full_disk_is_told(self):
        self.run_cell("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); x = bytes(1_000_000)")
        self.refused("full")

    def test_a_file_that_is_none_of_ours_is_refused(self):
        self.run_cell("x = 1")
        self.loads_nothing_else()
        # Of a size that nothing has.
        self.write(b"offleash-state-1 99999999999\n")
        self.load("refused")

    def test_a_pickle_module_that_cells_replaced_harms_nobody(self):
        self.run_cell("import pickle, sys, os, threading, json, copyreg\n"
                      "pickle.Pickler = pickle.dumps = pickle._Pickler = None\nsys.modules['pickle'] = None\n"
                      "sys.modules['offleash_state'] = 7\nx = [1]")
        self.assertEqual(self.save()[0], "saved")
        self.assertEqual(self.load()[0].run("x").text, "[1]")
        self.run_cell("sys.modules['_pickle'] = None\nos.fork = os.open = os.kill = None")
        # The part has been run already, and what it uses is its own.
        self.run_cell("json.loads = os.unlink = None")
        word, _, _ = self.save()
        self.assertIn(word, ("saved", "refused"))
        self.assertEqual(self.run_cell("x").text, "[1]")

    def test_the_file_is_removed_when_the_next_frame_comes(self):
        self.run_cell("x = 1")
        self.assertEqual(self.save()[0], "saved")
        self.driver.sync()
        self.assertFalse(os.path.exists(self.file))

    def test_an_interrupt_while_it_saves_changes_nothing(self):
        self.run_cell("import time\nclass Slow:\n    def __reduce__(self):\n        open('begun', 'w').close()\n"
                      "        while not __import__('os').path.exists('go'): time.sleep(0.01)\n        return (list, ())\nslow = Slow()")
        here = self.driver.directory

        def interrupt():
            while not os.path.exists(os.path.join(here, "begun")):
                time.sleep(0.01)
            for _ in range(5):
                self.driver.interrupt()
            open(os.path.join(here, "go"), "w").close()

        thread = threading.Thread(target=interrupt)
        thread.start()
        self.assertEqual(self.save()[0], "saved")
        thread.join()
        self.assertEqual(self.run_cell("1").errors, [])
        self.assertEqual(self.load_after(), "[]")

    def load_after(self):
        self.assertEqual(self.save()[0], "saved")
        return self.load()[0].run("slow").text

    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_arrays_and_frames_are_carried(self):
        other = self.carry(
            "import numpy as np, pandas as pd\na = np.arange(100_000).reshape(100, 1000); view = a[0]\n"
            "df = pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2026-01-01', None]), 'c': pd.Categorical(['x', 'y'])})\n"
            "index = df.set_index('a'); rng = np.random.default_rng(5); from numpy.random import rand",
        )
        self.holds(
            other,
            "assert a.shape == (100, 1000) and a.sum() == 4999950000\n"
            "pd.testing.assert_frame_equal(df, pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2026-01-01', None]),"
            " 'c': pd.Categorical(['x', 'y'])}))\nassert rng.random() == np.random.default_rng(5).random()\nassert rand.__self__ is np.random.mtrand._rand",
        )

    @unittest.skipUnless(has("matplotlib"), "matplotlib is not installed")
    def test_figures_are_carried(self):
        other = self.carry("import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.plot([1, 2], [3, 4]); plt.close(fig)")
        cell = self.holds(other, "assert fig.axes[0] is ax and list(ax.lines[0].get_ydata()) == [3, 4]\nfig")
        self.assertIn("image/png", cell.main)


@unittest.skipUnless(has("IPython"), "IPython is not installed")
class IPythonContexts(Contexts):
    plain = False

    def test_inputs_and_outputs_are_carried(self):
        self.run_cell("x = [1]")
        self.run_cell("x")
        self.run_cell("(one for one in 'ab')")
        self.assertEqual(self.save()[0], "saved")
        other, count, _ = self.load()
        self.assertEqual(count, "3")
        cell = other.run("In[1], Out[2] is x, _2 is x, 3 in Out, _i1, _ii, In[-1][:5]")
        self.assertEqual((cell.count, cell.errors), (4, []))
        self.assertEqual(cell.text, "('x = [1]', True, True, False, 'x = [1]', 'x', 'In[1]')")


if __name__ == "__main__":
    unittest.main()
