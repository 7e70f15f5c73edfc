//! Checkpoints, snapshots and restores on a disk that is full at one moment or another.

use std::os::unix::fs::PermissionsExt as _;

use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::{Caller, SnapshotFilter, SnapshotRequest};

use super::carried::supervisor;
use super::support::disks::SmallDisk;
use super::support::{is_root, skip};
use super::world::{World, create, output, test, within};

/// Space that is left, MiB.
const FREE: [u64; 6] = [0, 1, 3, 6, 12, 40];

/// What is refused is typed and leaves nothing, and the sandbox goes on as it was.
#[test]
fn what_is_kept_of_a_sandbox_has_room_or_is_not_there() {
    let world = World::new();
    if !is_root() {
        return skip("only root can mount a small file system to fill");
    }
    let state = world.site.state();
    std::fs::create_dir_all(&state).unwrap();
    let Some(_mounted) = SmallDisk::mount(&state, 96) else {
        return skip("a tmpfs cannot be mounted here");
    };
    // So that it goes first, and finds its supervisors while their directory is there.
    let world = world;
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
    test(async {
        let caller = Caller::local();
        let daemon = world.daemon().await;
        let source = create(&daemon).await;
        let guest = supervisor(&daemon, &source).await;
        output(
            &guest,
            "for i in 1 2 3 4 5; do head -c 2M /dev/urandom >~/f$i; done; cat ~/f* | sha256sum >~/sum",
        )
        .await;
        let first = within(daemon.create_checkpoint(&caller, &source.id, None))
            .await
            .unwrap();
        let filler = state.join("filler");
        let count = |directory: &str| {
            let found = std::fs::read_dir(state.join(directory));
            found.map_or(0, Iterator::count)
        };
        let (mut refused, mut made) = (0, 0);
        for free in FREE {
            let before = count("snapshots");
            // Every file is another one than in what was kept before.
            output(
                &guest,
                "for i in 1 2 3 4 5; do head -c 2M /dev/urandom >~/f$i; done; cat ~/f* | sha256sum >~/sum",
            )
            .await;
            let file = std::fs::File::create(&filler).unwrap();
            while std::io::Write::write(&mut &file, &[0; 65536]).is_ok() {}
            let length = file.metadata().unwrap().len();
            file.set_len(length.saturating_sub(free << 20)).unwrap();
            let checkpoint = within(daemon.create_checkpoint(&caller, &source.id, None)).await;
            let snapshot = within(daemon.create_snapshot(&caller, &source.id, SnapshotRequest::default())).await;
            std::fs::remove_file(&filler).unwrap();
            let kept = [checkpoint, snapshot];
            for kept in &kept {
                match kept {
                    Ok(_) => made += 1,
                    Err(error) => {
                        refused += 1;
                        let kinds = [ErrorKind::Exhausted, ErrorKind::Unavailable];
                        assert!(kinds.contains(&error.kind()), "{free} MiB: {error:?}");
                    }
                }
            }
            let whole = kept.iter().filter(|kept| kept.is_ok()).count();
            assert_eq!(count("snapshots"), before + whole, "{free} MiB");
            assert_eq!(
                output(&guest, "cat ~/f* | sha256sum | cmp - ~/sum && echo whole").await,
                "whole\n"
            );
            // Room for the next round.
            let [checkpoint, snapshot] = kept;
            if let Ok(view) = checkpoint {
                within(daemon.remove_checkpoint(&caller, &source.id, &view.id))
                    .await
                    .unwrap();
            }
            if let Ok(view) = snapshot {
                within(daemon.remove_snapshot(&caller, &view.id)).await.unwrap();
            }
        }
        assert!(refused > 1 && made > 1, "{refused} refused, {made} made");
        // The way back needs room for a sandbox; without it there is the sandbox as it was, or it is told.
        let file = std::fs::File::create(&filler).unwrap();
        while std::io::Write::write(&mut &file, &[0; 65536]).is_ok() {}
        drop(file);
        let restored = within(daemon.restore(&caller, &source.id, &first.id)).await;
        std::fs::remove_file(&filler).unwrap();
        if let Err(error) = restored {
            let kinds = [ErrorKind::Exhausted, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            within(daemon.restore(&caller, &source.id, &first.id)).await.unwrap();
        }
        let guest = supervisor(&daemon, &source).await;
        assert_eq!(
            output(&guest, "cat ~/f* | sha256sum | cmp - ~/sum && echo whole").await,
            "whole\n"
        );
        let left = daemon.list_snapshots(&caller, &SnapshotFilter::default()).unwrap();
        assert!(left.snapshots.is_empty(), "{left:?}");
        within(daemon.kill(&caller, &source.id)).await.unwrap();
        world.emptied().await;
    });
}
