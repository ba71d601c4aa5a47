//! The egress mode of a job.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rule::Rule;
use crate::error::EgressError;

/// The egress mode as written in the job: `"off"`, `"packages"`, `"open"`, `"learn"` or `{"allow": [...]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Package registries and code hosts.
    #[default]
    Packages,
    /// What the rules match.
    List(Vec<Rule>),
    /// Everything outside the refused ranges.
    Open,
    /// Like `Open`, and records which rules would have been sufficient.
    Learn,
}

impl Mode {
    /// The name for messages and the log.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Packages => "packages",
            Self::List(_) => "list",
            Self::Open => "open",
            Self::Learn => "learn",
        }
    }
}

impl FromStr for Mode {
    type Err = EgressError;

    /// Parses the modes that are a single word.
    fn from_str(text: &str) -> Result<Self, EgressError> {
        match text {
            "off" => Ok(Self::Off),
            "packages" => Ok(Self::Packages),
            "open" => Ok(Self::Open),
            "learn" => Ok(Self::Learn),
            other => Err(EgressError::UnknownMode { mode: other.chars().take(80).collect() }),
        }
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Packages => serializer.serialize_str("packages"),
            Self::Open => serializer.serialize_str("open"),
            Self::Learn => serializer.serialize_str("learn"),
            Self::List(rules) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("allow", rules)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ModeVisitor)
    }
}

struct ModeVisitor;

impl<'de> Visitor<'de> for ModeVisitor {
    type Value = Mode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"off\", \"packages\", \"open\", \"learn\" or {\"allow\": [...]}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Mode, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Mode, A::Error> {
        let mut rules = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "allow" {
                return Err(de::Error::unknown_field(&key, &["allow"]));
            }
            if rules.is_some() {
                return Err(de::Error::duplicate_field("allow"));
            }
            rules = Some(map.next_value()?);
        }
        rules.map(Mode::List).ok_or_else(|| de::Error::missing_field("allow"))
    }
}
