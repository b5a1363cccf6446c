//! The service manager of this machine, and with it who starts the daemon that all users share.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use canal_protocol::place::{Place, Rule};
use canal_sys::process::exec::{Lookup, lookup};
use canal_sys::process::user::geteuid;

/// The service manager of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceManager {
    /// systemd (sd_booted(3)).
    Systemd,
    /// OpenRC.
    OpenRc,
    /// An init that runs the scripts in `/etc/init.d`, and the program that adds one.
    SysV(&'static str),
    /// None that canal knows.
    Unknown,
}

/// The programs that add a script to the runlevels. Each distribution has one of them.
const ADDS_SCRIPT: [&str; 3] = ["update-rc.d", "insserv", "chkconfig"];

impl ServiceManager {
    /// What runs services on this machine. Process 1 and the installed programs show it.
    #[must_use]
    pub fn of_machine() -> Self {
        let has = |program: &&str| matches!(lookup(OsStr::new(*program)), Lookup::Found(_));
        if Path::new("/run/systemd/system").is_dir() {
            return Self::Systemd;
        }
        if Path::new("/run/openrc").is_dir() && has(&"rc-service") {
            return Self::OpenRc;
        }
        let first = fs::read_to_string("/proc/1/comm").unwrap_or_default();
        let adds_script = ADDS_SCRIPT.into_iter().find(has);
        adds_script.filter(|_| first.trim() == "init").map_or(Self::Unknown, Self::SysV)
    }
}

/// Whether this client may start the daemon of a place. Only root may start the daemon that users
/// share, and not if systemd does or if the directory belongs to another system.
pub(in crate::client) fn may_start(place: &Place) -> bool {
    place.rule != Rule::Shared
        || geteuid().is_root()
            && place.dir.is_dir()
            && ServiceManager::of_machine() != ServiceManager::Systemd
            && !is_from_outside(place)
}

/// Whether the directory of a place is a mount, as in a container that uses the daemon of the
/// machine. A daemon in the container would not see the processes of that machine.
#[must_use]
pub fn is_from_outside(place: &Place) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let devices = (place.dir.parent().and_then(device), device(&place.dir));
    matches!(devices, (Some(above), Some(here)) if above != here)
}
