//! Who may open a link: the owner of the sandbox, and no owner before it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A secret that the host and one guest share. The first link delivers it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkSecret(String);

/// Compares in a time that does not depend on where the secrets differ.
impl PartialEq for LinkSecret {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.0.as_bytes());
        let difference = ours.iter().zip(theirs).fold(0, |all, (our, their)| all | (our ^ their));
        ours.len() == theirs.len() && std::hint::black_box(difference) == 0
    }
}

impl Eq for LinkSecret {}

impl fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSecret(..)")
    }
}

/// What a host presents when it opens a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCredentials {
    pub secret: LinkSecret,
    /// The generation of the lease under which the host owns the sandbox.
    pub generation: u64,
}

impl LinkCredentials {
    #[must_use]
    pub fn new(secret: impl Into<String>, generation: u64) -> Self {
        Self { secret: LinkSecret(secret.into()), generation }
    }
}

/// Why a guest does not accept a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "reason")]
pub enum LinkRefusal {
    /// The secret differs from the one that the first link delivered.
    #[error("the guest was claimed with another secret")]
    WrongSecret,
    /// A later owner has already opened a link.
    #[error("a later owner, of generation {newest}, has opened a link to the guest")]
    OlderGeneration {
        /// The newest generation that the guest has seen.
        newest: u64,
    },
}

/// Decides which links a guest accepts. The first credentials claim it; later ones need the same secret and a
/// generation that is not older than any before.
#[derive(Debug, Default)]
pub struct LinkOwner(Option<LinkCredentials>);

impl LinkOwner {
    /// Accepts or refuses the credentials of a new link.
    ///
    /// # Errors
    /// The link must be refused.
    pub fn admit(&mut self, presented: LinkCredentials) -> Result<(), LinkRefusal> {
        match &self.0 {
            Some(owner) if owner.secret != presented.secret => return Err(LinkRefusal::WrongSecret),
            Some(owner) if presented.generation < owner.generation => {
                return Err(LinkRefusal::OlderGeneration { newest: owner.generation });
            }
            _ => {}
        }
        self.0 = Some(presented);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(secret: &str, generation: u64) -> LinkCredentials {
        LinkCredentials::new(secret, generation)
    }

    #[test]
    fn first_link_claims_the_guest_and_later_ones_need_its_secret() {
        let mut owner = LinkOwner::default();
        assert_eq!(owner.admit(credentials("right", 3)), Ok(()));
        for wrong in ["wrong", "right ", "righ", ""] {
            assert_eq!(owner.admit(credentials(wrong, 9)), Err(LinkRefusal::WrongSecret));
        }
        assert_eq!(owner.admit(credentials("right", 3)), Ok(()), "the same owner after a break");
    }

    #[test]
    fn owner_of_an_older_generation_is_refused_for_good() {
        let mut owner = LinkOwner::default();
        assert_eq!(owner.admit(credentials("right", 3)), Ok(()));
        assert_eq!(owner.admit(credentials("right", 5)), Ok(()));
        assert_eq!(owner.admit(credentials("right", 4)), Err(LinkRefusal::OlderGeneration { newest: 5 }));
        assert_eq!(owner.admit(credentials("wrong", 7)), Err(LinkRefusal::WrongSecret));
        assert_eq!(owner.admit(credentials("right", 5)), Ok(()), "a refused link changes nothing");
    }

    #[test]
    fn secret_is_not_in_debug_output() {
        assert!(!format!("{:?}", credentials("hidden", 1)).contains("hidden"));
    }
}
