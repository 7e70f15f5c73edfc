"""The same through the asynchronous half of the SDK."""

from e2b import AsyncSandbox, GitAuthException

from cases import case, equal, raises_later
from git_remotes import PASSWORD, USER, host, knows_password, network, repository


@case
async def repositories_are_pushed_cloned_and_pulled():
    async with await AsyncSandbox.create(network=network()) as sandbox:
        url, git, path, copy = repository(), sandbox.git, "/home/user/repo", "/home/user/copy"
        credentials = {"username": USER, "password": PASSWORD if knows_password() else "dummy"}
        await git.init(path, initial_branch="main")
        await git.configure_user("Ann", "ann@example.com")
        await git.remote_add(path, "origin", url)
        equal(await git.remote_get(path, "origin"), url)
        await sandbox.files.write("repo/a.txt", "1")
        await git.add(path)
        await git.commit(path, "first")
        if knows_password():
            await raises_later(GitAuthException, git.push(path, remote="origin", branch="main"))
            await raises_later(GitAuthException, git.clone(url, path="/home/user/none"))
        await git.push(path, remote="origin", branch="main", **credentials)
        await git.clone(url, path=copy, **credentials)
        equal(await sandbox.files.read("copy/a.txt"), "1")
        await sandbox.files.write("repo/a.txt", "2")
        await git.commit(path, "nothing", allow_empty=True)
        await git.add(path)
        await git.commit(path, "second")
        await git.push(path, remote="origin", branch="main", **credentials)
        await git.pull(copy, remote="origin", branch="main", **credentials)
        equal(await sandbox.files.read("copy/a.txt"), "2")
        assert (await git.status(copy)).is_clean
        await git.dangerously_authenticate(
            USER, credentials["password"], host=host(), protocol=url.split(":")[0]
        )
        await git.create_branch(copy, "other")
        await git.push(copy, remote="origin", branch="other", set_upstream=True)
        equal(sorted((await git.branches(copy)).branches), ["main", "other"])
