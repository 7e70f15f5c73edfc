"""`langchain-e2b` unchanged, against the server."""

import e2b_server

e2b_server.use()

import e2b
from langchain_e2b import E2BSandbox

with e2b.Sandbox.create() as sandbox:
    backend = E2BSandbox(sandbox=sandbox)
    assert backend.execute("echo out; exit 3").exit_code == 3
    assert backend.write("/home/user/b.txt", "alpha\n").error is None
    assert backend.edit("/home/user/b.txt", "alpha", "beta").error is None
    assert "beta" in str(backend.read("/home/user/b.txt"))
    assert backend.grep("beta", "/home/user").matches
print("ok")
