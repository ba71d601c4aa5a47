//! Environment variables that point common clients to the proxy and the trust store.

/// Paths of the trusted certificates in a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct TrustStores<'a> {
    /// A complete bundle (PEM): the usual authorities and the operator's own.
    pub bundle: &'a str,
    /// The same certificates in Java's format.
    pub java: &'a str,
}

/// The variables for one call. `port` is the proxy's port on the sandbox's loopback.
///
/// Some clients need no variable of their own: apt reads `http_proxy` and `https_proxy` and trusts the system's
/// bundle, npm reads `https_proxy` and `no_proxy`, and cargo and git read them through libcurl.
#[must_use]
pub fn environment(call: &str, port: u16, stores: TrustStores<'_>) -> Vec<(String, String)> {
    // The password is ignored, but Python's requests drops a user name without a password.
    let proxy = format!("http://{call}:x@127.0.0.1:{port}");
    let ca_bundle = stores.bundle;
    // Java reads only this variable, and each of its programs prints it to stderr. Java bypasses the proxy for
    // loopback and does not send a user name, so the call of its connections is unknown.
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} \
         -Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=JKS",
        stores.java
    );
    let own_ports = "localhost,127.0.0.1,::1";
    let variables = [
        // curl reads http_proxy in lowercase only. apt, wget, pip, git and cargo also read lowercase.
        ("http_proxy", proxy.as_str()),
        ("https_proxy", &proxy),
        // Go, Node and Java tools read the uppercase names first.
        ("HTTP_PROXY", &proxy),
        ("HTTPS_PROXY", &proxy),
        // Clients with other schemes: Chromium, httpx, WebSocket clients.
        ("all_proxy", &proxy),
        ("ALL_PROXY", &proxy),
        // Servers inside the sandbox are reached directly.
        ("no_proxy", own_ports),
        ("NO_PROXY", own_ports),
        // Node's fetch and http modules use the variables above only if this is set.
        ("NODE_USE_ENV_PROXY", "1"),
        // By default git first tries without credentials, and the call would be unknown.
        ("GIT_HTTP_PROXY_AUTHMETHOD", "basic"),
        // OpenSSL and its users: Python's ssl, Ruby, wget. Also Go and rustls' native roots (uv).
        ("SSL_CERT_FILE", ca_bundle),
        // Some builds of curl ignore OpenSSL's variable.
        ("CURL_CA_BUNDLE", ca_bundle),
        // Python's requests has its own bundle; so does pip before 24.2, which also reads this variable.
        ("REQUESTS_CA_BUNDLE", ca_bundle),
        // pip: takes precedence over its configuration file.
        ("PIP_CERT", ca_bundle),
        // Node, npm, pnpm and yarn have their own bundle; this adds to it.
        ("NODE_EXTRA_CA_CERTS", ca_bundle),
        // git sets libcurl's bundle itself.
        ("GIT_SSL_CAINFO", ca_bundle),
        // cargo sets libcurl's bundle itself.
        ("CARGO_HTTP_CAINFO", ca_bundle),
        ("JAVA_TOOL_OPTIONS", &java),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_set_once_and_the_proxy_names_the_call() {
        let variables = environment("call-7", 3128, TrustStores { bundle: "/bundle", java: "/store" });
        let mut names: Vec<_> = variables.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), variables.len());
        for name in ["http_proxy", "HTTPS_PROXY"] {
            let (_, value) = variables.iter().find(|(key, _)| key == name).unwrap();
            assert_eq!(value, "http://call-7:x@127.0.0.1:3128");
        }
    }
}
