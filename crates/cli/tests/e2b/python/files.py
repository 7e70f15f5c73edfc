"""Files in a sandbox."""

import io
import time
import urllib.error
import urllib.request

from e2b import FileType, FilesystemEventType, NotFoundException, Sandbox, SandboxException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from cases import Skip, case, equal, raises, sdk_at_least


@case
def are_read_as_they_were_written(sandbox):
    everything = bytes(range(256)) * 4096
    for path, data in [("a.txt", "text ä"), ("/tmp/b/c/d.bin", everything), ("~/stream", io.BytesIO(everything)), ("empty", "")]:
        info = sandbox.files.write(path, data)
        wanted = everything if path != "a.txt" and path != "empty" else data.encode()
        equal(info.type, FileType.FILE)
        equal(bytes(sandbox.files.read(path, format="bytes")), wanted)
        equal(b"".join(sandbox.files.read(path, format="stream")), wanted)
    equal(sandbox.files.read("/home/user/a.txt"), "text ä")
    sandbox.files.write("a.txt", "b")
    equal(sandbox.files.read("a.txt"), "b")


@case
def are_written_several_at_once(sandbox):
    written = sandbox.files.write_files(
        [{"path": "one", "data": "1"}, {"path": "/tmp/deep/two", "data": b"2"}, {"path": "three ä.txt", "data": "3"}]
    )
    equal([info.path for info in written], ["/home/user/one", "/tmp/deep/two", "/home/user/three ä.txt"])
    equal(sandbox.files.read("three ä.txt"), "3")
    equal(sandbox.files.write_files([]), [])


@case
def are_listed(sandbox):
    for name in ["d/1", "d/2", "d/e/3", "d/e/f/4"]:
        sandbox.files.write(name, name)
    sandbox.commands.run("ln -s 1 d/link; mkdir d/none")
    found = [(entry.name, entry.type) for entry in sandbox.files.list("d")]
    wanted = [("1", FileType.FILE), ("2", FileType.FILE), ("e", FileType.DIR), ("link", FileType.SYMLINK if sdk_at_least(2, 51) else FileType.FILE), ("none", FileType.DIR)]
    equal(sorted(found), sorted(wanted))
    deep = [entry.path for entry in sandbox.files.list("d", depth=2)]
    assert "/home/user/d/e/3" in deep and "/home/user/d/e/f" in deep and "/home/user/d/e/f/4" not in deep, deep
    raises(NotFoundException, sandbox.files.list, "not-there")
    raises((InvalidArgumentException, SandboxException), sandbox.files.list, "d/1")
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
        raise Skip("one id for both users")
    raises(Exception, sandbox.files.read, "/root/secret")
    equal(sandbox.files.get_info("/root/secret", user="root").owner, "root")


@case
def cannot_be_read_or_written_where_a_directory_is(sandbox):
    sandbox.files.make_dir("d")
    raises((InvalidArgumentException, SandboxException), sandbox.files.read, "d")
    raises((InvalidArgumentException, SandboxException), sandbox.files.write, "d", "x")


@case
def are_watched(sandbox):
    sandbox.files.make_dir("w")
    watch = sandbox.files.watch_dir("w", recursive=True)
    sandbox.files.write("w/a", "x")
    sandbox.commands.run("mkdir w/sub; sleep 0.3; touch w/sub/b; mv w/a w/c; rm w/c")
    seen, deadline = [], time.monotonic() + 60
    wanted = {
        ("a", FilesystemEventType.CREATE),
        ("a", FilesystemEventType.WRITE),
        ("sub", FilesystemEventType.CREATE),
        ("sub/b", FilesystemEventType.CREATE),
        ("a", FilesystemEventType.RENAME),
        ("c", FilesystemEventType.CREATE),
        ("c", FilesystemEventType.REMOVE),
    }
    while not wanted <= set(seen):
        assert time.monotonic() < deadline, f"{wanted - set(seen)} are missing in {seen}"
        seen += [(event.name, event.type) for event in watch.get_new_events()]
        time.sleep(0.05)
    first = [kind for name, kind in seen if name == "a"][:3]
    equal(first, [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE])
    watch.stop()
    raises(NotFoundException, sandbox.files.watch_dir, "not-there")


@case
def have_metadata(sandbox):
    if not sdk_at_least(2, 50):
        raise Skip("this SDK knows of no metadata")
    sandbox.files.write("m", "x", metadata={"author": "ann"})
    equal(sandbox.files.get_info("m").metadata, {"author": "ann"})


@case
def are_sent_by_signed_urls():
    with Sandbox.create(secure=True) as sandbox:
        sandbox.files.write("signed", "by url")
        url = sandbox.download_url("signed", use_signature_expiration=600)
        equal(urllib.request.urlopen(url, timeout=60).read(), b"by url")
        forged = url.replace("path=signed", "path=other")
        equal(raises(urllib.error.HTTPError, urllib.request.urlopen, forged, timeout=60).code, 401)
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
    big = bytes(1024) * 65536
    sandbox.files.write("big", big)
    equal(sandbox.files.get_info("big").size, len(big))
    equal(sum(len(part) for part in sandbox.files.read("big", format="stream")), len(big))
