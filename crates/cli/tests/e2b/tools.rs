//! Tools of the owner, called from sandboxes that users of E2B's SDKs made.

use crate::kits::Kit;
use crate::languages::run;
use crate::server::{NO_POOL, Server};
use crate::support::Site;

const SCRIPT: &str = r#"
import sys
from e2b_code_interpreter import Sandbox
from e2b.exceptions import SandboxException

try:
    Sandbox.create(template="base", metadata={"offleash.tools": "say where n < 20 calls 2"})
    sys.exit("it was made")
except SandboxException as error:
    assert "not shown to be within" in str(error), error
sandbox = Sandbox.create(template="base", metadata={"offleash.tools": "say where n < 5 calls 2"})
assert sandbox.commands.run("say --n 4").stdout == '{"n":4}\n'
refused = sandbox.commands.run("say --n 6; echo $?")
assert refused.stdout == "126\n" and "n < 5" in refused.stderr, refused
called = sandbox.run_code("from offleash_tools import say, ToolError\nsay(n=3)['n'] + 1")
assert called.text == "4", called
used = sandbox.run_code("try:\n    say(n=1)\nexcept ToolError as error:\n    print(error.kind, error)")
assert "refused" in used.logs.stdout[0] and "used up" in used.logs.stdout[0], used
sandbox.kill()
"#;

#[test]
fn the_code_interpreter_sdk_calls_tools_from_commands_and_cells() {
    let Some(kit) = Kit::find("python_code_interpreter") else {
        return;
    };
    let site = Site::sharing_templates();
    let policy = site.root().join("tools.toml");
    std::fs::write(&policy, "[[tool]]\nname = \"say\"\nprogram = [\"/bin/cat\"]\n").unwrap();
    let script = site.root().join("script.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let templates = "templates = { base = [\"say where n < 10 calls 9\"] }";
    let config = format!("{NO_POOL}[tools]\npolicy = {policy:?}\n{templates}\n");
    let server = Server::start_on(site, None, &config);
    run(&server, kit.python(&script));
    server.end();
}
