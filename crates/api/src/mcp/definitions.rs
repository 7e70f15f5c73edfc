//! The tools as models read them: names, descriptions, annotations, and the schemas of their arguments.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;

use super::arguments::{
    ForkArguments, KillSandboxArguments, ListFilesArguments, NoArguments, ReadFileArguments, RunCodeArguments,
    RunCommandArguments, WriteFileArguments,
};
use super::backing::CreateArguments;
use crate::http::schema::object_schema;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolName {
    RunCode,
    RunCommand,
    ReadFile,
    WriteFile,
    ListFiles,
    CreateSandbox,
    KillSandbox,
    Fork,
}

impl ToolName {
    const ALL: [Self; 8] = [
        Self::RunCode,
        Self::RunCommand,
        Self::ReadFile,
        Self::WriteFile,
        Self::ListFiles,
        Self::CreateSandbox,
        Self::KillSandbox,
        Self::Fork,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::RunCode => "run_code",
            Self::RunCommand => "run_command",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::ListFiles => "list_files",
            Self::CreateSandbox => "create_sandbox",
            Self::KillSandbox => "kill_sandbox",
            Self::Fork => "fork",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Those that there are: `fork` only where it can be done.
    fn shown(can_fork: bool) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |name| can_fork || *name != Self::Fork)
    }

    /// Their names, with commas.
    pub(super) fn list(can_fork: bool) -> String {
        let names: Vec<_> = Self::shown(can_fork).map(Self::as_str).collect();
        names.join(", ")
    }
}

/// All tools that there are; `create_sandbox` takes arguments only where it can be told what to make.
pub(super) fn tools(can_be_told: bool, can_fork: bool, longest_seconds: u64) -> Vec<Tool> {
    let define = |name| tool(name, can_be_told, longest_seconds);
    ToolName::shown(can_fork).map(define).collect()
}

fn tool(name: ToolName, can_be_told: bool, longest_seconds: u64) -> Tool {
    let (title, description) = words(name);
    let schema = schema(name, can_be_told, longest_seconds);
    Tool::new(name.as_str(), description, schema)
        .with_title(title)
        .with_annotations(annotations(name))
}

fn words(name: ToolName) -> (&'static str, &'static str) {
    match name {
        ToolName::RunCode => (
            "Run code",
            "Runs code in a sandbox and returns what it printed, the value of its last expression, and images that it \
             shows (such as matplotlib figures). Variables, imports and functions are kept between calls, as in a \
             notebook. Nothing outside the sandbox can be read, changed or reached unless its owner allowed it.",
        ),
        ToolName::RunCommand => (
            "Run a command",
            "Runs a shell command (bash) in a sandbox and returns standard output, standard error and the exit code. \
             Each call is a new shell: only files stay. End commands that run on (servers) with `&` and send their \
             output to a file.",
        ),
        ToolName::ReadFile => (
            "Read a file",
            "Returns a file of a sandbox: text as text, images as images, anything else as base64. At most 64 KiB of \
             text at a time; `offset` reads on.",
        ),
        ToolName::WriteFile => (
            "Write a file",
            "Writes a file in a sandbox, over what was there, and makes the directories that lead to it. Changes stay \
             inside the sandbox until its owner takes them out.",
        ),
        ToolName::ListFiles => (
            "List files",
            "Lists a directory of a sandbox, one entry a line: type (`d` directory, `-` file, `l` link), size in bytes, \
             path.",
        ),
        ToolName::CreateSandbox => (
            "Make a sandbox",
            "Makes a further sandbox and returns its id, to be passed as `sandbox`. Not needed to begin: tools that are \
             told no sandbox use the one of this session, which is made by the first of them.",
        ),
        ToolName::KillSandbox => (
            "End a sandbox",
            "Ends a sandbox with everything that runs in it. Without `sandbox` it is that of this session, and the next \
             call makes a new, empty one.",
        ),
        ToolName::Fork => (
            "Fork a sandbox",
            "Makes further sandboxes whose files and variables of code begin as a copy of those of a running one, and returns \
             their ids, to be passed as `sandbox`: for trying several ways from the same state. Processes are not copied.",
        ),
    }
}

fn annotations(name: ToolName) -> ToolAnnotations {
    let of = ToolAnnotations::new();
    match name {
        // What runs may reach the network where its owner allowed that, and may remove what is in the sandbox.
        ToolName::RunCode | ToolName::RunCommand => {
            of.read_only(false).destructive(true).idempotent(false).open_world(true)
        }
        ToolName::ReadFile | ToolName::ListFiles => of.read_only(true).open_world(false),
        ToolName::WriteFile => of.read_only(false).destructive(true).idempotent(true).open_world(false),
        ToolName::CreateSandbox | ToolName::Fork => of
            .read_only(false)
            .destructive(false)
            .idempotent(false)
            .open_world(false),
        ToolName::KillSandbox => of
            .read_only(false)
            .destructive(true)
            .idempotent(false)
            .open_world(false),
    }
}

fn schema(name: ToolName, can_be_told: bool, longest_seconds: u64) -> JsonObject {
    let mut schema = match name {
        ToolName::RunCode => object_schema::<RunCodeArguments>(),
        ToolName::RunCommand => object_schema::<RunCommandArguments>(),
        ToolName::ReadFile => object_schema::<ReadFileArguments>(),
        ToolName::WriteFile => object_schema::<WriteFileArguments>(),
        ToolName::ListFiles => object_schema::<ListFilesArguments>(),
        ToolName::CreateSandbox if !can_be_told => object_schema::<NoArguments>(),
        ToolName::CreateSandbox => object_schema::<CreateArguments>(),
        ToolName::KillSandbox => object_schema::<KillSandboxArguments>(),
        ToolName::Fork => object_schema::<ForkArguments>(),
    };
    if matches!(name, ToolName::RunCode | ToolName::RunCommand) {
        bound_timeout(&mut schema, longest_seconds);
    }
    schema
}

/// Says how long code and commands may take, which whoever has the sandboxes knows.
fn bound_timeout(schema: &mut JsonObject, longest_seconds: u64) {
    let timeout = schema
        .get_mut("properties")
        .and_then(|properties| properties.get_mut("timeout_seconds"));
    if let Some(Value::Object(timeout)) = timeout {
        let usual = super::run::USUAL_TIMEOUT.as_secs().min(longest_seconds);
        timeout.insert("maximum".to_owned(), longest_seconds.into());
        timeout.insert("default".to_owned(), usual.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_tool_says_what_it_takes() {
        for can_be_told in [true, false] {
            for tool in tools(can_be_told, can_be_told, 3600) {
                assert!(
                    tool.description.as_ref().is_some_and(|text| text.len() > 40),
                    "{tool:?}"
                );
                assert_eq!(tool.input_schema["type"], "object");
                let properties = tool.input_schema["properties"].as_object().unwrap();
                for (name, property) in properties {
                    assert!(property["description"].is_string(), "{}: {name}", tool.name);
                }
                for required in tool
                    .input_schema
                    .get("required")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                {
                    assert!(properties.contains_key(required.as_str().unwrap()));
                }
                assert_eq!(ToolName::parse(&tool.name).map(ToolName::as_str), Some(&*tool.name));
            }
        }
        assert_eq!(ToolName::parse("cobol"), None);
    }

    #[test]
    fn schemas_say_what_the_arguments_are_and_how_far_they_go() {
        let property = |tool: &str, name: &str| {
            let tools = tools(true, true, 60);
            let tool = tools.iter().find(|known| known.name == tool).unwrap();
            assert_eq!(tool.input_schema["additionalProperties"], false);
            tool.input_schema["properties"][name].clone()
        };
        let timeout = property("run_command", "timeout_seconds");
        for (key, expected) in [("exclusiveMinimum", 0), ("maximum", 60), ("default", 60)] {
            assert_eq!(timeout[key], expected, "{timeout}");
        }
        assert_eq!(property("run_code", "language")["enum"].as_array().unwrap().len(), 6);
        assert_eq!(property("write_file", "encoding")["enum"], json!(["utf-8", "base64"]));
        assert_eq!(
            property("list_files", "depth")["maximum"],
            super::super::files::MAX_DEPTH
        );
        assert_eq!(
            property("create_sandbox", "env")["additionalProperties"]["type"],
            "string"
        );
    }

    #[test]
    fn a_tool_that_could_only_refuse_is_not_shown() {
        let has_fork = |can_fork| tools(false, can_fork, 1).iter().any(|tool| tool.name == "fork");
        assert_eq!([has_fork(true), has_fork(false)], [true, false]);
        assert!(ToolName::list(true).contains("fork") && !ToolName::list(false).contains("fork"));
    }
}
