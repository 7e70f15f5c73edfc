"""Volumes: made, mounted, read and written from outside."""

import io
import uuid

from e2b import Sandbox, SandboxException
from e2b import exceptions
from e2b.volume.volume_sync import Volume

from cases import case, equal, raises


def name():
    return f"v-{uuid.uuid4().hex[:12]}"


@case
def a_volume_is_made_found_listed_and_destroyed():
    wanted = name()
    volume = Volume.create(wanted)
    equal(volume.name, wanted)
    info = Volume.get_info(volume.volume_id)
    equal((info.volume_id, info.name, info.token), (volume.volume_id, wanted, volume.token))
    assert volume.volume_id in [each.volume_id for each in Volume.list()]
    raises(exceptions.VolumeException, Volume.create, wanted)
    raises(exceptions.VolumeException, Volume.create, "../other")
    equal(Volume.destroy(volume.volume_id), True)
    equal(Volume.destroy(volume.volume_id), False)
    raises(exceptions.VolumeNotFoundException, Volume.get_info, volume.volume_id)


@case
def what_one_sandbox_wrote_the_next_one_reads():
    volume = Volume.create(name())
    with Sandbox.create(volume_mounts={"/mnt/data": volume}) as sandbox:
        sandbox.files.write("/mnt/data/a.txt", "first")
        sandbox.commands.run("echo of root >/mnt/data/b.txt", user="root")
        mounts = sandbox.get_info().volume_mounts
        equal(mounts, [{"name": volume.name, "path": "/mnt/data"}])
        # Many may write to it, and nobody takes it from them.
        with Sandbox.create(volume_mounts={"/data": volume.name}) as other:
            equal(other.files.read("/data/a.txt"), "first")
            other.commands.run("echo second >>/data/a.txt")
        raises(exceptions.VolumeException, Volume.destroy, volume.volume_id)
    with Sandbox.create(volume_mounts={"/data": volume}) as sandbox:
        equal(sandbox.files.read("/data/a.txt"), "firstsecond\n")
        sandbox.commands.run("echo more >>/data/b.txt", user="root")
        equal(sandbox.commands.run("cat /data/b.txt").stdout, "of root\nmore\n")
    equal(volume.read_file("/a.txt"), "firstsecond\n")
    equal(Volume.destroy(volume.volume_id), True)


@case
def files_are_read_and_written_from_outside():
    volume = Volume.create(name())
    entry = volume.write_file("/a.txt", "text")
    equal((entry.name, entry.path, entry.size, entry.uid), ("a.txt", "/a.txt", 4, 1000))
    equal(volume.read_file("/a.txt"), "text")
    large = bytes(range(256)) * 4096 * 3
    volume.write_file("/dir/b.bin", io.BytesIO(large), mode=0o600, force=True)
    equal(volume.read_file("/dir/b.bin", format="bytes"), large)
    equal(b"".join(volume.read_file("/dir/b.bin", format="stream")), large)
    volume.write_file("/a.txt", "other")
    equal(volume.read_file("/a.txt"), "other")
    made = volume.make_dir("/x/y", force=True)
    equal((made.type.value, made.path), ("directory", "/x/y"))
    raises(exceptions.VolumePathNotFoundException, volume.make_dir, "/none/y")
    equal(volume.exists("/x/y"), True)
    equal(volume.exists("/x/z"), False)
    equal(volume.update_metadata("/a.txt", mode=0o640).mode & 0o7777, 0o640)
    equal([entry.path for entry in volume.list("/")], ["/a.txt", "/dir", "/x"])
    equal([entry.path for entry in volume.list("/", depth=2)], ["/a.txt", "/dir", "/dir/b.bin", "/x", "/x/y"])
    volume.remove("/x")
    volume.remove("/a.txt")
    raises(exceptions.VolumePathNotFoundException, volume.read_file, "/a.txt")
    raises(exceptions.VolumePathNotFoundException, volume.list, "/x")
    raises(exceptions.VolumePathNotFoundException, volume.remove, "/a.txt")
    raises(Exception, volume.read_file, "/../volume.json")
    equal(Volume.destroy(volume.volume_id), True)


@case
def a_link_that_a_sandbox_plants_leads_nowhere():
    volume = Volume.create(name())
    with Sandbox.create(volume_mounts={"/data": volume}) as sandbox:
        sandbox.commands.run("ln -s /etc/passwd /data/file; ln -s /etc /data/etc; ln -s ../volume.json /data/up")
    entry = volume.get_info("/file")
    equal((entry.type.value, entry.target), ("symlink", "/etc/passwd"))
    for path in ("/file", "/up", "/etc/passwd", "/etc/hostname"):
        raises(Exception, volume.read_file, path)
    raises(Exception, volume.write_file, "/etc/new", "x")
    raises(Exception, volume.list, "/etc")
    volume.write_file("/file", "own")
    equal(volume.read_file("/file"), "own")
    volume.remove("/etc")
    equal(Volume.destroy(volume.volume_id), True)


@case
def only_the_token_opens_a_volume():
    volume = Volume.create(name())
    volume.write_file("/a", "x")
    for wrong in (Volume(volume.volume_id, volume.name, "wrong"), Volume(f"v{'0' * 32}", "x", volume.token)):
        raises(exceptions.AuthenticationException, wrong.read_file, "/a")
        raises(exceptions.AuthenticationException, wrong.write_file, "/a", "y")
    equal(volume.read_file("/a"), "x")
    equal(Volume.destroy(volume.volume_id), True)


@case
def a_sandbox_is_not_made_with_what_is_not_there():
    raises(SandboxException, Sandbox.create, volume_mounts={"/data": "no-such-volume"})
    volume = Volume.create(name())
    for path in ("data", "/", "/usr", "/proc/x", "/a/../b"):
        raises(SandboxException, Sandbox.create, volume_mounts={path: volume})
    raises(SandboxException, Sandbox.create, volume_mounts={"/a": volume, "/b": volume})
    equal(Volume.destroy(volume.volume_id), True)
