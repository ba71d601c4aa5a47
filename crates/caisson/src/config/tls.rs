//! The section `[tls]`: the server's certificate.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use server::Certificate;

/// `[tls]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl RawTls {
    /// Reads the files if both are configured.
    pub(crate) fn certificate(&self) -> Result<Option<Certificate>> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => Ok(Some(Certificate::load(chain, key).context("tls")?)),
            (Some(_), None) => {
                bail!("tls.key: is missing; set it to the file with the private key of tls.certificate")
            }
            (None, Some(_)) => {
                bail!("tls.certificate: is missing; set it to the file with the certificate chain of tls.key")
            }
        }
    }
}
