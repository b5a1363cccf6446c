//! Checks the features of the kernel, how canal replaces missing ones, and the limits of this
//! process.

use std::path::Path;

use super::finding::Finding;
use crate::sys::pidfd::{FORBIDDEN_HINT, Pidfd};
use crate::sys::process::Origin;
use crate::sys::{fds, peer};

/// With fewer descriptors, no daemon starts.
const DESCRIPTORS_MIN: u64 = 64;

/// Reports what is missing in /proc.
fn proc() -> Option<Finding> {
    const HINT: &str = "mount /proc here: `mount -t proc proc /proc`";
    match Origin::read() {
        Err(error) => {
            let message = format!(
                "/proc is not mounted ({error}), and before Linux 6.13 no daemon works without it"
            );
            Some(Finding::problem("proc", message, HINT))
        }
        Ok(_) if !Path::new("/proc/self").exists() => {
            let message = "/proc is not mounted: canal works, but shows only the commands of \
                           processes that asked themselves, finds no descendants, and shares no \
                           locks over an engine";
            Some(Finding::advice("proc", message, HINT))
        }
        Ok(origin) if origin.boot_id.is_empty() => {
            let message = "cannot read /proc/sys (the mount option subset=pid?): canal works, but \
                           not with an engine";
            Some(Finding::advice("proc", message, HINT))
        }
        Ok(_) => None,
    }
}

pub(super) fn look() -> Vec<Finding> {
    let release = nix::sys::utsname::uname().map_or_else(
        |_| "of an unknown version".to_owned(),
        |it| it.release().to_string_lossy().into_owned(),
    );
    let mut findings = match Pidfd::open(std::process::id()) {
        Ok(own) => {
            let mut findings = vec![Finding::fine("kernel", format!("Linux {release}"))];
            if !peer::has_peer_pidfd() {
                let missing =
                    "before 6.5: the daemon identifies a client by its pid and start time";
                findings.push(Finding::note("kernel", missing));
            }
            if own.inode() == 0 {
                let missing = "before 6.9: after a restart, the daemon identifies a process by its \
                               pid and start time";
                findings.push(Finding::note("kernel", missing));
            }
            findings
        }
        Err(error) => vec![Finding::problem(
            "kernel",
            format!("Linux {release} provides no pidfds: {error}"),
            FORBIDDEN_HINT,
        )],
    };
    findings.extend(proc());
    if std::env::var_os("CANAL_KERNEL").is_some() {
        findings.push(Finding::note("kernel", "CANAL_KERNEL hides newer features from canal"));
    }
    findings.push(match fds::limit() {
        Ok(limit) if limit < DESCRIPTORS_MIN => Finding::problem(
            "limits",
            format!("the limit of open files is {limit}, and a daemon needs {DESCRIPTORS_MIN}"),
            "raise it with `ulimit -n 1024`",
        ),
        Ok(limit) => Finding::fine("limits", format!("the limit of open files is {limit}")),
        Err(error) => {
            Finding::note("limits", format!("the limit of open files is unknown: {error}"))
        }
    });
    findings
}
