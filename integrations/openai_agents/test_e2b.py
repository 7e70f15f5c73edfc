"""The SDK's own sandbox client for E2B unchanged, with the release of `e2b` that it asks for, against the server."""

import e2b_server

e2b_server.use()

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest
from agents.sandbox.entries import File


async def main():
    client = E2BSandboxClient()
    manifest = Manifest(root="/home/user/workspace", entries={"notes/a.txt": File(content=b"alpha\n")})
    options = E2BSandboxClientOptions(sandbox_type="e2b", template="base", on_timeout="kill", auto_resume=False)
    session = await client.create(manifest=manifest, options=options)
    try:
        async with session:
            result = await session.exec("cat notes/a.txt; echo err >&2; exit 3")
            assert (result.stdout, result.stderr, result.exit_code) == (b"alpha\n", b"err\n", 3), result
            await session.write(Path("b.txt"), io.BytesIO(b"beta"))
            assert (await session.read(Path("b.txt"))).read() == b"beta"
            assert await session.running()
    finally:
        await client.delete(session)


asyncio.run(main())
print("ok")
