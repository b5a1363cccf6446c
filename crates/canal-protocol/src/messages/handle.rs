//! The secret of a lease.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use canal_core::Tag;

/// The handle of a lease: 128 random bits, made by the client that requests the lease. A process
/// that knows it can renew and release the lease.
///
/// It is never printed by accident: only [`Handle::reveal`] and a message show it in full.
///
/// The client makes it so that a client whose answer was lost can ask again and get the same lease.
/// Any user with the handle may use it, because the steps of a CI run can be different users.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(Tag);

impl Handle {
    /// A handle of these bits.
    #[must_use]
    pub fn new(bits: u128) -> Self {
        Self(Tag(bits))
    }

    /// Its bits.
    #[must_use]
    pub fn bits(self) -> u128 {
        self.0.0
    }

    /// The secret as text: 32 hexadecimal digits.
    #[must_use]
    pub fn reveal(self) -> String {
        self.0.to_string()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(secret)")
    }
}

impl FromStr for Handle {
    type Err = &'static str;

    /// The error does not repeat the text, which may be a handle with one extra letter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| "a handle is 32 hexadecimal digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_shown_and_not_shown_by_accident() {
        let handle = Handle::new(0xabc);
        let text = "00000000000000000000000000000abc";
        assert_eq!(handle.reveal(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(handle));
        assert_eq!(format!("{handle:?}"), "Handle(secret)");
        assert_eq!(serde_json::to_string(&handle).unwrap(), format!("\"{text}\""));
        for wrong in ["", "abc", "0000000000000000000000000000000xyz", &format!("{text}0")] {
            let error = wrong.parse::<Handle>().unwrap_err();
            assert_eq!(error, "a handle is 32 hexadecimal digits");
        }
    }
}
