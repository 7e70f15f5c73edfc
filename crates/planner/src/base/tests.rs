use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::system::user;

fn state() -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).unwrap();
    state
}

fn templates(state: &Path) -> Vec<PathBuf> {
    fs::read_dir(state.join("base"))
        .unwrap()
        .map(|found| found.unwrap().path())
        .filter(|path| path.is_dir())
        .collect()
}

#[test]
fn a_template_is_made_once_and_stays_while_it_is_used() {
    let state = state();
    let first = ReadyBase::ready(state.path(), &[user()]).unwrap();
    let again = ReadyBase::ready(state.path(), &[user()]).unwrap();
    assert_eq!(first.directory, again.directory);
    let other = ReadyBase::ready(state.path(), &[user(), crate::system::superuser()]).unwrap();
    assert_ne!(first.directory, other.directory);
    assert_eq!(templates(state.path()).len(), 2, "the first is in use");
    drop((first, again));
    remove_others(&state.path().join("base"), &other.directory);
    assert_eq!(templates(state.path()), std::slice::from_ref(&other.directory));
}

#[test]
fn what_a_maker_left_goes_with_the_next_template_and_what_one_makes_stays() {
    let state = state();
    let base = state.path().join("base");
    make_private(&base).unwrap();
    let [left, made_now] = [".new-1-1", ".new-1-2"].map(|name| base.join(name));
    for new in [&left, &made_now] {
        fs::create_dir_all(new.join("root/etc")).unwrap();
    }
    let maker = hold(&made_now).unwrap();
    let template = ReadyBase::ready(state.path(), &[user()]).unwrap();
    assert!(maker.is_some());
    let mut there = templates(state.path());
    there.sort();
    assert_eq!(there, [made_now, template.directory.clone()]);
}

#[test]
fn several_at_once_get_one_template() {
    let state = state();
    let path = state.path();
    let made: Vec<_> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| ReadyBase::ready(path, &[user()]).unwrap()))
            .collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert!(made.iter().all(|template| template.directory == made[0].directory));
    assert_eq!(templates(path), std::slice::from_ref(&made[0].directory));
}

#[test]
fn one_makes_a_template_at_a_time() {
    let state = state();
    let first = turn_to_make(state.path()).unwrap();
    assert!(first.is_some());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let turn = turn_to_make(state.path()).unwrap();
            (turn.is_some(), ended.load(Ordering::SeqCst))
        });
        ended.store(true, Ordering::SeqCst);
        drop(first);
        assert_eq!(second.join().unwrap(), (true, true));
    });
}

#[test]
fn a_layer_is_made_ready_again_without_losing_what_is_in_it() {
    let state = state();
    let layer = state.path().join("layer");
    fs::create_dir(&layer).unwrap();
    let template = ReadyBase::ready(state.path(), &[user()]).unwrap();
    let parts = template.over(&layer, None, None).unwrap().parts;
    assert_eq!(parts[0].target, Path::new("/"));
    let upper = parts[0].layer.join("upper");
    fs::write(upper.join("kept"), "x").unwrap();
    fs::create_dir_all(parts[0].layer.join("work/work/incompat/volatile")).unwrap();
    assert_eq!(template.over(&layer, None, None).unwrap().parts, parts);
    assert!(upper.join("kept").exists());
    assert_eq!(fs::read_dir(parts[0].layer.join("work")).unwrap().count(), 0);
    assert_eq!(fs::metadata(&upper).unwrap().mode() & 0o7777, 0o755);
    remove_layer(&layer).unwrap();
    assert!(!layer.exists());
    remove_layer(&layer).unwrap();
}

#[test]
fn layers_of_sandboxes_that_are_gone_are_removed_when_the_next_one_ends() {
    let state = state();
    let id = |text: &str| text.parse().unwrap();
    let first = ScratchLayer::new(state.path(), &id("r1")).unwrap();
    let (kept, path) = (
        ScratchLayer::new(state.path(), &id("r2")).unwrap(),
        first.path().to_owned(),
    );
    assert!(path.exists());
    fs::write(path.join("left"), "").unwrap();
    // As by a crash: the lock goes and the directory stays.
    drop(first);
    fs::create_dir(&path).unwrap();
    let third = ScratchLayer::new(state.path(), &id("r3")).unwrap();
    third.remove().unwrap();
    assert!(!path.exists() && kept.path().exists());
    kept.remove().unwrap();
    assert_eq!(fs::read_dir(state.path().join("scratch")).unwrap().count(), 0);
}

#[test]
fn parts_have_names_of_their_own() {
    for (target, name) in [("/", "root"), ("/usr", "usr"), ("/var/lib/dpkg", "var-lib-dpkg")] {
        assert_eq!(name_of(Path::new(target)), name);
    }
}
