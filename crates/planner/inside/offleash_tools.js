// Tools that this sandbox was given: each is an asynchronous function of this module.
//
//     const { search } = require("offleash_tools");
//     await search({ query: "x" });
//
// A call that is refused, or fails, throws a ToolError, whose `kind` is one of refused, invalid, failed, timeout, unknown_tool.
"use strict";
const { connect } = require("node:net");

class ToolError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "ToolError";
    this.kind = kind;
  }
}

function once(request) {
  return new Promise((resolve, reject) => {
    const parts = [];
    const socket = connect({ path: "\0offleash-tools" }, () => socket.write(request));
    socket.on("data", (part) => {
      parts.push(part);
      const whole = Buffer.concat(parts);
      if (whole.length >= 4 && whole.length >= 4 + whole.readUInt32LE(0)) {
        socket.destroy();
        resolve(whole.subarray(4));
      }
    });
    socket.on("error", reject);
    socket.on("close", () => reject(new ToolError("failed", "there was no answer")));
  });
}

async function ask(request) {
  const body = Buffer.from(JSON.stringify(request));
  if (body.length > 256 * 1024) throw new ToolError("invalid", "a call is 256 KiB at most");
  const length = Buffer.alloc(4);
  length.writeUInt32LE(body.length);
  for (let attempt = 1; ; attempt++) {
    try {
      const answer = JSON.parse(await once(Buffer.concat([length, body])));
      if (answer.error) throw new ToolError(answer.error.kind, answer.error.message);
      return answer.result;
    } catch (error) {
      // The sandbox's first command may be sooner there than who takes calls.
      if (error.code !== "ECONNREFUSED" && error.code !== "EAGAIN") throw error;
      if (attempt === 200) throw new ToolError("failed", "no tools are offered here");
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

const call = (tool, parameters = {}) => ask({ form: "json", tool, parameters });
const tools = () => ask({ form: "list" });

module.exports = new Proxy(
  { ToolError, call, tools },
  {
    get: (known, name) => known[name] ?? (typeof name === "string" && name !== "then" ? (given) => call(name, given) : undefined),
  },
);
