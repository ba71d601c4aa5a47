//! Links that share a read-only view of a job.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use job::{JobId, ShareId, SharedLink};

/// All valid links, and some that have expired.
#[derive(Debug, Default)]
pub(crate) struct Shares(RwLock<HashMap<ShareId, SharedLink>>);

impl Shares {
    pub(crate) fn new(links: Vec<SharedLink>) -> Self {
        Self(RwLock::new(links.into_iter().map(|link| (link.id.clone(), link)).collect()))
    }

    pub(crate) fn get(&self, id: &ShareId) -> Option<SharedLink> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The links of a job that have not expired, newest first.
    pub(crate) fn of_job(&self, job: JobId, now_ms: i64) -> Vec<SharedLink> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<SharedLink> =
            all.values().filter(|link| link.job == job && now_ms < link.until_ms).cloned().collect();
        found.sort_by(|one, other| {
            (other.created_ms, other.id.as_str()).cmp(&(one.created_ms, one.id.as_str()))
        });
        found
    }

    pub(crate) fn add(&self, link: SharedLink, now_ms: i64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, link| now_ms < link.until_ms);
        all.insert(link.id.clone(), link);
    }

    pub(crate) fn remove(&self, id: &ShareId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Drops the links of a deleted job.
    pub(crate) fn forget(&self, job: JobId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, link| link.job != job);
    }
}

#[cfg(test)]
mod tests {
    use job::{Actor, ShareId};

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
