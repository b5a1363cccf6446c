//! Where the files are. Nothing depends on HOME, XDG_* or TMPDIR: a cron job, a login shell and a
//! CI runner of one user meet at the same daemon.

use std::path::{Path, PathBuf};

/// The files of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The socket. `lock`, `journal.0`, `journal.1`, `daemon.log` and `children/` lie beside it.
    pub socket: PathBuf,
    /// The directory of the socket.
    pub dir: PathBuf,
    /// The directory of what must survive a reboot (`state.json`).
    pub state_dir: PathBuf,
    /// Where a configuration may be, the first that exists counts.
    pub config: Vec<PathBuf>,
    /// Which rule gave the place.
    pub rule: Rule,
}

/// Which rule gave a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `--socket` or `CANAL_SOCKET`: everything lies beside the socket.
    Given,
    /// The directory `/run/canal` exists: a daemon shared by users, never started on demand.
    Shared,
    /// `/tmp/canal-UID`.
    PerUser,
}

impl Place {
    /// Finds the place: `given` (the option, else `CANAL_SOCKET`), else the shared one if
    /// `/run/canal` exists, else that of the user.
    ///
    /// # Errors
    /// A path that is too long for a socket (108 bytes with the end), or not absolute after the
    /// current directory was put before it.
    pub fn find(given: Option<&Path>, uid: u32) -> Result<Self, String> {
        let _ = (given, uid);
        todo!()
    }
}
