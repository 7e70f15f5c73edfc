//! The guest's kernel: where one is, and which of its modules a machine needs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::VmError;
use super::modules;

/// Below the state directory: what belongs to virtual machines.
pub const VM_DIRECTORY: &str = "vm";
/// Below that: a kernel that was unpacked there.
const UNPACKED: &str = "kernel";
/// What a machine needs of its kernel, besides what these depend on.
const NEEDED: [&str; 5] = ["virtio_mmio", "virtio_console", "virtio_net", "virtio_balloon", "fuse"];

/// A kernel for guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestKernel {
    /// The kernel itself, compressed as it is booted.
    pub image: PathBuf,
    /// Its release, such as `6.1.0-48-cloud-amd64`.
    pub release: String,
    /// The directory of its modules.
    pub directory: PathBuf,
    /// The files of the modules to be loaded, in that order; none of one that is built in.
    pub modules: Vec<PathBuf>,
}

/// Finds a kernel: at `wanted` alone, or in the state directory, or the newest below `/boot`, one for virtual machines first.
///
/// # Errors
/// `NoKernel` if there is none, `NoModule` if it lacks what a guest needs, `File` if it cannot be read.
pub fn find(wanted: Option<&Path>, state: &Path) -> Result<GuestKernel, VmError> {
    let candidates = match wanted {
        Some(path) if path.is_dir() => images_below(path),
        Some(path) => image_at(path).into_iter().collect(),
        None => {
            let mut unpacked = images_below(&state.join(VM_DIRECTORY).join(UNPACKED));
            unpacked.extend(images_below(Path::new("/")));
            unpacked
        }
    };
    let Some(first) = candidates.into_iter().next() else {
        return Err(VmError::NoKernel {
            wanted: wanted.map(Path::to_owned),
        });
    };
    first.with_modules()
}

/// Unpacks a Debian package of a kernel into the state directory, in the place of one that was unpacked before.
///
/// # Errors
/// `Helper` if it is no package or there is no `dpkg-deb`, `NoKernel` if it holds no kernel; then what was there stays.
pub fn unpack(package: &Path, state: &Path) -> Result<GuestKernel, VmError> {
    let directory = state.join(VM_DIRECTORY);
    fs::create_dir_all(&directory).map_err(VmError::file("making", &directory))?;
    let fresh = directory.join(format!("{UNPACKED}.{}", std::process::id()));
    let unpacked = unpack_to(package, &fresh, state);
    let placed = unpacked.and_then(|_| {
        let place = directory.join(UNPACKED);
        let old = directory.join(format!("{UNPACKED}.old.{}", std::process::id()));
        let had_one = fs::rename(&place, &old).is_ok();
        let renamed = fs::rename(&fresh, &place).map_err(VmError::file("placing", &place));
        if had_one {
            // It is nobody's any more.
            let _removed = fs::remove_dir_all(&old);
        }
        renamed?;
        find(Some(&place), state)
    });
    if placed.is_err() {
        let _removed = fs::remove_dir_all(&fresh);
    }
    placed
}

fn unpack_to(package: &Path, directory: &Path, state: &Path) -> Result<GuestKernel, VmError> {
    fs::create_dir(directory).map_err(VmError::file("making", directory))?;
    let words = ["-x".to_owned(), modules::utf8(package)?, modules::utf8(directory)?];
    helper("dpkg-deb", &words)?;
    find(Some(directory), state)
}

/// Runs a program of the system's own.
fn helper(program: &'static str, words: &[String]) -> Result<(), VmError> {
    match offleash_sys::process::run_helper(program, words) {
        Ok((true, _)) => Ok(()),
        Ok((false, said)) => Err(VmError::Helper { program, said }),
        Err(error) => Err(VmError::Helper {
            program,
            said: error.to_string(),
        }),
    }
}

/// A kernel's file, of which the modules were not looked at.
#[derive(Debug, Clone)]
struct KernelImage {
    path: PathBuf,
    release: String,
    /// The directory that `boot` and `lib/modules` are in.
    root: PathBuf,
}

/// The kernels of a directory that has `boot`, the best first.
fn images_below(root: &Path) -> Vec<KernelImage> {
    let entries = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
    let mut images: Vec<KernelImage> = entries.filter_map(|entry| image_at(&entry.path())).collect();
    let rank = |image: &KernelImage| (image.release.contains("-cloud"), version_of(&image.release));
    images.sort_by_key(|image| std::cmp::Reverse(rank(image)));
    images
}

fn image_at(path: &Path) -> Option<KernelImage> {
    let release = path.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
    let root = path.parent()?.parent()?.to_owned();
    path.is_file().then(|| KernelImage {
        path: path.to_owned(),
        release,
        root,
    })
}

/// The numbers of a release, by which newer ones are told.
fn version_of(release: &str) -> Vec<u64> {
    let numbers = release.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

impl KernelImage {
    fn with_modules(self) -> Result<GuestKernel, VmError> {
        let below = |root: &Path, library: &str| root.join(library).join("modules").join(&self.release);
        let places = [
            below(&self.root, "lib"),
            below(&self.root, "usr/lib"),
            below(Path::new("/"), "usr/lib"),
        ];
        let directory = places.iter().find(|place| place.is_dir()).unwrap_or(&places[0]).clone();
        let files = module_files(&directory).map_err(VmError::file("reading the modules in", &directory))?;
        let built_in = built_in(&directory);
        let mut ordered = ModuleOrder {
            release: &self.release,
            directory: &directory,
            files: &files,
            built_in: &built_in,
            ordered: Vec::new(),
        };
        for name in NEEDED {
            ordered.add(name, 0)?;
        }
        let modules = ordered.ordered;
        Ok(GuestKernel {
            image: self.path,
            release: self.release,
            modules,
            directory,
        })
    }
}

/// Longest way from a module to what it depends on, steps.
const MAX_DEPTH: usize = 16;

struct ModuleOrder<'a> {
    release: &'a str,
    directory: &'a Path,
    files: &'a BTreeMap<String, PathBuf>,
    built_in: &'a [String],
    ordered: Vec<PathBuf>,
}

impl ModuleOrder<'_> {
    /// Adds a module behind those that it depends on.
    fn add(&mut self, name: &str, depth: usize) -> Result<(), VmError> {
        let missing = || VmError::NoModule {
            release: self.release.to_owned(),
            module: name.to_owned(),
            directory: self.directory.to_owned(),
        };
        let Some(file) = self.files.get(name) else {
            return match self.built_in.iter().any(|built_in| built_in == name) {
                true => Ok(()),
                false => Err(missing()),
            };
        };
        if self.ordered.contains(file) {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(missing());
        }
        let contents = modules::read(file)?;
        for needed in modules::depends(&contents) {
            self.add(&needed, depth + 1)?;
        }
        self.ordered.push(file.clone());
        Ok(())
    }
}

/// The file of each module below a directory, by the module's name.
fn module_files(directory: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![directory.join("kernel")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                waiting.push(path);
            } else if let Some(name) = modules::name_of(&path) {
                files.insert(name, path);
            }
        }
    }
    Ok(files)
}

/// The names of what is built into the kernel and could be a module.
fn built_in(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
    text.lines()
        .filter_map(|line| modules::name_of(Path::new(line)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_releases_and_those_for_virtual_machines_come_first() {
        let directory = tempfile::tempdir().unwrap();
        let boot = directory.path().join("boot");
        fs::create_dir(&boot).unwrap();
        for release in ["6.1.0-9-cloud-amd64", "6.12.1-amd64", "6.1.0-48-cloud-amd64"] {
            fs::write(boot.join(format!("vmlinuz-{release}")), "").unwrap();
        }
        fs::write(boot.join("config-6.1.0-48-cloud-amd64"), "").unwrap();
        let found: Vec<String> = images_below(directory.path())
            .into_iter()
            .map(|image| image.release)
            .collect();
        assert_eq!(found, ["6.1.0-48-cloud-amd64", "6.1.0-9-cloud-amd64", "6.12.1-amd64"]);
    }

    #[test]
    fn a_kernel_that_is_not_there_or_lacks_its_modules_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let wanted = directory.path().join("boot/vmlinuz-1");
        assert!(matches!(find(Some(&wanted), &state), Err(VmError::NoKernel { .. })));
        fs::create_dir(directory.path().join("boot")).unwrap();
        fs::write(&wanted, "").unwrap();
        fs::create_dir_all(directory.path().join("lib/modules/1/kernel")).unwrap();
        let missing = find(Some(&wanted), &state).unwrap_err();
        assert!(missing.to_string().contains("virtio_mmio"), "{missing}");
        let built_in = "kernel/a/virtio_mmio.ko\nkernel/virtio_console.ko\nkernel/virtio-net.ko\nkernel/virtio_balloon.ko\nkernel/fuse.ko\n";
        fs::write(directory.path().join("lib/modules/1/modules.builtin"), built_in).unwrap();
        assert_eq!(
            find(Some(directory.path()), &state).unwrap().modules,
            Vec::<PathBuf>::new()
        );
    }
}
