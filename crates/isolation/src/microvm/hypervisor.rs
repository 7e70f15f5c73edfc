//! The hypervisor: where it is, and the words that it is started with.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use offleash_core::plan::Plan;
use offleash_core::vm::{Acceleration, VmPlan};
use offleash_protocol::vm::{CHANNEL_PORT, TREE_PORT};
use offleash_sys::process::ask_helper;
use offleash_sys::seccomp::HypervisorSupply;

use super::error::VmError;
use super::images::{INITRAMFS, KERNEL};
use super::kernel::VM_DIRECTORY;
use crate::search_path::find_program;

/// The name of its program.
pub const PROGRAM: &str = "qemu-system-x86_64";
/// Where its program is in its house, from which it finds its libraries and modules.
pub(super) const PROGRAM_INSIDE: &str = "/usr/bin/qemu-system-x86_64";
/// Where its firmware is there.
const FIRMWARE: &str = "/usr/share/qemu";
/// Where what it boots is there.
pub(super) const IMAGES_INSIDE: &str = "/images";
/// Where the console's words go there, with its own.
pub(super) const SAID_INSIDE: &str = "/said";
/// What its memory is called there. No such file is there: the carrier supplies it.
const MEMORY_INSIDE: &str = "/memory";
/// The descriptors that it is started with.
pub(super) const CHANNEL: i32 = 3;
pub(super) const TREE: i32 = 4;
pub(super) const MONITOR: i32 = 5;
/// Before it is the hypervisor: where it hands over the listener by which it is supplied with what it opens.
pub(super) const HANDOVER: i32 = 6;
/// Memory for translated instructions, MiB.
const TRANSLATED_MIB: u32 = 64;
/// What the guest's kernel is told. It says nothing unless it fails, and then the machine ends.
const KERNEL_WORDS: &str = "console=ttyS0 quiet loglevel=2 panic=-1 reboot=t random.trust_cpu=on";
/// How long it may take to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// What of that is read, bytes.
const MAX_VERSION: usize = 1024;
/// Below the directory of virtual machines: which version a program was found to have.
const KNOWN: &str = "hypervisor";

/// A hypervisor that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hypervisor {
    /// Its program, resolved.
    pub program: PathBuf,
    /// What it says that it is: `QEMU 7.2.22`.
    pub version: String,
}

/// Refuses the level where this program is for a processor that it is not for.
///
/// # Errors
/// `OtherProcessor`.
pub fn require_processor() -> Result<(), VmError> {
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => Err(VmError::OtherProcessor),
    }
}

/// Finds one: at `wanted`, a name or a path, or by its usual name in `search_path`. What version it has is kept in the state
/// directory, since it takes a while to say.
///
/// # Errors
/// `NoHypervisor` if there is none or it does not say that it is QEMU, `OtherProcessor`.
pub fn find(wanted: Option<&OsStr>, search_path: &OsStr, state: &Path) -> Result<Hypervisor, VmError> {
    require_processor()?;
    let missing = || VmError::NoHypervisor {
        wanted: wanted.map(|name| name.to_string_lossy().into_owned()),
    };
    let program = place(wanted, search_path).ok_or_else(missing)?;
    let known = state.join(VM_DIRECTORY).join(KNOWN);
    let stamp = stamp(&program).ok_or_else(missing)?;
    let kept = fs::read_to_string(&known).unwrap_or_default();
    if let Some((of, version)) = kept.split_once('\n')
        && of == stamp
    {
        let version = version.to_owned();
        return Ok(Hypervisor { program, version });
    }
    let version = ask_version(&program).ok_or_else(missing)?;
    // It is asked again next time otherwise.
    let _kept =
        fs::create_dir_all(state.join(VM_DIRECTORY)).and_then(|()| fs::write(&known, format!("{stamp}\n{version}")));
    Ok(Hypervisor { program, version })
}

/// The program of that name or path.
pub fn place(wanted: Option<&OsStr>, search_path: &OsStr) -> Option<PathBuf> {
    let found = match wanted.map(Path::new) {
        Some(path) if path.is_absolute() || path.components().count() > 1 => Some(path.to_owned()),
        Some(name) => find_program(name.to_str()?, search_path),
        None => find_program(PROGRAM, search_path),
    };
    found?.canonicalize().ok()
}

/// What tells a program's file from others.
fn stamp(program: &Path) -> Option<String> {
    let found = fs::metadata(program).ok()?;
    let (inode, size) = (found.ino(), found.size());
    Some(format!(
        "{} {inode} {size} {} {}",
        program.display(),
        found.mtime(),
        found.mtime_nsec()
    ))
}

fn ask_version(program: &Path) -> Option<String> {
    let (succeeded, said) = ask_helper(program.to_str()?, &["--version"], &[], MAX_VERSION, VERSION_TIMEOUT).ok()?;
    succeeded.then(|| parse_version(&String::from_utf8_lossy(&said)))?
}

/// `QEMU 7.2.22` of `QEMU emulator version 7.2.22 (Debian …)`.
fn parse_version(said: &str) -> Option<String> {
    let number = said.strip_prefix("QEMU emulator version ")?.split_whitespace().next()?;
    Some(format!("QEMU {number}"))
}

impl VmCard {
    pub(super) fn of(plan: &Plan) -> Self {
        if plan.network { VmCard::User } else { VmCard::None }
    }
}

/// What a machine has of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum VmCard {
    /// Nothing.
    None,
    /// A card whose connections are made by the hypervisor, in the network that it is in.
    User,
}

/// How a machine comes to where it waits to be told what it is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VmStart {
    /// It boots.
    Boot,
    /// It boots with its memory in the file of a template, and is ended there.
    MakeTemplate,
    /// It waits for the state of its devices, and has its memory from that file. What it writes there is its own.
    Restore,
}

/// Where a hypervisor finds what it is started with.
#[derive(Debug, Clone, Copy)]
pub(super) struct HypervisorPlaces<'a> {
    /// A directory with what it boots.
    pub(super) images: &'a str,
    /// A file that the console's words are added to.
    pub(super) said: &'a str,
}

impl HypervisorPlaces<'static> {
    /// Those in its house.
    pub(super) const INSIDE: Self = Self {
        images: IMAGES_INSIDE,
        said: SAID_INSIDE,
    };
}

/// What it is supplied with when it opens it.
pub(super) fn supplied(vm: &VmPlan, start: VmStart) -> HypervisorSupply {
    HypervisorSupply {
        memory: start != VmStart::Boot,
        device: vm.acceleration == Acceleration::Kvm,
    }
}

/// The words that it is started with, its program first.
/// An emulated processor cannot find out how fast its time stamp counter runs, which is the host's (`counter_khz`).
pub(super) fn words(
    vm: &VmPlan,
    places: &HypervisorPlaces<'_>,
    card: VmCard,
    start: VmStart,
    counter_khz: Option<u64>,
) -> Vec<String> {
    let (images, said) = (places.images, places.said);
    let mut words: Vec<String> = Vec::new();
    let mut add = |pair: &[&str]| words.extend(pair.iter().map(|&word| word.to_owned()));
    add(&["qemu"]);
    // Nothing that was not asked for: no device, no configuration, no window.
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    add(&[
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    ]);
    add(&[
        "-M",
        "microvm,acpi=on,rtc=on,isa-serial=on,auto-kernel-cmdline=off,memory-backend=memory",
    ]);
    let size = vm.memory_mib;
    let file = |share| format!("memory-backend-file,id=memory,size={size}M,mem-path={MEMORY_INSIDE},share={share}");
    let memory = match start {
        VmStart::Boot => format!("memory-backend-ram,id=memory,size={size}M"),
        VmStart::MakeTemplate => file("on"),
        VmStart::Restore => file("off"),
    };
    add(&["-object", &memory]);
    match vm.acceleration {
        Acceleration::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        Acceleration::Tcg => {
            let threads = if vm.cpus > 1 { "multi" } else { "single" };
            let tcg = format!("tcg,thread={threads},tb-size={TRANSLATED_MIB}");
            add(&["-accel", &tcg, "-cpu", "max"]);
        }
    }
    add(&["-m", &format!("{}M", vm.memory_mib), "-smp", &vm.cpus.to_string()]);
    add(&["-L", FIRMWARE]);
    add(&["-kernel", &format!("{images}/{KERNEL}")]);
    add(&["-initrd", &format!("{images}/{INITRAMFS}")]);
    let counter = counter_khz.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"));
    add(&["-append", &format!("{KERNEL_WORDS}{counter}")]);
    add(&["-chardev", &format!("file,id=console,path={said},append=on")]);
    add(&["-serial", "chardev:console"]);
    add(&["-chardev", &format!("socket,id=monitor,fd={MONITOR}")]);
    add(&["-mon", "chardev=monitor,mode=control"]);
    add(&["-device", "virtio-serial-device"]);
    for (id, descriptor, name) in [("channel", CHANNEL, CHANNEL_PORT), ("tree", TREE, TREE_PORT)] {
        add(&["-chardev", &format!("socket,id={id},fd={descriptor}")]);
        add(&["-device", &format!("virtserialport,chardev={id},name={name}")]);
    }
    if card == VmCard::User {
        add(&["-netdev", "user,id=net,ipv6=off"]);
        add(&["-device", "virtio-net-device,netdev=net"]);
    }
    // Tells of memory that nobody uses, which the host has back then.
    add(&["-device", "virtio-balloon-device,free-page-reporting=on"]);
    if start == VmStart::Restore {
        add(&["-incoming", "defer"]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> VmPlan {
        VmPlan {
            hypervisor: PROGRAM_INSIDE.into(),
            version: "QEMU 7.2.22".to_owned(),
            images: "/x".into(),
            release: "6.1".to_owned(),
            acceleration: Acceleration::Tcg,
            memory_mib: 256,
            cpus: 1,
            code_memory: None,
            pids: None,
            template: None,
        }
    }

    #[test]
    fn a_version_is_read_and_nothing_else_is_taken_for_one() {
        let said = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright";
        assert_eq!(parse_version(said).as_deref(), Some("QEMU 7.2.22"));
        assert_eq!(parse_version("crun version 1"), None);
        assert_eq!(parse_version(""), None);
    }

    #[test]
    fn a_machine_has_no_device_that_was_not_asked_for() {
        let without = words(&plan(), &HypervisorPlaces::INSIDE, VmCard::None, VmStart::Boot, None);
        let devices = |words: &[String]| words.iter().filter(|word| *word == "-device").count();
        assert_eq!(devices(&without), 4, "{without:?}");
        assert!(without.iter().any(|word| word == "-nodefaults"));
        let with = words(
            &plan(),
            &HypervisorPlaces::INSIDE,
            VmCard::User,
            VmStart::Restore,
            Some(2_000_000),
        );
        assert_eq!(devices(&with), 5, "{with:?}");
    }

    #[test]
    fn only_the_machine_that_a_template_is_made_of_shares_the_file_of_its_memory() {
        let cases = [
            (VmStart::Boot, None),
            (VmStart::MakeTemplate, Some("share=on")),
            (VmStart::Restore, Some("share=off")),
        ];
        for (start, shared) in cases {
            let words = words(&plan(), &HypervisorPlaces::INSIDE, VmCard::None, start, None);
            let memory = words.iter().find(|word| word.starts_with("memory-backend-"));
            let said = memory.unwrap().split(',').find(|part| part.starts_with("share="));
            assert_eq!(said, shared, "{start:?}");
        }
    }
}
