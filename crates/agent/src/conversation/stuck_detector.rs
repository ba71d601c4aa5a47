//! Detects an agent that makes no progress: the same call with the same result, the same error, two to four calls in
//! rotation, one call very often without a change in between, text without action, invalid calls. The agent gets a nudge
//! in every turn until it changes its way. In the turn after a nudge, calls that it repeats are not run. If that does not
//! help, the job pauses.
//! Pure: a fold over the log.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::repeats::Repeats;
use super::stuck_patterns::{
    BAD_CALLS, CYCLE, EMPTY_ANSWER, FREQUENT_CALL, Pattern, SAME_CALL, SAME_ERROR, TEXT_ONLY,
};

/// How many calls are kept: enough for the longest pattern.
const REMEMBERED: usize = 24;
/// How many calls a repeating cycle has.
const CYCLE_LENGTHS: std::ops::RangeInclusive<usize> = 2..=4;

/// The result of a call that is not run because it repeats what the agent was just nudged about.
pub(crate) const NOT_REPEATED: &str = "not run: you made this call before, and it would tell you nothing new. Make another \
    call now";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No problem, or the agent was nudged and has not answered yet.
    Fine,
    /// The agent should get this nudge.
    Nudge(String),
    /// The agent does not recover; the reason, for people.
    Stuck(String),
}

/// The outcome of a call, as far as the patterns need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    Done,
    Failed,
    /// There is no such tool, or its input is invalid.
    Malformed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SeenCall {
    call: u64,
    result: u64,
    outcome: CallOutcome,
}

/// The state of the detector.
#[derive(Debug, Clone, Default)]
pub struct StuckDetector {
    recent: VecDeque<SeenCall>,
    repeats: Repeats,
    text_only_answers: usize,
    empty_answers: usize,
    is_nudged: bool,
    /// Whether the model has answered since the nudge.
    has_answered: bool,
}

fn digest(parts: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl StuckDetector {
    /// The model answered with `calls` tool calls; `has_text` says whether it also wrote text.
    pub fn on_answer(&mut self, calls: usize, has_text: bool) {
        self.has_answered = true;
        match (calls, has_text) {
            (0, true) => {
                self.text_only_answers += 1;
                self.empty_answers = 0;
            }
            (0, false) => self.empty_answers += 1,
            _ => {
                self.text_only_answers = 0;
                self.empty_answers = 0;
            }
        }
        self.clear_nudge_if_resolved();
    }

    pub fn on_call(&mut self, tool: &str, input: &str, result: &str, outcome: CallOutcome) {
        let call = digest(&[tool, input]);
        let before = self.recent.iter().rev().find(|seen| seen.call == call);
        let seen = match before {
            // A call that was not run counts as one with the same result.
            Some(before) if result == NOT_REPEATED => *before,
            _ => SeenCall { call, result: digest(&[tool, result]), outcome },
        };
        self.repeats.on_call(call, tool, input, outcome == CallOutcome::Done);
        self.recent.push_back(seen);
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        self.clear_nudge_if_resolved();
    }

    /// A person or the system has changed the situation, so earlier repetitions no longer count.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    pub fn nudged(&mut self) {
        self.is_nudged = true;
        self.has_answered = false;
    }

    /// Once a pattern is broken, the agent can be nudged about it again.
    fn clear_nudge_if_resolved(&mut self) {
        if self.counts().iter().all(|(pattern, count)| *count < pattern.nudge_at) {
            self.is_nudged = false;
        }
    }

    fn counts(&self) -> [(&'static Pattern, usize); 7] {
        let frequent = self.recent.back().map_or(0, |last| self.repeats.count(last.call));
        let (cycles, _) = self.cycle_repetitions();
        [
            (&SAME_CALL, self.same(|seen| (seen.call, seen.result))),
            (&SAME_ERROR, self.same_error()),
            (&CYCLE, cycles),
            (&FREQUENT_CALL, frequent),
            (&TEXT_ONLY, self.text_only_answers),
            (&EMPTY_ANSWER, self.empty_answers),
            (&BAD_CALLS, self.trailing(|seen| seen.outcome == CallOutcome::Malformed)),
        ]
    }

    /// Whether this call is not to be run: the agent was nudged about its last calls and repeats one of them at once.
    #[must_use]
    pub fn blocks(&self, tool: &str, input: &str) -> bool {
        let is_active =
            |(pattern, count): &(&Pattern, usize)| pattern.is_of_calls && *count >= pattern.nudge_at;
        if !(self.is_nudged && self.has_answered && self.counts().iter().any(is_active)) {
            return false;
        }
        let (cycles, period) = self.cycle_repetitions();
        let repeated = if cycles >= CYCLE.nudge_at { period } else { 1 };
        let call = digest(&[tool, input]);
        self.recent.iter().rev().take(repeated).any(|seen| seen.call == call)
    }

    /// The detector's decision at this point.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let counts = self.counts();
        // One answer with many equal calls can pass both thresholds at once. The nudge still comes first.
        let was_answered = self.is_nudged && self.has_answered;
        let over = counts.iter().find(|(pattern, count)| was_answered && *count >= pattern.pause_at);
        if let Some((pattern, count)) = over {
            let (what, _) = pattern.text.split_once("; ").unwrap_or((pattern.text, ""));
            return Verdict::Stuck(format!("{what} ({count} times), also after a nudge"));
        }
        match counts.iter().find(|(pattern, count)| *count >= pattern.nudge_at) {
            Some((pattern, _)) if !self.is_nudged || self.has_answered => {
                Verdict::Nudge(pattern.text.to_owned())
            }
            _ => Verdict::Fine,
        }
    }

    fn trailing(&self, holds: impl Fn(&SeenCall) -> bool) -> usize {
        self.recent.iter().rev().take_while(|seen| holds(seen)).count()
    }

    fn same<T: PartialEq>(&self, key: impl Fn(&SeenCall) -> T) -> usize {
        let Some(last) = self.recent.back() else { return 0 };
        let wanted = key(last);
        self.trailing(|seen| key(seen) == wanted)
    }

    fn same_error(&self) -> usize {
        let Some(last) = self.recent.back().filter(|last| last.outcome == CallOutcome::Failed) else {
            return 0;
        };
        self.trailing(|seen| seen.outcome == CallOutcome::Failed && seen.result == last.result)
    }

    /// How often the last few calls, not all of them the same, were repeated in the same order with the same results,
    /// and how many they are.
    fn cycle_repetitions(&self) -> (usize, usize) {
        let counted = CYCLE_LENGTHS.map(|period| (self.repetitions_of_cycle(period), period));
        counted.max_by_key(|(repetitions, _)| *repetitions).unwrap_or_default()
    }

    /// How often the last `period` calls were repeated in the same order with the same results.
    fn repetitions_of_cycle(&self, period: usize) -> usize {
        let newest: Vec<&SeenCall> = self.recent.iter().rev().collect();
        let Some(cycle) = newest.get(..period) else { return 0 };
        if cycle.iter().all(|seen| *seen == cycle[0]) {
            return 0;
        }
        newest.chunks_exact(period).take_while(|chunk| *chunk == cycle).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(watch: &mut StuckDetector, calls: &[(&str, &str, CallOutcome)]) -> Vec<Verdict> {
        calls
            .iter()
            .map(|(call, result, outcome)| {
                watch.on_answer(1, false);
                watch.on_call("shell", call, result, *outcome);
                let verdict = watch.verdict();
                if matches!(verdict, Verdict::Nudge(_)) {
                    watch.nudged();
                }
                verdict
            })
            .collect()
    }

    fn symbols(verdicts: &[Verdict]) -> String {
        verdicts
            .iter()
            .map(|verdict| match verdict {
                Verdict::Fine => '.',
                Verdict::Nudge(_) => 'n',
                Verdict::Stuck(_) => 'S',
            })
            .collect()
    }

    #[test]
    fn the_same_call_with_the_same_result_is_nudged_and_then_pauses() {
        let calls = [("ls", "a", CallOutcome::Done); 6];
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), "..nnnS");
    }

    #[test]
    fn cycles_of_three_and_four_calls_are_detected() {
        for (round, expected) in [("abc", "........nnnnnnnnnS"), ("abca", "...........nnnnnnnnnnnnS")] {
            let names: Vec<String> = round.repeat(6).chars().map(String::from).collect();
            let calls: Vec<_> = names.iter().map(|name| (name.as_str(), "same", CallOutcome::Done)).collect();
            assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), expected, "{round}");
        }
    }

    #[test]
    fn the_same_call_with_new_results_is_work() {
        let results: Vec<String> = (0..19).map(|n| n.to_string()).collect();
        let calls: Vec<_> =
            results.iter().map(|result| ("make", result.as_str(), CallOutcome::Done)).collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), ".".repeat(19));
    }

    #[test]
    fn different_calls_with_the_same_error_are_detected() {
        let names: Vec<String> = (0..8).map(|n| format!("try {n}")).collect();
        let calls: Vec<_> =
            names.iter().map(|name| (name.as_str(), "no such host", CallOutcome::Failed)).collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), "...nnnnS");
    }

    #[test]
    fn two_alternating_calls_are_detected() {
        let pair = [("a", "1", CallOutcome::Done), ("b", "2", CallOutcome::Done)];
        let calls: Vec<_> = pair.iter().cycle().take(12).copied().collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), ".....nnnnnnS");
    }

    #[test]
    fn interrupted_pattern_resets_the_nudge() {
        let same = ("ls", "a", CallOutcome::Done);
        let calls = [same, same, same, ("cat", "b", CallOutcome::Done), same, same, same];
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), "..n...n");
    }

    #[test]
    fn equal_calls_in_one_answer_are_nudged_before_ending() {
        let mut watch = StuckDetector::default();
        let equal = |watch: &mut StuckDetector| watch.on_call("shell", "ls", "a", CallOutcome::Done);
        watch.on_answer(8, false);
        (0..8).for_each(|_| equal(&mut watch));
        assert!(matches!(watch.verdict(), Verdict::Nudge(_)));
        watch.nudged();
        assert_eq!(watch.verdict(), Verdict::Fine, "it has not answered the nudge yet");
        watch.on_answer(1, false);
        equal(&mut watch);
        assert!(matches!(watch.verdict(), Verdict::Stuck(_)));
    }

    #[test]
    fn a_call_is_blocked_in_the_turn_after_a_nudge() {
        let mut watch = StuckDetector::default();
        let same = [("ls", "a", CallOutcome::Done); 3];
        assert_eq!(symbols(&verdicts(&mut watch, &same)), "..n");
        assert!(!watch.blocks("shell", "ls"), "the model has not answered yet");
        watch.on_answer(1, false);
        assert!(watch.blocks("shell", "ls") && !watch.blocks("shell", "cat"));
        watch.on_call("shell", "ls", NOT_REPEATED, CallOutcome::Failed);
        assert!(matches!(watch.verdict(), Verdict::Nudge(_)), "it still repeats itself");
        watch.nudged();
        watch.on_answer(2, false);
        watch.on_call("shell", "cat", "b", CallOutcome::Done);
        assert!(!watch.blocks("shell", "ls"), "it has done something else");
    }

    #[test]
    fn blocked_calls_count_until_the_job_pauses() {
        let mut watch = StuckDetector::default();
        let blocked = ("ls", NOT_REPEATED, CallOutcome::Failed);
        let same = ("ls", "a", CallOutcome::Done);
        let calls = [same, same, same, blocked, blocked, blocked];
        assert_eq!(symbols(&verdicts(&mut watch, &calls)), "..nnnS");
    }

    #[test]
    fn all_calls_of_a_cycle_are_blocked() {
        let pair = [("a", "1", CallOutcome::Done), ("b", "2", CallOutcome::Done)];
        let calls: Vec<_> = pair.iter().cycle().take(6).copied().collect();
        let mut watch = StuckDetector::default();
        assert_eq!(symbols(&verdicts(&mut watch, &calls)), ".....n");
        watch.on_answer(1, false);
        assert!(watch.blocks("shell", "a") && watch.blocks("shell", "b") && !watch.blocks("shell", "c"));
    }

    #[test]
    fn the_same_command_twenty_times_without_a_change_is_a_loop() {
        let input = |command: &str| format!("{{\"command\":\"{command}\"}}");
        let (list, read) = (input("git status"), input("cat a"));
        let results: Vec<String> = (0..24).map(|number| number.to_string()).collect();
        let mut calls = Vec::new();
        for result in &results {
            calls.push((list.as_str(), result.as_str(), CallOutcome::Done));
            calls.push((read.as_str(), result.as_str(), CallOutcome::Done));
        }
        let seen = symbols(&verdicts(&mut StuckDetector::default(), &calls));
        assert_eq!(seen.find('n'), Some(38), "at the twentieth `git status`: {seen}");
        assert!(seen.ends_with('S'), "{seen}");
        let build = input("make");
        for at in (0..calls.len()).step_by(30) {
            calls.insert(at, (build.as_str(), "made", CallOutcome::Done));
        }
        let seen = symbols(&verdicts(&mut StuckDetector::default(), &calls));
        assert!(!seen.contains('n'), "commands that may change something are in between: {seen}");
    }

    #[test]
    fn talk_and_silence_end_too() {
        let mut watch = StuckDetector::default();
        let mut seen = String::new();
        for _ in 0..5 {
            watch.on_answer(0, true);
            seen += &symbols(&[watch.verdict()]);
            watch.nudged();
        }
        assert_eq!(seen, "nnnnS");
        let mut watch = StuckDetector::default();
        watch.on_answer(0, false);
        watch.nudged();
        (0..3).for_each(|_| watch.on_answer(0, false));
        assert!(matches!(watch.verdict(), Verdict::Stuck(why) if why.starts_with("the answer was empty (4")));
    }
}
