//! The use of the network in the audit log: whatever was made of it, all of it is there.
//!
//! A line of the log has a largest size, beyond which only a hash is kept. A sandbox could make enough connections to
//! have its own record dropped like that; so a large one goes into lines of its own, before that of the run.

use offleash_core::record::NetworkUse;
use serde_json::{Map, Value, json};

/// What stands in the line of the run itself, in bytes.
const INLINE: usize = 64 * 1024;
/// What goes into each further line. Only a single thing that is larger, which none is, makes one longer.
const PIECE: usize = 64 * 1024;

/// What the line of the run holds, and the further lines before it.
pub(super) struct Lines {
    pub(super) inline: Value,
    pub(super) further: Vec<Value>,
}

/// Divides the use of the network among lines.
pub(super) fn divide(network: Option<&NetworkUse>) -> Lines {
    let whole = json!(network);
    let Value::Object(mut fields) = whole else {
        return Lines {
            inline: whole,
            further: Vec::new(),
        };
    };
    if fields.values().map(size).sum::<usize>() <= INLINE {
        return Lines {
            inline: Value::Object(fields),
            further: Vec::new(),
        };
    }
    let connections = match fields.remove("connections") {
        Some(Value::Array(connections)) => connections,
        _ => Vec::new(),
    };
    let names = match fields.remove("refused_names") {
        Some(Value::Object(names)) => names,
        _ => Map::new(),
    };
    let lists = ["inbound", "secrets"].map(|name| match fields.remove(name) {
        Some(Value::Array(list)) => (name, list),
        _ => (name, Vec::new()),
    });
    let mut further: Vec<Value> = gathered(connections.into_iter().flat_map(parts), size)
        .into_iter()
        .map(|connections| json!({ "connections": connections }))
        .collect();
    let names = gathered(names, |(name, times)| name.len() + size(times));
    further.extend(names.into_iter().map(|names| {
        let names: Map<String, Value> = names.into_iter().collect();
        json!({ "refused_names": names })
    }));
    for (name, list) in lists {
        let groups = gathered(list, size);
        further.extend(groups.into_iter().map(|group| json!({ name: group })));
    }
    fields.insert("lines".to_owned(), json!(further.len()));
    Lines {
        inline: Value::Object(fields),
        further,
    }
}

/// A connection, divided where its requests do not fit one line; each part has its own share of them.
fn parts(connection: Value) -> Vec<Value> {
    let Value::Object(mut fields) = connection else {
        return vec![connection];
    };
    let requests = match fields.remove("requests") {
        Some(Value::Array(requests)) => requests,
        _ => Vec::new(),
    };
    let mut shares = gathered(requests, size);
    if shares.is_empty() {
        shares.push(Vec::new());
    }
    let part = |requests| {
        let mut fields = fields.clone();
        fields.insert("requests".to_owned(), Value::Array(requests));
        Value::Object(fields)
    };
    shares.into_iter().map(part).collect()
}

/// Everything in order, in groups that are no larger than a piece.
fn gathered<T>(all: impl IntoIterator<Item = T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut left = 0;
    for one in all {
        let needed = size(&one);
        match groups.last_mut() {
            Some(group) if needed <= left => group.push(one),
            _ => {
                groups.push(vec![one]);
                left = PIECE;
            }
        }
        left = left.saturating_sub(needed);
    }
    groups
}

/// How many bytes it takes in a line.
fn size(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the store keeps of a line (`MAX_DATA`).
    const MAX_SIZE: usize = 256 * 1024;

    fn network(connections: usize, requests: usize, names: usize) -> NetworkUse {
        let request = json!({
            "method": "GET", "path": "x".repeat(256), "status": 200, "verdict": "allowed", "reason": null, "rule": null,
            "secrets": [], "sent_bytes": 0, "received_bytes": 0, "duration_ms": 0,
        });
        let connection = |number: usize| {
            json!({
                "at": "2025-01-02T03:04:05.678Z", "times": 1, "host": format!("n{number}.example"), "port": 443, "address": null,
                "verdict": "refused", "reason": "no rule allows it", "rule": null, "asked": null, "sent_bytes": 0,
                "received_bytes": 0, "duration_ms": 0, "requests": vec![request.clone(); requests], "more_requests": 0,
            })
        };
        let all: Vec<Value> = (0..connections).map(connection).collect();
        NetworkUse {
            connections: serde_json::from_value(json!(all)).unwrap(),
            more_connections: 3,
            refused_names: (0..names)
                .map(|number| (format!("{number}{}", "x".repeat(250)), 1))
                .collect(),
            more_refused_names: 4,
            ..NetworkUse::default()
        }
    }

    #[test]
    fn what_fits_stands_in_the_line_of_the_run() {
        for network in [None, Some(NetworkUse::default()), Some(network(20, 2, 3))] {
            let lines = divide(network.as_ref());
            assert_eq!(lines.inline, json!(network));
            assert!(lines.further.is_empty());
        }
    }

    #[test]
    fn lists_that_do_not_fit_are_in_further_lines() {
        let mut network = network(1, 1, 1);
        let refused = |number: usize| {
            json!({
                "secret": "KEY", "host": format!("{number}.example"), "port": 80, "verdict": "refused",
                "reason": "x".repeat(500), "requests": 1,
            })
        };
        let secrets: Vec<Value> = (0..1000).map(refused).collect();
        network.secrets = serde_json::from_value(json!(secrets)).unwrap();
        let came = |number: usize| {
            json!({
                "at": "2025-01-02T03:04:05.678Z", "peer": format!("127.0.0.1:{number}"), "host_address": "127.0.0.1:80",
                "port": 80, "verdict": "allowed", "reason": null, "sent_bytes": 0, "received_bytes": 0,
                "duration_ms": 0,
            })
        };
        let inbound: Vec<Value> = (0..5000).map(came).collect();
        network.inbound = serde_json::from_value(json!(inbound)).unwrap();
        let lines = divide(Some(&network));
        assert!(size(&lines.inline) <= MAX_SIZE);
        for (name, all) in [("secrets", secrets), ("inbound", inbound)] {
            assert!(lines.inline.get(name).is_none());
            let told = lines.further.iter().filter_map(|line| line[name].as_array());
            assert_eq!(told.flatten().collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
        }
        assert!(lines.further.iter().all(|line| size(line) <= MAX_SIZE));
    }

    #[test]
    fn what_does_not_fit_is_in_further_lines_and_nothing_is_lost() {
        for (connections, requests, names) in [(1500, 0, 0), (3, 400, 0), (0, 0, 600), (200, 3, 600), (1, 300, 1)] {
            let network = network(connections, requests, names);
            let lines = divide(Some(&network));
            assert_eq!(lines.inline["more_connections"], 3);
            assert_eq!(lines.inline["more_refused_names"], 4);
            assert_eq!(lines.inline["lines"], lines.further.len());
            assert!(lines.further.len() > 1);
            let mut found = (Vec::<Value>::new(), 0, 0);
            for line in &lines.further {
                assert!(size(line) < MAX_SIZE, "{}", size(line));
                for connection in line["connections"].as_array().into_iter().flatten() {
                    found.1 += connection["requests"].as_array().unwrap().len();
                    if found.0.last() != Some(&connection["host"]) {
                        found.0.push(connection["host"].clone());
                    }
                }
                found.2 += line["refused_names"].as_object().map_or(0, Map::len);
            }
            let hosts: Vec<Value> = network.connections.iter().map(|seen| json!(seen.host)).collect();
            assert_eq!(found.0, hosts);
            assert_eq!((found.1, found.2), (connections * requests, names));
        }
    }
}
