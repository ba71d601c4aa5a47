//! API keys: create, list, revoke, authenticate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use job::{JobId, Key, KeyId, KeyLimits, NewKey, Role, invalid};
use store::Store;
use tokio::sync::watch;

use crate::core::Orchestrator;
use crate::core::keyring::KeyRing;
use crate::core::keyring::add;
use crate::core::keyring::named;
use crate::core::keyring::remove;
use crate::core::token::Token;
use crate::data_folder::DataFolder;
use crate::error::OrchestratorError;

impl Orchestrator {
    /// Whether callers must authenticate.
    #[must_use]
    pub fn requires_authentication(&self) -> bool {
        self.core.keys.has_had_keys.load(Ordering::Relaxed) || self.has_oidc_login()
    }

    /// Requires authentication from now on, even without keys: users can log in through OIDC and get the limits of
    /// their role.
    pub fn enable_oidc_login(&self, limits: BTreeMap<Role, KeyLimits>) {
        self.core.keys.people.bound(limits);
        self.core.keys.is_oidc_enabled.store(true, Ordering::Relaxed);
    }

    /// Whether users can log in through OIDC.
    #[must_use]
    pub fn has_oidc_login(&self) -> bool {
        self.core.keys.is_oidc_enabled.load(Ordering::Relaxed)
    }

    /// Changes whenever a key is added or revoked, a login ends or a shared link is revoked.
    #[must_use]
    pub fn key_changes(&self) -> watch::Receiver<u64> {
        self.core.keys.changes.subscribe()
    }

    /// Whether the key may send another request now; counts it.
    #[must_use]
    pub fn allows_request(&self, key: &Key) -> bool {
        self.core.rate_limit.allows(key, Instant::now())
    }

    /// The key with this secret.
    #[must_use]
    pub fn key_of(&self, token: &Token) -> Option<Arc<Key>> {
        self.core.keys.find(token)
    }

    /// The key with this id, unless it was revoked.
    #[must_use]
    pub fn key(&self, id: &KeyId) -> Option<Arc<Key>> {
        self.core.keys.by_id(id)
    }

    /// The key that a job was submitted with.
    pub async fn submitter(&self, job: JobId) -> Result<Option<KeyId>, OrchestratorError> {
        Ok(self.core.store.submitter(job).await?)
    }

    /// All keys, sorted by name.
    #[must_use]
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.core.keys.list()
    }

    /// Creates a key and returns its secret, which is stored nowhere. The first key must have the admin role: the
    /// server requires keys from then on, and creating the next one takes an admin.
    ///
    /// # Errors
    /// A field is invalid, the name is taken, or the store fails.
    pub async fn add_key(&self, new: NewKey) -> Result<(Arc<Key>, Token), OrchestratorError> {
        add(&*self.core.store, &self.core.keys, new).await
    }

    /// Revokes a key by name or id. The last admin key cannot be revoked: a running server that requires keys never
    /// goes back to open access.
    ///
    /// # Errors
    /// There is no such key, or it is the last admin key.
    pub async fn revoke_key(&self, name: &str) -> Result<Arc<Key>, OrchestratorError> {
        let _changing = self.core.keys.changing.lock().await;
        let key = named(&self.core.keys, name)?;
        let is_other_admin = |other: &Arc<Key>| other.id != key.id && other.role == Role::Admin;
        if key.role == Role::Admin && !self.keys().iter().any(is_other_admin) {
            let problem = "is the last admin key; without it, no key could be created or revoked. To remove all keys, stop \
                           the server and use `caisson keys revoke --data`";
            return Err(invalid("name", problem).into());
        }
        remove(&*self.core.store, &self.core.keys, key).await
    }
}

/// The keys of a data folder that no server is using: to create the first key, or to recover after losing the last
/// one.
pub struct StoredKeys {
    store: Arc<dyn Store>,
    ring: KeyRing,
    _folder: DataFolder,
}

impl StoredKeys {
    /// Reads the keys of a store. Holds the lock on its data folder.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn open(folder: DataFolder, store: Arc<dyn Store>) -> Result<Self, OrchestratorError> {
        let ring = KeyRing::new(store.keys().await?);
        Ok(Self { store, ring, _folder: folder })
    }

    /// All keys, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Key>> {
        self.ring.list()
    }

    /// Like [`Orchestrator::add_key`].
    pub async fn add(&self, new: NewKey) -> Result<(Arc<Key>, Token), OrchestratorError> {
        add(&*self.store, &self.ring, new).await
    }

    /// Revokes a key by name or id, even the last admin key.
    ///
    /// # Errors
    /// There is no such key, or the store fails.
    pub async fn revoke(&self, name: &str) -> Result<Arc<Key>, OrchestratorError> {
        remove(&*self.store, &self.ring, named(&self.ring, name)?).await
    }
}
