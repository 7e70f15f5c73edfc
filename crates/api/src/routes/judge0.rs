//! The routes of Judge0's API.

use super::{CREATE, RouteEntry, at_once, route};
use crate::judge0::{self, MAX_BATCH_BODY, MAX_SUBMISSION_BODY};

/// No body is read.
const NO_BODY: Option<usize> = None;

pub(super) static ROUTES: [RouteEntry; 11] = [
    route!("Judge0CreateSubmission", POST "/judge0/submissions", CREATE, Some(MAX_SUBMISSION_BODY),
        "Runs a program in a sandbox of its own and judges what it writes; answers a token, or with `wait=true` what came of it.",
        None,
        |call| Box::pin(judge0::create(call.asked, call.body))),
    route!("Judge0ListSubmissions", GET "/judge0/submissions", CREATE, NO_BODY,
        "Lists submissions of the key, in pages.",
        None,
        |call| at_once(judge0::list(call.asked))),
    route!("Judge0CreateBatch", POST "/judge0/submissions/batch", CREATE, Some(MAX_BATCH_BODY),
        "Takes several programs, each by itself.",
        None,
        |call| Box::pin(judge0::create_batch(call.asked, call.body))),
    route!("Judge0GetBatch", GET "/judge0/submissions/batch", CREATE, NO_BODY,
        "Says what came of several programs, by their tokens.",
        None,
        |call| at_once(judge0::get_batch(call.asked))),
    route!("Judge0GetSubmission", GET "/judge0/submissions/{token}", CREATE, NO_BODY,
        "Says what came of a program.",
        None,
        |call| at_once(judge0::get(call.asked, call.first()))),
    route!("Judge0DeleteSubmission", DELETE "/judge0/submissions/{token}", CREATE, NO_BODY,
        "Forgets a submission that is over.",
        None,
        |call| at_once(judge0::delete(call.asked, call.first()))),
    route!("Judge0ListLanguages", GET "/judge0/languages", CREATE, NO_BODY,
        "Lists the languages that programs can be written in, by Judge0's numbers.",
        None,
        |call| Box::pin(judge0::list_languages(call.asked))),
    route!("Judge0GetLanguage", GET "/judge0/languages/{language}", CREATE, NO_BODY,
        "Shows a language.",
        None,
        |call| Box::pin(judge0::language(call.asked, call.first()))),
    route!("Judge0Statuses", GET "/judge0/statuses", CREATE, NO_BODY,
        "Lists what a submission can be.",
        None,
        |_| at_once(Ok(judge0::statuses()))),
    route!("Judge0ConfigInfo", GET "/judge0/config_info", CREATE, NO_BODY,
        "Says which limits submissions have.",
        None,
        |_| at_once(Ok(judge0::config_info()))),
    route!("Judge0About", GET "/judge0/about", CREATE, NO_BODY,
        "Says whose API this is, and in which version.",
        None,
        |_| at_once(Ok(judge0::about()))),
];
