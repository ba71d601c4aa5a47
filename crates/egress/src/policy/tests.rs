//! Tests of what each policy allows and refuses.

use super::*;

fn policy(mode: &str) -> Policy {
    Policy::new(serde_json::from_str(mode).unwrap(), Ranges::default()).unwrap()
}

fn target(host: &str, port: u16) -> Target {
    Target { host: host.parse().unwrap(), port }
}

fn verdict(mode: &str, host: &str, port: u16) -> Result<String, ReasonCode> {
    policy(mode)
        .check(&target(host, port), Visibility::Bytes)
        .map(|grant| grant.rule)
        .map_err(|refusal| refusal.code)
}

#[test]
fn each_mode_allows_what_it_says() {
    assert_eq!(verdict("\"off\"", "pypi.org", 443), Err(ReasonCode::EgressOff));
    assert_eq!(verdict("\"packages\"", "pypi.org", 443), Ok("packages:pypi".into()));
    assert_eq!(verdict("\"packages\"", "pypi.org", 22), Err(ReasonCode::PortNotAllowed));
    assert_eq!(verdict("\"packages\"", "example.org", 443), Err(ReasonCode::NotInPackages));
    assert_eq!(verdict("\"packages\"", "192.0.2.1", 443), Err(ReasonCode::NotInPackages));
    assert_eq!(verdict("\"open\"", "example.org", 8443), Ok("open".into()));
    assert_eq!(verdict("\"open\"", "example.org", 25), Err(ReasonCode::PortNotAllowed));
}

#[test]
fn allow_list_may_include_packages() {
    let list = r#"{"allow": ["packages", "example.org:8443", "192.0.2.0/24"]}"#;
    assert_eq!(verdict(list, "pypi.org", 443), Ok("packages".into()));
    assert_eq!(verdict(list, "example.org", 8443), Ok("example.org:8443".into()));
    assert_eq!(verdict(list, "example.org", 443), Err(ReasonCode::PortNotAllowed));
    assert_eq!(verdict(list, "192.0.2.9", 80), Ok("192.0.2.0/24".into()));
    assert_eq!(verdict(list, "www.example.org", 443), Err(ReasonCode::NotInList));
    assert_eq!(verdict(r#"{"allow": []}"#, "example.org", 443), Err(ReasonCode::NotInList));
}

#[test]
fn following_the_remedy_allows_the_target() {
    for mode in ["\"off\"", "\"packages\"", r#"{"allow": ["a.example", "example.org"]}"#] {
        for wanted in [target("example.org", 8443), target("2001:db8::1", 8443), target("192.0.2.1", 443)] {
            let remedy = policy(mode).check(&wanted, Visibility::Bytes).unwrap_err().remedy;
            let start = remedy.find("{\"allow\"").unwrap();
            let end = remedy.rfind('}').unwrap();
            assert!(policy(&remedy[start..=end]).check(&wanted, Visibility::Bytes).is_ok(), "{remedy}");
        }
    }
}

#[test]
fn a_rule_never_overrides_a_refused_range() {
    let policy = policy(r#"{"allow": ["10.0.0.0/8"]}"#);
    let inside = target("10.0.0.1", 443);
    assert!(policy.check(&inside, Visibility::Bytes).is_ok());
    let refusal = policy.check_address(&inside, "10.0.0.1".parse().unwrap()).unwrap_err();
    assert_eq!((refusal.code, refusal.rule.as_str()), (ReasonCode::RefusedRange, "10.0.0.0/8"));
}

/// Whatever the job's mode, the refusal names the operator's setting; following it allows the target.
#[test]
fn a_target_that_only_the_operator_can_open_is_refused_for_its_range() {
    let list = r#"{"allow": ["example.org", "169.254.169.254:81"]}"#;
    for mode in ["\"off\"", "\"packages\"", list] {
        for host in [
            "169.254.169.254",
            "[::ffff:169.254.169.254]",
            "metadata.google.internal",
            "localhost",
            "a.localhost",
        ] {
            let refusal = policy(mode).check(&target(host, 80), Visibility::Bytes).unwrap_err();
            assert_eq!(refusal.code, ReasonCode::RefusedRange, "{mode} {host}");
            assert!(!refusal.code.may_be_approved());
            assert!(refusal.remedy.contains("`allow_ranges` in the section [egress]"), "{}", refusal.remedy);
            let (_, rest) = refusal.remedy.split_once('"').unwrap();
            let range = rest.split_once('"').unwrap().0;
            let ranges = serde_json::from_value(serde_json::json!({"allow": [range]})).unwrap();
            let opened = Policy::new(serde_json::from_str(mode).unwrap(), ranges).unwrap();
            let then = opened.check(&target(host, 80), Visibility::Bytes).unwrap_err();
            assert!(then.code.may_be_approved(), "{mode} {host}: {then:?}");
        }
    }
    let ranges: Ranges = serde_json::from_str(r#"{"deny_ranges": ["192.0.2.0/24"]}"#).unwrap();
    let refusal = Policy::new(Mode::Off, ranges)
        .unwrap()
        .check(&target("192.0.2.1", 80), Visibility::Bytes)
        .unwrap_err();
    assert!(refusal.remedy.contains("remove 192.0.2.0/24 from `deny_ranges`"), "{}", refusal.remedy);
    assert_eq!(verdict("\"off\"", "notlocalhost", 80), Err(ReasonCode::EgressOff));
}

#[test]
fn nothing_exceeds_the_ceiling() {
    let ceiling: Mode = serde_json::from_str(r#"{"allow": ["packages", "*.example.org"]}"#).unwrap();
    let learning = policy("\"learn\"").under(ceiling.clone()).unwrap();
    assert!(learning.check(&target("www.example.org", 443), Visibility::Bytes).is_ok());
    let refusal = learning.check(&target("example.com", 443), Visibility::Bytes).unwrap_err();
    assert_eq!(refusal.code, ReasonCode::AboveCeiling);
    let approved = learning.with_approved("example.com".parse().unwrap());
    assert!(approved.check(&target("example.com", 443), Visibility::Bytes).is_err());
    assert!(policy("\"open\"").under(ceiling).unwrap_err().to_string().contains("open"));
    assert!(policy("\"packages\"").under(Mode::Off).is_err());
    assert!(policy("\"off\"").under(Mode::Off).is_ok());
}

#[test]
fn an_approved_rule_allows_what_the_mode_refuses() {
    let policy = policy("\"off\"").with_approved("example.org".parse().unwrap());
    assert_eq!(
        policy.check(&target("example.org", 443), Visibility::Bytes).unwrap().rule,
        "approved:example.org"
    );
    assert!(policy.check(&target("example.com", 443), Visibility::Bytes).is_err());
}

#[test]
fn method_and_path_rules_allow_only_visible_requests() {
    let policy = policy(r#"{"allow": [{"host": "example.org", "methods": ["GET"], "paths": ["/a/*"]}]}"#);
    let to = target("example.org", 443);
    let get = |path| policy.check(&to, Visibility::Request { method: "GET", path });
    assert!(get("/a/b").is_ok() && policy.check(&to, Visibility::Requests).is_ok());
    assert_eq!(get("/b").unwrap_err().code, ReasonCode::RequestNotAllowed);
    let refusal = policy.check(&to, Visibility::Bytes).unwrap_err();
    assert!(refusal.reason.contains("not visible inside TLS"), "{}", refusal.reason);
}

#[test]
fn a_tunnel_without_tls_needs_a_rule_that_allows_it() {
    let plain = |policy: &Policy, host, port| policy.check(&target(host, port), Visibility::WithoutTls);
    let list = r#"{"allow": ["a.example:22", {"host": "b.example:22", "without_tls": true}]}"#;
    for (mode, host) in [(list, "a.example"), ("\"packages\"", "github.com")] {
        let port = if host == "github.com" { 443 } else { 22 };
        assert!(policy(mode).check(&target(host, port), Visibility::Bytes).is_ok(), "{host}");
        let refusal = plain(&policy(mode), host, port).unwrap_err();
        assert_eq!(refusal.code, ReasonCode::WithoutTls, "{host}");
        let (start, end) = (refusal.remedy.find("{\"allow\"").unwrap(), refusal.remedy.rfind('}').unwrap());
        assert!(plain(&policy(&refusal.remedy[start..=end]), host, port).is_ok(), "{}", refusal.remedy);
    }
    assert_eq!(plain(&policy(list), "b.example", 22).unwrap().rule, "b.example:22 [without TLS]");
    assert!(plain(&policy("\"open\""), "a.example", 22).is_ok());
    // A person's approval includes the protocol; nothing exceeds the ceiling.
    let approved = policy("\"off\"").with_approved("a.example:22".parse().unwrap());
    assert!(plain(&approved, "a.example", 22).is_ok());
    let capped = policy("\"learn\"").under(serde_json::from_str(list).unwrap()).unwrap();
    assert_eq!(plain(&capped, "a.example", 22).unwrap_err().code, ReasonCode::AboveCeiling);
    assert!(plain(&capped, "b.example", 22).is_ok());
}

#[test]
fn modes_round_trip() {
    for text in [
        "\"off\"",
        "\"packages\"",
        "\"open\"",
        "\"learn\"",
        r#"{"allow":["*.example.org:8443","10.0.0.0/8"]}"#,
        r#"{"allow":[{"host":"example.org:22","without_tls":true}]}"#,
    ] {
        let mode: Mode = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&mode).unwrap(), text);
    }
}

#[test]
fn a_wrong_mode_is_refused_by_name() {
    for (text, part) in [
        ("\"opne\"", "opne"),
        ("{}", "allow"),
        (r#"{"allow": ["*"]}"#, "\"*\""),
        (r#"{"allow": ["a"], "deny": []}"#, "deny"),
        (r#"{"allow": "example.org"}"#, "sequence"),
        ("7", "packages"),
        ("null", "packages"),
    ] {
        let error = serde_json::from_str::<Mode>(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
