//! Followers that a process waits for: while one of them is far behind, nothing more is read of what the process prints.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;

use crate::calls::ProcessCall;

/// How far a follower may be behind before the process waits. Half of what the store keeps of the newest output, so that nothing
/// is given up before the follower has it.
const MOST_BEHIND_BYTES: u64 = 4 * 1024 * 1024;

/// The followers of one call that it waits for.
pub(crate) struct Pace {
    /// How many bytes each of them has.
    followers: RefCell<BTreeMap<u64, u64>>,
    /// Changes when one of them has got on, or has gone.
    got_on: watch::Sender<u64>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { followers: RefCell::default(), got_on: watch::Sender::new(0) }
    }

    /// Whether a follower is so far behind the end of the output that the process waits.
    fn is_behind(&self, printed_bytes: u64) -> bool {
        let slowest = self.followers.borrow().values().min().copied();
        slowest.is_some_and(|bytes| printed_bytes.saturating_sub(bytes) > MOST_BEHIND_BYTES)
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
    /// A follower that has so many bytes.
    pub(crate) fn new(call: Rc<ProcessCall>, bytes: u64) -> Self {
        let number = {
            let mut followers = call.pace.followers.borrow_mut();
            let number = followers.last_key_value().map_or(0, |(last, _)| last + 1);
            followers.insert(number, bytes);
            number
        };
        Self { call, number }
    }

    /// It has so many bytes by now.
    pub(crate) fn has(&self, bytes: u64) {
        self.call.pace.followers.borrow_mut().insert(self.number, bytes);
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
        if has_ended || !call.pace.is_behind(call.store.borrow().total_bytes()) {
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
        assert!(!pace.is_behind(u64::MAX), "nobody follows");
        pace.followers.borrow_mut().extend([(0, 1000), (1, 5)]);
        assert!(!pace.is_behind(MOST_BEHIND_BYTES + 5));
        assert!(pace.is_behind(MOST_BEHIND_BYTES + 6));
        pace.followers.borrow_mut().remove(&1);
        assert!(!pace.is_behind(MOST_BEHIND_BYTES + 1000));
    }
}
