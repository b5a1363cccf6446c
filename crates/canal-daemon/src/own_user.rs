//! The daemon's user. The daemon that all users of the machine share runs as the owner of its
//! directory, not as the user who starts it.
//!
//! The lookup of the user's name may wait for a directory service, so a thread does it while the
//! daemon serves its clients.
//!
//! Invariant: root leaves no file in a directory of another user.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::unistd::{Gid, Uid, User};

use crate::wording::StartError;
use canal_log::journal::last_origin;
use canal_protocol::paths::{Place, Rule};
use canal_sys::fds;
use canal_sys::process::child::UserIds;
use canal_sys::process::user::{geteuid, stat};
use canal_sys::process::{Origin, become_user};

/// How long the daemon waits for the name, once. Reading a password file takes less time.
const PATIENCE: Duration = Duration::from_millis(50);

/// The name of the daemon's user.
#[derive(Debug, Default)]
pub(crate) struct OwnUser {
    /// The answer of the thread that looks it up, once one does. A user may have no name.
    answer: Option<Receiver<Option<String>>>,
    name: Option<String>,
}

impl OwnUser {
    /// The name of this user; `None` if it has none, or if it is not known yet. Only the first call
    /// waits, for 50 ms at most.
    pub(crate) fn name(&mut self, uid: u32) -> Option<&str> {
        self.ask(move || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name))
    }

    fn ask(&mut self, look: impl FnOnce() -> Option<String> + Send + 'static) -> Option<&str> {
        let mut patience = Duration::ZERO;
        if self.answer.is_none() {
            let (say, answer) = mpsc::channel();
            // The receiver no longer exists if the daemon ends.
            let asks = move || drop(say.send(look()));
            thread::Builder::new().name("canal-user".to_owned()).spawn(asks).ok()?;
            (self.answer, patience) = (Some(answer), PATIENCE);
        }
        if let Ok(name) = self.answer.as_ref()?.recv_timeout(patience) {
            self.name = name;
        }
        self.name.as_deref()
    }
}

/// How many descriptors the daemon may have, as in canal.service.
const DESCRIPTORS: u64 = 524_288;

/// Becomes the owner of the directory if root starts the daemon of the machine, with the rights and
/// limits of canal.service. Creates the directory of its state.
///
/// # Errors
/// This process may not become that user.
pub fn become_owner(place: &Place) -> anyhow::Result<()> {
    if place.rule != Rule::Shared || !geteuid().is_root() {
        return Ok(());
    }
    let Ok(dir) = stat(&place.dir) else { return Ok(()) };
    let uid = Uid::from_raw(dir.st_uid);
    if uid.is_root() {
        return Ok(());
    }
    let gid = Gid::from_raw(dir.st_gid);
    let user = match User::from_uid(uid).ok().flatten() {
        Some(user) => UserIds::of(&user)?,
        None => UserIds { uid, gid, groups: vec![gid] },
    };
    let state_dir = &place.stores().state_dir;
    // The daemon gives the reason if it lacks the directory.
    if DirBuilder::new().mode(0o700).create(state_dir).is_ok() {
        let _ = chown(state_dir, Some(uid.as_raw()), Some(user.gid.as_raw()));
    }
    let _ = fds::raise_limit(DESCRIPTORS);
    become_user(&user).with_context(|| {
        format!("{} belongs to uid {uid}, and root cannot become that user", place.dir.display())
    })
}

/// Refuses to start the daemon of the machine for a client in a container that only uses it.
///
/// # Errors
/// The last daemon saw other processes than this one sees. A [`StartError`] with the reason.
pub(crate) fn refuse_outsider(place: &Place) -> anyhow::Result<()> {
    let (last, here) = (last_origin(&place.dir), Origin::read()?);
    let is_outside = |last: &Origin| last.may_share_boot(&here) && !last.shares_numbers(&here);
    if !last.as_ref().is_some_and(is_outside) {
        return Ok(());
    }
    let what = "the daemon of this machine ran outside this container, and is not running now";
    let hint =
        "start it there, or run `canal daemon --replace` to move it into this container for good";
    Err(StartError { what: what.to_owned(), hint: hint.into() }.into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

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
            nobody.answer.as_ref().unwrap().try_recv() == Err(TryRecvError::Disconnected)
        });
    }
}
