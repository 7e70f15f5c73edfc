//! What each instruction means, one after another.

use std::collections::BTreeMap;

use offleash_core::build::{BuildBase, BuildStep, CopySource, CopyStep, InlineFile, RunStep, StepAction};
use offleash_core::processor::ImagePlatform;

use super::PLATFORM;
use super::error::DockerfileFault;
use super::lines::{Heredoc, SourceInstruction};
use super::words::{self, Lookup};

/// How much of an instruction is shown, characters.
const MAX_TITLE: usize = 100;
/// Instructions that change nothing here.
const IGNORED: [&str; 5] = ["EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "VOLUME", "MAINTAINER"];

/// What `FROM` says.
#[derive(Debug)]
pub(super) struct FromInstruction {
    pub(super) image: String,
    pub(super) name: Option<String>,
}

pub(super) fn from_of(
    instruction: &SourceInstruction,
    escape: char,
    lookup: Lookup<'_>,
) -> Result<FromInstruction, DockerfileFault> {
    let (flags, rest) = flags(&instruction.rest);
    for (name, value) in flags {
        let value = words::expand(value.unwrap_or_default(), escape, lookup)?;
        if name != "platform" || value != PLATFORM.name {
            return Err(unsupported(
                format!("`FROM --{name}={value}`"),
                match PLATFORM {
                    ImagePlatform::ARM64 => "sandboxes are of `linux/arm64`",
                    _ => "sandboxes are of `linux/amd64`",
                },
            ));
        }
    }
    let words = words::split(rest, escape);
    let name = match words.as_slice() {
        [_] => None,
        [_, word, name] if word.eq_ignore_ascii_case("as") => Some(name.clone()),
        _ => return Err(DockerfileFault::malformed("`FROM` is written `FROM IMAGE [AS NAME]`")),
    };
    let image = words::expand(&words[0], escape, lookup)?;
    match image.is_empty() {
        true => Err(DockerfileFault::malformed(
            "`FROM` names no image: its variable is not set",
        )),
        false => Ok(FromInstruction { image, name }),
    }
}

/// The stage or image that a `COPY` is from.
pub(super) fn copied_from(instruction: &SourceInstruction) -> Option<String> {
    let (flags, _) = flags(&instruction.rest);
    let found = flags.into_iter().rfind(|(name, _)| *name == "from");
    found.and_then(|(_, value)| value).map(str::to_owned)
}

/// `--name[=value]` at the beginning, and what follows.
fn flags(text: &str) -> (Vec<(&str, Option<&str>)>, &str) {
    let mut flags = Vec::new();
    let mut rest = text.trim_start();
    while let Some(flag) = rest.strip_prefix("--") {
        let end = flag.find(char::is_whitespace).unwrap_or(flag.len());
        let (word, after) = flag.split_at(end);
        flags.push(match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        });
        rest = after.trim_start();
    }
    (flags, rest)
}

/// The form of a list in JSON; anything else is not of that form.
fn exec_form(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok())?
}

fn unsupported(what: String, hint: &'static str) -> DockerfileFault {
    DockerfileFault::Unsupported { what, hint }
}

/// The steps of a stage as far as they are known.
#[derive(Debug)]
pub(super) struct StageLowering<'a> {
    escape: char,
    build_args: &'a BTreeMap<String, String>,
    pub(super) env: Vec<(String, String)>,
    args: Vec<(String, String)>,
    shell: Vec<String>,
    pub(super) steps: Vec<BuildStep>,
    pub(super) notes: Vec<String>,
}

impl<'a> StageLowering<'a> {
    pub(super) fn new(escape: char, build_args: &'a BTreeMap<String, String>, env: Vec<(String, String)>) -> Self {
        Self {
            escape,
            build_args,
            env,
            args: Vec::new(),
            shell: ["/bin/sh", "-c"].map(str::to_owned).to_vec(),
            steps: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn lookup(&self, name: &str) -> Option<String> {
        let of = |known: &[(String, String)]| {
            let found = known.iter().rfind(|(own, _)| own == name);
            found.map(|(_, value)| value.clone())
        };
        of(&self.env).or_else(|| of(&self.args))
    }

    fn expand(&self, text: &str) -> Result<String, DockerfileFault> {
        words::expand(text, self.escape, &|name| self.lookup(name))
    }

    fn step(&mut self, title: String, action: StepAction) {
        self.steps.push(BuildStep { title, action });
    }

    pub(super) fn add(
        &mut self,
        instruction: &SourceInstruction,
        global: Lookup<'_>,
        source: &dyn Fn(&str) -> Result<BuildBase, DockerfileFault>,
    ) -> Result<(), DockerfileFault> {
        let SourceInstruction { keyword, rest, .. } = instruction;
        let keyword = keyword.as_str();
        if rest.is_empty() && instruction.heredocs.is_empty() {
            return Err(DockerfileFault::Malformed(format!("`{keyword}` says nothing")));
        }
        match keyword {
            "RUN" => self.run(instruction)?,
            "COPY" | "ADD" => self.copy(instruction, source)?,
            "ENV" => {
                for (name, value) in self.pairs(keyword, rest)? {
                    let title = format!("ENV {name}");
                    self.set_env(name.clone(), value.clone());
                    self.step(title, StepAction::Env { name, value });
                }
            }
            "LABEL" => {
                for (name, value) in self.pairs(keyword, rest)? {
                    self.step(format!("LABEL {name}"), StepAction::Label { name, value });
                }
            }
            "ARG" => self.arg(rest, global)?,
            "WORKDIR" => {
                let directory = self.expand(rest)?;
                self.step(title_of(instruction), StepAction::Workdir(directory));
            }
            "USER" => {
                let user = self.expand(rest)?;
                self.step(title_of(instruction), StepAction::User(user));
            }
            "CMD" | "ENTRYPOINT" => {
                let command = self.command(rest);
                let action = match keyword {
                    "CMD" => StepAction::Command(command),
                    _ => StepAction::Entrypoint(command),
                };
                self.step(title_of(instruction), action);
            }
            "SHELL" => {
                let shell = exec_form(rest).filter(|shell| !shell.is_empty());
                self.shell = shell.ok_or_else(|| {
                    DockerfileFault::malformed("`SHELL` is written `SHELL [\"PROGRAM\", \"ARGUMENT\"]`")
                })?;
            }
            "ONBUILD" => {
                return Err(unsupported(
                    "`ONBUILD`".to_owned(),
                    "write the instruction where it is to be done",
                ));
            }
            ignored if IGNORED.contains(&ignored) => {
                self.notes.push(format!("`{ignored}` changes nothing here"));
            }
            other => return Err(DockerfileFault::UnknownInstruction(other.to_owned())),
        }
        Ok(())
    }

    fn set_env(&mut self, name: String, value: String) {
        match self.env.iter_mut().find(|(own, _)| *own == name) {
            Some((_, own)) => *own = value,
            None => self.env.push((name, value)),
        }
    }

    /// `NAME=VALUE …`, or `NAME VALUE` with the rest of the line. All see the variables from before.
    fn pairs(&self, keyword: &str, rest: &str) -> Result<Vec<(String, String)>, DockerfileFault> {
        let words = words::split(rest, self.escape);
        let first = words.first().map(String::as_str).unwrap_or_default();
        let pairs = match first.contains('=') {
            true => {
                let divided = words.iter().map(|word| {
                    let without = || {
                        DockerfileFault::Malformed(format!(
                            "`{}` has no value, as in `NAME=VALUE`",
                            word.escape_debug()
                        ))
                    };
                    word.split_once('=').ok_or_else(without)
                });
                divided.collect::<Result<Vec<_>, _>>()?
            }
            false => {
                let pair = rest.split_once(char::is_whitespace);
                let without = || DockerfileFault::Malformed(format!("`{keyword}` is written `{keyword} NAME=VALUE`"));
                let (name, value) = pair.ok_or_else(without)?;
                vec![(name, value.trim_start())]
            }
        };
        let mut expanded = Vec::new();
        for (name, value) in pairs {
            let name = self.expand(name)?;
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(DockerfileFault::Malformed(format!("`{keyword}` names nothing")));
            }
            expanded.push((name, self.expand(value)?));
        }
        Ok(expanded)
    }

    fn arg(&mut self, rest: &str, global: Lookup<'_>) -> Result<(), DockerfileFault> {
        for word in words::split(rest, self.escape) {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(self.expand(default)?)),
                None => (word.as_str(), None),
            };
            if name.is_empty() {
                return Err(DockerfileFault::malformed("`ARG` names nothing"));
            }
            let given = self.build_args.get(name).cloned();
            let value = given.or(default).or_else(|| global(name));
            self.args.retain(|(known, _)| known != name);
            self.args.extend(value.map(|value| (name.to_owned(), value)));
        }
        Ok(())
    }

    /// Program and arguments of either form.
    fn command(&self, text: &str) -> Vec<String> {
        exec_form(text).unwrap_or_else(|| self.shell.iter().cloned().chain([text.to_owned()]).collect())
    }

    fn run(&mut self, instruction: &SourceInstruction) -> Result<(), DockerfileFault> {
        let (flags, rest) = flags(&instruction.rest);
        for (name, value) in flags {
            match (name, value.unwrap_or_default()) {
                ("network", "default") => {}
                ("mount", value) if is_cache(value) => {
                    let told = "`RUN --mount=type=cache` keeps nothing between builds; what is there becomes part of the layer";
                    self.notes.push(told.to_owned());
                }
                ("mount", _) => {
                    return Err(unsupported(
                        "`RUN --mount` but of a cache".to_owned(),
                        "copy the files with `COPY`; `--build-env` passes a variable to the build alone",
                    ));
                }
                (name, value) => {
                    return Err(unsupported(
                        format!("`RUN --{name}={value}`"),
                        "what a build may reach is said with `--allow`",
                    ));
                }
            }
        }
        let command = match instruction.heredocs.as_slice() {
            [] => self.command(rest),
            [only] if is_alone(rest, only) => self.script(only),
            several => {
                let mut text = format!("{rest}\n");
                for heredoc in several {
                    text.push_str(&heredoc.text);
                    text.push_str(&heredoc.name);
                    text.push('\n');
                }
                self.shell.iter().cloned().chain([text]).collect()
            }
        };
        if command.is_empty() {
            return Err(DockerfileFault::malformed("`RUN` names no program"));
        }
        let is_hidden = |name: &str| self.env.iter().any(|(own, _)| own == name);
        let arguments = self.args.iter().filter(|(name, _)| !is_hidden(name)).cloned().collect();
        let step = RunStep {
            command,
            arguments,
            ..RunStep::default()
        };
        self.step(title_of(instruction), StepAction::Run(step));
        Ok(())
    }

    /// A here-document that is a script of the shell, or, with `#!`, of another program.
    fn script(&self, heredoc: &Heredoc) -> Vec<String> {
        const PLACE: &str = "/tmp/.offleash-script";
        let text = heredoc.contents();
        if !text.starts_with("#!") {
            return self.shell.iter().cloned().chain([text]).collect();
        }
        // A name that no line of it is.
        let mut end = "OFFLEASH_END".to_owned();
        while text.lines().any(|line| line == end) {
            end.push('_');
        }
        let script = format!(
            "cat >{PLACE} <<'{end}' && chmod 700 {PLACE} || exit\n{text}{end}\n{PLACE}; code=$?; rm -f {PLACE}; exit $code"
        );
        ["/bin/sh", "-c", &script].map(str::to_owned).to_vec()
    }

    fn copy(
        &mut self,
        instruction: &SourceInstruction,
        source: &dyn Fn(&str) -> Result<BuildBase, DockerfileFault>,
    ) -> Result<(), DockerfileFault> {
        let keyword = instruction.keyword.as_str();
        let is_add = keyword == "ADD";
        let (mut from, mut owner, mut mode) = (CopySource::Context, None, None);
        let (flags, rest) = flags(&instruction.rest);
        for (name, value) in flags {
            match (name, value) {
                ("from", Some(value)) if !is_add => from = CopySource::Base(source(value)?),
                ("chown", Some(value)) => owner = Some(self.expand(value)?),
                ("chmod", Some(value)) => mode = Some(mode_of(&self.expand(value)?)?),
                // A layer lies by itself here in any case.
                ("link", None | Some("true" | "false")) => {}
                _ => {
                    let what = format!("`{keyword} --{name}`");
                    return Err(unsupported(what, "`--chown`, `--chmod` and, of `COPY`, `--from` are"));
                }
            }
        }
        let words = exec_form(rest).unwrap_or_else(|| words::split(rest, self.escape));
        let (destination, sources) = match words.split_last() {
            Some((destination, sources)) if !sources.is_empty() => (self.expand(destination)?, sources),
            _ => {
                return Err(DockerfileFault::Malformed(format!(
                    "`{keyword}` needs sources and a destination"
                )));
            }
        };
        let (mut paths, mut inline) = (Vec::new(), Vec::new());
        let mut heredocs = instruction.heredocs.iter();
        for word in sources {
            if word.starts_with("<<")
                && let Some(heredoc) = heredocs.next()
            {
                inline.push(self.inline(heredoc)?);
                continue;
            }
            let path = self.expand(word)?;
            if path.contains("://") || path.starts_with("git@") {
                return Err(unsupported(
                    format!("`{keyword}` of an address"),
                    "fetch it with a `RUN`, whose `--allow` names the host, or copy it from the context",
                ));
            }
            paths.push(path);
        }
        if !inline.is_empty() && (!paths.is_empty() || inline.len() > 1) && !destination.ends_with('/') {
            let told = format!("the destination of several sources of `{keyword}` has to end with `/`");
            return Err(DockerfileFault::Malformed(told));
        }
        let step = CopyStep {
            from,
            sources: Vec::new(),
            destination,
            owner,
            mode,
            extracts: false,
        };
        if !inline.is_empty() {
            let of_text = CopyStep {
                from: CopySource::Inline(inline),
                ..step.clone()
            };
            self.step(title_of(instruction), StepAction::Copy(of_text));
        }
        if !paths.is_empty() {
            let of_files = CopyStep {
                sources: paths,
                extracts: is_add,
                ..step
            };
            self.step(title_of(instruction), StepAction::Copy(of_files));
        }
        Ok(())
    }

    fn inline(&self, heredoc: &Heredoc) -> Result<InlineFile, DockerfileFault> {
        let text = heredoc.contents();
        let text = match heredoc.expands {
            true => words::expand_text(&text, self.escape, &|name| self.lookup(name))?,
            false => text,
        };
        Ok(InlineFile {
            name: heredoc.name.clone(),
            text,
        })
    }
}

fn is_cache(mount: &str) -> bool {
    mount.split(',').any(|part| part == "type=cache")
}

/// Whether an instruction is a here-document and nothing else.
fn is_alone(rest: &str, heredoc: &Heredoc) -> bool {
    let word = rest.trim().trim_start_matches("<<").trim_start_matches('-');
    word.trim_matches(['"', '\'']) == heredoc.name
}

fn mode_of(text: &str) -> Result<u32, DockerfileFault> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| {
        unsupported(
            format!("`--chmod={}`", text.escape_debug()),
            "write it in octal, as `--chmod=755`",
        )
    })
}

/// The instruction in a line.
fn title_of(instruction: &SourceInstruction) -> String {
    let mut title = format!("{} {}", instruction.keyword, instruction.rest);
    title.retain(|character| !character.is_control());
    if title.chars().count() > MAX_TITLE {
        title = title.chars().take(MAX_TITLE - 1).chain(['…']).collect();
    }
    title
}
