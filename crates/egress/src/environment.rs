//! The variables that lead the usual clients to the proxy and to the trust store.

/// Where the trusted certificates are in a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct TrustStores<'a> {
    /// A whole bundle (PEM): the usual authorities and the operator's own.
    pub bundle: &'a str,
    /// The same in the form that Java reads.
    pub java: &'a str,
}

/// The variables of one call. `port` is the proxy's on the sandbox's loopback.
///
/// Needed by none of these: apt reads `http_proxy` and `https_proxy` and trusts the system's bundle, which has no
/// variable; npm reads `https_proxy` and `no_proxy`; cargo and git read them through libcurl.
#[must_use]
pub fn environment(call: &str, port: u16, stores: TrustStores<'_>) -> Vec<(String, String)> {
    // The password means nothing, but Python's requests forgets a user that has none.
    let proxy = format!("http://{call}:x@127.0.0.1:{port}");
    let ca_bundle = stores.bundle;
    // Java reads no variable but this one, which its every program tells on standard error. It leaves loopback alone, and
    // sends no user to a proxy by itself, so that its calls are not known.
    let java = format!(
        "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={port} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port} \
         -Djavax.net.ssl.trustStore={} -Djavax.net.ssl.trustStoreType=JKS",
        stores.java
    );
    let own_ports = "localhost,127.0.0.1,::1";
    let variables = [
        // curl reads http_proxy in lower case only. apt, wget, pip, git and cargo read the same.
        ("http_proxy", proxy.as_str()),
        ("https_proxy", &proxy),
        // Go, Node and Java tools read the upper case first.
        ("HTTP_PROXY", &proxy),
        ("HTTPS_PROXY", &proxy),
        // Clients with other schemes: Chromium, httpx, WebSocket clients.
        ("all_proxy", &proxy),
        ("ALL_PROXY", &proxy),
        // What the sandbox serves itself is reached directly.
        ("no_proxy", own_ports),
        ("NO_PROXY", own_ports),
        // Node's own fetch and http modules heed the variables above only when told so.
        ("NODE_USE_ENV_PROXY", "1"),
        // By default git tries without a user first, and the call would be lost.
        ("GIT_HTTP_PROXY_AUTHMETHOD", "basic"),
        // OpenSSL and what is built on it: Python's ssl, Ruby, wget; also Go and rustls' native roots (uv).
        ("SSL_CERT_FILE", ca_bundle),
        // curl does not heed OpenSSL's variable in every build.
        ("CURL_CA_BUNDLE", ca_bundle),
        // Python's requests carries its own authorities; pip below 24.2 too, and it reads this one.
        ("REQUESTS_CA_BUNDLE", ca_bundle),
        // pip again: set, it wins over what a configuration file says.
        ("PIP_CERT", ca_bundle),
        // Node, npm, pnpm and yarn carry their own authorities, this adds to them.
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
