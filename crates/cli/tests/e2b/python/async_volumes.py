"""Volumes through the asynchronous half of the SDK."""

import uuid

from e2b import AsyncSandbox
from e2b import exceptions
from e2b.volume.volume_async import AsyncVolume

from cases import case, equal, raises_later


@case
async def a_volume_outlives_its_sandboxes():
    volume = await AsyncVolume.create(f"v-{uuid.uuid4().hex[:12]}")
    async with await AsyncSandbox.create(volume_mounts={"/data": volume}) as sandbox:
        await sandbox.files.write("/data/a.txt", "text")
    equal(await volume.read_file("/a.txt"), "text")
    await volume.write_file("/b.txt", b"bytes")
    async with await AsyncSandbox.create(volume_mounts={"/data": volume}) as sandbox:
        equal(await sandbox.files.read("/data/b.txt"), "bytes")
    await volume.make_dir("/d")
    equal([entry.path for entry in await volume.list("/")], ["/a.txt", "/b.txt", "/d"])
    equal((await volume.update_metadata("/d", mode=0o700)).mode & 0o777, 0o700)
    pieces = [piece async for piece in await volume.read_file("/b.txt", format="stream")]
    equal(b"".join(pieces), b"bytes")
    await volume.remove("/b.txt")
    equal(await volume.exists("/b.txt"), False)
    assert volume.volume_id in [each.volume_id for each in await AsyncVolume.list()]
    equal(await AsyncVolume.destroy(volume.volume_id), True)
    await raises_later(exceptions.VolumeNotFoundException, AsyncVolume.get_info(volume.volume_id))
