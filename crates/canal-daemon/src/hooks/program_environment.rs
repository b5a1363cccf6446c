//! The environment that the program of a hook gets: its user, its variables and its input. Checks
//! the program before it is started.
//!
//! Invariant: no other user can have written the program. A user who could write it could act as
//! the user of the hook. As with the configuration, canal does not check the directories above the
//! file.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Uid, User};

use crate::config::file::{Config, check_writers};
use crate::hooks::event::Facts;
use canal_protocol::paths::Place;
use canal_sys::process::child::{UserIds, spawn_apart};
use canal_sys::process::user::{self, found, geteuid};

/// The PATH of the program.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The LANG of the program.
const LANG: &str = "C.UTF-8";

/// Starts the program of a hook with its arguments. Its standard input is a file with the facts, so
/// that it does not matter whether the program reads them.
///
/// # Errors
/// It must not or cannot be run. The reason is text for people.
pub(super) fn start(run: &[String], user: Option<&str>, facts: Facts) -> Result<Child, String> {
    let (file, arguments) = run.split_first().ok_or("it does not name a program")?;
    let account = find_program(file, user, geteuid().as_raw())?;
    let line = facts.for_viewer(account.uid).line();
    let input = file_of(&line).map_err(|error| format!("cannot open its input: {error}"))?;
    let mut command = Command::new(file);
    command.args(arguments).env_clear().env("PATH", PATH).env("LANG", LANG);
    command.env("HOME", &account.home).env("USER", &account.name);
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    spawn_apart(&mut command, account.ids).map_err(|error| error.to_string())
}

/// A file in memory with this content, positioned at its beginning.
fn file_of(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("canal-hook", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

/// The user that runs the program of a hook.
#[derive(Debug)]
struct Account {
    uid: u32,
    name: String,
    home: PathBuf,
    /// The ids to change to; `None` if this process already has them.
    ids: Option<UserIds>,
}

impl Account {
    /// Looks up a user by name or number; without one, the user of the daemon. The lookup may wait
    /// for a directory service.
    ///
    /// # Errors
    /// Nothing can run as that user. The reason is text for people.
    fn find(user: Option<&str>, daemon: u32) -> Result<Self, String> {
        let own = Uid::from_raw(daemon);
        let Some(wanted) = user else {
            // A container may run the daemon under a number that no password database contains.
            let known = User::from_uid(own).ok().flatten().map(|user| (user.name, user.dir));
            let (name, home) = known.unwrap_or_else(|| (own.to_string(), "/".into()));
            return Ok(Self { uid: own.as_raw(), name, home, ids: None });
        };
        let found = known(wanted)?;
        let ids = if found.uid == own {
            None
        } else if own.is_root() {
            let failed = |error| format!("cannot look up the groups of `{wanted}`: {error}");
            Some(UserIds::of(&found).map_err(failed)?)
        } else {
            return Err(format!("only root's daemon can run it as another user (`{wanted}`)"));
        };
        Ok(Self { uid: found.uid.as_raw(), name: found.name, home: found.dir, ids })
    }
}

/// Looks up a user by name or number.
fn known(user: &str) -> Result<User, String> {
    let failed = |error| format!("cannot look up the user `{user}`: {error}");
    let mut account = found(User::from_name(user)).map_err(failed)?;
    if account.is_none()
        && let Ok(number) = user.parse::<u32>()
    {
        account = found(User::from_uid(Uid::from_raw(number))).map_err(failed)?;
    }
    account.ok_or_else(|| format!("there is no user `{user}`"))
}

/// Looks up the user that runs a program of a daemon of the user `daemon`, and checks the program.
fn find_program(path: &str, user: Option<&str>, daemon: u32) -> Result<Account, String> {
    let account = Account::find(user, daemon)?;
    check_program(Path::new(path), daemon, account.uid)?;
    Ok(account)
}

/// Checks the program of a hook that a daemon of the user `daemon` runs as `user`. Links are
/// followed; the checks apply to their target.
///
/// # Errors
/// It must not or cannot be run. The reason is text for people.
fn check_program(path: &Path, daemon: u32, user: u32) -> Result<(), String> {
    let found = std::fs::metadata(path).map_err(|error| format!("cannot read it: {error}"))?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let owned = user::stat(path).map_err(|error| format!("cannot read it: {error}"))?;
    check_writers(path, &owned, &[daemon, user]).map_err(|why| format!("it {why}"))?;
    let mode = owned.st_mode & 0o7777;
    if mode & 0o111 == 0 {
        return Err(format!("it is not executable (mode {mode:04o})"));
    }
    Ok(())
}

/// A hook of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHook {
    /// Its name in `canal config`: `hooks[0]`.
    pub name: String,
    /// The program.
    pub program: String,
    /// Why it could not run, as text for people; `None` if it could.
    pub problem: Option<String>,
}

/// Checks whether the programs of the hooks that a daemon of the user `daemon` would have at a
/// place could run, without running them.
///
/// # Errors
/// The configuration cannot be read or used. The error names the file and the line.
pub fn look_at(place: &Place, daemon: u32) -> anyhow::Result<Vec<SeenHook>> {
    let config = Config::read(&place.stores().config)?;
    let seen = config.hooks.iter().enumerate().map(|(number, hook)| {
        let problem = match &hook.user {
            None if daemon == 0 => Some("root's daemon needs `user` for it".to_owned()),
            user => find_program(hook.program(), user.as_deref(), daemon).err(),
        };
        SeenHook { name: format!("hooks[{number}]"), program: hook.program().to_owned(), problem }
    });
    Ok(seen.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn input_is_read_from_its_beginning() {
        let mut text = String::new();
        file_of(b"{}\n").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}\n");
    }

    #[test]
    fn a_user_is_found_by_name_and_number() {
        let root = Account::find(Some("root"), geteuid().as_raw());
        let by_number = Account::find(Some("0"), geteuid().as_raw());
        if geteuid().is_root() {
            let (root, by_number) = (root.unwrap(), by_number.unwrap());
            assert_eq!((root.uid, root.name.as_str(), root.ids.is_none()), (0, "root", true));
            assert_eq!((by_number.uid, by_number.home), (0, root.home));
        } else {
            assert!(root.unwrap_err().starts_with("only root's daemon can run it"));
        }
        let own = Account::find(None, geteuid().as_raw()).unwrap();
        assert_eq!((own.uid, own.ids.is_none()), (geteuid().as_raw(), true));
        let nobody = Account::find(Some("no such user"), geteuid().as_raw()).unwrap_err();
        assert_eq!(nobody, "there is no user `no such user`");
    }

    #[test]
    fn a_program_that_others_can_write_or_own_is_refused() {
        let own = geteuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        let why = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            check_program(&path, own, own).err()
        };
        assert!(
            check_program(&path, own, own).unwrap_err().contains("cannot read it: No such file")
        );
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
        assert!(check_program(&link, own, own).unwrap_err().contains("not executable"));
        assert_eq!(check_program(dir.path(), own, own).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_program_belongs_to_root_the_daemon_or_the_hooks_user() {
        if !geteuid().is_root() {
            return; // Nobody else can give a file away.
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tell");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check_program(&path, 12345, 12346), Ok(()), "root's");
        chown(&path, Some(12345), None).unwrap();
        assert_eq!(check_program(&path, 12345, 12345), Ok(()));
        assert_eq!(
            check_program(&path, 0, 12345),
            Ok(()),
            "it can do as that user what that user can"
        );
        let refused = check_program(&path, 0, 12346).unwrap_err();
        assert_eq!(refused, "it belongs to uid 12345 and must belong to root or uid 12346");
    }
}
