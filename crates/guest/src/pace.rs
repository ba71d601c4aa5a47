//! Followers that a process waits for: while one of them is far behind, nothing more is read of what the process prints.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;

use crate::calls::ProcessCall;

/// How far a follower may be behind before the process waits: in bytes half of what the store keeps of the newest output, and in
/// pieces, however small they are, a fifth, so that nothing is given up before the follower has it.
const MOST_BEHIND: Position = Position { bytes: 4 * 1024 * 1024, sequence: 64 * 1024 };

/// A place in the output of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// So many bytes come before it.
    pub(crate) bytes: u64,
    /// So many pieces come before it.
    pub(crate) sequence: u64,
}

impl Position {
    /// Whether another one is far ahead of this.
    fn is_far_behind(self, other: Self) -> bool {
        other.bytes.saturating_sub(self.bytes) > MOST_BEHIND.bytes
            || other.sequence.saturating_sub(self.sequence) > MOST_BEHIND.sequence
    }
}

/// The followers of one call that it waits for.
pub(crate) struct Pace {
    /// How far each of them is.
    followers: RefCell<BTreeMap<u64, Position>>,
    /// Changes when one of them has got on, or has gone.
    got_on: watch::Sender<u64>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { followers: RefCell::default(), got_on: watch::Sender::new(0) }
    }

    /// Whether a follower is so far behind the end of the output that the process waits.
    fn is_behind(&self, printed: Position) -> bool {
        self.followers.borrow().values().any(|follower| follower.is_far_behind(printed))
    }

    fn tell(&self) {
        self.got_on.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// One follower; a call waits for it as long as it lives.
pub(crate) struct Paced {
    call: Rc<ProcessCall>,
    number: u64,
}

impl Paced {
    /// A follower that is here.
    pub(crate) fn new(call: Rc<ProcessCall>, position: Position) -> Self {
        let number = {
            let mut followers = call.pace.followers.borrow_mut();
            let number = followers.last_key_value().map_or(0, |(last, _)| last + 1);
            followers.insert(number, position);
            number
        };
        Self { call, number }
    }

    /// It has come here by now.
    pub(crate) fn is_at(&self, position: Position) {
        self.call.pace.followers.borrow_mut().insert(self.number, position);
        self.call.pace.tell();
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.call.pace.followers.borrow_mut().remove(&self.number);
        self.call.pace.tell();
    }
}

/// Waits while a follower is far behind. What a process prints after its call has ended is for nobody.
pub(crate) async fn wait_for_followers(call: &ProcessCall) {
    if call.pace.followers.borrow().is_empty() {
        return;
    }
    let mut got_on = call.pace.got_on.subscribe();
    let mut phases = call.phase.subscribe();
    loop {
        // Both are looked at before the store, so that no change is missed.
        got_on.borrow_and_update();
        let has_ended = phases.borrow_and_update().outcome().is_some();
        if has_ended || !call.pace.is_behind(call.store.borrow().end()) {
            return;
        }
        tokio::select! {
            _ = got_on.changed() => {}
            _ = phases.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_waits_for_the_slowest_of_those_that_it_waits_for() {
        let pace = Pace::new();
        let at = |bytes, sequence| Position { bytes, sequence };
        assert!(!pace.is_behind(at(u64::MAX, u64::MAX)), "nobody follows");
        pace.followers.borrow_mut().extend([(0, at(1000, 9)), (1, at(5, 2))]);
        assert!(!pace.is_behind(at(MOST_BEHIND.bytes + 5, 20)));
        assert!(pace.is_behind(at(MOST_BEHIND.bytes + 6, 20)));
        assert!(!pace.is_behind(at(2000, MOST_BEHIND.sequence + 2)));
        assert!(pace.is_behind(at(2000, MOST_BEHIND.sequence + 3)), "many small pieces");
        pace.followers.borrow_mut().remove(&1);
        assert!(!pace.is_behind(at(MOST_BEHIND.bytes + 1000, MOST_BEHIND.sequence + 9)));
    }
}
