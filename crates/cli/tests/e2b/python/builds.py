"""Templates that are built, and sandboxes of them."""

import os
import pathlib
import tempfile
import uuid

from e2b import (
    Sandbox,
    SandboxException,
    Template,
    default_build_logger,
    wait_for_file,
    wait_for_port,
    wait_for_process,
    wait_for_timeout,
    wait_for_url,
)
from e2b.exceptions import BuildException, NotFoundException, TemplateException

from cases import case, equal, eventually, raises, says

IMAGE = os.environ.get("OFFLEASH_TEST_IMAGE", "")


def name():
    return f"t-{uuid.uuid4().hex[:12]}"


def context(files):
    """A directory with these files."""
    directory = pathlib.Path(tempfile.mkdtemp())
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return str(directory)


def built(template, wanted=None, **options):
    wanted = wanted or name()
    return Template.build(template, wanted, **options)


def run(wanted, command, **options):
    """What a command says in a sandbox of a template."""
    with Sandbox.create(wanted) as sandbox:
        return sandbox.commands.run(command, **options).stdout


@case
def a_template_has_what_its_steps_left():
    wanted, lines = name(), []
    directory = context({"app/main.py": "print(1)\n", "app/sub/data": "data\n", "one.txt": "one\n", "two.txt": "two\n"})
    template = (
        Template(file_context_path=directory)
        .from_image(IMAGE)
        .set_envs({"COLOUR": "blue", "BOTH": "$COLOUR-$OF_THE_IMAGE"})
        .run_cmd("echo $BOTH >/opt/both; whoami >/opt/who")
        .run_cmd(["echo a >/opt/list", "echo b >>/opt/list"], user="root")
        .set_workdir("/srv/app")
        .copy("app", "/srv/app")
        .copy(["one.txt", "two.txt"], "/opt/texts/", mode=0o600, user="root")
        .copy("*.txt", "/opt/all/")
        .make_dir("/opt/made/deep", user="root", mode=0o755)
        .make_symlink("/opt/list", "/opt/link", user="root")
        .rename("/opt/both", "/opt/renamed", user="root")
        .remove("/opt/who", force=True, user="root")
    )
    info = built(template, wanted, on_build_logs=lambda entry: lines.append(str(entry)))
    equal((info.name, info.tags), (wanted, ["default"]))
    says("\n".join(lines), "Build started", "[1/", "RUN echo $BOTH", "Uploaded 'app'", "Build finished")
    with Sandbox.create(wanted) as sandbox:
        say = lambda command, **options: sandbox.commands.run(command, **options).stdout
        equal(say("cat /opt/renamed; cat /opt/link"), "blue-yes\na\nb\n")
        equal(say("pwd; echo $COLOUR; id -un"), "/srv/app\nblue\nuser\n")
        equal(say("cat main.py sub/data"), "print(1)\ndata\n")
        equal(say("ls /opt/all; test -e /opt/who || echo gone; ls -d /opt/made/deep"), "one.txt\ntwo.txt\ngone\n/opt/made/deep\n")
        equal(say("stat -c %a /opt/texts/one.txt", user="root"), "600\n")
        # What was copied, and the directory, are the user's.
        say("echo more >>main.py; echo new >new")
        equal(sandbox.get_info().template_id, info.template_id)
    assert Template.exists(wanted) and Template.alias_exists(info.template_id)
    assert not Template.exists(name())


@case
def installers_are_called():
    template = (
        Template()
        .from_image(IMAGE)
        .apt_install(["vim", "curl"])
        .pip_install("requests")
        .npm_install("left-pad", g=True)
        .bun_install("zod", g=True)
        .git_clone("https://git.test/a.git", "/opt/a", branch="main", depth=1, user="root")
    )
    called = run(built(template).name, "cat /opt/called")
    says(called, "install", "vim curl", "pip install requests", "npm install -g left-pad", "bun", "git clone", "--branch main")


@case
def a_dockerfile_is_understood():
    directory = context({"file": "of the context\n"})
    text = f"FROM {IMAGE}\nENV KEY=value\nWORKDIR /work\nCOPY file copied\nRUN echo $KEY >made\n"
    wanted = built(Template(file_context_path=directory).from_dockerfile(text)).name
    equal(run(wanted, "cat /work/copied /work/made; echo $KEY"), "of the context\nvalue\nvalue\n")


@case
def names_that_the_sdk_knows_are_images_of_the_registry():
    for template in (
        Template().from_base_image(),
        Template().from_debian_image(),
        Template().from_python_image("3"),
    ):
        equal(run(built(template.run_cmd("echo yes >/opt/yes")).name, "cat /opt/yes"), "yes\n")


@case
def one_template_is_built_upon_another():
    below = built(Template().from_image(IMAGE).set_envs({"A": "1"}).set_workdir("/opt").run_cmd("echo below >/opt/below"))
    above = built(Template().from_template(below.name).run_cmd("cat below >above; echo $A >>above"))
    equal(run(above.name, "cat above; pwd; echo $A"), "below\n1\n/opt\n1\n")
    error = raises(SandboxException if False else BuildException, built, Template().from_template("base").run_cmd("true"))
    says(error, "not supported")
    raises(BuildException, built, Template().from_template("no-such-template").run_cmd("true"))


@case
def a_step_is_made_once_unless_that_is_not_wanted():
    stamp = "cat /proc/sys/kernel/random/uuid >/opt/stamp"
    wanted, lines = name(), []
    of = lambda: run(wanted, "cat /opt/stamp")
    built(Template().from_image(IMAGE).run_cmd(stamp), wanted)
    first = of()
    built(Template().from_image(IMAGE).run_cmd(stamp).run_cmd("true"), wanted, on_build_logs=lambda entry: lines.append(str(entry)))
    equal(of(), first)
    says("\n".join(lines), "(unchanged)")
    built(Template().from_image(IMAGE).skip_cache().run_cmd(stamp), wanted)
    second = of()
    assert second != first
    built(Template().from_image(IMAGE).run_cmd(stamp), wanted, skip_cache=True)
    assert of() not in (first, second)


@case
def a_step_that_fails_is_told_and_nothing_is_kept():
    wanted = name()
    template = Template().from_image(IMAGE).run_cmd("echo fine").run_cmd("echo it broke; exit 3").run_cmd("echo never")
    error = raises(BuildException, built, template, wanted)
    says(error, "exit code 3", "it broke")
    # The traceback leads to the step: to this file.
    trace, files = error.__traceback__, []
    while trace:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert any(file.endswith("builds.py") for file in files), files
    raises((NotFoundException, SandboxException), Sandbox.create, wanted)
    info = Template.build_in_background(template, wanted)
    status = eventually(
        lambda: "the end of the build",
        lambda: (found := Template.get_build_status(info)).status.value == "error" and found,
    )
    equal(status.reason.step, "2")
    says(status.reason.message, "it broke")
    error = raises(BuildException, built, Template().from_image(os.environ["OFFLEASH_TEST_HOST_IMAGE"]).run_cmd("true"))
    says(error, "does not allow the image")


@case
def a_build_goes_on_in_the_background_and_its_log_is_read_in_pieces():
    template = Template().from_image(IMAGE).run_cmd("i=0; while [ $i -lt 250 ]; do echo line-$i; i=$((i+1)); done")
    info = Template.build_in_background(template, name())
    offset, seen = 0, []

    def has_ended():
        nonlocal offset
        found = Template.get_build_status(info, logs_offset=offset)
        equal(found.build_id, info.build_id)
        assert len(found.log_entries) <= 100
        offset += len(found.log_entries)
        seen.extend(entry.message for entry in found.log_entries)
        return found.status.value in ("ready", "error") and not found.log_entries and found

    equal(eventually(lambda: seen, has_ended).status.value, "ready")
    equal([line for line in seen if line.startswith("line-")], [f"line-{number}" for number in range(250)])
    status = Template.get_build_status(info)
    equal((status.template_id, status.reason, status.logs), (info.template_id, None, []))


@case
def tags_mean_builds():
    wanted = name()
    of = lambda tag: run(f"{wanted}{tag}", "cat /opt/version")
    version = lambda number: Template().from_image(IMAGE).run_cmd(f"echo {number} >/opt/version")
    first = built(version(1), f"{wanted}:v1", tags=["stable"])
    equal(sorted(first.tags), ["stable", "v1"])
    raises((NotFoundException, SandboxException), Sandbox.create, wanted)
    second = built(version(2), wanted)
    equal(second.template_id, first.template_id)
    equal((of(""), of(":v1"), of(":stable")), ("2\n", "1\n", "1\n"))
    assigned = Template.assign_tags(wanted, ["v2", "stable"])
    equal((assigned.build_id, sorted(assigned.tags)), (second.build_id, ["stable", "v2"]))
    equal(of(":stable"), "2\n")
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(wanted)}
    equal(tags, {"default": second.build_id, "stable": second.build_id, "v1": first.build_id, "v2": second.build_id})
    Template.remove_tags(wanted, ["v1"])
    raises((NotFoundException, SandboxException), Sandbox.create, f"{wanted}:v1")
    equal(sorted(tag.tag for tag in Template.get_tags(second.template_id)), ["default", "stable", "v2"])
    raises(Exception, Template.assign_tags, f"{wanted}:v1", ["v3"])
    raises(Exception, Template.assign_tags, wanted, ["no tag"])
    raises(BuildException, built, version(3), "base")


@case
def a_sandbox_has_the_size_that_its_template_has():
    info = built(Template().from_image(IMAGE).run_cmd("true"), cpu_count=1, memory_mb=256)
    with Sandbox.create(info.name) as sandbox:
        found = sandbox.get_info()
        equal((found.cpu_count, found.memory_mb), (1, 256))
    raises(BuildException, built, Template().from_image(IMAGE), memory_mb=10_000_000)


@case
def what_a_template_starts_runs_when_a_sandbox_is_handed_out():
    site = "mkdir -p /tmp/www; echo up >/tmp/www/index.html; exec httpd -f -p 8000 -h /tmp/www"
    for ready in (wait_for_port(8000), wait_for_url("http://127.0.0.1:8000/index.html"), "wget -q -O - http://127.0.0.1:8000/index.html"):
        wanted = built(Template().from_image(IMAGE).set_start_cmd(site, ready)).name
        equal(run(wanted, "wget -q -O - http://127.0.0.1:8000/"), "up\n")
    wanted = built(Template().from_image(IMAGE).set_envs({"WHAT": "x"}).set_start_cmd("sleep 1; echo $WHAT >/tmp/ready; sleep 1000", wait_for_file("/tmp/ready"))).name
    equal(run(wanted, "cat /tmp/ready"), "x\n")
    # One that is built upon starts the same, and what only waits starts nothing.
    above = built(Template().from_template(wanted).run_cmd("true")).name
    equal(run(above, "cat /tmp/ready"), "x\n")
    wanted = built(Template().from_image(IMAGE).set_ready_cmd(wait_for_timeout(1000))).name
    equal(run(wanted, "echo fine"), "fine\n")


@case
def a_template_is_removed_with_all_of_it():
    from e2b.api.client_sync import get_api_client
    from e2b.api.client.api.templates import delete_templates_template_id, get_templates
    from e2b.connection_config import ConnectionConfig

    info = built(Template().from_image(IMAGE).run_cmd("true"))
    client = get_api_client(ConnectionConfig())
    listed = {each.template_id: each for each in get_templates.sync(client=client)}
    found = listed[info.template_id]
    equal((found.names, found.public, found.build_status.value), ([info.name], False, "ready"))
    equal(delete_templates_template_id.sync_detailed(info.template_id, client=client).status_code, 204)
    assert not Template.exists(info.name)
    raises((NotFoundException, SandboxException), Sandbox.create, info.name)


@case
def tags_are_counted_logs_are_paged_and_a_template_becomes_public():
    try:
        from e2b.api.client.api.tags import get_templates_template_id_tags_count, get_templates_template_id_tags_exists
    except ImportError:
        # An older SDK asks for none of that.
        return
    from e2b.api.client.api.templates import (
        get_templates_template_id_builds_build_id_logs,
        get_templates_template_id,
        patch_v_2_templates_template_id,
    )
    from e2b.api.client.models import LogsDirection, TemplateUpdateRequest
    from e2b.api.client_sync import get_api_client
    from e2b.connection_config import ConnectionConfig

    client = get_api_client(ConnectionConfig())
    info = built(Template().from_image(IMAGE).run_cmd("echo first; echo second"), tags=["v1", "v2"])
    equal(get_templates_template_id_tags_count.sync(info.template_id, client=client).total, 2)
    for tag, is_there in [("v1", True), ("v3", False)]:
        found = get_templates_template_id_tags_exists.sync(info.template_id, client=client, tag=tag)
        equal((found.exists, found.normalized_tag), (is_there, tag))
    logs = get_templates_template_id_builds_build_id_logs.sync
    of = lambda **how: [entry.message for entry in logs(info.template_id, info.build_id, client=client, **how).logs]
    everything = of()
    assert everything.index("first") < everything.index("second"), everything
    equal(of(direction=LogsDirection.BACKWARD), everything[::-1])
    equal(of(limit=1), everything[:1])
    names = patch_v_2_templates_template_id.sync(info.template_id, client=client, body=TemplateUpdateRequest(public=True)).names
    equal(names, [info.name])
    equal(get_templates_template_id.sync(info.template_id, client=client).public, True)


@case
def the_logger_of_the_sdk_follows_a_build():
    built(Template().from_image(IMAGE).run_cmd("echo hello"), on_build_logs=default_build_logger())
