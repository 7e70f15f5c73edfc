//! Buckets of volumes: how one is named, and how a volume is brought to the same with its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use offleash_core::bucket::{BucketSecret, BucketSpec, SyncChoice, SyncDirection};
use offleash_core::network::secret::SecretSource;
use offleash_core::spec::{MountAccess, VolumeMount};
use offleash_images::RegistrySettings;
use offleash_store::HeldVolume;
use offleash_supervisor::buckets::{self, ObjectList, SyncOutcome, SyncReport};

use crate::args::{VolumeCreateArgs, VolumeSyncArgs};
use crate::failure::{EXIT_FAILURE, Failure};
use crate::terminal;

/// The bucket that a new volume is to have.
pub(crate) fn spec(arguments: &VolumeCreateArgs) -> Result<Option<BucketSpec>, Failure> {
    let Some(location) = &arguments.bucket else {
        return Ok(None);
    };
    let credentials = arguments.secret.as_deref().map(BucketSecret::source).transpose()?;
    let spec = BucketSpec::from_parts(
        location,
        arguments.endpoint.as_deref(),
        arguments.region.as_deref(),
        arguments.read_only,
        credentials.map(absolute).transpose()?,
    )?;
    Ok(Some(spec))
}

/// The same file from wherever the volume is synchronised.
fn absolute(secret: BucketSecret) -> Result<BucketSecret, Failure> {
    let BucketSecret::Source(SecretSource::File(path)) = secret else {
        return Ok(secret);
    };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let given = match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(&path),
    };
    let whole = std::path::absolute(&given).ok();
    let whole = whole
        .and_then(|path| path.into_os_string().into_string().ok())
        .ok_or_else(|| {
            Failure::new(format!("`{}` is no path that can be written down", path.escape_debug()))
                .with_hint("name a file whose path is UTF-8")
        })?;
    Ok(BucketSecret::Source(SecretSource::File(whole)))
}

/// `offleash volume sync`.
pub(crate) fn sync(
    arguments: &VolumeSyncArgs,
    hold: impl FnOnce(&str) -> Result<HeldVolume, Failure>,
) -> Result<ExitCode, Failure> {
    let choice = SyncChoice {
        direction: match (arguments.pull, arguments.push) {
            (true, _) => SyncDirection::Pull,
            (false, true) => SyncDirection::Push,
            (false, false) => SyncDirection::Both,
        },
        delete: arguments.delete,
        overwrite: arguments.overwrite,
    };
    let choice = choice.check()?;
    let volume = hold(&arguments.name)?;
    let SyncOutcome { report, failure } = buckets::sync(&volume, None, &RegistrySettings::of_this_process(), choice)?;
    if arguments.json {
        terminal::print(&terminal::json_line(&report)?)?;
    } else {
        terminal::print(format!("{}\n", summary(&report)).as_bytes())?;
        tell(&report);
    }
    match failure {
        Some(error) => Err(Failure::from(error)),
        None if report.is_complete() => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(EXIT_FAILURE)),
    }
}

/// Fetches what is new in the buckets of a sandbox's volumes, before it has them.
pub(crate) fn fetch(mounts: &[VolumeMount], state: Option<&Path>, is_quiet: bool) -> Result<(), Failure> {
    for (volume, _) in buckets::with_buckets(state, mounts)? {
        let SyncOutcome { report, failure } =
            buckets::sync(&volume, None, &RegistrySettings::of_this_process(), SyncChoice::PULL)?;
        if !is_quiet {
            tell(&report);
        }
        if let Some(error) = failure {
            return Err(Failure::from(error));
        }
    }
    Ok(())
}

/// Sends what a sandbox wrote to its volumes, once it has ended. Whether all of it went.
pub(crate) fn send(mounts: &[VolumeMount], state: Option<&Path>) -> bool {
    let found = match buckets::with_buckets(state, mounts) {
        Ok(found) => found,
        Err(error) => {
            terminal::complain(&Failure::from(error).to_string());
            return false;
        }
    };
    let mut is_complete = true;
    let mut written = found.into_iter().filter(|(_, access)| *access == MountAccess::Rw);
    written.by_ref().for_each(|(volume, _)| {
        let record = volume.record();
        if record.bucket.as_ref().is_some_and(|bucket| bucket.read_only) {
            return;
        }
        let name = record.name.to_string();
        let sent = buckets::sync(&volume, None, &RegistrySettings::of_this_process(), SyncChoice::PUSH);
        let failure = match sent {
            Ok(SyncOutcome { report, failure }) => {
                tell(&report);
                is_complete &= report.is_complete();
                failure.map(Failure::from)
            }
            Err(error) => Some(Failure::from(error)),
        };
        if let Some(failure) = failure {
            is_complete = false;
            terminal::complain(&failure.to_string());
            terminal::complain(&format!(
                "offleash: not everything that was written to volume `{name}` is in its bucket; `offleash volume sync {name} --push` sends it"
            ));
        }
    });
    is_complete
}

/// One line about what was done.
fn summary(report: &SyncReport) -> String {
    let mut parts = vec![
        format!("fetched {} ({} bytes)", report.fetched, report.fetched_bytes),
        format!("sent {} ({} bytes)", report.sent, report.sent_bytes),
    ];
    for (count, what) in [
        (report.removed_here, "removed in the volume"),
        (report.removed_there, "removed in the bucket"),
        (report.same, "the same"),
        (report.waiting, "not asked for"),
        (report.kept, "gone on one side and kept on the other"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ")
}

/// Says what was not done.
fn tell(report: &SyncReport) {
    list("conflict", &report.conflicts);
    list("failed", &report.failed);
    list("left out", &report.left_out);
}

fn list(what: &str, list: &ObjectList) {
    for note in &list.named {
        terminal::complain(&format!("{what}: {} ({})", note.name, note.why));
    }
    let named = u64::try_from(list.named.len()).unwrap_or(u64::MAX);
    if list.count > named {
        terminal::complain(&format!("{what}: {} more", list.count - named));
    }
}
