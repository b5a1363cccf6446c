//! Plans the steps of `canal setup`.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cli::failed::Failed;
use crate::client::OWN;
use crate::sys::process::user::lstat;

/// The files that a package installs, too.
const SOCKET: &str = include_str!("../../../../packaging/systemd/canal.socket");
const SERVICE: &str = include_str!("../../../../packaging/systemd/canal.service");
const SYSUSERS: &str = include_str!("../../../../packaging/systemd/sysusers.conf");
const TMPFILES: &str = include_str!("../../../../packaging/systemd/tmpfiles.conf");
const CONFIG: &str = include_str!("../../../../packaging/canal.toml");

/// The path of a packaged program, as the units name it.
const PACKAGED: &str = "/usr/bin/canal";

/// The path for the program if a service cannot use it from its present path.
const INSTALLED: &str = "/usr/local/bin/canal";

/// The directories in which packages install units.
const PACKAGED_UNITS: [&str; 2] =
    ["/usr/lib/systemd/system/canal.socket", "/lib/systemd/system/canal.socket"];

/// A step. Steps are in the order in which they are carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy this program.
    Copy { to: PathBuf },
    /// Write a file.
    Write { path: PathBuf, text: String },
    /// Leave an existing file as it is.
    Keep { path: PathBuf, is_same: bool },
    /// Run a program.
    Run(&'static [&'static str]),
}

/// All steps.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// Examines what exists already.
    ///
    /// # Errors
    /// A package has already done this, or an existing file conflicts.
    pub(super) fn make() -> Result<Self, Failed> {
        if PACKAGED_UNITS.iter().any(|unit| Path::new(unit).exists()) {
            let what = "canal is installed as a package, which brings all of this";
            return Err(Failed::new(what).hint("`systemctl enable --now canal.socket` starts it"));
        }
        let (program, copied) = program()?;
        let mut steps: Vec<Step> = copied.into_iter().collect();
        let service = SERVICE.replace(PACKAGED, &program);
        for (path, text) in [
            ("/etc/sysusers.d/canal.conf", SYSUSERS),
            ("/etc/canal/canal.toml", CONFIG),
            ("/etc/systemd/system/canal.socket", SOCKET),
            ("/etc/systemd/system/canal.service", service.as_str()),
            ("/etc/tmpfiles.d/canal.conf", TMPFILES),
        ] {
            steps.push(write(Path::new(path), text)?);
        }
        steps.extend([
            Step::Run(&["systemd-sysusers", "/etc/sysusers.d/canal.conf"]),
            Step::Run(&["systemctl", "daemon-reload"]),
            // From here on, all clients use the daemon of the machine.
            Step::Run(&["systemd-tmpfiles", "--create", "/etc/tmpfiles.d/canal.conf"]),
            Step::Run(&["systemctl", "enable", "--now", "canal.socket"]),
        ]);
        Ok(Self { steps })
    }

    /// Describes the steps for the user.
    pub(super) fn describe(&self) -> String {
        let mut text =
            "canal setup makes one table of locks for all users of this machine:\n".to_owned();
        for step in &self.steps {
            // Writing to memory does not fail.
            let _ = match step {
                Step::Copy { to } => writeln!(text, "  copy   this program to {}", to.display()),
                Step::Write { path, .. } => writeln!(text, "  write  {}", path.display()),
                Step::Keep { path, is_same: true } => {
                    writeln!(text, "  keep   {} (it is the same already)", path.display())
                }
                Step::Keep { path, is_same: false } => {
                    writeln!(
                        text,
                        "  keep   {} as it is, which is not what setup would write",
                        path.display()
                    )
                }
                Step::Run(words) => writeln!(text, "  run    {}", words.join(" ")),
            };
        }
        text += "Users whose own daemon still holds locks cannot take new ones until those have ended.\n";
        text
    }
}

/// The path of the program for the service, and the step that copies it there.
fn program() -> Result<(String, Option<Step>), Failed> {
    let own = fs::read_link(OWN).map_err(|error| Failed::new(format!("this program: {error}")))?;
    if is_for_all(&own)
        && let Some(own) = own.to_str()
    {
        return Ok((own.to_owned(), None));
    }
    let installed = Path::new(INSTALLED);
    let step = match existing(installed)? {
        None => Step::Copy { to: installed.to_owned() },
        Some(there) if fs::read(OWN).is_ok_and(|own| own == there) => {
            Step::Keep { path: installed.to_owned(), is_same: true }
        }
        Some(_) => {
            let what = format!("{INSTALLED} is another program or version");
            return Err(
                Failed::new(what).hint(format!("run `{INSTALLED} setup`, or remove it first"))
            );
        }
    };
    Ok((INSTALLED.to_owned(), Some(step)))
}

/// Whether every user can execute the program and only root can change it.
fn is_for_all(program: &Path) -> bool {
    let of_root = |path: &Path, needed: u32| {
        lstat(path).is_ok_and(|found| {
            let mode = found.st_mode;
            found.st_uid == 0 && mode & 0o022 == 0 && mode & needed == needed
        })
    };
    let is_hidden = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
    !is_hidden.iter().any(|dir| program.starts_with(dir))
        && of_root(program, 0o555)
        && program.ancestors().skip(1).all(|dir| of_root(dir, 0o555))
}

fn write(path: &Path, text: &str) -> Result<Step, Failed> {
    Ok(match existing(path)? {
        None => Step::Write { path: path.to_owned(), text: text.to_owned() },
        Some(there) => Step::Keep { path: path.to_owned(), is_same: there == text.as_bytes() },
    })
}

/// The content of a file; `None` if it does not exist.
fn existing(path: &Path) -> Result<Option<Vec<u8>>, Failed> {
    let failed = |what: String| Failed::new(format!("{}: {what}", path.display()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
        Ok(found) if found.is_symlink() => {
            Err(failed("is a symbolic link, which setup does not follow".to_owned()))
        }
        Ok(found) if !found.is_file() => Err(failed("is no file".to_owned())),
        Ok(_) => fs::read(path).map(Some).map_err(|error| failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_can_be_given_another_program() {
        assert_eq!(SERVICE.matches(PACKAGED).count(), 1);
        assert!(SERVICE.contains("\nExecStart=/usr/bin/canal daemon\n"));
    }

    #[test]
    fn a_program_that_a_user_can_change_is_copied() {
        let env = Path::new("/usr/bin/env");
        // In a user namespace without root, nothing belongs to root.
        let is_of_root = lstat(env).is_ok_and(|found| found.st_uid == 0);
        assert_eq!(is_for_all(env), is_of_root);
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("canal");
        fs::copy("/bin/sh", &program).unwrap();
        assert!(!is_for_all(&program));
        assert!(!is_for_all(Path::new("/nowhere/canal")));
    }

    #[test]
    fn what_is_there_is_kept_and_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit");
        let step = |text: &str| write(&path, text);
        assert_eq!(step("x").unwrap(), Step::Write { path: path.clone(), text: "x".into() });
        fs::write(&path, "x").unwrap();
        assert_eq!(step("x").unwrap(), Step::Keep { path: path.clone(), is_same: true });
        assert_eq!(step("y").unwrap(), Step::Keep { path: path.clone(), is_same: false });
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(
            step("x")
                .unwrap_err()
                .message
                .ends_with("is a symbolic link, which setup does not follow")
        );
    }
}
