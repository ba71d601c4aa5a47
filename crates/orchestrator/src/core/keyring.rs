//! All API keys of a server, in memory. A check costs one digest and one map lookup, whether or not the key is valid.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use job::{AppliedCeilings, CeilingRules, InvalidField, JobId, Key, KeyId, KeyLimits, NewKey, Role, invalid};
use store::Store;
use tokio::sync::watch;

use crate::clock::now_ms;
use crate::core::oidc_users::{OIDC_ID_PREFIX, OidcUsers};
use crate::core::token::Token;
use crate::error::OrchestratorError;

const MAX_NAME_BYTES: usize = 64;
/// Names that logs use for callers without a key and for the system itself. A key with such a name could impersonate
/// them.
const RESERVED_NAMES: [&str; 16] = [
    "anybody",
    "nobody",
    "guest",
    "inside",
    "system",
    "server",
    "caisson",
    "retention",
    "agent",
    "model",
    "person",
    "people",
    "loopback",
    "localhost",
    "sandbox",
    "job",
];
/// Upper bound for count limits; to allow more, leave the limit out.
const MAX_COUNT_LIMIT: u32 = 1_000_000;

/// The keys by the digest of their secret, and by id.
#[derive(Debug, Default)]
pub(crate) struct KeyRing {
    keys: RwLock<Keys>,
    /// Whether authentication is required even without keys, because users can log in through OIDC.
    pub(crate) is_oidc_enabled: AtomicBool,
    /// Whether there has ever been a key. A running server that required keys never goes back to open access.
    pub(crate) has_had_keys: AtomicBool,
    /// Held from reading the keys until the change to them is stored.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Counts the changes to credentials, so that open connections re-check theirs.
    pub(crate) changes: watch::Sender<u64>,
    /// Users who log in through OIDC.
    pub(crate) people: OidcUsers,
    /// Per key with limits: held from checking its usage until the new usage counts.
    usage_locks: Mutex<HashMap<KeyId, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug, Default)]
struct Keys {
    by_digest: HashMap<[u8; 32], Arc<Key>>,
    by_id: HashMap<KeyId, Arc<Key>>,
}

impl KeyRing {
    pub(crate) fn new(keys: Vec<([u8; 32], Key)>) -> Self {
        let ring = Self::default();
        for (digest, key) in keys {
            ring.add(digest, Arc::new(key));
        }
        ring
    }

    /// Restores the users that an earlier server process has stored.
    pub(crate) fn restore_oidc_users(&self, people: Vec<(KeyId, Role)>) {
        for (id, role) in people {
            self.people.remember_role(&id, role);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.read().by_id.is_empty()
    }

    pub(crate) fn find(&self, token: &Token) -> Option<Arc<Key>> {
        let digest = token.digest();
        self.read().by_digest.get(&digest).cloned()
    }

    pub(crate) fn by_id(&self, id: &KeyId) -> Option<Arc<Key>> {
        self.read().by_id.get(id).cloned()
    }

    pub(crate) fn list(&self) -> Vec<Arc<Key>> {
        let mut keys: Vec<Arc<Key>> = self.read().by_id.values().cloned().collect();
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        keys
    }

    /// The limits of a key or a user; the defaults if the key was revoked.
    pub(crate) fn limits(&self, id: &KeyId) -> KeyLimits {
        let of_key = self.read().by_id.get(id).map(|key| key.limits);
        of_key.or_else(|| self.people.limits(id)).unwrap_or_default()
    }

    /// All keys and users with a limit on running jobs, and that limit.
    pub(crate) fn with_running_limit(&self, rules: &CeilingRules) -> Vec<(KeyId, u32)> {
        let keys = self.read().by_id.keys().cloned().collect::<Vec<_>>();
        let all = keys.into_iter().chain(self.people.ids());
        all.filter_map(|id| Some((self.running_limit(&id, rules)?, id)))
            .map(|(most, id)| (id, most))
            .collect()
    }

    /// How many jobs and sandboxes of a key or user may run at once: the lower of its own limit and its ceiling.
    pub(crate) fn running_limit(&self, id: &KeyId, rules: &CeilingRules) -> Option<u32> {
        let of_rules = self.ceilings(id, rules).effective().running;
        self.limits(id).max_running.into_iter().chain(of_rules).min()
    }

    /// The ceilings of a key or user.
    pub(crate) fn ceilings(&self, id: &KeyId, rules: &CeilingRules) -> AppliedCeilings {
        match self.by_id(id) {
            Some(key) => rules.of(Some(key.role), Some(&key.name)),
            None => rules.of(self.people.role(id), None),
        }
    }

    /// How many keys and users share the server.
    pub(crate) fn count(&self) -> usize {
        self.read().by_id.len() + self.people.ids().len()
    }

    /// Waits until no other request is taking more for this key.
    pub(crate) async fn usage_lock(&self, id: &KeyId) -> UsageLock {
        let lock = {
            let mut usage_locks = self.usage_locks.lock().unwrap_or_else(PoisonError::into_inner);
            // A lock that only the map references has no holder and no waiter.
            usage_locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(usage_locks.entry(id.clone()).or_default())
        };
        UsageLock(lock.lock_owned().await)
    }

    fn add(&self, digest: [u8; 32], key: Arc<Key>) {
        let mut keys = self.write();
        keys.by_id.insert(key.id.clone(), Arc::clone(&key));
        keys.by_digest.insert(digest, key);
        drop(keys);
        self.has_had_keys.store(true, Ordering::Relaxed);
        self.changed();
    }

    fn remove(&self, id: &KeyId) {
        let mut keys = self.write();
        keys.by_id.remove(id);
        keys.by_digest.retain(|_, key| key.id != *id);
        drop(keys);
        self.changed();
    }

    /// Makes everything that stays open check its credentials again.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// One key's exclusive right to take more. Other requests with the same key wait until it is dropped.
pub(crate) struct UsageLock(#[expect(dead_code, reason = "held, not read")] tokio::sync::OwnedMutexGuard<()>);

pub(crate) async fn add(
    store: &dyn Store,
    ring: &KeyRing,
    new: NewKey,
) -> Result<(Arc<Key>, Token), OrchestratorError> {
    check(&new)?;
    let _changing = ring.changing.lock().await;
    if ring.list().iter().any(|key| key.name == new.name) {
        let problem = format!("the key `{}` already exists; revoke it first, or use another name", new.name);
        return Err(invalid("name", problem).into());
    }
    if ring.is_empty() && new.role != Role::Admin {
        let problem = "the first key must have the role admin, because the server requires keys from then on";
        return Err(invalid("role", problem).into());
    }
    let key = Key {
        id: KeyId(JobId::generate().to_string()),
        name: new.name,
        role: new.role,
        limits: new.limits,
        created_ms: now_ms(),
    };
    let token = Token::generate();
    store.put_key(token.digest(), key.clone()).await?;
    let key = Arc::new(key);
    ring.add(token.digest(), Arc::clone(&key));
    Ok((key, token))
}

pub(crate) fn named(ring: &KeyRing, name: &str) -> Result<Arc<Key>, OrchestratorError> {
    let found = ring.list().into_iter().find(|key| key.name == name || key.id.as_str() == name);
    found.ok_or_else(|| OrchestratorError::NoKey(name.to_owned()))
}

pub(crate) async fn remove(
    store: &dyn Store,
    ring: &KeyRing,
    key: Arc<Key>,
) -> Result<Arc<Key>, OrchestratorError> {
    store.remove_key(key.id.clone()).await?;
    ring.remove(&key.id);
    Ok(key)
}

fn check(new: &NewKey) -> Result<(), InvalidField> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'@');
    if new.name.is_empty() || new.name.len() > MAX_NAME_BYTES || !new.name.bytes().all(is_letter) {
        let problem = format!(
            "`{}` is not a name; use 1 to {MAX_NAME_BYTES} letters, digits, `.`, `-`, `_` or `@`",
            new.name.escape_debug()
        );
        return Err(invalid("name", problem));
    }
    if RESERVED_NAMES.contains(&new.name.to_ascii_lowercase().as_str()) {
        let problem = format!("`{}` is reserved for callers without a key; use another name", new.name);
        return Err(invalid("name", problem));
    }
    // Keys are looked up by name or id, so no name may be the id of another key or look like that of a user.
    if new.name.parse::<JobId>().is_ok() || new.name.starts_with(OIDC_ID_PREFIX) {
        let problem = format!("`{}` looks like the id of a key; use another name", new.name);
        return Err(invalid("name", problem));
    }
    check_limits(&new.limits)
}

/// Refuses limits that would let nothing through.
///
/// # Errors
/// Names the field and the problem.
pub fn check_limits(limits: &KeyLimits) -> Result<(), InvalidField> {
    let KeyLimits { max_running, max_queued, requests_per_second, dollars_per_day } = *limits;
    if max_running == Some(0) {
        return Err(invalid("limits.max_running", "0 would let nothing run; omit it for no limit"));
    }
    if requests_per_second == Some(0) {
        return Err(invalid("limits.requests_per_second", "0 would refuse everything; omit it for no limit"));
    }
    let counts = [
        ("limits.max_running", max_running),
        ("limits.max_queued", max_queued),
        ("limits.requests_per_second", requests_per_second),
    ];
    for (field, count) in counts {
        if count.is_some_and(|count| count > MAX_COUNT_LIMIT) {
            return Err(invalid(field, format!("at most {MAX_COUNT_LIMIT}; omit it for no limit")));
        }
    }
    if dollars_per_day.is_some_and(|dollars| !dollars.is_finite() || dollars < 0.0) {
        return Err(invalid("limits.dollars_per_day", "must be a number of at least 0"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_key_names_are_refused() {
        let check = |name: &str| {
            let new = NewKey { name: name.into(), role: Role::Viewer, limits: KeyLimits::default() };
            check(&new).map_err(|refused| refused.problem)
        };
        for name in ["ada", "root", "admin", "agent-7", "guest@example.org", "system.backup"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in RESERVED_NAMES.iter().copied().chain(["Nobody", "SYSTEM"]) {
            let problem = check(name).unwrap_err();
            assert!(problem.contains(name) && problem.contains("another name"), "{problem}");
        }
        for name in ["01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f", "01930d5e7b1a7c3e9f003a5b1c2d4e6f", "oidc-7f"] {
            assert!(check(name).unwrap_err().contains("the id of a key"), "{name}");
        }
    }
}
