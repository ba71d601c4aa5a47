//! Selects the next answer.

use super::script::{Order, Script, ScriptedAnswer, When};
use super::view::View;

/// How often each answer was started and not given back.
#[derive(Debug, Default)]
pub(super) struct PlayState(Vec<u32>);

impl PlayState {
    /// Takes the next answer for a request; returns its index in the script.
    pub(super) fn take(&mut self, script: &Script, view: &View) -> Option<usize> {
        self.0.resize(script.answers.len(), 0);
        let index = match script.order {
            Order::Sequence => {
                let mut answers = script.answers.iter().enumerate();
                answers
                    .find(|(index, answer)| self.is_available(*index, answer) && fits(&answer.when, view))?
                    .0
            }
            Order::Turns => self.index_for_turn(script, view.turns)?,
        };
        self.0[index] += 1;
        Some(index)
    }

    /// Gives back an answer that did not reach the client.
    pub(super) fn give_back(&mut self, index: usize) {
        if let Some(count) = self.0.get_mut(index) {
            *count = count.saturating_sub(1);
        }
    }

    /// How many answers are left.
    pub(super) fn remaining(&self, script: &Script) -> usize {
        let count = |index: usize| self.0.get(index).copied().unwrap_or(0);
        script.answers.iter().enumerate().filter(|(index, answer)| count(*index) < answer.times.0).count()
    }

    fn is_available(&self, index: usize, answer: &ScriptedAnswer) -> bool {
        answer.times.0 == 0 || self.0[index] < answer.times.0
    }

    /// Faults do not count as turns: they are played before the next answer, as often as they specify.
    fn index_for_turn(&self, script: &Script, turn: usize) -> Option<usize> {
        let mut turns = 0;
        for (index, answer) in script.answers.iter().enumerate() {
            match answer.fault {
                Some(_) if turns == turn && self.is_available(index, answer) => return Some(index),
                Some(_) => {}
                None if turns == turn => return Some(index),
                None => turns += 1,
            }
        }
        None
    }
}

fn fits(when: &When, view: &View) -> bool {
    let holds =
        |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|wanted| text.contains(wanted));
    holds(&when.system_contains, &view.system)
        && holds(&when.user_contains, &view.user)
        && when
            .result_contains
            .as_ref()
            .is_none_or(|wanted| view.results.iter().any(|text| text.contains(wanted)))
        && when.offers.as_ref().is_none_or(|wanted| view.tools.contains(wanted))
}

#[cfg(test)]
mod tests {
    use super::super::script::{Fault, Times};
    use super::*;

    fn fault() -> ScriptedAnswer {
        ScriptedAnswer::fault(Fault::Overflow)
    }

    #[test]
    fn scripted_answers_are_played_in_order_if_they_match() {
        let when = When { result_contains: Some("ok".into()), ..When::default() };
        let script = Script::of(vec![
            ScriptedAnswer { when, ..ScriptedAnswer::text("after ok") },
            ScriptedAnswer { times: Times(2), ..ScriptedAnswer::text("twice") },
        ]);
        let mut played = PlayState::default();
        let plain = View::default();
        let with_result = View { results: vec!["it is ok".into()], ..View::default() };
        assert_eq!(played.take(&script, &plain), Some(1));
        assert_eq!(played.take(&script, &with_result), Some(0));
        assert_eq!(played.take(&script, &with_result), Some(1));
        assert_eq!(played.take(&script, &with_result), None);
        assert_eq!(played.remaining(&script), 0);
        played.give_back(1);
        assert_eq!(played.take(&script, &plain), Some(1));
    }

    #[test]
    fn turn_order_serves_any_number_of_conversations() {
        let answers = vec![ScriptedAnswer::text("0"), fault(), ScriptedAnswer::text("1")];
        let script = Script { order: Order::Turns, ..Script::of(answers) };
        let mut played = PlayState::default();
        let mut at = |turns| played.take(&script, &View { turns, ..View::default() });
        assert_eq!(
            [at(0), at(0), at(1), at(1), at(1), at(2)],
            [Some(0), Some(0), Some(1), Some(2), Some(2), None]
        );
    }
}
