//! The sandbox as an OCI runtime is told of it (`config.json` of the runtime specification, version 1.0.2).

use std::io;
use std::path::Path;

use offleash_core::plan::{Plan, PlanNode};
use serde_json::{Value, json};

use super::housing::TREE;
use super::{FILTERED, GUEST, has_own_kernel};
use crate::limits::HeldByGroup;

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
            "rlimits": limits(plan, held),
        },
        "root": { "path": TREE, "readonly": false },
        "hostname": plan.hostname,
        "mounts": mounts(plan),
        "linux": {
            "namespaces": namespaces,
            "resources": { "memory": { "limit": plan.limits.memory.map(|memory| memory.0) } },
            "maskedPaths": [
                "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
                "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    });
    serde_json::to_vec(&config).map_err(io::Error::other)
}

/// What each process is bounded by.
fn limits(plan: &Plan, held: HeldByGroup) -> Vec<Value> {
    let limit = |kind: &str, value: u64| json!({ "type": kind, "soft": value, "hard": value });
    let mut limits = vec![limit("RLIMIT_CORE", 0)];
    limits.extend(plan.limits.open_files.map(|files| limit("RLIMIT_NOFILE", files)));
    // Where no group counts the memory of all together.
    let memory = plan.limits.memory.filter(|_| !held.memory);
    limits.extend(memory.map(|memory| limit("RLIMIT_DATA", memory.0)));
    limits.extend(plan.limits.file_size.map(|size| limit("RLIMIT_FSIZE", size.0)));
    limits
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
    for entry in &plan.entries {
        let shown = entry.target.to_string_lossy();
        match &entry.node {
            // Below `/dev`, which is the runtime's own.
            PlanNode::Tmpfs { size, mode, .. } if entry.target.starts_with("/dev") => {
                let mut options = vec!["nosuid".to_owned(), "nodev".to_owned(), format!("mode={mode:o}")];
                options.extend(size.map(|size| format!("size={}", size.0)));
                mounts.push(json!({ "destination": shown, "type": "tmpfs", "source": "tmpfs", "options": options }));
            }
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
