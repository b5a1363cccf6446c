//! What starts the daemon of this machine, which clients never start.

use std::path::Path;

/// Where systemd tells that it runs this machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// What makes the directory and starts the daemon where systemd does not.
pub(crate) const WITHOUT_SYSTEMD: &str = "`mkdir -p -m 755 /run/canal && canal daemon &`";

/// Whether systemd runs this machine.
pub(crate) fn is_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// How the daemon of this machine is started.
pub(crate) fn start() -> String {
    match is_systemd() {
        true => "`systemctl enable --now canal.socket`".to_owned(),
        false => format!("{WITHOUT_SYSTEMD}, as root and at each boot"),
    }
}

/// What to do where it does not run.
pub(crate) fn not_on_demand() -> String {
    format!("the daemon of this machine is not started on demand: {}", start())
}
