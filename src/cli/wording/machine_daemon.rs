//! Describes how the daemon of this machine is started, which clients never do.

use std::path::Path;

/// The directory that exists if systemd runs this machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// The commands that create the directory and start the daemon without systemd.
pub(crate) const WITHOUT_SYSTEMD: &str = "`mkdir -p -m 755 /run/canal && canal daemon &`";

/// Whether systemd runs this machine.
pub(crate) fn is_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// How to start the daemon of this machine.
pub(crate) fn start() -> String {
    match is_systemd() {
        true => "`systemctl enable --now canal.socket`".to_owned(),
        false => format!("{WITHOUT_SYSTEMD}, as root and at each boot"),
    }
}

/// Advice if that daemon does not run.
pub(crate) fn not_on_demand() -> String {
    format!("the daemon of this machine is not started on demand: {}", start())
}
