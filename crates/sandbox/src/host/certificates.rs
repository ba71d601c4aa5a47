//! Certificates that a sandbox trusts, in the formats of programs that read no PEM bundle.

/// The certificates of a bundle, each as the base64 text between its first and last line.
pub(crate) fn pem_bodies(bundle: &str) -> Vec<String> {
    bundle
        .split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split("-----END CERTIFICATE-----").next())
        .map(|body| body.split_whitespace().collect())
        .collect()
}

/// The policy that makes a Chromium browser trust a certificate.
pub(crate) fn browser_policy(own: &str) -> String {
    serde_json::json!({ "CACertificates": pem_bodies(own) }).to_string()
}
