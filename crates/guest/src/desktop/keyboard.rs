//! Typing. Any text can be typed: a character that is missing on the keyboard gets temporarily assigned to an unused
//! key.

use std::collections::{HashMap, HashSet};
use std::thread::sleep;
use std::time::Duration;

use protocol::{GuiError, MAX_TYPED_CHARS};
use x11rb::connection::Connection;
use x11rb::protocol::xproto::ConnectionExt as _;

use super::bad_input;
use super::display::{Display, answered, lost, sent};
use super::keys::{parse_chord, symbol_of};

/// Programs notice a reassigned key and look up its new meaning with a delay. No key is reassigned again during this
/// time.
const REMAP_DELAY: Duration = Duration::from_millis(60);
/// A slow program must have read what was typed with a key before the key is reassigned.
const REUSE_DELAY: Duration = Duration::from_millis(250);
/// How many keys to press before waiting for the server, whose queue is limited.
const KEY_BATCH_SIZE: usize = 32;
const SHIFT: u32 = 0xffe1;

/// The key that types a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) code: u8,
    pub(super) with_shift: bool,
}

/// The current keyboard mapping.
pub(super) struct Mapping {
    keys: HashMap<u32, Key>,
    /// Keys without an assigned symbol.
    spare: Vec<u8>,
}

impl Mapping {
    pub(super) fn find(&self, symbol: u32) -> Option<Key> {
        self.keys.get(&symbol).copied()
    }

    fn read(first_code: u8, per_code: usize, symbols: &[u32]) -> Self {
        let mut keys = HashMap::new();
        let mut spare = Vec::new();
        for (code, symbols) in (first_code..=u8::MAX).zip(symbols.chunks(per_code.max(1))) {
            if symbols.iter().all(|symbol| *symbol == 0) {
                spare.push(code);
                continue;
            }
            for (with_shift, symbol) in [false, true].into_iter().zip(symbols) {
                if *symbol != 0 {
                    keys.entry(*symbol).or_insert(Key { code, with_shift });
                }
            }
        }
        Self { keys, spare }
    }
}

impl Display {
    /// Reads the current keyboard mapping.
    pub(super) fn mapping(&self) -> Result<Mapping, GuiError> {
        let setup = self.connection.setup();
        let (first, last) = (setup.min_keycode, setup.max_keycode);
        let count = last.saturating_sub(first).saturating_add(1);
        let asked = self.connection.get_keyboard_mapping(first, count).map_err(|error| lost(&error))?;
        let reply = answered(asked.reply())?;
        Ok(Mapping::read(first, usize::from(reply.keysyms_per_keycode), &reply.keysyms))
    }

    /// Presses keys in order, then releases them in reverse order.
    pub(super) fn press_chord(&mut self, chord: &str) -> Result<(), GuiError> {
        let symbols = parse_chord(chord).map_err(bad_input)?;
        let (mapping, _) = self.assign_keys(&symbols)?;
        let mut pressed = Vec::new();
        for symbol in symbols {
            let key = mapping.find(symbol).ok_or_else(|| lost("its keyboard takes no further keys"))?;
            if key.with_shift {
                pressed.extend(mapping.find(SHIFT).map(|shift| shift.code));
            }
            pressed.push(key.code);
        }
        for code in &pressed {
            self.press_key(*code)?;
        }
        for code in pressed.iter().rev() {
            self.release_key(*code)?;
        }
        self.ping()
    }

    pub(super) fn type_text(&mut self, text: &str) -> Result<(), GuiError> {
        if text.chars().count() > MAX_TYPED_CHARS {
            return Err(bad_input(format!(
                "a text of at most {MAX_TYPED_CHARS} characters can be typed at once"
            )));
        }
        let bad = |character: &char| character.is_control() && !matches!(character, '\n' | '\r' | '\t');
        if let Some(bad) = text.chars().find(bad) {
            return Err(bad_input(format!("{bad:?} is no character to type; use `key` for keys")));
        }
        // CRLF is a single press of Return.
        let symbols: Vec<u32> = text.replace("\r\n", "\n").chars().map(symbol_of).collect();
        let mut rest = symbols.as_slice();
        while !rest.is_empty() {
            let (mapping, count) = self.assign_keys(rest)?;
            let Some((now, later)) = rest.split_at_checked(count).filter(|(now, _)| !now.is_empty()) else {
                return Err(lost("its keyboard takes no further keys"));
            };
            self.press_all(now, &mapping)?;
            rest = later;
            if !rest.is_empty() {
                sleep(REMAP_DELAY);
            }
        }
        Ok(())
    }

    fn press_all(&self, symbols: &[u32], mapping: &Mapping) -> Result<(), GuiError> {
        let shift = mapping.find(SHIFT).map(|key| key.code);
        for some in symbols.chunks(KEY_BATCH_SIZE) {
            // Typing a long text takes time. Each piece gets the full time limit.
            self.reset_deadline();
            for symbol in some {
                let Some(key) = mapping.find(*symbol) else { continue };
                let shift = shift.filter(|_| key.with_shift);
                shift.map_or(Ok(()), |code| self.press_key(code))?;
                self.press_key(key.code)?;
                self.release_key(key.code)?;
                shift.map_or(Ok(()), |code| self.release_key(code))?;
            }
            self.ping()?;
        }
        Ok(())
    }

    /// Assigns keys to those symbols that have none. Uses keys without a symbol, or keys lent earlier that the batch
    /// does not need. Returns the new mapping and how many of the symbols it can type.
    fn assign_keys(&mut self, symbols: &[u32]) -> Result<(Mapping, usize), GuiError> {
        let mut mapping = self.mapping()?;
        let Batch { count, assignments } = mapping.plan(symbols, &self.assigned_keys);
        if assignments.is_empty() {
            return Ok((mapping, count));
        }
        let reuses_keys = assignments.iter().any(|(_, code)| self.assigned_keys.contains(code));
        if reuses_keys {
            sleep(REUSE_DELAY);
        }
        for (symbol, code) in &assignments {
            // The same symbol with and without Shift.
            sent(self.connection.change_keyboard_mapping(1, *code, 2, &[*symbol, *symbol]))?;
        }
        mapping.take(&assignments);
        // Keep the order: the keys lent longest ago are reassigned first.
        self.assigned_keys.retain(|assigned| assignments.iter().all(|(_, code)| code != assigned));
        self.assigned_keys.extend(assignments.iter().map(|(_, code)| *code));
        self.ping()?;
        sleep(REMAP_DELAY);
        Ok((mapping, count))
    }
}

/// How much of a text can be typed at once, and the assignments it needs.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// Number of symbols.
    count: usize,
    /// Symbols and the keys assigned to them.
    assignments: Vec<(u32, u8)>,
}

impl Mapping {
    /// Plans to type as many symbols as possible. Does not reassign a key that one of the symbols needs with its
    /// current meaning.
    fn plan(&self, symbols: &[u32], assigned: &[u8]) -> Batch {
        let mut free = self.spare.iter().chain(assigned).copied();
        let mut needed: HashSet<u8> = HashSet::new();
        let mut assignments: Vec<(u32, u8)> = Vec::new();
        let mut planned: HashMap<u32, u8> = HashMap::new();
        let mut taken: HashSet<u8> = HashSet::new();
        for (index, symbol) in symbols.iter().enumerate() {
            if planned.contains_key(symbol) {
                continue;
            }
            if let Some(key) = self.find(*symbol).filter(|key| !taken.contains(&key.code)) {
                needed.insert(key.code);
                continue;
            }
            let Some(code) = free.by_ref().find(|code| !needed.contains(code) && !taken.contains(code))
            else {
                return Batch { count: index, assignments };
            };
            taken.insert(code);
            planned.insert(*symbol, code);
            assignments.push((*symbol, code));
        }
        Batch { count: symbols.len(), assignments }
    }

    /// Applies assignments to the mapping.
    fn take(&mut self, assignments: &[(u32, u8)]) {
        self.keys.retain(|_, key| assignments.iter().all(|(_, code)| *code != key.code));
        self.spare.retain(|spare| assignments.iter().all(|(_, code)| code != spare));
        let new = assignments.iter().map(|(symbol, code)| (*symbol, Key { code: *code, with_shift: false }));
        self.keys.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_contains_shifted_symbols_and_spare_keys() {
        let mapping = Mapping::read(8, 2, &[0, 0, 0x61, 0x41, 0x31, 0, 0, 0]);
        assert_eq!(mapping.spare, [8, 11]);
        assert_eq!(mapping.find(0x41), Some(Key { code: 9, with_shift: true }));
        assert_eq!(mapping.find(0x31), Some(Key { code: 10, with_shift: false }));
        assert_eq!(mapping.find(0x99), None);
    }

    #[test]
    fn plan_stops_when_spare_keys_run_out() {
        let mapping = Mapping::read(8, 1, &[0x61, 0]);
        let plan = |symbols: &[u32]| mapping.plan(symbols, &[]);
        assert_eq!(plan(&[0x61, 1, 0x61, 1, 2, 3]), Batch { count: 4, assignments: vec![(1, 9)] });
        assert_eq!(plan(&[0x61, 0x61]), Batch { count: 2, assignments: vec![] });
        let full = Mapping::read(8, 1, &[0x61]);
        assert_eq!(full.plan(&[5], &[]), Batch { count: 0, assignments: vec![] });
    }

    /// Types with a simulated keyboard and returns what a program would receive.
    fn typed(symbols: &[u32], mapping: &mut Mapping, assigned: &mut Vec<u8>) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut rest = symbols;
        while !rest.is_empty() {
            let Batch { count, assignments } = mapping.plan(rest, assigned);
            assert!(count > 0, "nothing more can be typed after {} symbols", seen.len());
            mapping.take(&assignments);
            assigned.retain(|code| assignments.iter().all(|(_, taken)| taken != code));
            assigned.extend(assignments.iter().map(|(_, code)| *code));
            for symbol in &rest[..count] {
                let code = mapping.find(*symbol).unwrap().code;
                // A key has only one meaning, no matter what the mapping says.
                let meanings: Vec<u32> = mapping
                    .keys
                    .iter()
                    .filter(|(_, key)| key.code == code)
                    .map(|(symbol, _)| *symbol)
                    .collect();
                assert_eq!(meanings.len(), 1, "{meanings:?}");
                seen.extend(meanings);
            }
            rest = &rest[count..];
        }
        seen
    }

    #[test]
    fn more_characters_than_keys_are_typed_correctly() {
        for spare in [1, 7, 40, 120] {
            let mut symbols = vec![0x61];
            symbols.extend(std::iter::repeat_n(0, spare));
            let mut mapping = Mapping::read(8, 1, &symbols);
            let mut assigned = Vec::new();
            let many: Vec<u32> = (0..300).map(|number| 0x0100_4e00 + number).chain([0x61]).collect();
            assert_eq!(typed(&many, &mut mapping, &mut assigned), many);
            // Mix earlier characters with new ones: a key needed with its current meaning must not be reassigned.
            let mixed: Vec<u32> =
                many[250..300].iter().chain(&many[..50]).chain(&[0x0101_f600]).copied().collect();
            assert_eq!(typed(&mixed, &mut mapping, &mut assigned), mixed, "{spare} spare keys");
        }
    }
}
