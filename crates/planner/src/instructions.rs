//! Instructions of E2B's template builder: which steps they mean.
//!
//! Pure: instructions and what is known of their base become steps. Variables in values and paths are expanded as in a
//! Dockerfile. Deliberately not here: reading a request, and carrying steps out.

use offleash_core::build::instruction::{BuildInstruction, InstructionKind};
use offleash_core::build::secrets::StepSecrets;
use offleash_core::build::{BuildStep, CopySource, CopyStep, MAX_STEPS, RunStep, StepAction};

use crate::dockerfile::{DockerfileFault, expand_variables};
use crate::system::SUPERUSER;

/// The user that sandboxes of E2B have, and its directory.
pub const E2B_USER: &str = "user";
const E2B_HOME: &str = "/home/user";

/// Adds the account of [`E2B_USER`] with the shell alone: an image may have no program for it. The name is the first
/// argument and the directory the second.
const ACCOUNT_SCRIPT: &str = r#"set -e
name=$1 home=$2 id=1000 shell=/bin/sh
if [ -x /bin/bash ]; then shell=/bin/bash; fi
while IFS=: read -r _ _ taken _; do
    if [ "$taken" = "$id" ]; then id=$((id + 1)); fi
done </etc/passwd
echo "$name:x:$id:$id::$home:$shell" >>/etc/passwd
echo "$name:x:$id:" >>/etc/group
mkdir -p "$home"
chown "$name:$name" "$home" || echo "$home stays the superuser's: this sandbox has one user"
"#;

/// Makes a directory for a user, unless it is there.
const DIRECTORY_SCRIPT: &str = r#"[ -d "$1" ] && exit 0
mkdir -p "$1" || exit 1
chown "$2" "$1" || echo "$1 stays the superuser's: this sandbox has one user"
"#;

/// The longest command, path or value.
const MAX_TEXT: usize = 128 * 1024;
/// What all variables may take together, bytes: about what a kernel lets a program be started with.
const MAX_VARIABLES: usize = 1 << 20;
/// The longest title.
const MAX_TITLE: usize = 200;

/// What instructions begin with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstructionBase {
    /// The variables of the base.
    pub env: Vec<(String, String)>,
    /// Who runs its programs.
    pub user: String,
    /// The shell that it has.
    pub has_bash: bool,
    /// Whether it is an image as it is pulled, which gets the account of [`E2B_USER`]; a template has what it has.
    pub is_image: bool,
    /// Whether the account is there already.
    pub has_account: bool,
    /// Whether it has any shell.
    pub has_shell: bool,
}

/// The steps that instructions mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstructionSteps {
    /// The steps.
    pub steps: Vec<BuildStep>,
    /// Which instruction each of them is of, from 1; 0 for what is done to the base.
    pub of: Vec<usize>,
    /// The first step, from 1, that is carried out whatever is known of it.
    pub forced_from: Option<usize>,
}

/// An instruction that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction {number}: `{kind}` {fault}")]
pub struct InstructionError {
    /// Which, from 1.
    pub number: usize,
    kind: &'static str,
    fault: String,
}

/// The steps that `instructions` mean over a base.
///
/// # Errors
/// Which instruction means nothing, and why.
pub fn steps_of(
    instructions: &[BuildInstruction],
    base: &InstructionBase,
) -> Result<InstructionSteps, InstructionError> {
    let mut lowering = Lowering {
        shell: if base.has_bash { "/bin/bash" } else { "/bin/sh" },
        env: base.env.clone(),
        user: base.user.clone(),
        number: 0,
        found: InstructionSteps::default(),
    };
    lowering.begin(base);
    for (index, instruction) in instructions.iter().enumerate() {
        lowering.number = index + 1;
        let wrong = |fault: String| InstructionError {
            number: index + 1,
            kind: instruction.kind.as_str(),
            fault,
        };
        if instruction.force && lowering.found.forced_from.is_none() {
            lowering.found.forced_from = Some(lowering.found.steps.len() + 1);
        }
        if instruction
            .args
            .iter()
            .any(|text| text.len() > MAX_TEXT || text.contains('\0'))
        {
            return Err(wrong(format!(
                "has a text with a NUL byte, or of more than {MAX_TEXT} bytes"
            )));
        }
        lowering.add(instruction).map_err(wrong)?;
        if lowering.found.steps.len() > MAX_STEPS {
            return Err(wrong(format!("is one of more than {MAX_STEPS} steps")));
        }
    }
    Ok(lowering.found)
}

struct Lowering {
    shell: &'static str,
    env: Vec<(String, String)>,
    user: String,
    /// The present instruction.
    number: usize,
    found: InstructionSteps,
}

impl Lowering {
    fn step(&mut self, title: impl Into<String>, action: StepAction) {
        let title: String = title.into();
        self.found.steps.push(BuildStep {
            title: title.chars().take(MAX_TITLE).collect(),
            action,
        });
        self.found.of.push(self.number);
    }

    fn run(&mut self, title: String, command: Vec<String>, user: Option<&str>) {
        self.run_with(title, command, user, StepSecrets::default());
    }

    fn run_with(&mut self, title: String, command: Vec<String>, user: Option<&str>, secrets: StepSecrets) {
        let action = StepAction::Run(RunStep {
            command,
            secrets,
            user: user.map(str::to_owned),
            ..RunStep::default()
        });
        self.step(title, action);
    }

    /// A script of ours, run by the superuser.
    fn script(&mut self, title: String, script: &str, arguments: &[&str]) {
        let words = ["/bin/sh", "-c", script, "sh"]
            .into_iter()
            .chain(arguments.iter().copied());
        self.run(title, words.map(str::to_owned).collect(), Some(SUPERUSER));
    }

    /// What E2B does to an image: commands are its user's, and begin in that one's directory.
    fn begin(&mut self, base: &InstructionBase) {
        if !base.is_image || !(base.has_shell || base.has_account) {
            return;
        }
        if !base.has_account {
            self.script(
                format!("account of `{E2B_USER}`"),
                ACCOUNT_SCRIPT,
                &[E2B_USER, E2B_HOME],
            );
        }
        E2B_USER.clone_into(&mut self.user);
        self.step(format!("USER {E2B_USER}"), StepAction::User(E2B_USER.to_owned()));
        self.step(format!("WORKDIR {E2B_HOME}"), StepAction::Workdir(E2B_HOME.to_owned()));
    }

    fn add(&mut self, instruction: &BuildInstruction) -> Result<(), String> {
        let args: Vec<&str> = instruction.args.iter().map(String::as_str).collect();
        match (instruction.kind, args.as_slice()) {
            (InstructionKind::Run, [command] | [command, ""]) => self.command(command, None, &instruction.secrets)?,
            (InstructionKind::Run, [command, user]) => self.command(command, Some(user), &instruction.secrets)?,
            _ if !instruction.secrets.is_empty() => return Err("has secrets, which are a command's alone".to_owned()),
            (InstructionKind::Env, pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                for pair in pairs.chunks_exact(2) {
                    self.variable(pair[0], pair[1])?;
                }
            }
            (InstructionKind::Workdir, [path]) if !path.is_empty() => {
                let path = self.expand(path)?;
                let owner = self.user.clone();
                let owner = if owner.is_empty() { SUPERUSER } else { &owner };
                self.script(format!("directory {path}"), DIRECTORY_SCRIPT, &[&path, owner]);
                self.step(format!("WORKDIR {path}"), StepAction::Workdir(path));
            }
            (InstructionKind::User, [user]) if !user.is_empty() => {
                let user = self.expand(user)?;
                self.user.clone_from(&user);
                self.step(format!("USER {user}"), StepAction::User(user));
            }
            (InstructionKind::Copy, [source, destination, rest @ ..]) if rest.len() <= 2 => {
                self.copy(instruction, source, destination, rest)?;
            }
            _ => return Err("has too few or too many texts".to_owned()),
        }
        Ok(())
    }

    fn command(&mut self, command: &str, user: Option<&str>, secrets: &StepSecrets) -> Result<(), String> {
        let mut bytes = 0;
        for (name, value) in secrets.iter() {
            // No value is told.
            if offleash_core::env::check_variable(name.as_ref(), value.as_ref()).is_err() {
                return Err(format!(
                    "has the secret `{}`, which cannot be a variable",
                    name.escape_debug()
                ));
            }
            bytes += name.len() + value.len();
        }
        if bytes > MAX_VARIABLES {
            return Err(format!(
                "has secrets that are longer than {MAX_VARIABLES} bytes together"
            ));
        }
        let words = [self.shell, "-c", command];
        let title = format!("RUN {}", command.lines().next().unwrap_or_default());
        self.run_with(title, words.map(str::to_owned).to_vec(), user, secrets.clone());
        Ok(())
    }

    fn variable(&mut self, name: &str, value: &str) -> Result<(), String> {
        let value = self.expand(value)?;
        if offleash_core::env::check_variable(name.as_ref(), value.as_ref()).is_err() {
            return Err(format!("names `{}`, which cannot be a variable", name.escape_debug()));
        }
        let known = self.env.iter_mut().find(|(own, _)| own == name);
        match known {
            Some((_, own)) => own.clone_from(&value),
            None => self.env.push((name.to_owned(), value.clone())),
        }
        if self
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>()
            > MAX_VARIABLES
        {
            return Err(format!(
                "makes all variables together longer than {MAX_VARIABLES} bytes"
            ));
        }
        let name = name.to_owned();
        self.step(format!("ENV {name}"), StepAction::Env { name, value });
        Ok(())
    }

    fn copy(
        &mut self,
        instruction: &BuildInstruction,
        source: &str,
        destination: &str,
        rest: &[&str],
    ) -> Result<(), String> {
        let Some(files) = &instruction.files else {
            return Err("says no `filesHash` of what was uploaded".to_owned());
        };
        if source.split('/').any(|part| part == "**") {
            return Err(format!("copies `{source}`: `**` is not supported; name the directory"));
        }
        let owner = rest.first().copied().filter(|owner| !owner.is_empty());
        let owner = owner.unwrap_or(&self.user).to_owned();
        let mode = rest.get(1).copied().filter(|mode| !mode.is_empty());
        let mode = mode.map(|mode| u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777));
        let mode = match mode {
            Some(None) => return Err("has a mode that is not octal".to_owned()),
            Some(mode) => mode,
            None => None,
        };
        let action = StepAction::Copy(CopyStep {
            from: CopySource::Upload(files.clone()),
            sources: vec![source.to_owned()],
            destination: self.expand(destination)?,
            owner: Some(owner).filter(|owner| !owner.is_empty()),
            mode,
            extracts: false,
        });
        self.step(format!("COPY {source} {destination}"), action);
        Ok(())
    }

    fn expand(&self, text: &str) -> Result<String, String> {
        let lookup = |name: &str| {
            let found = self.env.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.clone())
        };
        if !text.contains('$') {
            return Ok(text.to_owned());
        }
        let expanded = expand_variables(text, &lookup)
            .map_err(|fault: DockerfileFault| format!("has `{}`: {fault}", text.escape_debug()))?;
        match expanded.len() > MAX_TEXT {
            true => Err(format!("comes to a text of more than {MAX_TEXT} bytes")),
            false => Ok(expanded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(kind: InstructionKind, args: &[&str]) -> BuildInstruction {
        BuildInstruction {
            kind,
            args: args.iter().map(|text| (*text).to_owned()).collect(),
            files: (kind == InstructionKind::Copy).then(|| "a".repeat(64).parse().unwrap()),
            force: false,
            secrets: StepSecrets::default(),
        }
    }

    fn with_secret(instruction: BuildInstruction, name: &str, value: &str) -> BuildInstruction {
        let secrets = [(name.to_owned(), value.to_owned())].into_iter().collect();
        BuildInstruction { secrets, ..instruction }
    }

    fn titles(found: &InstructionSteps) -> Vec<&str> {
        found.steps.iter().map(|step| step.title.as_str()).collect()
    }

    #[test]
    fn an_image_gets_the_user_and_a_template_keeps_its_own() {
        let image = InstructionBase {
            is_image: true,
            has_shell: true,
            ..InstructionBase::default()
        };
        let found = steps_of(&[], &image).unwrap();
        assert_eq!(titles(&found), ["account of `user`", "USER user", "WORKDIR /home/user"]);
        assert_eq!(found.of, [0, 0, 0]);
        let known = InstructionBase {
            has_account: true,
            ..image
        };
        assert_eq!(
            titles(&steps_of(&[], &known).unwrap()),
            ["USER user", "WORKDIR /home/user"]
        );
        assert_eq!(
            steps_of(&[], &InstructionBase::default()).unwrap(),
            InstructionSteps::default()
        );
    }

    #[test]
    fn each_step_is_told_with_the_instruction_that_it_is_of() {
        use InstructionKind::{Copy, Env, Run, User, Workdir};
        let base = InstructionBase {
            env: vec![("PATH".to_owned(), "/bin".to_owned())],
            has_bash: true,
            ..InstructionBase::default()
        };
        let mut all = [
            instruction(Env, &["A", "1", "PATH", "/x:$PATH"]),
            instruction(User, &["app"]),
            instruction(Run, &["echo a\necho b", "root"]),
            instruction(Workdir, &["/w/${A}"]),
            instruction(Copy, &["a.txt", "/b/", "", "0640"]),
        ];
        all[2].force = true;
        let found = steps_of(&all, &base).unwrap();
        assert_eq!(found.of, [1, 1, 2, 3, 4, 4, 5]);
        assert_eq!(found.forced_from, Some(4));
        let path = StepAction::Env {
            name: "PATH".to_owned(),
            value: "/x:/bin".to_owned(),
        };
        assert_eq!(found.steps[1].action, path);
        let StepAction::Run(run) = &found.steps[3].action else {
            panic!("{found:?}")
        };
        assert_eq!(run.command, ["/bin/bash", "-c", "echo a\necho b"]);
        assert_eq!(run.user.as_deref(), Some("root"));
        assert_eq!(found.steps[5].action, StepAction::Workdir("/w/1".to_owned()));
        let StepAction::Copy(copy) = &found.steps[6].action else {
            panic!("{found:?}")
        };
        assert_eq!((copy.owner.as_deref(), copy.mode), (Some("app"), Some(0o640)));
    }

    #[test]
    fn secrets_of_a_command_are_in_nothing_that_is_written_of_its_step() {
        let command = with_secret(instruction(InstructionKind::Run, &["env", "root"]), "TOKEN", "hunter2");
        let found = steps_of(&[command], &InstructionBase::default()).unwrap();
        let StepAction::Run(run) = &found.steps[0].action else {
            panic!("{found:?}")
        };
        assert_eq!(run.secrets.iter().collect::<Vec<_>>(), [("TOKEN", "hunter2")]);
        let written = serde_json::to_string(&found.steps).unwrap();
        assert!(
            !written.contains("hunter2") && !format!("{found:?}").contains("hunter2"),
            "{written}"
        );
    }

    #[test]
    fn variables_that_name_one_another_stay_short() {
        use InstructionKind::{Env, Workdir};
        let doubled = |times: usize| {
            let mut all = vec![instruction(Env, &["A", &"x".repeat(1 << 10)])];
            all.extend(vec![instruction(Env, &["A", "$A$A"]); times]);
            all
        };
        assert!(steps_of(&doubled(7), &InstructionBase::default()).is_ok());
        let error = steps_of(&doubled(40), &InstructionBase::default()).unwrap_err();
        assert!(error.number == 9 && error.to_string().contains("more than"), "{error}");
        // Many long ones, and a path of them.
        let many: Vec<String> = (0..20).map(|number| format!("A{number}")).collect();
        let long = "x".repeat(MAX_TEXT);
        let all: Vec<_> = many.iter().map(|name| instruction(Env, &[name, &long])).collect();
        let error = steps_of(&all, &InstructionBase::default()).unwrap_err();
        assert!(error.to_string().contains("together"), "{error}");
        let path = [all[0].clone(), instruction(Workdir, &["/$A0$A0"])];
        assert!(steps_of(&path, &InstructionBase::default()).is_err());
    }

    #[test]
    fn what_means_nothing_is_told_with_its_number() {
        use InstructionKind::{Copy, Env, Run, User};
        for (wrong, said) in [
            (instruction(Run, &[]), "too few"),
            (instruction(Env, &["A"]), "too few"),
            (instruction(Env, &["A=", "1"]), "cannot be a variable"),
            (instruction(User, &[""]), "too few"),
            (instruction(Copy, &["a/**/b", "/b"]), "`**`"),
            (instruction(Copy, &["a", "/b", "", "9"]), "octal"),
            (instruction(Run, &["a\0b"]), "NUL"),
            (
                with_secret(instruction(Run, &["a"]), "A=B", "x"),
                "cannot be a variable",
            ),
            (
                with_secret(instruction(Run, &["a"]), "A", "hunter2\0"),
                "the secret `A`",
            ),
            (
                with_secret(instruction(Run, &["a"]), "A", &"x".repeat(MAX_VARIABLES)),
                "longer",
            ),
            (with_secret(instruction(User, &["a"]), "A", "x"), "a command's alone"),
        ] {
            let error = steps_of(&[instruction(Run, &["true"]), wrong], &InstructionBase::default()).unwrap_err();
            assert!(error.number == 2 && error.to_string().contains(said), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let without = BuildInstruction {
            files: None,
            ..instruction(Copy, &["a", "/b"])
        };
        assert!(steps_of(&[without], &InstructionBase::default()).is_err());
        let many = vec![instruction(Run, &["true"]); MAX_STEPS + 1];
        assert!(steps_of(&many, &InstructionBase::default()).is_err());
    }
}
