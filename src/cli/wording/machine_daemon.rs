//! Describes how the daemon of this machine is started, which only root's commands do.

use std::path::Path;

use crate::client::{ServiceManager, is_from_outside};
use crate::protocol::place::Place;

/// The script that starts the daemon where systemd does not run.
pub(crate) const SCRIPT: &str = "/etc/init.d/canal";

/// How root starts the daemon of this machine.
pub(crate) fn start() -> &'static str {
    let has_script = Path::new(SCRIPT).exists();
    match ServiceManager::of_machine() {
        ServiceManager::Systemd => "`systemctl enable --now canal.socket`",
        ServiceManager::OpenRc if has_script => "`rc-service canal start`",
        _ if has_script => "`/etc/init.d/canal start`",
        _ => "`canal setup`",
    }
}

/// Advice if the daemon of this machine, which has this place, does not run.
pub(crate) fn not_on_demand(place: &Place) -> String {
    if is_from_outside(place) {
        let dir = place.dir.display();
        return format!(
            "start the daemon on the system that owns {dir}, such as the container's host"
        );
    }
    match ServiceManager::of_machine() {
        ServiceManager::Systemd => {
            format!(
                "run {} to start this machine's daemon, which does not start on demand",
                start()
            )
        }
        _ => format!("start it as root, with any canal command or with {}", start()),
    }
}
