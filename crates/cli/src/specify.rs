//! From arguments and policy to the one form that a supervisor takes: a `SandboxSpec`.
//!
//! Precedence: flags over policy over defaults.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use offleash_core::error::Explained;
use offleash_core::level::{DegradeMode, ESCALATING, Level, LevelChoice};
use offleash_core::path_rules::{PathPattern, PatternAnchors};
use offleash_core::policy::Policy;
use offleash_core::spec::{
    IdChoice, MountAccess, MountSpec, RootChoice, SandboxSpec, TmpfsSpec, VolumeMount, WorkspaceMode, WorkspaceSpec,
};
use offleash_core::template::TemplateName;
use offleash_core::text::Text;
use offleash_core::tool::ToolGrant;
use offleash_core::units::Bytes;
use offleash_core::vm::{Acceleration, VmSpec};
use offleash_core::volume::{VolumeKey, VolumeName, VolumeNameError};
use offleash_core::{srt, trust};
use offleash_planner::this_home;
use offleash_planner::{RegularFileError, check_exists, from_home, read_regular_file};

use crate::args::{DegradeArg, IdsArg, RootArg, SandboxArgs};
use crate::failure::Failure;

mod network;
mod permissions;

pub(crate) use self::network::{apply_flags as apply_network_flags, rule as network_rule};

/// What is read of a policy that was named, in bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// The name under which a policy is looked for in the workspace.
const POLICY_NAME: &str = "offleash.toml";

/// What the arguments and the policy ask for.
pub(crate) fn specify(arguments: &SandboxArgs) -> Result<SandboxSpec, Failure> {
    let given = arguments.workspace.as_deref().map(workspace_of).transpose()?;
    let directory = match &given {
        Some((path, _)) => path.clone(),
        None if arguments.no_workspace => PathBuf::from("/"),
        None => std::env::current_dir().map_err(|error| {
            Failure::new(format!("cannot find the current directory: {error}"))
                .with_hint("change to a directory that exists, or name one with `--workspace`")
        })?,
    };
    let mut spec = SandboxSpec {
        workspace: (!arguments.no_workspace).then(|| WorkspaceSpec {
            path: directory.clone(),
            mode: WorkspaceMode::default(),
        }),
        ..SandboxSpec::default()
    };
    if let Some(policy) = policy(arguments, &directory)? {
        policy.apply_to(&mut spec);
    }
    if let Some((path, mode)) = given {
        let mode = mode
            .or(spec.workspace.as_ref().map(|workspace| workspace.mode))
            .unwrap_or_default();
        spec.workspace = Some(WorkspaceSpec { path, mode });
    }
    apply_flags(arguments, &mut spec)?;
    check_read(arguments, &spec)?;
    Ok(spec)
}

/// That what `--read` names is there: whoever writes a path by hand wants what is in it.
fn check_read(arguments: &SandboxArgs, spec: &SandboxSpec) -> Result<(), Failure> {
    let theirs = arguments.permissions.allow_read.iter().flatten();
    let named = arguments.read.iter().map(|text| ("--read", text));
    let named: Vec<_> = named.chain(theirs.map(|text| ("--allow-read", text))).collect();
    if named.is_empty() {
        return Ok(());
    }
    let workspace = spec.workspace.as_ref().map(|workspace| workspace.path.as_path());
    let home = this_home();
    let anchors = PatternAnchors {
        // One that does not exist is refused as that.
        workspace: workspace.filter(|path| path.is_dir()),
        home: home.as_deref(),
    };
    for (flag, text) in named {
        let pattern = path_pattern(flag, text)?;
        check_exists("path to read", text, &pattern, anchors)?;
        if workspace.is_none() && pattern.base(anchors).is_none() && !text.as_bytes().starts_with(b"~") {
            let what = format!(
                "`{flag} {}` names nothing: a relative path begins at the workspace, and there is none",
                Text::from(text)
            );
            return Err(Failure::new(what).with_hint("write the path from its `/`"));
        }
    }
    Ok(())
}

fn apply_flags(arguments: &SandboxArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    for text in &arguments.mount {
        spec.mounts.push(mount_of(text)?);
    }
    for text in &arguments.volume {
        match volume_of(text)? {
            Some(volume) => spec.volumes.push(volume),
            None => spec.mounts.push(mount_of(text)?),
        }
    }
    for (pairs, access) in [
        (&arguments.bind, MountAccess::Rw),
        (&arguments.ro_bind, MountAccess::Ro),
    ] {
        let (pairs, _) = pairs.as_chunks();
        spec.mounts.extend(pairs.iter().map(|[source, target]| MountSpec {
            source: absolute(source),
            target: PathBuf::from(target),
            access,
        }));
    }
    for text in &arguments.tmpfs {
        spec.tmpfs.push(tmpfs_of(text)?);
    }
    spec.toolchains.extend(arguments.toolchain.iter().cloned());
    if let Some(grants) = tool_grants(&arguments.tool_grant)? {
        spec.tool_grants = Some(grants);
    }
    for (flag, texts, list) in [
        ("--read", &arguments.read, &mut spec.paths.read),
        ("--deny", &arguments.deny, &mut spec.paths.deny),
        ("--protect", &arguments.protect, &mut spec.paths.protect),
    ] {
        for text in texts {
            list.push(path_pattern(flag, text)?);
        }
    }
    for text in &arguments.allow_command {
        spec.commands
            .allow
            .get_or_insert_default()
            .push(parse("--allow-command", text)?);
    }
    for text in &arguments.deny_command {
        spec.commands.deny.push(parse("--deny-command", text)?);
    }
    for text in &arguments.env {
        spec.env.add(text).map_err(|error| bad_flag("--env", text, &error))?;
    }
    apply_level(arguments, spec)?;
    for (limit, text) in &arguments.limits.given {
        spec.limits.set(*limit, text).map_err(|error| {
            Failure::from_error(&error).with_hint(format!(
                "`offleash explain limit {}` says what is accepted",
                limit.name()
            ))
        })?;
    }
    permissions::apply_flags(&arguments.permissions, spec)?;
    network::apply_flags(&arguments.network, spec)
}

/// What flags grant, if any do.
pub(crate) fn tool_grants(texts: &[OsString]) -> Result<Option<Vec<ToolGrant>>, Failure> {
    let one = |text: &OsString| {
        let grant = text.to_string_lossy().parse::<ToolGrant>();
        grant.map_err(|error| bad_flag("--tool-grant", text, &error))
    };
    let grants: Vec<ToolGrant> = texts.iter().map(one).collect::<Result<_, _>>()?;
    Ok((!grants.is_empty()).then_some(grants))
}

fn apply_level(arguments: &SandboxArgs, spec: &mut SandboxSpec) -> Result<(), Failure> {
    let level =
        |flag: &str, text: &String| Level::from_str(text).map_err(|error| bad_flag(flag, OsStr::new(text), &error));
    match &arguments.level {
        Some(text) if text == "auto" => spec.level = LevelChoice::Auto,
        Some(text) if text == ESCALATING => spec.level = LevelChoice::Escalating,
        Some(text) => spec.level = LevelChoice::Exactly(level("--level", text)?),
        None => {}
    }
    if let Some(text) = &arguments.min_level {
        spec.min_level = Some(level("--min-level", text)?);
    }
    if let Some(runtime) = &arguments.runtime {
        spec.runtime = Some(runtime.clone());
    }
    spec.vm = VmSpec {
        hypervisor: arguments.hypervisor.clone(),
        kernel: arguments.vm_kernel.clone(),
        acceleration: arguments.acceleration.map(Acceleration::from),
    };
    match arguments.degrade {
        Some(DegradeArg::Allow) => spec.degrade = DegradeMode::Allow,
        Some(DegradeArg::Refuse) => spec.degrade = DegradeMode::Refuse,
        None => {}
    }
    match arguments.ids {
        Some(IdsArg::Range) => spec.ids = Some(IdChoice::Range),
        Some(IdsArg::Single) => spec.ids = Some(IdChoice::Single),
        None => {}
    }
    if let Some(RootArg::Base) = arguments.root {
        spec.root = RootChoice::Base {
            template: None,
            snapshot: None,
            layer: None,
        };
    }
    if let Some(name) = &arguments.template {
        if let Some(RootArg::System) = arguments.root {
            return Err(Failure::new("`--template` and `--root system` contradict each other")
                .with_hint("leave `--root` out: a template is a root that can be written to"));
        }
        spec.root = RootChoice::Base {
            template: Some(TemplateName::meant_by(name)?),
            snapshot: None,
            layer: None,
        };
    }
    if let Some(text) = &arguments.gpu {
        spec.gpu = Some(parse("--gpu", text)?);
    }
    spec.allow_ptrace |= arguments.allow_ptrace;
    Ok(())
}

fn bad_flag(flag: &str, text: &OsStr, error: &dyn std::error::Error) -> Failure {
    Failure::new(format!("`{flag} {}` is not valid: {error}", Text::from(text)))
        .with_hint(format!("`offleash help run` says what `{flag}` takes"))
}

/// The same for an error that knows what could be written.
fn bad_flag_explained(flag: &str, text: &OsStr, error: &impl Explained) -> Failure {
    let failure = bad_flag(flag, text, error);
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn path_pattern(flag: &str, text: &OsStr) -> Result<PathPattern, Failure> {
    PathPattern::parse(text.as_bytes()).map_err(|error| bad_flag(flag, text, &error))
}

fn parse<T: FromStr<Err: std::error::Error>>(flag: &str, text: &OsStr) -> Result<T, Failure> {
    let utf8 = text.to_str().ok_or_else(|| {
        Failure::new(format!("the value of `{flag}`, `{}`, is not UTF-8", Text::from(text)))
            .with_hint("write it in UTF-8")
    })?;
    utf8.parse().map_err(|error| bad_flag(flag, text, &error))
}

/// `DIR[:overlay|:rw|:ro]`; a directory whose name ends like that is written with a mode behind it.
fn workspace_of(text: &OsStr) -> Result<(PathBuf, Option<WorkspaceMode>), Failure> {
    let (path, mode) = match split_last(text) {
        Some((path, "overlay")) => (path, Some(WorkspaceMode::Overlay)),
        Some((path, "rw")) => (path, Some(WorkspaceMode::Rw)),
        Some((path, "ro")) => (path, Some(WorkspaceMode::Ro)),
        _ => (text, None),
    };
    if let (None, Some((before, word))) = (mode, split_last(text))
        && at_home(before).is_dir()
        && !at_home(text).exists()
    {
        return Err(Failure::new(format!(
            "`--workspace {}` ends in `{word}`, which is no mode",
            Text::from(text)
        ))
        .with_hint("the modes are `:overlay`, `:rw` and `:ro`"));
    }
    if path.is_empty() {
        return Err(Failure::new("`--workspace` names no directory").with_hint("write `--workspace DIR:overlay`"));
    }
    Ok((absolute(path), mode))
}

/// A path of the host as given, with the home directory for `~`: behind an equals sign no shell has put it there.
fn at_home(given: &OsStr) -> PathBuf {
    from_home(Path::new(given), this_home().as_deref())
}

fn absolute(given: &OsStr) -> PathBuf {
    let path = at_home(given);
    std::path::absolute(&path).unwrap_or(path)
}

/// `SRC:DST[:ro|:rw]`.
fn mount_of(text: &OsStr) -> Result<MountSpec, Failure> {
    let (rest, access) = match split_last(text) {
        Some((rest, "rw")) => (rest, MountAccess::Rw),
        Some((rest, "ro")) => (rest, MountAccess::Ro),
        _ => (text, MountAccess::Ro),
    };
    let bytes = rest.as_bytes();
    let colon = bytes
        .iter()
        .rposition(|byte| *byte == b':')
        .filter(|colon| *colon > 0 && colon + 1 < bytes.len());
    let Some(colon) = colon else {
        return Err(
            Failure::new(format!("`--mount {}` has no source and target", text.to_string_lossy()))
                .with_hint("write `--mount /host/path:/path/inside`, with `:rw` behind it to allow writing"),
        );
    };
    let (source, target) = (&bytes[..colon], &bytes[colon + 1..]);
    if source.contains(&b':') && !target.starts_with(b"/") {
        return Err(Failure::new(format!(
            "`--mount {}` ends in `{}`, which is neither a path from `/` nor an access",
            Text::from(text),
            Text::from(target)
        ))
        .with_hint("behind `/host/path:/path/inside` may stand `:ro`, the default, or `:rw`"));
    }
    Ok(MountSpec {
        source: absolute(OsStr::from_bytes(source)),
        target: PathBuf::from(OsStr::from_bytes(target)),
        access,
    })
}

/// `NAME:DST[:ro|:rw]`; `None` for what is a path of the host.
pub(crate) fn volume_of(text: &OsStr) -> Result<Option<VolumeMount>, Failure> {
    let bytes = text.as_bytes();
    let is_path = bytes.split(|byte| *byte == b':').next().is_none_or(|source| {
        source.is_empty() || source.contains(&b'/') || source.starts_with(b".") || source.starts_with(b"~")
    });
    if is_path {
        return Ok(None);
    }
    let words = text.to_str().map(|text| text.split(':').collect::<Vec<_>>());
    let (name, target, access) = match words.as_deref() {
        Some([name, target]) | Some([name, target, "rw"]) => (*name, *target, MountAccess::Rw),
        Some([name, target, "ro"]) => (*name, *target, MountAccess::Ro),
        _ => {
            return Err(
                Failure::new(format!("`--volume {}` names no volume and target", Text::from(text)))
                    .with_hint("write `--volume NAME:/path/inside`, with `:ro` behind it to allow reading alone"),
            );
        }
    };
    let name: VolumeName = name.parse().map_err(|error: VolumeNameError| {
        bad_flag("--volume", text, &error).with_hint("a directory of the host is written as a path, such as `./data`")
    })?;
    Ok(Some(VolumeMount {
        volume: VolumeKey::Name(name),
        target: PathBuf::from(target),
        access,
    }))
}

/// The value of `--cwd`; a relative one is below the caller's current directory, which has the same path inside.
pub(crate) fn directory_inside(given: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(given).map_err(|error| {
        Failure::new(format!("`--cwd {}` is not a directory: {error}", Text::from(given)))
            .with_hint("write the path inside from its `/`")
    })
}

/// `DST[:SIZE]`.
fn tmpfs_of(text: &OsStr) -> Result<TmpfsSpec, Failure> {
    match split_last(text) {
        Some((target, size)) => {
            let size = Bytes::from_str(size).map_err(|error| bad_flag("--tmpfs", text, &error))?;
            if size == Bytes(0) {
                return Err(Failure::new(format!(
                    "`--tmpfs {}` is not valid: a size of 0 holds nothing",
                    Text::from(text)
                ))
                .with_hint("leave the size out to have that of `--tmp-size`"));
            }
            Ok(TmpfsSpec {
                target: PathBuf::from(target),
                size: Some(size),
            })
        }
        None => Ok(TmpfsSpec {
            target: PathBuf::from(text),
            size: None,
        }),
    }
}

/// What is before and behind the last colon.
fn split_last(text: &OsStr) -> Option<(&OsStr, &str)> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':')?;
    Some((
        OsStr::from_bytes(&bytes[..colon]),
        std::str::from_utf8(&bytes[colon + 1..]).ok()?,
    ))
}

/// The policy that was named, or the one in the workspace.
fn policy(arguments: &SandboxArgs, workspace: &Path) -> Result<Option<Policy>, Failure> {
    if let Some(file) = &arguments.policy {
        return read_policy(file).map(Some);
    }
    if let Some(file) = &arguments.srt_settings {
        let text = read(file)?;
        return srt::parse(&text).map(Some).map_err(|error| {
            let hint = error
                .hint()
                .unwrap_or_else(|| "correct it, or write a policy: `offleash policy keys` lists every key".into());
            in_file(file, &error.to_string(), Some(hint))
        });
    }
    let found = workspace.join(POLICY_NAME);
    if arguments.no_policy || arguments.no_workspace {
        return Ok(None);
    }
    let Some(text) = read_discovered(&found)? else {
        return Ok(None);
    };
    let policy = parse_policy(&found, &text)?;
    let widened = trust::widened(&policy);
    if widened.is_empty() {
        return Ok(Some(policy));
    }
    Err(in_file(
        &found,
        &format!(
            "a policy that lies in the workspace may only restrict, and this one widens {}",
            widened.join(", ")
        ),
        Some(format!(
            "read it, then name it with `--policy {POLICY_NAME}`, or ignore it with `--no-policy`"
        )),
    ))
}

/// Reads and checks a policy file.
pub(crate) fn read_policy(file: &Path) -> Result<Policy, Failure> {
    parse_policy(file, &read(file)?)
}

fn parse_policy(file: &Path, text: &str) -> Result<Policy, Failure> {
    Policy::parse(text).map_err(|error| Failure::at(file, &error).with_hint("`offleash policy keys` lists every key"))
}

/// Reads a file that nobody named, if there is one: it may have come with the code that is to be contained.
fn read_discovered(file: &Path) -> Result<Option<String>, Failure> {
    match read_regular_file(file) {
        Ok(bytes) => text_of(file, bytes).map(Some),
        Err(RegularFileError::Missing { .. }) => Ok(None),
        // The directory is at fault, and not what may be in it.
        Err(RegularFileError::Unreadable { source, .. }) if std::fs::metadata(file.with_file_name(".")).is_err() => {
            let workspace = Text::from(file.parent().unwrap_or(file));
            Err(
                Failure::new(format!("cannot enter the workspace `{workspace}`: {source}")).with_hint(
                    "run offleash as a user who may read it, or name another directory with `--workspace DIR`",
                ),
            )
        }
        Err(error) => Err(Failure::from_error(&error)
            .with_hint("look at it, then name a policy with `--policy FILE`, or ignore this one with `--no-policy`")),
    }
}

/// Reads a file that the user named, which may be a pipe or a link.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| {
        in_file(
            file,
            &format!("cannot read it: {error}"),
            Some("name a file that exists and that you may read".into()),
        )
    })?;
    if bytes.len() as u64 > MAX_BYTES {
        let hint = "name a policy, which nobody writes that long";
        return Err(in_file(
            file,
            &format!("it is larger than {MAX_BYTES} bytes"),
            Some(hint.into()),
        ));
    }
    text_of(file, bytes)
}

pub(crate) fn text_of(file: &Path, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| in_file(file, "it is not UTF-8", Some("save it as UTF-8".into())))
}

fn in_file(file: &Path, message: &str, hint: Option<String>) -> Failure {
    let failure = Failure::new(format!("{}: {message}", Text::from(file)));
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// The command that the arguments ask for.
pub(crate) fn command(shell: Option<&OsString>, command: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let Some(script) = shell else {
        return if command.is_empty() {
            Err(Failure::new("there is no command to run")
                .with_hint("write `offleash run -- COMMAND`, or `offleash run -c 'SHELL STRING'`"))
        } else {
            Ok(command.to_vec())
        };
    };
    let mut argv: Vec<OsString> = ["sh", "-c"].map(OsString::from).into();
    argv.push(script.clone());
    if !command.is_empty() {
        argv.push("sh".into());
        argv.extend_from_slice(command);
    }
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_split_at_the_mode() {
        for (text, path, mode) in [
            ("/w", "/w", None),
            ("/w:ro", "/w", Some(WorkspaceMode::Ro)),
            ("/w:x:rw", "/w:x", Some(WorkspaceMode::Rw)),
            ("/w:x", "/w:x", None),
        ] {
            assert_eq!(
                workspace_of(OsStr::new(text)).unwrap(),
                (PathBuf::from(path), mode),
                "{text}"
            );
        }
        assert!(workspace_of(OsStr::new(":ro")).is_err());
    }

    #[test]
    fn mounts_are_read_only_unless_asked() {
        let mount = mount_of(OsStr::new("/a:b:/c")).unwrap();
        assert_eq!(
            (mount.source, mount.target, mount.access),
            ("/a:b".into(), "/c".into(), MountAccess::Ro)
        );
        assert_eq!(mount_of(OsStr::new("/a:/c:rw")).unwrap().access, MountAccess::Rw);
        for bad in ["", "/a", ":/c", "/a:", "/a:/c:xx", "/a:/c:xx:rw"] {
            assert!(mount_of(OsStr::new(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn volumes_are_written_to_unless_asked_and_paths_are_mounts() {
        let volume = volume_of(OsStr::new("a:/c")).unwrap().unwrap();
        assert_eq!(
            (volume.volume.to_string(), volume.access),
            ("a".to_owned(), MountAccess::Rw)
        );
        assert_eq!(
            volume_of(OsStr::new("a:/c:ro")).unwrap().unwrap().access,
            MountAccess::Ro
        );
        for path in ["/a:/c", "./a:/c", "../a:/c", "~/a:/c", "a/b:/c", ":/c", ".:/c"] {
            assert_eq!(volume_of(OsStr::new(path)).unwrap(), None, "{path}");
        }
        for bad in ["a", "a:/c:xx", "a:/b:/c:ro", "_a:/c", "a b:/c"] {
            assert!(volume_of(OsStr::new(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_shell_string_keeps_its_parameters() {
        let argv = command(Some(&"echo $1".into()), &["x".into()]).unwrap();
        assert_eq!(argv, ["sh", "-c", "echo $1", "sh", "x"].map(OsString::from));
        assert!(command(None, &[]).is_err());
    }

    #[test]
    fn a_discovered_policy_is_a_regular_file_or_refused() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(POLICY_NAME);
        assert_eq!(read_discovered(&file).unwrap(), None);
        std::fs::write(&file, "ids = \"single\"").unwrap();
        assert_eq!(read_discovered(&file).unwrap().as_deref(), Some("ids = \"single\""));
        for (to, said) in [
            ("/dev/zero", "symbolic link"),
            ("/etc/passwd", "symbolic link"),
            ("nothing", "symbolic link"),
            ("", "not a regular file"),
        ] {
            std::fs::remove_file(&file).unwrap();
            if to.is_empty() {
                mknodat(CWD, &file, FileType::Fifo, Mode::RUSR, 0).unwrap();
            } else {
                std::os::unix::fs::symlink(to, &file).unwrap();
            }
            let shown = read_discovered(&file).unwrap_err().to_string();
            assert!(shown.contains(said) && shown.contains("--no-policy"), "{to:?}: {shown}");
        }
    }
}
