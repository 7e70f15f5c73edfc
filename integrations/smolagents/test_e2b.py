"""`E2BExecutor` unchanged, against the server."""

import e2b_server

e2b_server.use()

from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

executor = E2BExecutor([], AgentLogger(), template="base")
try:
    assert executor("x = 20\nprint('hi')\nx + 1").output == "21"
    try:
        executor("1 / 0")
    except AgentError as error:
        assert "ZeroDivisionError" in str(error)
    else:
        raise AssertionError("an error of the code was none")
    executor.send_variables({"given": [1, 2]})
    assert executor("sum(given)").output == "3"
finally:
    executor.cleanup()
print("ok")
