//! `--on-lost`: what canal does to a command whose lock is lost.

use clap::ValueEnum;

use crate::protocol::OnLost;

/// What becomes of the command if the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLostArg {
    /// TERM, and KILL before others can have the lock
    Kill,
    /// TERM only
    Term,
    /// Only say it
    Warn,
}

impl From<OnLostArg> for OnLost {
    fn from(arg: OnLostArg) -> Self {
        match arg {
            OnLostArg::Kill => Self::Kill,
            OnLostArg::Term => Self::Term,
            OnLostArg::Warn => Self::Warn,
        }
    }
}
