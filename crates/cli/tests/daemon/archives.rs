//! Snapshots as archives: what comes back of one, and what is left of those that are no whole ones.

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::{Caller, CreateRequest, Daemon, DaemonError, SnapshotFilter, SnapshotView};

use super::carried::supervisor;
use super::snapshots::{key, snapshot};
use super::world::{World, create, eventually, output, test, within};

async fn archive(daemon: &Daemon, which: &str) -> Vec<u8> {
    let mut export = within(daemon.export_snapshot(&Caller::local(), which)).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = within(export.piece()).await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

/// Takes in what `bytes` are, piece by piece.
async fn taken(daemon: &Daemon, caller: &Caller, bytes: &[u8]) -> Result<SnapshotView, DaemonError> {
    let name = Some("again".parse().unwrap());
    let mut import = within(daemon.import_snapshot(caller, name)).await?;
    for piece in bytes.chunks(10_000) {
        within(import.write(piece)).await?;
    }
    within(import.finish()).await
}

#[test]
fn a_snapshot_comes_back_from_its_archive_and_nothing_of_one_that_is_none() {
    test(async {
        let world = World::new();
        let daemon = world.daemon_with(|config| config.snapshots.max = 1).await;
        let source = create(&daemon).await;
        let of_source = supervisor(&daemon, &source).await;
        output(
            &of_source,
            "cd; echo kept >file; ln -s file link; ln file other; mkdir -m 700 d; head -c 300000 /dev/urandom >d/large; \
             sha256sum d/large >sum; echo x >/tmp/x",
        )
        .await;
        let made = snapshot(&daemon, &source.id).await;
        let on_disk = || {
            let found = std::fs::read_dir(world.site.state().join("snapshots")).unwrap();
            found.flatten().count()
        };
        let bytes = archive(&daemon, &made.id).await;
        assert!(bytes.len() > 300_000);

        // Another key has no such snapshot, and makes one of its own of the archive.
        let other = key("kother");
        let unknown = within(daemon.export_snapshot(&other, &made.id)).await.unwrap_err();
        assert!(matches!(unknown, DaemonError::UnknownSnapshot { .. }), "{unknown:?}");
        let again = taken(&daemon, &other, &bytes).await.unwrap();
        assert_eq!(
            (again.key.as_str(), again.name.as_deref(), again.template.as_str()),
            ("kother", Some("again"), "base")
        );
        assert!(
            again.bytes >= 300_000 && again.files > 5 && again.sandbox.is_none(),
            "{again:?}"
        );
        let request = CreateRequest {
            snapshot: Some("again".to_owned()),
            ..CreateRequest::default()
        };
        let sandbox = within(daemon.create(&other, request)).await.unwrap();
        let its = supervisor(&daemon, &sandbox).await;
        let said = output(
            &its,
            "cd; sha256sum -c sum; cat file link other /tmp/x; stat -c %a d; echo more >>file && cat other",
        )
        .await;
        assert_eq!(said, "d/large: OK\nkept\nkept\nkept\nx\n700\nkept\n");

        // It counts: the key may have no other one.
        let full = taken(&daemon, &other, &bytes).await.unwrap_err();
        assert!(matches!(full, DaemonError::QuotaExceeded { .. }), "{full:?}");
        // One that comes while another does waits for that.
        let third = key("kthird");
        let mut first = within(daemon.import_snapshot(&third, None)).await.unwrap();
        within(first.write(&bytes[..50_000])).await.unwrap();
        let second = within(daemon.import_snapshot(&third, None)).await.unwrap_err();
        assert_eq!(second.kind(), ErrorKind::Exhausted, "{second:?}");
        // Who goes away in the middle leaves nothing, nor does half of one or what is none.
        drop(first);
        eventually("its place", || (on_disk() == 2).then_some(())).await;
        for wrong in [
            &bytes[..bytes.len() - 1024],
            &bytes[..bytes.len() / 2],
            &[7; 30_000][..],
            &[],
        ] {
            let refused = loop {
                match taken(&daemon, &third, wrong).await.unwrap_err() {
                    // The one before is being removed.
                    DaemonError::QuotaExceeded { .. } => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                    refused => break refused,
                }
            };
            assert!(
                matches!(refused, DaemonError::Invalid { field: "archive", .. }),
                "{refused:?}"
            );
            assert_eq!(on_disk(), 2);
        }
        let left = daemon.list_snapshots(&third, &SnapshotFilter::default()).unwrap();
        assert!(left.snapshots.is_empty());
        for id in [&source.id, &sandbox.id] {
            within(daemon.kill(&Caller::local(), id)).await.unwrap();
        }
    });
}
