//! Upper bounds for what requests may ask for: server-wide, per role and per key. Pure.

use std::collections::BTreeMap;
use std::fmt;

use sandbox::{Limit, LimitKind, Limits, allowed_range};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Role;
use crate::invalid::{InvalidField, invalid};

/// The most that a request may ask for; an absent field has no ceiling but the range of what it bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    /// Mebibytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Open files of one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Mebibytes of disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// Seconds from start to end of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_clock_s: Option<u64>,
    /// Seconds of a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_timeout_s: Option<u64>,
    /// Seconds that a bare sandbox may be idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Jobs and sandboxes of one key at work at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Bare sandboxes of one key at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u32>,
}

impl Ceilings {
    /// Checks the values from the configuration.
    ///
    /// # Errors
    /// Names the invalid field and its allowed range.
    pub fn check(&self) -> Result<(), InvalidField> {
        let of_limits = [
            ("memory_mib", self.memory_mib, LimitKind::Memory),
            ("pids", self.pids, LimitKind::Pids),
            ("open_files", self.open_files, LimitKind::OpenFiles),
            ("disk_mib", self.disk_mib, LimitKind::Disk),
        ];
        for (name, asked, kind) in of_limits {
            in_range(name, asked, allowed_range(kind))?;
        }
        if let Some(cpus) = self.cpus {
            cpu_millis("cpus", cpus)?;
        }
        let seconds = [
            ("wall_clock_s", self.wall_clock_s),
            ("step_timeout_s", self.step_timeout_s),
            ("ttl_s", self.ttl_s),
        ];
        for (name, asked) in seconds {
            in_range(name, asked, (1, 30 * 86_400))?;
        }
        for (name, asked) in [("running", self.running), ("sandboxes", self.sandboxes)] {
            in_range(name, asked.map(u64::from), (1, 1_000_000))?;
        }
        Ok(())
    }
}

fn in_range(field: &str, asked: Option<u64>, (least, most): (u64, u64)) -> Result<(), InvalidField> {
    match asked {
        Some(asked) if !(least..=most).contains(&asked) => {
            Err(invalid(field, format!("{asked} is not between {least} and {most}")))
        }
        _ => Ok(()),
    }
}

/// Converts a number of CPUs to thousandths.
///
/// # Errors
/// The value is out of range or not a number.
pub fn cpu_millis(field: &str, cpus: f64) -> Result<u64, InvalidField> {
    let (least, most) = allowed_range(LimitKind::Cpu);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let range = least as f64 / 1000.0..=most as f64 / 1000.0;
    if !range.contains(&cpus) {
        let problem = format!("{cpus} is not between {} and {}", range.start(), range.end());
        return Err(invalid(field, problem));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just here")]
    Ok((cpus * 1000.0).round() as u64)
}

/// All ceilings of a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CeilingRules {
    pub everybody: Ceilings,
    /// Override the ceilings for everybody.
    pub roles: BTreeMap<Role, Ceilings>,
    /// Override all others; keyed by the name of the API key.
    pub keys: BTreeMap<String, Ceilings>,
}

impl CeilingRules {
    /// The ceilings of a caller with this role and key.
    #[must_use]
    pub fn of(&self, role: Option<Role>, key: Option<&str>) -> AppliedCeilings {
        let of_key = key.and_then(|name| Some((Origin::Key(name.to_owned()), *self.keys.get(name)?)));
        let of_role = role.and_then(|role| Some((Origin::Role(role), *self.roles.get(&role)?)));
        let all = [of_key, of_role].into_iter().flatten();
        AppliedCeilings(all.chain([(Origin::Everybody, self.everybody)]).collect())
    }
}

/// Where a ceiling is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Everybody,
    Role(Role),
    Key(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => out.write_str("[limits.max]"),
            Self::Role(role) => write!(out, "[limits.max.roles.{role}]"),
            Self::Key(name) => write!(out, "[limits.max.keys.\"{name}\"]"),
        }
    }
}

/// The ceilings of one caller, most specific first. For each field, the first entry that sets it applies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AppliedCeilings(Vec<(Origin, Ceilings)>);

impl AppliedCeilings {
    fn find<T>(&self, pick: impl Fn(&Ceilings) -> Option<T>) -> Option<(T, &Origin)> {
        self.0.iter().find_map(|(origin, ceilings)| Some((pick(ceilings)?, origin)))
    }

    fn get<T>(&self, pick: impl Fn(&Ceilings) -> Option<T>) -> Option<T> {
        self.find(pick).map(|(most, _)| most)
    }

    /// The effective value of each field.
    #[must_use]
    pub fn effective(&self) -> Ceilings {
        Ceilings {
            memory_mib: self.get(|set| set.memory_mib),
            cpus: self.get(|set| set.cpus),
            pids: self.get(|set| set.pids),
            open_files: self.get(|set| set.open_files),
            disk_mib: self.get(|set| set.disk_mib),
            wall_clock_s: self.get(|set| set.wall_clock_s),
            step_timeout_s: self.get(|set| set.step_timeout_s),
            ttl_s: self.get(|set| set.ttl_s),
            running: self.get(|set| set.running),
            sandboxes: self.get(|set| set.sandboxes),
        }
    }

    /// Refuses a duration in seconds that exceeds its ceiling.
    pub fn check_seconds(
        &self,
        field: &str,
        key: &str,
        asked: f64,
        pick: impl Fn(&Ceilings) -> Option<u64>,
    ) -> Result<(), InvalidField> {
        match self.find(pick) {
            #[expect(clippy::cast_precision_loss, reason = "at most 30 days")]
            Some((most, origin)) if asked > most as f64 => Err(above(field, &asked, (&most, key, origin))),
            _ => Ok(()),
        }
    }

    /// Refuses limits the request set explicitly above a ceiling, and lowers defaults to it.
    ///
    /// # Errors
    /// Names the first limit that exceeds its ceiling.
    pub fn bound(&self, limits: Limits) -> Result<Limits, InvalidField> {
        let bound =
            |limit: Limit, key: &str, pick: fn(&Ceilings) -> Option<u64>| match (limit, self.find(pick)) {
                (Limit::Required(asked), Some((most, origin))) if asked > most => {
                    Err(above(&format!("limits.{key}"), &asked, (&most, key, origin)))
                }
                (Limit::Default(value), Some((most, _))) => Ok(Limit::Default(value.min(most))),
                (limit, _) => Ok(limit),
            };
        Ok(Limits {
            memory_mib: bound(limits.memory_mib, "memory_mib", |set| set.memory_mib)?,
            cpu_millis: self.clamp_cpus(limits.cpu_millis)?,
            pids: bound(limits.pids, "pids", |set| set.pids)?,
            open_files: bound(limits.open_files, "open_files", |set| set.open_files)?,
            disk_mib: bound(limits.disk_mib, "disk_mib", |set| set.disk_mib)?,
        })
    }

    fn clamp_cpus(&self, limit: Limit) -> Result<Limit, InvalidField> {
        let Some((most, origin)) = self.find(|set| set.cpus) else { return Ok(limit) };
        let most_millis = cpu_millis("limits.max.cpus", most)?;
        match limit {
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            Limit::Required(asked) if asked > most_millis => {
                Err(above("limits.cpus", &(asked as f64 / 1000.0), (&most, "cpus", origin)))
            }
            Limit::Required(_) => Ok(limit),
            Limit::Default(value) => Ok(Limit::Default(value.min(most_millis))),
        }
    }
}

/// The error for a value above its ceiling: names the field, the value, the ceiling and the config entry that sets
/// it.
fn above(
    field: &str,
    asked: &dyn fmt::Display,
    (most, key, origin): (&dyn fmt::Display, &str, &Origin),
) -> InvalidField {
    let whom = match origin {
        Origin::Everybody => "any request".to_owned(),
        Origin::Role(role) => format!("a {role}"),
        Origin::Key(name) => format!("the key `{name}`"),
    };
    let problem = format!(
        "{asked} is more than {most}, the most that {whom} may ask for; the operator of this server can raise it: `{key}` in {origin}"
    );
    invalid(field, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> CeilingRules {
        let memory = |mib| Ceilings { memory_mib: Some(mib), ..Ceilings::default() };
        CeilingRules {
            everybody: Ceilings { cpus: Some(1.5), wall_clock_s: Some(60), ..memory(1000) },
            roles: [(Role::Submitter, memory(500))].into(),
            keys: [("big".to_owned(), Ceilings { sandboxes: Some(7), ..memory(9000) })].into(),
        }
    }

    fn asked(memory_mib: u64) -> Limits {
        Limits { memory_mib: Limit::Required(memory_mib), ..Limits::default() }
    }

    #[test]
    fn key_ceilings_override_role_ceilings_override_server_ceilings() {
        let memory = |role, key| rules().of(role, key).effective().memory_mib;
        assert_eq!(memory(None, None), Some(1000));
        assert_eq!(memory(Some(Role::Operator), Some("other")), Some(1000));
        assert_eq!(memory(Some(Role::Submitter), Some("other")), Some(500));
        assert_eq!(memory(Some(Role::Submitter), Some("big")), Some(9000));
        let big = rules().of(Some(Role::Submitter), Some("big")).effective();
        assert_eq!((big.cpus, big.sandboxes, big.pids), (Some(1.5), Some(7), None), "field by field");
    }

    #[test]
    fn values_above_a_ceiling_are_refused_naming_the_config_entry() {
        let problem = |role, key, limits| rules().of(role, key).bound(limits).unwrap_err().to_string();
        assert_eq!(
            problem(None, None, asked(1001)),
            "limits.memory_mib: 1001 is more than 1000, the most that any request may ask for; the operator of this server can raise it: \
             `memory_mib` in [limits.max]"
        );
        let told = problem(Some(Role::Submitter), None, asked(501));
        assert!(
            told.contains("a submitter may ask for") && told.ends_with("[limits.max.roles.submitter]"),
            "{told}"
        );
        let told = problem(None, Some("big"), asked(9001));
        assert!(told.contains("the key `big`") && told.ends_with("[limits.max.keys.\"big\"]"), "{told}");
        let cpus = Limits { cpu_millis: Limit::Required(1501), ..Limits::default() };
        assert!(problem(None, None, cpus).starts_with("limits.cpus: 1.501 is more than 1.5,"));
        let rules = rules().of(None, None);
        let check = |seconds| {
            rules.check_seconds("limits.wall_clock_s", "wall_clock_s", seconds, |set| set.wall_clock_s)
        };
        assert!(check(60.0).is_ok() && check(60.1).is_err());
    }

    #[test]
    fn ceilings_lower_defaults_and_keep_explicit_values_that_fit() {
        let bounded = rules().of(None, None).bound(Limits::default()).unwrap();
        assert_eq!(bounded.memory_mib, Limit::Default(1000));
        assert_eq!(bounded.cpu_millis, Limit::Default(1500));
        assert_eq!(bounded.pids, Limits::default().pids);
        assert_eq!(rules().of(None, None).bound(asked(1000)).unwrap().memory_mib, Limit::Required(1000));
        assert_eq!(AppliedCeilings::default().bound(asked(9)).unwrap(), asked(9), "without ceilings");
    }

    #[test]
    fn cpus_must_be_a_number_in_range() {
        assert_eq!(cpu_millis("cpus", 0.29), Ok(290));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, 0.0, 0.000_001, 1024.1, 1e300] {
            let told = cpu_millis("limits.cpus", wrong).unwrap_err().to_string();
            assert!(told.contains("is not between 0.01 and 1024"), "{told}");
        }
    }

    #[test]
    fn invalid_ceilings_name_the_field() {
        for (ceilings, field) in [
            (Ceilings { memory_mib: Some(1), ..Ceilings::default() }, "memory_mib"),
            (Ceilings { cpus: Some(f64::NAN), ..Ceilings::default() }, "cpus"),
            (Ceilings { ttl_s: Some(0), ..Ceilings::default() }, "ttl_s"),
            (Ceilings { sandboxes: Some(0), ..Ceilings::default() }, "sandboxes"),
        ] {
            assert_eq!(ceilings.check().unwrap_err().field, field);
        }
        assert_eq!(rules().everybody.check(), Ok(()));
    }
}
