//! Checks that no other user can have written the program of a hook.
//!
//! A user who could write the program could act as the user of the hook. As with the configuration,
//! canal does not check the directories above the file.

use std::path::Path;

use crate::config::file::{OTHERS_WRITE, is_root};
use canal_sys::process::user;
use canal_text::shell_word;

/// Checks the program of a hook that a daemon of the user `daemon` runs as `user`. Links are
/// followed; the checks apply to their target.
///
/// # Errors
/// It must not or cannot be run. The reason is text for people.
pub(crate) fn check(path: &Path, daemon: u32, user: u32) -> Result<(), String> {
    let found = std::fs::metadata(path).map_err(|error| format!("cannot read it: {error}"))?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let owned = user::stat(path).map_err(|error| format!("cannot read it: {error}"))?;
    let (owner, mode) = (owned.st_uid, owned.st_mode & 0o7777);
    if owner != daemon && owner != user && !is_root(owner) {
        let mut may = vec!["root".to_owned()];
        may.extend([daemon, user].iter().filter(|uid| **uid != 0).map(|uid| format!("uid {uid}")));
        may.dedup();
        return Err(format!("it belongs to uid {owner} and must belong to {}", may.join(" or ")));
    }
    if mode & OTHERS_WRITE != 0 {
        let path = shell_word::of_path(path);
        return Err(format!(
            "it is writable by other users (mode {mode:04o}): run `chmod go-w {path}`"
        ));
    }
    if mode & 0o111 == 0 {
        return Err(format!("it is not executable (mode {mode:04o})"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_program_that_others_can_write_or_own_is_refused() {
        let own = user::geteuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        let why = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            check(&path, own, own).err()
        };
        assert!(check(&path, own, own).unwrap_err().contains("cannot read it: No such file"));
        fs::write(&path, "").unwrap();
        for mode in [0o755, 0o700, 0o500, 0o711] {
            assert_eq!(why(mode), None, "{mode:o}");
        }
        for mode in [0o777, 0o775, 0o722] {
            assert!(why(mode).unwrap().contains("`chmod go-w "), "{mode:o}");
        }
        assert_eq!(why(0o644).unwrap(), "it is not executable (mode 0644)");
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(check(&link, own, own).unwrap_err().contains("not executable"));
        assert_eq!(check(dir.path(), own, own).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_program_belongs_to_root_the_daemon_or_the_hooks_user() {
        if !user::geteuid().is_root() {
            return; // Nobody else can give a file away.
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check(&path, 12345, 12346), Ok(()), "root's");
        chown(&path, Some(12345), None).unwrap();
        assert_eq!(check(&path, 12345, 12345), Ok(()));
        assert_eq!(check(&path, 0, 12345), Ok(()), "it can do as that user what that user can");
        let refused = check(&path, 0, 12346).unwrap_err();
        assert_eq!(refused, "it belongs to uid 12345 and must belong to root or uid 12346");
    }
}
