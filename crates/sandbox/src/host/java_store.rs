//! The trusted certificates as a Java keystore: Java does not read PEM bundles, it has its own format.
//!
//! The format is JKS, version 2: every Java since 1.2 reads it, and it is simple enough to write here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::certificates::pem_bodies;

/// Path of the store in every sandbox, relative to its root. `egress::environment` uses the same path.
pub(crate) const STORE: &str = "etc/ssl/certs/java/cacerts";

const MAGIC: u32 = 0xFEED_FEED;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;
/// The default password of every Java trust store. It protects nothing: it is part of the digest at the end.
const PASSWORD: &str = "changeit";
const SALT: &[u8] = b"Mighty Aphrodite";

/// Builds a store with every certificate of a bundle. Skips blocks that are not certificates.
pub(crate) fn java_store(bundle: &str) -> Vec<u8> {
    let certificates: Vec<Vec<u8>> =
        pem_bodies(bundle).iter().filter_map(|block| STANDARD.decode(block).ok()).collect();
    let mut store = Vec::new();
    for number in [MAGIC, VERSION, length(certificates.len())] {
        store.extend(number.to_be_bytes());
    }
    for (index, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        text(&mut store, &format!("authority-{index}"));
        // The creation time, which nothing reads.
        store.extend(0_u64.to_be_bytes());
        text(&mut store, "X.509");
        store.extend(length(certificate.len()).to_be_bytes());
        store.extend(certificate);
    }
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let digest = Sha1::new().chain_update(password).chain_update(SALT).chain_update(&store).finalize();
    store.extend(digest);
    store
}

fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Writes a string, which must be short ASCII.
fn text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUNDLE: &str = "# one\n-----BEGIN CERTIFICATE-----\nMAMC\nAQE=\n-----END CERTIFICATE-----\n\
        -----BEGIN CERTIFICATE-----\nno*base64\n-----END CERTIFICATE-----\n";

    #[test]
    fn keystore_holds_decodable_certificates_and_a_digest() {
        let store = java_store(BUNDLE);
        let start = [0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 11];
        assert_eq!(store[..start.len()], start);
        assert_eq!(&store[start.len()..start.len() + 11], b"authority-0");
        let certificate = [0, 0, 0, 5, 0x30, 3, 2, 1, 1];
        assert_eq!(store[store.len() - 20 - certificate.len()..store.len() - 20], certificate);
    }

    #[test]
    fn empty_bundle_gives_an_empty_keystore() {
        assert_eq!(java_store("").len(), 12 + 20);
    }
}
