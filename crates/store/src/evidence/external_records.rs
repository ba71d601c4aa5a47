//! What was kept outside of the data folder: signed heads, and statements about deleted jobs.

use job::JobId;

use crate::evidence::head::SignedHead;
use crate::evidence::tombstone::Tombstone;

/// Maximum number of lines of one file.
const MAX_LINES: usize = 1_000_000;

/// Signed heads and deletion statements that were kept outside of the data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExternalRecords {
    pub heads: Vec<SignedHead>,
    pub tombstones: Vec<Tombstone>,
}

impl ExternalRecords {
    /// Parses a file: one JSON object, or one per line.
    ///
    /// # Errors
    /// Names the line that is neither a head nor a deletion statement, and why.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut kept = Self::default();
        if kept.take(text).is_ok() {
            return Ok(kept);
        }
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        if lines.clone().nth(MAX_LINES).is_some() {
            return Err(format!("it has more than {MAX_LINES} heads; check it in parts"));
        }
        for (number, line) in lines {
            kept.take(line).map_err(|error| format!("line {} is no signed head: {error}", number + 1))?;
        }
        let is_empty = kept.heads.is_empty() && kept.tombstones.is_empty();
        if is_empty { Err("there is no signed head in it".into()) } else { Ok(kept) }
    }

    fn take(&mut self, text: &str) -> Result<(), serde_json::Error> {
        if let Ok(tombstone) = serde_json::from_str(text) {
            self.tombstones.push(tombstone);
        } else {
            self.heads.push(serde_json::from_str(text)?);
        }
        Ok(())
    }

    /// The heads of one job.
    pub(crate) fn of(&self, job: JobId) -> Vec<SignedHead> {
        self.heads.iter().filter(|head| head.job == job).cloned().collect()
    }

    /// The statement that this job was deleted.
    pub(crate) fn tombstone(&self, job: JobId) -> Option<&Tombstone> {
        self.tombstones.iter().find(|tombstone| tombstone.deleted_job == job)
    }

    /// All jobs with a head or a deletion statement.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = JobId> {
        let deleted = self.tombstones.iter().map(|tombstone| tombstone.deleted_job);
        self.heads.iter().map(|head| head.job).chain(deleted)
    }

    /// The keys that signed, each with a description of what it signed.
    pub fn keys(&self) -> impl Iterator<Item = (&str, String)> {
        let of_head = |head: &SignedHead| format!("the head of event {} of job {}", head.sequence, head.job);
        let heads = self.heads.iter().map(move |head| (head.key.as_str(), of_head(head)));
        let deleted = self.tombstones.iter().map(|tombstone| {
            (tombstone.key.as_str(), format!("the statement that job {} was deleted", tombstone.deleted_job))
        });
        heads.chain(deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lines_in_a_heads_file_are_reported_with_their_number() {
        assert!(ExternalRecords::read("").unwrap_err().contains("no signed head"));
        assert!(ExternalRecords::read("\n{}\n").unwrap_err().contains("line 2"));
        assert!(
            ExternalRecords::read(&"{}\n".repeat(MAX_LINES + 1)).unwrap_err().contains("more than 1000000")
        );
        assert!(ExternalRecords::read(r#"{"job":"x"}"#).unwrap_err().contains("line 1"));
    }

    #[test]
    fn heads_and_deletion_statements_may_share_a_file() {
        let job = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
        let head = format!(
            r#"{{"job":"{job}","sequence":1,"hash":"00","number":1,"time_ms":1,"key":"00","signature":"00"}}"#
        );
        let gone = format!(
            r#"{{"deleted_job":"{job}","sequence":1,"hash":"00","by":"ada","time_ms":1,"key":"11","signature":"00"}}"#
        );
        let kept = ExternalRecords::read(&format!("{head}\n\n{gone}\n")).unwrap();
        assert_eq!((kept.heads.len(), kept.tombstones.len()), (1, 1));
        assert_eq!(kept.keys().map(|(key, _)| key).collect::<Vec<_>>(), ["00", "11"]);
        assert_eq!(ExternalRecords::read(&gone).unwrap().tombstones, kept.tombstones);
    }
}
