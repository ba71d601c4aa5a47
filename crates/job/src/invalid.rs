//! A field of a request that is refused.

/// How the problem of a field begins that does not exist.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field";

/// A field of a request that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Path of the field, such as `steps[2].timeout_s`.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> InvalidField {
    InvalidField { field: field.into(), problem: problem.into() }
}

impl InvalidField {
    /// The same problem of a field that is below another one.
    #[must_use]
    pub fn below(self, parent: &str) -> Self {
        let field = match (parent, self.field.as_str()) {
            ("", field) => field.to_owned(),
            (parent, "") => parent.to_owned(),
            (parent, field) if field.starts_with('[') => format!("{parent}{field}"),
            (parent, field) => format!("{parent}.{field}"),
        };
        Self { field, ..self }
    }

    /// One sentence with the name of the field: `` `limits` has no field `speed` ``. The caller says what its fields are
    /// called and what contains them.
    #[must_use]
    pub fn sentence(&self, noun: &str, whole: &str) -> String {
        let Self { field, problem } = self;
        if let Some(hint) = problem.strip_prefix(UNKNOWN_FIELD) {
            return match field.rsplit_once('.') {
                Some((parent, name)) => format!("`{parent}` has no {noun} `{name}`{hint}"),
                None => format!("there is no {noun} `{field}`{hint}"),
            };
        }
        match (field.as_str(), Self::reads_on(problem)) {
            ("", true) => format!("{whole} {problem}"),
            ("", false) => problem.clone(),
            (field, true) => format!("`{field}` {problem}"),
            (field, false) => format!("`{field}`: {problem}"),
        }
    }

    /// Whether a problem continues a sentence that begins with the name of the field.
    pub(crate) fn reads_on(problem: &str) -> bool {
        ["must ", "is ", "has ", UNKNOWN_FIELD].iter().any(|start| problem.starts_with(start))
    }
}
