//! `docs/api.md`: the table of routes.

use std::fmt::Write as _;

use offleash_api::{RouteSummary, route_summaries};

use crate::{MADE, assert_committed, cell};

fn routes_document() -> String {
    let mut text = format!(
        "# Routes\n\n{MADE}\nThe server answers these with an API key in `X-API-KEY`, or as the owner on its own socket. What is asked for by a key \
         that has not the\nscope is refused with 403, another method with 405, a larger body with 413. A scope has those before it: `read`, \
         `create`, `admin`.\n`overview` has the one route that says so, and `admin` has that, too.\n\n`/mcp`, `/healthz`, `/readyz`, `/metrics` and the services of sandboxes are in [serve.md](serve.md).\n"
    );
    let (native, others): (Vec<_>, Vec<_>) = route_summaries()
        .into_iter()
        .partition(|route| route.path.starts_with("/v1/"));
    let (doors, e2b): (Vec<_>, Vec<_>) = others.into_iter().partition(|route| route.path.starts_with("/api/"));
    let (judge0, e2b): (Vec<_>, Vec<_>) = e2b.into_iter().partition(|route| route.path.starts_with("/judge0/"));
    let (piston, daytona): (Vec<_>, Vec<_>) = doors.into_iter().partition(|route| route.path.starts_with("/api/v2/"));
    table(&mut text, "The control plane of E2B", &e2b);
    table(&mut text, "Piston's API", &piston);
    table(&mut text, "Daytona's API", &daytona);
    table(&mut text, "Judge0's API", &judge0);
    table(&mut text, "The native REST", &native);
    text.push_str("\n`GET /v1/openapi.json` describes what these take and answer.\n");
    text
}

fn table(text: &mut String, title: &str, routes: &[RouteSummary]) {
    write!(
        text,
        "\n## {title}\n\n| route | scope | body, bytes | what it does |\n|---|---|---|---|\n"
    )
    .unwrap();
    for route in routes {
        let scope = match (route.scope, route.token) {
            (Some(scope), _) => format!("`{scope}`"),
            (None, Some(token)) => format!("the {token}'s token"),
            (None, None) => "none".to_owned(),
        };
        let body = route.max_body.map(|most| most.to_string()).unwrap_or_default();
        let (method, path, summary) = (route.method, route.path, cell(route.summary));
        writeln!(text, "| `{method} {path}` | {scope} | {body} | {summary} |").unwrap();
    }
}

#[test]
fn the_reference_of_routes_is_the_table_of_routes() {
    assert_committed("api.md", &routes_document());
}
