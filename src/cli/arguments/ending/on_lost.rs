//! `--on-lost`: what canal does to a command that loses its lock.

use clap::ValueEnum;

use crate::protocol::OnLost;

/// The action on the command if the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLostArg {
    /// TERM, then KILL before another host can get the lock
    Kill,
    /// TERM only
    Term,
    /// Only print a warning
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
