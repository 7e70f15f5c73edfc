"""Git and the network through the asynchronous half of the SDK."""

from e2b import AsyncSandbox, AsyncTemplate, BuildException, SandboxException

from cases import Skip, case, equal, raises_later, says
from network import ONE, OTHER, script_of, was_let_out


@case
async def git_knows_what_is_new(sandbox):
    if (await sandbox.commands.run("command -v git || true")).stdout == "":
        raise Skip("no git in the sandbox")
    repository = "/home/user/repo"
    await sandbox.git.init(repository, initial_branch="main")
    await sandbox.git.configure_user("Ann", "ann@example.com")
    await sandbox.files.write("repo/a.txt", "1")
    status = await sandbox.git.status(repository)
    equal((status.current_branch, [file.name for file in status.file_status]), ("main", ["a.txt"]))
    await sandbox.git.add(repository)
    await sandbox.git.commit(repository, "first")
    assert (await sandbox.git.status(repository)).is_clean
    await sandbox.git.create_branch(repository, "other")
    branches = await sandbox.git.branches(repository)
    equal((branches.current_branch, sorted(branches.branches)), ("other", ["main", "other"]))
    await sandbox.git.checkout_branch(repository, "main")
    await sandbox.git.clone(repository, path="/home/user/copy")
    equal(await sandbox.files.read("copy/a.txt"), "1")


async def is_let_out(sandbox, host):
    return was_let_out((await sandbox.commands.run(script_of(host))).stdout)


@case
async def rules_of_the_network_are_kept():
    async with await AsyncSandbox.create(allow_internet_access=False) as sandbox:
        equal(await is_let_out(sandbox, ONE), False)
    rules = {"deny_out": ["0.0.0.0/0"], "allow_out": [OTHER]}
    async with await AsyncSandbox.create(network=rules) as sandbox:
        equal((await is_let_out(sandbox, ONE), await is_let_out(sandbox, OTHER)), (False, True))
        await sandbox.update_network({"deny_out": [OTHER]})
        equal((await is_let_out(sandbox, ONE), await is_let_out(sandbox, OTHER)), (True, False))
    await raises_later(SandboxException, AsyncSandbox.create(network={"deny_out": ["not an address"]}))


@case
async def what_is_not_there_says_so(sandbox):
    template = AsyncTemplate().from_aws_registry("a", "key", "secret", "region")
    error = await raises_later(BuildException, AsyncTemplate.build(template, "a-of-tests"))
    says(error, "501")
    assert await sandbox.is_running()
