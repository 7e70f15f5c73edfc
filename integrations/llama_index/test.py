"""The tools as LlamaIndex calls them, without a model."""

from offleash_llama_index import OffleashToolSpec

spec = OffleashToolSpec()
try:
    code, command = spec.to_tool_list()
    assert code.metadata.name == "code_interpreter"
    assert code.call(code="x = 20\nprint('hi')\nx + 1").raw_output == "hi\n21"
    assert code.call(code="x * 2").raw_output == "40"
    assert "ZeroDivisionError" in code.call(code="1 / 0").raw_output
    assert command.call(command="echo $((40 + 2)); exit 3").raw_output == "42\n\nexit code 3"
finally:
    spec.close()
print("ok")
