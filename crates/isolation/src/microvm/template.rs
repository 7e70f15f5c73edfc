//! Templates: the state of a machine that has booted and waits, from which later ones are restored.
//!
//! A template is made by the carrier of the first machine like it, with a machine that boots for nothing else: no code of a
//! tenant has run in it. It is two files of the state directory, which its owner alone reads. One is the machine's memory, which
//! every machine that is restored maps and none can write to. The other has its devices, and ends with [`TRAILER`] if both are
//! whole. Whoever makes one holds a lock on that; others boot meanwhile. A file of memory is never written to again, only
//! removed: machines may have it.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use offleash_core::vm::{TemplateUse, VmPlan, VmTemplatePlan};
use rustix::fs::FlockOperation;

use super::hypervisor::{self, HypervisorPlaces, VmCard, VmStart};

/// Beside the directories of images.
const TEMPLATES: &str = "templates";
/// What a whole template ends with.
const TRAILER: &[u8; 16] = b"offleash whole 1";
/// How many are kept; the oldest go.
const MAX_TEMPLATES: usize = 8;
/// What those that are kept may take on disk, bytes. A machine of 512 MiB takes some 110 MB.
const MAX_TEMPLATES_BYTES: u64 = 4 << 30;

/// What is to be done with the template of a machine.
#[derive(Debug)]
pub(super) struct ChosenTemplate {
    pub(super) plan: VmTemplatePlan,
    /// The lock, of who saves one.
    pub(super) lock: Option<File>,
}

/// Chooses for a machine: restores it if there is a template, saves one if nobody does; `None` if somebody does, or where it
/// cannot be.
pub(super) fn choose(vm: &VmPlan, card: VmCard) -> Option<ChosenTemplate> {
    let path = place(vm, card)?;
    let plan = |used| VmTemplatePlan {
        path: path.clone(),
        used,
    };
    let restored = || ChosenTemplate {
        plan: plan(TemplateUse::Restore),
        lock: None,
    };
    let saved = plan(TemplateUse::Save);
    if let Ok(mut file) = options().open(&path)
        && is_whole(&mut file, &saved, vm).unwrap_or(false)
    {
        return Some(restored());
    }
    let directory = path.parent()?;
    fs::create_dir_all(directory).ok()?;
    remove_oldest(directory, &path, MAX_TEMPLATES_BYTES);
    let mut file = options().write(true).create(true).truncate(false).open(&path).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    if is_whole(&mut file, &saved, vm).unwrap_or(false) {
        // It became so a moment ago.
        return Some(restored());
    }
    file.set_len(0).ok()?;
    let memory = saved.memory_path();
    let _left_by_a_crash = fs::remove_file(&memory);
    let fresh = options().write(true).create_new(true).open(&memory).ok()?;
    fresh.set_len(vm.memory_mib << 20).ok()?;
    Some(ChosenTemplate {
        plan: saved,
        lock: Some(file),
    })
}

/// Removes a template that a machine could not be restored from. Those that were restored keep what they have of it.
pub(super) fn remove(template: &VmTemplatePlan) {
    // The mark goes first; the next one removes what is left.
    let _removed = fs::remove_file(&template.path).and_then(|()| fs::remove_file(template.memory_path()));
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).mode(0o600).custom_flags(rustix_nofollow());
    options
}

fn rustix_nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// The file of a machine's template: named by all that its state depends on.
fn place(vm: &VmPlan, card: VmCard) -> Option<PathBuf> {
    let images = vm.images.file_name()?.to_str()?;
    let parts = [
        &[images, &vm.version, vm.hypervisor.to_str()?].map(str::to_owned)[..],
        &hypervisor::words(vm, &HypervisorPlaces::INSIDE, card, VmStart::Restore, None)[..],
    ]
    .concat();
    let key = super::images::digest(parts.join("\0").as_bytes());
    let directory = vm.images.parent()?.parent()?.join(TEMPLATES);
    Some(directory.join(format!("{images}-{key:016x}")))
}

fn is_whole(file: &mut File, template: &VmTemplatePlan, vm: &VmPlan) -> io::Result<bool> {
    if fs::symlink_metadata(template.memory_path())?.len() != vm.memory_mib << 20 {
        return Ok(false);
    }
    let length = file.metadata()?.len();
    let size = TRAILER.len() as u64;
    if length <= size {
        return Ok(false);
    }
    let mut end = [0; TRAILER.len()];
    file.seek(SeekFrom::Start(length - size))?;
    file.read_exact(&mut end)?;
    Ok(end == *TRAILER)
}

/// Says that all of a template is in its file.
pub(super) fn finish(file: &mut File) -> io::Result<()> {
    file.seek(SeekFrom::End(0))?;
    file.write_all(TRAILER)
}

/// A machine that is being restored has its template open.
fn remove_oldest(directory: &Path, but: &Path, max_bytes: u64) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let dated = |entry: fs::DirEntry| {
        let found = entry.metadata().ok()?;
        Some((found.modified().ok()?, entry.path(), found.blocks() * 512))
    };
    let memory_of = |path: &Path| VmTemplatePlan {
        path: path.to_owned(),
        used: TemplateUse::Restore,
    };
    let (memories, mut states): (Vec<_>, Vec<_>) = entries
        .filter_map(dated)
        .partition(|(_, path, _)| path.extension().is_some_and(|extension| extension == "memory"));
    states.sort_by(|one, other| other.cmp(one));
    let size = |path: &Path| {
        let memory = memory_of(path).memory_path();
        let found = memories.iter().find(|(_, path, _)| *path == memory);
        found.map_or(0, |(_, _, bytes)| *bytes)
    };
    let (mut kept, mut bytes) = (1, size(but));
    for (_, path, own) in states.iter().filter(|(_, path, _)| path != but) {
        kept += 1;
        bytes += own + size(path);
        if kept > MAX_TEMPLATES || bytes > max_bytes {
            remove(&memory_of(path));
        }
    }
    let is_left =
        |memory: &&(_, PathBuf, _)| *memory.1 != memory_of(but).memory_path() && !memory.1.with_extension("").exists();
    for (_, path, _) in memories.iter().filter(is_left) {
        let _removed = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::vm::Acceleration;

    use super::*;

    fn plan(state: &Path) -> VmPlan {
        VmPlan {
            hypervisor: "/usr/bin/qemu-system-x86_64".into(),
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

    #[test]
    fn one_saves_a_template_others_boot_meanwhile_and_later_ones_restore_it() {
        let state = tempfile::tempdir().unwrap();
        let plan = plan(state.path());
        let first = choose(&plan, VmCard::None).unwrap();
        assert_eq!(first.plan.used, TemplateUse::Save);
        assert!(choose(&plan, VmCard::None).is_none(), "it is being saved");
        let mut file = first.lock.unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        // Whoever saved it is gone, and it is not whole.
        let second = choose(&plan, VmCard::None).unwrap();
        assert_eq!(second.plan.used, TemplateUse::Save);
        let mut file = second.lock.unwrap();
        file.write_all(b"all").unwrap();
        finish(&mut file).unwrap();
        let third = choose(&plan, VmCard::None).unwrap();
        assert_eq!(third.plan.used, TemplateUse::Restore);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&third.plan.path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn templates_are_bounded_in_bytes_and_what_is_left_of_one_goes() {
        let directory = tempfile::tempdir().unwrap();
        let template = |name: &str| VmTemplatePlan {
            path: directory.path().join(name),
            used: TemplateUse::Restore,
        };
        let all = ["older", "newer", "own"].map(template);
        for (template, age) in all.iter().zip([2, 1, 0]) {
            fs::write(template.memory_path(), vec![1; 256 << 10]).unwrap();
            let file = File::create(&template.path).unwrap();
            let modified = std::time::SystemTime::now() - std::time::Duration::from_secs(age * 60);
            file.set_modified(modified).unwrap();
        }
        let left = directory.path().join("nobodys.memory");
        fs::write(&left, "").unwrap();
        let [older, newer, own] = &all;
        remove_oldest(directory.path(), &own.path, 600 << 10);
        let is_there = |template: &VmTemplatePlan| [template.path.exists(), template.memory_path().exists()];
        assert_eq!([older, newer, own].map(is_there), [[false; 2], [true; 2], [true; 2]]);
        assert!(!left.exists());
    }

    #[test]
    fn a_template_whose_memory_is_not_whole_is_made_anew_in_another_file() {
        use std::os::unix::fs::MetadataExt as _;
        let state = tempfile::tempdir().unwrap();
        let plan = plan(state.path());
        let first = choose(&plan, VmCard::None).unwrap();
        let mut file = first.lock.unwrap();
        file.write_all(b"devices").unwrap();
        finish(&mut file).unwrap();
        drop(file);
        assert_eq!(choose(&plan, VmCard::None).unwrap().plan.used, TemplateUse::Restore);
        let memory = first.plan.memory_path();
        // Only its length says so.
        let held = File::options().write(true).open(&memory).unwrap();
        held.set_len(1).unwrap();
        let second = choose(&plan, VmCard::None).unwrap();
        assert_eq!(second.plan.used, TemplateUse::Save);
        assert_ne!(fs::metadata(&memory).unwrap().ino(), held.metadata().unwrap().ino());
        assert_eq!(held.metadata().unwrap().len(), 1);
        remove(&second.plan);
        assert_eq!(fs::read_dir(memory.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn machines_that_differ_have_templates_of_their_own() {
        let state = tempfile::tempdir().unwrap();
        let plan = plan(state.path());
        let larger = VmPlan {
            memory_mib: 512,
            ..plan.clone()
        };
        let other = VmPlan {
            version: "QEMU 8.0".to_owned(),
            ..plan.clone()
        };
        let places: std::collections::BTreeSet<_> = [
            place(&plan, VmCard::None),
            place(&plan, VmCard::User),
            place(&larger, VmCard::None),
            place(&other, VmCard::None),
        ]
        .into();
        assert_eq!(places.len(), 4);
    }
}
