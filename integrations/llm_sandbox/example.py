"""Code of a model, in a sandbox."""

import offleash_llm_sandbox  # noqa: F401
from llm_sandbox import SandboxSession

with SandboxSession(backend="offleash", lang="python", options={"allow_internet_access": False}) as session:
    print(session.run("print(sum(range(10)))").stdout)
