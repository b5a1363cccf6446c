//! A hold or a waiting request whose process a client wants to end.

use crate::view::Shown;
use crate::wording::text::{pid_of, time};
use canal_core::{FrameId, HoldState, Request, WaiterState};
use canal_protocol::{ErrorName, Failure, KillTarget, WouldKill};

/// A hold or a waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    Hold(&'a HoldState),
    Wait(&'a WaiterState),
}

impl<'a> Target<'a> {
    pub(super) fn asked(&self) -> &'a Request {
        match self {
            Self::Hold(hold) => &hold.asked,
            Self::Wait(waiter) => &waiter.request,
        }
    }

    pub(super) fn frame(&self) -> FrameId {
        match self {
            Self::Hold(hold) => hold.frame,
            Self::Wait(waiter) => waiter.frame,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        pid_of(&self.asked().owner)
    }

    fn key_list(&self) -> Vec<String> {
        match self {
            Self::Hold(hold) => hold.items.iter().map(|item| item.key.to_string()).collect(),
            Self::Wait(waiter) => {
                waiter.request.items.iter().map(|item| item.key.to_string()).collect()
            }
        }
    }

    /// Its keys, for the log.
    pub(super) fn keys(&self) -> String {
        self.key_list().join(", ")
    }

    /// Its description for a client. `refused`: why the client cannot end it.
    pub(super) fn told(&self, shown: &Shown<'_>, refused: Option<Failure>) -> KillTarget {
        let (token, request, since) = match self {
            Self::Hold(hold) => (Some(hold.token.0), None, hold.since),
            Self::Wait(waiter) => (None, Some(waiter.id.0), waiter.since),
        };
        let (refused, hint) = refused.map_or((None, None), |it| (Some(it.message), it.hint));
        KillTarget {
            token,
            request,
            keys: self.key_list(),
            party: shown.party(self.asked(), self.frame()),
            since: time(since),
            host: shown.label_of(self.frame()),
            folder: shown.folder(self.asked(), self.frame()),
            note: self.asked().note.as_deref().map(str::to_owned),
            refused,
            hint: hint.map(String::from),
        }
    }
}

/// The failure for a client that may not end a process.
pub(super) fn denied(message: String) -> Failure {
    Failure::new(ErrorName::Denied, message)
}

/// The failure for a client that named something that has since changed.
pub(super) fn past(what: &str) -> Failure {
    let mut failure =
        Failure::new(ErrorName::NotHeld, format!("{what}, so canal signalled no process"));
    failure.reason = Some("changed".into());
    failure
}

/// The failure for a client whose query matches no holder and no waiter.
pub(super) fn not_found(asked: &WouldKill) -> Failure {
    let message = match (&asked.key, asked.pid) {
        (Some(key), _) if asked.waiters => format!("no one holds or waits for `{key}`"),
        (Some(key), _) => format!("no one holds `{key}`"),
        (None, None) => {
            let session = asked.session.as_deref().unwrap_or_default();
            format!("session {session} neither holds nor waits for a lock here")
        }
        (None, pid) => {
            format!("process {} neither holds nor waits for a lock here", pid.unwrap_or(0))
        }
    };
    let failure = Failure::new(ErrorName::NotHeld, message);
    match &asked.key {
        Some(key) if !asked.waiters => {
            failure.hint(format!("`canal kill --waiters {key}` includes its waiters"))
        }
        _ => failure.hint("`canal status` shows the holders and waiters"),
    }
}
