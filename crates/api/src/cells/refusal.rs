//! What a client is told when a context says no.

use http::StatusCode;
use offleash_core::error::{ErrorKind, Explained as _};
use offleash_interpreter::error::ContextError;

use crate::http::answer::ApiRefusal;
use crate::http::failure;
use crate::journal::Journal;

/// What a client is told of an error of contexts; the owner hears of those that are ours.
pub(crate) fn context_refusal(journal: &dyn Journal, error: &ContextError) -> ApiRefusal {
    let status = match error.kind() {
        // Contexts and cells are the caller's to have fewer of.
        ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        kind => failure::of_kind(kind),
    };
    if failure::is_ours(status) {
        let told = "the sandbox does not run code";
        failure::record(journal, told, error);
        return ApiRefusal::new(status, told);
    }
    let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    ApiRefusal::new(status, format!("{error}{hint}")).final_answer()
}
