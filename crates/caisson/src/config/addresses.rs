//! Socket addresses in the configuration: one, or a list of them.

use std::fmt;
use std::net::SocketAddr;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

struct Addresses;

impl<'de> Visitor<'de> for Addresses {
    type Value = Option<Vec<SocketAddr>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an address and a port such as \"127.0.0.1:8000\", or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let address = text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))?;
        Ok(Some(vec![address]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Some)
    }
}

/// Deserializes one address or a list of them.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    deserializer.deserialize_any(Addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Listening {
        #[serde(deserialize_with = "read")]
        listen: Option<Vec<SocketAddr>>,
    }

    fn listen(text: &str) -> Result<Vec<String>, String> {
        let read: Listening =
            toml::from_str(&format!("listen = {text}")).map_err(|error| error.to_string())?;
        Ok(read.listen.unwrap_or_default().iter().map(SocketAddr::to_string).collect())
    }

    #[test]
    fn one_address_and_a_list_of_them_are_read() {
        assert_eq!(listen("\"127.0.0.1:8000\"").unwrap(), ["127.0.0.1:8000"]);
        assert_eq!(listen("[\"127.0.0.1:1\", \"[::1]:2\"]").unwrap(), ["127.0.0.1:1", "[::1]:2"]);
    }

    #[test]
    fn invalid_address_error_names_what_is_allowed() {
        for wrong in ["\"localhost\"", "8000", "\"127.0.0.1\""] {
            let error = listen(wrong).unwrap_err();
            assert!(error.contains("an address and a port such as"), "{error}");
        }
    }
}
