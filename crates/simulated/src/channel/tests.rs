//! Conversations about files, with somebody who asks well, badly, or not at all.

use std::cell::RefCell;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use offleash_protocol::files::{ChangeKind, FileReply, FileRequest, WatchedChange};
use offleash_protocol::{MessageDecoder, encode};
use rustix::io::Errno;

use super::{FileChannel, MAX_UNTOLD, UserNames};
use crate::fixture::{PlanFixture, WORKSPACE, entry};
use crate::served::{ServedTrees, SharedTrees};
use crate::tree::FileCaller;
use crate::wire::{FileAnswer, FileOperation, FileRequest as WorkerRequest};

const USER: FileCaller = FileCaller { uid: 1000, gid: 1000 };

/// Somebody who asks, and the trees.
struct Asker {
    fixture: PlanFixture,
    trees: SharedTrees,
    channel: FileChannel,
    socket: UnixStream,
    heard: MessageDecoder<FileReply>,
}

impl Asker {
    fn new(fixture: PlanFixture) -> Self {
        let trees = Rc::new(RefCell::new(ServedTrees::open(&fixture.plan).unwrap()));
        let (channel, socket) = FileChannel::open(USER).unwrap();
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true).unwrap();
        Self {
            fixture,
            trees,
            channel,
            socket,
            heard: MessageDecoder::new(),
        }
    }

    fn say(&mut self, request: &FileRequest) {
        let mut bytes = encode(request).unwrap();
        while !bytes.is_empty() {
            match self.socket.write(&bytes) {
                Ok(count) => drop(bytes.drain(..count)),
                Err(_) => self.turn(),
            }
        }
    }

    fn turn(&mut self) {
        self.channel.turn(&mut self.trees.borrow_mut(), &UserNames::default());
    }

    /// The next reply; none while there is none.
    fn heard(&mut self) -> Option<FileReply> {
        let mut buffer = vec![0; 64 * 1024];
        for _ in 0..10_000 {
            if let Some(reply) = self.heard.next().unwrap() {
                return Some(reply);
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.heard.push(buffer.get(..count).unwrap()),
                Err(_) if self.channel.has_work() || !self.channel.unsent.is_empty() => self.turn(),
                Err(_) => {
                    self.turn();
                    if self.channel.unsent.is_empty() && !self.channel.has_work() {
                        match self.socket.read(&mut buffer) {
                            Ok(count) if count > 0 => self.heard.push(buffer.get(..count).unwrap()),
                            _ => return None,
                        }
                    }
                }
            }
        }
        None
    }

    fn ask(&mut self, request: &FileRequest) -> FileReply {
        self.say(request);
        self.heard().expect("an answer")
    }

    fn write(&mut self, path: &str, pieces: &[&[u8]]) -> FileReply {
        let path = path.into();
        let metadata = Vec::new();
        self.say(&FileRequest::Write { path, metadata });
        for piece in pieces {
            let bytes = piece.to_vec();
            self.say(&FileRequest::Data { bytes });
        }
        self.ask(&FileRequest::Finish)
    }

    fn read(&mut self, path: &str) -> Result<Vec<u8>, i32> {
        let (path, offset, length) = (path.into(), 0, None);
        match self.ask(&FileRequest::Read { path, offset, length }) {
            FileReply::Entry(_) => {}
            FileReply::Failed { errno, .. } => return Err(errno),
            other => panic!("{other:?}"),
        }
        let mut all = Vec::new();
        loop {
            match self.heard().expect("a piece") {
                FileReply::Data { bytes } => all.extend(bytes),
                FileReply::Done => return Ok(all),
                other => panic!("{other:?}"),
            }
        }
    }

    fn paths_in(&mut self, path: &str, depth: u32) -> Vec<String> {
        self.say(&FileRequest::List {
            path: path.into(),
            depth,
        });
        let mut all = Vec::new();
        loop {
            match self.heard().expect("entries") {
                FileReply::Entries(entries) => {
                    all.extend(entries.into_iter().map(|entry| String::from_utf8(entry.path).unwrap()));
                }
                FileReply::Done => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    fn refused(&mut self, request: &FileRequest, errno: Errno) {
        match self.ask(request) {
            FileReply::Failed { errno: told, .. } => assert_eq!(told, errno.raw_os_error(), "{request:?}"),
            other => panic!("{request:?}: {other:?}"),
        }
    }
}

fn inside(path: &str) -> String {
    format!("{WORKSPACE}/{path}")
}

fn stat(path: &str) -> FileRequest {
    FileRequest::Stat { path: path.into() }
}

#[test]
fn files_are_written_read_listed_renamed_and_removed() {
    let mut asker = Asker::new(PlanFixture::new());
    let large = vec![7; 700_000];
    let told = asker.write(&inside("a/b/large"), &[&large[..300_000], &large[300_000..]]);
    assert!(matches!(told, FileReply::Entry(entry) if entry.size == 700_000));
    assert_eq!(asker.read(&inside("a/b/large")), Ok(large));
    assert!(matches!(asker.write(&inside("a/empty"), &[]), FileReply::Entry(_)));
    assert_eq!(
        asker.paths_in(WORKSPACE, 9),
        [inside("a"), inside("a/b"), inside("a/b/large"), inside("a/empty")]
    );
    assert_eq!(asker.paths_in("/", 1), [WORKSPACE]);
    let rename = |from: &str, to: &str| FileRequest::Rename {
        source: inside(from).into(),
        destination: inside(to).into(),
    };
    let renamed = asker.ask(&rename("a/empty", "c/d"));
    assert!(matches!(renamed, FileReply::Entry(entry) if entry.path == inside("c/d").as_bytes()));
    // What is in a directory is not moved to where it would lie deeper.
    asker.refused(&rename("a", "c/e"), Errno::XDEV);
    let renamed = asker.ask(&rename("a", "f"));
    assert!(matches!(renamed, FileReply::Entry(entry) if entry.path == inside("f").as_bytes()));
    let path: Vec<u8> = inside("f").into();
    let remove = FileRequest::Remove { path };
    assert_eq!(asker.ask(&remove), FileReply::Done);
    let path: Vec<u8> = inside("c").into();
    let remove = FileRequest::Remove { path };
    assert_eq!(asker.ask(&remove), FileReply::Done);
    assert_eq!(asker.ask(&remove), FileReply::Done);
    asker.refused(&stat(&inside("c")), Errno::NOENT);
    assert!(fs::read_dir(asker.fixture.upper()).unwrap().next().is_none());
}

#[test]
fn what_cannot_be_done_is_answered_with_the_errors_of_the_kernel() {
    let mut asker = Asker::new(PlanFixture::new());
    assert!(matches!(asker.write(&inside("file"), &[b"x"]), FileReply::Entry(_)));
    for (request, errno) in [
        (stat("relative"), Errno::INVAL),
        (stat(&format!("/{}", "x".repeat(5000))), Errno::NAMETOOLONG),
        (stat("/etc/passwd"), Errno::NOENT),
        (stat(&inside("file/below")), Errno::NOTDIR),
        (
            FileRequest::Read {
                path: WORKSPACE.into(),
                offset: 0,
                length: None,
            },
            Errno::ISDIR,
        ),
        (
            FileRequest::List {
                path: inside("file").into(),
                depth: 1,
            },
            Errno::NOTDIR,
        ),
        (FileRequest::MakeDirectory { path: WORKSPACE.into() }, Errno::EXIST),
        (
            FileRequest::MakeDirectory {
                path: inside("file").into(),
            },
            Errno::NOTDIR,
        ),
        (FileRequest::Remove { path: WORKSPACE.into() }, Errno::BUSY),
        (FileRequest::Remove { path: b"/".to_vec() }, Errno::BUSY),
        (
            FileRequest::Rename {
                source: inside("no").into(),
                destination: inside("n").into(),
            },
            Errno::NOENT,
        ),
        (
            FileRequest::Watch {
                path: inside("file").into(),
                recursive: false,
                entries: false,
            },
            Errno::NOTDIR,
        ),
    ] {
        asker.refused(&request, errno);
    }
    // A file that cannot be made is told at once, and what follows of it is dropped.
    let path = WORKSPACE.into();
    asker.refused(
        &FileRequest::Write {
            path,
            metadata: Vec::new(),
        },
        Errno::ISDIR,
    );
    asker.say(&FileRequest::Data { bytes: vec![1; 10] });
    asker.say(&FileRequest::Finish);
    assert!(matches!(asker.ask(&stat(&inside("file"))), FileReply::Entry(_)));
}

#[test]
fn links_that_lead_back_and_forth_for_ever_are_followed_for_a_while() {
    let fixture = PlanFixture::new();
    let deep = fixture.lower().join(["d"; 60].join("/"));
    fs::create_dir_all(deep.join("x")).unwrap();
    let around = "x/../".repeat(700);
    for link in 0..30 {
        symlink(format!("{around}l{}", link + 1), deep.join(format!("l{link}"))).unwrap();
    }
    fs::write(deep.join("l30"), "text").unwrap();
    symlink("d/d/d", fixture.lower().join("short")).unwrap();
    let mut asker = Asker::new(fixture);
    let in_depth = |name: &str| inside(&format!("{}/{name}", ["d"; 60].join("/")));
    assert_eq!(asker.read(&in_depth("l0")), Err(Errno::LOOP.raw_os_error()));
    assert_eq!(asker.read(&in_depth("l30")), Ok(b"text".to_vec()));
    let below = format!("short/{}/l30", ["d"; 57].join("/"));
    assert_eq!(asker.read(&inside(&below)), Ok(b"text".to_vec()));
}

#[test]
fn links_lead_among_the_trees_and_nowhere_else() {
    let fixture = PlanFixture::new();
    let secret = fixture.other().join("secret");
    fs::write(&secret, "s").unwrap();
    let lower = fixture.lower();
    fs::write(lower.join("f"), "text").unwrap();
    for (to, name) in [
        (secret.to_str().unwrap(), "out"),
        ("../../../../../../etc/passwd", "up"),
        ("/workspace/f", "absolute"),
        ("./f", "relative"),
        ("loop", "loop"),
        ("/workspace", "itself"),
    ] {
        symlink(to, lower.join(name)).unwrap();
    }
    let mut asker = Asker::new(fixture);
    for name in ["absolute", "relative", "itself/itself/relative"] {
        assert_eq!(asker.read(&inside(name)), Ok(b"text".to_vec()), "{name}");
    }
    for (name, errno) in [("out", Errno::NOENT), ("up", Errno::NOENT), ("loop", Errno::LOOP)] {
        assert_eq!(asker.read(&inside(name)), Err(errno.raw_os_error()), "{name}");
    }
    // What is written through a link lands where that leads among the trees.
    assert!(matches!(
        asker.write(&inside("itself/made"), &[b"x"]),
        FileReply::Entry(_)
    ));
    assert_eq!(asker.read(&inside("made")), Ok(b"x".to_vec()));
    let FileReply::Entry(link) = asker.ask(&stat(&inside("absolute"))) else {
        panic!("no link");
    };
    assert_eq!(link.target.unwrap().path, inside("f").as_bytes());
}

#[test]
fn who_watches_is_told_what_workers_and_others_change() {
    let mut asker = Asker::new(PlanFixture::new());
    let path = WORKSPACE.into();
    let watch = FileRequest::Watch {
        path,
        recursive: true,
        entries: true,
    };
    assert_eq!(asker.ask(&watch), FileReply::Done);
    assert!(asker.channel.watches());
    asker.trees.borrow_mut().tell_changes(true);
    for (path, operation) in [
        ("d", FileOperation::MakeDirectory),
        ("d/f", FileOperation::Append(b"x".to_vec())),
        ("d/f", FileOperation::Remove),
    ] {
        let request = WorkerRequest {
            mount: 0,
            path: path.into(),
            operation,
        };
        assert_eq!(asker.trees.borrow_mut().answer(request), FileAnswer::Done);
    }
    let changes = asker.trees.borrow_mut().take_changes();
    let names = UserNames::default();
    asker.channel.tell(&changes, &mut asker.trees.borrow_mut(), &names);
    let Some(FileReply::Changed(told)) = asker.heard() else {
        panic!("nothing was told");
    };
    let told: Vec<(&[u8], ChangeKind)> = told.iter().map(|change| (&change.name[..], change.kind)).collect();
    assert_eq!(
        told,
        [
            (&b"d"[..], ChangeKind::Create),
            (b"d/f", ChangeKind::Create),
            (b"d/f", ChangeKind::Write),
            (b"d/f", ChangeKind::Remove),
        ]
    );
    // Whoever does not listen is told once that something is missing, and keeps no more than so much.
    let mut rounds = 0;
    while asker.channel.unsent.len() <= MAX_UNTOLD {
        let change = changes.iter().cloned().cycle().take(1000).collect::<Vec<_>>();
        asker.channel.tell(&change, &mut asker.trees.borrow_mut(), &names);
        rounds += 1;
        assert!(rounds < 10_000);
    }
    let before = asker.channel.unsent.len();
    for _ in 0..10 {
        asker.channel.tell(&changes, &mut asker.trees.borrow_mut(), &names);
    }
    assert!(asker.channel.unsent.len() < before + 1000);
    let mut last: Vec<WatchedChange> = Vec::new();
    while let Some(FileReply::Changed(told)) = asker.heard() {
        last = told;
    }
    assert_eq!(last.last().map(|change| change.kind), Some(ChangeKind::Overflow));
}

#[test]
fn who_leaves_or_says_what_is_no_request_is_let_go() {
    let mut asker = Asker::new(PlanFixture::new());
    asker.socket.write_all(&[0xff; 64]).unwrap();
    asker.turn();
    assert!(asker.channel.is_over());
    let asker = Asker::new(PlanFixture::new());
    let Asker {
        mut channel,
        trees,
        socket,
        ..
    } = asker;
    drop(socket);
    channel.turn(&mut trees.borrow_mut(), &UserNames::default());
    assert!(channel.is_over());
    let mut asker = Asker::new(PlanFixture::new());
    asker.say(&FileRequest::Data { bytes: vec![1] });
    asker.turn();
    assert!(asker.channel.is_over(), "nothing is being written");
}

#[test]
fn a_tree_in_another_is_no_part_of_it() {
    let fixture = PlanFixture::new();
    let node = offleash_core::plan::PlanNode::Bind {
        source: fixture.other(),
        access: offleash_core::spec::MountAccess::Ro,
    };
    fs::write(fixture.other().join("f"), "other").unwrap();
    let target = Path::new(WORKSPACE).join("data/in");
    let mut asker = Asker::new(fixture.with(entry(target, node, "mount: data")));
    assert_eq!(asker.paths_in(WORKSPACE, 1), [inside("data")]);
    assert_eq!(asker.read(&inside("data/in/f")), Ok(b"other".to_vec()));
    for path in ["data", "data/in"] {
        let path = inside(path).into();
        asker.refused(&FileRequest::Remove { path }, Errno::BUSY);
    }
    let told = asker.write(&inside("data/in/f"), &[]);
    assert!(
        matches!(told, FileReply::Failed { errno, .. } if errno == Errno::ROFS.raw_os_error()),
        "{told:?}"
    );
    let (source, destination) = (inside("data/in/f").into(), inside("moved").into());
    asker.refused(&FileRequest::Rename { source, destination }, Errno::XDEV);
}
