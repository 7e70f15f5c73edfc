//! A workspace with something of every kind, and a run that changes all of it.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{Site, id_of};

/// A workspace with something of every kind.
pub fn furnished() -> Site {
    let site = Site::new();
    site.write("kept", "as it was\n");
    site.write("changed", "one\ntwo\nthree\n");
    site.write("deleted", "away\n");
    site.write("script", "#!/bin/sh\n");
    site.write("full/inner", "inner\n");
    symlink("kept", site.workspace().join("link")).unwrap();
    site
}

/// Changes something of every kind.
pub const CHANGE_ALL: &str = "printf 'one\\nTWO\\nthree\\n' > changed; rm deleted; chmod 755 script; ln -sfn changed link; \
                              mkdir -p new/deep; echo fresh > new/deep/file; rm -r full; echo now a file > full";

/// Runs a script that must succeed, and answers the run.
pub fn run(site: &Site, script: &str) -> String {
    let record = site.record(&[], script);
    assert_eq!(record["outcome"], json!({ "kind": "exited", "code": 0 }), "{record}");
    id_of(&record)
}

/// Path and kind of every change of a run.
pub fn changes_of(site: &Site, run: &str) -> Vec<(String, String)> {
    let changes: Value = serde_json::from_str(&site.succeed(["diff", "--json", run])).unwrap();
    let text = |change: &Value, key: &str| change[key].as_str().unwrap().to_owned();
    changes
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (text(change, "path"), text(change, "kind")))
        .collect()
}
