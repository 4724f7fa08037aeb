//! What was found of a machine, for people who look for what is missing.

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, as in `driver`.
    pub name: String,
    /// What was found.
    pub text: String,
    /// Whether that will do.
    pub ok: bool,
    /// What to do, if it will not or could be better.
    pub advice: Option<String>,
}

impl Finding {
    /// What will do.
    pub fn good(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), ok: true, advice: None }
    }

    /// What is missing or too little.
    pub fn bad(name: impl Into<String>, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), ok: false, advice: Some(advice.into()) }
    }

    /// The same with what could be done.
    pub fn with_advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }
}
