//! Lists of all nodes: node after node, so that no sandbox is in two pages and none is left out.
//!
//! A token names the node that comes next and, behind a dot, that node's own token.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::forwarding::for_node;
use super::node::{MAX_READ, NodeError};
use super::nodes::FrontNodes;
use super::placement::{NodeHealth, NodeNumber};
use super::routing::ListForm;
use super::unreachable::busy;
use crate::http::answer::{self, ApiRefusal, NODES_MISSING};
use crate::http::body::{self, Body};
use crate::http::peer::ClientConnection;
use crate::http::{destination, query};

/// How long a node may take to tell of a page of its sandboxes.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

const NEXT: &str = "x-next-token";
const TOKEN: &str = "nextToken";

/// What one node said of its sandboxes.
struct NodePage {
    status: StatusCode,
    sandboxes: Vec<Value>,
    next: Option<String>,
    /// A refusal, as it came.
    text: bytes::Bytes,
}

/// Answers with a page of the sandboxes of all nodes, or with all of them.
///
/// # Errors
/// 400 for a token that is none, 429 when the client has as many requests under way as it may, and what nodes refuse.
pub(super) async fn list(
    nodes: &FrontNodes,
    client: &ClientConnection,
    parts: &Parts,
    form: ListForm,
) -> Result<Response<Body>, ApiRefusal> {
    let pairs = query::pairs(parts.uri.query());
    let token = query::value(&pairs, TOKEN).filter(|token| !token.is_empty());
    let (mut at, mut inner) = place_of(nodes, token)?;
    let (mut sandboxes, mut missing) = (Vec::new(), Vec::new());
    let mut ids = HashSet::new();
    let next = loop {
        let Some(number) = at else {
            break None;
        };
        at = nodes.table().first_from(number.index() + 1);
        let name = nodes.name(number);
        let inner = inner.take();
        let page = match nodes.health(number) {
            NodeHealth::Lost => None,
            _ => match page(nodes, number, client, parts, form, inner).await {
                Err(error @ NodeError::Busy { .. }) => return Err(busy(&error)),
                // Nobody goes without the others because of one that drips, breaks off, or answers with what is no list.
                page => page.ok().filter(|page| !page.status.is_server_error()),
            },
        };
        let Some(page) = page else {
            missing.push(name);
            continue;
        };
        if !page.status.is_success() {
            return Ok(answer::written(page.status, page.text.to_vec()));
        }
        let (table, now) = (nodes.table(), nodes.now());
        let shown = page.sandboxes.into_iter().filter(|sandbox| {
            let id = id_of(sandbox).filter(|id| table.is_shown_by(number, id, now));
            // Two nodes can show one that neither has named yet.
            id.is_some_and(|id| ids.insert(id.to_owned()))
        });
        sandboxes.extend(shown);
        drop(table);
        if let (Some(next), false) = (page.next, form.is_whole()) {
            break Some(format!("{}.{next}", number.index()));
        }
        // An empty page looks like the end to some clients.
        if !form.is_whole() && !sandboxes.is_empty() {
            break at.map(|node| format!("{}.", node.index()));
        }
    };
    Ok(written(form, sandboxes, next, &missing))
}

/// The id of a sandbox in a list, if it has one.
fn id_of(sandbox: &Value) -> Option<&str> {
    let id = sandbox.get("sandboxID").or_else(|| sandbox.get("id"))?;
    id.as_str().filter(|id| destination::is_id(id))
}

fn written(form: ListForm, sandboxes: Vec<Value>, next: Option<String>, missing: &[String]) -> Response<Body> {
    let told = match form {
        ListForm::Native => json!({ "sandboxes": sandboxes, "next": next }),
        ListForm::Named(what) => json!({ what: sandboxes }),
        ListForm::Whole | ListForm::Pages => Value::Array(sandboxes),
    };
    let mut response = answer::json(StatusCode::OK, &told);
    let headers = response.headers_mut();
    if let Some(next) = next.filter(|_| form != ListForm::Native)
        && let Ok(next) = HeaderValue::from_str(&next)
    {
        headers.insert(NEXT, next);
    }
    for name in missing {
        if let Ok(name) = HeaderValue::from_str(name) {
            headers.append(NODES_MISSING, name);
        }
    }
    response
}

/// The node that a token leads to, and that node's own token.
fn place_of(nodes: &FrontNodes, token: Option<&str>) -> Result<(Option<NodeNumber>, Option<String>), ApiRefusal> {
    let Some(token) = token else {
        return Ok((nodes.table().first_from(0), None));
    };
    let bad = || ApiRefusal::bad_request("nextToken: it is none of this server's");
    let (number, inner) = token.split_once('.').ok_or_else(bad)?;
    let number: usize = number.parse().map_err(|_| bad())?;
    let table = nodes.table();
    if !table.was_given(number) {
        return Err(bad());
    }
    let first = table.first_from(number);
    // The token of a node that is none any more means nothing to the next one.
    let is_there = first.is_some_and(|node| node.index() == number);
    let inner = Some(inner.to_owned()).filter(|inner| is_there && !inner.is_empty());
    Ok((first, inner))
}

/// Asks a node what the client asked, as the client, from its own token on.
async fn page(
    nodes: &FrontNodes,
    number: NodeNumber,
    client: &ClientConnection,
    parts: &Parts,
    form: ListForm,
    token: Option<String>,
) -> Result<NodePage, NodeError> {
    let mut asked = parts.clone();
    asked.uri = with_token(&parts.uri, token.as_deref());
    let request = for_node(client, Request::from_parts(asked, body::empty()), None);
    let connection = nodes.connect(number, client, request.headers()).await?;
    let answered = nodes.waited(number, LIST_TIMEOUT, connection.ask(request, MAX_READ));
    let (head, text, connection) = answered.await?;
    connection.keep();
    let status = head.status;
    let next = head.headers.get(NEXT).and_then(|next| next.to_str().ok());
    let next = next.filter(|next| !next.is_empty()).map(str::to_owned);
    let (sandboxes, next) = match status.is_success() {
        false => (Vec::new(), None),
        true => read(&text, form, next).map_err(|error| NodeError::Unreadable {
            node: nodes.name(number),
            source: error.into(),
        })?,
    };
    Ok(NodePage {
        status,
        sandboxes,
        next,
        text,
    })
}

fn read(text: &[u8], form: ListForm, next: Option<String>) -> serde_json::Result<(Vec<Value>, Option<String>)> {
    #[derive(serde::Deserialize)]
    struct NativePage {
        sandboxes: Vec<Value>,
        next: Option<String>,
    }
    match form {
        ListForm::Native => serde_json::from_slice(text).map(|page: NativePage| (page.sandboxes, page.next)),
        ListForm::Named(what) => {
            let mut page: HashMap<String, Value> = serde_json::from_slice(text)?;
            serde_json::from_value(page.remove(what).unwrap_or_default()).map(|found| (found, None))
        }
        ListForm::Whole | ListForm::Pages => serde_json::from_slice(text).map(|sandboxes| (sandboxes, next)),
    }
}

/// An address with another token, or none.
fn with_token(uri: &Uri, token: Option<&str>) -> Uri {
    let others = uri.query().unwrap_or_default().split('&');
    let others = others.filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(TOKEN));
    let mut pairs: Vec<String> = others.map(str::to_owned).collect();
    if let Some(token) = token {
        pairs.push(format!("{TOKEN}={}", utf8_percent_encode(token, NON_ALPHANUMERIC)));
    }
    let query = if pairs.is_empty() {
        String::new()
    } else {
        format!("?{}", pairs.join("&"))
    };
    let path = PathAndQuery::from_maybe_shared(format!("{}{query}", uri.path()));
    path.map_or_else(|_| uri.clone(), Uri::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_with_its_own_token() {
        for (given, token, expected) in [
            ("/v2/sandboxes", None, "/v2/sandboxes"),
            (
                "/v2/sandboxes?limit=3&nextToken=1.a",
                Some("a=b"),
                "/v2/sandboxes?limit=3&nextToken=a%3Db",
            ),
            (
                "http://front:1/sandboxes?nextToken=0.&state=paused",
                None,
                "/sandboxes?state=paused",
            ),
        ] {
            assert_eq!(
                with_token(&given.parse().unwrap(), token).to_string(),
                expected,
                "{given}"
            );
        }
    }

    #[test]
    fn what_names_no_sandbox_is_in_no_list() {
        for (sandbox, id) in [
            (json!({ "sandboxID": "i1" }), Some("i1")),
            (json!({ "id": "i1" }), Some("i1")),
            (json!({ "id": "../x" }), None),
            (json!({ "id": 1 }), None),
            (json!("i1"), None),
        ] {
            assert_eq!(id_of(&sandbox), id, "{sandbox}");
        }
    }

    #[test]
    fn the_forms_of_lists_are_read() {
        let native = read(br#"{"sandboxes": [{"id": "a"}], "next": "n"}"#, ListForm::Native, None).unwrap();
        assert_eq!((native.0.len(), native.1.as_deref()), (1, Some("n")));
        let e2b = read(br#"[{"sandboxID": "a"}]"#, ListForm::Pages, Some("n".to_owned())).unwrap();
        assert_eq!((e2b.0.len(), e2b.1.as_deref()), (1, Some("n")));
        let sessions = ListForm::Named("sessions");
        let named = read(br#"{"sessions": [{"id": "a"}], "more": 1}"#, sessions, None).unwrap();
        assert_eq!((named.0.len(), named.1), (1, None));
        for form in [ListForm::Pages, sessions] {
            assert!(read(b"{}", form, None).is_err());
        }
    }
}
