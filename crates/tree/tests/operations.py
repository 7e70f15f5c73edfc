"""What a directory does, one line for each thing tried: run in two directories, it says the same or they differ.

Everything is relative to the directory that it is started in. Numbers of inodes and times that are now are not said.
"""
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import socket
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)


def said(what, do):
    try:
        answer = do()
    except OSError as error:
        answer = errno.errorcode[error.errno]
    except (NotImplementedError, ValueError) as error:
        answer = type(error).__name__
    print(f"{what}: {answer}", flush=True)


def put(name, content=b"x", flags=0):
    with open(name, "wb") as file:
        file.write(content)


def about(name):
    found = os.lstat(name)
    size = found.st_size if not stat.S_ISDIR(found.st_mode) else "-"
    return f"{stat.filemode(found.st_mode)} {found.st_nlink} {found.st_uid} {found.st_gid} {size}"


def content(name):
    with open(name, "rb") as file:
        return file.read()


def rename2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


# Renaming, over everything that can be there.
def make(kind, name):
    if kind == "file":
        put(name, name.encode())
    elif kind == "dir":
        os.mkdir(name)
    elif kind == "full":
        os.mkdir(name)
        put(name + "/in", b"in")
    elif kind == "link":
        os.symlink("nowhere", name)
    elif kind == "fifo":
        os.mkfifo(name)


def clear(name):
    if os.path.islink(name) or (os.path.lexists(name) and not os.path.isdir(name)):
        os.unlink(name)
    elif os.path.isdir(name):
        for inner in os.listdir(name):
            clear(f"{name}/{inner}")
        os.rmdir(name)


os.mkdir("m")
os.mkdir("m/elsewhere")
kinds = ["none", "file", "dir", "full", "link", "fifo"]
for one, other, flags, directory in itertools.product(kinds, kinds, [0, 1, 2, 3, 8], ["m/", "m/elsewhere/"]):
    old, new = "m/old", directory + "new"
    clear(old), clear(new)
    make(one, old), make(other, new)
    said(f"rename {one} {other} {flags} {directory}", lambda: rename2(old, new, flags))
    for name in [old, new]:
        said(f"  then {name}", lambda: about(name))
        if os.path.isfile(name):
            said("  with", lambda: content(name))
        elif os.path.isdir(name):
            said("  with", lambda: sorted(os.listdir(name)))
clear("m/old")
os.mkdir("m/old")
said("rename below itself", lambda: os.rename("m/old", "m/old/new"))
said("rename to itself", lambda: os.rename("m/old", "m/old"))
said("rename with a slash", lambda: os.rename("m/old/", "m/older/"))
said("rename dot", lambda: os.rename("m/.", "m2"))
said("rename above", lambda: os.rename("m", "m/elsewhere"))

# Links.
put("h1", b"hard")
said("link", lambda: os.link("h1", "h2"))
said("link there", lambda: os.link("h1", "h2"))
said("link dir", lambda: os.link("m", "m3"))
said("one inode", lambda: os.stat("h1").st_ino == os.stat("h2").st_ino)
said("rename onto itself", lambda: os.rename("h1", "h2"))
said("both there", lambda: (about("h1"), about("h2")))
put("h1", b"changed")
said("seen by both", lambda: content("h2"))
os.unlink("h1")
said("one left", lambda: (about("h2"), content("h2")))
os.symlink("h2", "s")
said("link of a link", lambda: os.link("s", "s2", follow_symlinks=False))
said("it is", lambda: (about("s2"), os.readlink("s2"), content("s2")))
said("chmod of a link", lambda: os.chmod("s2", 0o600, follow_symlinks=False))
said("a circle", lambda: (os.symlink("c", "c"), os.stat("c")))
said("long target", lambda: os.symlink("x" * 4095, "long"))
said("it is", lambda: len(os.readlink("long")))
said("empty target", lambda: os.symlink("", "empty"))

# Names.
for name in ["n" * 255, "n" * 256, "new\nline", "\udcff\udcfe", "-", " ", "ünï", "..."]:
    said(f"name {name!r}", lambda: put(name, b"named"))
    said("  read", lambda: content(name))
    said("  listed", lambda: name in os.listdir("."))

# Open files.
file = os.open("u", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
said("exclusive", lambda: os.open("u", os.O_RDWR | os.O_CREAT | os.O_EXCL))
os.write(file, b"0123456789")
os.unlink("u")
said("unlinked", lambda: (os.fstat(file).st_nlink, os.pread(file, 100, 0), os.ftruncate(file, 5), os.pread(file, 100, 0)))
said("chmod", lambda: (os.fchmod(file, 0o600), oct(os.fstat(file).st_mode)))
said("times", lambda: (os.utime(file, ns=(1_000_000_007, 2_000_000_009)), os.fstat(file).st_mtime_ns))
said("by proc", lambda: os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY)))
os.close(file)
put("replaced", b"old")
file = os.open("replaced", os.O_RDONLY)
put("replacing", b"new")
os.rename("replacing", "replaced")
said("replaced", lambda: (os.pread(file, 9, 0), os.fstat(file).st_nlink, content("replaced")))
os.close(file)
os.mkdir("gone")
directory = os.open("gone", os.O_RDONLY)
os.rmdir("gone")
said("removed", lambda: os.listdir(directory))
said("made in it", lambda: os.mkdir("x", dir_fd=directory))
said("nlink", lambda: os.fstat(directory).st_nlink)
os.close(directory)

# Ways to open.
put("o", b"hello")
for name, flags in itertools.product(["o", "m", "s", "c", "none", "fifo"], [
        os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW,
        os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
        os.O_PATH, os.O_RDWR | os.O_SYNC]):
    if name == "fifo" and not os.path.lexists("fifo"):
        os.mkfifo("fifo")
    said(f"open {name} {flags:o}", lambda: os.close(os.open(name, flags | os.O_NONBLOCK)))
    said("  then", lambda: about(name))
    clear("none")

# Reading and writing.
with open("w", "w+b", buffering=0) as file:
    said("write", lambda: file.write(b"a" * 5000))
    said("hole", lambda: os.pwrite(file.fileno(), b"end", 100_000))
    said("size", lambda: os.fstat(file.fileno()).st_size)
    said("data", lambda: os.lseek(file.fileno(), 0, os.SEEK_HOLE) >= 5000)
    said("beyond", lambda: os.lseek(file.fileno(), 200_000, os.SEEK_DATA))
    said("zeros", lambda: os.pread(file.fileno(), 10, 50_000))
    said("truncate", lambda: (os.ftruncate(file.fileno(), 3), os.pread(file.fileno(), 10, 0)))
    said("longer", lambda: (os.ftruncate(file.fileno(), 6), os.pread(file.fileno(), 10, 0)))
    said("too long", lambda: os.ftruncate(file.fileno(), 1 << 62))
    said("allocate", lambda: (os.posix_fallocate(file.fileno(), 0, 20_000), os.fstat(file.fileno()).st_size))
    said("punch", lambda: libc.fallocate(file.fileno(), 3, ctypes.c_long(0), ctypes.c_long(4096)))
    said("sync", lambda: (os.fsync(file.fileno()), os.fdatasync(file.fileno())))
with open("app", "ab", buffering=0) as file, open("app", "ab", buffering=0) as other:
    for number in range(10):
        file.write(b"one\n"), other.write(b"two\n")
said("appended", lambda: content("app"))
with open("big", "wb") as file:
    for number in range(300):
        file.write(bytes([number % 251]) * 10_007)
with open("big", "rb") as source, open("copy", "wb") as target:
    left = os.stat("big").st_size
    while left:
        left -= os.copy_file_range(source.fileno(), target.fileno(), left)
said("copied", lambda: content("big") == content("copy"))
with open("map", "w+b") as file:
    file.truncate(3 * 4096)
    area = mmap.mmap(file.fileno(), 3 * 4096)
    area[4090:4100] = b"0123456789"
    said("read through", lambda: os.pread(file.fileno(), 10, 4090))
    os.pwrite(file.fileno(), b"written", 8192)
    said("seen through", lambda: area[8192:8199])
    area.flush()
    area.close()
said("mapped", lambda: content("map")[4090:4100])
with open("mapped_append", "w+b", buffering=0) as file:
    file.write(b"x" * 100)
    appending = open("mapped_append", "ab", buffering=0)
    area = mmap.mmap(file.fileno(), 100)
    area[0:5] = b"first"
    area.flush()
    appending.write(b"last")
    area[5:10] = b"again"
    area.flush()
    area.close()
    appending.close()
said("mapped and appended", lambda: content("mapped_append"))

# Modes, owners, times.
put("p")
for mode in [0o000, 0o777, 0o4755, 0o2755, 0o1777, 0o6777]:
    said(f"chmod {mode:o}", lambda: (os.chmod("p", mode), about("p")))
said("written by its owner", lambda: (os.chmod("p", 0o6755), put("p", b"w"), about("p")))
said("chown", lambda: (os.chown("p", os.getuid(), os.getgid()), about("p")))
os.chmod("p", 0o644)
for umask, mode in itertools.product([0, 0o22, 0o77], [0o666, 0o777, 0o7777]):
    os.umask(umask)
    said(f"umask {umask:o} {mode:o}", lambda: (os.close(os.open("q", os.O_CREAT | os.O_WRONLY, mode)), about("q")))
    said("  dir", lambda: (os.mkdir("qd", mode), about("qd")))
    said("  fifo", lambda: (os.mkfifo("qf", mode & 0o777), about("qf")))
    os.unlink("q"), os.rmdir("qd"), os.unlink("qf")
os.umask(0o22)
os.mkdir("sg")
os.chmod("sg", 0o2775)
said("setgid", lambda: (os.mkdir("sg/below"), about("sg/below"), put("sg/file"), about("sg/file")))
for when in [(0, 0), (1, 999_999_999), (10**18 + 123_456_789, 10**18 + 987_654_321), (-5 * 10**9, -10**9)]:
    said(f"times {when}", lambda: (os.utime("p", ns=when), os.stat("p").st_atime_ns, os.stat("p").st_mtime_ns))
said("times of a link", lambda: (os.utime("s", ns=(5, 6), follow_symlinks=False), os.lstat("s").st_mtime_ns))
before = os.stat("p").st_mtime_ns
os.utime("p")
said("now", lambda: os.stat("p").st_mtime_ns > before)
before = os.stat(".").st_mtime_ns
put("another")
said("directory is newer", lambda: os.stat(".").st_mtime_ns >= before)

# What else there is.
said("socket", lambda: (socket.socket(socket.AF_UNIX).bind("sock"), about("sock")))
said("connect", lambda: socket.socket(socket.AF_UNIX).connect("sock"))
reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
writer = os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)
said("through a fifo", lambda: (os.write(writer, b"through"), os.read(reader, 100)))
with open("lock", "w") as file, open("lock", "w") as other:
    said("flock", lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
    said("flock again", lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))
    said("lockf", lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
put("x")
if "xattr" in sys.argv:
    said("xattr", lambda: (os.setxattr("x", "user.a", b"1"), os.setxattr("x", "user.b", b""), sorted(os.listxattr("x"))))
    said("xattr there", lambda: os.setxattr("x", "user.a", b"1", os.XATTR_CREATE))
    said("xattr none", lambda: os.setxattr("x", "user.c", b"1", os.XATTR_REPLACE))
    said("xattr read", lambda: (os.getxattr("x", "user.a"), os.getxattr("x", "user.b")))
    said("xattr missing", lambda: os.getxattr("x", "user.c"))
    said("xattr removed", lambda: (os.removexattr("x", "user.a"), os.listxattr("x")))
    said("xattr of a link", lambda: os.setxattr("s", "user.a", b"1", follow_symlinks=False))
    said("xattr of a dir", lambda: (os.setxattr("m", "user.d", b"2"), os.getxattr("m", "user.d")))

# Directories of many.
os.mkdir("many")
for number in range(800):
    put(f"many/{'long' * (number % 20)}{number}", b"")
said("many", lambda: (len(os.listdir("many")), len(set(os.listdir("many")))))
with os.scandir("many") as entries:
    first = next(entries).name
    for entry in os.listdir("many"):
        os.unlink(f"many/{entry}")
said("none left", lambda: os.listdir("many"))
deep = "."
for number in range(60):
    deep += f"/d{number}"
    os.mkdir(deep)
put(deep + "/bottom", b"deep")
said("deep", lambda: content(deep + "/bottom"))
os.rename("d0", "moved")
said("deep and moved", lambda: content(deep.replace("d0", "moved", 1) + "/bottom"))
said("not empty", lambda: os.rmdir("moved"))
said("no directory", lambda: os.rmdir("o"))
said("a directory", lambda: os.unlink("m"))
said("below a file", lambda: put("o/below"))
said("not there", lambda: put("nowhere/below"))
said("full", lambda: os.statvfs(".").f_namemax)
if hasattr(os, "O_TMPFILE"):
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    said("without a name", lambda: (os.write(file, b"nameless"), os.fstat(file).st_nlink))
    said("named", lambda: (os.link(f"/proc/self/fd/{file}", "named", src_dir_fd=os.open("/", os.O_RDONLY), follow_symlinks=True),
                           content("named"), about("named")))
    os.close(file)

# What only the superuser does.
if os.getuid() == 0 and "ids" in sys.argv:
    said("given away", lambda: (os.chown("p", 1234, 4321), about("p")))
    said("takes bits", lambda: (os.chmod("p", 0o6755), os.chown("p", 1, 1), about("p")))
    said("of a link", lambda: (os.lchown("s", 7, 8), about("s")))
    said("device", lambda: os.mknod("dev", stat.S_IFIFO | 0o600))
    os.mkdir("open"), os.chmod("open", 0o1777)
    os.mkdir("grouped"), os.chown("grouped", 0, 77), os.chmod("grouped", 0o2777)
    put("open/theirs"), os.chmod("open/theirs", 0o666)
    put("private"), os.chmod("private", 0o600)
    put("suid"), os.chmod("suid", 0o6777)
    child = os.fork()
    if child == 0:
        os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000)
        said("user makes", lambda: (put("open/mine"), about("open/mine")))
        said("user makes dir", lambda: (os.mkdir("open/dir"), about("open/dir")))
        said("user links", lambda: (os.symlink("x", "open/link"), about("open/link")))
        said("user grouped", lambda: (put("grouped/f"), about("grouped/f"), os.mkdir("grouped/d"), about("grouped/d")))
        said("user runs as a group", lambda: (os.close(os.open("grouped/s", os.O_CREAT | os.O_WRONLY, 0o2775)), about("grouped/s")))
        said("user elsewhere", lambda: put("not-mine"))
        said("user unlinks", lambda: os.unlink("open/theirs"))
        said("user renames", lambda: os.rename("open/theirs", "open/stolen"))
        said("user writes", lambda: put("open/theirs", b"w"))
        said("user reads", lambda: content("private"))
        said("user chmods", lambda: os.chmod("open/theirs", 0o777))
        said("user gives", lambda: os.chown("open/mine", 0, 0))
        file = os.open("suid", os.O_WRONLY)
        said("user writes a program", lambda: (os.write(file, b"w"), about("suid")))
        os.close(file)
        os._exit(0)
    os.waitpid(child, 0)
    os.chmod("suid", 0o6777)
    child = os.fork()
    if child == 0:
        os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000)
        said("user cuts a program", lambda: (os.truncate("suid", 0), about("suid")))
        os._exit(0)
    os.waitpid(child, 0)
    os.chmod("suid", 0o6777)
    child = os.fork()
    if child == 0:
        os.setgroups([]), os.setresgid(1000, 1000, 1000), os.setresuid(1000, 1000, 1000)
        said("user empties a program", lambda: (os.close(os.open("suid", os.O_WRONLY | os.O_TRUNC)), about("suid")))
        os._exit(0)
    os.waitpid(child, 0)

print("to the end")
