//! Tests with configurations that have several errors, and the messages for them.

use super::check::{Report, check};
use super::example::EXAMPLE;
use crate::arguments::HostArguments;

#[test]
fn secret_without_host_restriction_gets_a_hint() {
    let bound = "[secrets.A]\ncommand = [\"x\"]\nhosts = [\"a.example\"]\n";
    assert_eq!(report(bound).hints, Vec::<String>::new());
    let hints = report(
        "[secrets]\nFREE = { command = [\"x\"] }\nBOUND = { command = [\"x\"], hosts = [\"b.example\"] }\n",
    )
    .hints;
    assert!(hints.len() == 1 && hints[0].contains("secrets.FREE") && hints[0].contains("hosts"), "{hints:?}");
}

fn report(text: &str) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("caisson.toml");
    std::fs::write(&file, text).unwrap();
    check(&HostArguments { config: Some(file), ..HostArguments::default() }).unwrap()
}

#[test]
fn invalid_flag_is_not_attributed_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("caisson.toml");
    std::fs::write(&file, "log = \"info\"\n[jobs]\nmax_running = 3\n[limits]\npids = 99999999999\n").unwrap();
    let backend = Some("submarine".to_owned());
    let report = check(&HostArguments { config: Some(file), backend, ..HostArguments::default() }).unwrap();
    let found: Vec<(&str, &str)> =
        report.problems.iter().map(|problem| (problem.location.as_str(), problem.text.as_str())).collect();
    let [(line, pids), (outside, backend)] = found[..] else { panic!("{found:?}") };
    assert!(line.ends_with(":5") && pids == "limits.pids: 99999999999 is more than 4194304", "{found:?}");
    assert!(outside == "flags and environment" && backend.contains("submarine"), "{found:?}");
}

#[test]
fn each_error_has_line_and_allowed_values() {
    let text = "log = \"info\"\ncolour = 1\n\n[jobs]\nmax_runing = 3\nmax_losses = \"x\"\n\n[limits]\nmemory_mib = 1\n";
    let problems = report(text).problems;
    let found: Vec<(String, &str)> = problems
        .iter()
        .map(|problem| (problem.location.rsplit(':').next().unwrap().to_owned(), problem.text.as_str()))
        .collect();
    assert_eq!(found.iter().map(|(line, _)| line.as_str()).collect::<Vec<_>>(), ["2", "5", "6", "9"]);
    assert!(found[0].1.starts_with("colour: unknown setting; expected one of listen"), "{found:?}");
    assert!(found[1].1.contains("did you mean jobs.max_running?"), "{found:?}");
    assert_eq!(found[2].1, "jobs.max_losses: must be a whole number, not the string \"x\"");
    assert_eq!(found[3].1, "limits.memory_mib: 1 is less than 16");
    assert!(problems[2].about.as_deref().is_some_and(|about| about.contains("lose its sandbox")));
}

#[test]
fn no_error_speaks_of_rust() {
    for line in [
        "listen = 8000",
        "listen = [8000]",
        "listen = [\"localhost\"]",
        "insecure_listen = \"yes\"",
        "data = 1",
        "log_format = \"xml\"",
        "trusted_proxies = [\"proxy\"]",
        "model = 5",
        "[model]\nnam = \"x\"",
        "[model]\nretries = \"many\"",
        "jobs = 3",
        "[jobs]\nmax_running = 1.5",
        "[limits]\ncpus = \"two\"",
        "[limits]\nmemory_mib = -1",
        "[egress]\ndefault = 5",
        "[egress.default]\ndeny = []",
        "[egress]\ndefault = { allow = [5] }",
        "[secrets.A]\nvalue = \"x\"",
        "[secrets]\nA = 5",
        "[mcp.hub]\ncomand = [\"x\"]",
        "[mcp]\nhub = []",
        "[sandbox]\nisolation = \"none\"",
        "[pool]\nsize = \"large\"",
        "[docker]\nimages = []",
        "listen = [",
        "listen",
        "a = 1\na = 2",
        "log = info",
        "log = \"info",
        "[jobs",
        "= 3",
    ] {
        let problems = report(line).problems;
        assert!(!problems.is_empty(), "{line}");
        for problem in problems {
            let leaked = job::SERDE_WORDING.iter().find(|words| problem.text.contains(*words));
            assert_eq!(leaked, None, "{line}: {problem:?}");
        }
    }
}

#[test]
fn nested_settings_are_named_with_their_path() {
    let text = |line: &str| report(line).problems.remove(0).text;
    assert_eq!(text("listen = [8000]"), "listen[0]: must be a string, not the number 8000");
    assert_eq!(text("[secrets]\nA = 5"), "secrets.A: must be a table, not the number 5");
    assert!(text("[mcp.hub]\ncomand = [\"x\"]").contains("did you mean `command`?"));
    assert!(text("log = [\n").starts_with("this is not valid TOML: "));
}

#[test]
fn toml_syntax_error_has_its_line() {
    let problems = report("log = \"info\"\nlisten = [\n").problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].location.contains("caisson.toml:"), "{problems:?}");
}

#[test]
fn conflicting_settings_are_reported_at_the_first_line() {
    let problems = report("\nlisten = [\"0.0.0.0:8000\"]\n").problems;
    assert!(problems[0].location.ends_with("caisson.toml:2"), "{problems:?}");
    assert!(problems[0].text.contains("--insecure-listen"), "{problems:?}");
    assert!(report("listen = [\"0.0.0.0:8000\"]\ninsecure_listen = true\n").problems.is_empty());
}

#[test]
fn every_value_has_its_source() {
    let report = report("[egress]\ndefault = { allow = [\"example.org\"] }\n");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let find = |key: &str| report.settings.iter().find(|setting| setting.key == key).unwrap();
    assert!(find("egress.default").origin.ends_with("caisson.toml:2"));
    assert_eq!(find("egress.default").value.as_deref(), Some("{ allow = [\"example.org\"] }"));
    assert_eq!(
        (find("jobs.max_queued").origin.as_str(), find("jobs.max_queued").value.as_deref()),
        ("default", Some("10000"))
    );
    assert_eq!(find("jobs.max_running").value, None);
}

#[test]
fn interdependent_settings_are_accepted_together() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (chain, key) =
        (file("chain.pem", &made.cert.pem()), file("key.pem", &made.signing_key.serialize_pem()));
    let secret = file("secret", "s");
    let text = format!(
        "listen = [\"0.0.0.0:8000\"]\ninsecure_listen = true\n\
         [tls]\ncertificate = \"{chain}\"\nkey = \"{key}\"\n\
         [oidc]\nissuer = \"https://id.example.org\"\nclient_id = \"caisson\"\nclient_secret_file = \"{secret}\"\n\
         [oidc.roles]\nplatform = \"admin\"\n\
         [context]\nembeddings = \"http://127.0.0.1:9/v1#small\"\nembeddings_key_file = \"{secret}\"\n\
         [telemetry]\notlp_endpoint = \"http://127.0.0.1:4318\"\nservice_name = \"ours\"\n\
         [egress]\nceiling = {{ allow = [\"example.org\"] }}\n\
         [egress.default]\nallow = [\"example.org\"]\n\
         [secrets]\nGITHUB_TOKEN = {{ file = \"{secret}\" }}\n\
         [secrets.OTHER]\nfile = \"{secret}\"\n\
         [mcp.hub]\nurl = \"https://mcp.example.org/mcp\"\njobs = \"named\"\n\
         [mcp.ledger]\ncommand = [\"python3\", \"ledger.py\"]\n\
         [docker.images]\npython = \"python:3.13-slim\"\n"
    );
    let all = report(&text);
    assert!(all.problems.is_empty(), "{:?}", all.problems);
    let value = |key: &str| {
        let found = all.settings.iter().find(|setting| setting.key == key);
        found.and_then(|setting| setting.value.clone()).unwrap_or_default()
    };
    assert!(value("mcp.hub").contains("https://mcp.example.org/mcp"), "{}", value("mcp.hub"));
    assert!(value("egress.default").contains("example.org"), "{}", value("egress.default"));
    assert!(report("[egress]\ndefault = \"off\"\nceiling = \"off\"\n").problems.is_empty());
}

#[test]
fn conflict_is_reported_once_and_hides_no_other_errors() {
    let text = "[tls]\ncertificate = \"/nowhere/chain.pem\"\nkey = \"/nowhere/key.pem\"\n\
                [oidc]\nclient_id = \"caisson\"\n[limits]\nmemory_mib = 1\n\
                [mcp.hub]\njobs = \"all\"\n[secrets.T]\nfile = \"/nowhere/token\"\n";
    let problems = report(text).problems;
    let lines: Vec<&str> =
        problems.iter().map(|problem| problem.location.rsplit(':').next().unwrap()).collect();
    assert_eq!(lines, ["2", "5", "7", "8", "10"], "{problems:?}");
    assert!(
        problems[1].text.starts_with("oidc.issuer: is missing") || problems[1].text.contains("oidc.issuer")
    );
}

#[test]
fn the_example_itself_is_right() {
    let report = report(EXAMPLE);
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
