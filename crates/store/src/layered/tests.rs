use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::testing::{TestScratch, chmod, opaque, whiteout, write};
use crate::unified::DiffForm;

/// A stack of the directories `upper`, `template` and `base` in a scratch, at `target`.
fn stack(scratch: &TestScratch, target: &str) -> LayerStack {
    let path = |name: &str| {
        let path = scratch.base.join(name);
        fs::create_dir_all(&path).unwrap();
        Text::from(path)
    };
    LayerStack {
        target: Text::from(target),
        upper: path("upper"),
        lowers: vec![path("template"), path("base")],
    }
}

fn told(stacks: &[LayerStack]) -> Vec<String> {
    let found = layered_changes(stacks).unwrap();
    assert!(!found.has_more && found.unreadable == 0, "{found:?}");
    let line = |change: &LayeredChange| {
        let replaced = if change.is_replaced { " (replaced)" } else { "" };
        format!("{:?} {}{replaced}", change.kind, change.path.display())
    };
    found.changes.iter().map(line).collect()
}

#[test]
fn changes_are_told_against_whichever_layer_has_what_was_there_before() {
    let scratch = TestScratch::new();
    let stack = stack(&scratch, "/");
    let at = |path: &str| scratch.base.join(path);
    for path in [
        "base/etc/a",
        "base/etc/b",
        "base/etc/same",
        "base/dir/x",
        "base/gone/x",
        "base/hidden",
        "base/of/t",
    ] {
        write(at(path), "old");
    }
    write(at("template/etc/b"), "of the template");
    whiteout(at("template/hidden"));
    write(at("template/of/new"), "x");
    opaque(at("template/of"));
    fs::create_dir_all(at("upper/etc")).unwrap();
    write(at("upper/etc/a"), "new");
    write(at("upper/etc/b"), "of the template");
    write(at("upper/etc/same"), "old");
    chmod(at("upper/etc/same"), 0o755);
    write(at("upper/etc/added"), "1");
    write(at("upper/hidden"), "again");
    write(at("upper/of/t"), "hidden by the template");
    whiteout(at("upper/of/new"));
    whiteout(at("upper/gone"));
    whiteout(at("upper/nothing"));
    write(at("upper/dir/x"), "new");
    opaque(at("upper/dir"));
    symlink("etc/a", at("upper/link")).unwrap();
    assert_eq!(
        told(&[stack]),
        [
            "Modified /dir (replaced)",
            "Added /dir/x",
            "Modified /etc/a",
            "Added /etc/added",
            "ModeChanged /etc/same",
            "Deleted /gone",
            "Added /hidden",
            "Added /link",
            "Deleted /of/new",
            "Added /of/t",
        ]
    );
}

#[test]
fn a_patch_is_of_the_layer_that_holds_the_path() {
    let scratch = TestScratch::new();
    let root = stack(&scratch, "/");
    let usr = scratch.base.join("usr");
    for name in ["upper", "base"] {
        fs::create_dir_all(usr.join(name)).unwrap();
    }
    let inner = LayerStack {
        target: Text::from("/usr"),
        upper: Text::from(usr.join("upper")),
        lowers: vec![Text::from(usr.join("base"))],
    };
    write(usr.join("base/f"), "one\ntwo\n");
    write(usr.join("upper/f"), "one\nthree\n");
    write(scratch.base.join("upper/usr/f"), "what nobody sees");
    let stacks = [root, inner];
    let patch = layered_patch(&stacks, Path::new("/usr/f")).unwrap().unwrap();
    assert_eq!(patch.form, DiffForm::Text);
    let text = String::from_utf8(patch.bytes).unwrap();
    assert!(text.contains("-two\n") && text.contains("+three\n"), "{text}");
    for path in ["/usr/other", "relative", "/etc/passwd"] {
        assert_eq!(layered_patch(&stacks, Path::new(path)).unwrap(), None, "{path}");
    }
}

#[test]
fn nothing_that_a_sandbox_made_leads_out_of_its_layer() {
    let scratch = TestScratch::new();
    let stack = stack(&scratch, "/");
    let secret = scratch.host("secret");
    write(&secret, "of the host");
    let upper = scratch.base.join("upper");
    symlink(&scratch.workspace, upper.join("out")).unwrap();
    symlink(&secret, upper.join("file")).unwrap();
    fs::create_dir_all(scratch.base.join("base/file")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, upper.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
    let stacks = [stack];
    assert_eq!(told(&stacks), ["Added /fifo", "TypeChanged /file", "Added /out"]);
    for path in ["/out/secret", "/../secret", "/file/x"] {
        let patch = layered_patch(&stacks, Path::new(path));
        assert!(!matches!(&patch, Ok(Some(_))), "{path}: {patch:?}");
    }
    let patch = layered_patch(&stacks, Path::new("/file")).unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&patch.bytes).contains("of the host"));
    let fifo = layered_patch(&stacks, Path::new("/fifo")).unwrap().unwrap();
    assert_eq!(fifo.form, DiffForm::Metadata);
}

#[test]
fn as_many_are_told_as_fit() {
    let scratch = TestScratch::new();
    let stack = stack(&scratch, "/");
    for number in 0..MAX_LAYER_CHANGES + 5 {
        fs::File::create(scratch.base.join(format!("upper/{number}"))).unwrap();
    }
    let found = layered_changes(&[stack]).unwrap();
    assert!(found.has_more && found.changes.len() == MAX_LAYER_CHANGES);
}
