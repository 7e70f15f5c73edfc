//! Below `/api`: which of the APIs that are there beside E2B's answers, and what each has that nothing answers.

use http::Method;

use super::refused::begins;
use super::{MissingRoute, RouteEntry, daytona, found, found_below, piston};
use crate::http::answer::ApiRefusal;
use crate::http::destination::PathSegments;

/// What begins Piston's paths, behind `/api/`; its public instance has one more part.
const PISTON: &str = "v2/";
const PISTON_PUBLIC: &str = "v2/piston/";

/// Parts of Daytona's API that nothing answers, by what begins them, and of what that is said.
const UNSUPPORTED: [(&str, &str); 11] = [
    (
        "snapshots",
        "lists and builds of snapshots by this API (E2B's has them) are",
    ),
    ("object-storage", "archives of build contexts by this API are"),
    ("secret", "secrets by this API are"),
    ("warm-pools", "warm pools by this API (the configuration has them) are"),
    ("organizations", "organizations are"),
    ("regions", "regions are"),
    ("users", "users are"),
    ("api-keys", "keys by this API (`offleash key` makes them) are"),
    ("audit", "audit logs by this API (`/v1/audit` has one) are"),
    ("config", "configurations of clients are"),
    ("preview", "questions of Daytona's own proxy are"),
];
/// The same below `/api/sandbox/ID`.
const UNSUPPORTED_OF_SANDBOX: [(&str, &str); 19] = [
    ("archive", "archives of sandboxes are"),
    ("backup", "backups of sandboxes are"),
    ("ssh-access", "SSH by this API is"),
    ("resize", "changes of what a sandbox may use are"),
    ("recover", "recovery is"),
    ("secrets", "secrets by this API are"),
    ("signing-key", "signed URLs of files are"),
    ("telemetry", "measurements by this API (E2B's has them) are"),
    (
        "network-settings",
        "changes of the network by this API (E2B's has them) are",
    ),
    ("public", "changes of who reaches ports are"),
    ("autoarchive", "archives of sandboxes are"),
    ("autopause", "changes of when a sandbox is paused are"),
    ("ports", "signed preview links are"),
    ("forks", "lists of forks are"),
    (
        "ancestors",
        "origins of sandboxes by this API (the native one has them) are",
    ),
    ("autodelete", "sandboxes that delete themselves are"),
    ("build-logs", "logs of builds by this API are"),
    ("build-logs-url", "logs of builds by this API are"),
    (
        "parent",
        "origins of sandboxes by this API (the native one has them) are",
    ),
];
/// The same below `/api/toolbox/ID`.
const UNSUPPORTED_OF_TOOLBOX: [(&str, &str); 7] = [
    ("lsp", "language servers are"),
    ("computeruse", "computer use by this API (desktops are below `/v1`) is"),
    ("git/credentials", "credentials of git that are kept are"),
    ("files/upload-v2", "uploads that are no forms are"),
    ("system", "measurements by this API (E2B's has them) are"),
    ("init", "what Daytona's own services ask is"),
    ("env", "changes of a sandbox's variables are"),
];

/// Finds the route of a request; `rest` is the path behind `api/`.
pub(super) fn find<'a>(
    method: &Method,
    path: &'a str,
    rest: &'a str,
) -> Result<(&'static RouteEntry, PathSegments<'a>), ApiRefusal> {
    if let Some(behind) = rest.strip_prefix(PISTON_PUBLIC).or_else(|| rest.strip_prefix(PISTON)) {
        // Clients write their paths with a slash behind them, too.
        let behind = behind.strip_suffix('/').unwrap_or(behind);
        return found_below("/api/v2/", &piston::ROUTES, method, behind).map_err(|missing| missing.refusal(method));
    }
    found(&daytona::ROUTES, method, path).map_err(|missing| of_daytona(method, rest, missing))
}

/// Why no route of Daytona's API answers a request.
fn of_daytona(method: &Method, rest: &str, missing: MissingRoute) -> ApiRefusal {
    if missing == MissingRoute::OtherMethod {
        return missing.refusal(method);
    }
    let behind_id = |prefix: &str| {
        let (_, behind) = rest.strip_prefix(prefix)?.split_once('/')?;
        Some(behind)
    };
    let of = |table: &[(&str, &'static str)], path: &str| {
        let found = table.iter().find(|(beginning, _)| begins(path, beginning));
        found.map(|(_, what)| ApiRefusal::unsupported(what))
    };
    let of_sandbox = behind_id("sandbox/").and_then(|behind| of(&UNSUPPORTED_OF_SANDBOX, behind));
    let of_toolbox = behind_id("toolbox/").and_then(|behind| of(&UNSUPPORTED_OF_TOOLBOX, behind));
    let refusal = of_sandbox.or(of_toolbox).or_else(|| of(&UNSUPPORTED, rest));
    refusal.unwrap_or_else(|| missing.refusal(method))
}
