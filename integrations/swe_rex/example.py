"""A shell in a sandbox, as SWE-agent has it."""

import asyncio

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

from offleash_swe_rex import OffleashDeployment


async def main():
    deployment = OffleashDeployment(template="base", timeout=3600)
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    print((await deployment.runtime.run_in_session(BashAction(command="uname -a"))).output)
    await deployment.stop()


asyncio.run(main())
