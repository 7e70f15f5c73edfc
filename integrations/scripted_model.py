"""A server in the place of a model: it says what a script says, by the interfaces of Anthropic and of OpenAI.

    with ScriptedModel([{"tool": "Bash", "input": {"command": "ls"}}, {"text": "done"}]) as model:
        …  # model.url is where it listens; model.requests is what it was asked

A turn is for requests that have tools; all others, such as those for a title, are answered with a word.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedModel:
    """Answers each request that has tools with the next turn of a script, and then with `done`."""

    def __init__(self, turns):
        self.turns = list(turns)
        self.requests = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                model._answer(self, self.path.partition("?")[0], body)

            def do_GET(self):
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _turn(self, body):
        if not body.get("tools"):
            return {"text": "a title"}
        self.requests.append(body)
        turn = self.turns.pop(0) if self.turns else {"text": "done"}
        return turn(body) if callable(turn) else turn

    def _answer(self, handler, path, body):
        shape = next((shape for end, shape in SHAPES.items() if path.endswith(end)), None)
        if shape is None:
            return handler.do_GET()
        whole, events = shape(self._turn(body))
        if not body.get("stream"):
            return _sent(handler, "application/json", json.dumps(whole))
        lines = []
        for event in events:
            if isinstance(event, dict) and "type" in event:
                lines.append(f"event: {event['type']}\n")
            lines.append(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
        _sent(handler, "text/event-stream", "".join(lines))


def _sent(handler, kind, text):
    content = text.encode()
    handler.send_response(200)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def messages(turn):
    """A turn as Anthropic's Messages has it."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    if "tool" in turn:
        block = {"type": "tool_use", "id": "toolu_01scripted", "name": turn["tool"], "input": turn["input"]}
        begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(turn["input"])}
    else:
        block = {"type": "text", "text": turn["text"]}
        begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": turn["text"]}
    reason = "tool_use" if "tool" in turn else "end_turn"
    message = {"id": "msg_01scripted", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
    whole = {**message, "content": [block], "stop_reason": reason, "stop_sequence": None}
    return whole, [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def responses(turn):
    """A turn as OpenAI's Responses has it."""
    if "tool" in turn:
        item = {"type": "function_call", "id": "fc_scripted", "call_id": "call_scripted", "status": "completed"}
        item.update(name=turn["tool"], arguments=json.dumps(turn["input"]))
        if "namespace" in turn:
            item["namespace"] = turn["namespace"]
    else:
        said = {"type": "output_text", "text": turn["text"], "annotations": []}
        item = {"type": "message", "id": "msg_scripted", "role": "assistant", "status": "completed", "content": [said]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage.update(input_tokens_details={"cached_tokens": 0}, output_tokens_details={"reasoning_tokens": 0})
    whole = {"id": "resp_scripted", "object": "response", "created_at": 0, "model": "scripted", "status": "completed"}
    whole.update(output=[item], usage=usage, parallel_tool_calls=False, tool_choice="auto", tools=[])
    return whole, [
        {"type": "response.created", "sequence_number": 0, "response": {**whole, "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item},
        {"type": "response.completed", "sequence_number": 2, "response": whole},
    ]


def completions(turn):
    """A turn as OpenAI's Chat Completions has it."""
    message = {"role": "assistant", "content": turn.get("text")}
    if "tool" in turn:
        function = {"name": turn["tool"], "arguments": json.dumps(turn["input"])}
        message["tool_calls"] = [{"index": 0, "id": "call_scripted", "type": "function", "function": function}]
    reason = "tool_calls" if "tool" in turn else "stop"
    whole = {"id": "chatcmpl-scripted", "created": 0, "model": "scripted"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "finish_reason": reason}
    chunk = {**whole, "object": "chat.completion.chunk"}
    return (
        {**whole, "object": "chat.completion", "choices": [{**choice, "message": message}], "usage": usage},
        [{**chunk, "choices": [{**choice, "delta": message}]}, {**chunk, "choices": [], "usage": usage}, "[DONE]"],
    )


SHAPES = {"/messages": messages, "/responses": responses, "/chat/completions": completions}
