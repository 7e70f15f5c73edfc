//! Exchange between programs: sockets, event loops, System V objects, message queues.

use libc::*;

use crate::seccomp::numbers::SYS_io_pgetevents;
use crate::seccomp::rule::TableEntry;

pub(super) static SOCKETS: &[TableEntry] = &[
    switch!(SYS_socket, SOCKET, host_namespaces => NO_SOCKET, "every program that uses the network or a unix socket"),
    switch!(SYS_socketpair, SOCKETPAIR, host_namespaces => BOUND_SOCKETPAIR, "program starters, event loops, D-Bus"),
    allow!(SYS_bind, "servers; inside the sandbox's own network"),
    switch!(SYS_connect, ALLOW, observe_connect => OBSERVE, "clients; inside the sandbox's own network"),
    allow!(SYS_listen, "servers"),
    allow!(SYS_accept, "servers"),
    allow!(SYS_accept4, "servers"),
    allow!(SYS_getsockname, "servers, name resolution"),
    allow!(SYS_getpeername, "clients, servers"),
    allow!(SYS_sendto, "name resolution, datagrams"),
    allow!(SYS_recvfrom, "name resolution, datagrams"),
    allow!(SYS_sendmsg, "Wayland, D-Bus, netlink"),
    allow!(SYS_recvmsg, "Wayland, D-Bus, netlink"),
    allow!(SYS_sendmmsg, "glibc's name resolution"),
    allow!(SYS_recvmmsg, "QUIC, media servers"),
    allow!(SYS_shutdown, "clients, servers"),
    allow!(SYS_setsockopt, "clients, servers"),
    allow!(SYS_getsockopt, "clients, servers"),
];

pub(super) static EVENTS: &[TableEntry] = &[
    allow!(SYS_ppoll, "event loops, shells"),
    allow!(SYS_pselect6, "event loops, make, git"),
    allow!(SYS_epoll_create1, "event loops"),
    allow!(SYS_epoll_ctl, "event loops"),
    allow!(SYS_epoll_pwait, "Go, Node.js"),
    absent!(
        SYS_epoll_pwait2,
        "newer form of epoll_pwait, to which callers fall back"
    ),
    allow!(SYS_eventfd2, "event loops"),
];

/// Only on x86_64: what newer architectures have in another form.
#[cfg(target_arch = "x86_64")]
pub(super) static OLD: &[TableEntry] = &[
    allow!(SYS_poll, "event loops, musl"),
    allow!(SYS_select, "older programs, musl"),
    allow!(SYS_epoll_create, "older event loops"),
    allow!(SYS_epoll_wait, "event loops"),
    absent!(
        SYS_signalfd,
        "older form of signalfd4, which C libraries have used since 2008"
    ),
    absent!(
        SYS_eventfd,
        "older form of eventfd2, which C libraries have used since 2008"
    ),
    absent!(SYS_epoll_ctl_old, "never worked"),
    absent!(SYS_epoll_wait_old, "never worked"),
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) static OLD: &[TableEntry] = &[];

pub(super) static SYSTEM_V: &[TableEntry] = &[
    switch!(SYS_shmget, ALLOW, host_namespaces => ABSENT, "PostgreSQL, X11; inside the sandbox's own IPC namespace"),
    switch!(SYS_shmat, ALLOW, host_namespaces => ABSENT, "as shmget"),
    switch!(SYS_shmdt, ALLOW, host_namespaces => ABSENT, "as shmget"),
    switch!(SYS_shmctl, ALLOW, host_namespaces => ABSENT, "as shmget"),
    absent!(
        SYS_semget,
        "semaphores in the kernel; programs use those of pthread, which are futexes"
    ),
    absent!(SYS_semop, "as semget"),
    absent!(SYS_semtimedop, "as semget"),
    absent!(SYS_semctl, "as semget"),
    absent!(
        SYS_msgget,
        "message queues, which only fakeroot still uses (CVE-2021-22555 was exploited through them)"
    ),
    absent!(SYS_msgsnd, "as msgget"),
    absent!(SYS_msgrcv, "as msgget"),
    absent!(SYS_msgctl, "as msgget"),
];

/// Calls that a program can do without; each was the way to kernel bugs.
pub(super) static ASYNCHRONOUS: &[TableEntry] = &[
    check!(
        SYS_io_uring_setup,
        ABSENT_AND_TOLD,
        "opens and connects behind every filter's back; callers fall back to epoll"
    ),
    absent!(SYS_io_uring_enter, "as io_uring_setup"),
    absent!(SYS_io_uring_register, "as io_uring_setup"),
    absent!(
        SYS_io_setup,
        "old asynchronous file access; databases fall back to threads"
    ),
    absent!(SYS_io_destroy, "as io_setup"),
    absent!(SYS_io_submit, "as io_setup"),
    absent!(SYS_io_cancel, "as io_setup"),
    absent!(SYS_io_getevents, "as io_setup"),
    absent!(SYS_io_pgetevents, "as io_setup"),
    absent!(SYS_mq_open, "POSIX message queues, which hardly any program uses"),
    absent!(SYS_mq_unlink, "as mq_open"),
    absent!(SYS_mq_timedsend, "as mq_open"),
    absent!(SYS_mq_timedreceive, "as mq_open"),
    absent!(SYS_mq_notify, "as mq_open (CVE-2017-11176)"),
    absent!(SYS_mq_getsetattr, "as mq_open"),
];
