//! Detects an agent that makes no progress: the same call with the same result, the same error, two to four calls in
//! rotation, text without action, invalid calls. The agent first gets a nudge; if that does not help, the job ends.
//! Pure: a fold over the log.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How many calls are kept: enough for the longest pattern.
const REMEMBERED: usize = 24;
/// How many calls a repeating cycle has.
const CYCLE_LENGTHS: std::ops::RangeInclusive<usize> = 2..=4;

/// The repetition counts of a pattern at which the agent is nudged and at which the job ends.
struct Pattern {
    nudge_at: usize,
    end_at: usize,
}

const SAME_CALL: Pattern = Pattern { nudge_at: 3, end_at: 6 };
const SAME_ERROR: Pattern = Pattern { nudge_at: 4, end_at: 8 };
const CYCLE: Pattern = Pattern { nudge_at: 3, end_at: 6 };
const TEXT_ONLY: Pattern = Pattern { nudge_at: 1, end_at: 5 };
const EMPTY_ANSWER: Pattern = Pattern { nudge_at: 1, end_at: 4 };
const BAD_CALLS: Pattern = Pattern { nudge_at: 3, end_at: 7 };

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No problem, or the agent was nudged and may still recover.
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
        let seen = SeenCall { call: digest(&[tool, input]), result: digest(&[tool, result]), outcome };
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
        if self.counts().iter().all(|(pattern, count, _)| *count < pattern.nudge_at) {
            self.is_nudged = false;
        }
    }

    fn counts(&self) -> [(&'static Pattern, usize, &'static str); 6] {
        [
            (&SAME_CALL, self.same(|seen| (seen.call, seen.result)), SAME_CALL_TEXT),
            (&SAME_ERROR, self.same_error(), SAME_ERROR_TEXT),
            (&CYCLE, self.cycle_repetitions(), CYCLE_TEXT),
            (&TEXT_ONLY, self.text_only_answers, TEXT_ONLY_TEXT),
            (&EMPTY_ANSWER, self.empty_answers, EMPTY_ANSWER_TEXT),
            (&BAD_CALLS, self.trailing(|seen| seen.outcome == CallOutcome::Malformed), BAD_CALLS_TEXT),
        ]
    }

    /// The detector's decision at this point.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let counts = self.counts();
        // One answer with many equal calls can pass both thresholds at once. The nudge still comes first.
        let was_answered = self.is_nudged && self.has_answered;
        let over = counts.iter().find(|(pattern, count, _)| was_answered && *count >= pattern.end_at);
        if let Some((_, count, text)) = over {
            let (what, _) = text.split_once("; ").unwrap_or((text, ""));
            return Verdict::Stuck(format!("{what} ({count} times in a row), also after a nudge"));
        }
        match counts.iter().find(|(pattern, count, _)| *count >= pattern.nudge_at) {
            Some((_, _, text)) if !self.is_nudged => Verdict::Nudge((*text).to_owned()),
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

    /// How often the last few calls, not all of them the same, were repeated in the same order with the same
    /// results.
    fn cycle_repetitions(&self) -> usize {
        CYCLE_LENGTHS.map(|period| self.repetitions_of_cycle(period)).max().unwrap_or(0)
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

const SAME_CALL_TEXT: &str = "the same call was made with the same result; doing it again will not change \
    anything: if the task is done call finish, else do what is still missing, or call finish and say what is in the way";
const SAME_ERROR_TEXT: &str = "the same error came back; the cause is still there: read the error, look at the \
    files it names, and try another way";
const CYCLE_TEXT: &str = "the same few calls were made in turn with the same results; this leads nowhere: \
    think about what they told you and choose another way";
const TEXT_ONLY_TEXT: &str = "an answer came without a tool call; nothing happens unless you call a tool: do the next step \
    with one, or call finish when everything is done";
const EMPTY_ANSWER_TEXT: &str =
    "an empty answer came; call a tool to go on, or finish when everything is done";
const BAD_CALLS_TEXT: &str = "calls came that could not be understood; use one of the tools you were given, by its \
    exact name, with the input that its schema describes";

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
    fn the_same_call_with_the_same_result_is_nudged_and_then_ends() {
        let calls = [("ls", "a", CallOutcome::Done); 6];
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), "..n..S");
    }

    #[test]
    fn cycles_of_three_and_four_calls_are_detected() {
        for (round, expected) in [("abc", "........n........S"), ("abca", "...........n...........S")] {
            let names: Vec<String> = round.repeat(6).chars().map(String::from).collect();
            let calls: Vec<_> = names.iter().map(|name| (name.as_str(), "same", CallOutcome::Done)).collect();
            assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), expected, "{round}");
        }
    }

    #[test]
    fn the_same_call_with_new_results_is_work() {
        let results: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let calls: Vec<_> =
            results.iter().map(|result| ("make", result.as_str(), CallOutcome::Done)).collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), ".".repeat(20));
    }

    #[test]
    fn different_calls_with_the_same_error_are_detected() {
        let names: Vec<String> = (0..8).map(|n| format!("try {n}")).collect();
        let calls: Vec<_> =
            names.iter().map(|name| (name.as_str(), "no such host", CallOutcome::Failed)).collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), "...n...S");
    }

    #[test]
    fn two_alternating_calls_are_detected() {
        let pair = [("a", "1", CallOutcome::Done), ("b", "2", CallOutcome::Done)];
        let calls: Vec<_> = pair.iter().cycle().take(12).copied().collect();
        assert_eq!(symbols(&verdicts(&mut StuckDetector::default(), &calls)), ".....n.....S");
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
    fn talk_and_silence_end_too() {
        let mut watch = StuckDetector::default();
        let mut seen = String::new();
        for _ in 0..5 {
            watch.on_answer(0, true);
            seen += &symbols(&[watch.verdict()]);
            watch.nudged();
        }
        assert_eq!(seen, "n...S");
        let mut watch = StuckDetector::default();
        watch.on_answer(0, false);
        watch.nudged();
        (0..3).for_each(|_| watch.on_answer(0, false));
        assert!(matches!(watch.verdict(), Verdict::Stuck(why) if why.starts_with("an empty answer came (4")));
    }
}
