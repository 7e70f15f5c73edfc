//! Files without a name in processes of their own, so that what other tests hold does not count.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::*;

const MIB: u64 = 1 << 20;

/// A process that hides a file of 3 MiB and says so.
struct FileHider {
    child: Child,
    directory: tempfile::TempDir,
}

impl FileHider {
    /// `how` runs with the nameless file open as `fd`; `None` where there is no Python.
    fn start(how: &str) -> Option<Self> {
        Self::start_in("/var/tmp", how)
    }

    fn start_in(place: &str, how: &str) -> Option<Self> {
        let directory = tempfile::tempdir_in(place).unwrap();
        let script = format!(
            r#"
import array, ctypes, mmap, os, socket, sys, threading, time
fd = os.open("hidden", os.O_RDWR | os.O_CREAT)
os.unlink("hidden")
os.write(fd, bytes(3 << 20))
os.fsync(fd)
libc = ctypes.CDLL(None)
def ready():
    print("ready", flush=True)
    time.sleep(100)
{how}
ready()
"#
        );
        #[expect(clippy::disallowed_methods, reason = "a test needs a process that hides a file")]
        let child = Command::new("python3")
            .args(["-c", &script])
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Not ours, which may be a file without a name where tests are run.
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            let _ = writeln!(std::io::stderr(), "SKIP: python3 is missing");
            return None;
        };
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let hider = Self { child, directory };
        assert_eq!(line, "ready\n");
        Some(hider)
    }

    /// As one of the sandbox's processes that is not the first.
    fn search(&self) -> NamelessFiles {
        search(&[u32::MAX, self.child.id()], vec![self.device()])
    }

    /// Of the directory of its file, which is in memory where tests write to memory.
    fn device(&self) -> u64 {
        rustix::fs::stat(self.directory.path()).unwrap().st_dev
    }
}

impl Drop for FileHider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_file_in_memory_counts_where_a_layer_is() {
    let Some(hider) = FileHider::start_in("/dev/shm", "") else {
        return;
    };
    let found = hider.search();
    assert!((3 * MIB..4 * MIB).contains(&found.bytes), "{found:?}");
    let elsewhere = search(&[u32::MAX, hider.child.id()], Vec::new());
    assert_eq!(elsewhere, NamelessFiles::default());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn assert_found(how: &str) {
    let Some(hider) = FileHider::start(how) else { return };
    let found = hider.search();
    assert!((3 * MIB..4 * MIB).contains(&found.bytes), "{how}: {found:?}");
    assert!(!found.concealed, "{how}");
}

#[test]
fn an_open_file_counts_once_after_its_name_is_gone() {
    assert_found("other = os.dup(fd)\nmapped = mmap.mmap(fd, 4096)");
}

#[test]
fn a_file_that_a_thread_of_its_own_table_holds_counts() {
    // `unshare(CLONE_FILES)`.
    assert_found(
        "def own():
    libc.unshare(0x400)
    unshared.set()
    time.sleep(100)
unshared = threading.Event()
threading.Thread(target=own).start()
unshared.wait()
os.close(fd)",
    );
}

#[test]
fn a_file_of_a_process_whose_first_thread_has_ended_counts() {
    let how = "def rest():
    while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z':
        time.sleep(0.01)
    ready()
threading.Thread(target=rest).start()
libc.syscall(60, 0)";
    if cfg!(target_arch = "x86_64") {
        assert_found(how);
    }
}

#[test]
fn a_file_that_is_only_mapped_counts_or_is_told_to_be_concealed() {
    // Not by the module `mmap`, which keeps a descriptor.
    let how = "libc.mmap.restype = ctypes.c_void_p
libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
os.close(fd)";
    let Some(hider) = FileHider::start(how) else { return };
    let found = hider.search();
    if is_root() {
        assert!((3 * MIB..4 * MIB).contains(&found.bytes), "{found:?}");
    } else {
        assert!(found.concealed);
    }
}

#[test]
fn a_file_on_its_way_in_a_socket_is_told_to_be_concealed() {
    let how = "a, b = socket.socketpair()
a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])
os.close(fd)";
    let Some(hider) = FileHider::start(how) else { return };
    let found = hider.search();
    assert!(found.concealed && found.bytes == 0, "{found:?}");
}

#[test]
fn a_process_that_does_not_let_an_ordinary_user_look_is_told_to_conceal() {
    // `PR_SET_DUMPABLE`.
    let Some(hider) = FileHider::start("libc.prctl(4, 0)") else {
        return;
    };
    let found = hider.search();
    if is_root() {
        assert!(found.bytes >= 3 * MIB && !found.concealed, "{found:?}");
    } else {
        assert!(found.concealed);
        assert_eq!(
            search(&[hider.child.id()], Vec::new()),
            NamelessFiles::default(),
            "the agent may"
        );
    }
}

#[test]
fn memory_that_is_shared_and_processes_that_have_ended_conceal_nothing() {
    let how = "os.close(fd)
shared = mmap.mmap(-1, 4096)
memory = os.memfd_create('m')
os.write(memory, bytes(4096))
libc.mmap(None, ctypes.c_size_t(4096), 1, 1, memory, ctypes.c_long(0))
os.close(memory)
pair = socket.socketpair()";
    let Some(mut hider) = FileHider::start(how) else { return };
    assert_eq!(hider.search(), NamelessFiles::default());
    hider.child.kill().unwrap();
    // A zombie, since nobody has waited for it.
    while may_hold_files(hider.child.id(), hider.child.id()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(hider.search(), NamelessFiles::default());
    hider.child.wait().unwrap();
}

#[test]
fn a_mapping_is_named_as_in_map_files() {
    let line = "00400000-00401000 r--p 00000000 fe:10 123   /a file (deleted)";
    let expected = NamelessMapping {
        range: "400000-401000".to_owned(),
        device: (0xfe, 0x10),
        inode: 123,
    };
    assert_eq!(NamelessMapping::parse(line), Some(expected));
    assert_eq!(
        NamelessMapping::parse("00400000-00401000 r--p 00000000 fe:10 123 /a"),
        None
    );
}

#[test]
fn only_mounts_in_memory_are_memory() {
    let tmpfs = "22 27 0:21 / /tmp rw shared:1 - tmpfs none rw";
    assert_eq!(device_of_memory_mount(tmpfs), Some((0, 21)));
    assert_eq!(device_of_memory_mount("22 27 254:0 / / rw - ext4 /dev/vda rw"), None);
}
