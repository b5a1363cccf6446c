//! Ensures that one daemon alone writes a user's state directory. It is in the home, which daemons
//! in several /tmp and on several machines can share.
//!
//! Invariant: a daemon that does not have the lock keeps its state next to its socket.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::open_lock;
use crate::store::node::machine_name;
use canal_protocol::place::{BESIDE_SOCKET, Place};

/// The name of the lock. The file contains the machine, the place and the pid of its last owner.
const NAME: &str = "daemon.lock";

/// How long to wait for the previous daemon of this place to exit.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// The time between two attempts.
const ATTEMPT_EVERY: Duration = Duration::from_millis(10);

/// Takes the lock, or notes at the place why its state is next to the socket. `here` is the name of
/// the place among all places of the machine. Returns `None` without a lock: also if the directory
/// cannot be used, which is reported where it is needed.
pub(super) fn take(place: &Place, here: &str) -> io::Result<Option<File>> {
    let dir = &place.stores().state_dir;
    if !place.is_users_own() || *dir == place.dir {
        return Ok(None);
    }
    let beside = place.dir.join(BESIDE_SOCKET);
    let taken = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let taken = taken.and_then(|()| attempt(dir, here, machine_name().as_deref()));
    let (lock, reason) = match taken {
        Ok(Ok(lock)) => (Some(lock), None),
        Ok(Err(reason)) => (None, Some(reason)),
        Err(error) => {
            tracing::debug!(%error, "cannot lock {}", dir.display());
            (None, None)
        }
    };
    match reason {
        Some(reason) => fs::write(&beside, reason)?,
        None => match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    Ok(lock)
}

/// The lock, or the reason why another daemon has the directory.
fn attempt(dir: &Path, here: &str, machine: Option<&str>) -> io::Result<Result<File, String>> {
    let path = dir.join(NAME);
    let machine = machine.unwrap_or_default();
    let gives_up = Instant::now() + EXIT_MAX;
    loop {
        let mut file = open_lock(&path)?;
        let mut text = String::new();
        let locked = fs2::FileExt::try_lock_exclusive(&file);
        file.read_to_string(&mut text)?;
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap_or_default();
        let (their_machine, there, pid) = (next(), next(), next());
        let is_other = !their_machine.is_empty() && !machine.is_empty() && their_machine != machine;
        match locked {
            Ok(()) if is_other => {
                return Ok(Err(format!(
                    "{} belongs to your daemon on another machine (if that machine is gone, \
                     remove {NAME} in that directory)",
                    dir.display()
                )));
            }
            Ok(()) => {
                // Overwrites in place, so that it succeeds on a full disk. The lock counts even if
                // it fails.
                let signed = format!("{machine}\n{here}\n{}\n", std::process::id());
                let written = file.write_all_at(signed.as_bytes(), 0);
                let _ = written.and_then(|()| file.set_len(signed.len() as u64));
                return Ok(Ok(file));
            }
            Err(error) if error.kind() != fs2::lock_contended_error().kind() => return Err(error),
            // The previous daemon of this place is about to exit.
            Err(_) if !is_other && there == here && Instant::now() < gives_up => {
                std::thread::sleep(ATTEMPT_EVERY);
            }
            Err(_) => {
                return Ok(Err(format!(
                    "another daemon of yours (pid {pid}) is using {}",
                    dir.display()
                )));
            }
        }
    }
}

/// The note for operators, if the state is next to the socket.
pub(super) fn note(place: &Place) -> Option<String> {
    let reason = fs::read_to_string(place.dir.join(BESIDE_SOCKET)).ok()?;
    let dir = place.dir.display();
    Some(format!(
        "its state is in {dir}, so stored sizes and leases do not survive a reboot: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_of_one_machine_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let attempt = |here, machine| attempt(dir.path(), here, machine).unwrap();
        let first = attempt("canal-1-a", Some("m")).unwrap();
        let reason = attempt("canal-1-b", Some("m")).unwrap_err();
        assert!(reason.starts_with("another daemon of yours (pid "), "{reason}");
        drop(first);
        let second = attempt("canal-1-b", Some("m")).unwrap();
        drop(second);
        let reason = attempt("canal-1-b", Some("other")).unwrap_err();
        assert!(reason.contains("belongs to your daemon on another machine"), "{reason}");
        // A container may have no id.
        drop(attempt("canal-1-b", None).unwrap());
        drop(attempt("canal-1-b", Some("other")).unwrap());
    }

    #[test]
    fn a_daemon_waits_for_the_exit_of_the_one_that_it_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let first = attempt(dir.path(), "here", None).unwrap().unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| attempt(dir.path(), "here", None).unwrap().is_ok());
            std::thread::sleep(Duration::from_millis(30));
            drop(first);
            assert!(next.join().unwrap());
        });
    }
}
