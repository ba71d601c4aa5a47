//! All keys of a server, in memory: a check costs one digest and one look into a map, whether the key is good or not.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::people::{PERSON_PREFIX, People};
use super::{AppliedCeilings, CeilingRules, Key, KeyId, KeyLimits, NewKey, Role, Token};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::folder::DataFolder;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::request::{InvalidField, invalid};
use crate::store::{SqliteStore, Store, has_keys};

const MAX_NAME_BYTES: usize = 64;
/// What logs call those who have no key, and what the system does itself: a key of such a name could pass for them.
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
/// The highest count that a limit may have: what is more is none.
const MOST_COUNTED: u32 = 1_000_000;

/// The keys by the digest of their secret, and by their id.
#[derive(Debug, Default)]
pub(crate) struct KeyRing {
    keys: RwLock<Keys>,
    /// Whether callers are asked also while there are none: there are accounts elsewhere.
    is_required: AtomicBool,
    /// Whether there was one: a server that has asked for keys does not become one that asks nobody while it runs.
    is_closed: AtomicBool,
    /// Held from the look at the keys to the change of them.
    changing: tokio::sync::Mutex<()>,
    /// Counts the changes of what lets callers in, for what stays open with it.
    changes: watch::Sender<u64>,
    /// Those who log in with accounts elsewhere.
    pub(super) people: People,
    /// Held by each key with limits from the look at what it uses to the use of more.
    turns: Mutex<HashMap<KeyId, Arc<tokio::sync::Mutex<()>>>>,
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

    /// Remembers the people whom an earlier server has met.
    pub(crate) fn know_people(&self, people: Vec<(KeyId, Role)>) {
        for (id, role) in people {
            self.people.meet(&id, role);
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

    fn find(&self, token: &Token) -> Option<Arc<Key>> {
        let digest = token.digest();
        self.read().by_digest.get(&digest).cloned()
    }

    pub(crate) fn by_id(&self, id: &KeyId) -> Option<Arc<Key>> {
        self.read().by_id.get(id).cloned()
    }

    fn list(&self) -> Vec<Arc<Key>> {
        let mut keys: Vec<Arc<Key>> = self.read().by_id.values().cloned().collect();
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        keys
    }

    /// What a key or a person may use; nothing is known of a key that was revoked.
    pub(super) fn limits(&self, id: &KeyId) -> KeyLimits {
        let of_key = self.read().by_id.get(id).map(|key| key.limits);
        of_key.or_else(|| self.people.limits(id)).unwrap_or_default()
    }

    /// The keys and people whose jobs may not all work at once, with how many may.
    pub(crate) fn with_running_limit(&self, rules: &CeilingRules) -> Vec<(KeyId, u32)> {
        let keys = self.read().by_id.keys().cloned().collect::<Vec<_>>();
        let all = keys.into_iter().chain(self.people.ids());
        all.filter_map(|id| Some((self.running_limit(&id, rules)?, id)))
            .map(|(most, id)| (id, most))
            .collect()
    }

    /// How many jobs and sandboxes of a key or a person may be at work at once, by the key itself and by its ceiling.
    pub(super) fn running_limit(&self, id: &KeyId, rules: &CeilingRules) -> Option<u32> {
        let of_rules = self.ceilings(id, rules).effective().running;
        self.limits(id).max_running.into_iter().chain(of_rules).min()
    }

    /// The most that a key or a person may ask for.
    pub(crate) fn ceilings(&self, id: &KeyId, rules: &CeilingRules) -> AppliedCeilings {
        match self.by_id(id) {
            Some(key) => rules.of(Some(key.role), Some(&key.name)),
            None => rules.of(self.people.role(id), None),
        }
    }

    /// How many there are to share what the server has.
    pub(super) fn count(&self) -> usize {
        self.read().by_id.len() + self.people.ids().len()
    }

    /// Waits until nobody else takes more for this key.
    pub(super) async fn turn(&self, id: &KeyId) -> Turn {
        let lock = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever is in the map alone has no turn and waits for none.
            turns.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(turns.entry(id.clone()).or_default())
        };
        Turn(lock.lock_owned().await)
    }

    fn add(&self, digest: [u8; 32], key: Arc<Key>) {
        let mut keys = self.write();
        keys.by_id.insert(key.id.clone(), Arc::clone(&key));
        keys.by_digest.insert(digest, key);
        drop(keys);
        self.is_closed.store(true, Ordering::Relaxed);
        self.changed();
    }

    fn remove(&self, id: &KeyId) {
        let mut keys = self.write();
        keys.by_id.remove(id);
        keys.by_digest.retain(|_, key| key.id != *id);
        drop(keys);
        self.changed();
    }

    /// Lets everything that stays open look again whether it may.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

/// The right of one key to take more; others of the same key wait until it is dropped.
pub(crate) struct Turn(#[expect(dead_code, reason = "held, not read")] tokio::sync::OwnedMutexGuard<()>);

impl Orchestrator {
    /// Whether callers must say who they are.
    #[must_use]
    pub fn needs_keys(&self) -> bool {
        self.core.keys.is_closed.load(Ordering::Relaxed) || self.knows_people()
    }

    /// Asks callers who they are from now on, also while there are no keys: there is another way to log in. Who comes by it
    /// may use what their role may.
    pub fn admit_people(&self, limits: BTreeMap<Role, KeyLimits>) {
        self.core.keys.people.bound(limits);
        self.core.keys.is_required.store(true, Ordering::Relaxed);
    }

    /// Whether there are accounts elsewhere to log in with.
    #[must_use]
    pub fn knows_people(&self) -> bool {
        self.core.keys.is_required.load(Ordering::Relaxed)
    }

    /// Changes whenever a key is added or revoked, a login is ended, or a shared link is revoked.
    #[must_use]
    pub fn key_changes(&self) -> watch::Receiver<u64> {
        self.core.keys.changes.subscribe()
    }

    /// The key that has this secret.
    #[must_use]
    pub fn key_of(&self, token: &Token) -> Option<Arc<Key>> {
        self.core.keys.find(token)
    }

    /// The key that has this id, while it holds.
    #[must_use]
    pub fn key(&self, id: &KeyId) -> Option<Arc<Key>> {
        self.core.keys.by_id(id)
    }

    /// The key that a job was handed in with.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn submitter(&self, job: JobId) -> Result<Option<KeyId>, OrchestratorError> {
        self.core.store.submitter(job).await
    }

    /// All keys, by name.
    #[must_use]
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.core.keys.list()
    }

    /// Makes a key. Its secret is nowhere but in the answer. The first one must be an admin's: with it the server begins
    /// to ask for keys, and somebody must be able to make the next.
    ///
    /// # Errors
    /// A field cannot be accepted, the name is taken, or the store fails.
    pub async fn add_key(&self, new: NewKey) -> Result<(Arc<Key>, Token), OrchestratorError> {
        add(&*self.core.store, &self.core.keys, new).await
    }

    /// Ends a key, by its name or id. The last one of an admin stays: a server that asks for keys does not become one
    /// that asks nobody while it runs.
    ///
    /// # Errors
    /// There is no such key, or it must stay.
    pub async fn revoke_key(&self, name: &str) -> Result<Arc<Key>, OrchestratorError> {
        let _changing = self.core.keys.changing.lock().await;
        let key = named(&self.core.keys, name)?;
        let is_other_admin = |other: &Arc<Key>| other.id != key.id && other.role == Role::Admin;
        if key.role == Role::Admin && !self.keys().iter().any(is_other_admin) {
            let problem = "is the last key of an admin; nobody could make or end keys any more. To be without keys again, \
                           stop the server and use `caisson keys revoke --data`";
            return Err(invalid("name", problem).into());
        }
        remove(&*self.core.store, &self.core.keys, key).await
    }
}

/// The keys of a data folder that no server uses: for the first one, and for who has lost the last.
pub struct StoredKeys {
    store: SqliteStore,
    ring: KeyRing,
    _folder: DataFolder,
}

impl StoredKeys {
    /// Reads them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(folder: DataFolder) -> Result<Self, OrchestratorError> {
        let store = SqliteStore::open(&folder.database())?;
        let ring = KeyRing::new(store.keys().await?);
        Ok(Self { store, ring, _folder: folder })
    }

    /// Whether there is any in a folder, also while a server uses it.
    #[must_use]
    pub fn are_in(folder: &Path) -> bool {
        has_keys(&DataFolder::database_in(folder))
    }

    /// All of them, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Key>> {
        self.ring.list()
    }

    /// As [`Orchestrator::add_key`].
    ///
    /// # Errors
    /// A field cannot be accepted, the name is taken, or the store fails.
    pub async fn add(&self, new: NewKey) -> Result<(Arc<Key>, Token), OrchestratorError> {
        add(&self.store, &self.ring, new).await
    }

    /// Ends a key, by its name or id, whichever it is.
    ///
    /// # Errors
    /// There is no such key, or the store fails.
    pub async fn revoke(&self, name: &str) -> Result<Arc<Key>, OrchestratorError> {
        remove(&self.store, &self.ring, named(&self.ring, name)?).await
    }
}

async fn add(store: &dyn Store, ring: &KeyRing, new: NewKey) -> Result<(Arc<Key>, Token), OrchestratorError> {
    check(&new)?;
    let _changing = ring.changing.lock().await;
    if ring.list().iter().any(|key| key.name == new.name) {
        let problem = format!("there is a key `{}`; revoke it first, or use another name", new.name);
        return Err(invalid("name", problem).into());
    }
    if ring.is_empty() && new.role != Role::Admin {
        let problem = "the first key must be one of an admin: from then on this server asks for keys";
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

fn named(ring: &KeyRing, name: &str) -> Result<Arc<Key>, OrchestratorError> {
    let found = ring.list().into_iter().find(|key| key.name == name || key.id.as_str() == name);
    found.ok_or_else(|| OrchestratorError::NoKey(name.to_owned()))
}

async fn remove(store: &dyn Store, ring: &KeyRing, key: Arc<Key>) -> Result<Arc<Key>, OrchestratorError> {
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
        let problem = format!("`{}` is what logs call somebody without a key; use another name", new.name);
        return Err(invalid("name", problem));
    }
    // A key is named by its name or its id: no name may be the id of another, nor look like that of a person.
    if new.name.parse::<JobId>().is_ok() || new.name.starts_with(PERSON_PREFIX) {
        let problem = format!("`{}` looks like the id of a key; use another name", new.name);
        return Err(invalid("name", problem));
    }
    check_limits(&new.limits)
}

/// Refuses limits that would let nothing through, by the name of the field.
///
/// # Errors
/// Says which and why.
pub fn check_limits(limits: &KeyLimits) -> Result<(), InvalidField> {
    let KeyLimits { max_running, max_queued, requests_per_second, dollars_per_day } = *limits;
    if max_running == Some(0) {
        return Err(invalid("limits.max_running", "0 would let nothing run; leave it out for no limit"));
    }
    if requests_per_second == Some(0) {
        return Err(invalid(
            "limits.requests_per_second",
            "0 would refuse everything; leave it out for no limit",
        ));
    }
    let counts = [
        ("limits.max_running", max_running),
        ("limits.max_queued", max_queued),
        ("limits.requests_per_second", requests_per_second),
    ];
    for (field, count) in counts {
        if count.is_some_and(|count| count > MOST_COUNTED) {
            return Err(invalid(field, format!("at most {MOST_COUNTED}; leave it out for no limit")));
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
    fn names_that_logs_use_for_others_are_refused_by_name() {
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
