//! Backpressure: while a follower that needs all output is far behind, the guest stops reading the output of the
//! process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;

use super::ProcessCall;
use crate::output::Position;

/// How far a follower may fall behind before the process must wait. In bytes, this is half of the stored tail. In
/// chunks, however small they are, it is a fifth, so that the store drops nothing before the follower has it.
const MAX_LAG: Position = Position { bytes: 4 * 1024 * 1024, sequence: 64 * 1024 };

/// Whether a follower is far behind the end of the output.
fn is_far_behind(follower: Position, printed: Position) -> bool {
    printed.bytes.saturating_sub(follower.bytes) > MAX_LAG.bytes
        || printed.sequence.saturating_sub(follower.sequence) > MAX_LAG.sequence
}

/// The followers that a call must wait for.
pub(crate) struct Backpressure {
    /// The position of each follower.
    followers: RefCell<BTreeMap<u64, Position>>,
    /// Changes when a follower advances or disconnects.
    advanced: watch::Sender<u64>,
}

impl Backpressure {
    pub(crate) fn new() -> Self {
        Self { followers: RefCell::default(), advanced: watch::Sender::new(0) }
    }

    /// Whether a follower is so far behind the end of the output that the process must wait.
    fn is_behind(&self, printed: Position) -> bool {
        self.followers.borrow().values().any(|follower| is_far_behind(*follower, printed))
    }

    fn tell(&self) {
        self.advanced.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// A registered follower. The call waits for it until it is dropped.
pub(crate) struct PacedFollower {
    call: Rc<ProcessCall>,
    number: u64,
}

impl PacedFollower {
    /// Registers a follower at a position.
    pub(crate) fn new(call: Rc<ProcessCall>, position: Position) -> Self {
        let number = {
            let mut followers = call.backpressure.followers.borrow_mut();
            let number = followers.last_key_value().map_or(0, |(last, _)| last + 1);
            followers.insert(number, position);
            number
        };
        Self { call, number }
    }

    /// Updates the follower's position.
    pub(crate) fn is_at(&self, position: Position) {
        self.call.backpressure.followers.borrow_mut().insert(self.number, position);
        self.call.backpressure.tell();
    }
}

impl Drop for PacedFollower {
    fn drop(&mut self) {
        self.call.backpressure.followers.borrow_mut().remove(&self.number);
        self.call.backpressure.tell();
    }
}

/// Waits while a follower is far behind. Returns once the call has ended, because its later output is discarded.
pub(crate) async fn wait_for_followers(call: &ProcessCall) {
    if call.backpressure.followers.borrow().is_empty() {
        return;
    }
    let mut advanced = call.backpressure.advanced.subscribe();
    let mut phases = call.phase.subscribe();
    loop {
        // Read both before the store, so that no change is missed.
        advanced.borrow_and_update();
        let has_ended = phases.borrow_and_update().outcome().is_some();
        if has_ended || !call.backpressure.is_behind(call.store.borrow().end()) {
            return;
        }
        tokio::select! {
            _ = advanced.changed() => {}
            _ = phases.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_waits_for_its_slowest_follower() {
        let backpressure = Backpressure::new();
        let at = |bytes, sequence| Position { bytes, sequence };
        assert!(!backpressure.is_behind(at(u64::MAX, u64::MAX)), "nobody follows");
        backpressure.followers.borrow_mut().extend([(0, at(1000, 9)), (1, at(5, 2))]);
        assert!(!backpressure.is_behind(at(MAX_LAG.bytes + 5, 20)));
        assert!(backpressure.is_behind(at(MAX_LAG.bytes + 6, 20)));
        assert!(!backpressure.is_behind(at(2000, MAX_LAG.sequence + 2)));
        assert!(backpressure.is_behind(at(2000, MAX_LAG.sequence + 3)), "many small pieces");
        backpressure.followers.borrow_mut().remove(&1);
        assert!(!backpressure.is_behind(at(MAX_LAG.bytes + 1000, MAX_LAG.sequence + 9)));
    }
}
