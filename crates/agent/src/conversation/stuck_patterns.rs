//! The ways in which an agent makes no progress, and the text that it gets for each.

pub(super) struct Pattern {
    /// The number of repetitions at which the agent is nudged.
    pub(super) nudge_at: usize,
    /// The number of repetitions at which the job pauses.
    pub(super) pause_at: usize,
    /// Whether it is about calls that are repeated, rather than calls that are missing or malformed.
    pub(super) is_of_calls: bool,
    /// The nudge; its first part, up to the semicolon, says what happened.
    pub(super) text: &'static str,
}

pub(super) const SAME_CALL: Pattern = Pattern {
    nudge_at: 3,
    pause_at: 6,
    is_of_calls: true,
    text: "the same call was made with the same result; doing it again will not change anything: if the task is done \
        call finish, else do what is still missing, or call finish and say what is in the way",
};
pub(super) const SAME_ERROR: Pattern = Pattern {
    nudge_at: 4,
    pause_at: 8,
    is_of_calls: true,
    text: "the same error came back; the cause is still there: read the error, look at the files it names, and try \
        another way",
};
pub(super) const CYCLE: Pattern = Pattern {
    nudge_at: 3,
    pause_at: 6,
    is_of_calls: true,
    text: "the same few calls were made in turn with the same results; this leads nowhere: think about what they told \
        you and choose another way",
};
pub(super) const FREQUENT_CALL: Pattern = Pattern {
    nudge_at: 20,
    pause_at: 24,
    is_of_calls: true,
    text: "the same call was made many times and nothing was changed in between; change something first, or wait for \
        what you are waiting for in one longer call",
};
pub(super) const TEXT_ONLY: Pattern = Pattern {
    nudge_at: 1,
    pause_at: 5,
    is_of_calls: false,
    text: "an answer came without a tool call; nothing happens unless you call a tool: do the next step with one, or \
        call finish when everything is done",
};
pub(super) const EMPTY_ANSWER: Pattern = Pattern {
    nudge_at: 1,
    pause_at: 4,
    is_of_calls: false,
    text: "the answer was empty; call a tool to continue, or finish when everything is done",
};
pub(super) const BAD_CALLS: Pattern = Pattern {
    nudge_at: 3,
    pause_at: 7,
    is_of_calls: false,
    text: "calls came that could not be understood; use one of the tools you were given, by its exact name, with the \
        input that its schema describes",
};
