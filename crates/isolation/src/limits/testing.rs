//! What tests of several modules start from.

use offleash_core::limits::Limits;

/// No limit at all, to set single ones.
pub(super) fn unlimited() -> Limits {
    Limits {
        cpus: None,
        cpu_time: None,
        wall_time: None,
        memory: None,
        swap: None,
        pids: None,
        workspace: None,
        inodes: None,
        depth: None,
        file_size: None,
        tmp: None,
        open_files: None,
        output: None,
        net_bytes: None,
        net_rate: None,
        net_connections: None,
        net_at_once: None,
    }
}
