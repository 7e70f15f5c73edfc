//! The attacks at the levels `container` and `microvm`: for each threat the one that says most, with gVisor, with crun and in a
//! virtual machine.
//!
//! Each is the same test as at level `process`, so that it is proved there that it works without a sandbox. What gVisor's own
//! kernel, or a machine's, does for its code is no way to the host's; those are counted as skips, with the reason.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::support::levels::{at_level, container_flags, microvm_flags, runsc, runtime, sharing_machines};
use super::support::{is_root, skip};
use super::{
    communication, crashes, endings, files, floods, kernel, leftovers, namespaces, pitfalls, privileges, proc,
    processes, renames, resources, trusted,
};

/// An attack that a level is tried with.
struct LeveledAttack {
    /// The threat that it stands for, and what it tries.
    name: &'static str,
    test: fn(),
    /// Why it says nothing with gVisor.
    not_with_gvisor: Option<&'static str>,
    /// Why it is not fought in a virtual machine.
    not_in_a_machine: Option<&'static str>,
}

impl LeveledAttack {
    const fn not_in_a_machine(self, reason: &'static str) -> Self {
        Self {
            not_in_a_machine: Some(reason),
            ..self
        }
    }
}

const fn everywhere(name: &'static str, test: fn()) -> LeveledAttack {
    LeveledAttack {
        name,
        test,
        not_with_gvisor: None,
        not_in_a_machine: None,
    }
}

const fn with_crun(name: &'static str, test: fn(), not_with_gvisor: &'static str) -> LeveledAttack {
    LeveledAttack {
        not_with_gvisor: Some(not_with_gvisor),
        ..everywhere(name, test)
    }
}

/// gVisor has it itself: what code gets of it is nothing of the host's.
const ITS_OWN: &str = "gVisor's own kernel has it, and nothing of the host's is in it";
/// What a machine's own kernel has; level `process` is there once more, around the hypervisor.
const THE_MACHINES: &str = "the machine's own kernel has it, and nothing of the host's is in it";
/// What another attack of the column, or the suite of all levels, says as much about.
const SHOWN_ELSEWHERE: &str = "another attack here, or levels.rs, shows it in a machine, and each start takes a second";
/// What takes long where a machine is emulated.
const EMULATED: &str = "it takes minutes in an emulated machine; levels.rs shows that memory is bounded";
/// Its files keep such bits in a layer that nobody reaches; `f5`'s other attack shows that they do not leave it.
const KEPT_IN_THE_LAYER: &str = "gVisor sets the bits in a layer that nobody reaches, and they are not written back";
static ATTACKS: &[LeveledAttack] = &[
    everywhere(
        "f1 a link to a file of the host",
        files::f1_host_file_by_symlink_is_unreadable,
    ),
    with_crun(
        "f2 files that only attackers make",
        files::f2_files_that_only_attackers_make_cannot_be_made,
        ITS_OWN,
    ),
    with_crun(
        "f2 writing outside the workspace",
        files::f2_nothing_outside_the_workspace_can_be_written,
        "gVisor says that directories can be written to where it then refuses",
    )
    .not_in_a_machine("a read-only directory that is served looks as if it could be written to; then it is refused"),
    everywhere("f3 files by handle", files::f3_files_cannot_be_opened_by_handle),
    everywhere("f4 chroot", files::f4_chroot_does_not_lead_out),
    with_crun(
        "f4 peeling mounts",
        files::f4_masks_and_read_only_mounts_cannot_be_peeled,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun(
        "f5 files with rights",
        leftovers::f5_files_with_rights_for_the_host_cannot_be_left_behind,
        KEPT_IN_THE_LAYER,
    ),
    everywhere(
        "f5 what reaches the host",
        leftovers::f5_what_reaches_the_host_has_no_rights_there,
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere(
        "f6 credentials",
        files::f6_credentials_of_the_home_directory_are_out_of_reach,
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere(
        "f7 names that the host executes",
        leftovers::f7_names_that_the_host_executes_later_are_not_written_back,
    ),
    everywhere(
        "f7 what becomes trusted",
        trusted::f7_what_becomes_trusted_after_the_run_is_not_applied,
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere("f8 evil names", leftovers::f8_evil_names_neither_stop_nor_fool_the_host)
        .not_in_a_machine("the tests of the file server have such names; each costs a round trip here"),
    everywhere(
        "f1 a renaming through a link",
        renames::f1_a_renaming_through_a_link_reaches_no_directory_of_the_host,
    ),
    with_crun(
        "p1 the kernel's insides",
        proc::p1_the_kernels_insides_cannot_be_read,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    everywhere(
        "p2 the kernel's switches",
        proc::p2_the_kernels_switches_cannot_be_turned,
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun(
        "p3 names of the machine",
        proc::p3_two_sandboxes_cannot_tell_that_they_share_a_machine_by_its_names,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    everywhere(
        "p4 paths of the host",
        proc::p4_mounts_and_groups_show_no_paths_of_the_host,
    ),
    everywhere("p6 disks", proc::p6_the_hosts_disks_cannot_be_made_as_nodes),
    with_crun("p7 control groups", proc::p7_control_groups_cannot_be_reached, ITS_OWN).not_in_a_machine(THE_MACHINES),
    with_crun("p8 cores", proc::p8_crashes_leave_no_core_and_reach_no_handler, ITS_OWN).not_in_a_machine(THE_MACHINES),
    everywhere(
        "k1 processes of the host",
        processes::k1_processes_of_the_host_are_neither_seen_nor_touched,
    ),
    with_crun(
        "k2 the first process",
        processes::k2_the_first_process_cannot_be_attacked,
        "gVisor shows the guest to its own user, and nobody trusts what the guest says",
    )
    .not_in_a_machine(THE_MACHINES),
    everywhere(
        "k3 descriptors of the caller",
        privileges::k3_descriptors_of_the_caller_are_not_inherited,
    ),
    everywhere(
        "k4 secrets in the environment",
        privileges::k4_secrets_in_the_environment_do_not_come_in,
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    with_crun(
        "k5 privileges",
        privileges::k5_there_is_no_privilege_to_use_or_to_gain,
        "gVisor does not tell what the attack reads",
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun("k6 keyrings", communication::k6_keyrings_cannot_be_reached, ITS_OWN).not_in_a_machine(THE_MACHINES),
    with_crun(
        "k7 shared memory and queues",
        communication::k7_shared_memory_and_queues_of_the_host_are_not_shared,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    everywhere(
        "k8 sockets of the host",
        communication::k8_sockets_of_the_host_cannot_be_connected_to,
    ),
    everywhere(
        "k9 terminals",
        communication::k9_there_is_no_controlling_terminal_to_take,
    )
    .not_in_a_machine(THE_MACHINES),
    everywhere(
        "k10 the program that runs the sandbox",
        privileges::k10_the_program_that_runs_the_sandbox_cannot_be_overwritten,
    ),
    everywhere("s1 io_uring", there_is_no_io_uring).not_in_a_machine(THE_MACHINES),
    with_crun("s2 32-bit calls", kernel::s2_the_32_bit_calls_are_closed, ITS_OWN).not_in_a_machine(THE_MACHINES),
    everywhere("s3 x32 calls", kernel::s3_the_x32_calls_are_closed).not_in_a_machine(THE_MACHINES),
    with_crun(
        "s5 namespaces",
        namespaces::s5_no_namespace_can_be_made_or_entered,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun("s6 mounts", namespaces::s6_the_mount_calls_are_refused, ITS_OWN).not_in_a_machine(THE_MACHINES),
    with_crun(
        "s7 dangerous calls",
        kernel::s7_dangerous_calls_do_not_reach_the_kernel,
        ITS_OWN,
    ),
    with_crun(
        "s8 families of sockets",
        namespaces::s8_only_four_families_of_sockets_exist,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun("s10 tracing", kernel::s10_tracing_is_for_those_who_ask_for_it, ITS_OWN).not_in_a_machine(THE_MACHINES),
    with_crun(
        "s11 loosening the filter",
        kernel::s11_a_program_cannot_loosen_its_own_filter,
        ITS_OWN,
    )
    .not_in_a_machine(THE_MACHINES),
    with_crun(
        "r1 processes",
        resources::r1_fork_bombs_are_bounded,
        "gVisor ends where it gets no further process, which levels.rs shows",
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere(
        "r1 a bomb that never stops",
        resources::r1_a_bomb_that_never_stops_is_ended_and_leaves_nothing,
    ),
    everywhere("r2 memory", resources::r2_memory_of_every_kind_is_bounded).not_in_a_machine(EMULATED),
    everywhere("r4 descriptors", floods::r4_descriptors_are_bounded),
    everywhere("r7 time", endings::r7_time_ends_whatever_a_program_does_about_it).not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere(
        "r8 the end of the supervisor",
        crashes::r8_nothing_escapes_the_end_of_the_supervisor,
    ),
    everywhere(
        "a link that leads out",
        pitfalls::a_link_that_leads_out_of_the_workspace_gives_nothing,
    )
    .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere("the working directory", pitfalls::the_working_directory_grants_nothing)
        .not_in_a_machine(SHOWN_ELSEWHERE),
    everywhere(
        "writing back",
        pitfalls::writing_back_follows_no_link_that_the_sandbox_made,
    ),
];

/// As `s1` of level `process`, but that the record tells of it.
fn there_is_no_io_uring() {
    let site = super::support::Site::new();
    let attack = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                  print(libc.syscall(425, 8, ctypes.create_string_buffer(120)), ctypes.get_errno())";
    let output = site
        .offleash(["run", "-q", "--", super::arena::PYTHON, "-c", attack])
        .output()
        .unwrap();
    // Either there is none, or one of gVisor's own.
    let said = super::support::stdout(&output);
    assert!(said == "-1 38\n" || said == "-1 1\n", "{said}");
}

/// Attacks of which an ordinary user's sandbox without subordinate ids has something: its one id is 0 there, without any
/// capability, and what is the runtime's own within the container (`/dev`, the scores of its processes) is that id's.
const WITH_ONE_ID: [&str; 5] = [
    "f2 files that only attackers make",
    "p2 the kernel's switches",
    "k2 the first process",
    "k5 privileges",
    // Not a bomb without a control group that holds it.
    "r1 a bomb that never stops",
];

/// Fights every attack at a level, and then tells which succeeded.
fn fight(attacks: &[&LeveledAttack], flags: &[String], skipped: fn(&LeveledAttack) -> Option<&'static str>) {
    let mut escapes = Vec::new();
    for attack in attacks {
        let has_one_id = !is_root() && WITH_ONE_ID.contains(&attack.name);
        let with_one_id = has_one_id
            .then_some("an ordinary user's sandbox has one id, which is the runtime's own, and no control group");
        if let Some(reason) = skipped(attack).or(with_one_id) {
            skip(&format!("{}: {reason}", attack.name));
            continue;
        }
        let fought = catch_unwind(AssertUnwindSafe(|| at_level(flags, attack.test)));
        if fought.is_err() {
            escapes.push(attack.name);
        }
    }
    assert!(escapes.is_empty(), "not refused: {escapes:?}");
}

fn all() -> Vec<&'static LeveledAttack> {
    ATTACKS.iter().collect()
}

/// Whether this run fights them.
fn is_fought_here() -> bool {
    let is_here = is_root();
    if !is_here {
        skip("the attacks at the levels `container` and `microvm` take a minute, and are fought as root");
    }
    is_here
}

#[test]
fn no_attack_leads_out_of_gvisor() {
    if let Some(program) = runsc().filter(|_| is_fought_here()) {
        fight(&all(), &container_flags(&program), |attack| attack.not_with_gvisor);
    }
}

#[test]
fn no_attack_leads_out_of_crun() {
    if let Some(program) = runtime("crun").filter(|_| is_fought_here()) {
        fight(&all(), &container_flags(&program), |_| None);
    }
}

/// Every second attack, from this one on: two tests share the time that machines take to start.
fn fight_in_machines(first: usize) {
    if let Some(flags) = microvm_flags().filter(|_| is_fought_here()) {
        let ours: Vec<_> = ATTACKS.iter().skip(first).step_by(2).collect();
        sharing_machines(|| fight(&ours, &flags, |attack| attack.not_in_a_machine));
    }
}

#[test]
fn no_attack_leads_out_of_a_machine() {
    fight_in_machines(0);
}

#[test]
fn no_further_attack_leads_out_of_a_machine() {
    fight_in_machines(1);
}
