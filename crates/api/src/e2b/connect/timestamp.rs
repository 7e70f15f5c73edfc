//! `google.protobuf.Timestamp`, in JSON a text of RFC 3339.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

/// A time since the beginning of 1970.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// The year 1, before which there is no time in this form.
const FIRST: i64 = -62_135_596_800;

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // And nearly the end of the year 9999.
        let clamped = self.seconds.clamp(FIRST, jiff::Timestamp::MAX.as_second());
        let nanos = match clamped == self.seconds {
            true => self.nanos.clamp(0, 999_999_999),
            false => 0,
        };
        let nanos = jiff::SignedDuration::from_nanos(i64::from(nanos));
        match jiff::Timestamp::from_second(clamped).and_then(|second| second.checked_add(nanos)) {
            Ok(time) => serializer.collect_str(&time),
            Err(_) => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time: jiff::Timestamp = text.parse().map_err(|_| D::Error::custom("a time must be RFC 3339"))?;
        Ok(Self {
            seconds: time.as_second(),
            nanos: time.subsec_nanosecond(),
        })
    }
}
