//! Which side of a volume and its bucket has changed, and what follows from that. Pure.

use offleash_core::bucket::SyncChoice;

/// What a side is, compared with what both had in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It is not there.
    Absent,
    /// It is what it was.
    Same,
    /// It is something else than it was, or there was nothing.
    Other,
}

/// What is to be done with an object and its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Both are what they were.
    Same,
    /// Both are gone.
    Forget,
    /// The object goes into the volume.
    Fetch,
    /// The file goes into the bucket.
    Send,
    /// The file is removed: its object is gone.
    RemoveFile,
    /// The object is removed: its file is gone.
    RemoveObject,
    /// One is gone, and nobody asked to remove the other.
    Keep,
    /// It has changed on a side that nothing is taken from.
    Wait,
    /// Both have changed. They may have become the same; if not, each stays.
    Compare,
    /// One has changed and the other is gone. Each stays.
    Conflict,
}

/// What follows from both sides; `was_common` says that they had the object in common.
pub(crate) fn step(was_common: bool, object: Side, file: Side, choice: SyncChoice) -> Step {
    let (pulls, pushes) = (choice.pulls(), choice.pushes());
    let ahead = |goes: bool, step| if goes { step } else { Step::Wait };
    let gone = |goes: bool, step| match (goes, choice.delete) {
        (true, true) => step,
        (true, false) => Step::Keep,
        (false, _) => Step::Wait,
    };
    match (object, file) {
        (Side::Absent, Side::Absent) => Step::Forget,
        (Side::Same, Side::Same) => Step::Same,
        (Side::Other, Side::Same) => ahead(pulls, Step::Fetch),
        (Side::Same, Side::Other) => ahead(pushes, Step::Send),
        (Side::Other, Side::Absent) if !was_common => ahead(pulls, Step::Fetch),
        (Side::Absent, Side::Other) if !was_common => ahead(pushes, Step::Send),
        (Side::Absent, Side::Same) => gone(pulls, Step::RemoveFile),
        (Side::Same, Side::Absent) => gone(pushes, Step::RemoveObject),
        (Side::Other, Side::Other) => Step::Compare,
        // Somebody has to say which counts: what is new, or that it is gone.
        (Side::Other, Side::Absent) if choice.overwrite && pulls => Step::Fetch,
        (Side::Absent, Side::Other) if choice.overwrite && pushes => Step::Send,
        (Side::Other, Side::Absent) if choice.overwrite && choice.delete => Step::RemoveObject,
        (Side::Absent, Side::Other) if choice.overwrite && choice.delete => Step::RemoveFile,
        (Side::Other, Side::Absent) | (Side::Absent, Side::Other) => Step::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use offleash_core::bucket::SyncDirection;

    use super::*;

    const SIDES: [Side; 3] = [Side::Absent, Side::Same, Side::Other];

    fn choice(direction: SyncDirection, delete: bool, overwrite: bool) -> SyncChoice {
        SyncChoice {
            direction,
            delete,
            overwrite,
        }
    }

    #[test]
    fn what_has_changed_on_one_side_goes_to_the_other() {
        use Side::{Absent, Other, Same};
        use SyncDirection::{Both, Pull, Push};
        for (was_common, object, file, [both, pull, push]) in [
            (true, Same, Same, [Step::Same; 3]),
            (true, Absent, Absent, [Step::Forget; 3]),
            (true, Other, Same, [Step::Fetch, Step::Fetch, Step::Wait]),
            (true, Same, Other, [Step::Send, Step::Wait, Step::Send]),
            (false, Other, Absent, [Step::Fetch, Step::Fetch, Step::Wait]),
            (false, Absent, Other, [Step::Send, Step::Wait, Step::Send]),
            (true, Absent, Same, [Step::Keep, Step::Keep, Step::Wait]),
            (true, Same, Absent, [Step::Keep, Step::Wait, Step::Keep]),
            (true, Other, Other, [Step::Compare; 3]),
            (false, Other, Other, [Step::Compare; 3]),
            (true, Other, Absent, [Step::Conflict; 3]),
            (true, Absent, Other, [Step::Conflict; 3]),
        ] {
            for (direction, expected) in [(Both, both), (Pull, pull), (Push, push)] {
                let found = step(was_common, object, file, choice(direction, false, false));
                assert_eq!(found, expected, "{was_common} {object:?} {file:?} {direction:?}");
            }
        }
        assert_eq!(step(true, Absent, Same, choice(Pull, true, false)), Step::RemoveFile);
        assert_eq!(step(true, Same, Absent, choice(Push, true, false)), Step::RemoveObject);
        assert_eq!(step(true, Absent, Same, choice(Push, true, false)), Step::Wait);
    }

    #[test]
    fn nothing_is_removed_unless_asked_and_nothing_changed_without_its_direction() {
        for was_common in [false, true] {
            for object in SIDES {
                for file in SIDES {
                    for direction in [SyncDirection::Both, SyncDirection::Pull, SyncDirection::Push] {
                        for (delete, overwrite) in [(false, false), (true, false), (false, true), (true, true)] {
                            let choice = choice(direction, delete, overwrite);
                            let found = step(was_common, object, file, choice);
                            let named = format!("{was_common} {object:?} {file:?} {choice:?}: {found:?}");
                            match found {
                                Step::RemoveFile => assert!(delete && (choice.pulls() || overwrite), "{named}"),
                                Step::RemoveObject => {
                                    assert!(delete && (choice.pushes() || overwrite), "{named}")
                                }
                                Step::Fetch => assert!(choice.pulls() && object == Side::Other, "{named}"),
                                Step::Send => assert!(choice.pushes() && file == Side::Other, "{named}"),
                                _ => {}
                            }
                            // What has changed is not replaced or removed without being asked to.
                            if !overwrite {
                                assert!(found != Step::Fetch || file != Side::Other, "{named}");
                                assert!(found != Step::Send || object != Side::Other, "{named}");
                                assert!(found != Step::RemoveFile || file == Side::Same, "{named}");
                                assert!(found != Step::RemoveObject || object == Side::Same, "{named}");
                            }
                        }
                    }
                }
            }
        }
    }
}
