//! Deserializes objects where serde would accept too much.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Deserializes an object or null. By default, serde also accepts an array as the fields in order.
pub fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_any(ObjectOrNothing(PhantomData))
}

/// Deserializes an object, and rejects null and everything else.
pub fn required_object<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    object(deserializer)?.ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &"an object"))
}

struct ObjectOrNothing<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectOrNothing<T> {
    type Value = Option<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        a: Option<u8>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(default, deserialize_with = "object")]
        inner: Option<Inner>,
    }

    #[test]
    fn array_is_not_accepted_as_an_object() {
        let read = |text: &str| serde_json::from_str::<Outer>(text);
        assert_eq!(read(r#"{"inner":{"a":1}}"#).unwrap().inner.unwrap().a, Some(1));
        assert!(read(r#"{"inner":null}"#).unwrap().inner.is_none() && read("{}").unwrap().inner.is_none());
        assert!(read(r#"{"inner":[1]}"#).unwrap_err().to_string().contains("sequence, expected an object"));
        assert!(read(r#"{"inner":{"a":"x"}}"#).is_err());
    }
}
