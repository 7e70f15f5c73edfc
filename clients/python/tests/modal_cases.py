"""The names of Modal's library: cases that `library.py` runs."""

import asyncio
import hashlib
import io
import json
import os
import struct
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import offleash
import offleash.modal as modal
from harness import ROOT, case, equal, eventually, raises
from offleash.modal import exception


@case
def a_sandbox_of_modal_ends_with_its_command():
    app = modal.App.lookup("an-app", create_if_missing=True)
    line = "cat; echo bye >&2; exit 5"
    made = modal.Sandbox.create("sh", "-c", line, app=app, tags={"a": "b"}, workdir="/srv/made", name="called")
    same = modal.Sandbox.from_id(made.object_id)
    equal((made.poll(), made.returncode, made.get_tags()), (None, None, {"a": "b"}))
    equal([known.object_id for known in modal.Sandbox.list(app_id="an-app", tags={"a": "b"})], [made.object_id])
    equal(list(modal.Sandbox.list(tags={"a": "c"})), [])
    listed = next(iter(modal.Sandbox.list(app_id="an-app")))
    equal(modal.Sandbox.from_name("an-app", "called").object_id, made.object_id)
    raises(exception.AlreadyExistsError, modal.Sandbox.create, name="called")
    equal(listed.poll(), None)
    # A command is heard from when somebody asks of it first.
    heard = listed.stdout
    made.stdin.write("one\ntwo\n")
    made.stdin.write_eof()
    made.stdin.drain()
    equal((list(made.stdout), made.stderr.read(), list(same.stdout)), (["one\n", "two\n"], "bye\n", ["one\n", "two\n"]))
    made.wait()
    equal((list(heard), made.returncode, made.poll(), same.poll(), listed.poll()), (["one\n", "two\n"], 5, 5, 5, 5))
    # Only a program that has started it ends it; the other one knows what its command ended with.
    eventually(lambda: not list(modal.Sandbox.list(app_id="an-app")))
    raises(exception.NotFoundError, made.exec, "true")
    raises(exception.NotFoundError, modal.Sandbox.from_id, made.object_id)


@case
def commands_are_those_of_modal():
    sandbox = modal.Sandbox.create(env={"A": "of all"}, secrets=[modal.Secret.from_dict({"B": "hidden", "C": None})])
    process = sandbox.exec("sh", "-c", "echo $A $B $D; pwd; id -u; echo err >&2; exit 3", env={"D": "own"}, workdir="/tmp")
    raises(exception.InvalidError, lambda: process.returncode)
    equal(process.wait(), 3)
    equal((process.stdout.read(), process.stderr.read(), process.returncode), (f"of all hidden own\n/tmp\n{ROOT[1]}\n", "err\n", 3))
    process = sandbox.exec("cat", text=False)
    process.stdin.write(b"\xff")
    process.stdin.drain()
    equal((next(iter(process.stdout)), process.poll()), (b"\xff", None))
    process.stdin.write_eof()
    process.stdin.drain()
    equal(process.wait(), 0)
    raises(ValueError, process.stdin.write, "more")
    ended = sandbox.exec("sh", "-c", "kill -9 $$")
    equal(ended.wait(), 137)
    ended.stdin.write("unread")
    raises(ValueError, ended.stdin.drain)
    ended.stdin.write_eof()
    ended.stdin.drain()
    equal(sandbox.exec("sleep", "99", timeout=1).wait(), -1)
    equal(list(sandbox.exec("printf", "a\nb\nc", bufsize=1).stdout), ["a\n", "b\n", "c"])
    equal(sandbox.exec("sh", "-c", "stty size", pty=True).stdout.read(), "24 80\r\n")
    raises(exception.InvalidError, sandbox.exec("true", stdout=modal.StreamType.DEVNULL).stdout.read)
    for kind, words, more in [
        (exception.InvalidError, ["no-such-program"], {}),
        (exception.InvalidError, [], {}),
        (exception.InvalidError, ["true"], {"workdir": "relative"}),
        (exception.InvalidError, ["true", "x" * 2**16], {}),
        (exception.UnimplementedError, ["true"], {"pty_info": 1}),
    ]:
        raises(kind, sandbox.exec, *words, **more)
    equal(sandbox.terminate(wait=True), 137)
    raises(exception.SandboxTerminatedError, sandbox.wait)
    equal((sandbox.wait(raise_on_termination=False), sandbox.returncode), (None, 137))
    raises(exception.InvalidError, lambda: sandbox.stdout)
    late = modal.Sandbox.create(timeout=1)
    raises(exception.SandboxTimeoutError, late.wait)
    equal(late.returncode, 124)


@case
def files_and_snapshots_are_those_of_modal():
    sandbox = modal.Sandbox.create()
    files = sandbox.filesystem
    files.write_text("tëxt", "/srv/dir/a")
    equal((files.read_text("/srv/dir/a"), files.read_bytes("/srv/dir/a")), ("tëxt", "tëxt".encode()))
    info = files.stat("/srv/dir/a")
    equal((info.is_file(), info.size, info.owner), (True, 5, ROOT[0]))
    equal([entry.path for entry in files.list_files("/srv/dir")], ["/srv/dir/a"])
    for kind, call in [
        (exception.SandboxFilesystemNotFoundError, lambda: files.read_text("/none")),
        (exception.SandboxFilesystemNotFoundError, lambda: sandbox.open("/none/deep").read()),
        (exception.SandboxFilesystemNotFoundError, lambda: files.make_directory("/none/deep", create_parents=False)),
        (exception.SandboxFilesystemPathAlreadyExistsError, lambda: sandbox.mkdir("/srv/dir")),
        (exception.SandboxFilesystemDirectoryNotEmptyError, lambda: files.remove("/srv/dir")),
        (exception.SandboxFilesystemIsADirectoryError, lambda: files.read_bytes("/srv/dir")),
        (exception.SandboxFilesystemNotADirectoryError, lambda: files.list_files("/etc/passwd")),
        (exception.InvalidError, lambda: files.read_text("relative")),
        (exception.UnimplementedError, lambda: files.watch("/srv")),
    ]:
        raises((kind, FileNotFoundError), call)
    with tempfile.TemporaryDirectory() as here:
        files.copy_to_local("/srv/dir/a", f"{here}/new/a")
        equal((os.listdir(f"{here}/new"), os.stat(f"{here}/new/a").st_mode & 0o777), (["a"], 0o600))
        files.copy_from_local(f"{here}/new/a", "/srv/dir/b")
        equal(os.listdir(f"{here}/new"), ["a"])
    with sandbox.open("/srv/dir/b", "a") as file:
        file.write("\nmore\n")
    equal((sandbox.open("/srv/dir/b").readlines(), sorted(sandbox.ls("/srv/dir"))), (["tëxt\n", "more\n"], ["a", "b"]))
    sandbox.rm("/srv/dir/a")
    image = sandbox.snapshot_filesystem()
    raises(exception.UnimplementedError, sandbox.snapshot_filesystem, ttl=60)
    sandbox.terminate()
    copy = modal.Sandbox.create("cat", "/srv/dir/b", image=image)
    equal(copy.stdout.read(), "tëxt\nmore\n")
    copy.wait()
    assert offleash.Sandbox.delete_snapshot(image.object_id)
    raises(exception.NotFoundError, modal.Sandbox.create, image=image)


def upload_again(volume):
    with volume.batch_upload() as batch:
        batch.put_file(io.BytesIO(b"other"), "/dir/a")


@case
def volumes_and_ports_are_those_of_modal():
    volume = modal.Volume.from_name("modal-data", create_if_missing=True)
    with volume.batch_upload() as batch:
        batch.put_file(io.BytesIO(b"up"), "/dir/a")
    raises(FileExistsError, upload_again, volume)
    command = ["python3", "-m", "http.server", "8000", "--directory", "/data/dir"]
    with_volume = modal.Sandbox.create(*command, volumes={"/data": volume}, encrypted_ports=[8000], workdir="/data")
    reader = modal.Sandbox.create(volumes={"/data": volume.read_only()})
    with_volume.exec("sh", "-c", "echo new > b").wait()
    equal(reader.exec("cat", "/data/b", "/data/dir/a").stdout.read(), "new\nup")
    assert reader.exec("touch", "/data/c").wait() != 0
    equal([entry.path for entry in volume.iterdir("/")], ["b", "dir", "dir/a"])
    equal((b"".join(volume.read_file("b")), volume.commit()), (b"new\n", None))
    raises(exception.InvalidError, volume.remove_file, "dir")
    volume.remove_file("dir", recursive=True)
    raises(exception.NotFoundError, volume.remove_file, "dir")
    tunnel = with_volume.tunnels()[8000]

    def served():
        try:
            return urllib.request.urlopen(tunnel.url, timeout=5).status
        except urllib.error.HTTPError as error:
            return error.code if error.code == 404 else None
        except OSError:
            return None

    eventually(served)
    raises(exception.UnimplementedError, lambda: tunnel.tls_socket)
    raises(exception.UnimplementedError, lambda: tunnel.tcp_socket)
    for sandbox in (with_volume, reader):
        sandbox.terminate()
    eventually(lambda: not offleash.volumes.get("modal-data").in_use)
    modal.Volume.delete("modal-data")
    raises(exception.NotFoundError, modal.Volume.delete, "modal-data")
    raises(exception.NotFoundError, modal.Volume.from_name("modal-data").hydrate)


@case
def what_modal_has_and_we_have_not_is_an_error():
    create, image = modal.Sandbox.create, modal.Image
    for kind, call in [
        (exception.UnimplementedError, lambda: create(gpu="A10G")),
        (exception.UnimplementedError, lambda: create(idle_timeout=60)),
        (exception.UnimplementedError, lambda: create(region="us-east")),
        (exception.UnimplementedError, lambda: create(h2_ports=[80])),
        (exception.UnimplementedError, lambda: create(inbound_cidr_allowlist=["10.0.0.0/8"])),
        (exception.UnimplementedError, lambda: create(volumes={"/data": object()})),
        (TypeError, lambda: create(no_such_argument=1)),
        (exception.InvalidError, lambda: create(timeout=0)),
        (exception.InvalidError, lambda: create(workdir="relative")),
        (exception.InvalidError, lambda: create(cpu=(2, 1))),
        (exception.InvalidError, lambda: create(encrypted_ports=[0])),
        (exception.InvalidError, lambda: create(tags={"offleash.level": "process"})),
        (exception.InvalidError, lambda: create(block_network=True, outbound_cidr_allowlist=[])),
        (exception.InvalidError, lambda: create(cidr_allowlist=[], outbound_cidr_allowlist=[])),
        (exception.UnimplementedError, lambda: modal.App("a").function()),
        (exception.UnimplementedError, lambda: modal.Secret.from_name("kept")),
        (exception.UnimplementedError, lambda: image.micromamba()),
        (exception.UnimplementedError, lambda: image.debian_slim().uv_pip_install("x")),
        (exception.UnimplementedError, lambda: image.debian_slim().pip_install("x", gpu="A10G")),
        (exception.UnimplementedError, lambda: image.from_registry("x", add_python="3.12")),
        (exception.UnimplementedError, lambda: image.debian_slim().dockerfile_commands("HEALTHCHECK NONE")),
        (exception.InvalidError, lambda: image.debian_slim("three")),
        (exception.ImageBuildError, lambda: create(image=image.from_registry("no-such-image:t").run_commands("true"))),
    ]:
        error = raises(kind, call)
        assert str(error)
    assert isinstance(raises(modal.Error, create, gpu="any"), offleash.OffleashError)
    sandbox = create(cpu=(0.5, 1.5), memory=(128, 512), outbound_domain_allowlist=["*.example.com"], outbound_cidr_allowlist=["192.0.2.0/24"])
    known = offleash.Sandbox.get_info(sandbox.object_id)
    equal((known.cpu_count, known.memory_mb, known.raw["policy"]["deny"]), (2, 512, ["0.0.0.0/0"]))
    equal(known.raw["policy"]["allow"], ["192.0.2.0/24", "*.example.com"])
    raises(exception.InvalidError, sandbox.set_tags, {"modal.app": "other"})
    sandbox.set_tags({"c": "d"})
    equal((sandbox.get_tags(), list(modal.Sandbox.list(tags={"a": "b"}))), ({"c": "d"}, []))
    equal([known.object_id for known in modal.Sandbox.list(tags={"c": "d"})], [sandbox.object_id])
    raises(exception.UnimplementedError, sandbox.wait_until_ready)
    sandbox.detach()
    raises(exception.ClientClosed, sandbox.exec, "true")
    offleash.Sandbox.kill(sandbox.object_id)
    closed = create(block_network=True)
    equal(offleash.Sandbox.get_info(closed.object_id).raw["policy"]["internet"], False)
    closed.terminate()


@case
def dockerfiles_are_divided_into_steps():
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "one").write_text("one")

        def of(text, **named):
            (here / "Dockerfile").write_text(text)
            return modal.Image.from_dockerfile(here / "Dockerfile", context_dir=here, **named)

        text = "# A comment\nARG V=1\nFROM base:${V}\nARG P=/srv\nENV A $P/a\nWORKDIR ${P}\nUSER me\nCOPY one ./\n"
        image = of(text + 'RUN ["echo", "a b"]\nrun echo \\\n  $P $A\nENTRYPOINT ["cat"]\nCMD x', build_args={"P": "/opt"})
        definition = image._definition()
        equal(definition["fromImage"], "base:1")
        steps = [(step["type"], step["args"]) for step in definition["steps"]]
        # What is built begins as root at the root; arguments are not kept in the image.
        assert steps == [
            ("USER", ["root"]),
            ("WORKDIR", ["/"]),
            ("ENV", ["A", "/opt/a"]),
            ("WORKDIR", ["/opt"]),
            ("USER", ["me"]),
            ("COPY", ["one", "./", "", ""]),
            ("RUN", ["echo 'a b'"]),
            ("RUN", ["echo    $P $A"]),
        ], steps
        equal([step.get("secrets") for step in definition["steps"]], [None] * 6 + [{"P": "/opt"}] * 2)
        assert "secrets" not in of("FROM a\nARG P=1\nENV P 2\nRUN x")._definition()["steps"][-1]
        equal((image._entrypoint, image._command), (("cat",), ("/bin/sh", "-c", "x")))
        equal(of(text).object_id, of(text).object_id)
        assert of(text).object_id != of(text, build_args={"V": "2"}).object_id
        (here / "one").write_text("other")
        assert of("FROM a\nCOPY one .").object_id != of("FROM a\nCOPY one /").object_id
        for kind, wrong in [
            (exception.InvalidError, "RUN true"),
            (exception.InvalidError, "FROM a\nCOPY ../one ."),
            (exception.InvalidError, "FROM a\nCOPY none ."),
            (exception.UnimplementedError, "FROM a AS b\nFROM c"),
            (exception.UnimplementedError, "FROM --platform=x a"),
            (exception.UnimplementedError, "FROM a\nCOPY --chown=me one ."),
            (exception.UnimplementedError, "FROM a\nRUN <<END\ntrue\nEND"),
            (exception.UnimplementedError, "FROM a\nVOLUME /x"),
            (exception.UnimplementedError, "FROM a\nADD https://a.example/x ."),
        ]:
            raises(kind, of, wrong)
        raises(FileNotFoundError, modal.Image.debian_slim().add_local_file, here / "none", "/x")
        raises(exception.InvalidError, modal.Image.debian_slim().add_local_file, here / "one", "relative")
        raises(exception.InvalidError, modal.Image.debian_slim().add_local_file(here / "one", "/x").run_commands, "true")
    installed = modal.Image.debian_slim("3.12").pip_install("b", ["a<2"], pre=True).apt_install("git").env({"A": "b"})
    lines = [step["args"][0] for step in installed._definition()["steps"] if step["type"] == "RUN"]
    equal(lines[0], "python -m pip install --pre 'a<2' b")
    assert lines[1].endswith("--no-install-recommends git"), lines


def tar_of(entries):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, content, mode in entries:
            entry = tarfile.TarInfo(name)
            entry.mode, entry.type = mode, kind
            if kind == tarfile.SYMTYPE:
                entry.linkname = content
            else:
                entry.size = len(content or b"")
            archive.addfile(entry, io.BytesIO(content) if content and kind == tarfile.REGTYPE else None)
    return packed.getvalue()


def has_interpreter(program):
    """Whether a program of ELF asks for a dynamic linker."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return any(struct.unpack_from("<I", program, start + number * size)[0] == 3 for number in range(count))


def busybox_image():
    """An image as `docker save` writes it, with busybox alone; nothing where there is no static one."""
    program = Path("/bin/busybox")
    content = program.read_bytes() if program.exists() else b""
    if not content or has_interpreter(content):
        return None
    users = b"root:x:0:0:root:/root:/bin/sh\n"
    links = [(f"bin/{name}", tarfile.SYMTYPE, "busybox", 0o777) for name in ("sh", "cat", "echo", "tar", "id", "mkdir", "cp", "chown")]
    layer = tar_of(
        [(name, tarfile.DIRTYPE, None, mode) for name, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700))]
        + [("bin/busybox", tarfile.REGTYPE, content, 0o755), ("etc/passwd", tarfile.REGTYPE, users, 0o644), *links]
    )
    digest = hashlib.sha256(layer).hexdigest()
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]}}
    config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    manifest = [{"Config": "config.json", "RepoTags": ["tools:t"], "Layers": ["layer.tar"]}]
    parts = {"config.json": json.dumps(config).encode(), "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return tar_of([(name, tarfile.REGTYPE, part, 0o644) for name, part in parts.items()])


@case
def steps_of_an_image_are_built_once():
    archive = busybox_image()
    if archive is None:
        print("SKIP there is no static busybox")
        return
    load = [offleash.daemon.find_binary(), "image", "load", "--state", str(offleash.daemon.private_state()), "-"]
    subprocess.run(load, input=archive, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "app").mkdir()
        (here / "app" / "x").write_text("of the app")
        (here / "Dockerfile").write_text(
            "ARG V=tools:t\nFROM ${V}\nENV A=1 B='two words'\nWORKDIR /srv\nRUN id -u \\\n  > built\nCOPY app app\n"
            'CMD ["sh", "-c", "echo $A $B; cat built app/x hidden"]\n'
        )
        image = modal.Image.from_dockerfile(here / "Dockerfile", context_dir=here)
        image = image.run_commands("echo $S > hidden", secrets=[modal.Secret.from_dict({"S": "a secret"})])
        # What leads out of a directory is left out of it.
        (here / "app" / "link").symlink_to("/etc/hostname")
        (here / "app" / "etc").symlink_to("/etc")
        local = image.add_local_dir(here / "app", "/opt/app")
        built = modal.Sandbox.create(image=image)
        equal(built.stdout.read(), f"1 two words\n{ROOT[1]}\nof the appa secret\n")
        # What was built is found by its steps.
        name = image.object_id
        again = modal.Sandbox.create("sh", "-c", "cat /opt/app/x; ls /opt/app", image=local)
        equal((again.stdout.read(), local.object_id), ("of the appx\n", name))
    secrets = [modal.Secret.from_dict({"S": "the word is hunter2"})]
    other = modal.Image.from_registry("tools:t").run_commands('test "$S" && set -x && : "$S"', secrets=secrets).build()
    error = raises(exception.ImageBuildError, other.run_commands("set -x; echo $S; exit 7", secrets=secrets).build)
    assert "exit code 7" in error.message and "****" in error.message and "hunter2" not in error.message, error
    # Nothing that is kept has the secret: no record, log, registry or layer.
    for above, _, names in os.walk(offleash.daemon.private_state()):
        for path in (Path(above, name) for name in names):
            assert not path.is_file() or b"hunter2" not in path.read_bytes(), path


@case
def names_of_images_hide_their_secrets_and_tell_them_apart():
    def of(value):
        secrets = [modal.Secret.from_dict({"S": value})]
        return modal.Image.from_registry("a").run_commands("x", secrets=secrets).object_id

    assert of("one") == of("one") != of("two")
    key = offleash.daemon.private_state() / "names.key"
    equal(key.stat().st_mode & 0o777, 0o600)
    kept = key.read_bytes()
    key.unlink()
    after = of("one")
    key.write_bytes(kept)
    assert after != of("one")


@case
def links_of_a_directory_are_not_followed():
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "files" / "deep").mkdir(parents=True)
        (here / "files" / "deep" / "a").write_text("a")
        (here / "mine").write_text("mine")
        (here / "files" / "link").symlink_to(here / "mine")
        (here / "files" / "above").symlink_to(here)
        volume = modal.Volume.from_name("modal-links", create_if_missing=True)
        with volume.batch_upload() as batch:
            batch.put_directory(here / "files", "/")
            # One that is named itself is meant.
            batch.put_file(here / "files" / "link", "/named")
        equal(sorted(entry.path for entry in volume.listdir("/", recursive=True)), ["deep", "deep/a", "named"])
        equal(b"".join(volume.read_file("/named")), b"mine")
        modal.Volume.delete("modal-links")
        image = modal.Image.debian_slim().add_local_dir(here / "files", "/x")
        equal([target for _, target in image._files], ["/x/deep/a"])
        # One that came since then is refused.
        (here / "files" / "deep" / "a").unlink()
        (here / "files" / "deep" / "a").symlink_to(here / "mine")
        raises(OSError, modal.Sandbox.create, image=image)


@case
async def methods_of_modal_are_awaited():
    sandbox = await modal.Sandbox.create.aio("sleep", "99", timeout=60)
    process = await sandbox.exec.aio("sh", "-c", "echo 1; sleep 0.1; echo 2", bufsize=1)
    equal(([line async for line in process.stdout], await process.wait.aio()), (["1\n", "2\n"], 0))
    one, two = await asyncio.gather(*[sandbox.exec.aio("echo", word) for word in ("a", "b")])
    equal((await one.stdout.read.aio(), await two.stdout.read.aio()), ("a\n", "b\n"))
    assert sandbox.object_id in [known.object_id async for known in modal.Sandbox.list.aio()]
    await sandbox.filesystem.write_text.aio("x", "/tmp/a")
    equal(await sandbox.filesystem.read_text.aio("/tmp/a"), "x")
    await sandbox.terminate.aio()
    equal(await sandbox.poll.aio(), 137)
