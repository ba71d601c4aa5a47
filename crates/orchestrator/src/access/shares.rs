//! Links that give anyone who has them access to one view of one job. Each valid link is on record, so that it can be
//! listed and revoked.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Actor, SessionId};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;

/// Maximum number of valid links per job.
const MAX_LINKS_PER_JOB: usize = 200;

/// Identifies a link; does not grant access.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShareId(String);

impl ShareId {
    /// Letters and digits only.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ShareId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

/// A link to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSharedLink {
    pub job: JobId,
    /// The view of the job, as named by the server.
    pub view: String,
    /// Whether visitors may type and click.
    pub may_use: bool,
    pub by: Actor,
    /// If set, the link becomes invalid when this login ends.
    pub session: Option<SessionId>,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLink {
    pub id: ShareId,
    pub job: JobId,
    /// The view of the job, as named by the server.
    pub view: String,
    /// Whether visitors may type and click.
    pub may_use: bool,
    pub by: Actor,
    /// If set, the link becomes invalid when this login ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// In milliseconds since 1970.
    pub created_ms: i64,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: i64,
}

/// All valid links, and some that have expired.
#[derive(Debug, Default)]
pub(crate) struct Shares(RwLock<HashMap<ShareId, SharedLink>>);

impl Shares {
    pub(crate) fn new(links: Vec<SharedLink>) -> Self {
        Self(RwLock::new(links.into_iter().map(|link| (link.id.clone(), link)).collect()))
    }

    fn get(&self, id: &ShareId) -> Option<SharedLink> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The links of a job that have not expired, newest first.
    fn of_job(&self, job: JobId, now_ms: i64) -> Vec<SharedLink> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<SharedLink> =
            all.values().filter(|link| link.job == job && now_ms < link.until_ms).cloned().collect();
        found.sort_by(|one, other| {
            (other.created_ms, other.id.as_str()).cmp(&(one.created_ms, one.id.as_str()))
        });
        found
    }

    fn add(&self, link: SharedLink, now_ms: i64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, link| now_ms < link.until_ms);
        all.insert(link.id.clone(), link);
    }

    fn remove(&self, id: &ShareId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Drops the links of a deleted job.
    pub(crate) fn forget(&self, job: JobId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, link| link.job != job);
    }
}

impl Orchestrator {
    /// Puts a link on record.
    ///
    /// # Errors
    /// The job has too many links, or the store fails.
    pub async fn add_share(&self, new: NewSharedLink) -> Result<SharedLink, OrchestratorError> {
        let NewSharedLink { job, view, may_use, by, session, until_ms } = new;
        if self.core.shares.of_job(job, now_ms()).len() >= MAX_LINKS_PER_JOB {
            return Err(OrchestratorError::TooManyShares { job, most: MAX_LINKS_PER_JOB });
        }
        let id = ShareId(Uuid::new_v4().simple().to_string());
        let link = SharedLink { id, job, view, may_use, by, session, created_ms: now_ms(), until_ms };
        self.core.store.put_share(link.clone()).await?;
        self.core.shares.add(link.clone(), now_ms());
        Ok(link)
    }

    /// Whether a link is on record and its login has not ended. The caller must check the expiry and the key of the
    /// creator.
    #[must_use]
    pub fn share_holds(&self, id: &ShareId) -> bool {
        let link = self.core.shares.get(id);
        link.is_some_and(|link| link.session.is_none_or(|session| self.session_holds(&session)))
    }

    /// The links of a job that are valid according to [`Orchestrator::share_holds`], newest first.
    #[must_use]
    pub fn shares(&self, job: JobId) -> Vec<SharedLink> {
        let mut links = self.core.shares.of_job(job, now_ms());
        links.retain(|link| self.share_holds(&link.id));
        links
    }

    /// Revokes a link and closes what was opened with it.
    ///
    /// # Errors
    /// The job has no such link, or the store fails; in that case the link stays valid.
    pub async fn revoke_share(&self, job: JobId, id: &ShareId) -> Result<(), OrchestratorError> {
        if self.core.shares.get(id).is_none_or(|link| link.job != job) {
            return Err(OrchestratorError::NoShare(id.as_str().to_owned()));
        }
        self.core.store.remove_share(id.clone()).await?;
        self.core.shares.remove(id);
        self.core.keys.changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(id: &str, job: JobId, created_ms: i64, until_ms: i64) -> SharedLink {
        let (view, by) = ("desktop".to_owned(), Actor::named("ada"));
        SharedLink {
            id: ShareId(id.into()),
            job,
            view,
            may_use: false,
            by,
            session: None,
            created_ms,
            until_ms,
        }
    }

    #[test]
    fn shared_links_are_listed_newest_first_until_they_expire() {
        let (job, other) = (JobId::generate(), JobId::generate());
        let shares =
            Shares::new(vec![link("old", job, 1, 100), link("else", other, 2, 100), link("new", job, 3, 50)]);
        let ids = |now_ms| {
            shares.of_job(job, now_ms).iter().map(|link| link.id.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ids(49), ["new", "old"]);
        assert_eq!(ids(50), ["old"]);
        shares.remove(&ShareId("old".into()));
        assert_eq!(ids(49), ["new"]);
        shares.add(link("newest", job, 60, 200), 60);
        assert_eq!(ids(60), ["newest"]);
        assert_eq!(shares.get(&ShareId("new".into())), None, "what has ended is forgotten");
        shares.forget(other);
        assert_eq!(shares.get(&ShareId("else".into())), None);
    }
}
