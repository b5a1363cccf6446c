//! A note for root under sudo(8): its locks are not those of the user who called sudo.
//!
//! Root does not connect to that user's daemon, because the user could lead root to another socket.

use nix::unistd::geteuid;

use super::user_name;
use crate::cli::output::stderr::Verbosity;
use crate::daemon;
use crate::protocol::place::{Place, Rule};

/// With `-v`, prints that the user who called sudo has a daemon, if it runs.
pub(crate) fn note(place: &Place, verbosity: Verbosity) {
    if verbosity < Verbosity::Verbose || place.rule != Rule::PerUser || !geteuid().is_root() {
        return;
    }
    look(verbosity);
}

fn look(verbosity: Verbosity) {
    let uid = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse::<u32>().ok());
    let Some(uid) = uid.filter(|uid| *uid != 0) else { return };
    let theirs = Place::of_user(uid);
    if daemon::runs(&theirs, uid) {
        let (who, socket) = (user_name::name(uid), theirs.socket.display());
        verbosity.detail(&format!(
            "under sudo root's own locks are used, not those of {who} ({socket})"
        ));
    }
}
