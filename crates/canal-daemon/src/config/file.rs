//! Reads a configuration file, unless other users may have written it.
//!
//! The configuration grants permissions, so a user who can write it could grant himself everything.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::config::ConfigError;
use crate::processes::owner_identity::NOBODY;
use canal_protocol::user_namespace::uid_of_machine;
use canal_sys::process::user;
use canal_text::shell_word;

/// The mode bits that let other users write.
pub(crate) const OTHERS_WRITE: u32 = 0o022;

/// The text of a configuration file. Links are followed; the checks apply to their target.
///
/// # Errors
/// The file cannot be read, is not a regular file, belongs to a user other than root and the
/// daemon's, or is writable by others.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |error: io::Error| ConfigError::Io { path: path.to_owned(), error };
    let refused = |what: String| ConfigError::Refused { path: path.to_owned(), what };
    // Opening a FIFO without a writer must not block the daemon.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = opened.map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(refused("is not a regular file".to_owned()));
    }
    let owned = user::fstat(&file).map_err(failed)?;
    let (owner, uid) = (owned.st_uid, user::geteuid().as_raw());
    if owner != uid && !is_root(owner) {
        let may = if uid == 0 { "root".to_owned() } else { format!("root or uid {uid}") };
        return Err(refused(format!("belongs to uid {owner} and must belong to {may}")));
    }
    let mode = owned.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        let path = shell_word::of_path(path);
        return Err(refused(format!(
            "is writable by other users (mode {mode:04o}): run `chmod go-w {path}`"
        )));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Whether a file belongs to the machine's root. A user namespace that does not map root shows it
/// as the overflow user, like all other users that it does not map.
pub(crate) fn is_root(owner: u32) -> bool {
    owner == 0 || owner == NOBODY && uid_of_machine(0) != 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn refusal(path: &Path) -> String {
        match read(path).unwrap_err() {
            error @ ConfigError::Refused { .. } => error.to_string(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        fs::write(&path, "x").unwrap();
        for mode in [0o666, 0o664, 0o606, 0o622] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = refusal(&path);
            assert!(
                said.contains(&format!("is writable by other users (mode {mode:04o})")),
                "{said}"
            );
            assert!(said.contains("`chmod go-w "), "{said}");
        }
        for mode in [0o644, 0o600, 0o400, 0o755] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).unwrap(), "x", "{mode:o}");
        }
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read(&link).unwrap(), "x");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !user::geteuid().is_root() {
            return; // Nobody else can give a file away.
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        fs::write(&path, "x").unwrap();
        chown(&path, Some(12345), None).unwrap();
        let said = refusal(&path);
        assert!(said.ends_with("belongs to uid 12345 and must belong to root"), "{said}");
    }

    #[test]
    fn a_fifo_or_folder_as_configuration_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(refusal(&fifo).ends_with("is not a regular file"));
        assert!(refusal(dir.path()).ends_with("is not a regular file"));
    }
}
