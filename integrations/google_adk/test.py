"""The executor as an agent calls it, without a model."""

from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File

from offleash_google_adk import OffleashCodeExecutor

executor = OffleashCodeExecutor(timeout_seconds=5)
try:
    given = [File("numbers.csv", "1\n2\n3\n", "text/csv")]
    code = "x = sum(int(line) for line in open('numbers.csv'))\nprint(x)\nopen('out.txt', 'w').write('left')"
    result = executor.execute_code(None, CodeExecutionInput(code=code, input_files=given))
    assert (result.stdout, result.exit_code) == ("6\n", 0), result
    assert [(file.name, file.content) for file in result.output_files] == [("out.txt", b"left")], result
    assert executor.execute_code(None, CodeExecutionInput(code="print(x + 1)")).stdout == "7\n"
    failed = executor.execute_code(None, CodeExecutionInput(code="1 / 0"))
    assert failed.exit_code == 1 and "ZeroDivisionError" in failed.stderr, failed
    late = executor.execute_code(None, CodeExecutionInput(code="while True: pass"))
    assert late.exit_code == 124, late
finally:
    executor.close()
print("ok")
