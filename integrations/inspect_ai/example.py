"""An evaluation whose samples run in sandboxes: `inspect eval example.py --model …`."""

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.tool import bash, python

import offleash_inspect  # noqa: F401


@task
def primes():
    return Task(
        dataset=[Sample(input="What is the 100th prime? Compute it.", target="541")],
        solver=react(tools=[bash(timeout=60), python(timeout=60)]),
        scorer=includes(),
        sandbox="offleash",
    )
