use proptest::prelude::*;

use super::*;

#[test]
fn the_table_has_every_limit_in_its_place() {
    for (index, name) in LimitName::ALL.into_iter().enumerate() {
        assert_eq!(LIMITS[index].name, name);
        assert_eq!(name.name().parse(), Ok(name));
        assert_eq!(name.flag().parse(), Ok(name));
        assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{name}\""));
    }
    assert!("ram".parse::<LimitName>().is_err());
    for name in [LimitName::Volume, LimitName::VolumeInodes] {
        assert_eq!(name.row().name, name);
        assert!(name.name().parse::<LimitName>().is_err(), "it is none of a sandbox");
        assert_eq!(
            Limits::default().set(name, "1G"),
            Err(LimitError::OfVolume { limit: name })
        );
    }
}

#[test]
fn every_default_can_be_written_down() {
    for name in LimitName::ALL {
        let mut limits = Limits::default();
        limits.set(name, &name.default_text()).unwrap();
        assert_eq!(limits, Limits::default(), "{name}");
    }
    assert_eq!(LimitName::Memory.default_text(), "4G");
    assert_eq!(LimitName::Cpus.default_text(), "unlimited");
}

#[test]
fn values_that_nothing_can_live_with_are_refused() {
    for (name, text, reason) in [
        (
            LimitName::Memory,
            "0",
            "limit `memory`: `0` is less than 8M: with less, not even the sandbox's own first process starts",
        ),
        (
            LimitName::Pids,
            "-1",
            "limit `pids`: `-1` is not a whole number: expected a count such as 512, or `unlimited`",
        ),
        (
            LimitName::OpenFiles,
            "18446744073709551615",
            "limit `open_files`: `18446744073709551615` is more than 1048576, the most that can be held; \
             `unlimited` lifts the limit",
        ),
        (
            LimitName::Tmp,
            "0",
            "limit `tmp`: `0` is less than 64K: to tmpfs a size of 0 means no limit",
        ),
        (
            LimitName::Memory,
            "1e9G",
            "limit `memory`: `e9G` in `1e9G` is not a unit: expected a size such as 512M, 1.5G or 4096 (units K, M, \
             G, T)",
        ),
    ] {
        let mut limits = Limits::default();
        assert_eq!(limits.set(name, text).unwrap_err().to_string(), reason);
        assert_eq!(limits, Limits::default());
    }
    for name in LimitName::ALL {
        let zero_is_fine = name == LimitName::Swap;
        assert_eq!(Limits::default().set(name, "0").is_ok(), zero_is_fine, "{name}");
        for text in ["", "-1", "+1", "NaN", "18446744073709551616", " 1", "none", "Unlimited"] {
            assert!(Limits::default().set(name, text).is_err(), "{name} {text:?}");
        }
    }
}

proptest! {
    #[test]
    fn what_is_set_is_what_is_got(index in 0..LimitName::ALL.len(), value: u64) {
        let row = &LIMITS[index];
        let value = row.least + value % (row.most - row.least + 1);
        let mut limits = Limits::default();
        limits.set(row.name, &row.show(value)).unwrap();
        prop_assert_eq!(limits.get(row.name), Some(value));
        limits.set(row.name, UNLIMITED).unwrap();
        prop_assert_eq!(limits.get(row.name), None);
    }
}
