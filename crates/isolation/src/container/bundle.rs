//! The sandbox as an OCI runtime is told of it (`config.json` of the runtime specification, version 1.0.2).

use std::io;
use std::path::{Path, PathBuf};

use offleash_core::limits::Limits;
use offleash_core::plan::{Plan, PlanNode};
use offleash_core::runtime::RuntimeKind;
use serde_json::{Value, json};

use super::housing::{BOOT_ID, TREE};
use super::{FILTERED, GUEST, has_own_kernel};
use crate::limits::{HeldByGroup, NO_CORE_DUMP};
use crate::process::masks;

/// What the superuser of a sandbox may, as [`offleash_sys::credentials::SUPERUSER`].
const SUPERUSER: [&str; 10] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
];

/// The bundle's `config.json`. No capability but for a superuser, and none of them over mounts, devices or networks.
pub(super) fn describe(plan: &Plan, held: HeldByGroup) -> io::Result<Vec<u8>> {
    let capabilities: &[&str] = if plan.has_superuser() { &SUPERUSER } else { &[] };
    let set_id = plan.has_own_root() && !plan.writes_for_others();
    let arguments: &[&str] = match has_own_kernel(plan) {
        true => &[GUEST],
        false => &[GUEST, FILTERED],
    };
    let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({ "type": kind }));
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": plan.user.uid, "gid": plan.user.gid },
            "args": arguments,
            "env": [],
            "cwd": "/",
            "noNewPrivileges": !set_id,
            "capabilities": {
                "bounding": capabilities,
                "effective": capabilities,
                "permitted": capabilities,
            },
            "rlimits": limits(&plan.limits, held),
        },
        // gVisor has all of the tree as one file system, in which the workspace is, and is not told its mounts.
        "root": { "path": TREE, "readonly": !has_own_kernel(plan) && !plan.has_own_root() },
        "hostname": plan.hostname,
        "mounts": mounts(plan),
        "linux": {
            "namespaces": namespaces,
            "resources": resources(plan),
            "devices": devices(plan)?,
            "maskedPaths": masked(),
            "readonlyPaths": [Path::new("/").join(masks::READ_ONLY)],
        },
    });
    serde_json::to_vec(&config).map_err(io::Error::other)
}

/// Whether the bundle has a file for the kernel's id of the machine's start. gVisor has its own id, and runc mounts nothing there.
pub(super) fn has_own_boot_id(plan: &Plan) -> bool {
    let kind = plan.runtime.as_ref().map(|runtime| runtime.kind);
    matches!(kind, Some(RuntimeKind::Crun | RuntimeKind::Youki))
}

/// What gVisor tells its code to be there. Others would make control groups, which are made already.
fn resources(plan: &Plan) -> Value {
    let kind = plan.runtime.as_ref().map(|runtime| runtime.kind);
    match plan.limits.memory.filter(|_| kind == Some(RuntimeKind::Runsc)) {
        Some(memory) => json!({ "memory": { "limit": memory.0 } }),
        None => json!({}),
    }
}

/// The devices that gVisor is to let its code use, by the numbers that they have here; others are given them as mounts.
fn devices(plan: &Plan) -> io::Result<Vec<Value>> {
    if !has_own_kernel(plan) {
        return Ok(Vec::new());
    }
    let device = |path: &Path| {
        let number = rustix::fs::stat(path)?.st_rdev;
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Ok(json!({ "path": path.to_string_lossy(), "type": "c", "major": major, "minor": minor, "fileMode": 0o666 }))
    };
    plan.gpu_nodes().into_iter().map(device).collect()
}

/// What each process is bounded by.
fn limits(asked: &Limits, held: HeldByGroup) -> Vec<Value> {
    let limit = |kind: &str, value: u64| json!({ "type": kind, "soft": value, "hard": value });
    let mut limits = vec![limit("RLIMIT_CORE", NO_CORE_DUMP)];
    limits.extend(asked.open_files.map(|files| limit("RLIMIT_NOFILE", files)));
    // Where no group counts the memory of all together.
    let memory = asked.memory.filter(|_| !held.memory);
    limits.extend(memory.map(|memory| limit("RLIMIT_DATA", memory.0)));
    limits.extend(asked.file_size.map(|size| limit("RLIMIT_FSIZE", size.0)));
    // Where no group counts them: of the container's user, whom nobody else is in its namespace.
    let processes = asked.pids.filter(|_| !held.pids);
    limits.extend(processes.map(|processes| limit("RLIMIT_NPROC", processes)));
    // Each process by itself, a second later than the watcher, which has the sum; as at level `process`.
    let seconds = asked.cpu_time.map(|time| time.0.div_ceil(1000) + 1);
    limits.extend(seconds.map(|seconds| limit("RLIMIT_CPU", seconds)));
    limits
}

/// What of `/proc` and `/sys` is covered, as at level `process`.
fn masked() -> Vec<PathBuf> {
    let covered = masks::FILES.iter().chain(&masks::DIRECTORIES);
    let covered = covered.map(|name| Path::new("/").join(name));
    covered.chain([PathBuf::from("/sys/firmware")]).collect()
}

fn mounts(plan: &Plan) -> Vec<Value> {
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"] }),
        json!({
            "destination": "/dev/pts", "type": "devpts", "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        }),
    ];
    if has_own_boot_id(plan) {
        mounts.push(json!({
            "destination": Path::new("/").join(masks::BOOT_ID), "type": "bind", "source": BOOT_ID,
            "options": ["bind", "ro", "nosuid", "nodev", "noexec"],
        }));
    }
    for entry in &plan.entries {
        let shown = entry.target.to_string_lossy();
        match &entry.node {
            // Below `/dev`, which is the runtime's own.
            PlanNode::Tmpfs { size, mode, .. } if entry.target.starts_with("/dev") => {
                let mut options = vec!["nosuid".to_owned(), "nodev".to_owned(), format!("mode={mode:o}")];
                options.extend(size.map(|size| format!("size={}", size.0)));
                mounts.push(json!({ "destination": shown, "type": "tmpfs", "source": "tmpfs", "options": options }));
            }
            // gVisor makes it, as its own device of that kind.
            PlanNode::Device { .. } if !has_own_kernel(plan) => mounts.push(json!({
                "destination": shown, "type": "bind", "source": shown, "options": ["bind", "rw", "nosuid", "noexec"],
            })),
            _ => {}
        }
    }
    // An empty `/tmp` is otherwise replaced by memory of the runtime's.
    let temporary = Path::new(TREE).join("tmp");
    mounts.push(json!({
        "destination": "/tmp", "type": "bind", "source": temporary.to_string_lossy(), "options": ["rbind", "rw", "nosuid", "nodev"],
    }));
    mounts
}

#[cfg(test)]
mod tests {
    use offleash_core::units::{Bytes, Millis};

    use super::*;

    #[test]
    fn each_process_is_bounded_as_at_level_process() {
        let asked = Limits {
            cpu_time: Some(Millis(2500)),
            memory: Some(Bytes::mib(1)),
            ..Limits::default()
        };
        let kinds = |held| -> Vec<(String, u64)> {
            let limits = limits(&asked, held).into_iter();
            limits
                .map(|limit| {
                    (
                        limit["type"].as_str().unwrap().to_owned(),
                        limit["hard"].as_u64().unwrap(),
                    )
                })
                .collect()
        };
        let by_group = HeldByGroup {
            memory: true,
            pids: true,
        };
        assert!(kinds(by_group).contains(&("RLIMIT_CPU".to_owned(), 4)));
        assert!(!kinds(by_group).iter().any(|(kind, _)| kind == "RLIMIT_DATA"));
        assert!(kinds(HeldByGroup::default()).contains(&("RLIMIT_DATA".to_owned(), 1 << 20)));
    }
}
