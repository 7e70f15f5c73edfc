//! What a loop finds, and what it ends by.

use offleash_core::limits::LimitName;

use super::*;

fn killed(limit: LimitName) -> LimitHit {
    LimitHit {
        limit,
        value: 1,
        effect: LimitEffect::Killed,
    }
}

#[test]
fn too_many_changes_are_told_also_when_they_are_found_as_the_command_ends() {
    let ended = || Ending::Command(ExecEnd::Exited { code: 0 });
    let found = |limit: LimitName| {
        let mut found = LoopFindings::default();
        found.end(ended());
        found.hit(killed(limit));
        found.hit(killed(limit));
        (found.ending, found.limits_hit)
    };
    for limit in [LimitName::Workspace, LimitName::Volume, LimitName::VolumeInodes] {
        assert_eq!(found(limit), (Some(ended()), vec![killed(limit)]));
    }
    assert_eq!(found(LimitName::Memory), (Some(ended()), Vec::new()));
}

#[test]
fn the_first_ending_counts() {
    let mut found = LoopFindings::default();
    found.hit(killed(LimitName::Workspace));
    found.end(Ending::Command(ExecEnd::Lost));
    found.hit(killed(LimitName::Memory));
    assert_eq!(found.ending, Some(Ending::Limit(killed(LimitName::Workspace))));
    assert_eq!(found.limits_hit, Vec::new());
}
