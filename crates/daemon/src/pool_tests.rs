//! Tests of the warm pool's queues.

use std::collections::BTreeMap;

use super::*;
use crate::config::DaemonConfig;
use crate::config::TemplatePool;
use crate::random;
use crate::specification::Specification;

fn pool(min: usize, max: usize) -> ReadyPool {
    pool_with(min, max, |_| {})
}

fn pool_with(min: usize, max: usize, change: impl FnOnce(&mut PoolConfig)) -> ReadyPool {
    let mut config = PoolConfig {
        min,
        max,
        ..PoolConfig::default()
    };
    change(&mut config);
    ReadyPool::new(config)
}

fn base() -> TemplateOrigin {
    TemplateOrigin::base()
}

fn built(template: &str, build: &str) -> TemplateOrigin {
    TemplateOrigin {
        template: template.to_owned(),
        build: Some(build.to_owned()),
    }
}

fn entry(origin: &TemplateOrigin) -> Arc<SandboxEntry> {
    let id = random::sandbox_id().unwrap();
    let specification = Specification::usual(&DaemonConfig::default());
    let row = specification.new_row(id.as_str(), &origin.template);
    Arc::new(SandboxEntry::new(id, row, specification))
}

fn ask(pool: &ReadyPool, origin: &TemplateOrigin, times: usize) {
    (0..times).for_each(|_| pool.note_demand(origin));
}

/// Makes all that is lacking; how many of each template that were.
fn fill(pool: &ReadyPool) -> BTreeMap<String, usize> {
    let mut made = BTreeMap::new();
    while let Some(origin) = pool.next() {
        assert!(pool.finish(&origin, PoolOutcome::Ready(entry(&origin), 1)).is_none());
        *made.entry(origin.template).or_default() += 1;
    }
    made
}

fn waiting(pool: &ReadyPool, template: &str) -> usize {
    let all = pool.waiting();
    all.iter()
        .find(|(name, _)| name == template)
        .map_or(0, |(_, count)| *count)
}

#[test]
fn its_size_follows_demand_between_the_bounds() {
    let pool = pool(2, 10);
    assert_eq!(fill(&pool), BTreeMap::from([("base".to_owned(), 2)]));
    for (creates, expected) in [(1, 2), (4, 5), (3, 8), (100, 10)] {
        ask(&pool, &base(), creates);
        fill(&pool);
        assert_eq!(waiting(&pool, "base"), expected);
    }
    pool.lock().queues.get_mut("base").unwrap().demand *= 0.01;
    assert_eq!(pool.surplus().len(), 8);
    assert_eq!(waiting(&pool, "base"), 2);
}

#[test]
fn each_template_has_a_queue_that_comes_and_goes_with_demand() {
    let pool = pool(0, 10);
    let one = built("one", "1");
    assert!(fill(&pool).is_empty());
    ask(&pool, &one, 3);
    assert_eq!(fill(&pool), BTreeMap::from([("one".to_owned(), 3)]));
    assert!(pool.take(&base()).is_none());
    assert!(pool.take(&built("two", "1")).is_none());
    assert!(pool.take(&one).is_some());
    assert_eq!(fill(&pool), BTreeMap::from([("one".to_owned(), 1)]));
    for _ in 0..600 {
        pool.age();
    }
    assert_eq!(pool.surplus().len(), 3);
    pool.age();
    assert_eq!(pool.templates(), [""; 0], "a queue that is not needed is gone");
}

#[test]
fn demand_for_many_templates_stays_below_the_bound_over_all_and_is_served_fairly() {
    let pool = pool_with(2, 32, |config| config.max_total = Some(10));
    ask(&pool, &base(), 1000);
    fill(&pool);
    assert_eq!(waiting(&pool, "base"), 10);
    let others: Vec<TemplateOrigin> = (0..4).map(|number| built(&format!("t{number}"), "1")).collect();
    for other in &others {
        ask(&pool, other, 1000);
    }
    // What waits gives way before others are made.
    assert!(fill(&pool).is_empty());
    assert_eq!(pool.surplus().len(), 8);
    let made = fill(&pool);
    assert_eq!(made.values().sum::<usize>(), 8);
    assert!(made.values().all(|count| *count == 2), "{made:?}");
    // One that is asked for little has that little, however much the others are.
    let small = built("small", "1");
    ask(&pool, &small, 1);
    pool.surplus();
    fill(&pool);
    assert_eq!(waiting(&pool, "small"), 1);
    // More templates than places.
    (0..100).for_each(|number| ask(&pool, &built(&format!("m{number}"), "1"), 5));
    pool.surplus();
    fill(&pool);
    let all: usize = pool.waiting().iter().map(|(_, count)| count).sum();
    assert!(all <= 10, "{all}");
    assert_eq!(waiting(&pool, "base"), 2, "the least of a template comes first");
}

#[test]
fn those_that_are_being_made_count() {
    let pool = pool(0, 3);
    ask(&pool, &base(), 9);
    let begun: Vec<TemplateOrigin> = std::iter::from_fn(|| pool.next()).collect();
    assert_eq!(begun.len(), 3);
    assert!(pool.finish(&base(), PoolOutcome::Failed).is_none());
    assert!(pool.next().is_none(), "nothing is made just after a failure");
    // Another template is not held up by that.
    let other = built("other", "1");
    ask(&pool, &other, 1);
    assert_eq!(pool.next(), Some(other));
}

#[test]
fn one_of_another_build_is_never_handed_out() {
    let pool = pool(0, 10);
    let (old, new) = (built("one", "1"), built("one", "2"));
    ask(&pool, &old, 2);
    fill(&pool);
    assert!(pool.take(&new).is_none(), "it changed, and nobody has noticed yet");
    let late = {
        ask(&pool, &old, 1);
        pool.next().unwrap()
    };
    pool.note_current(&new);
    assert!(pool.take(&old).is_none());
    assert!(pool.finish(&late, PoolOutcome::Ready(entry(&late), 1)).is_some());
    assert_eq!(pool.surplus().len(), 2);
    assert_eq!(fill(&pool)["one"], 3, "demand is for the template, not for a build");
    assert!(pool.take(&new).is_some());
    // One that found the new build when the old one was wanted.
    ask(&pool, &new, 1);
    let begun = pool.next().unwrap();
    assert!(pool.finish(&begun, PoolOutcome::Outdated(entry(&begun))).is_some());
    pool.note_gone("one");
    assert!(pool.take(&new).is_none());
    assert_eq!(pool.surplus().len(), 2);
}

#[test]
fn nothing_is_made_of_a_template_that_is_being_removed() {
    let pool = pool(0, 10);
    let one = built("one", "1");
    ask(&pool, &one, 2);
    fill(&pool);
    let (closed, members) = pool.close("one");
    assert_eq!(members.len(), 2);
    ask(&pool, &one, 2);
    pool.note_current(&one);
    assert!(fill(&pool).is_empty() && pool.take(&one).is_none());
    drop(closed);
    ask(&pool, &one, 2);
    assert_eq!(fill(&pool)["one"], 2);
}

#[test]
fn a_template_can_have_bounds_of_its_own() {
    let own = |min, max| TemplatePool {
        min: Some(min),
        max: Some(max),
        ..TemplatePool::default()
    };
    let pool = pool_with(1, 8, |config| {
        config.templates.insert("one".to_owned(), own(2, 3));
        config.templates.insert("never".to_owned(), own(0, 0));
    });
    assert_eq!(pool.templates(), ["one"], "looked for though nobody has asked");
    pool.note_current(&built("one", "1"));
    assert_eq!(fill(&pool)["one"], 2);
    ask(&pool, &built("one", "1"), 100);
    ask(&pool, &built("never", "1"), 100);
    assert_eq!(fill(&pool), BTreeMap::from([("one".to_owned(), 1)]));
}

#[test]
fn half_is_given_up_at_a_time() {
    let pool = pool(5, 10);
    ask(&pool, &built("one", "1"), 2);
    fill(&pool);
    assert_eq!(pool.give_up_half().len(), 4);
    assert_eq!((waiting(&pool, "base"), waiting(&pool, "one")), (2, 1));
    assert_eq!([2, 1, 0], [(); 3].map(|()| pool.give_up_half().len()));
}

#[test]
fn members_are_made_when_none_was_handed_out_for_a_moment_and_in_a_long_row_all_the_same() {
    let mut contents = PoolContents::default();
    let start = Instant::now();
    let end = |contents: &PoolContents| contents.spell.unwrap().end() - start;
    let at = |ms| start + Duration::from_millis(ms);
    contents.note_taken(start);
    assert_eq!(end(&contents), QUIET_TIME);
    contents.note_taken(at(20));
    assert_eq!(end(&contents), Duration::from_millis(20) + QUIET_TIME);
    (1..100).for_each(|number| contents.note_taken(at(20 + number * 10)));
    assert_eq!(end(&contents), MAX_WAIT);
    // Another row.
    contents.note_taken(at(5000));
    assert_eq!(end(&contents), Duration::from_millis(5000) + QUIET_TIME);
}

#[test]
fn an_empty_one_is_filled_without_waiting() {
    let pool = pool(2, 10);
    assert!(pool.take(&base()).is_none());
    assert_eq!(pool.wait(), Duration::ZERO);
}

#[test]
fn one_that_is_switched_off_is_empty() {
    let pool = pool(2, 0);
    ask(&pool, &base(), 1);
    assert!(pool.is_off() && pool.next().is_none());
    assert!(pool.take(&base()).is_none());
}

#[test]
fn those_that_are_being_made_are_expected_to_hold_what_the_one_before_holds() {
    let pool = pool(0, 10);
    ask(&pool, &base(), 3);
    assert_eq!(pool.expected_mib(), 0);
    let first = pool.next().unwrap();
    assert_eq!(pool.expected_mib(), FIRST_MIB);
    pool.finish(&first, PoolOutcome::Ready(entry(&first), 7));
    let _two = [(); 2].map(|()| pool.next().unwrap());
    assert_eq!(pool.expected_mib(), 14);
    pool.finish(&first, PoolOutcome::Deferred);
    assert_eq!((pool.expected_mib(), pool.next()), (7, Some(base())));
}

#[test]
fn interpreters_are_made_ready_as_the_recipe_or_the_owner_says() {
    use offleash_core::template::Recipe;
    let names = |own: TemplatePool, recipe: Option<&Recipe>| {
        let mut config = PoolConfig::default();
        config.templates.insert("one".to_owned(), own);
        let imports = config.ready_imports("one", recipe)?;
        Some(
            imports
                .iter()
                .map(|module| module.to_string())
                .collect::<Vec<_>>()
                .join(" "),
        )
    };
    let own = |interpreter, imports: Option<&str>| TemplatePool {
        interpreter,
        imports: imports.map(|name| vec![name.parse().unwrap()]),
        ..TemplatePool::default()
    };
    let (plain, usual) = (Recipe::default(), "numpy pandas matplotlib.pyplot".to_owned());
    let rich = Recipe::code_interpreter();
    for (own, recipe, expected) in [
        (own(None, None), Some(&plain), None),
        (own(None, Some("polars")), Some(&plain), None),
        (own(None, None), Some(&rich), Some(usual.clone())),
        (own(None, Some("polars")), Some(&rich), Some("polars".to_owned())),
        (own(Some(false), None), Some(&rich), None),
        (own(Some(true), None), Some(&plain), Some(usual)),
        (own(Some(true), Some("json")), None, Some("json".to_owned())),
    ] {
        assert_eq!(names(own.clone(), recipe), expected, "{own:?}");
    }
}
