"""The official client of Judge0's, unchanged, against the door that speaks its API; and what it does not ask, by plain HTTP."""

import base64
import os

import httpx
import judge0
from judge0 import Client, File, Filesystem, LanguageAlias, Status, Submission

url, key = os.environ["E2B_API_URL"] + "/judge0", os.environ["E2B_API_KEY"]
client = Client(url, {"X-Auth-Token": key})
names = {language.id: language.name for language in client.languages}
assert names[71].startswith("Python (3."), names
assert client.get_language(71).name == names[71]
assert client.version == "1.13.1" and client.config.max_submission_batch_size == 20
assert [status["id"] for status in client.get_statuses()] == list(range(1, 15))


def run(source, language=LanguageAlias.PYTHON, **fields):
    return judge0.run(client=client, source_code=source, language=language, **fields)


told = run("import sys; print(int(input()) * 2, sys.argv[1:]); print('bad', file=sys.stderr)", stdin="21", command_line_arguments="a 'b c'")
assert (told.stdout, told.stderr, told.status) == ("42 ['a', 'b c']\n", "bad\n", Status.ACCEPTED), told
assert told.exit_code == 0 and told.finished_at >= told.created_at and told.memory > 0, told
# Several at once, each judged by what it should write.
cases = [("1 2", "3"), ("2 2", "5")]
judged = judge0.run(
    client=client,
    submissions=Submission(source_code="print(sum(map(int, input().split())))", language=LanguageAlias.PYTHON),
    test_cases=[judge0.TestCase(input=given, expected_output=expected) for given, expected in cases],
)
assert [one.status for one in judged] == [Status.ACCEPTED, Status.WRONG_ANSWER], judged
files = Filesystem(content=[File(name="sub/helper.py", content="WORD = 'ä'")])
told = run("from sub.helper import WORD; print(WORD)", additional_files=files)
assert (told.stdout, told.status) == ("ä\n", Status.ACCEPTED), told
scripts = [File(name="compile", content="echo made >made"), File(name="run", content="cat made; echo $1")]
told = judge0.run(
    client=client,
    submissions=Submission(
        source_code="", language=LanguageAlias.MULTI_FILE, additional_files=Filesystem(content=scripts), command_line_arguments="word"
    ),
)
assert (told.stdout, told.status) == ("made\nword\n", Status.ACCEPTED), told
ENDS = [
    ("raise SystemExit(3)", {}, Status.RUNTIME_ERROR_NZEC),
    ("import os; os.kill(os.getpid(), 11)", {}, Status.RUNTIME_ERROR_SIGSEGV),
    ("import os; os.abort()", {}, Status.RUNTIME_ERROR_SIGABRT),
    ("while True: pass", {"cpu_time_limit": 0.2, "cpu_extra_time": 0}, Status.TIME_LIMIT_EXCEEDED),
    ("open('large', 'w').write('x' * 3000000)", {"max_file_size": 1024}, Status.RUNTIME_ERROR_NZEC),
    ("print('x' * 3000000)", {}, Status.RUNTIME_ERROR_SIGXFSZ),
    # Ended, or told so where memory is bounded by addresses.
    ("x = bytearray(200 << 20)", {"memory_limit": 100_000}, (Status.RUNTIME_ERROR_OTHER, Status.RUNTIME_ERROR_NZEC)),
    # The server's own port.
    (f"import socket; socket.create_connection(('127.0.0.1', {httpx.URL(url).port}), timeout=9)", {}, Status.RUNTIME_ERROR_NZEC),
]
ended = [Submission(source_code=source, language=LanguageAlias.PYTHON, **fields) for source, fields, _ in ENDS]
for told, (source, _, wanted) in zip(judge0.run(client=client, submissions=ended), ENDS):
    assert told.status in (wanted if isinstance(wanted, tuple) else (wanted,)), (source, told)
if 50 in names:
    told = run("int main(void) { return nothing; }", LanguageAlias.C)
    assert told.status == Status.COMPILATION_ERROR and "nothing" in told.compile_output, told
    source = '#include <stdio.h>\nint main(void) { puts(WORD); }'
    told = run(source, LanguageAlias.C, compiler_options='-DWORD="opt" -Wall')
    assert (told.status, told.stdout) == (Status.ACCEPTED, "opt\n"), told

plain = httpx.Client(base_url=url, headers={"X-Auth-Token": key}, timeout=90)


def post(path="/submissions?wait=true", **fields):
    return plain.post(path, json={"source_code": "printf '\\377'", "language_id": 46, **fields})


# What is no text is had in base64 alone.
answer = post()
assert answer.status_code == 400, answer.text
answer = post("/submissions?wait=true&base64_encoded=true", source_code=base64.b64encode(b"printf '\\377'").decode())
assert (answer.status_code, answer.json()["stdout"], answer.json()["status"]["id"]) == (201, "/w==", 3), answer.text
token = answer.json()["token"]
answer = plain.get(f"/submissions/{token}?base64_encoded=true&fields=token,status_id,source_code,language_id").json()
assert answer == {"token": token, "status_id": 3, "source_code": "cHJpbnRmICdcMzc3Jw==", "language_id": 46}, answer
assert plain.get("/submissions?base64_encoded=true&per_page=1").json()["meta"]["total_count"] >= 10
batch = plain.get(f"/submissions/batch?tokens={token},unknown&base64_encoded=true&fields=status_id").json()
assert batch == {"submissions": [{"status_id": 3}, None]}, batch
assert plain.delete(f"/submissions/{token}?base64_encoded=true").status_code == 200
assert plain.get(f"/submissions/{token}").status_code == 404
for fields in [
    {"language_id": 9999},
    {"source_code": ""},
    {"callback_url": "http://127.0.0.1:1/"},
    {"number_of_runs": 3},
    {"cpu_time_limit": 15.5},
    {"memory_limit": -1},
    {"compiler_options": "-O2"},
    {"additional_files": base64.b64encode(b"PK\5\6" + bytes(18)).decode(), "language_id": 89},
    {"additional_files": base64.b64encode(b"no archive").decode()},
]:
    answer = post(**fields)
    assert answer.status_code == 422 and next(iter(fields)) in answer.text, (fields, answer.text)
several = plain.post("/submissions/batch", json={"submissions": [{"language_id": 46, "source_code": "true"}, {"language_id": 1}]})
assert several.status_code == 201 and list(several.json()[1]) == ["error"], several.text
assert httpx.get(url + "/about").status_code == 401
