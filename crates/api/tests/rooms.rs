//! The arrows between the rooms of this crate, which go one way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

/// Each room, and the rooms above it in this table that it may use: none uses what is below.
const ROOMS: [(&str, &[&str]); 20] = [
    ("journal", &[]),
    ("http", &["journal"]),
    ("telemetry", &["http", "journal"]),
    ("cells", &["http", "journal"]),
    ("commands", &["http", "telemetry"]),
    ("languages", &["commands", "http", "journal"]),
    ("submissions", &[]),
    (
        "control",
        &["commands", "http", "journal", "languages", "submissions", "telemetry"],
    ),
    ("e2b", &["cells", "control", "http", "journal", "telemetry"]),
    ("native", &["cells", "commands", "control", "http", "telemetry"]),
    ("piston", &["commands", "control", "http", "languages"]),
    ("judge0", &["commands", "control", "http", "languages", "submissions"]),
    (
        "daytona",
        &["cells", "commands", "control", "http", "languages", "telemetry"],
    ),
    ("mcp", &["cells", "control", "http", "journal"]),
    ("traffic", &["e2b", "http", "journal"]),
    ("client", &["e2b", "http", "mcp", "traffic"]),
    (
        "routes",
        &[
            "cells", "control", "daytona", "e2b", "http", "judge0", "native", "piston",
        ],
    ),
    ("ui", &["http"]),
    (
        "server",
        &[
            "control",
            "http",
            "journal",
            "languages",
            "mcp",
            "routes",
            "telemetry",
            "traffic",
            "ui",
        ],
    ),
    ("front", &["control", "http", "journal", "server", "traffic", "ui"]),
];

/// The Rust files of a room.
fn files(room: &str) -> Vec<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file = source.join(room).with_extension("rs");
    if file.exists() {
        return vec![file];
    }
    let mut found = Vec::new();
    let mut left = vec![source.join(room)];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => found.push(path),
            }
        }
    }
    found
}

/// The rooms that a line of a program names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).flat_map(|rest| {
        let one = rest.trim_start_matches('{');
        let names = if rest.starts_with('{') {
            one.split(", ").collect()
        } else {
            vec![one]
        };
        names.into_iter().filter_map(|name| {
            name.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
                .next()
        })
    })
}

#[test]
fn rooms_use_the_rooms_that_the_table_says() {
    let is_room = |name: &str| ROOMS.iter().any(|(room, _)| *room == name);
    for (place, (room, may)) in ROOMS.iter().enumerate() {
        for used in *may {
            assert!(
                ROOMS[..place].iter().any(|(above, _)| above == used),
                "`{room}` goes down to `{used}`"
            );
        }
        let mut uses = Vec::new();
        for file in files(room) {
            let text = fs::read_to_string(&file).unwrap();
            for used in text
                .lines()
                .flat_map(named)
                .filter(|name| is_room(name) && name != room)
            {
                assert!(may.contains(&used), "{}: `{room}` uses `{used}`", file.display());
                uses.push(used.to_owned());
            }
        }
        for allowed in *may {
            assert!(
                uses.iter().any(|used| used == allowed),
                "`{room}` does not use `{allowed}` any more"
            );
        }
    }
}

#[test]
fn every_room_is_in_the_table() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(name == "lib" || ROOMS.iter().any(|(room, _)| *room == name), "{name}");
    }
}
