//! The user of the daemon that all users of the machine share: the owner of its directory, not
//! the user who starts it.
//!
//! Invariant: root leaves no file in a directory of another user.

use std::ffi::CString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};

use anyhow::Context;
use nix::unistd::{Gid, Uid, User, getgrouplist};

use crate::wording::StartError;
use canal_log::journal::last_origin;
use canal_protocol::place::{Place, Rule};
use canal_sys::fds;
use canal_sys::process::child::UserIds;
use canal_sys::process::user::{geteuid, stat};
use canal_sys::process::{Origin, become_user};

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
        Some(user) => {
            let groups = getgrouplist(&CString::new(user.name)?, user.gid)?;
            UserIds { uid, gid: user.gid, groups }
        }
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
