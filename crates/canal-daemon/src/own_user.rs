//! The name of the daemon's user, for people.
//!
//! The lookup may wait for a directory service, so a thread does it while the daemon serves its
//! clients.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::unistd::{Uid, User};

/// How long the daemon waits for the name, once. Reading a password file takes less time.
const PATIENCE: Duration = Duration::from_millis(50);

/// The name of the daemon's user.
#[derive(Debug, Default)]
pub(crate) enum OwnUser {
    /// The name has not been requested yet.
    #[default]
    Unasked,
    /// A thread is looking it up.
    Asked(Receiver<Option<String>>),
    /// The result of the lookup. A user may have no name.
    Known(Option<String>),
}

impl OwnUser {
    /// The name of this user; `None` if it has none, or if it is not known yet. Only the first call
    /// waits, for 50 ms at most.
    pub(crate) fn name(&mut self, uid: u32) -> Option<&str> {
        self.ask(move || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name))
    }

    fn ask(&mut self, look: impl FnOnce() -> Option<String> + Send + 'static) -> Option<&str> {
        let mut patience = Duration::ZERO;
        if matches!(self, Self::Unasked) {
            let (say, answer) = mpsc::channel();
            // The receiver no longer exists if the daemon ends.
            let asks = move || drop(say.send(look()));
            let thread = thread::Builder::new().name("canal-user".to_owned()).spawn(asks);
            if thread.is_err() {
                return None;
            }
            (*self, patience) = (Self::Asked(answer), PATIENCE);
        }
        if let Self::Asked(answer) = self {
            match answer.recv_timeout(patience) {
                Ok(name) => *self = Self::Known(name),
                Err(RecvTimeoutError::Disconnected) => *self = Self::Known(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        match self {
            Self::Known(name) => name.as_deref(),
            Self::Unasked | Self::Asked(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_sys::rerun::wait_until;

    #[test]
    fn a_directory_service_that_does_not_answer_is_not_waited_for() {
        let (answer, asked) = mpsc::channel();
        let mut user = OwnUser::default();
        assert_eq!(user.ask(move || asked.recv().ok()), None);
        assert_eq!(user.ask(|| unreachable!("it is asked once")), None);
        answer.send("ann".to_owned()).unwrap();
        wait_until("the name is known", || user.ask(|| None) == Some("ann"));
    }

    #[test]
    fn root_has_a_name_and_most_numbers_have_none() {
        let mut root = OwnUser::default();
        wait_until("the name is known", || root.name(0) == Some("root"));
        let mut nobody = OwnUser::default();
        wait_until("it is known that there is none", || {
            assert_eq!(nobody.name(4_000_000_123), None);
            matches!(nobody, OwnUser::Known(None))
        });
    }
}
