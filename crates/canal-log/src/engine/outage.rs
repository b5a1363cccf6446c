//! Why an engine is currently unusable.

/// Why the engine is unusable for now. None of it is final: an operator can repair it, and canal
/// keeps trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The error, as canal shows it.
    pub why: String,
    /// The action to take.
    pub hint: Option<String>,
    /// Whether a person has to act before the engine can be used: a password is wrong, a
    /// certificate has expired. An engine that is merely silent may come back unaided.
    pub refused: bool,
}

impl Outage {
    /// The engine cannot be reached.
    pub fn unreachable(why: impl Into<String>) -> Self {
        Self { why: why.into(), hint: None, refused: false }
    }

    /// The engine is unusable at present.
    pub fn refused(why: impl Into<String>, hint: Option<String>) -> Self {
        Self { why: why.into(), hint, refused: true }
    }

    /// The address names another table than before. A daemon stays with its first table.
    pub(in crate::engine) fn moved() -> Self {
        let hint = "run `canal daemon --replace` to change to the other one".to_owned();
        Self::refused("the configuration now names another table", Some(hint))
    }
}

/// The text of the innermost cause: the errors around it ("transport error") add nothing useful.
#[cfg(any(feature = "etcd", feature = "postgres"))]
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    let text = inner.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
