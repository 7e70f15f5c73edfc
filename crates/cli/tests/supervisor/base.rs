//! The base template in a sandbox that is kept: its users, its root, and files by way of its workers.

use offleash_core::exec::ExecEnd;
use offleash_protocol::files::ChangeKind;
use offleash_supervisor::service::SupervisorError;
use offleash_supervisor::service::order::Template;

use super::world::{Kept, collect, exists, remains, shell, test, within};

async fn base() -> Kept {
    Kept::with(|order| order.template = Template::Base).await
}

#[test]
fn both_users_run_commands_and_the_root_is_the_sandbox_s_own() {
    test(async {
        let kept = base().await;
        let names: Vec<&str> = kept.hello.users.iter().map(|user| user.name.as_str()).collect();
        assert_eq!(names, ["user", "root"]);
        for user in &kept.hello.users {
            let mut start = shell("id -u; echo $HOME $USER; pwd; echo x > file && cat file");
            start.user = Some(user.name.clone());
            let (text, end) = collect(kept.supervisor.start(start).await.unwrap()).await;
            let (uid, home, name) = (user.uid, &user.home, &user.name);
            assert_eq!(text, format!("{uid}\n{home} {name}\n{home}\nx\n"));
            assert_eq!(end, Some(ExecEnd::Exited { code: 0 }));
        }
        let mut start = shell("echo mine > /usr/local/mine && echo made > /made && cat /usr/local/mine /made");
        start.user = Some("root".to_owned());
        assert_eq!(
            collect(kept.supervisor.start(start).await.unwrap()).await.0,
            "mine\nmade\n"
        );
        assert!(!exists("/made".as_ref()) && !exists("/usr/local/mine".as_ref()));
        kept.supervisor.kill().await.unwrap();
        assert_eq!(remains(&kept.site), Vec::<std::path::PathBuf>::new());
        let scratch = std::fs::read_dir(kept.site.state().join("scratch")).unwrap().count();
        assert_eq!(scratch, 0);
    });
}

#[test]
fn files_are_written_read_listed_moved_and_removed() {
    test(async {
        let kept = base().await;
        let mut files = kept.supervisor.files(None).await.unwrap();
        let contents: Vec<u8> = (0..2_500_000_u32)
            .map(|number| (number % 253).to_le_bytes()[0])
            .collect();
        let mut writer = files.write(b"/home/user/a/b.bin", Vec::new()).await.unwrap();
        for piece in contents.chunks(600_000) {
            within(writer.send(piece)).await.unwrap();
        }
        let written = within(writer.finish()).await.unwrap();
        assert_eq!((written.size, written.owner.as_slice()), (2_500_000, &b"user"[..]));
        let mut read = Vec::new();
        let mut reader = files.read(b"/home/user/a/b.bin", 0, None).await.unwrap();
        while let Some(piece) = within(reader.next()).await.unwrap() {
            read.extend(piece);
        }
        assert!(read == contents);
        let mut reader = files.read(b"/home/user/a/b.bin", 252, Some(3)).await.unwrap();
        assert_eq!(within(reader.next()).await.unwrap().unwrap(), [252, 0, 1]);
        assert_eq!(within(reader.next()).await.unwrap(), None);
        assert_eq!(kept.output("wc -c < a/b.bin").await, "2500000\n");
        files.rename(b"/home/user/a/b.bin", b"/home/user/c/d").await.unwrap();
        let mut names = Vec::new();
        let mut listing = files.list(b"/home/user", 2).await.unwrap();
        while let Some(entries) = within(listing.next()).await.unwrap() {
            names.extend(entries.into_iter().map(|entry| entry.path));
        }
        assert!(names.contains(&b"/home/user/a".to_vec()) && names.contains(&b"/home/user/c/d".to_vec()));
        files.make_directory(b"/home/user/e/f").await.unwrap();
        let error = files.make_directory(b"/home/user/e/f").await.unwrap_err();
        assert!(matches!(error, SupervisorError::File { errno: 17, .. }), "{error:?}");
        files.remove(b"/home/user/e").await.unwrap();
        let error = files.stat(b"/home/user/e").await.unwrap_err();
        assert!(matches!(error, SupervisorError::File { errno: 2, .. }), "{error:?}");
        let error = files.read(b"/home/user", 0, None).await.unwrap_err();
        assert!(matches!(error, SupervisorError::File { errno: 21, .. }), "{error:?}");
        // A failure in the middle of a file ends that file, not the channel.
        let mut writer = files.write(b"/home/user/c", Vec::new()).await.unwrap();
        let failed = async {
            loop {
                if let Err(error) = writer.send(&contents).await {
                    break error;
                }
            }
        };
        let error = within(failed).await;
        assert!(matches!(error, SupervisorError::File { .. }), "{error:?}");
        assert_eq!(files.stat(b"/home/user/c/d").await.unwrap().size, 2_500_000);
        let error = kept.supervisor.files(Some("nobody")).await.unwrap_err();
        assert!(matches!(error, SupervisorError::InvalidUser(_)), "{error:?}");
    });
}

#[test]
fn changes_are_told_of_while_they_happen() {
    test(async {
        let kept = base().await;
        let files = kept.supervisor.files(Some("root")).await.unwrap();
        let mut watch = files.watch(b"/home/user", true, false).await.unwrap();
        kept.output("mkdir -p w && echo x > w/x").await;
        let mut seen = Vec::new();
        while !seen.contains(&(b"w/x".to_vec(), ChangeKind::Create)) {
            let changes = within(watch.next()).await.unwrap();
            seen.extend(changes.into_iter().map(|change| (change.name, change.kind)));
        }
        kept.supervisor.kill().await.unwrap();
        let gone = loop {
            if let Err(error) = within(watch.next()).await {
                break error;
            }
        };
        assert!(matches!(gone, SupervisorError::Gone), "{gone:?}");
    });
}
