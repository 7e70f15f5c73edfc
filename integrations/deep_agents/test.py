"""The backend as Deep Agents call it, without a model."""

from offleash_deep_agents import OffleashBackend

backend = OffleashBackend(timeout=60)
with backend.sandbox:
    assert backend.execute("echo out; echo err >&2; exit 3").exit_code == 3
    assert backend.execute("sleep 9", timeout=1).exit_code == 124
    assert backend.upload_files([("/home/user/a.txt", b"one\ntwo\n"), ("relative", b"")])[1].error == "invalid_path"
    found = backend.download_files(["/home/user/a.txt", "/home/user/none", "/home/user"])
    assert found[0].content == b"one\ntwo\n", found
    assert found[1].error == "file_not_found", found
    assert found[2].error == "is_directory", found
    assert backend.write("/home/user/b.txt", "alpha\n").error is None
    assert backend.edit("/home/user/b.txt", "alpha", "beta").error is None
    assert "beta" in str(backend.read("/home/user/b.txt")), backend.read("/home/user/b.txt")
    assert any(entry["path"].endswith("b.txt") for entry in backend.ls("/home/user").entries)
    assert backend.grep("two", "/home/user").matches, backend.grep("two", "/home/user")
print("ok")
