//! What was found on a machine, for a list of what it has and lacks.

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFinding {
    /// What was checked, such as `driver`.
    pub name: String,
    /// What was found.
    pub text: String,
    /// Whether that is enough.
    pub ok: bool,
    /// What to do if it is not enough, or could be better.
    pub advice: Option<String>,
}

impl MachineFinding {
    /// A check that succeeded.
    pub fn good(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), ok: true, advice: None }
    }

    /// Something that is missing, or not enough.
    pub fn bad(name: impl Into<String>, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), ok: false, advice: Some(advice.into()) }
    }

    /// The same with advice.
    pub fn with_advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}
