//! The question after Ctrl-C on the last line of the terminal.

use std::cell::Cell;
use std::rc::Rc;

/// Whether the question is on the last line, where the bar would be.
pub(crate) type PromptFlag = Rc<Cell<bool>>;

/// The question after Ctrl-C. It is printed again below each line that appears meanwhile.
pub(super) const PROMPT: &str =
    "cancel the job, or leave it running? [c]ancel, [l]eave, Enter to keep watching: ";
