//! The tools as models read them: names, descriptions, annotations, and the schemas of their arguments.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;

use super::arguments::{
    ForkArguments, KillSandboxArguments, ListFilesArguments, NoArguments, ReadFileArguments, RunCodeArguments,
    RunCommandArguments, WriteFileArguments,
};
use super::backing::CreateArguments;
use crate::schema::object_schema;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    RunCode,
    RunCommand,
    ReadFile,
    WriteFile,
    ListFiles,
    CreateSandbox,
    KillSandbox,
    Fork,
}

impl Name {
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
    Name::shown(can_fork).map(define).collect()
}

fn tool(name: Name, can_be_told: bool, longest_seconds: u64) -> Tool {
    let (title, description) = words(name);
    let schema = schema(name, can_be_told, longest_seconds);
    Tool::new(name.as_str(), description, schema)
        .with_title(title)
        .with_annotations(annotations(name))
}

fn words(name: Name) -> (&'static str, &'static str) {
    match name {
        Name::RunCode => (
            "Run code",
            "Runs code in a sandbox and returns what it printed, the value of its last expression, and images that it \
             shows (such as matplotlib figures). Variables, imports and functions are kept between calls, as in a \
             notebook. Nothing outside the sandbox can be read, changed or reached unless its owner allowed it.",
        ),
        Name::RunCommand => (
            "Run a command",
            "Runs a shell command (bash) in a sandbox and returns standard output, standard error and the exit code. \
             Each call is a new shell: only files stay. End commands that run on (servers) with `&` and send their \
             output to a file.",
        ),
        Name::ReadFile => (
            "Read a file",
            "Returns a file of a sandbox: text as text, images as images, anything else as base64. At most 64 KiB of \
             text at a time; `offset` reads on.",
        ),
        Name::WriteFile => (
            "Write a file",
            "Writes a file in a sandbox, over what was there, and makes the directories that lead to it. Changes stay \
             inside the sandbox until its owner takes them out.",
        ),
        Name::ListFiles => (
            "List files",
            "Lists a directory of a sandbox, one entry a line: type (`d` directory, `-` file, `l` link), size in bytes, \
             path.",
        ),
        Name::CreateSandbox => (
            "Make a sandbox",
            "Makes a further sandbox and returns its id, to be passed as `sandbox`. Not needed to begin: tools that are \
             told no sandbox use the one of this session, which is made by the first of them.",
        ),
        Name::KillSandbox => (
            "End a sandbox",
            "Ends a sandbox with everything that runs in it. Without `sandbox` it is that of this session, and the next \
             call makes a new, empty one.",
        ),
        Name::Fork => (
            "Fork a sandbox",
            "Makes further sandboxes whose files and variables of code begin as a copy of those of a running one, and returns \
             their ids, to be passed as `sandbox`: for trying several ways from the same state. Processes are not copied.",
        ),
    }
}

fn annotations(name: Name) -> ToolAnnotations {
    let of = ToolAnnotations::new();
    match name {
        // What runs may reach the network where its owner allowed that, and may remove what is in the sandbox.
        Name::RunCode | Name::RunCommand => of.read_only(false).destructive(true).idempotent(false).open_world(true),
        Name::ReadFile | Name::ListFiles => of.read_only(true).open_world(false),
        Name::WriteFile => of.read_only(false).destructive(true).idempotent(true).open_world(false),
        Name::CreateSandbox | Name::Fork => of
            .read_only(false)
            .destructive(false)
            .idempotent(false)
            .open_world(false),
        Name::KillSandbox => of
            .read_only(false)
            .destructive(true)
            .idempotent(false)
            .open_world(false),
    }
}

fn schema(name: Name, can_be_told: bool, longest_seconds: u64) -> JsonObject {
    let mut schema = match name {
        Name::RunCode => object_schema::<RunCodeArguments>(),
        Name::RunCommand => object_schema::<RunCommandArguments>(),
        Name::ReadFile => object_schema::<ReadFileArguments>(),
        Name::WriteFile => object_schema::<WriteFileArguments>(),
        Name::ListFiles => object_schema::<ListFilesArguments>(),
        Name::CreateSandbox if !can_be_told => object_schema::<NoArguments>(),
        Name::CreateSandbox => object_schema::<CreateArguments>(),
        Name::KillSandbox => object_schema::<KillSandboxArguments>(),
        Name::Fork => object_schema::<ForkArguments>(),
    };
    if matches!(name, Name::RunCode | Name::RunCommand) {
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
                assert_eq!(Name::parse(&tool.name).map(Name::as_str), Some(&*tool.name));
            }
        }
        assert_eq!(Name::parse("cobol"), None);
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
        assert_eq!(property("list_files", "depth")["maximum"], super::super::files::DEEPEST);
        assert_eq!(
            property("create_sandbox", "env")["additionalProperties"]["type"],
            "string"
        );
    }

    #[test]
    fn a_tool_that_could_only_refuse_is_not_shown() {
        let has_fork = |can_fork| tools(false, can_fork, 1).iter().any(|tool| tool.name == "fork");
        assert_eq!([has_fork(true), has_fork(false)], [true, false]);
        assert!(Name::list(true).contains("fork") && !Name::list(false).contains("fork"));
    }
}
