//! What a client is told when the daemon says no.

use std::error::Error;
use std::time::Duration;

use http::StatusCode;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_daemon::DaemonError;
use offleash_supervisor::service::error::SupervisorError;

use crate::http::answer::ApiRefusal;
use crate::journal::{Event, Journal};

/// When it is worth asking again what a server cannot do while it ends.
const SOON: Duration = Duration::from_secs(1);
/// When it is where somebody has to end a sandbox first.
const LATER: Duration = Duration::from_secs(5);

/// By this the SDKs tell a pause that was refused from one of what is paused already.
const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// Turns an error of the daemon into what the client is told, and tells the owner of what is ours. Whoever `is_owner` is told
/// what the owner alone can change, too.
pub(crate) fn refusal(journal: &dyn Journal, error: &DaemonError, is_owner: bool) -> ApiRefusal {
    let status = status(error);
    let told = ApiRefusal::new(status, message(error, is_owner));
    // The owner must hear of what ran out, too.
    let is_of_the_machine = matches!(
        error,
        DaemonError::Short { .. }
            | DaemonError::Unmakeable { .. }
            | DaemonError::ImageFailed {
                is_about_image: false,
                ..
            }
    );
    if is_ours(status) || is_of_the_machine {
        record(journal, &told.message, error);
    }
    match error {
        DaemonError::Overloaded { retry_after, .. }
        | DaemonError::TemplateBuilding { retry_after, .. }
        | DaemonError::ImageFetching { retry_after, .. } => told.retry_after(*retry_after),
        DaemonError::Full { .. } | DaemonError::Drained => told.retry_after(LATER),
        DaemonError::Draining | DaemonError::Short { .. } => told.retry_after(SOON),
        DaemonError::GuestUnresponsive { .. } => told.with_error_code(GUEST_UNRESPONSIVE).final_answer(),
        // Only the caller itself can make room, or mend its request.
        _ => told.final_answer(),
    }
}

/// Tells the owner why something failed that a client is told less of.
pub(crate) fn record(journal: &dyn Journal, told: &str, cause: &(dyn Error + 'static)) {
    journal.record(&Event::Failure { told, cause });
}

/// Whether a status stands for a failure of ours, which the owner must hear of.
pub(crate) fn is_ours(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED && status != StatusCode::SERVICE_UNAVAILABLE
}

/// What a client is told when the process that holds a sandbox says no.
pub(crate) fn refusal_of_supervisor(journal: &dyn Journal, told: &str, error: &SupervisorError) -> ApiRefusal {
    let status = match error {
        // It is not disk space that is used up, and a later try may do.
        SupervisorError::Exhausted { .. } => StatusCode::TOO_MANY_REQUESTS,
        other => of_kind(other.kind()),
    };
    if is_ours(status) {
        record(journal, told, error);
        return ApiRefusal::new(status, told);
    }
    ApiRefusal::new(status, error.to_string()).final_answer()
}

/// The status that the SDKs turn into the exception that fits.
fn status(error: &DaemonError) -> StatusCode {
    match error {
        DaemonError::Unauthorized => StatusCode::UNAUTHORIZED,
        DaemonError::QuotaExceeded { .. } => StatusCode::TOO_MANY_REQUESTS,
        DaemonError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        other => of_kind(other.kind()),
    }
}

/// The status of everything that has no other.
pub(crate) fn of_kind(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Exhausted => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What `Display` says is meant for the client; sources are not.
fn message(error: &DaemonError, is_owner: bool) -> String {
    if is_owner && let Some((cause, hint)) = error.cause_for_owner() {
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        return format!("{error}: {cause}{hint}");
    }
    match (error, error.hint()) {
        // Hints of other errors are for whoever sits at the machine.
        (
            DaemonError::Unauthorized
            | DaemonError::Contexts { .. }
            | DaemonError::NotAllowed { .. }
            | DaemonError::UnknownImage { .. }
            | DaemonError::MissingOrigin { .. }
            | DaemonError::ImageNotAllowed { .. }
            | DaemonError::Inspection(_)
            | DaemonError::Session(_),
            Some(hint),
        ) => format!("{error}; {hint}"),
        // What it says of the machine is for its owner.
        (
            DaemonError::ImageFailed {
                name, is_about_image, ..
            },
            _,
        ) if !is_owner && !is_about_image => {
            format!(
                "image `{}` could not be made ready; the server's log says why",
                name.escape_debug()
            )
        }
        (DaemonError::Unmakeable { .. }, _) => format!("{error}; the server's log says why"),
        (DaemonError::ImageFailed { .. }, Some(hint)) => format!("{error}; {hint}"),
        (DaemonError::Full { .. }, Some(hint)) if is_owner => format!("{error}; {hint}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use offleash_daemon::SessionError;

    use super::*;

    #[derive(Debug)]
    struct SilentJournal;

    impl Journal for SilentJournal {
        fn record(&self, _event: &Event<'_>) {}
    }

    #[test]
    fn who_asks_for_a_browser_or_a_desktop_hears_what_to_do() {
        let (template, why) = ("base".to_owned(), "Xvfb is missing".to_owned());
        let session = "i1".to_owned();
        for (error, hint) in [
            (
                SessionError::NoBrowser {
                    template: template.clone(),
                },
                "--recipe browser",
            ),
            (SessionError::NoDesktop { template, why }, "--recipe desktop"),
            (
                SessionError::ContextInUse {
                    name: "shop".to_owned(),
                    session: Some(session),
                },
                "release that session first",
            ),
        ] {
            let refusal = refusal(&SilentJournal, &error.into(), false);
            assert!(refusal.message.contains(hint), "{}", refusal.message);
        }
    }

    #[test]
    fn why_a_machine_makes_no_sandbox_is_its_owners() {
        let error = DaemonError::Unmakeable {
            source: SupervisorError::NotMade {
                kind: ErrorKind::Unsupported,
                message: "cannot start a sandbox in `/srv`".to_owned(),
                hint: Some("`offleash doctor` says more".to_owned()),
            },
        };
        let told = refusal(&SilentJournal, &error, true);
        assert_eq!(told.status, StatusCode::NOT_IMPLEMENTED);
        assert!(
            told.message.ends_with("in `/srv`; `offleash doctor` says more"),
            "{}",
            told.message
        );
        let told = refusal(&SilentJournal, &error, false);
        assert_eq!(told.status, StatusCode::NOT_IMPLEMENTED);
        assert!(
            told.message.contains("cannot make") && !told.message.contains("/srv") && !told.message.contains("doctor"),
            "{}",
            told.message
        );
    }

    #[test]
    fn one_command_too_many_may_be_asked_for_again() {
        let what = "commands".to_owned();
        let refusal = refusal_of_supervisor(&SilentJournal, "no", &SupervisorError::Exhausted { what });
        assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
    }
}
