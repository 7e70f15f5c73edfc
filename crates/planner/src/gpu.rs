//! The graphics cards of a machine: their device nodes, and what of their driver a program is linked with.
//!
//! Cards are counted from 0: NVIDIA's by the number of their node, then those of the kernel's own drivers (DRM) by that of their
//! render node. The version of NVIDIA's driver is the kernel module's, since its libraries work with that one alone.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use offleash_core::debian_libraries;
use offleash_core::gpu::GpuChoice;
use offleash_core::plan::{PlanEntry, PlanNode};
use offleash_core::spec::MountAccess;
use offleash_core::text::Text;

use super::error::PlanError;
use super::toolchain::ToolchainAdditions;
use super::tree::EntryTree;

/// Where NVIDIA's kernel module says its version.
const NVIDIA_VERSION: &str = "/proc/driver/nvidia/version";
/// What every program that uses one of NVIDIA's cards opens beside the card, where it is there; the first has to be.
const NVIDIA_SHARED: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// The libraries of NVIDIA's driver that computing takes, and as what programs ask for them. Those before [`NEEDED`] have to be there.
const NVIDIA_LIBRARIES: [(&str, Option<&str>); 5] = [
    ("libcuda.so", Some("libcuda.so.1")),
    ("libnvidia-ml.so", Some("libnvidia-ml.so.1")),
    ("libnvidia-ptxjitcompiler.so", Some("libnvidia-ptxjitcompiler.so.1")),
    ("libnvidia-nvvm.so", Some("libnvidia-nvvm.so.4")),
    // Programs ask for it by its version.
    ("libnvidia-gpucomp.so", None),
];
/// How many of them no program does without.
const NEEDED: usize = 2;
/// Where distributions put them.
const LIBRARY_DIRECTORIES: [&str; 9] = [
    debian_libraries!("/usr/lib/", ""),
    debian_libraries!("/usr/lib/", "/nvidia/current"),
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
];
/// Where its own program is.
const PROGRAMS: [&str; 2] = ["/usr/bin/nvidia-smi", "/run/opengl-driver/bin/nvidia-smi"];
/// Where what the sandbox's own root does not have is inside.
const LIBRARIES_INSIDE: &str = "/run/offleash-gpu/lib";
const PROGRAMS_INSIDE: &str = "/run/offleash-gpu/bin";

/// A graphics card.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GraphicsCard {
    /// Its node below `/dev`.
    node: String,
    driver: CardDriver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CardDriver {
    Nvidia,
    /// One of the kernel's own.
    Drm,
}

/// Adds the cards that were asked for. `machine` is the machine's root directory.
///
/// # Errors
/// `NoGpu` where there is no such card, `GpuClosed` where its node is not open to everybody, and `NoGpuDriver` where the libraries of
/// its driver are not there.
pub(super) fn add(
    choice: Option<&GpuChoice>,
    machine: &Path,
    tree: &mut EntryTree,
    added: &mut ToolchainAdditions,
) -> Result<(), PlanError> {
    let Some(choice) = choice else { return Ok(()) };
    let cards = chosen(choice, cards(machine))?;
    let mut nodes: Vec<String> = cards.iter().map(|card| card.node.clone()).collect();
    let has_nvidia = cards.iter().any(|card| card.driver == CardDriver::Nvidia);
    if has_nvidia {
        let shared = NVIDIA_SHARED.iter().enumerate();
        let there = shared.filter(|(number, name)| *number == 0 || on(machine, format!("/dev/{name}")).exists());
        nodes.extend(there.map(|(_, name)| (*name).to_owned()));
    }
    // What AMD's cards compute through.
    if cards.iter().any(|card| card.driver == CardDriver::Drm) && machine.join("dev/kfd").exists() {
        nodes.push("kfd".to_owned());
    }
    for node in nodes {
        let target = Path::new("/dev").join(node);
        let source = on(machine, &target);
        check_open(&source, &target)?;
        let rule = format!("gpu: {choice}");
        let entry = PlanEntry {
            target,
            node: PlanNode::Device { source },
            rule,
        };
        tree.put(entry);
    }
    match has_nvidia {
        true => add_nvidia_driver(choice, machine, tree, added),
        false => Ok(()),
    }
}

/// A path of the machine, which begins with a slash.
fn on(machine: &Path, path: impl AsRef<Path>) -> PathBuf {
    machine.join(path.as_ref().strip_prefix("/").unwrap_or(path.as_ref()))
}

fn chosen(choice: &GpuChoice, cards: Vec<GraphicsCard>) -> Result<Vec<GraphicsCard>, PlanError> {
    let missing = |number: Option<u8>| PlanError::NoGpu {
        number,
        count: cards.len(),
    };
    if let GpuChoice::Numbers(numbers) = choice
        && let Some(number) = numbers.iter().find(|number| usize::from(**number) >= cards.len())
    {
        return Err(missing(Some(*number)));
    }
    if cards.is_empty() {
        return Err(missing(None));
    }
    let numbered = cards.into_iter().enumerate();
    Ok(numbered
        .filter_map(|(number, card)| choice.has(number).then_some(card))
        .collect())
}

/// All that the machine has, in their order.
fn cards(machine: &Path) -> Vec<GraphicsCard> {
    let mut nvidia = numbered(&machine.join("dev"), "nvidia");
    nvidia.sort_unstable();
    let mut drm = numbered(&machine.join("dev/dri"), "renderD");
    drm.sort_unstable();
    // NVIDIA's cards have such a node, too, beside the one that computing takes.
    drm.retain(|number| {
        let driver = on(machine, format!("/sys/class/drm/renderD{number}/device/driver"));
        let name = std::fs::read_link(driver).ok();
        name.as_deref().and_then(Path::file_name) != Some(OsStr::new("nvidia"))
    });
    let nvidia = nvidia.into_iter().map(|number| GraphicsCard {
        node: format!("nvidia{number}"),
        driver: CardDriver::Nvidia,
    });
    let drm = drm.into_iter().map(|number| GraphicsCard {
        node: format!("dri/renderD{number}"),
        driver: CardDriver::Drm,
    });
    nvidia.chain(drm).collect()
}

/// The numbers of what is called `prefix` and a number in a directory.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &OsStr| {
        let digits = name.to_str()?.strip_prefix(prefix)?;
        let is_plain = digits == "0" || !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| digits.parse().ok()).flatten()
    };
    entries.filter_map(|entry| number(&entry.file_name())).collect()
}

/// Whoever works in a sandbox is nobody outside, and in no group of the machine.
fn check_open(source: &Path, shown: &Path) -> Result<(), PlanError> {
    const READ_AND_WRITE: u32 = 0o006;
    let metadata = std::fs::symlink_metadata(source).map_err(|source| PlanError::Unreachable {
        role: "graphics card",
        path: Text::from(shown),
        source,
    })?;
    match metadata.permissions().mode() & READ_AND_WRITE == READ_AND_WRITE {
        true => Ok(()),
        false => Err(PlanError::GpuClosed {
            path: Text::from(shown),
        }),
    }
}

/// Adds what of NVIDIA's driver is not in the sandbox's root by itself.
fn add_nvidia_driver(
    choice: &GpuChoice,
    machine: &Path,
    tree: &mut EntryTree,
    added: &mut ToolchainAdditions,
) -> Result<(), PlanError> {
    let version = nvidia_version(machine).ok_or_else(|| PlanError::NoGpuDriver {
        what: NVIDIA_VERSION.to_owned(),
    })?;
    let rule = format!("gpu: {choice}");
    let mut has_libraries = false;
    for (number, (name, asked_as)) in NVIDIA_LIBRARIES.into_iter().enumerate() {
        let file = format!("{name}.{version}");
        let mut places = LIBRARY_DIRECTORIES
            .iter()
            .map(|directory| Path::new(directory).join(&file));
        let Some(place) = places.find(|place| on(machine, place).is_file()) else {
            match number < NEEDED {
                true => return Err(PlanError::NoGpuDriver { what: file }),
                false => continue,
            }
        };
        let inside = Path::new(LIBRARIES_INSIDE).join(asked_as.unwrap_or(&file));
        has_libraries |= bind(machine, &place, inside, &rule, tree);
    }
    if has_libraries {
        added
            .variables
            .push(("LD_LIBRARY_PATH".into(), LIBRARIES_INSIDE.into()));
    }
    if let Some(program) = PROGRAMS.iter().find(|program| on(machine, program).is_file()) {
        let inside = Path::new(PROGRAMS_INSIDE).join("nvidia-smi");
        if bind(machine, Path::new(program), inside, &rule, tree) {
            added.path.push(PROGRAMS_INSIDE.into());
        }
    }
    Ok(())
}

/// Puts a file at `inside`, read only, unless the sandbox sees it where it is; whether it was put there.
fn bind(machine: &Path, place: &Path, inside: PathBuf, rule: &str, tree: &mut EntryTree) -> bool {
    let source = std::fs::canonicalize(on(machine, place)).unwrap_or_else(|_| on(machine, place));
    if tree.view().resolve(place).is_some_and(|found| found.host == source) {
        return false;
    }
    tree.put(PlanEntry {
        target: inside,
        node: PlanNode::Bind {
            source,
            access: MountAccess::Ro,
        },
        rule: rule.to_owned(),
    });
    true
}

/// The version of NVIDIA's kernel module: the first word of its line that is numbers with dots.
fn nvidia_version(machine: &Path) -> Option<String> {
    let text = std::fs::read_to_string(on(machine, NVIDIA_VERSION)).ok()?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        word.contains('.') && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use offleash_core::error::{ErrorKind, Explained};

    use super::*;

    const VERSION: &str = "535.129.03";

    /// A directory that stands for a machine's root.
    struct FakeMachine(tempfile::TempDir);

    impl FakeMachine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, path: &str, contents: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        }

        fn with_nvidia(self) -> Self {
            for node in [
                "nvidia1",
                "nvidia0",
                "nvidiactl",
                "nvidia-uvm",
                "nvidia-caps/nvidia-cap1",
            ] {
                self.file(&format!("dev/{node}"), "");
            }
            let version =
                format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Thu Oct 19 18:56:32 UTC 2023\n");
            self.file("proc/driver/nvidia/version", &version);
            for name in ["libcuda.so", "libnvidia-ml.so"] {
                self.file(&format!("run/opengl-driver/lib/{name}.{VERSION}"), "");
                // Of an earlier driver, with which the kernel's module does not work.
                self.file(&format!("usr/lib64/{name}.470.42.01"), "");
            }
            self.file("usr/bin/nvidia-smi", "");
            self
        }

        fn ask(&self, choice: &str) -> Result<(Vec<PlanEntry>, ToolchainAdditions), PlanError> {
            let mut tree = EntryTree::default();
            let mut added = ToolchainAdditions::default();
            let choice = choice.parse().unwrap();
            add(Some(&choice), self.0.path(), &mut tree, &mut added)?;
            Ok((tree.into_order(), added))
        }

        fn devices(&self, choice: &str) -> Vec<String> {
            let (entries, _) = self.ask(choice).unwrap();
            let devices = entries
                .iter()
                .filter(|entry| matches!(entry.node, PlanNode::Device { .. }));
            devices.map(|entry| entry.target.to_str().unwrap().to_owned()).collect()
        }
    }

    #[test]
    fn a_machine_without_a_card_says_so() {
        let error = FakeMachine::new().ask("all").unwrap_err();
        assert!(matches!(error, PlanError::NoGpu { number: None, count: 0 }), "{error}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = FakeMachine::new().with_nvidia().ask("0,2").unwrap_err();
        assert!(
            matches!(
                error,
                PlanError::NoGpu {
                    number: Some(2),
                    count: 2
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn nvidia_s_cards_come_with_what_they_are_driven_through_and_nothing_else() {
        let machine = FakeMachine::new().with_nvidia();
        assert_eq!(
            machine.devices("1"),
            ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"]
        );
        assert_eq!(machine.devices("all").len(), 4);
    }

    #[test]
    fn libraries_are_those_of_the_kernel_s_module_by_the_names_that_programs_ask_for() {
        let machine = FakeMachine::new().with_nvidia();
        let (entries, added) = machine.ask("0").unwrap();
        let root = machine.0.path().canonicalize().unwrap();
        for (name, asked_as) in &NVIDIA_LIBRARIES[..NEEDED] {
            let inside = Path::new(LIBRARIES_INSIDE).join(asked_as.unwrap());
            let entry = entries.iter().find(|entry| entry.target == inside).unwrap();
            let source = root.join(format!("run/opengl-driver/lib/{name}.{VERSION}"));
            let access = MountAccess::Ro;
            assert_eq!(entry.node, PlanNode::Bind { source, access });
        }
        assert_eq!(added.variables, [("LD_LIBRARY_PATH".into(), LIBRARIES_INSIDE.into())]);
        assert_eq!(added.path, [PathBuf::from(PROGRAMS_INSIDE)]);
    }

    #[test]
    fn a_driver_without_its_library_is_refused() {
        let machine = FakeMachine::new().with_nvidia();
        machine.file("proc/driver/nvidia/version", "NVRM version: Kernel Module  1.2.3\n");
        let error = machine.ask("0").unwrap_err();
        assert!(error.to_string().contains("libcuda.so.1.2.3"), "{error}");
        assert!(matches!(error, PlanError::NoGpuDriver { .. }));
    }

    #[test]
    fn cards_of_the_kernel_s_own_drivers_are_counted_after_nvidia_s() {
        let machine = FakeMachine::new().with_nvidia();
        for node in ["dri/card0", "dri/renderD129", "dri/renderD128", "kfd"] {
            machine.file(&format!("dev/{node}"), "");
        }
        let device = machine.0.path().join("sys/class/drm/renderD128/device");
        std::fs::create_dir_all(&device).unwrap();
        symlink("../../../bus/pci/drivers/nvidia", device.join("driver")).unwrap();
        assert_eq!(machine.devices("2"), ["/dev/kfd", "/dev/dri/renderD129"]);
    }

    #[test]
    fn a_card_that_is_not_open_to_everybody_is_refused() {
        let machine = FakeMachine::new();
        machine.file("dev/dri/renderD128", "");
        let node = machine.0.path().join("dev/dri/renderD128");
        std::fs::set_permissions(&node, std::fs::Permissions::from_mode(0o660)).unwrap();
        let error = machine.ask("all").unwrap_err();
        assert!(matches!(error, PlanError::GpuClosed { .. }), "{error}");
        assert!(error.to_string().contains("`/dev/dri/renderD128`"), "{error}");
    }
}
