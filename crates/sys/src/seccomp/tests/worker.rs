//! The filter of our own worker on the running kernel: memory, threads and its socket pass, and nothing else.

use std::thread;

use libc::{ENOSYS, EPERM};

use super::kernel::errno;
use crate::seccomp::{SeccompFilter, compile_code_worker, compile_script_worker, compile_worker};
use crate::socket;

fn under<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    under_filter(compile_worker(), body)
}

fn under_filter<T: Send + 'static>(filter: SeccompFilter, body: impl FnOnce() -> T + Send + 'static) -> T {
    let filtered = thread::spawn(move || {
        filter.install().expect("seccomp filters are supported");
        body()
    });
    filtered.join().expect("the filtered thread ends well")
}

#[test]
fn memory_threads_and_the_socket_that_is_there_are_had() {
    let (ours, theirs) = socket::stream_pair().unwrap();
    let told = under(move || {
        let sent = thread::spawn(move || rustix::net::send(&ours, b"hello", rustix::net::SendFlags::empty()));
        let mut told = [0; 5];
        rustix::net::recv(&theirs, &mut told, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(sent.join().unwrap(), Ok(5));
        thread::sleep(std::time::Duration::from_millis(1));
        vec![0_u8; 4 << 20].len();
        told
    });
    assert_eq!(&told, b"hello");
}

/// Each would be another error, or none, without the filter.
#[test]
fn files_programs_processes_sockets_and_code_do_not_exist() {
    let path = c"/".as_ptr().expose_provenance() as u64;
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let stream = [libc::AF_INET, libc::SOCK_STREAM, 0].map(|number| u64::from(number.cast_unsigned()));
    let code = u64::from((libc::PROT_READ | libc::PROT_EXEC).cast_unsigned());
    let calls = [
        ("openat", libc::SYS_openat, [here, path, 0, 0, 0]),
        ("stat", libc::SYS_newfstatat, [here, path, 0, 0, 0]),
        ("execve", libc::SYS_execve, [path, 0, 0, 0, 0]),
        ("fork", libc::SYS_clone, [0, 0, 0, 0, 0]),
        ("namespaces", libc::SYS_clone, [0x0002_0200, 0, 0, 0, 0]),
        ("kill", libc::SYS_kill, [0x7fff_fffe, 0, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [u64::MAX, 0, 0, 0, 0]),
        ("socket", libc::SYS_socket, [stream[0], stream[1], stream[2], 0, 0]),
        ("connect", libc::SYS_connect, [u64::MAX, 0, 0, 0, 0]),
        ("sendmsg", libc::SYS_sendmsg, [u64::MAX, 0, 0, 0, 0]),
        ("recvmsg", libc::SYS_recvmsg, [u64::MAX, 0, 0, 0, 0]),
        ("mprotect", libc::SYS_mprotect, [0, 0, code, 0, 0]),
        ("prctl", libc::SYS_prctl, [u64::MAX, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [0; 5]),
        ("bpf", libc::SYS_bpf, [u64::MAX, 0, 0, 0, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [0; 5]),
    ];
    let answers = under(move || calls.map(|(name, number, arguments)| (name, errno(number, arguments))));
    let passed: Vec<_> = answers.iter().filter(|(_, errno)| *errno != EPERM).collect();
    assert!(passed.is_empty(), "{passed:?}");
    assert_eq!(under(|| errno(libc::SYS_clone3, [0; 5])), ENOSYS);
}

#[test]
fn memory_becomes_code_only_where_code_is_compiled_and_only_while_nothing_writes_it() {
    let [write, code] = [libc::PROT_WRITE, libc::PROT_EXEC].map(|bit| u64::from(bit.cast_unsigned()));
    let protect = move |protection| errno(libc::SYS_mprotect, [0, 0, protection, 0, 0]);
    let map = move || errno(libc::SYS_mmap, [0, 4096, code, 0x22, u64::MAX]);
    let answers = under_filter(compile_code_worker(), move || {
        let file = errno(libc::SYS_openat, [0, 0, 0, 0, 0]);
        [protect(code), protect(code | write), map(), file]
    });
    // Of nothing, the kernel lets it be changed.
    assert_eq!(answers, [0, EPERM, EPERM, EPERM]);
    assert_eq!(under(move || protect(code)), EPERM);
}

/// Wasmtime does this after it compiled, on aarch64; the kernel has it on x86-64 as well.
#[test]
fn only_where_code_is_compiled_are_instructions_fetched_anew_and_only_in_this_process() {
    let [of_ours, register, of_all] = [
        libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
        libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
        libc::MEMBARRIER_CMD_GLOBAL,
    ];
    let barrier = |command: i32| errno(libc::SYS_membarrier, [u64::from(command.cast_unsigned()), 0, 0, 0, 0]);
    if barrier(register) != 0 {
        println!("skipped: this kernel has no `membarrier` for one process");
        return;
    }
    let answers = under_filter(compile_code_worker(), move || [register, of_ours, of_all].map(barrier));
    assert_eq!(answers, [0, 0, EPERM]);
    assert_eq!(under(move || barrier(of_ours)), EPERM);
}

#[test]
fn files_of_code_are_received_and_measured_and_no_path_is_looked_up() {
    let path = c"/".as_ptr().expose_provenance() as u64;
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let empty = u64::from(libc::AT_EMPTY_PATH.cast_unsigned());
    let answers = under_filter(compile_script_worker(), move || {
        [
            errno(libc::SYS_newfstatat, [here, path, 0, 0, 0]),
            errno(
                libc::SYS_newfstatat,
                [u64::MAX, c"".as_ptr().expose_provenance() as u64, 0, empty, 0],
            ),
            errno(libc::SYS_recvmsg, [u64::MAX, 0, 0, 0, 0]),
            errno(libc::SYS_statx, [here, path, 0, 0, 0]),
            errno(libc::SYS_openat, [here, path, 0, 0, 0]),
            errno(libc::SYS_memfd_create, [path, 0, 0, 0, 0]),
        ]
    });
    assert_eq!(answers, [EPERM, libc::EBADF, libc::EBADF, EPERM, EPERM, EPERM]);
}
