//! Address ranges: parsing them, and the ranges that are refused regardless of a job's policy.
//!
//! The refused ranges are data (`refused_ranges.json`); the operator can change them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::LazyLock;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::EgressError;
use crate::target::Host;

const FILE: &str = "refused_ranges.json";

static REFUSED: LazyLock<Result<Refused, String>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("refused_ranges.json")).map_err(|error| error.to_string())
});

/// An address range such as `10.0.0.0/8`. A single address is a range of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr(IpNet);

impl Cidr {
    /// The range of one address.
    #[must_use]
    pub fn single(address: IpAddr) -> Self {
        Self(IpNet::from(address.to_canonical()))
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Cidr {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        let refuse = |why: String| EgressError::Range { range: text.chars().take(80).collect(), why };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::single(address));
        }
        let range: IpNet = text.parse().map_err(|_| refuse("not an address range".into()))?;
        if range.trunc() != range {
            return Err(refuse(format!("bits are set after the prefix; write {}", range.trunc())));
        }
        Ok(Self(unmap(range)))
    }
}

/// Converts a range of IPv4-mapped IPv6 addresses to IPv4, the form in which addresses are compared.
fn unmap(range: IpNet) -> IpNet {
    let (IpAddr::V4(address), true, Some(length)) =
        (range.addr().to_canonical(), range.addr().is_ipv6(), range.prefix_len().checked_sub(96))
    else {
        return range;
    };
    IpNet::new(IpAddr::V4(address), length).unwrap_or(range)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

impl Serialize for Cidr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The operator's changes to the refused ranges. `deny_ranges` takes precedence over `allow`, which takes precedence
/// over the built-in ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranges {
    /// Refused in addition to the built-in ranges.
    pub deny_ranges: Vec<Cidr>,
    /// Exceptions from the built-in ranges.
    pub allow: Vec<Cidr>,
}

impl Ranges {
    /// Why an address is refused; `None` if it is allowed.
    ///
    /// For an IPv6 address that embeds an IPv4 address, both are checked.
    pub(crate) fn refusal(&self, address: IpAddr) -> Option<RefusedAddress<'_>> {
        let embedded = match address {
            IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        [Some(address), embedded].into_iter().flatten().find_map(|address| self.refusal_of_one(address))
    }

    fn refusal_of_one(&self, address: IpAddr) -> Option<RefusedAddress<'_>> {
        if let Some(range) = self.deny_ranges.iter().find(|range| range.contains(address)) {
            return Some(RefusedAddress {
                range: *range,
                reason: "refused by the operator of this server",
                remedy: format!(
                    "ask the operator of this server to remove {range} from `deny_ranges` in the section [egress]"
                ),
            });
        }
        if self.allow.iter().any(|range| range.contains(address)) {
            return None;
        }
        let refused = REFUSED.as_ref().ok()?.ranges.iter().find(|entry| entry.range.contains(address))?;
        Some(RefusedAddress {
            range: refused.range,
            reason: &refused.reason,
            remedy: format!(
                "ask the operator of this server to add \"{address}\" to `allow_ranges` in the section [egress]"
            ),
        })
    }
}

pub(crate) struct RefusedAddress<'a> {
    /// The range that contains it.
    pub(crate) range: Cidr,
    /// Why that range is refused.
    pub(crate) reason: &'a str,
    /// The setting that would allow it.
    pub(crate) remedy: String,
}

/// The addresses of a host that need no name server: an address itself, or those of a well-known name. Empty for
/// other names, which are not resolved here: a name that a job may not reach is not sent to a name server.
pub(crate) fn addresses_without_dns(host: &Host) -> Vec<IpAddr> {
    match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let names = REFUSED.as_ref().map_or(&[][..], |refused| refused.names.as_slice());
            let is_meant = |entry: &&WellKnown| {
                name.strip_suffix(entry.name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            names.iter().find(is_meant).map_or_else(Vec::new, |entry| entry.addresses.clone())
        }
    }
}

/// The IPv4 address embedded in an IPv6 address: mapped, compatible, NAT64, 6to4 or Teredo.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let last = Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]);
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Some(last),
        // The stateless translation of RFC 2765 puts the marker one word earlier.
        [0, 0, 0, 0, 0xffff, 0, _, _] => Some(last),
        [0x2002, ..] => Some(Ipv4Addr::new(octets[2], octets[3], octets[4], octets[5])),
        // Teredo embeds the client's address inverted.
        [0x2001, 0, ..] => Some(Ipv4Addr::from_bits(!last.to_bits())),
        _ => None,
    }
}

/// Why a port is refused unless a rule names it.
pub(crate) fn port_refusal(port: u16) -> Option<&'static str> {
    let refused = REFUSED.as_ref().ok()?.ports.iter().find(|entry| entry.port == port)?;
    Some(&refused.reason)
}

/// Fails if the built-in data cannot be parsed, so that no policy is created without it.
pub(crate) fn check_data() -> Result<(), EgressError> {
    REFUSED.as_ref().map(drop).map_err(|why| EgressError::Data { file: FILE, why: why.clone() })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    ranges: Vec<RefusedRange>,
    names: Vec<WellKnown>,
    ports: Vec<RefusedPort>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WellKnown {
    name: String,
    addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedRange {
    range: Cidr,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedPort {
    port: u16,
    reason: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_refused(ranges: &Ranges, address: &str) -> bool {
        ranges.refusal(address.parse().unwrap()).is_some()
    }

    #[test]
    fn internal_addresses_are_refused_in_every_form() {
        check_data().unwrap();
        for address in [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "169.254.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "192.0.0.192",
            "::",
            "::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b:1::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:a00:1",
            "::10.0.0.1",
            "::127.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::10.0.0.1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2002:c0a8:101::1",
            "2001:0:1:2:3:4:80ff:fffe",
        ] {
            assert!(is_refused(&Ranges::default(), address), "{address}");
        }
    }

    #[test]
    fn public_and_documentation_addresses_are_not_refused() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:db8::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(!is_refused(&Ranges::default(), address), "{address}");
        }
    }

    #[test]
    fn operator_ranges_override_built_in_ranges() {
        let ranges: Ranges = serde_json::from_str(
            r#"{"deny_ranges": ["8.8.8.0/24", "10.9.0.0/16"], "allow": ["10.0.0.0/8"]}"#,
        )
        .unwrap();
        assert!(!is_refused(&ranges, "10.1.2.3"));
        assert!(!is_refused(&ranges, "::ffff:10.1.2.3"));
        assert!(is_refused(&ranges, "10.9.2.3"));
        assert!(is_refused(&ranges, "8.8.8.8"));
        assert!(is_refused(&ranges, "192.168.0.1"));
        let error = serde_json::from_str::<Ranges>(r#"{"allow": ["10.0.0.0/99"]}"#).unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/99") && error.contains("10.0.0.0/8"), "{error}");
    }

    proptest! {
        #[test]
        fn reading_a_range_never_panics(text in "\\PC{0,60}|[0-9a-f.:/]{0,40}") {
            if let Ok(range) = text.parse::<Cidr>() {
                prop_assert_eq!(range.to_string().parse::<Cidr>(), Ok(range));
            }
        }

        #[test]
        fn a_range_holds_exactly_the_addresses_with_its_prefix(bits: u32, other: u32, length in 0u32..=32) {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let range: Cidr = format!("{}/{length}", Ipv4Addr::from_bits(bits & mask)).parse().unwrap();
            prop_assert!(range.contains(Ipv4Addr::from_bits(bits).into()));
            prop_assert_eq!(range.contains(Ipv4Addr::from_bits(other).into()), other & mask == bits & mask);
        }

        #[test]
        fn embedded_addresses_are_refused_like_the_address(bits: u32) {
            let ranges = Ranges::default();
            let plain = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = plain.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            for form in [
                plain.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                if ranges.refusal(plain.into()).is_some() {
                    prop_assert!(ranges.refusal(form.into()).is_some(), "{} {}", plain, form);
                }
            }
        }
    }
}
