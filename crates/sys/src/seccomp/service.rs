//! The filter of a process of our own that serves sockets: an event loop, its memory, and nothing of the machine.
//!
//! Such a process holds what it needs when it begins, so that the list is short: it opens no file, starts no program and
//! no thread, names no process and makes no socket but for TCP and UDP. Everything else fails with `EPERM`, which a
//! program that goes on without it lives with. Used by the gateway; each line says what for.

use libc::{EPERM, sock_filter};

use super::rule::{ArgumentTest, ArgumentWord, CallRefusal, CallRule};

/// Every bit of an argument.
pub(super) const WHOLE: u32 = u32::MAX;
/// The bits of the type of a socket that are no flags (`SOCK_TYPE_MASK`, include/linux/net.h).
const SOCKET_TYPE: u32 = 0xf;
/// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST` (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h).
const ORIGINAL_DESTINATION: i32 = 80;
const FIONBIO: u32 = 0x5421;

pub(super) static ALLOW: CallRule = CallRule::Allow;
pub(super) static REFUSE: CallRule = CallRule::Refuse(CallRefusal {
    errno: 1,
    notified: false,
    reason: None,
});
const _: () = assert!(EPERM == 1, "what `REFUSE` answers");

pub(super) const fn when(
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

pub(super) const fn equals(
    argument: u8,
    value: i32,
    then: &'static CallRule,
    otherwise: &'static CallRule,
) -> CallRule {
    when(
        argument,
        WHOLE,
        ArgumentTest::Equals(value.cast_unsigned()),
        then,
        otherwise,
    )
}

// socket(family, type, protocol): TCP and UDP; the kernel takes no other protocol for these two types but by its number.
static OF_INTERNET: CallRule = when(
    1,
    SOCKET_TYPE,
    ArgumentTest::Equals(libc::SOCK_STREAM.cast_unsigned()),
    &STREAM,
    &DATAGRAMS_ALONE,
);
static DATAGRAMS_ALONE: CallRule = when(
    1,
    SOCKET_TYPE,
    ArgumentTest::Equals(libc::SOCK_DGRAM.cast_unsigned()),
    &DATAGRAMS,
    &REFUSE,
);
static STREAM: CallRule = equals(2, 0, &ALLOW, &STREAM_BY_NUMBER);
static STREAM_BY_NUMBER: CallRule = equals(2, libc::IPPROTO_TCP, &ALLOW, &REFUSE);
static DATAGRAMS: CallRule = equals(2, 0, &ALLOW, &DATAGRAMS_BY_NUMBER);
static DATAGRAMS_BY_NUMBER: CallRule = equals(2, libc::IPPROTO_UDP, &ALLOW, &REFUSE);
static SOCKET: CallRule = equals(0, libc::AF_INET, &OF_INTERNET, &SOCKET_OF_IPV6);
static SOCKET_OF_IPV6: CallRule = equals(0, libc::AF_INET6, &OF_INTERNET, &REFUSE);

// setsockopt(socket, level, option): how a connection ends, and that small packets are not held back.
static SETSOCKOPT: CallRule = equals(1, libc::SOL_SOCKET, &OPTIONS_OF_SOCKETS, &OPTIONS_OF_TCP_ALONE);
static OPTIONS_OF_SOCKETS: CallRule = equals(2, libc::SO_LINGER, &ALLOW, &REUSE);
static REUSE: CallRule = equals(2, libc::SO_REUSEADDR, &ALLOW, &REFUSE);
static OPTIONS_OF_TCP_ALONE: CallRule = equals(1, libc::IPPROTO_TCP, &OPTIONS_OF_TCP, &REFUSE);
static OPTIONS_OF_TCP: CallRule = equals(2, libc::TCP_NODELAY, &ALLOW, &REFUSE);

// getsockopt(socket, level, option): what became of a connection, and where it was to go.
static GETSOCKOPT: CallRule = equals(1, libc::SOL_SOCKET, &ALLOW, &DESTINATION_OF_IPV4);
static DESTINATION_OF_IPV4: CallRule = equals(1, libc::SOL_IP, &DESTINATION, &DESTINATION_OF_IPV6);
static DESTINATION_OF_IPV6: CallRule = equals(1, libc::SOL_IPV6, &DESTINATION, &REFUSE);
static DESTINATION: CallRule = equals(2, ORIGINAL_DESTINATION, &ALLOW, &REFUSE);

// fcntl(descriptor, command): nothing that has signals sent (`F_SETOWN`), and no locks.
static FCNTL: CallRule = equals(1, libc::F_GETFL, &ALLOW, &FCNTL_SETFL);
static FCNTL_SETFL: CallRule = equals(1, libc::F_SETFL, &ALLOW, &FCNTL_GETFD);
static FCNTL_GETFD: CallRule = equals(1, libc::F_GETFD, &ALLOW, &FCNTL_SETFD);
static FCNTL_SETFD: CallRule = equals(1, libc::F_SETFD, &ALLOW, &FCNTL_DUPFD);
static FCNTL_DUPFD: CallRule = equals(1, libc::F_DUPFD_CLOEXEC, &ALLOW, &FCNTL_PIPE);
static FCNTL_PIPE: CallRule = equals(1, libc::F_SETPIPE_SZ, &ALLOW, &REFUSE);

static IOCTL: CallRule = when(1, WHOLE, ArgumentTest::Equals(FIONBIO), &ALLOW, &REFUSE);

// mmap and mprotect(address, length, protection): no memory becomes code.
pub(super) static NO_CODE: CallRule = when(
    2,
    WHOLE,
    ArgumentTest::AnyBit(libc::PROT_EXEC.cast_unsigned()),
    &REFUSE,
    &ALLOW,
);

// prlimit64(process, resource, new, old): of this process, and only read.
pub(super) static READ_LIMIT: CallRule = equals(0, 0, &NO_NEW_LIMIT, &REFUSE);
static NO_NEW_LIMIT: CallRule = equals(2, 0, &NO_NEW_LIMIT_AT_ALL, &REFUSE);
static NO_NEW_LIMIT_AT_ALL: CallRule = CallRule::When {
    word: ArgumentWord::High(2),
    mask: WHOLE,
    test: ArgumentTest::Equals(0),
    then: &ALLOW,
    otherwise: &REFUSE,
};

/// The list, by number; what is not in it fails.
static CALLS: &[(libc::c_long, &CallRule)] = &[
    // Bytes of sockets, pipes and wake-ups.
    (libc::SYS_read, &ALLOW),
    (libc::SYS_write, &ALLOW),
    (libc::SYS_readv, &ALLOW),
    (libc::SYS_writev, &ALLOW),
    (libc::SYS_close, &ALLOW),
    (libc::SYS_splice, &ALLOW),
    (libc::SYS_pipe2, &ALLOW),
    (libc::SYS_fcntl, &FCNTL),
    (libc::SYS_ioctl, &IOCTL),
    // Connections, and questions for names.
    (libc::SYS_socket, &SOCKET),
    (libc::SYS_bind, &ALLOW),
    (libc::SYS_connect, &ALLOW),
    (libc::SYS_accept4, &ALLOW),
    (libc::SYS_shutdown, &ALLOW),
    (libc::SYS_sendto, &ALLOW),
    (libc::SYS_recvfrom, &ALLOW),
    (libc::SYS_sendmsg, &ALLOW),
    (libc::SYS_recvmsg, &ALLOW),
    (libc::SYS_getsockname, &ALLOW),
    (libc::SYS_getpeername, &ALLOW),
    (libc::SYS_setsockopt, &SETSOCKOPT),
    (libc::SYS_getsockopt, &GETSOCKOPT),
    // The event loop.
    (libc::SYS_epoll_create1, &ALLOW),
    (libc::SYS_epoll_ctl, &ALLOW),
    (libc::SYS_epoll_pwait, &ALLOW),
    (libc::SYS_ppoll, &ALLOW),
    (libc::SYS_eventfd2, &ALLOW),
    (libc::SYS_futex, &ALLOW),
    (libc::SYS_restart_syscall, &ALLOW),
    (libc::SYS_sched_yield, &ALLOW),
    // Time and randomness.
    (libc::SYS_clock_gettime, &ALLOW),
    (libc::SYS_clock_nanosleep, &ALLOW),
    (libc::SYS_nanosleep, &ALLOW),
    (libc::SYS_gettimeofday, &ALLOW),
    (libc::SYS_getrandom, &ALLOW),
    // Memory.
    (libc::SYS_mmap, &NO_CODE),
    (libc::SYS_mprotect, &NO_CODE),
    (libc::SYS_munmap, &ALLOW),
    (libc::SYS_mremap, &ALLOW),
    (libc::SYS_madvise, &ALLOW),
    (libc::SYS_brk, &ALLOW),
    // How many descriptors there may be; who it is; its end.
    (libc::SYS_prlimit64, &READ_LIMIT),
    (libc::SYS_getpid, &ALLOW),
    (libc::SYS_gettid, &ALLOW),
    (libc::SYS_rt_sigaction, &ALLOW),
    (libc::SYS_rt_sigprocmask, &ALLOW),
    (libc::SYS_rt_sigreturn, &ALLOW),
    (libc::SYS_sigaltstack, &ALLOW),
    (libc::SYS_exit, &ALLOW),
    (libc::SYS_exit_group, &ALLOW),
];

/// What newer architectures have in another form.
#[cfg(target_arch = "x86_64")]
static OLD_CALLS: &[(libc::c_long, &CallRule)] = &[
    (libc::SYS_epoll_wait, &ALLOW),
    (libc::SYS_poll, &ALLOW),
    (libc::SYS_time, &ALLOW),
];
#[cfg(not(target_arch = "x86_64"))]
static OLD_CALLS: &[(libc::c_long, &CallRule)] = &[];

pub(super) fn program() -> Vec<sock_filter> {
    super::emit::program_of_lists([CALLS, OLD_CALLS], EPERM)
}
