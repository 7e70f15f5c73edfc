//! What a machine is told to become a plan's sandbox.

use std::io;

use offleash_core::plan::{Plan, PlanEntry, PlanNode};
use offleash_protocol::GuestIds;
use offleash_protocol::vm::{Begin, VERSION, VmLimit, VmMount, VmMountKind, VmNetwork, VmTree};
use offleash_sys::credentials::{CapabilitySet, SUPERUSER};
use offleash_sys::seccomp::{self, FilterOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::housing::TREE;
use super::hypervisor::VmCard;
use super::order::CarrierOrder;
use crate::limits::{HeldByGroup, rlimits};

/// Bytes of a directory in memory for which no size was said.
const UNSIZED: u64 = 1 << 40;
/// Inodes likewise.
const UNCOUNTED: u64 = 1 << 30;
/// The addresses of QEMU's user network.
const NETWORK: VmNetwork = VmNetwork {
    address: [10, 0, 2, 15],
    prefix: 24,
    gateway: [10, 0, 2, 2],
};

/// The order of the carrier of a plan's machine.
///
/// # Errors
/// `NotFound` for a plan that has none.
pub(super) fn order(plan: &Plan) -> io::Result<CarrierOrder> {
    let Some(vm) = &plan.vm else {
        return Err(io::ErrorKind::NotFound.into());
    };
    Ok(CarrierOrder {
        vm: vm.clone(),
        card: VmCard::of(plan),
        begin: begin(plan),
    })
}

/// Without randomness and time.
fn begin(plan: &Plan) -> Begin {
    let superuser = plan.has_superuser();
    let kept = if superuser { SUPERUSER } else { CapabilitySet::empty() };
    Begin {
        version: VERSION,
        entropy: Vec::new(),
        seconds: 0,
        nanoseconds: 0,
        hostname: plan.hostname.as_bytes().to_vec(),
        network: plan.network.then_some(NETWORK),
        user: GuestIds {
            uid: plan.user.uid,
            gid: plan.user.gid,
        },
        capabilities: kept.bits(),
        filter: filter(plan),
        limits: limits(plan),
        max_processes: plan.vm.as_ref().and_then(|vm| vm.pids),
        max_memory: plan.vm.as_ref().and_then(|vm| vm.code_memory).map(|memory| memory.0),
        mounts: mounts(plan),
        read_only_root: false,
        tree: VmTree::Served,
    }
}

/// The system call filter of level `process`: it speaks to the machine's kernel, for which it is a second wall.
fn filter(plan: &Plan) -> Vec<u8> {
    seccomp::compile(&FilterOptions {
        allow_ptrace: plan.allow_ptrace,
        superuser: plan.has_superuser(),
        allow_set_id: plan.has_own_root() && !plan.writes_for_others(),
        ..FilterOptions::default()
    })
    .to_bytes()
}

/// What each process is bounded by; memory and their number are bounded for all together.
fn limits(plan: &Plan) -> Vec<VmLimit> {
    let held = HeldByGroup {
        memory: true,
        pids: true,
    };
    let limit = |(resource, value): (offleash_sys::rlimit::LimitedResource, u64)| VmLimit {
        resource: resource.number(),
        soft: value,
        hard: value,
    };
    rlimits(&plan.limits, held).into_iter().map(limit).collect()
}

/// What is the machine's own in the tree.
fn mounts(plan: &Plan) -> Vec<VmMount> {
    let mut mounts = Vec::new();
    for (number, entry) in plan.entries.iter().enumerate() {
        let kind = match &entry.node {
            PlanNode::Proc => VmMountKind::Proc,
            PlanNode::Dev => VmMountKind::Devices {
                shm_bytes: shared_memory(plan),
            },
            PlanNode::Tmpfs { size, inodes, mode } if is_own(plan, number, entry) => VmMountKind::Tmpfs {
                bytes: size.map_or(UNSIZED, |size| size.0),
                inodes: inodes.unwrap_or(UNCOUNTED),
                mode: *mode,
            },
            _ => continue,
        };
        mounts.push(VmMount {
            target: entry.target.as_os_str().as_bytes().to_vec(),
            kind,
        });
    }
    mounts
}

/// The directories in memory that are the tree's and not the machine's, where the carrier sees them.
pub(super) fn served_memory(plan: &Plan) -> Vec<PlanEntry> {
    let numbered = plan.entries.iter().enumerate();
    let is_served = |number: usize, entry: &PlanEntry| {
        matches!(entry.node, PlanNode::Tmpfs { .. })
            && !is_own(plan, number, entry)
            && !entry.target.starts_with("/dev")
    };
    let seen = |entry: &PlanEntry| PlanEntry {
        target: Path::new(TREE).join(entry.target.strip_prefix("/").unwrap_or(&entry.target)),
        ..entry.clone()
    };
    numbered
        .filter(|(number, entry)| is_served(*number, entry))
        .map(|(_, entry)| seen(entry))
        .collect()
}

/// Whether a directory in memory can be the machine's: nothing of the host's tree lies in it. Others are the tree's.
fn is_own(plan: &Plan, number: usize, entry: &PlanEntry) -> bool {
    let later = plan.entries.iter().skip(number + 1);
    !entry.target.starts_with("/dev") && !later.clone().any(|later| later.target.starts_with(&entry.target))
}

/// How much shared memory there may be, bytes.
fn shared_memory(plan: &Plan) -> u64 {
    let size = |entry: &PlanEntry| match &entry.node {
        PlanNode::Tmpfs { size: Some(size), .. } if entry.target.ends_with("dev/shm") => Some(size.0),
        _ => None,
    };
    plan.entries.iter().find_map(size).unwrap_or(UNSIZED)
}
