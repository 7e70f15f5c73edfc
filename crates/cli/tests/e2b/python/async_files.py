"""Files through the asynchronous half of the SDK."""

import urllib.error
import urllib.request

from e2b import AsyncSandbox, FilesystemEventType, FileType, NotFoundException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from cases import case, equal, eventually_later, raises, raises_later, says


@case
async def are_read_as_they_were_written(sandbox):
    everything = bytes(range(256)) * 4096
    for path, data in [("a.txt", "text ä"), ("/tmp/b/c/é \"q\".bin", everything), ("empty", "")]:
        info = await sandbox.files.write(path, data)
        equal(info.type, FileType.FILE)
        wanted = data.encode() if isinstance(data, str) else data
        equal(bytes(await sandbox.files.read(path, format="bytes")), wanted)
        equal(b"".join([part async for part in await sandbox.files.read(path, format="stream")]), wanted)
    await sandbox.files.write("packed", everything, gzip=True)
    equal(bytes(await sandbox.files.read("packed", format="bytes", gzip=True)), everything)
    says(await raises_later(NotFoundException, sandbox.files.read("/gone")), "path '/gone' does not exist")
    await raises_later(AuthenticationException, sandbox.files.read("a.txt", user="nobody-there"))


@case
async def are_written_several_at_once(sandbox):
    names = [f"many/{number:02} é.txt" for number in range(50)]
    written = await sandbox.files.write_files([{"path": name, "data": name} for name in names])
    equal([info.path for info in written], [f"/home/user/{name}" for name in names])
    equal((len(await sandbox.files.list("many")), await sandbox.files.read(names[33])), (50, names[33]))


@case
async def are_listed_moved_and_removed(sandbox):
    equal((await sandbox.files.make_dir("d/e"), await sandbox.files.make_dir("d/e")), (True, False))
    await sandbox.files.write("d/e/f", "12345", metadata={"author": "ann"})
    equal([(entry.name, entry.type) for entry in await sandbox.files.list("d")], [("e", FileType.DIR)])
    equal([entry.path for entry in await sandbox.files.list("d", depth=2)], ["/home/user/d/e", "/home/user/d/e/f"])
    info = await sandbox.files.get_info("d/e/f")
    equal((info.size, info.permissions, info.owner, info.metadata), (5, "-rw-r--r--", "user", {"author": "ann"}))
    equal((await sandbox.files.rename("d/e/f", "d/g")).path, "/home/user/d/g")
    equal((await sandbox.files.exists("d/e/f"), await sandbox.files.exists("d/g")), (False, True))
    await raises_later(InvalidArgumentException, sandbox.files.list("d/g"))
    await sandbox.files.remove("d")
    await raises_later(NotFoundException, sandbox.files.list("d"))
    await raises_later(NotFoundException, sandbox.files.get_info("d/g"))
    await raises_later(NotFoundException, sandbox.files.rename("d", "x"))


@case
async def are_watched(sandbox):
    await sandbox.files.make_dir("w")
    seen, ended = [], []
    watch = await sandbox.files.watch_dir("w", on_event=seen.append, on_exit=ended.append, recursive=True)

    async def has(count):
        return len(seen) >= count

    await sandbox.files.write("w/a", "x")
    await eventually_later(lambda: seen, lambda: has(3))
    kinds = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    equal([(event.name, event.type) for event in seen], [("a", kind) for kind in kinds])
    await sandbox.files.remove("w/a")
    await eventually_later(lambda: seen, lambda: has(4))
    equal((seen[3].name, seen[3].type), ("a", FilesystemEventType.REMOVE))
    await sandbox.files.write("w/sub/deep", "x")

    async def deep():
        return "sub/deep" in [event.name for event in seen]

    await eventually_later(lambda: seen, deep)
    await watch.stop()
    await raises_later(NotFoundException, sandbox.files.watch_dir("not-there", on_event=seen.append))


@case
async def are_sent_by_signed_urls():
    async with await AsyncSandbox.create(secure=True) as sandbox:
        await sandbox.files.write("signed", "by url")
        url = sandbox.download_url("signed", use_signature_expiration=600)
        # The server is another process, so that waiting for it here holds up nobody.
        equal(urllib.request.urlopen(url, timeout=60).read(), b"by url")
        late = sandbox.download_url("signed", use_signature_expiration=-10)
        equal(raises(urllib.error.HTTPError, urllib.request.urlopen, late, timeout=60).code, 401)
        body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="up"\r\n\r\nuploaded\r\n--B--\r\n'
        upload = urllib.request.Request(
            sandbox.upload_url("up"), data=body, headers={"Content-Type": "multipart/form-data; boundary=B"}
        )
        equal(urllib.request.urlopen(upload, timeout=60).status, 200)
        equal(await sandbox.files.read("up"), "uploaded")
