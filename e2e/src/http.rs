//! HTTP clients of the tests.

use reqwest::blocking::{Client, ClientBuilder};

/// A client for servers on this machine. It uses no proxy, and the same TLS crypto provider as the product.
pub fn http_client() -> ClientBuilder {
    // An error means that another client has already installed the provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy()
}
