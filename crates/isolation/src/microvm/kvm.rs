//! Whether machines run by KVM: found out once, by booting one that is nobody's.
//!
//! A device that opens says little, and so does the least guest (`offleash_sys::kvm`): processors that are emulated in part
//! halt one and boot no kernel. So the hypervisor boots the very images that sandboxes boot, with nothing of a tenant. The answer
//! is kept for this boot of the host, this hypervisor and these images.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use offleash_core::vm::{Acceleration, VmPlan};
use offleash_sys::kvm::{DEVICE, open};
use rustix::fs::{FlockOperation, MemfdFlags};

use super::error::VmError;
use super::hypervisor::{self, HypervisorPlaces, VmCard, VmStart};
use super::kernel::VM_DIRECTORY;
use super::starting::{StartedHypervisor, await_greeting};

/// How long a machine may take to boot: it is not emulated.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Memory of the machine that is tried, MiB.
const TRIAL_MIB: u64 = 192;
/// Below the directory of virtual machines: for what was tried, and what came of it.
const KNOWN: &str = "kvm";
/// What is kept of an answer, bytes.
const MAX_KNOWN: u64 = 4096;
/// What is kept of what the hypervisor says, characters.
const MAX_REASON: usize = 200;
/// The answer that machines run.
const RUNS: &str = "runs";

/// Makes sure that `vm` runs by KVM.
///
/// # Errors
/// `NoKvm` if no machine does; `File` if the answer cannot be kept.
pub fn require(vm: &VmPlan, state: &Path) -> Result<(), VmError> {
    known_or_tried(vm, state)?.map_err(|reason| VmError::NoKvm { reason })
}

/// What was found of KVM with any hypervisor since the host booted: that machines run, or why not. `None` if none was tried.
pub fn known(state: &Path) -> Option<Result<(), String>> {
    let kept = fs::read_to_string(state.join(VM_DIRECTORY).join(KNOWN)).ok()?;
    let (stamp, answer) = kept.split_once('\n')?;
    stamp.starts_with(&boot_id()).then(|| parse_answer(answer))
}

fn known_or_tried(vm: &VmPlan, state: &Path) -> Result<Result<(), String>, VmError> {
    if let Err(error) = open(Path::new(DEVICE)) {
        // Whoever may open it later is not told what was found before.
        return Ok(Err(format!("{DEVICE}: {error}")));
    }
    let directory = state.join(VM_DIRECTORY);
    let path = directory.join(KNOWN);
    fs::create_dir_all(&directory).map_err(VmError::file("making", &directory))?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&path).map_err(VmError::file("opening", &path))?;
    // One tries it, and the others wait for the answer.
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| VmError::file("locking", &path)(error.into()))?;
    let stamp = stamp(vm);
    let mut kept = String::new();
    let _unreadable = (&mut file).take(MAX_KNOWN).read_to_string(&mut kept);
    if let Some((of, answer)) = kept.split_once('\n')
        && of == stamp
    {
        return Ok(parse_answer(answer));
    }
    let found = try_machine(vm);
    let answer = found.as_ref().err().map_or(RUNS, String::as_str);
    let written = file
        .set_len(0)
        .and_then(|()| file.seek(SeekFrom::Start(0)))
        .and_then(|_| write!(file, "{stamp}\n{answer}"));
    written.map_err(VmError::file("writing", &path))?;
    Ok(found)
}

fn parse_answer(answer: &str) -> Result<(), String> {
    match answer {
        RUNS => Ok(()),
        reason => Err(reason.to_owned()),
    }
}

/// What an answer is good for.
fn stamp(vm: &VmPlan) -> String {
    let images = vm.images.file_name().unwrap_or_default();
    format!(
        "{} {} {} {}",
        boot_id(),
        vm.version.escape_debug(),
        vm.hypervisor.display().to_string().escape_debug(),
        images.display().to_string().escape_debug()
    )
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Boots a machine by KVM until it greets; why it did not.
fn try_machine(vm: &VmPlan) -> Result<(), String> {
    let words_of = |error: io::Error| error.to_string();
    let said = rustix::fs::memfd_create("kvm", MemfdFlags::CLOEXEC).map_err(|error| words_of(error.into()))?;
    let mut said = File::from(said);
    let tried = VmPlan {
        acceleration: Acceleration::Kvm,
        memory_mib: TRIAL_MIB,
        cpus: 1,
        ..vm.clone()
    };
    let images = vm.images.to_string_lossy();
    let places = HypervisorPlaces {
        images: &images,
        said: "/proc/self/fd/2",
    };
    let mut words = hypervisor::words(&tried, &places, VmCard::None, VmStart::Boot, None);
    words[0] = vm.hypervisor.to_string_lossy().into_owned();
    let argv: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
    let started = StartedHypervisor::spawn(&argv, &said, false).map_err(words_of)?;
    let greeted = started
        .channel
        .try_clone()
        .and_then(|channel| await_greeting(channel, TRIAL_TIMEOUT));
    started.end();
    greeted.map_err(|error| {
        let mut text = Vec::new();
        let _unreadable = said
            .rewind()
            .and_then(|()| (&mut said).take(MAX_KNOWN).read_to_end(&mut text));
        reason(&error, &String::from_utf8_lossy(&text))
    })
}

/// Why a machine did not greet: what the hypervisor said last, else what was waited for.
fn reason(error: &io::Error, said: &str) -> String {
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
    let text = match (error.kind(), last) {
        (io::ErrorKind::TimedOut, _) => format!("no machine booted by it within {} s", TRIAL_TIMEOUT.as_secs()),
        (_, Some(line)) => format!("a machine that was tried ended: {line}"),
        (_, None) => format!("a machine that was tried ended: {error}"),
    };
    let printed = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    printed.take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn plan(hypervisor: &Path, state: &Path) -> VmPlan {
        VmPlan {
            hypervisor: hypervisor.to_owned(),
            version: "QEMU 7.2.22".to_owned(),
            images: state.join("vm/images/6.1-0"),
            release: "6.1".to_owned(),
            acceleration: Acceleration::Tcg,
            memory_mib: 256,
            cpus: 1,
            code_memory: None,
            pids: None,
            template: None,
        }
    }

    /// A hypervisor that counts its starts, says something and ends.
    fn failing(directory: &Path) -> std::path::PathBuf {
        let path = directory.join("qemu");
        let text = format!(
            "#!/bin/sh\necho x >>{}/starts\necho 'failed to set MSR' >&2\nexit 1\n",
            directory.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_machine_that_ends_says_why_and_is_tried_once() {
        let state = tempfile::tempdir().unwrap();
        let plan = plan(&failing(state.path()), state.path());
        let failed = try_machine(&plan).unwrap_err();
        assert_eq!(failed, "a machine that was tried ended: failed to set MSR");
        if open(Path::new(DEVICE)).is_err() {
            let found = known_or_tried(&plan, state.path()).unwrap().unwrap_err();
            assert!(found.starts_with("/dev/kvm: "), "{found}");
            assert_eq!(known(state.path()), None);
            return;
        }
        for _ in 0..2 {
            assert_eq!(known_or_tried(&plan, state.path()).unwrap(), Err(failed.clone()));
        }
        assert_eq!(known(state.path()), Some(Err(failed.clone())));
        let starts = fs::read_to_string(state.path().join("starts")).unwrap();
        assert_eq!(starts.lines().count(), 2, "once here, once more above");
        let other = VmPlan {
            version: "QEMU 8".to_owned(),
            ..plan
        };
        let refused = require(&other, state.path()).unwrap_err();
        assert!(
            matches!(&refused, VmError::NoKvm { reason } if *reason == failed),
            "{refused}"
        );
        let starts = fs::read_to_string(state.path().join("starts")).unwrap();
        assert_eq!(starts.lines().count(), 3, "another hypervisor is tried anew");
    }

    #[test]
    fn a_reason_is_one_short_line() {
        let ended = io::Error::other("the channel ended");
        assert_eq!(reason(&ended, ""), "a machine that was tried ended: the channel ended");
        assert_eq!(
            reason(&ended, "one\ntwo\x1b[1m\n\n"),
            "a machine that was tried ended: two [1m"
        );
        assert_eq!(reason(&ended, &"x".repeat(9000)).chars().count(), MAX_REASON);
        let late = io::Error::from(io::ErrorKind::TimedOut);
        assert_eq!(reason(&late, "one"), "no machine booted by it within 30 s");
    }
}
