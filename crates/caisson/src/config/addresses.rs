//! Addresses in the configuration: one, or a list of them.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};

struct Addresses<T> {
    expected: &'static str,
    kind: PhantomData<T>,
}

impl<T: FromStr> Addresses<T> {
    fn parse<E: Error>(&self, text: &str) -> Result<T, E> {
        text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self.expected))
    }
}

impl<'de, T: FromStr> Visitor<'de> for Addresses<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(vec![self.parse(text)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut addresses = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            addresses.push(self.parse(&text)?);
        }
        Ok(Some(addresses))
    }
}

/// Deserializes one address with a port, or a list of them.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    let expected = "an address and a port such as \"127.0.0.1:8000\", or a list of them";
    deserializer.deserialize_any(Addresses { expected, kind: PhantomData })
}

/// Deserializes one address without a port, or a list of them.
pub(crate) fn read_hosts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<IpAddr>>, D::Error> {
    let expected = "an address without a port such as \"127.0.0.1\", or a list of them";
    deserializer.deserialize_any(Addresses { expected, kind: PhantomData })
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

    #[derive(serde::Deserialize)]
    struct Hosts {
        #[serde(deserialize_with = "read_hosts")]
        listen: Option<Vec<IpAddr>>,
    }

    fn hosts(text: &str) -> Result<Vec<String>, String> {
        let read: Hosts = toml::from_str(&format!("listen = {text}")).map_err(|error| error.to_string())?;
        Ok(read.listen.unwrap_or_default().iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn one_address_and_a_list_of_them_are_read() {
        assert_eq!(listen("\"127.0.0.1:8000\"").unwrap(), ["127.0.0.1:8000"]);
        assert_eq!(listen("[\"127.0.0.1:1\", \"[::1]:2\"]").unwrap(), ["127.0.0.1:1", "[::1]:2"]);
        assert_eq!(hosts("\"0.0.0.0\"").unwrap(), ["0.0.0.0"]);
        assert_eq!(hosts("[\"127.0.0.1\", \"::1\"]").unwrap(), ["127.0.0.1", "::1"]);
    }

    #[test]
    fn invalid_address_error_names_what_is_allowed() {
        for wrong in ["\"localhost\"", "8000", "\"127.0.0.1\"", "[\"127.0.0.1:1\", \"localhost\"]"] {
            let error = listen(wrong).unwrap_err();
            assert!(error.contains("an address and a port such as"), "{error}");
        }
        for wrong in ["\"localhost\"", "8000", "\"127.0.0.1:8000\"", "[\"::1\", \"localhost\"]"] {
            let error = hosts(wrong).unwrap_err();
            assert!(error.contains("an address without a port such as"), "{error}");
        }
    }
}
