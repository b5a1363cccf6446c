//! Describes how the daemon of this machine is started, which only root's commands do.

use std::path::Path;
use std::process::Command;

use crate::cli::{Failed, Result};
use crate::client::{ServiceManager, is_from_outside};
use crate::protocol::place::Place;

/// The script that starts the daemon where systemd does not run.
pub(crate) const SCRIPT: &str = "/etc/init.d/canal";

/// The command with which root starts the daemon of a machine with this manager.
pub(crate) fn start_command(manager: ServiceManager) -> &'static str {
    match manager {
        ServiceManager::Systemd => "systemctl enable --now canal.socket",
        ServiceManager::OpenRc => "rc-service canal start",
        ServiceManager::SysV(_) | ServiceManager::Unknown => "/etc/init.d/canal start",
    }
}

/// Runs a command whose words contain no blanks.
pub(crate) fn execute(command: &str) -> Result {
    let mut words = command.split(' ');
    match Command::new(words.next().unwrap_or_default()).args(words).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failed::new(format!("`{command}` failed: {status}"))),
        Err(error) => Err(Failed::new(format!("`{command}`: {error}"))),
    }
}

/// How root starts the daemon of this machine.
pub(crate) fn start() -> String {
    let manager = ServiceManager::of_machine();
    match manager == ServiceManager::Systemd || Path::new(SCRIPT).exists() {
        true => format!("`{}`", start_command(manager)),
        false => "`canal setup`".to_owned(),
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
