//! What tests of forks and of snapshots leave in a sandbox, and how they look at its copies.

use offleash_daemon::{Daemon, SandboxContexts, SandboxView};
use offleash_interpreter::cell::{Cell, CellEnd, CellEvent};
use offleash_interpreter::language::Language;
use offleash_supervisor::service::SupervisorClient;
use offleash_supervisor::service::message::StartExec;
use tokio::sync::mpsc::Receiver;

use super::world::within;

pub(super) async fn supervisor(daemon: &Daemon, sandbox: &SandboxView) -> SupervisorClient {
    daemon.supervisor(&sandbox.id).await.unwrap()
}

/// What `sh -c SCRIPT` writes that runs as the superuser.
pub(super) async fn as_root(supervisor: &SupervisorClient, script: &str) -> String {
    let start = StartExec {
        argv: ["/bin/sh", "-c", script].map(|word| word.as_bytes().to_vec()).into(),
        user: Some("root".to_owned()),
        ..StartExec::default()
    };
    let mut stream = within(supervisor.start(start)).await.unwrap();
    let mut text = String::new();
    while let Some(news) = within(stream.next()).await.unwrap() {
        if let offleash_supervisor::service::ExecNews::Output { bytes, .. } = news {
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    text
}

/// What a program can leave, also at places of the system's.
pub(super) const LEAVE: &str = r#"
cd ~
mkdir -p deep/er && echo text >deep/er/file && ln deep/er/file deep/link && ln -s /etc/passwd passwd
printf 'evil' >"$(printf 'new\nline')"; mkfifo pipe; truncate -s 100M sparse; printf end >>sparse
echo closed >closed; chmod 000 closed; mkdir shut; touch shut/in; chmod 000 shut
setfattr -n user.mark -v yes deep 2>/dev/null || python3 -c 'import os; os.setxattr("deep", "user.mark", b"yes")'
touch -d '2001-02-03 04:05:06.789' deep/er/file
python3 - <<'PYTHON'
import socket
socket.socket(socket.AF_UNIX).bind("socket")
PYTHON
"#;
pub(super) const LEAVE_AS_ROOT: &str = r#"
rm -rf /usr/share/doc; mkdir /usr/share/doc; echo new >/usr/share/doc/new
rm /usr/bin/yes; echo changed >>/etc/passwd; echo mine >/root/mine; mkdir /srv/data; echo x >/srv/data/x; echo y >/tmp/y
"#;
/// All that can be seen of it.
pub(super) const LOOK: &str = r#"
cd /
find home/user root etc/passwd usr/share/doc srv tmp \
  -printf '%p %y %m %U %G %n %T@ %l %s\n' 2>/dev/null | grep -v '^tmp \|Python' | sed 's/^\([^ ]* d [^ ]* [^ ]* [^ ]* [^ ]* [^ ]*\) .*/\1/' | sort
cat home/user/deep/er/file root/mine srv/data/x tmp/y; ls usr/bin/yes 2>&1; tail -c3 home/user/sparse; du -k home/user/sparse | cut -f1
python3 -c 'import os; print(os.getxattr("/home/user/deep", "user.mark"))'
"#;

/// What a cell writes in the default context of Python, and how it failed.
pub(super) async fn cell(daemon: &Daemon, id: &str, code: &str) -> String {
    let contexts = within(daemon.contexts(id)).await.unwrap();
    told(
        within(contexts.execute_in_default(Language::Python, of(code)))
            .await
            .unwrap(),
    )
    .await
}

/// The same in another context.
pub(super) async fn cell_in(contexts: &SandboxContexts, context: &str, code: &str) -> String {
    told(within(contexts.execute(context, of(code))).await.unwrap()).await
}

pub(super) fn of(code: &str) -> Cell {
    Cell {
        code: code.to_owned(),
        ..Cell::default()
    }
}

async fn told(mut events: Receiver<CellEvent>) -> String {
    let mut said = String::new();
    while let Some(event) = within(events.recv()).await {
        match event {
            CellEvent::Output { text, .. } => said.push_str(&text),
            CellEvent::Error(error) => said.push_str(&error.name),
            CellEvent::End(CellEnd::Done) => return said,
            CellEvent::End(end) => panic!("{end:?}"),
            _ => {}
        }
    }
    panic!("a cell without an end, after {said}")
}
