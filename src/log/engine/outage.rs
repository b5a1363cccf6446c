//! Why an engine cannot be used at the moment.

/// Why the engine is of no use for now. None of it is final: an operator can mend it, and the
/// engine is tried again by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The error, for people.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether a person has to do something before the engine can be used: a password is wrong, a
    /// certificate has expired. An engine that is merely silent may come back by itself.
    pub refused: bool,
}

impl Outage {
    /// The engine cannot be reached.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self { why: why.into(), hint: None, refused: false }
    }

    /// The engine cannot be used as things are.
    pub fn refused(why: impl Into<String>, hint: Option<String>) -> Self {
        Self { why: why.into(), hint, refused: true }
    }

    /// The address names another table than before. A daemon stays with the table that it began
    /// with.
    pub(in crate::log::engine) fn moved() -> Self {
        let hint = "`canal daemon --replace` goes over to the other one".to_owned();
        Self::refused("the configuration names another table now", Some(hint))
    }

    /// Whether it differs from what was reported `before`. A server that was silent at first may be
    /// read-only next: people are told the reason that counts now.
    pub(in crate::log::engine) fn is_news(&self, before: Option<&Self>) -> bool {
        before != Some(self)
    }
}
