//! Egress rules, hosts and address ranges as users and programs write them. What parses must print to something
//! equivalent.
#![cfg_attr(fuzzing, no_main)]

use egress::{Cidr, Host, Mode, Rule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(host) = text.parse::<Host>() {
        assert_eq!(host.to_string().parse::<Host>().expect("a host that was written"), host);
    }
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse::<Rule>().expect("a rule that was written"), rule);
    }
    let _ = text.parse::<Cidr>();
    let _ = text.parse::<Mode>();
    let _ = serde_json::from_slice::<Mode>(bytes);
});
