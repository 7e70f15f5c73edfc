"""Has E2B's own packages ask the server that the library `offleash` uses: sets their variables, with a key for them."""

import os

from offleash import Sandbox
from offleash._sync.api import open_api


def use():
    """To be called before `e2b` is imported."""
    with Sandbox.create(timeout=60):
        api = open_api()
        url = api.ask("GET", "/v1/version")["url"]
    os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = url
    os.environ["E2B_API_KEY"] = api.ask("POST", "/v1/keys", {"name": "test of an integration"})["key"]
