//! The link versions that this build supports.

/// The newest version that this build supports.
pub const VERSION: u16 = 2;
/// The oldest version that this build supports.
pub const OLDEST_VERSION: u16 = 1;

/// The version that both sides will use: the lower of the two newest, or `None` if one side no longer supports it.
#[must_use]
pub fn negotiate(host_newest: u16, host_oldest: u16, guest_newest: u16, guest_oldest: u16) -> Option<u16> {
    let version = host_newest.min(guest_newest);
    (version >= host_oldest && version >= guest_oldest).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::negotiate;

    #[test]
    fn the_lower_version_wins() {
        assert_eq!(negotiate(3, 1, 2, 1), Some(2));
        assert_eq!(negotiate(2, 1, 3, 2), Some(2));
    }

    #[test]
    fn versions_without_overlap_are_not_negotiated() {
        assert_eq!(negotiate(5, 4, 3, 1), None);
        assert_eq!(negotiate(3, 1, 5, 4), None);
    }
}
