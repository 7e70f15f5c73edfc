//! The filter of our own service on the running kernel: what an event loop of sockets needs passes, and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use libc::EPERM;

use super::kernel::errno;
use crate::seccomp::compile_service;

fn under<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let filter = compile_service();
    let filtered = thread::spawn(move || {
        filter.install().expect("seccomp filters are supported");
        body()
    });
    filtered.join().expect("the filtered thread ends well")
}

#[test]
fn sockets_of_the_internet_are_served() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let told = under(move || {
        let mut client = TcpStream::connect(address).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_nodelay(true).unwrap();
        client.write_all(b"hello").unwrap();
        let mut told = [0; 5];
        server.read_exact(&mut told).unwrap();
        server.set_nonblocking(true).unwrap();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&write, b"x").unwrap();
        rustix::io::read(&read, &mut [0_u8; 1]).unwrap();
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        vec![0_u8; 4 << 20].len();
        told
    });
    assert_eq!(&told, b"hello");
}

/// Each would be another error, or none, without the filter.
#[test]
fn files_programs_processes_and_other_sockets_do_not_exist() {
    let path = c"/".as_ptr().expose_provenance() as u64;
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let of = |family: i32, kind: i32, protocol: i32| {
        [family, kind, protocol, 0, 0].map(|number| u64::from(number.cast_unsigned()))
    };
    let calls = [
        ("openat", libc::SYS_openat, [here, path, 0, 0, 0]),
        ("stat", libc::SYS_newfstatat, [here, path, 0, 0, 0]),
        ("readlinkat", libc::SYS_readlinkat, [here, path, 0, 0, 0]),
        ("execve", libc::SYS_execve, [path, 0, 0, 0, 0]),
        ("execveat", libc::SYS_execveat, [u64::MAX, path, 0, 0, 0]),
        ("clone", libc::SYS_clone, [0x0002_0200, 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, [0; 5]),
        ("ptrace", libc::SYS_ptrace, [u64::MAX, 0, 0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [u64::MAX, 0, 0, 0, 0]),
        ("kill", libc::SYS_kill, [0x7fff_fffe, 0, 0, 0, 0]),
        ("tgkill", libc::SYS_tgkill, [0, 0, 0, 0, 0]),
        ("pidfd_open", libc::SYS_pidfd_open, [0x7fff_fffe, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [0; 5]),
        ("setns", libc::SYS_setns, [u64::MAX, 0, 0, 0, 0]),
        ("setresuid", libc::SYS_setresuid, [u64::MAX, u64::MAX, u64::MAX, 0, 0]),
        ("capset", libc::SYS_capset, [0; 5]),
        ("prctl", libc::SYS_prctl, [u64::MAX, 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [0; 5]),
        ("chroot", libc::SYS_chroot, [0; 5]),
        ("bpf", libc::SYS_bpf, [u64::MAX, 0, 0, 0, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [0; 5]),
        ("keyctl", libc::SYS_keyctl, [u64::MAX, 0, 0, 0, 0]),
        ("listen", libc::SYS_listen, [u64::MAX, 0, 0, 0, 0]),
        ("unix", libc::SYS_socket, of(libc::AF_UNIX, libc::SOCK_STREAM, 0)),
        ("netlink", libc::SYS_socket, of(libc::AF_NETLINK, libc::SOCK_RAW, 0)),
        ("packet", libc::SYS_socket, of(libc::AF_PACKET, libc::SOCK_RAW, 0)),
        ("raw", libc::SYS_socket, of(libc::AF_INET, libc::SOCK_RAW, 1)),
        (
            "ping",
            libc::SYS_socket,
            of(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
        ),
        (
            "sctp",
            libc::SYS_socket,
            of(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
        ),
        ("owner of a socket", libc::SYS_fcntl, [u64::MAX, 8, 0, 0, 0]),
        ("commands of devices", libc::SYS_ioctl, [u64::MAX, 0x5412, 0, 0, 0]),
        ("code", libc::SYS_mmap, [0, 0, 4, 0x22, u64::MAX]),
        ("code afterwards", libc::SYS_mprotect, [1, 0, 4, 0, 0]),
        ("another limit", libc::SYS_prlimit64, [0, 1000, 1, 0, 0]),
        ("a filter of a socket", libc::SYS_setsockopt, [u64::MAX, 1, 26, 0, 0]),
        ("a number beyond all", 500, [0; 5]),
    ];
    let answers = under(move || calls.map(|(name, number, arguments)| (name, errno(number, arguments))));
    let passed: Vec<_> = answers.iter().filter(|(_, errno)| *errno != EPERM).collect();
    assert!(passed.is_empty(), "{passed:?}");
    // Without the filter hardly any of them is refused so.
    let alone: Vec<i32> = calls
        .iter()
        .take(3)
        .map(|(_, number, arguments)| errno(*number, *arguments))
        .collect();
    assert!(!alone.contains(&EPERM), "{alone:?}");
}
