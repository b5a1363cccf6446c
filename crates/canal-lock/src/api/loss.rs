//! Describes the loss of a lock and what the daemon does to the process then.

use std::fmt;
use std::time::Duration;

use crate::client::hold_monitor::LostHold;
use canal_sys::deadline::Why;

/// The action on this process if it loses its lock. Only a daemon with an engine (PostgreSQL or
/// etcd) can lose a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// The daemon does nothing to the process. The [`Guard`](crate::Guard) reports the loss, and
    /// the program must stop its work under the lock.
    #[default]
    Tell,
    /// The daemon also sends the process SIGTERM.
    Term,
    /// The daemon also sends the process SIGTERM, and kills it before another host can get the
    /// lock. If the program itself does nothing, only this variant keeps the lock exclusive.
    Kill,
}

impl From<OnLost> for canal_protocol::OnLost {
    fn from(on_lost: OnLost) -> Self {
        match on_lost {
            OnLost::Tell => Self::Warn,
            OnLost::Term => Self::Term,
            OnLost::Kill => Self::Kill,
        }
    }
}

/// The reason for the loss of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The host could not reach the engine for too long.
    Unreachable,
    /// Another host declared this host gone.
    Gone,
    /// The history of the engine changed (a fail-over or a restored backup).
    Rewritten,
    /// Another daemon writes to the engine under the name of this host.
    Taken,
    /// Another reason.
    Other,
}

impl From<Why> for LostReason {
    fn from(why: Why) -> Self {
        match why {
            Why::Away => Self::Unreachable,
            Why::Gone => Self::Gone,
            Why::Rewritten => Self::Rewritten,
            Why::Taken => Self::Taken,
            // The library never takes locks at nodes.
            Why::Other | Why::Fewer => Self::Other,
        }
    }
}

/// A lock that was lost or can no longer be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// The fencing token of the lock.
    pub token: u64,
    /// The reason for the loss.
    pub reason: LostReason,
    /// The address of the engine, without user, password and parameters.
    pub engine: String,
    /// The name by which users know this host.
    pub host: String,
    /// How long the host had failed to reach the engine when it lost the lock.
    pub unreached_for: Duration,
}

impl From<&LostHold> for Lost {
    fn from(hold: &LostHold) -> Self {
        Self {
            token: hold.token,
            reason: hold.why.into(),
            engine: hold.engine.clone(),
            host: hold.host.clone(),
            unreached_for: Duration::from_millis(hold.at.saturating_sub(hold.reached_at)),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, engine, host, unreached_for, .. } = self;
        let seconds = unreached_for.as_secs();
        write!(f, "lost the lock with token {token}: ")?;
        match self.reason {
            LostReason::Unreachable => write!(f, "canal last reached {engine} {seconds}s earlier"),
            LostReason::Gone => write!(f, "this host ({host}) was declared gone"),
            LostReason::Rewritten => write!(f, "the history of {engine} changed"),
            LostReason::Taken => write!(f, "another daemon is writing to {engine} as {host}"),
            LostReason::Other => write!(f, "the daemon of this host ({host}) reported it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_its_reason() {
        let lost = |why| {
            let (engine, host) = ("etcd".to_owned(), "alpha".to_owned());
            let then = None;
            Lost::from(&LostHold {
                token: 7,
                why,
                at: 60_000,
                reached_at: 15_000,
                engine,
                host,
                then,
                is_refused: false,
            })
        };
        assert_eq!(
            lost(Why::Away).to_string(),
            "lost the lock with token 7: canal last reached etcd 45s earlier"
        );
        for (why, words) in [
            (Why::Gone, "this host (alpha) was declared gone"),
            (Why::Rewritten, "the history of etcd changed"),
            (Why::Taken, "another daemon is writing to etcd as alpha"),
            (Why::Other, "the daemon of this host (alpha)"),
        ] {
            let text = lost(why).to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
