//! Zygotes of templates: a sandbox each, in which an interpreter waits that has imported what code in contexts needs.
//!
//! One is made when sandboxes of a template are to have contexts that are ready, or when code is first run in a sandbox of
//! one that was built. Sandboxes that are made from then on lie below it and get copies of its process. It has neither
//! network nor owner, and is of one build of one template. It is in no record: its keeper ends by itself when no daemon
//! follows it and nothing lies below it any more.

mod making;
mod table;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use offleash_core::id::RunId;
use offleash_core::template::PythonModule;
use offleash_store::HeldTemplate;
use offleash_store::registry::LogLevel;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;
use tokio::time::sleep;

use self::making::{Made, make};
pub(super) use self::table::Zygotes;
use self::table::{Place, Stop};
use super::inner::Inner;
use super::launch::Process;
use super::pool::Origin;
use super::{ending, templates};
use crate::keeper::client::ExecNews;
use crate::keeper::message::Selector;

/// How often it is looked at whether one is needed.
const LOOK: Duration = Duration::from_secs(60);

/// Code is about to be run in a sandbox of this template: sandboxes of it that are made later shall find a zygote.
pub(super) fn want(inner: &Arc<Inner>, template: &str) {
    if inner.zygotes.is_off() || inner.is_draining() {
        return;
    }
    let Some(wait) = inner.zygotes.next_look(template, Instant::now()) else {
        return;
    };
    let (weak, template) = (Arc::downgrade(inner), template.to_owned());
    tokio::spawn(async move {
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let Some(inner) = weak.upgrade() else { return };
        // The base changes with the host, and has only what that has.
        if let Ok(Some(held)) = templates::current(&inner, &template).await {
            begin(&inner, &held);
        }
    });
}

/// Sandboxes of this template are wanted: if contexts in them shall be ready, so shall be a zygote.
pub(super) fn expect(inner: &Arc<Inner>, template: &HeldTemplate) {
    let record = template.record();
    let imports = inner
        .config
        .pool
        .ready_imports(record.name.as_str(), Some(&record.recipe));
    if imports.is_some() {
        begin(inner, template);
    }
}

/// Has one made of a template, unless there is one.
fn begin(inner: &Arc<Inner>, template: &HeldTemplate) {
    if inner.zygotes.is_off() || inner.is_draining() || inner.admission.check().is_err() {
        return;
    }
    let record = template.record();
    let imports = inner
        .config
        .pool
        .ready_imports(record.name.as_str(), Some(&record.recipe));
    let origin = Origin::of(Some(template));
    if let Some((place, stopped)) = inner.zygotes.begin(&origin) {
        let weak = Arc::downgrade(inner);
        tokio::spawn(async move { live(&weak, &origin, &place, &imports.unwrap_or_default(), stopped).await });
    }
}

/// The life of one, from its place among all to its end.
async fn live(
    weak: &Weak<Inner>,
    origin: &Origin,
    place: &Place,
    imports: &[PythonModule],
    mut stopped: watch::Receiver<Stop>,
) {
    let Some(inner) = weak.upgrade() else { return };
    let made = match make(&inner, origin, imports).await {
        Ok(made) => made,
        Err((id, why)) => {
            if inner.zygotes.fail(place, Duration::ZERO, &why) {
                let line = format!("no zygote of template `{}` was made: {why}", origin.template);
                inner.log(id.as_ref().map_or("", RunId::as_str), LogLevel::Warn, line);
            }
            return;
        }
    };
    let Made {
        id,
        keeper,
        process,
        mut stream,
        first,
    } = made;
    let since = Instant::now();
    inner.zygotes.is_ready(place, first);
    // Those that were made before it, or below another one, which may be gone.
    inner.pool.retire(&origin.template, |zygote| zygote != Some(first));
    drop(inner);
    let mut has_failed = false;
    loop {
        tokio::select! {
            news = stream.next() => {
                // What it writes is of no use; its end is none that we asked for.
                has_failed = !matches!(news, Ok(Some(ExecNews::Output { .. })));
                if has_failed {
                    break;
                }
            }
            changed = stopped.changed() => {
                if changed.is_err() {
                    // The daemon is gone, and its sandboxes go on.
                    return;
                }
                if *stopped.borrow() != Stop::Not {
                    break;
                }
            }
            () = sleep(LOOK) => {
                if weak.upgrade().is_none_or(|inner| inner.zygotes.is_idle(place)) {
                    break;
                }
            }
        }
    }
    if let Some(inner) = weak.upgrade() {
        inner.zygotes.is_closed(place);
        // Their interpreters end with it, or cannot be had anew.
        inner.pool.retire(&origin.template, |zygote| zygote == Some(first));
    }
    let at_once = *stopped.borrow() == Stop::AtOnce;
    if at_once {
        // One that is gone already is what was wanted.
        let _ended = keeper.kill().await;
    } else {
        // Copies go on, and it with them.
        let _told = keeper.close_input(&Selector::Pid(stream.pid())).await;
    }
    drop(stream);
    if !at_once && let Some(inner) = weak.upgrade() {
        // Another one may be made while sandboxes lie below this one.
        if has_failed {
            let why = "it ended";
            if inner.zygotes.fail(place, since.elapsed(), why) {
                let line = format!("the zygote of template `{}`: {why}", origin.template);
                inner.log(id.as_str(), LogLevel::Warn, line);
            }
        } else {
            inner.zygotes.end(place);
        }
    }
    let _watched = process.ended().await;
    let Some(inner) = weak.upgrade() else { return };
    ending::remove_remains(&inner, &id).await;
    if at_once {
        inner.zygotes.end(place);
    }
}

/// Whether a sandbox that no record speaks of is a zygote of an earlier daemon that sandboxes lie below. Then what it leaves
/// is removed when it ends.
pub(super) async fn is_left(inner: &Arc<Inner>, id: &RunId) -> bool {
    let Ok(hello) = inner.keeper_of(id).hello().await else {
        return false;
    };
    let pid = i32::try_from(hello.pid)
        .ok()
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw);
    let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
        return false;
    };
    let (weak, id) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        let _watched = Process::new(process).ended().await;
        if let Some(inner) = weak.upgrade() {
            ending::remove_remains(&inner, &id).await;
        }
    });
    true
}
