//! The target that the origin of a job refers to.

use std::fmt;

use job::JobId;

/// A service of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Notebook,
    /// The server that listens on this port.
    Port(u16),
}

/// One service of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) job: JobId,
    pub(crate) service: Service,
}

impl Target {
    /// Parses `<job>-jupyter` or `<job>-<port>`.
    pub(crate) fn parse(label: &str) -> Option<Self> {
        let (job, service) = label.rsplit_once('-')?;
        // Accept only the canonical form of an id: two spellings would be two origins for one target.
        let job: JobId = job.parse().ok().filter(|id: &JobId| id.to_string() == job)?;
        let service = match service {
            "jupyter" => Service::Notebook,
            digits => Service::Port(
                digits.parse().ok().filter(|port: &u16| port.to_string() == digits && *port > 0)?,
            ),
        };
        Some(Self { job, service })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Service::Notebook => write!(f, "{}-jupyter", self.job),
            Service::Port(port) => write!(f, "{}-{port}", self.job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_labels_round_trip() {
        let job = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
        for service in ["jupyter", "1", "5173", "65535"] {
            let label = format!("{job}-{service}");
            assert_eq!(Target::parse(&label).unwrap().to_string(), label);
        }
        for service in ["", "0", "65536", "080", "+80", "Jupyter", "80-1"] {
            assert_eq!(Target::parse(&format!("{job}-{service}")), None, "{service}");
        }
        assert_eq!(Target::parse("80"), None);
    }
}
