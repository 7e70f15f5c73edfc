//! What a machine is booted from: a kernel and an initramfs, made once for each kernel and each guest of ours.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::error::VmError;
use super::initramfs::Archive;
use super::kernel::{GuestKernel, VM_DIRECTORY};
use super::modules;
use crate::guest_image;

/// Below the directory of virtual machines: what they are booted from, by a key each.
const IMAGES: &str = "images";
/// The kernel's name there, and in a machine's house.
pub(super) const KERNEL: &str = "kernel";
/// The initramfs's.
pub(super) const INITRAMFS: &str = "initramfs";
/// How many directories of that kind are kept; the oldest go.
const MAX_IMAGES: usize = 4;

/// Makes the images of a kernel if they are not there; their directory.
///
/// # Errors
/// `File`, `Helper`. What was begun is removed.
pub fn prepare(kernel: &GuestKernel, state: &Path) -> Result<PathBuf, VmError> {
    let images = state.join(VM_DIRECTORY).join(IMAGES);
    fs::create_dir_all(&images).map_err(VmError::file("making", &images))?;
    // It is mounted from there, which follows no link.
    let images = images.canonicalize().map_err(VmError::file("resolving", &images))?;
    let place = images.join(key(kernel)?);
    if place.join(INITRAMFS).is_file() && place.join(KERNEL).is_file() {
        return Ok(place);
    }
    remove_oldest(&images);
    let fresh = images.join(format!("~{}", std::process::id()));
    let made = write_to(kernel, &fresh).and_then(|()| match fs::rename(&fresh, &place) {
        // Another process was faster.
        Err(_) if place.join(INITRAMFS).is_file() => Ok(()),
        renamed => renamed.map_err(VmError::file("placing", &place)),
    });
    // Gone by now if all went well.
    let _removed = fs::remove_dir_all(&fresh);
    made.map(|()| place)
}

fn write_to(kernel: &GuestKernel, directory: &Path) -> Result<(), VmError> {
    let _left_by_a_crash = fs::remove_dir_all(directory);
    fs::create_dir(directory).map_err(VmError::file("making", directory))?;
    let place = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        let written =
            fs::write(&path, bytes).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o444)));
        written.map_err(VmError::file("writing", &path))
    };
    let image = fs::read(&kernel.image).map_err(VmError::file("reading the kernel", &kernel.image))?;
    place(KERNEL, &image)?;
    place(INITRAMFS, &initramfs(kernel)?)?;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory, open).map_err(VmError::file("opening", directory))
}

fn initramfs(kernel: &GuestKernel) -> Result<Vec<u8>, VmError> {
    let writing = |error| VmError::file("packing the modules of", &kernel.directory)(error);
    let mut archive = Archive::default();
    let mut list = String::new();
    for directory in ["dev", "proc", "sys", "modules"] {
        archive.directory(directory).map_err(writing)?;
    }
    archive.console().map_err(writing)?;
    for file in &kernel.modules {
        let Some(name) = modules::name_of(file) else { continue };
        archive
            .file(&format!("modules/{name}.ko"), &modules::read(file)?)
            .map_err(writing)?;
        // A `String` takes all that is written to it.
        let _ = writeln!(list, "/modules/{name}.ko");
    }
    archive.file("modules.list", list.as_bytes()).map_err(writing)?;
    archive.file("init", guest_image::GUEST).map_err(writing)?;
    archive.finish().map_err(writing)
}

/// What tells these images from others: this build's guest, and of each file its path, inode, size and time.
fn key(kernel: &GuestKernel) -> Result<String, VmError> {
    let mut text = format!("{}\n", guest_image::DIGEST);
    for file in std::iter::once(&kernel.image).chain(&kernel.modules) {
        let found = fs::metadata(file).map_err(VmError::file("examining", file))?;
        let _ = writeln!(
            text,
            "{} {} {} {} {}",
            file.display(),
            found.ino(),
            found.size(),
            found.mtime(),
            found.mtime_nsec()
        );
    }
    Ok(format!("{}-{:016x}", kernel.release, digest(text.as_bytes())))
}

/// FNV-1a; it names a directory of our own, and need not resist anybody.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A machine that runs has what it is booted from open, or mounted.
fn remove_oldest(images: &Path) {
    let entries = fs::read_dir(images).into_iter().flatten().flatten();
    let dated = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut all: Vec<_> = entries.filter_map(dated).collect();
    all.sort();
    let many = all.len().saturating_sub(MAX_IMAGES - 1);
    for (_, path) in all.into_iter().take(many) {
        let _removed = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_made_once_and_anew_for_another_kernel() {
        let state = tempfile::tempdir().unwrap();
        let image = state.path().join("vmlinuz-1");
        fs::write(&image, "kernel").unwrap();
        let module = state.path().join("a.ko");
        fs::write(&module, "module").unwrap();
        let kernel = GuestKernel {
            image: image.clone(),
            release: "1".to_owned(),
            directory: state.path().to_owned(),
            modules: vec![module],
        };
        let first = prepare(&kernel, state.path()).unwrap();
        assert_eq!(prepare(&kernel, state.path()).unwrap(), first);
        assert_eq!(fs::read(first.join(KERNEL)).unwrap(), b"kernel");
        let archive = fs::read(first.join(INITRAMFS)).unwrap();
        for name in ["modules/a.ko\0", "modules.list\0", "init\0"] {
            assert!(
                archive.windows(name.len()).any(|window| window == name.as_bytes()),
                "{name}"
            );
        }
        fs::write(&image, "another kernel").unwrap();
        for _ in 0..2 * MAX_IMAGES {
            fs::write(&image, fs::read(&image).unwrap().repeat(2)).unwrap();
            prepare(&kernel, state.path()).unwrap();
        }
        let kept = fs::read_dir(state.path().join("vm/images")).unwrap().count();
        assert!(kept <= MAX_IMAGES, "{kept}");
    }
}
