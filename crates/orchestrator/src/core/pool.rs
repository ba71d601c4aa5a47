//! The pool of sandboxes that are created ahead of time, kept frozen, and handed out in less than a millisecond.
//!
//! All are created with the operator's defaults, `pool_size` for each image of the pool. A job that asks for anything
//! else gets a new sandbox. A ready sandbox costs memory but no CPU time. A server that was killed leaves its pool
//! behind; the reconciler of the next server process removes it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandbox::{Image, SandboxId, SandboxSpec};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::settings::Settings;

/// Delay before a kind that could not be created is tried again; other kinds are created in the meantime.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long a new guest may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) struct Pool {
    members: Mutex<Members>,
    /// Notified when a sandbox was taken or the settings changed.
    pub(crate) changed: Notify,
}

pub(crate) struct Members {
    /// Number of ready sandboxes of each kind.
    size: usize,
    /// The wanted kinds, one for each image.
    kinds: Vec<Kind>,
    ready: VecDeque<(SandboxId, Kind)>,
    /// Sandboxes being created; listed so that the reconciler does not remove them.
    pub(crate) creating: HashSet<SandboxId>,
    /// Sandboxes given to a job whose log does not contain them yet; listed for the same reason.
    handed_out: HashSet<SandboxId>,
    /// Sandboxes that are no longer wanted, to be removed.
    pub(crate) outdated: Vec<SandboxId>,
    /// Wanted images that do not exist; each is logged once.
    missing_images: BTreeSet<String>,
    /// Kinds that could not be created, and when to try again.
    put_off: Vec<(Kind, Instant)>,
}

/// The properties that a ready sandbox must share with a job to be usable for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kind {
    pub(crate) spec: SandboxSpec,
    /// The version of the image, since an image can be rebuilt under the same name.
    pub(crate) version: Option<String>,
}

impl Members {
    fn count_ready(&self, kind: &Kind) -> usize {
        self.ready.iter().filter(|(_, made_as)| made_as == kind).count()
    }

    /// Marks ready sandboxes as outdated if their kind is no longer wanted or there are too many of it.
    fn discard_outdated(&mut self) {
        let mut kept: VecDeque<(SandboxId, Kind)> = VecDeque::new();
        for (sandbox, kind) in std::mem::take(&mut self.ready) {
            let as_many = kept.iter().filter(|(_, other)| *other == kind).count();
            if self.kinds.contains(&kind) && as_many < self.size {
                kept.push_back((sandbox, kind));
            } else {
                self.outdated.push(sandbox);
            }
        }
        self.ready = kept;
    }
}

impl Pool {
    pub(crate) fn new(settings: &Settings) -> Self {
        let members = Members {
            size: settings.pool_size,
            kinds: Vec::new(),
            ready: VecDeque::new(),
            creating: HashSet::new(),
            handed_out: HashSet::new(),
            outdated: Vec::new(),
            missing_images: BTreeSet::new(),
            put_off: Vec::new(),
        };
        Self { members: Mutex::new(members), changed: Notify::new() }
    }

    /// Applies new settings, and marks sandboxes that no longer fit them as outdated.
    pub(crate) fn change(&self, settings: &Settings) {
        let mut members = self.lock();
        members.size = settings.pool_size;
        for kind in &mut members.kinds {
            kind.spec = spec_of(settings, kind.spec.image.clone());
        }
        members.missing_images.clear();
        members.put_off.clear();
        members.discard_outdated();
        drop(members);
        self.changed.notify_one();
    }

    /// Takes a ready sandbox with this specification and version of its image; it is still frozen. It stays in
    /// [`Pool::members`] until [`Pool::released`].
    pub(crate) fn take(&self, spec: &SandboxSpec, version: Option<String>) -> Option<SandboxId> {
        let wanted = Kind { spec: SandboxSpec { labels: BTreeMap::new(), ..spec.clone() }, version };
        let mut members = self.lock();
        if members.size == 0 {
            return None;
        }
        let place = members.ready.iter().position(|(_, kind)| *kind == wanted);
        let sandbox = place.and_then(|place| members.ready.remove(place)).map(|(sandbox, _)| sandbox);
        members.handed_out.extend(sandbox);
        drop(members);
        // Notify also if there was none: an image may have appeared, disappeared or changed.
        self.changed.notify_one();
        sandbox
    }

    /// Whether the pool has a size above zero.
    pub(crate) fn is_wanted(&self) -> bool {
        self.lock().size > 0
    }

    /// Sets the wanted kinds, and marks ready sandboxes of other kinds as outdated.
    pub(crate) fn change_kinds(&self, kinds: Vec<Kind>) {
        let mut members = self.lock();
        if members.kinds != kinds {
            members.kinds = kinds;
            let Members { put_off, kinds, .. } = &mut *members;
            put_off.retain(|(kind, _)| kinds.contains(kind));
            members.discard_outdated();
        }
    }

    /// Records a missing image. Returns whether it was not recorded before.
    pub(crate) fn record_missing_image(&self, image: &str) -> bool {
        self.lock().missing_images.insert(image.to_owned())
    }

    /// Marks all ready sandboxes as outdated, because they may no longer exist.
    pub(crate) fn discard_ready(&self) {
        let mut members = self.lock();
        let Members { ready, outdated, put_off, .. } = &mut *members;
        outdated.extend(ready.drain(..).map(|(sandbox, _)| sandbox));
        put_off.clear();
        drop(members);
        self.changed.notify_one();
    }

    /// Forgets a sandbox that was taken, once the log of its job contains it.
    pub(crate) fn released(&self, sandbox: SandboxId) {
        self.lock().handed_out.remove(&sandbox);
    }

    /// All sandboxes that belong to the pool.
    pub(crate) fn members(&self) -> Vec<SandboxId> {
        let members = self.lock();
        let ready = members.ready.iter().map(|(sandbox, _)| sandbox);
        ready.chain(&members.creating).chain(&members.handed_out).chain(&members.outdated).copied().collect()
    }

    /// Closes the pool. Returns the remaining sandboxes, except those that were given to jobs.
    pub(crate) fn close(&self) -> Vec<SandboxId> {
        let mut members = self.lock();
        members.size = 0;
        members.discard_outdated();
        let creating: Vec<SandboxId> = members.creating.drain().collect();
        members.outdated.extend(creating);
        std::mem::take(&mut members.outdated)
    }

    /// Ends the creation of a sandbox; `made_as` is `None` if it failed.
    pub(crate) fn settle(&self, sandbox: SandboxId, made_as: Option<&Kind>) {
        let mut members = self.lock();
        members.creating.remove(&sandbox);
        match made_as {
            Some(kind) if members.kinds.contains(kind) && members.count_ready(kind) < members.size => {
                members.ready.push_back((sandbox, kind.clone()));
            }
            // The settings changed while the sandbox was being created.
            Some(_) => members.outdated.push(sandbox),
            None => {}
        }
    }

    /// The kind to create next: the one with the fewest ready sandboxes, except kinds that are put off.
    pub(crate) fn missing(&self) -> Option<Kind> {
        let now = Instant::now();
        let mut members = self.lock();
        members.put_off.retain(|(_, again)| *again > now);
        let is_postponed = |kind: &Kind| members.put_off.iter().any(|(other, _)| other == kind);
        let fewest = members
            .kinds
            .iter()
            .filter(|kind| !is_postponed(kind))
            .min_by_key(|kind| members.count_ready(kind))?;
        (members.count_ready(fewest) < members.size).then(|| fewest.clone())
    }

    /// Creating this kind failed; other kinds come first for a while.
    pub(crate) fn put_off(&self, kind: Kind) {
        self.lock().put_off.push((kind, Instant::now() + RETRY_PAUSE));
    }

    /// When the next kind that was put off is tried again.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.lock().put_off.iter().map(|(_, again)| *again).min()
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The specification of ready sandboxes under these settings.
pub(crate) fn spec_of(settings: &Settings, image: Image) -> SandboxSpec {
    SandboxSpec {
        image,
        isolation: settings.defaults.isolation,
        limits: settings.defaults.limits,
        extra_ca: Arc::clone(&settings.extra_ca),
        own_ca: None,
        labels: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(image: &str, version: &str) -> Kind {
        let spec = spec_of(&Settings::default(), Image::Named(image.into()));
        Kind { spec, version: Some(version.into()) }
    }

    fn pool(kinds: &[Kind]) -> Pool {
        let pool = Pool::new(&Settings { pool_size: 1, ..Settings::default() });
        pool.change_kinds(kinds.to_vec());
        while let Some(kind) = pool.missing() {
            let sandbox = SandboxId::generate();
            pool.lock().creating.insert(sandbox);
            pool.settle(sandbox, Some(&kind));
        }
        pool
    }

    fn take(pool: &Pool, kind: &Kind) -> Option<SandboxId> {
        pool.take(&kind.spec, kind.version.clone())
    }

    #[test]
    fn pool_hands_out_sandboxes_only_for_the_same_image() {
        let (one, other) = (kind("one", "1"), kind("other", "1"));
        let pool = pool(&[one.clone(), other.clone()]);
        assert_eq!(pool.members().len(), 2);
        let first = take(&pool, &one).unwrap();
        assert_eq!(take(&pool, &one), None, "there was one");
        assert_eq!(pool.missing(), Some(one));
        assert_ne!(take(&pool, &other), Some(first));
        assert_eq!(take(&pool, &kind("third", "1")), None);
    }

    #[test]
    fn rebuilt_image_replaces_ready_sandboxes() {
        let old = kind("one", "1");
        let pool = pool(std::slice::from_ref(&old));
        let new = kind("one", "2");
        assert_eq!(take(&pool, &new), None, "made of the image as it was");
        pool.change_kinds(vec![new.clone()]);
        assert_eq!(pool.lock().outdated.len(), 1);
        assert_eq!(pool.missing(), Some(new));
    }

    #[tokio::test(start_paused = true)]
    async fn failing_image_is_postponed_while_others_are_created() {
        let (bad, good) = (kind("bad", "1"), kind("good", "1"));
        let pool = Pool::new(&Settings { pool_size: 2, ..Settings::default() });
        pool.change_kinds(vec![bad.clone(), good.clone()]);
        for _ in 0..2 {
            while pool.missing() == Some(bad.clone()) {
                pool.put_off(bad.clone());
            }
            assert_eq!(pool.missing(), Some(good.clone()), "the good one is made while the bad one waits");
            pool.settle(SandboxId::generate(), Some(&good));
        }
        assert_eq!(pool.missing(), None);
        tokio::time::sleep_until(pool.next_try().unwrap()).await;
        assert_eq!(pool.missing(), Some(bad.clone()), "it is tried again");
        pool.put_off(bad.clone());
        let repaired = kind("bad", "2");
        pool.change_kinds(vec![repaired.clone(), good]);
        assert_eq!(pool.missing(), Some(repaired), "another image of that name has not failed yet");
        assert_eq!(pool.next_try(), None);
    }

    #[test]
    fn ready_sandboxes_are_discarded_after_a_backend_outage() {
        let one = kind("one", "1");
        let pool = pool(std::slice::from_ref(&one));
        pool.discard_ready();
        assert_eq!(take(&pool, &one), None);
        assert_eq!((pool.members().len(), pool.missing()), (1, Some(one)), "it is known until it is removed");
    }

    #[test]
    fn closing_the_pool_keeps_sandboxes_given_to_jobs() {
        let (one, other) = (kind("one", "1"), kind("other", "1"));
        let pool = pool(&[one.clone(), other.clone()]);
        let given = take(&pool, &one).unwrap();
        let removed = pool.close();
        assert_eq!(removed.len(), 1);
        assert!(!removed.contains(&given) && pool.members().contains(&given));
        assert_eq!(take(&pool, &other), None, "it is closed");
        pool.released(given);
        assert!(pool.members().is_empty());
    }
}
