"""An agent whose code runs in a sandbox."""

from google.adk.agents import LlmAgent

from offleash_google_adk import OffleashCodeExecutor

root_agent = LlmAgent(
    name="analyst",
    model="gemini-3-flash",
    instruction="Answer by writing and running Python.",
    code_executor=OffleashCodeExecutor(options={"allow_internet_access": False}),
)
