//! How Protocol Buffers write values in JSON (<https://protobuf.dev/programming-guides/json/>): bytes as base64, wide
//! integers as text, times as RFC 3339, enumerations by name. Readers take what else the rules allow.

use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Bytes as base64; either alphabet, padded or not.
pub(crate) mod bytes {
    use data_encoding::{BASE64, BASE64_NOPAD, BASE64URL_NOPAD};
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.collect_str(&BASE64.encode_display(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(text) = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let digits = text.trim_end_matches('=').as_bytes();
        let decoded = BASE64_NOPAD.decode(digits).or_else(|_| BASE64URL_NOPAD.decode(digits));
        decoded.map(Some).map_err(|_| D::Error::custom("bytes must be base64"))
    }
}

/// Integers of 64 bits as text.
pub(crate) mod wide {
    use serde::de::Deserializer;
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        Ok(super::integer(deserializer)?.unwrap_or_default())
    }
}

/// An integer that may be written as a number or as text.
pub(crate) fn integer<'de, D, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<i64>,
{
    let Some(number) = deserializer.deserialize_any(IntegerVisitor)? else {
        return Ok(None);
    };
    N::try_from(number)
        .map(Some)
        .map_err(|_| de::Error::custom("the number is out of range"))
}

struct IntegerVisitor;

impl<'de> Visitor<'de> for IntegerVisitor {
    type Value = Option<i64>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an integer")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        i64::try_from(number)
            .map(Some)
            .map_err(|_| E::custom("the number is out of range"))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        // JavaScript may write 3 as 3.0; beyond 2^53 a float says no integer any more.
        let text = format!("{number:.0}");
        match text.parse::<i64>() {
            Ok(integer) if number.fract() == 0.0 && integer.unsigned_abs() <= 1 << 53 => Ok(Some(integer)),
            _ => Err(E::custom("the number is no integer")),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map(Some).map_err(|_| E::custom("the text is no integer"))
    }
}

/// What stands for nothing when it is `null`: a list, a map.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The same where nothing stands for 0.
pub(crate) fn integer_or_zero<'de, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<i64> + Default,
{
    Ok(integer(deserializer)?.unwrap_or_default())
}

/// An enumeration whose values have names.
pub(crate) trait NamedValues: Sized {
    /// The name of the value of that number, where it has one.
    fn name_of(number: i32) -> Option<&'static str>;

    /// The number of the value of that name.
    fn number_of(name: &str) -> Option<i32>;
}

/// Makes one of a generated enumeration.
macro_rules! enumeration {
    ($kind:ident) => {
        impl $crate::e2b::connect::json::NamedValues for $kind {
            fn name_of(number: i32) -> Option<&'static str> {
                Self::try_from(number).ok().map(|value| value.as_str_name())
            }

            fn number_of(name: &str) -> Option<i32> {
                Self::from_str_name(name).map(i32::from)
            }
        }
    };
}
pub(crate) use enumeration;

/// The name of a value, or the number where there is none.
pub(crate) fn name<S: serde::Serializer, E: NamedValues>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    match E::name_of(*value) {
        Some(name) => serializer.serialize_str(name),
        None => serializer.serialize_i32(*value),
    }
}

/// The value that a name or number stands for; nothing stands for 0.
pub(crate) fn named<'de, D: Deserializer<'de>, E: NamedValues>(deserializer: D) -> Result<i32, D::Error> {
    deserializer.deserialize_any(NameVisitor::<E>(PhantomData))
}

struct NameVisitor<E>(PhantomData<E>);

impl<E: NamedValues> Visitor<'_> for NameVisitor<E> {
    type Value = i32;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a name of the enumeration or a number")
    }

    fn visit_unit<F: de::Error>(self) -> Result<i32, F> {
        Ok(0)
    }

    fn visit_str<F: de::Error>(self, text: &str) -> Result<i32, F> {
        E::number_of(text).ok_or_else(|| F::custom("no such name in the enumeration"))
    }

    fn visit_i64<F: de::Error>(self, number: i64) -> Result<i32, F> {
        i32::try_from(number).map_err(|_| F::custom("the number is out of range"))
    }

    fn visit_u64<F: de::Error>(self, number: u64) -> Result<i32, F> {
        i32::try_from(number).map_err(|_| F::custom("the number is out of range"))
    }
}
