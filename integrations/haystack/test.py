"""The tools as Haystack's agents call them, without a model."""

from offleash_haystack import OffleashToolset

tools = OffleashToolset()
try:
    named = {tool.name: tool for tool in tools}
    assert named["run_code"].invoke(code="x = 20\nprint('hi')\nx + 1") == "hi\n21"
    assert named["run_code"].invoke(code="x * 2") == "40"
    assert "ZeroDivisionError" in named["run_code"].invoke(code="1 / 0")
    assert named["run_command"].invoke(command="echo $((40 + 2)); exit 3") == "42\n\nexit code 3"
    assert named["run_command"].parameters["required"] == ["command"]
finally:
    tools.close()
print("ok")
