//! The start of `canal status --why`: a process or a session.

use std::fmt;
use std::str::FromStr;

use crate::cli::arguments::number::number;
use crate::protocol::WhyQuery;

/// The waiter at which the chain of waits starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhyTarget {
    /// A process.
    Pid(u32),
    /// A session, in the notation of `canal status`: `s17`.
    Session(String),
}

impl FromStr for WhyTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "neither the number of a process nor a session such as s17".to_owned();
        match text.strip_prefix('s') {
            Some(digits) => number(digits).map(|_| Self::Session(text.to_owned())),
            None => number(text).and_then(|n| u32::try_from(n).map_err(|_| wrong())).map(Self::Pid),
        }
        .map_err(|_| wrong())
    }
}

impl WhyTarget {
    /// The query to send to the daemon.
    pub(crate) fn query(&self) -> WhyQuery {
        match self {
            Self::Pid(pid) => WhyQuery { pid: Some(*pid), session: None },
            Self::Session(session) => WhyQuery { pid: None, session: Some(session.clone()) },
        }
    }
}

impl fmt::Display for WhyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Session(session) => write!(f, "session {session}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_s_with_a_number_a_session() {
        assert_eq!("812".parse(), Ok(WhyTarget::Pid(812)));
        assert_eq!("s17".parse(), Ok(WhyTarget::Session("s17".to_owned())));
        for text in ["", "s", "17s", "-1", "sx", "make", "4294967296", "s-1", "s1 "] {
            assert!(text.parse::<WhyTarget>().is_err(), "{text}");
        }
    }
}
