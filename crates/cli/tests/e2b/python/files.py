"""Files in a sandbox."""

import hashlib
import io
import os
import urllib.error
import urllib.request

from e2b import FileType, FilesystemEventType, NotFoundException, Sandbox, SandboxException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from cases import case, equal, eventually, raises, says, sdk_at_least

STRANGE = "new/deep/é 中 \"q\" 'x'.bin"


@case
def are_read_as_they_were_written(sandbox):
    everything = bytes(range(256)) * 4096
    for path, data in [("a.txt", "text ä"), ("/tmp/b/c/d.bin", everything), ("~/stream", io.BytesIO(everything)), ("empty", ""), (STRANGE, everything)]:
        info = sandbox.files.write(path, data)
        wanted = data.encode() if isinstance(data, str) else everything
        equal(info.type, FileType.FILE)
        equal(bytes(sandbox.files.read(path, format="bytes")), wanted)
        equal(b"".join(sandbox.files.read(path, format="stream")), wanted)
    equal(sandbox.files.read("/home/user/a.txt"), "text ä")
    sandbox.files.write("a.txt", "")
    equal((sandbox.files.read("a.txt"), sandbox.files.read("~/a.txt")), ("", ""))
    equal(sandbox.commands.run("stat -c '%U %a' new/deep").stdout, "user 755\n")
    # Files of /proc say that they are empty.
    assert "processor" in sandbox.files.read("/proc/cpuinfo")
    says(raises(NotFoundException, sandbox.files.read, "/gone"), "path '/gone' does not exist")


@case
def are_written_several_at_once(sandbox):
    written = sandbox.files.write_files(
        [{"path": "one", "data": "1"}, {"path": "/tmp/deep/two", "data": b"2"}, {"path": "three ä.txt", "data": "3"}]
    )
    equal([info.path for info in written], ["/home/user/one", "/tmp/deep/two", "/home/user/three ä.txt"])
    equal(sandbox.files.read("three ä.txt"), "3")
    equal(sandbox.files.write_files([]), [])
    names = [f"many/{number:03} é.txt" for number in range(200)]
    written = sandbox.files.write_files([{"path": name, "data": name * 10} for name in names])
    equal([info.path for info in written], [f"/home/user/{name}" for name in names])
    equal((len(sandbox.files.list("many")), sandbox.files.read(names[77])), (200, names[77] * 10))


@case
def are_sent_compressed(sandbox):
    data = b"a lot of the same " * 100_000
    sandbox.files.write("packed", data, gzip=True)
    equal(sandbox.commands.run("sha256sum <packed").stdout.split()[0], hashlib.sha256(data).hexdigest())
    equal(bytes(sandbox.files.read("packed", format="bytes", gzip=True)), data)


@case
def are_listed(sandbox):
    for name in ["d/1", "d/2", "d/e/3", "d/e/f/4"]:
        sandbox.files.write(name, name)
    sandbox.commands.run("ln -s 1 d/link; ln -s /nowhere d/broken; mkdir d/none")
    found = [(entry.name, entry.type) for entry in sandbox.files.list("d")]
    wanted = [("1", FileType.FILE), ("2", FileType.FILE), ("e", FileType.DIR), ("link", FileType.SYMLINK if sdk_at_least(2, 51) else FileType.FILE), ("none", FileType.DIR)]
    equal(sorted(found), sorted([*wanted, ("broken", FileType.SYMLINK)]))
    deep = [entry.path for entry in sandbox.files.list("d", depth=2)]
    assert "/home/user/d/e/3" in deep and "/home/user/d/e/f" in deep and "/home/user/d/e/f/4" not in deep, deep
    raises(NotFoundException, sandbox.files.list, "not-there")
    raises(InvalidArgumentException, sandbox.files.list, "d/1")
    raises(InvalidArgumentException, sandbox.files.list, "d", depth=0)


@case
def tell_what_they_are(sandbox):
    sandbox.files.write("f", "12345")
    sandbox.commands.run("chmod 640 f; ln -s /home/user/f l")
    info = sandbox.files.get_info("f")
    equal((info.name, info.path, info.type, info.size), ("f", "/home/user/f", FileType.FILE, 5))
    equal((info.mode, info.permissions, info.owner), (0o640, "-rw-r-----", "user"))
    link = sandbox.files.get_info("l")
    equal((link.name, link.symlink_target), ("l", "/home/user/f"))
    equal(sandbox.files.get_info("/tmp").type, FileType.DIR)
    raises(NotFoundException, sandbox.files.get_info, "not-there")
    equal((sandbox.files.exists("f"), sandbox.files.exists("not-there")), (True, False))


@case
def are_renamed_and_removed(sandbox):
    sandbox.files.write("old", "x")
    equal(sandbox.files.rename("old", "new").path, "/home/user/new")
    equal((sandbox.files.exists("old"), sandbox.files.read("new")), (False, "x"))
    raises(NotFoundException, sandbox.files.rename, "old", "newer")
    equal((sandbox.files.make_dir("p/q/r"), sandbox.files.make_dir("p/q/r")), (True, False))
    sandbox.files.write("p/q/file", "x")
    raises(InvalidArgumentException, sandbox.files.make_dir, "p/q/file")
    equal(sandbox.files.rename("p/q/file", "not/there/yet").path, "/home/user/not/there/yet")
    sandbox.files.remove("p")
    sandbox.files.remove("p")
    equal(sandbox.files.exists("p"), False)
    sandbox.files.remove("new")
    raises(NotFoundException, sandbox.files.read, "new")


@case
def of_somebody_else_are_closed(sandbox):
    sandbox.files.write("/root/secret", "x", user="root")
    equal(sandbox.files.read("/root/secret", user="root"), "x")
    raises(AuthenticationException, sandbox.files.read, "a", user="nobody-there")
    if sandbox.commands.run("id -u").stdout == sandbox.commands.run("id -u", user="root").stdout:
        # One id is all that the machine gives, and both names mean it.
        equal(sandbox.files.read("/root/secret"), "x")
        return
    sandbox.commands.run("chmod 600 /root/secret", user="root")
    raises(Exception, sandbox.files.read, "/root/secret")
    equal(sandbox.files.get_info("/root/secret", user="root").owner, "root")


@case
def cannot_be_read_or_written_where_a_directory_is(sandbox):
    sandbox.files.make_dir("d")
    says(raises(InvalidArgumentException, sandbox.files.read, "d"), "is a directory")
    raises((InvalidArgumentException, SandboxException), sandbox.files.write, "d", "x")


@case
def are_watched(sandbox):
    sandbox.files.make_dir("w")
    watch = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.write("w/a", "x")
    sandbox.commands.run("mkdir w/sub; sleep 0.3; touch w/sub/b; mv w/a w/c; rm w/c")
    seen = []
    wanted = {
        ("a", FilesystemEventType.CREATE),
        ("a", FilesystemEventType.WRITE),
        ("sub", FilesystemEventType.CREATE),
        ("sub/b", FilesystemEventType.CREATE),
        ("a", FilesystemEventType.RENAME),
        ("c", FilesystemEventType.CREATE),
        ("c", FilesystemEventType.REMOVE),
    }

    def all_seen():
        seen.extend((event.name, event.type) for event in watch.get_new_events())
        return wanted <= set(seen)

    eventually(lambda: f"{wanted - set(seen)} in {seen}", all_seen)
    first = [kind for name, kind in seen if name == "a"][:3]
    equal(first, [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE])
    watch.stop()
    raises(NotFoundException, sandbox.files.watch_dir, "not-there")
    sandbox.files.write("plain", "x")
    raises(InvalidArgumentException, sandbox.files.watch_dir, "plain")


@case
def are_watched_in_directories_that_are_new(sandbox):
    sandbox.files.make_dir("w")
    flat, recursive = sandbox.files.watch_dir("w"), sandbox.files.watch_dir("w", recursive=True, include_entry=True)
    sandbox.files.write("w/sub/deep/file", "x")
    seen = []

    def file_seen():
        seen.extend(recursive.get_new_events())
        return "sub/deep/file" in [event.name for event in seen]

    eventually(lambda: seen, file_seen)
    (entry,) = {event.entry.path for event in seen if event.name == "sub/deep/file" and event.entry}
    equal(entry, "/home/user/w/sub/deep/file")
    names = set()

    def directory_seen():
        names.update(event.name for event in flat.get_new_events())
        return names

    eventually(lambda: names, directory_seen)
    equal(names, {"sub"})


@case
def have_metadata(sandbox):
    equal(sandbox.files.write("m", "x", metadata={"Author": "ann lee", "b": "2"}).metadata, {"author": "ann lee", "b": "2"})
    equal(sandbox.files.get_info("m").metadata, {"author": "ann lee", "b": "2"})
    sandbox.files.write("m", "y", metadata={"b": "3"})
    equal(sandbox.files.get_info("m").metadata, {"b": "3"})


@case
def are_sent_by_signed_urls():
    with Sandbox.create(secure=True) as sandbox:
        sandbox.files.write("signed+ü", "by url")
        url = sandbox.download_url("signed+ü", user="user", use_signature_expiration=600)
        equal(urllib.request.urlopen(url, timeout=60).read(), b"by url")
        ranged = urllib.request.Request(url, headers={"Range": "bytes=-3"})
        with urllib.request.urlopen(ranged, timeout=60) as answer:
            equal((answer.status, answer.read()), (206, b"url"))
        for forged in [url.replace("path=signed", "path=other"), url.replace("=v1_", "=v1_A"), url.split("&sig")[0]]:
            error = raises(urllib.error.HTTPError, urllib.request.urlopen, forged, timeout=60)
            assert error.code in (401, 404, 502), (forged, error)
        sandbox.files.write("signed", "x")
        late = sandbox.download_url("signed", use_signature_expiration=-10)
        equal(raises(urllib.error.HTTPError, urllib.request.urlopen, late, timeout=60).code, 401)
        body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="up"\r\n\r\nuploaded\r\n--B--\r\n'
        upload = urllib.request.Request(
            sandbox.upload_url("up"), data=body, headers={"Content-Type": "multipart/form-data; boundary=B"}
        )
        equal(urllib.request.urlopen(upload, timeout=60).status, 200)
        equal(sandbox.files.read("up"), "uploaded")


@case
def may_be_big(sandbox):
    piece, pieces = os.urandom(1 << 20), 200
    wanted = hashlib.sha256(piece * pieces).hexdigest()

    class Big(io.RawIOBase):
        """A file that is never there as a whole."""

        given = 0

        def readable(self):
            return True

        def read(self, length=-1):
            begin = self.given % len(piece)
            left = pieces * len(piece) - self.given
            length = min(left, len(piece) - begin, len(piece) if length < 0 else length)
            self.given += length
            return piece[begin : begin + length]

    sandbox.files.write("big", Big(), request_timeout=300)
    equal(sandbox.commands.run("sha256sum <big", timeout=300).stdout.split()[0], wanted)
    found = hashlib.sha256()
    for part in sandbox.files.read("big", format="stream", request_timeout=300):
        found.update(part)
    equal(found.hexdigest(), wanted)
