//! Build progress: the events for callers, and parsing the output of package managers.

use std::time::Duration;

use serde::Serialize;

use crate::stage::Stage;

/// An event of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BuildEvent {
    Started {
        stage: Stage,
    },
    /// The stage is unchanged and was skipped.
    Cached {
        stage: Stage,
    },
    Progress {
        stage: Stage,
        /// How much of it is done, if known.
        percent: Option<u8>,
        /// The current activity.
        doing: String,
    },
    Done {
        stage: Stage,
        #[serde(serialize_with = "seconds")]
        elapsed: Duration,
    },
    /// A message for the user.
    Note {
        text: String,
    },
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 10.0).round() / 10.0)
}

/// Parses progress from the output of one stage.
#[derive(Debug)]
pub(crate) struct ProgressParser {
    stage: Stage,
    /// The number of expected steps, once known.
    total: usize,
    done: usize,
    percent: Option<u8>,
}

impl ProgressParser {
    pub(crate) fn new(stage: Stage) -> Self {
        Self { stage, total: 0, done: 0, percent: None }
    }

    /// Parses a line; returns an event if there is progress to report.
    pub(crate) fn take(&mut self, line: &str) -> Option<BuildEvent> {
        let line = line.trim();
        let doing = match self.stage {
            Stage::Packages => self.parse_apt(line)?,
            Stage::Python => self.parse_pip(line)?,
            Stage::Base => line.strip_prefix("I: ")?.to_owned(),
            Stage::Node | Stage::Files | Stage::Finish => return None,
        };
        if let Some(percent) = (self.done * 100).checked_div(self.total) {
            // A second package list starts again from zero; the reported percentage must not go back.
            self.percent = self.percent.max(Some(u8::try_from(percent.min(99)).unwrap_or(99)));
        }
        let doing: String = doing.chars().filter(|c| !c.is_control()).take(60).collect();
        Some(BuildEvent::Progress { stage: self.stage, percent: self.percent, doing })
    }

    /// Parses apt output. Each package is fetched, unpacked and set up.
    fn parse_apt(&mut self, line: &str) -> Option<String> {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        // "2 upgraded, 712 newly installed, 0 to remove"
        if line.contains(" newly installed") {
            let numbers = line.split([' ', ',']).filter_map(|word| word.parse::<usize>().ok());
            let count: usize = numbers.take(2).sum();
            if count * 3 > self.total {
                // The first list only covers a few upgrades, so its percentage says nothing about the whole stage.
                (self.total, self.percent) = (count * 3, None);
            }
            return Some(format!("{count} packages"));
        }
        match first {
            "Unpacking" | "Setting" => {
                self.done += 1;
                let name = if first == "Setting" { words.nth(1)? } else { words.next()? };
                Some(format!("installing {name}"))
            }
            _ if first.starts_with("Get:") && self.total > 0 => {
                self.done += 1;
                // "Get:7 http://mirror trixie/main amd64 curl amd64 8.14"
                Some(format!("fetching {}", words.nth(3)?))
            }
            _ => None,
        }
    }

    fn parse_pip(&mut self, line: &str) -> Option<String> {
        let rest = line.strip_prefix("Collecting ").map(|rest| ("fetching", rest));
        if let Some((verb, rest)) = rest {
            return Some(format!("{verb} {}", rest.split([' ', '=']).next()?));
        }
        line.starts_with("Installing collected").then(|| "installing".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(event: Option<BuildEvent>) -> Option<u8> {
        match event {
            Some(BuildEvent::Progress { percent, .. }) => percent,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn progress_is_parsed_from_apt_output() {
        let mut reader = ProgressParser::new(Stage::Packages);
        assert_eq!(reader.take("Get:1 http://m trixie InRelease [140 kB]"), None, "lists are not packages");
        assert_eq!(
            percent(reader.take("0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.")),
            Some(0)
        );
        assert_eq!(percent(reader.take("Get:1 http://m trixie/main amd64 curl amd64 8.14 [1 kB]")), Some(16));
        assert_eq!(percent(reader.take("Unpacking curl (8.14) ...")), Some(33));
        let last = reader.take("Setting up curl (8.14) ...").unwrap();
        assert_eq!(
            last,
            BuildEvent::Progress {
                stage: Stage::Packages,
                percent: Some(50),
                doing: "installing curl".into()
            }
        );
        assert_eq!(reader.take(""), None);
    }

    #[test]
    fn upgrades_before_the_installation_do_not_count_as_the_total() {
        let mut reader = ProgressParser::new(Stage::Packages);
        reader.take("1 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.");
        for line in ["Get:1 u s a curl a 1", "Unpacking curl (1) ...", "Setting up curl (1) ..."] {
            reader.take(line);
        }
        assert_eq!(
            percent(reader.take("0 upgraded, 99 newly installed, 0 to remove and 0 not upgraded.")),
            Some(1)
        );
    }

    #[test]
    fn control_characters_are_removed_from_progress() {
        let mut reader = ProgressParser::new(Stage::Python);
        let Some(BuildEvent::Progress { doing, .. }) = reader.take("Collecting a\u{1b}[2Jb==1") else {
            panic!()
        };
        assert_eq!(doing, "fetching a[2Jb");
    }
}
