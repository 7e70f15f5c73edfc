//! What code in a sandbox calls its tools with: a command for each, and a module of Python and one of Node.js for all.

use std::path::{Path, PathBuf};

use offleash_core::plan::{Environment, PlanEntry, PlanNode};
use offleash_core::tool::DeclaredTool;
use offleash_core::units::Bytes;
use offleash_protocol::tools::COMMANDS;

use super::system::system;

/// The directory of all of it: a file system of its own, since nothing of the root directory of a system is executed.
const DIRECTORY: &str = "/run/offleash/tools";
/// How much it holds, bytes.
const SIZE: u64 = 1 << 20;
/// How many files.
const INODES: u64 = 256;
/// The program that each command is.
const PROGRAM: &str = "/run/offleash/tools/call";
/// Where the modules are.
const MODULES: &str = "/run/offleash/tools/lib";
/// What login shells read, whose `/etc/profile` sets a `PATH` of its own.
const PROFILE: &str = "/etc/profile.d/offleash-tools.sh";
/// Has them look for commands of tools first.
const SEARCH: &str = "# Commands of the tools of this sandbox.
case \":$PATH:\" in
*:/run/offleash/tools/bin:*) ;;
*) export PATH=\"/run/offleash/tools/bin:$PATH\" ;;
esac
";
/// A module of Python: each tool is a function of it.
const PYTHON: &str = include_str!("../inside/offleash_tools.py");
/// A module of Node.js: each tool is an asynchronous function of it.
const JAVASCRIPT: &str = include_str!("../inside/offleash_tools.js");

/// The directory of the commands, to be searched before all others.
pub(super) fn directory(tools: &[DeclaredTool]) -> Option<PathBuf> {
    (!tools.is_empty()).then(|| COMMANDS.into())
}

/// Variables with which the modules are found.
pub(super) fn variables(tools: &[DeclaredTool]) -> Environment {
    match tools.is_empty() {
        true => Environment::new(),
        false => ["PYTHONPATH", "NODE_PATH"]
            .map(|name| (name.into(), MODULES.into()))
            .into(),
    }
}

/// The files.
pub(super) fn entries(tools: &[DeclaredTool]) -> Vec<PlanEntry> {
    if tools.is_empty() {
        return Vec::new();
    }
    let file = |path: PathBuf, text: &str| {
        let contents = text.as_bytes().to_vec();
        system(path, PlanNode::File { contents })
    };
    let module = |name: &str, text: &str| file(Path::new(MODULES).join(name), text);
    let command = |tool: &DeclaredTool| {
        let to = PathBuf::from(PROGRAM);
        system(Path::new(COMMANDS).join(tool.name.as_str()), PlanNode::Symlink { to })
    };
    let place = PlanNode::Tmpfs {
        size: Some(Bytes(SIZE)),
        inodes: Some(INODES),
        mode: 0o755,
    };
    let shared = [
        system(DIRECTORY, place),
        system(PROGRAM, PlanNode::Guest),
        module("offleash_tools.py", PYTHON),
        module("offleash_tools.js", JAVASCRIPT),
        file(PROFILE.into(), SEARCH),
    ];
    shared.into_iter().chain(tools.iter().map(command)).collect()
}
