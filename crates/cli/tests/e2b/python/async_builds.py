"""Templates through the asynchronous half of the SDK."""

import asyncio
import os
import pathlib
import tempfile
import uuid

from e2b import AsyncSandbox, AsyncTemplate, SandboxException, wait_for_file
from e2b.exceptions import BuildException

from cases import case, equal, eventually_later, raises_later, says

IMAGE = os.environ.get("OFFLEASH_TEST_IMAGE", "")


def name():
    return f"t-{uuid.uuid4().hex[:12]}"


@case
async def a_template_is_built_and_sandboxes_are_made_of_it():
    wanted, lines = f"{name()}", []
    directory = pathlib.Path(tempfile.mkdtemp())
    (directory / "file").write_text("copied\n")
    template = (
        AsyncTemplate(file_context_path=str(directory))
        .from_image(IMAGE)
        .copy("file", "/opt/file")
        .run_cmd("echo $KEY >/opt/key")
        .set_envs({"KEY": "value"})
        .set_user("root")
        .set_start_cmd("echo up >/tmp/up; sleep 1000", wait_for_file("/tmp/up"))
    )
    info = await AsyncTemplate.build(template, f"{wanted}:v1", tags=["v2"], on_build_logs=lambda entry: lines.append(str(entry)))
    says("\n".join(lines), "Uploaded 'file'", "RUN echo $KEY")
    assert await AsyncTemplate.exists(wanted)
    async with await AsyncSandbox.create(f"{wanted}:v2") as sandbox:
        said = await sandbox.commands.run("cat /opt/file /tmp/up; echo $KEY; id -un")
        equal(said.stdout, "copied\nup\nvalue\nroot\n")
    equal((await AsyncTemplate.assign_tags(f"{wanted}:v1", ["default"])).build_id, info.build_id)
    equal(sorted(tag.tag for tag in await AsyncTemplate.get_tags(wanted)), ["default", "v1", "v2"])
    await AsyncTemplate.remove_tags(wanted, ["v2"])
    await raises_later(SandboxException, AsyncSandbox.create(f"{wanted}:v2"))


@case
async def a_failure_is_told_with_its_step():
    template = AsyncTemplate().from_image(IMAGE).run_cmd("echo one").run_cmd("echo it broke; false")
    says(await raises_later(BuildException, AsyncTemplate.build(template, name())), "exit code 1", "it broke")
    info = await AsyncTemplate.build_in_background(template, name())

    async def has_ended():
        found = await AsyncTemplate.get_build_status(info)
        return found.status.value == "error" and found

    equal((await eventually_later(lambda: "the end", has_ended)).reason.step, "2")


@case
async def several_are_built_at_once():
    one = lambda number: AsyncTemplate.build(AsyncTemplate().from_image(IMAGE).run_cmd(f"echo {number} >/opt/number"), name())
    for number, info in enumerate(await asyncio.gather(*[one(number) for number in range(3)])):
        async with await AsyncSandbox.create(info.name) as sandbox:
            equal((await sandbox.commands.run("cat /opt/number")).stdout, f"{number}\n")
