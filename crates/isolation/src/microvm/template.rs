//! Templates: the state of a machine that has booted and waits, from which later ones are restored.
//!
//! A template is saved by the carrier of the first machine like it, before that is told what it is to become: no code of a
//! tenant has run in it. It is one file of the state directory, which its owner alone reads. It is whole if it ends with
//! [`TRAILER`]. Whoever makes one holds a lock on its file; others boot meanwhile.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use offleash_core::vm::{TemplateUse, VmPlan, VmTemplatePlan};
use rustix::fs::FlockOperation;

use super::hypervisor::{self, VmCard};

/// Beside the directories of images.
const TEMPLATES: &str = "templates";
/// What a whole template ends with.
const TRAILER: &[u8; 16] = b"offleash whole 1";
/// How many are kept; the oldest go.
const MAX_TEMPLATES: usize = 8;

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
    let options = || {
        let mut options = File::options();
        options.read(true).mode(0o600).custom_flags(rustix_nofollow());
        options
    };
    if let Ok(mut file) = options().open(&path)
        && is_whole(&mut file).unwrap_or(false)
    {
        let used = TemplateUse::Restore;
        return Some(ChosenTemplate {
            plan: VmTemplatePlan { path, used },
            lock: None,
        });
    }
    let directory = path.parent()?;
    fs::create_dir_all(directory).ok()?;
    remove_oldest(directory, &path);
    let mut file = options().write(true).create(true).truncate(false).open(&path).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    if is_whole(&mut file).unwrap_or(false) {
        // It became so a moment ago.
        let used = TemplateUse::Restore;
        return Some(ChosenTemplate {
            plan: VmTemplatePlan { path, used },
            lock: None,
        });
    }
    file.set_len(0).ok()?;
    let used = TemplateUse::Save;
    Some(ChosenTemplate {
        plan: VmTemplatePlan { path, used },
        lock: Some(file),
    })
}

fn rustix_nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// The file of a machine's template: named by all that its state depends on.
fn place(vm: &VmPlan, card: VmCard) -> Option<PathBuf> {
    let images = vm.images.file_name()?.to_str()?;
    let parts = [
        &[images, &vm.version, vm.hypervisor.to_str()?].map(str::to_owned)[..],
        &hypervisor::words(vm, card, false, None)[..],
    ]
    .concat();
    let key = super::images::digest(parts.join("\0").as_bytes());
    let directory = vm.images.parent()?.parent()?.join(TEMPLATES);
    Some(directory.join(format!("{images}-{key:016x}")))
}

fn is_whole(file: &mut File) -> io::Result<bool> {
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
fn remove_oldest(directory: &Path, but: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut all: Vec<_> = entries.filter_map(dated).filter(|(_, path)| path != but).collect();
    all.sort();
    let many = all.len().saturating_sub(MAX_TEMPLATES - 1);
    for (_, path) in all.into_iter().take(many) {
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
