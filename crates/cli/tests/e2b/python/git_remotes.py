"""Git over HTTP with a server that wants a password: `GIT_URL` leads to its repositories, each made when it is asked for.

With `GIT_SECRET` the gateway signs in, and nobody here knows a password.
"""

import os
import uuid

from e2b import GitAuthException, GitUpstreamException, Sandbox

from cases import case, equal, raises

USER, PASSWORD = "ann", "hunter2hunter2"


def repository():
    return f"{os.environ['GIT_URL']}/{uuid.uuid4().hex}.git"


def host():
    return os.environ["GIT_URL"].split("/")[2]


def network():
    """Where there is a secret, its header is set for the host; a port is no part of it."""
    secret = os.environ.get("GIT_SECRET")
    if not secret:
        return None
    headers = {"Authorization": "Basic me:${e2b.secrets.%s}" % secret}
    return {"rules": {host().split(":")[0]: [{"transform": {"headers": headers}}]}}


def knows_password():
    return "GIT_SECRET" not in os.environ


def begun(sandbox, url):
    """A repository with a commit that is pushed for the first time."""
    git, path = sandbox.git, "/home/user/repo"
    git.init(path, initial_branch="main")
    git.configure_user("Ann", "ann@example.com", scope="local", path=path)
    equal(git.get_config("user.email", scope="local", path=path), "ann@example.com")
    git.set_config("pull.rebase", "false")
    equal(git.get_config("pull.rebase"), "false")
    equal(git.remote_get(path, "origin"), None)
    git.remote_add(path, "origin", "http://elsewhere.example/x.git")
    git.remote_add(path, "origin", url, overwrite=True)
    equal(git.remote_get(path, "origin"), url)
    sandbox.files.write("repo/a.txt", "1")
    git.add(path)
    git.commit(path, "first")
    return path


def clean(sandbox, *words):
    """That nothing inside has a password: configuration, credentials, processes."""
    seen = sandbox.commands.run(
        "cat /home/user/*/.git/config ~/.gitconfig ~/.git-credentials 2>/dev/null; env; cat /proc/*/cmdline /proc/*/environ 2>/dev/null; true"
    ).stdout
    for word in words:
        assert word not in seen, f"{word} is in {seen}"


@case
def repositories_are_pushed_cloned_and_pulled():
    with Sandbox.create(network=network()) as sandbox:
        url, git = repository(), sandbox.git
        # Where the gateway signs in, any password does.
        credentials = {"username": USER, "password": PASSWORD if knows_password() else "dummy"}
        path = begun(sandbox, url)
        raises(GitUpstreamException, git.push, path, set_upstream=False)
        if knows_password():
            raises(GitAuthException, git.push, path, remote="origin", branch="main")
            raises(GitAuthException, git.clone, url, path="/home/user/none")
            raises(GitAuthException, git.clone, url, path="/home/user/none", username=USER, password="wrong")
        git.push(path, remote="origin", branch="main", **credentials)
        equal(git.remote_get(path, "origin"), url)

        copy = "/home/user/copy"
        git.clone(url, path=copy, branch="main", depth=1, **credentials)
        equal(git.remote_get(copy, "origin"), url)
        equal(sandbox.files.read("copy/a.txt"), "1")
        status = git.status(copy)
        equal((status.current_branch, status.upstream, status.is_clean), ("main", "origin/main", True))

        # More than what goes in one piece.
        sandbox.commands.run("head -c 3000000 /dev/urandom > /home/user/repo/big")
        git.add(path, ["big"])
        git.commit(path, "second", author_name="Bob", author_email="bob@example.com")
        git.push(path, remote="origin", branch="main", **credentials)
        equal(git.status(copy).behind, 0)
        git.pull(copy, remote="origin", branch="main", **credentials)
        equal(sandbox.files.get_info("copy/big").size, 3000000)

        # A copy of one branch knows no other upstream.
        git.clone(url, path="/home/user/whole", **credentials)
        git.create_branch("/home/user/whole", "theirs")
        git.push("/home/user/whole", remote="origin", branch="theirs", set_upstream=True, **credentials)
        equal(git.status("/home/user/whole").upstream, "origin/theirs")
        git.create_branch(copy, "other")
        git.push(copy, remote="origin", branch="other", set_upstream=True, **credentials)
        git.checkout_branch(copy, "main")
        git.delete_branch(copy, "other", force=True)
        equal(git.branches(copy).branches, ["main"])
        sandbox.files.write("copy/a.txt", "2")
        git.restore(copy, ["a.txt"], worktree=True)
        equal(sandbox.files.read("copy/a.txt"), "1")
        git.reset(copy, mode="hard", target="HEAD")
        clean(sandbox, PASSWORD)


@case
def credentials_may_be_stored():
    with Sandbox.create(network=network()) as sandbox:
        url, git = repository(), sandbox.git
        path = begun(sandbox, url)
        password = PASSWORD if knows_password() else "dummy"
        git.dangerously_authenticate(USER, password, host=host(), protocol=url.split(":")[0])
        git.push(path, remote="origin", branch="main")
        git.clone(url, path="/home/user/copy")
        equal(sandbox.files.read("copy/a.txt"), "1")
        stored = sandbox.commands.run("cat ~/.git-credentials").stdout
        assert password in stored, stored
        sandbox.files.remove(".git-credentials")
        git.clone(url, path="/home/user/third", username=USER, password=password, dangerously_store_credentials=True)
        assert password in sandbox.git.remote_get("/home/user/third", "origin")


@case
def who_has_no_password_needs_none():
    if knows_password():
        return
    with Sandbox.create(network=network()) as sandbox:
        url, git = repository(), sandbox.git
        path = begun(sandbox, url)
        git.push(path, remote="origin", branch="main")
        git.clone(url, path="/home/user/copy")
        git.pull("/home/user/copy")
        # The server echoes what it was sent; the sandbox sees none of it.
        echo = url.split("/git/")[0] + "/echo"
        said = sandbox.commands.run(f"python3 -c \"import urllib.request as u; print(u.urlopen('{echo}').read())\"").stdout
        assert "REAL" not in said and "UkVBT" not in said and "me:" in said, said
        clean(sandbox, "REAL0123")
