//! The routes of Piston's API, version 2.

use super::{CREATE, RouteEntry, route};
use crate::http::json::MAX_BODY;
use crate::piston::{self, MAX_JOB_BODY};

/// No body is read.
const NO_BODY: Option<usize> = None;
/// A body of JSON.
const BODY: Option<usize> = Some(MAX_BODY);
/// A body with programs in it.
const JOB: Option<usize> = Some(MAX_JOB_BODY);

pub(super) static ROUTES: [RouteEntry; 6] = [
    route!("PistonRuntimes", GET "/api/v2/runtimes", CREATE, NO_BODY,
        "Lists the languages that programs can be written in; what is not known is asked in a sandbox.",
        None,
        |call| Box::pin(piston::runtimes(call.asked))),
    route!("PistonExecute", POST "/api/v2/execute", CREATE, JOB,
        "Runs a program in a sandbox of its own without network.",
        None,
        |call| Box::pin(piston::execute(call.asked, call.body))),
    route!("PistonConnect", GET "/api/v2/connect", CREATE, NO_BODY,
        "Runs a program over a WebSocket: its input and output as they come, and signals.",
        None,
        |call| Box::pin(piston::connect(call.asked))),
    route!("PistonPackages", GET "/api/v2/packages", CREATE, NO_BODY,
        "Lists the same languages as packages, all of them installed.",
        None,
        |call| Box::pin(piston::packages(call.asked))),
    route!("PistonInstall", POST "/api/v2/packages", CREATE, BODY,
        "Answers that no package is installed: templates bring languages.",
        None,
        |call| Box::pin(piston::change_package(call.body))),
    route!("PistonUninstall", DELETE "/api/v2/packages", CREATE, BODY,
        "Answers that no package is removed.",
        None,
        |call| Box::pin(piston::change_package(call.body))),
];
