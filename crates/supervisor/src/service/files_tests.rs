//! Tests of conversations about files with a sandbox that does not do its part.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream as Blocking;
use std::thread;

use offleash_protocol::encode;
use offleash_protocol::files::LinkTarget;

use super::*;

/// Both ends of a conversation: ours, and that of a sandbox.
fn channel() -> (FileChannel, Blocking) {
    let (ours, theirs) = Blocking::pair().unwrap();
    (FileChannel::over(ours.into()).unwrap(), theirs)
}

/// The clock goes on by itself while everything waits.
fn waiting(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
}

fn is_late<T>(result: Result<T, SupervisorError>) -> bool {
    matches!(result, Err(SupervisorError::Timeout { .. }))
}

#[test]
fn a_sandbox_that_says_nothing_is_not_waited_for() {
    waiting(async {
        for _ in 0..2 {
            let (mut files, _theirs) = channel();
            assert!(is_late(files.stat(b"/a").await));
            // What it may still say belongs to that request.
            assert!(matches!(files.stat(b"/a").await, Err(SupervisorError::Protocol { .. })));
        }
        let (mut files, _theirs) = channel();
        assert!(is_late(files.remove(b"/a").await));
        let (mut files, _theirs) = channel();
        assert!(is_late(files.list(b"/a", 1).await.unwrap().next().await));
        let (mut files, _theirs) = channel();
        assert!(is_late(files.read(b"/a", 0, None).await));
        let (mut files, _theirs) = channel();
        assert!(is_late(files.write(b"/a", Vec::new()).await.unwrap().finish().await));
        let (files, _theirs) = channel();
        assert!(is_late(files.watch(b"/a", true, false).await));
    });
}

#[test]
fn a_sandbox_that_takes_nothing_is_not_waited_for() {
    waiting(async {
        let (mut files, _theirs) = channel();
        let mut writer = files.write(b"/a", Vec::new()).await.unwrap();
        assert!(is_late(writer.send(&vec![0; 64 << 20]).await));
    });
}

#[test]
fn a_file_that_stops_in_the_middle_is_not_waited_for() {
    waiting(async {
        let (mut files, mut theirs) = channel();
        let replies = [
            FileReply::Entry(FileEntry::default()),
            FileReply::Data { bytes: vec![1; 10] },
        ];
        for reply in replies {
            theirs.write_all(&encode(&reply).unwrap()).unwrap();
        }
        let mut reader = files.read(b"/a", 0, None).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Some(vec![1; 10]));
        assert!(is_late(reader.next().await));
    });
}

/// Sends listings without an end until nobody reads; answers how many bytes were taken.
fn list_for_ever(mut theirs: Blocking, entry: &FileEntry) -> usize {
    let frame = encode(&FileReply::Entries(vec![entry.clone(); 64])).unwrap();
    let mut sent = 0;
    let _asked = theirs.read(&mut [0; 64]).unwrap();
    while theirs.write_all(&frame).is_ok() {
        sent += frame.len();
    }
    sent
}

#[test]
fn listings_are_bounded_by_their_bytes() {
    let link = FileEntry {
        path: vec![b'a'; 4095],
        target: Some(LinkTarget {
            path: vec![b'b'; 4095],
            mode: None,
        }),
        ..FileEntry::default()
    };
    let annotated = FileEntry {
        metadata: vec![(Vec::new(), Vec::new()); 1024],
        ..FileEntry::default()
    };
    for entry in [link, annotated, FileEntry::default()] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let listed = runtime.block_on(async {
            let (mut files, theirs) = channel();
            let sending = thread::spawn(move || list_for_ever(theirs, &entry));
            let mut listing = files.list(b"/a", 1).await.unwrap();
            let mut bytes = 0;
            let error = loop {
                match listing.next().await {
                    Ok(entries) => bytes += entries.unwrap().iter().map(size).sum::<usize>(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, SupervisorError::Exhausted { .. }), "{error:?}");
            drop(files);
            sending.join().unwrap();
            bytes
        });
        assert!(listed <= MAX_BYTES, "{listed} bytes");
    }
}
