//! The rules that look at arguments.
//!
//! Each is read from the bottom of its group: the entry point comes last, the outcomes it leads to before it. Constants
//! that the `libc` crate lacks carry the header that defines them.

use libc::{EAFNOSUPPORT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT};

use super::rule::{ArgumentTest, ArgumentWord, CallRefusal, CallRule};

/// Every bit of an argument.
const WHOLE: u32 = u32::MAX;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "error numbers lie between 0 and 4095"
)]
const fn refusal(errno: i32, notified: bool, reason: Option<&'static str>) -> CallRule {
    CallRule::Refuse(CallRefusal {
        errno: errno as u16,
        notified,
        reason,
    })
}

/// Fails, and the supervisor is told.
const fn refuse(errno: i32, reason: &'static str) -> CallRule {
    refusal(errno, true, Some(reason))
}

/// Fails without a record: programs try it and do without.
const fn quiet(errno: i32, reason: &'static str) -> CallRule {
    refusal(errno, false, Some(reason))
}

/// Is not carried out, and answered as if it were: programs that try it do not go on without.
const fn ignored(reason: &'static str) -> CallRule {
    refusal(0, false, Some(reason))
}

const fn when(
    argument: u8,
    mask: u32,
    test: ArgumentTest,
    then: &'static CallRule,
    otherwise: &'static CallRule,
) -> CallRule {
    CallRule::When {
        word: ArgumentWord::Low(argument),
        mask,
        test,
        then,
        otherwise,
    }
}

const fn high_half_is_zero(argument: u8, then: &'static CallRule, otherwise: &'static CallRule) -> CallRule {
    CallRule::When {
        word: ArgumentWord::High(argument),
        mask: WHOLE,
        test: ArgumentTest::Equals(0),
        then,
        otherwise,
    }
}

const fn equals(argument: u8, value: i32, then: &'static CallRule, otherwise: &'static CallRule) -> CallRule {
    when(
        argument,
        WHOLE,
        ArgumentTest::Equals(value.cast_unsigned()),
        then,
        otherwise,
    )
}

pub(super) static ALLOW: CallRule = CallRule::Allow;
pub(super) static OBSERVE: CallRule = CallRule::Observe;
pub(super) static MEDIATE: CallRule = CallRule::Mediate;
pub(super) static ADMIT: CallRule = CallRule::Admit;
pub(super) static OFFER: CallRule = CallRule::Offer;

// Whole calls; the table's line says why.
pub(super) static REFUSED: CallRule = refusal(EPERM, true, None);
pub(super) static REFUSED_QUIETLY: CallRule = refusal(EPERM, false, None);
pub(super) static ABSENT: CallRule = refusal(ENOSYS, false, None);
pub(super) static ABSENT_AND_TOLD: CallRule = refusal(ENOSYS, true, None);
pub(super) static UNSUPPORTED: CallRule = refusal(EOPNOTSUPP, false, None);

// ioctl(fd, command): the terminal commands that reach beyond the own program. CVE-2017-5226 is TIOCSTI; srt and
// snapd each let it through once because they compared 64 bits of a command that has 32. And the commands that are
// fallocate by another name, on every file system (`file_ioctl` in `fs/ioctl.c`).
const FS_IOC_RESVSP: i32 = 0x4030_5828; // include/linux/falloc.h, as the two below
const FS_IOC_RESVSP64: i32 = 0x4030_582a;
const FS_IOC_ZERO_RANGE: i32 = 0x4030_5839;
static RESERVES: CallRule = quiet(EOPNOTSUPP, "reserves space in a file, as fallocate does");
static ZEROES: CallRule = equals(1, FS_IOC_ZERO_RANGE, &RESERVES, &ALLOW);
static RESERVES_64: CallRule = equals(1, FS_IOC_RESVSP64, &RESERVES, &ZEROES);
static RESERVES_OR_ZEROES: CallRule = equals(1, FS_IOC_RESVSP, &RESERVES, &RESERVES_64);
static TYPES_INPUT: CallRule = refuse(EPERM, "TIOCSTI types into a terminal as if its user had");
static PASTES: CallRule = refuse(EPERM, "TIOCLINUX pastes into a console");
static TAKES_CONSOLE: CallRule = refuse(EPERM, "TIOCCONS takes the console's output");
static LOADS_DISCIPLINE: CallRule = refuse(EPERM, "TIOCSETD loads a line discipline into the kernel");
static SETS_DISCIPLINE: CallRule = equals(1, 0x5423, &LOADS_DISCIPLINE, &RESERVES_OR_ZEROES);
static TAKES: CallRule = equals(1, 0x541d, &TAKES_CONSOLE, &SETS_DISCIPLINE);
static PASTES_OR: CallRule = equals(1, 0x541c, &PASTES, &TAKES);
pub(super) static IOCTL: CallRule = equals(1, 0x5412, &TYPES_INPUT, &PASTES_OR);

// fcntl(fd, command). Commands above the newest one judged here fail as on a kernel that lacks them: Linux 6.19 has
// leases of another name there (F_SETDELEG).
const FIRST_UNKNOWN_COMMAND: u32 = 1024 + 15; // include/uapi/linux/fcntl.h: 1024 + 14 is F_SET_FILE_RW_HINT
static LEASE: CallRule = refuse(
    EPERM,
    "F_SETLEASE makes others wait who open the file, on the host too (/proc/sys/fs/lease-break-time)",
);
static DIRECTORY_NOTIFY: CallRule = refuse(EPERM, "F_NOTIFY watches directories by signals; inotify is open");
static UNKNOWN_COMMAND: CallRule = quiet(EINVAL, "a command that this table does not know");
static NEWER_COMMAND: CallRule = when(
    1,
    WHOLE,
    ArgumentTest::AtLeast(FIRST_UNKNOWN_COMMAND),
    &UNKNOWN_COMMAND,
    &ALLOW,
);
static NOTIFIES: CallRule = equals(1, libc::F_NOTIFY, &DIRECTORY_NOTIFY, &NEWER_COMMAND);
pub(super) static FCNTL: CallRule = equals(1, libc::F_SETLEASE, &LEASE, &NOTIFIES);

// socket(family, type, protocol). Protocols beyond the three are refused as a kernel without them would, because
// programs try them (Go tries MPTCP for every listener) and each loads a module or has a history of its own.
const SOCK_TYPE_MASK: u32 = 0xf; // include/linux/net.h
const NETLINK_ROUTE: i32 = libc::NETLINK_ROUTE;
static OTHER_FAMILY: CallRule = refuse(
    EAFNOSUPPORT,
    "opens a socket of a family other than unix, inet, inet6 or netlink",
);
static OTHER_NETLINK: CallRule = refuse(EPROTONOSUPPORT, "opens a netlink socket other than NETLINK_ROUTE");
static RAW: CallRule = refuse(EPERM, "opens a raw network socket");
static OTHER_PROTOCOL: CallRule = quiet(EPROTONOSUPPORT, "opens a socket of a protocol other than TCP or UDP");
pub(super) static NO_SOCKET: CallRule = refuse(
    EPERM,
    "opens a socket, and this level has no network of its own to open it in",
);
static UDP: CallRule = equals(2, libc::IPPROTO_UDP, &ALLOW, &OTHER_PROTOCOL);
static TCP_OR_UDP: CallRule = equals(2, libc::IPPROTO_TCP, &ALLOW, &UDP);
static PROTOCOL: CallRule = equals(2, 0, &ALLOW, &TCP_OR_UDP);
static DATAGRAM: CallRule = when(1, SOCK_TYPE_MASK, ArgumentTest::Equals(2), &PROTOCOL, &RAW);
static INTERNET: CallRule = when(1, SOCK_TYPE_MASK, ArgumentTest::Equals(1), &PROTOCOL, &DATAGRAM);
static NETLINK: CallRule = equals(2, NETLINK_ROUTE, &ALLOW, &OTHER_NETLINK);
static IS_NETLINK: CallRule = equals(0, libc::AF_NETLINK, &NETLINK, &OTHER_FAMILY);
static IS_INET6: CallRule = equals(0, libc::AF_INET6, &INTERNET, &IS_NETLINK);
static IS_INET: CallRule = equals(0, libc::AF_INET, &INTERNET, &IS_INET6);
pub(super) static SOCKET: CallRule = equals(0, libc::AF_UNIX, &ALLOW, &IS_INET);

/// Only unix sockets come in pairs; TIPC's do too and would load its module.
pub(super) static SOCKETPAIR: CallRule = equals(0, libc::AF_UNIX, &ALLOW, &OTHER_FAMILY);
// A datagram socket of a pair can still send to, and connect to, any socket by its name (unix(7)); the two other types
// are bound to their peer for good.
static DATAGRAM_PAIR: CallRule = refuse(
    EPERM,
    "makes datagram sockets, which can send to any socket of the host",
);
static IS_SEQPACKET: CallRule = when(1, SOCK_TYPE_MASK, ArgumentTest::Equals(5), &ALLOW, &DATAGRAM_PAIR);
static BOUND_PAIR: CallRule = when(1, SOCK_TYPE_MASK, ArgumentTest::Equals(1), &ALLOW, &IS_SEQPACKET);
pub(super) static BOUND_SOCKETPAIR: CallRule = equals(0, libc::AF_UNIX, &BOUND_PAIR, &OTHER_FAMILY);

/// What a refused family is for, where the record should say more than the filter needs to know.
pub(super) fn family_reason(family: u32) -> Option<&'static str> {
    match i32::try_from(family).ok()? {
        libc::AF_VSOCK => Some("AF_VSOCK reaches the hypervisor's host"),
        libc::AF_PACKET => Some("AF_PACKET reads and forges network packets"),
        libc::AF_ALG => Some("AF_ALG reaches the kernel's cryptography"),
        libc::AF_XDP => Some("AF_XDP reads and forges network packets"),
        libc::AF_BLUETOOTH => Some("AF_BLUETOOTH reaches the machine's radios"),
        _ => None,
    }
}

// clone(flags): CLONE_NEW* except CLONE_NEWTIME, whose bit is part of the exit signal here (clone(2)).
const CLONE_NEW: u32 = 0x7e02_0000;
static NEW_NAMESPACE: CallRule = refuse(
    EPERM,
    "makes a namespace, in which the kernel offers far more to attack",
);
pub(super) static CLONE: CallRule = when(0, WHOLE, ArgumentTest::AnyBit(CLONE_NEW), &NEW_NAMESPACE, &ALLOW);
pub(super) static COUNTED_CLONE: CallRule = when(0, WHOLE, ArgumentTest::AnyBit(CLONE_NEW), &NEW_NAMESPACE, &ADMIT);

// personality(persona): reading it, the default, and for debuggers no address randomisation.
static PERSONA: CallRule = refuse(
    EPERM,
    "changes the execution domain, as exploits do to switch protections off",
);
static QUERY: CallRule = when(0, WHOLE, ArgumentTest::Equals(u32::MAX), &ALLOW, &PERSONA);
static QUERY_OR_FIXED: CallRule = equals(0, libc::ADDR_NO_RANDOMIZE, &ALLOW, &QUERY);
pub(super) static PERSONALITY: CallRule = equals(0, 0, &ALLOW, &QUERY);
pub(super) static PERSONALITY_OF_DEBUGGERS: CallRule = equals(0, 0, &ALLOW, &QUERY_OR_FIXED);

// mmap(address, length, protection, flags): memory that can be written and is said to be reserved only. The supervisor
// sees how much, and nothing that it decides depends on the program's memory.
static RESERVES_WRITABLE: CallRule = when(2, WHOLE, ArgumentTest::AnyBit(0x2), &OBSERVE, &ALLOW); // PROT_WRITE
pub(super) static MMAP: CallRule = when(3, WHOLE, ArgumentTest::AnyBit(0x4000), &RESERVES_WRITABLE, &ALLOW); // MAP_NORESERVE

// prctl(option). Options above the newest one judged here fail as on a kernel that lacks them.
const FIRST_UNKNOWN_OPTION: u32 = 79; // include/uapi/linux/prctl.h: 78 is PR_FUTEX_HASH
const PR_SET_VMA: i32 = 0x5356_4d41;
const PR_SET_PTRACER: i32 = 0x5961_6d61;
static MEMORY_MAP: CallRule = refuse(
    EPERM,
    "PR_SET_MM rewrites where the kernel thinks a program's parts are",
);
static CORE_SHARING: CallRule = refuse(EPERM, "PR_SCHED_CORE changes who may share a processor core");
static UNKNOWN_OPTION: CallRule = quiet(EINVAL, "an option that this table does not know");
static PTRACER: CallRule = equals(0, PR_SET_PTRACER, &ALLOW, &UNKNOWN_OPTION);
static NAMED_OPTION: CallRule = equals(0, PR_SET_VMA, &ALLOW, &PTRACER);
static NEWER: CallRule = when(
    0,
    WHOLE,
    ArgumentTest::AtLeast(FIRST_UNKNOWN_OPTION),
    &NAMED_OPTION,
    &ALLOW,
);
static SHARES_CORE: CallRule = equals(0, 62, &CORE_SHARING, &NEWER);
pub(super) static PRCTL_OF_ZYGOTES: CallRule = equals(0, libc::PR_SET_MM, &MEMORY_MAP, &NEWER);
pub(super) static PRCTL: CallRule = equals(0, libc::PR_SET_MM, &MEMORY_MAP, &SHARES_CORE);

// prlimit64(pid, resource, new limit, old limit): the own limits, and everybody's to read. A program that names itself
// by its number (`prlimit --pid $$`) is refused with those that name another: no filter knows who calls.
static OTHERS_LIMITS: CallRule = refuse(
    EPERM,
    "sets the limits of a process by its number, as could end the sandbox's first one; 0 stands for the own",
);
// With a soft limit of 1 for cores, and with no other, the kernel starts no program of the host that `core_pattern` pipes
// to (`coredump_pipe` in `fs/coredump.c`). A filter cannot see the value, and GnuPG ends when it may not set 0.
static KEEPS_CORE_LIMIT: CallRule = ignored("would let a crash reach the host's handler of core dumps");
static OWN_LIMITS: CallRule = equals(1, RLIMIT_CORE, &KEEPS_CORE_LIMIT, &ALLOW);
static SETS_LIMIT: CallRule = equals(0, 0, &OWN_LIMITS, &OTHERS_LIMITS);
static NEW_LIMIT: CallRule = high_half_is_zero(2, &ALLOW, &SETS_LIMIT);
pub(super) static PRLIMIT: CallRule = equals(2, 0, &NEW_LIMIT, &SETS_LIMIT);
// Where the soft limit of data is what bounds memory, and the supervisor alone raises it.
static KEEPS_DATA_LIMIT: CallRule = quiet(EPERM, "would lift the limit that bounds the memory of the program");
static OWN_LIMITS_BUT_DATA: CallRule = equals(1, RLIMIT_DATA, &KEEPS_DATA_LIMIT, &OWN_LIMITS);
static SETS_LIMIT_BUT_DATA: CallRule = equals(0, 0, &OWN_LIMITS_BUT_DATA, &OTHERS_LIMITS);
static NEW_LIMIT_BUT_DATA: CallRule = high_half_is_zero(2, &ALLOW, &SETS_LIMIT_BUT_DATA);
pub(super) static WATCHED_PRLIMIT: CallRule = equals(2, 0, &NEW_LIMIT_BUT_DATA, &SETS_LIMIT_BUT_DATA);
const RLIMIT_DATA: i32 = 2; // as RLIMIT_CORE
const RLIMIT_CORE: i32 = 4; // include/uapi/asm-generic/resource.h; its type in the `libc` crate differs between C libraries

// sched_setaffinity(pid) and the like. Only the sandbox's first process is out of reach: run-times name their own
// threads by number, and no filter can tell those from others.
static FIRST_PROCESS: CallRule = refuse(EPERM, "changes how the sandbox's first process is scheduled");
pub(super) static AFFINITY: CallRule = equals(0, 1, &FIRST_PROCESS, &ALLOW);

// No cpuset holds such a sandbox, so the kernel would let it have every processor back.
pub(super) static KEEPS_AFFINITY: CallRule = quiet(EPERM, "could leave the processors that the sandbox is kept to");

// setpriority(which, who). PRIO_USER means every process of a user, the first one among them.
static WHO: CallRule = equals(1, 1, &FIRST_PROCESS, &ALLOW);
static NICE_OF_USER: CallRule = refuse(
    EPERM,
    "changes the priority of all processes of a user, the sandbox's first one among them",
);
pub(super) static PRIORITY: CallRule = equals(0, PRIO_USER, &NICE_OF_USER, &WHO);
const PRIO_USER: i32 = 2; // include/uapi/linux/resource.h; its type in the `libc` crate differs between C libraries

// Where the host's processes are in reach: only the caller itself. A run-time that names its own threads is refused too,
// and does without.
static OTHERS_SCHEDULE: CallRule = quiet(
    EPERM,
    "changes how a process is scheduled by its number, which may be the host's",
);
static OWN_NICE: CallRule = equals(1, 0, &ALLOW, &OTHERS_SCHEDULE);
pub(super) static OWN_AFFINITY: CallRule = equals(0, 0, &ALLOW, &OTHERS_SCHEDULE);
pub(super) static OWN_PRIORITY: CallRule = equals(0, 0, &OWN_NICE, &OTHERS_SCHEDULE);

// sched_setscheduler(pid, policy): SCHED_OTHER, SCHED_BATCH and SCHED_IDLE, each with or without SCHED_RESET_ON_FORK.
const POLICY: u32 = !0x4000_0000;
static REALTIME: CallRule = refuse(EPERM, "asks for real-time scheduling, which starves the machine");
static IS_IDLE: CallRule = when(1, POLICY, ArgumentTest::Equals(5), &ALLOW, &REALTIME);
static IS_BATCH: CallRule = when(1, POLICY, ArgumentTest::Equals(3), &ALLOW, &IS_IDLE);
static IS_OTHER: CallRule = when(1, POLICY, ArgumentTest::Equals(0), &ALLOW, &IS_BATCH);
pub(super) static SCHEDULER: CallRule = equals(0, 1, &FIRST_PROCESS, &IS_OTHER);
pub(super) static OWN_SCHEDULER: CallRule = equals(0, 0, &IS_OTHER, &OTHERS_SCHEDULE);

// renameat2(…, flags): what replaces nothing, or may not. Two names are exchanged by nobody but the kernel. The argument
// behind the last one is no argument of the call; whoever renames in the kernel's stead marks his own calls there, and
// for anybody else's the mark changes nothing but who is asked.
const OTHER_WAYS: ArgumentTest = ArgumentTest::AnyBit(!1); // all but RENAME_NOREPLACE
static UNLESS_MARKED: CallRule = when(5, WHOLE, ArgumentTest::Equals(crate::rename::MARK), &ALLOW, &OFFER);
pub(super) static OFFERED_RENAMEAT2: CallRule = when(4, WHOLE, OTHER_WAYS, &ALLOW, &UNLESS_MARKED);

// Modes. A setuid file left in a workspace is run later, outside, by somebody else. `mkdir` needs no rule: the kernel
// drops both bits there.
const SETS_ID: ArgumentTest = ArgumentTest::AnyBit(0o6000);
const CREATES: ArgumentTest = ArgumentTest::AnyBit(0o100 | 0o20_000_000); // O_CREAT, __O_TMPFILE: without them the mode is not looked at
const IS_DEVICE: ArgumentTest = ArgumentTest::AnyBit(0o020_000); // in S_IFCHR and S_IFBLK; of the others only in S_IFLNK, which mknod does not make
static SETUID: CallRule = refuse(EPERM, "makes a file setuid or setgid, for whoever runs it later");
static DEVICE: CallRule = refuse(EPERM, "makes a device node");
static MODE_IN_3: CallRule = when(3, WHOLE, SETS_ID, &SETUID, &ALLOW);
pub(super) static MODE_IN_1: CallRule = when(1, WHOLE, SETS_ID, &SETUID, &ALLOW);
pub(super) static MODE_IN_2: CallRule = when(2, WHOLE, SETS_ID, &SETUID, &ALLOW);
pub(super) static MEDIATED_MODE_IN_1: CallRule = when(1, WHOLE, SETS_ID, &SETUID, &MEDIATE);
pub(super) static MEDIATED_MODE_IN_2: CallRule = when(2, WHOLE, SETS_ID, &SETUID, &MEDIATE);
#[cfg(target_arch = "x86_64")]
pub(super) static OPEN: CallRule = when(1, WHOLE, CREATES, &MODE_IN_2, &ALLOW);
pub(super) static OPENAT: CallRule = when(2, WHOLE, CREATES, &MODE_IN_3, &ALLOW);
#[cfg(target_arch = "x86_64")]
pub(super) static MKNOD: CallRule = when(1, WHOLE, IS_DEVICE, &DEVICE, &MODE_IN_1);
pub(super) static MKNODAT: CallRule = when(2, WHOLE, IS_DEVICE, &DEVICE, &MODE_IN_2);
