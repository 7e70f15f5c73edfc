//! Servers of the Model Context Protocol inside of sandboxes, as E2B's SDK has them started.

use crate::kits::Kit;
use crate::languages::run;
use crate::server::{NO_POOL, Server};

#[test]
fn named_servers_are_started_inside_and_spoken_for() {
    let (Some(kit), Some(protocol)) = (Kit::find("python"), Kit::find("python_mcp")) else {
        return;
    };
    let server = Server::start(NO_POOL);
    let mut program = kit.program(server.site.root(), &["gateway"]);
    program.env("PYTHONPATH", kit.beside(&protocol));
    run(&server, program);
    server.end();
}
