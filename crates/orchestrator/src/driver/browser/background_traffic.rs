//! Flags that keep Chromium from making connections of its own, in images without our policies, too.

/// Each switches off what has no policy, or what images without our policy file would do. The default image starts
/// Chromium with the same flags when a person opens it.
pub(super) const FLAGS: [&str; 9] = [
    // Updates of extensions, variations, safe browsing lists.
    "--disable-background-networking",
    // The components that Chromium registers at its start.
    "--disable-component-update",
    // Applications that a new profile would install.
    "--disable-default-apps",
    // Reports about failed connections to some sites.
    "--disable-domain-reliability",
    "--disable-sync",
    // In this order: the search engine's AI mode, predictions for form fields, HTTPS before HTTP, devices to cast to, the
    // time, hints and models for optimizations, the connection to the search engine, the list of languages to translate.
    // Chromium reads only the last `--disable-features`.
    "--disable-features=AimServerEligibilityEnabled,AutofillServerCommunication,HttpsUpgrades,MediaRouter,\
     NetworkTimeServiceQuerying,OptimizationHints,OptimizationTargetPrediction,PreconnectToSearch,Translate",
    // Components that register later, push messages, and the list of accounts, which every profile asks for at its start
    // even where sign-in is off. These have only an address. Chromium refuses port 9 without connecting.
    "--component-updater=url-source=http://127.0.0.1:9/",
    "--gcm-checkin-url=http://127.0.0.1:9/",
    "--gaia-url=http://127.0.0.1:9/",
];

#[cfg(test)]
mod tests {
    use super::FLAGS;

    const IMAGE_FLAGS: &str = include_str!("../../../../../image/files/etc/chromium.d/caisson");

    /// The value of the variable `features` in the image's file after its last assignment.
    fn features() -> String {
        let assigned = IMAGE_FLAGS.lines().filter_map(|line| line.strip_prefix("features="));
        assigned.fold(String::new(), |before, value| value.replace("$features", &before))
    }

    #[test]
    fn image_starts_chromium_with_the_same_flags() {
        let text = IMAGE_FLAGS.replace("$features", &features());
        let exported = text.lines().filter(|line| line.starts_with("export CHROMIUM_FLAGS="));
        let flags: Vec<&str> = exported.flat_map(|line| line.split([' ', '"'])).collect();
        let missing: Vec<&&str> = FLAGS.iter().filter(|flag| !flags.contains(*flag)).collect();
        assert!(missing.is_empty(), "image/files/etc/chromium.d/caisson lacks {missing:?}");
    }
}
