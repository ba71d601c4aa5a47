//! Whole numbers that are written with a fraction, such as `3.0`. JSON Schema counts them as integers; serde does not.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};

/// Parses JSON and replaces `3.0` by `3`. `None` if there is no such number, or if a field is named twice.
#[must_use]
pub fn with_whole_numbers(json: &[u8]) -> Option<Value> {
    let WholeNumbers { value, replaced } = serde_json::from_slice(json).ok()?;
    (replaced > 0).then_some(value)
}

struct WholeNumbers {
    value: Value,
    replaced: usize,
}

impl From<Value> for WholeNumbers {
    fn from(value: Value) -> Self {
        Self { value, replaced: 0 }
    }
}

impl<'de> Deserialize<'de> for WholeNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = WholeNumbers;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<WholeNumbers, E> {
        Ok(Value::Null.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<WholeNumbers, E> {
        Ok(Value::Bool(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<WholeNumbers, E> {
        Ok(Value::from(value).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<WholeNumbers, E> {
        Ok(Value::from(value).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<WholeNumbers, E> {
        // Larger numbers are not exact, so they stay as they are.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() <= EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "a whole number in range")]
            return Ok(WholeNumbers { value: Value::from(value as i64), replaced: 1 });
        }
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number).into())
    }

    fn visit_str<E>(self, value: &str) -> Result<WholeNumbers, E> {
        Ok(Value::from(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<WholeNumbers, A::Error> {
        let (mut list, mut replaced) = (Vec::new(), 0);
        while let Some(item) = items.next_element::<WholeNumbers>()? {
            replaced += item.replaced;
            list.push(item.value);
        }
        Ok(WholeNumbers { value: Value::Array(list), replaced })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<WholeNumbers, A::Error> {
        let (mut object, mut replaced) = (Map::new(), 0);
        while let Some((name, field)) = fields.next_entry::<String, WholeNumbers>()? {
            replaced += field.replaced;
            if object.insert(name, field.value).is_some() {
                return Err(A::Error::custom("a field is named twice"));
            }
        }
        Ok(WholeNumbers { value: Value::Object(object), replaced })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_lose_their_fraction() {
        let read = |text: &str| with_whole_numbers(text.as_bytes());
        assert_eq!(
            read(r#"{"a":[3.0,1.5,{"b":-2.0}],"c":1e3}"#),
            Some(json!({"a": [3, 1.5, {"b": -2}], "c": 1000}))
        );
        assert_eq!(read(r#"{"a":1.5,"b":7,"c":1e300}"#), None);
        assert_eq!(read(r#"{"a":1.0,"a":2}"#), None);
        assert_eq!(read("{"), None);
    }
}
