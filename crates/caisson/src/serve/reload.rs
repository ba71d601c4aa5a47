//! Reloads the configuration on SIGHUP: applies what can change at runtime, and logs what needs a restart. An invalid
//! configuration changes nothing.

use std::sync::Arc;

use anyhow::Result;
use orchestrator::Orchestrator;
use tokio::signal::unix::Signal;

use super::running_config::RunningConfig;
use crate::config::Config;
use crate::logging::LogLevel;

/// The differences between two configurations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Settings that take effect immediately.
    pub(crate) immediate: Vec<&'static str>,
    /// Settings that take effect at the next start.
    pub(crate) after_restart: Vec<&'static str>,
}

/// Reloads the configuration at each signal, forever.
pub(crate) async fn run(
    mut hangup: Signal,
    running: Arc<RunningConfig>,
    level: LogLevel,
    orchestrator: Orchestrator,
) {
    while hangup.recv().await.is_some() {
        match read(&running, &level) {
            Ok(new) => {
                let config = running.current();
                let changes = Changes::between(&config, &new);
                orchestrator.change_settings(new.jobs.clone());
                // The certificate files may have changed even if their paths have not.
                if let Some(Err(error)) = config.http.certificate.as_ref().map(server::Certificate::reload) {
                    tracing::error!("keeping the old certificate: {:#}", anyhow::Error::new(error));
                }
                log(&changes);
                // Settings that need a restart are logged again at every signal until then.
                running.set_applied(&new);
            }
            Err(error) => {
                let message = format!("{error:#}").replace('\n', " ");
                tracing::error!("the configuration is invalid, nothing was changed: {message}");
            }
        }
    }
}

/// Checks everything before anything changes.
fn read(running: &RunningConfig, level: &LogLevel) -> Result<Config> {
    let config = running.load()?;
    level.set(&config.log)?;
    Ok(config)
}

fn log(changes: &Changes) {
    let Changes { immediate, after_restart } = changes;
    tracing::info!(changed = immediate.join(", "), "configuration reloaded");
    if !after_restart.is_empty() {
        tracing::warn!(
            settings = after_restart.join(", "),
            "changed settings that need a restart; jobs survive it"
        );
    }
}

impl Changes {
    /// The settings that differ in `new`.
    pub(crate) fn between(old: &Config, new: &Config) -> Self {
        let (a, b) = (&old.jobs, &new.jobs);
        let (a_jobs, b_jobs) = (&a.defaults, &b.defaults);
        let immediate = [
            ("log", old.log != new.log),
            ("jobs.image", a.default_image != b.default_image),
            ("jobs.max_running", a.max_running != b.max_running),
            ("jobs.max_queued", a.max_queued != b.max_queued),
            ("jobs.max_sandboxes", a.max_sandboxes != b.max_sandboxes),
            ("jobs.max_losses", a.max_losses != b.max_losses),
            ("jobs.wall_clock_s", a_jobs.wall_clock != b_jobs.wall_clock),
            ("jobs.step_timeout_s", a_jobs.step_timeout != b_jobs.step_timeout),
            ("jobs.on_shutdown", a.on_shutdown != b.on_shutdown),
            ("pool.size", a.pool_size != b.pool_size),
            ("pool.images", a.pool_images != b.pool_images),
            ("model", a.model != b.model),
            ("agent", a_jobs.budget != b_jobs.budget),
            ("context", a.context != b.context),
            ("mcp", a_jobs.mcp != b_jobs.mcp),
            ("desktop", a_jobs.desktop != b_jobs.desktop),
            ("limits", a_jobs.limits != b_jobs.limits),
            ("limits.max", a.ceilings != b.ceilings),
            ("egress.default", a_jobs.egress != b_jobs.egress),
            ("egress ranges", a.egress_ranges != b.egress_ranges),
            ("egress.ceiling", a.egress_ceiling != b.egress_ceiling),
            ("egress.wait_s", a_jobs.egress_wait != b_jobs.egress_wait),
            ("egress allowances", a_jobs.allowance != b_jobs.allowance),
            ("secrets", a.secrets != b.secrets),
            ("egress.extra_ca", a.extra_ca != b.extra_ca),
            ("retention.days", a.retention_age != b.retention_age),
            ("retention.payload_days", a.retention_payload_age != b.retention_payload_age),
            ("retention.max_gib", a.retention_bytes != b.retention_bytes),
            ("sandbox.disk_reserve_mib", a.disk_reserve_bytes != b.disk_reserve_bytes),
            ("sandbox.isolation", a_jobs.isolation != b_jobs.isolation),
        ];
        let after_restart = [
            ("listen", old.listen != new.listen),
            ("insecure_listen", old.insecure_listen != new.insecure_listen),
            ("data", old.data != new.data),
            ("run_dir", old.run_dir != new.run_dir),
            ("images", old.images != new.images),
            ("preview_listen", old.preview_listen != new.preview_listen),
            ("expose", old.expose != new.expose),
            ("backend", old.backend != new.backend),
            ("namespace", old.namespace != new.namespace),
            ("docker", old.docker != new.docker),
            ("log_format", old.log_format != new.log_format),
            ("telemetry", old.telemetry != new.telemetry),
            (
                "public_url, job_domain, allowed_hosts, trusted_proxies, tls, oidc or http",
                old.http != new.http,
            ),
            ("sandbox", old.sandbox != new.sandbox),
        ];
        let named = |all: &[(&'static str, bool)]| {
            all.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect()
        };
        Self { immediate: named(&immediate), after_restart: named(&after_restart) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::arguments::HostArguments;
    use crate::config::{EXAMPLE, RawConfig, known_settings};

    #[test]
    fn cli_docs_list_reloadable_settings() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
        let page = std::fs::read_to_string(page).unwrap();
        let paragraph = page.split("A server that gets SIGHUP").nth(1).unwrap();
        let immediate = paragraph.split("needs a restart").next().unwrap();
        for word in [
            "log level",
            "[jobs]",
            "[limits]",
            "[desktop]",
            "[pool]",
            "[model]",
            "[agent]",
            "[context]",
            "[mcp",
            "[secrets]",
            "[egress]",
            "[retention]",
            "certificates",
            "sandbox.isolation",
        ] {
            assert!(immediate.contains(word), "{word} is not among what changes at once");
        }
    }

    fn config(text: &str) -> Config {
        let raw: RawConfig = toml::from_str(text).unwrap();
        let arguments = HostArguments { config: None, data: None, run_dir: None, backend: None };
        Config::from_raw(raw, &arguments, &[], false).unwrap()
    }

    #[test]
    fn changes_are_split_into_immediate_and_after_restart() {
        let old = config("");
        assert_eq!(Changes::between(&old, &old), Changes::default());
        let new = config(
            "log = \"warn\"\nlisten = [\"127.0.0.1:9\"]\n[jobs]\nmax_running = 77\n[pool]\nsize = 3\n[http]\nmax_json_mib = 3\n",
        );
        let changes = Changes::between(&old, &new);
        assert_eq!(changes.immediate, ["log", "jobs.max_running", "pool.size"]);
        let http = "public_url, job_domain, allowed_hosts, trusted_proxies, tls, oidc or http";
        assert_eq!(changes.after_restart, ["listen", http]);
    }

    #[test]
    fn change_in_any_section_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = format!("[tls]\ncertificate = \"{}\"\nkey = \"{}\"", chain.display(), key.display());
        let changes = [
            ("listen", "listen = [\"127.0.0.1:9\"]"),
            ("insecure_listen", "insecure_listen = true"),
            ("allowed_hosts", "allowed_hosts = [\"caisson.example.org\"]"),
            ("public_url", "public_url = \"https://caisson.example.org\""),
            ("job_domain", "job_domain = \"jobs.example.org\""),
            ("trusted_proxies", "trusted_proxies = [\"127.0.0.1\"]"),
            ("preview_listen", "preview_listen = [\"127.0.0.1:9\"]"),
            ("data", "data = \"/elsewhere\""),
            ("run_dir", "run_dir = \"/elsewhere\""),
            ("images", "images = \"/elsewhere\""),
            ("log", "log = \"warn\""),
            ("log_format", "log_format = \"json\""),
            ("tls", tls.as_str()),
            (
                "oidc",
                "[oidc]\nissuer = \"https://id.example.org\"\nclient_id = \"c\"\ndefault_role = \"viewer\"",
            ),
            ("jobs", "[jobs]\nmax_losses = 9"),
            ("model", "model = \"anthropic/claude-sonnet-5\""),
            ("agent", "[agent]\nbudget = { turns = 7 }"),
            ("context", "[context]\nsummaries = \"extract\""),
            ("mcp", "[mcp.hub]\nurl = \"https://mcp.example.org/mcp\""),
            ("pool", "[pool]\nimages = [\"host\"]"),
            ("limits", "[limits.max]\nmemory_mib = 4321"),
            ("egress", "[egress]\nwait_s = 5"),
            ("secrets", "[secrets]\nT = { command = [\"true\"] }"),
            ("desktop", "[desktop]\nwidth = 1000"),
            ("retention", "[retention]\ndays = 1"),
            ("telemetry", "[telemetry]\notlp_endpoint = \"http://127.0.0.1:4318\""),
            ("http", "[http]\nmax_json_mib = 3"),
            ("expose", "[expose]\nvnc = 5900"),
            ("sandbox", "[sandbox]\nready_disks = 1"),
            ("backend", "[backend]\nkind = \"docker\""),
            ("namespace", "[namespace]\nslots = 1"),
            ("docker", "[docker]\npull = true"),
        ];
        for (section, text) in changes {
            let found = Changes::between(&config(""), &config(text));
            assert!(found != Changes::default(), "a change of {section} is not named");
        }
        let known = known_settings(EXAMPLE);
        let sections: BTreeSet<&str> = known
            .iter()
            .map(|known| known.key.split('.').next().unwrap())
            .chain(["mcp", "secrets"])
            .collect();
        assert_eq!(
            sections,
            changes.iter().map(|(section, _)| *section).collect(),
            "of the example, and tried"
        );
    }
}
