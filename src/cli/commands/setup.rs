//! `canal setup`: sets up one table of locks for all users of the machine, for installations
//! without a package.
//!
//! Existing files that differ stay, because they may be an operator's. Only another program at
//! `/usr/local/bin/canal` ends the set-up, because the service would run that.
//!
//! Invariant: canal prints each change before it makes the first one. It overwrites no file, and
//! follows no symbolic link.

use std::fs::{self, File};
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Group, UnlinkatFlags, User, linkat, unlinkat};

use crate::cli::connect::{INIT_SCRIPT, execute, start_command};
use crate::cli::{Failed, Result, SetupArgs, stdout};
use crate::client::{Client, OWN, ServiceManager, Start};
use crate::daemon::{PACKAGED_CONFIG, first_start_statement};
use crate::protocol::StatusQuery;
use crate::protocol::paths::{MACHINE_CONFIG, MachineUid, Place, Rule, SHARED_DIR};
use crate::sys::process::find_command::lookup;
use crate::sys::process::user::{geteuid, lstat};

pub(crate) fn run(args: &SetupArgs) -> Result {
    let (steps, at_boot) = plan(args.first_start)?;
    stdout::print(&description(&steps, at_boot))?;
    if args.dry_run {
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(unchanged("`canal setup` needs root").hint("run `sudo canal setup`"));
    }
    if !args.yes {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Err(unchanged("standard input is not a terminal, so canal cannot ask")
                .hint("answer with --yes, or only show the steps with --dry-run"));
        }
        stdout::print("Continue? [y/N] ")?;
        let mut answer = String::new();
        stdin.lock().read_line(&mut answer).map_err(|error| unchanged(&error.to_string()))?;
        if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(unchanged("not confirmed"));
        }
    }
    for step in &steps {
        match step {
            Step::Write { path, content, mode } => {
                create(path, content, *mode).map_err(Failed::new)?;
            }
            Step::Run(command) => execute(command).map_err(undo)?,
            Step::Keep { .. } => {}
        }
    }
    let place = Place::find(None, MachineUid::own()).map_err(Failed::new)?;
    if place.rule != Rule::Shared {
        let message = format!("{SHARED_DIR} does not exist, although the daemon was started");
        return Err(Failed::new(message));
    }
    let pid = Client::connect(&place, Start::Never)?.status(&StatusQuery::default())?.daemon.pid;
    let socket = place.socket.display();
    stdout::print(&format!("done: the daemon is listening at {socket}, pid {pid}\n")).map(drop)
}

fn unreadable(error: io::Error) -> Failed {
    Failed::new(format!("cannot read this program: {error}"))
}

/// An error before the first change.
fn unchanged(why: &str) -> Failed {
    Failed::new(format!("{why}: changed nothing"))
}

/// Removes what a failed step leaves behind.
fn undo(failed: Failed) -> Failed {
    // While the directory exists, every canal command waits for a daemon in it. At most, it
    // contains the statement of a first start.
    if let Ok(path) = first_start_statement(&Place::shared(MachineUid::own())) {
        let _ = fs::remove_file(path);
    }
    let _ = fs::remove_dir(SHARED_DIR);
    failed.hint("fix that, then run `canal setup` again; it keeps existing files")
}

/// The files that a package also installs.
const SOCKET: &str = include_str!("../../../packaging/systemd/canal.socket");
const SERVICE: &str = include_str!("../../../packaging/systemd/canal.service");
const SYSUSERS: &str = include_str!("../../../packaging/systemd/sysusers.conf");
const TMPFILES: &str = include_str!("../../../packaging/systemd/tmpfiles.conf");

const LSB: &str = include_str!("../../../packaging/init.d/lsb");
const OPENRC: &str = include_str!("../../../packaging/init.d/openrc");

/// The path of a packaged program, as the units and scripts name it.
const PACKAGED: &str = "/usr/bin/canal";

/// The path for the program if a service cannot use it from its present path.
const INSTALLED: &str = "/usr/local/bin/canal";

/// The directories in which packages install units.
const PACKAGED_UNITS: [&str; 2] =
    ["/usr/lib/systemd/system/canal.socket", "/lib/systemd/system/canal.socket"];

/// A step. Steps are in the order in which they are carried out.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Write a file with this mode.
    Write { path: PathBuf, content: Vec<u8>, mode: u32 },
    /// Leave an existing file as it is.
    Keep { path: PathBuf, is_same: bool },
    /// Run a program with these arguments, which contain no blanks.
    Run(&'static str),
}

/// The steps, and the line that root's crontab needs if nothing else starts the daemon at boot.
///
/// # Errors
/// A package has already done this, or an existing file conflicts.
fn plan(is_first_start: bool) -> Result<(Vec<Step>, Option<&'static str>)> {
    let manager = ServiceManager::of_machine();
    let (start, mut at_boot) = (start_command(manager), None);
    let is_systemd = manager == ServiceManager::Systemd;
    if is_systemd && PACKAGED_UNITS.iter().any(|unit| Path::new(unit).exists()) {
        return Err(Failed::new("the canal package has already set this up")
            .hint(format!("start it with `{start}`")));
    }
    let (program, copied) = program()?;
    let mut steps: Vec<Step> = copied.into_iter().collect();
    if is_systemd {
        let service = SERVICE.replace(PACKAGED, &program);
        for (path, text) in [
            ("/etc/sysusers.d/canal.conf", SYSUSERS),
            (MACHINE_CONFIG, PACKAGED_CONFIG),
            ("/etc/systemd/system/canal.socket", SOCKET),
            ("/etc/systemd/system/canal.service", service.as_str()),
            ("/etc/tmpfiles.d/canal.conf", TMPFILES),
        ] {
            steps.push(write(Path::new(path), text, 0o644)?);
        }
        steps.extend([
            Step::Run("systemd-sysusers /etc/sysusers.d/canal.conf"),
            Step::Run("systemctl daemon-reload"),
            // From here on, all clients use the daemon of the machine.
            Step::Run("systemd-tmpfiles --create /etc/tmpfiles.d/canal.conf"),
        ]);
    } else {
        // Packages contain the scripts for all service managers except OpenRC.
        let script = if manager == ServiceManager::OpenRc { OPENRC } else { LSB };
        steps.push(write(Path::new(MACHINE_CONFIG), PACKAGED_CONFIG, 0o644)?);
        steps.push(write(Path::new(INIT_SCRIPT), script.replace(PACKAGED, &program), 0o755)?);
        steps.extend(make_user()?.iter().map(|command| Step::Run(command)));
        let add = match manager {
            ServiceManager::OpenRc => Some("rc-update add canal default"),
            ServiceManager::SysV("update-rc.d") => Some("update-rc.d canal defaults"),
            ServiceManager::SysV("insserv") => Some("insserv canal"),
            ServiceManager::SysV(_) => Some("chkconfig --add canal"),
            ServiceManager::Systemd | ServiceManager::Unknown => None,
        };
        at_boot = add.is_none().then_some("@reboot /etc/init.d/canal start");
        steps.extend(add.map(Step::Run));
    }
    if is_first_start {
        let path = first_start_statement(&Place::shared(MachineUid::own()))
            .map_err(|unusable| Failed::new(unusable.what).hint(unusable.hint))?;
        steps.push(write(&path, "", 0o644)?);
    }
    steps.push(Step::Run(start));
    Ok((steps, at_boot))
}

/// Describes the steps for the user.
fn description(steps: &[Step], at_boot: Option<&str>) -> String {
    let mut text =
        "canal setup creates one table of locks for all users of this machine:\n".to_owned();
    for step in steps {
        text += &match step {
            Step::Write { path, .. } if path == Path::new(INSTALLED) => {
                format!("  copy   this program to {INSTALLED}\n")
            }
            Step::Write { path, .. } => format!("  write  {}\n", path.display()),
            Step::Keep { path, is_same } => {
                let how =
                    if *is_same { "unchanged" } else { "differs from what setup would write" };
                format!("  keep   {} ({how})\n", path.display())
            }
            Step::Run(command) => format!("  run    {command}\n"),
        };
    }
    if let Some(line) = at_boot {
        text += "canal found no service manager that it knows. To start the daemon at each \
                 boot, add this line to root's crontab (`crontab -e`):\n  ";
        text = text + line + "\n";
    }
    text + "Users whose own daemon still holds locks cannot take new locks until those have been \
            released.\n"
}

/// The path of the program for the service, and the step that copies it there.
fn program() -> Result<(String, Option<Step>)> {
    let own = fs::read_link(OWN).map_err(unreadable)?;
    if is_for_all(&own)
        && let Some(own) = own.to_str()
    {
        return Ok((own.to_owned(), None));
    }
    let step = write(Path::new(INSTALLED), fs::read(OWN).map_err(unreadable)?, 0o755)?;
    if matches!(step, Step::Keep { is_same: false, .. }) {
        return Err(Failed::new(format!("{INSTALLED} is another program or version"))
            .hint(format!("run `{INSTALLED} setup`, or remove it first")));
    }
    Ok((INSTALLED.to_owned(), Some(step)))
}

/// Whether every user can execute the program and only root can change it.
fn is_for_all(program: &Path) -> bool {
    // Readable and executable for all, and writable for no one but root.
    let of_root =
        |path| lstat(path).is_ok_and(|found| found.st_uid == 0 && found.st_mode & 0o577 == 0o555);
    let is_hidden = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
    !is_hidden.iter().any(|dir| program.starts_with(dir)) && program.ancestors().all(of_root)
}

/// The commands that create the user and the group of the daemon, unless they exist. The programs
/// differ between distributions.
fn make_user() -> Result<&'static [&'static str]> {
    const FULL: &[&str] = &[
        "groupadd --system canal",
        "useradd --system --gid canal --home-dir /var/lib/canal --no-create-home \
         --shell /usr/sbin/nologin canal",
    ];
    const BUSYBOX: &[&str] = &[
        "addgroup -S canal",
        "adduser -S -D -H -h /var/lib/canal -s /sbin/nologin -G canal canal",
    ];
    let has =
        |command: &&str| command.split(' ').next().is_some_and(|it| lookup(it.as_ref()).is_ok());
    let tools = [FULL, BUSYBOX].into_iter().find(|commands| commands.iter().all(has));
    let commands = tools.unwrap_or_default();
    let has_user = User::from_name("canal").is_ok_and(|found| found.is_some());
    let has_group = Group::from_name("canal").is_ok_and(|found| found.is_some());
    if !has_user && commands.is_empty() {
        let missing =
            "there is no user `canal`, and neither useradd nor adduser is available to create it";
        return Err(Failed::new(missing));
    }
    // The group comes first.
    let needed = usize::from(has_group)..if has_user { 1 } else { 2 };
    Ok(commands.get(needed).unwrap_or_default())
}

fn write(path: &Path, content: impl Into<Vec<u8>>, mode: u32) -> Result<Step> {
    let (path, content) = (path.to_owned(), content.into());
    Ok(match existing(&path)? {
        None => Step::Write { path, content, mode },
        Some(there) => Step::Keep { path, is_same: there == content },
    })
}

/// The content of a file; `None` if it does not exist.
fn existing(path: &Path) -> Result<Option<Vec<u8>>> {
    let failed = |what: String| Failed::new(format!("{}: {what}", path.display()));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
        Ok(found) if found.is_symlink() => {
            Err(failed("is a symbolic link, which setup does not follow".to_owned()))
        }
        Ok(found) if !found.is_file() => Err(failed("is not a regular file".to_owned())),
        Ok(_) => fs::read(path).map(Some).map_err(|error| failed(error.to_string())),
    }
}

/// Creates a file with this content and mode, and its missing parent directories (0755). The name
/// appears with the whole content, or not at all.
///
/// # Errors
/// A message for the user: the name already exists, a directory is a link, or a system call failed.
fn create(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let name = path.file_name().unwrap_or_default();
    let dir = directory(path.parent().unwrap_or(Path::new("/")))?;
    let beside = &*format!(".{}.{}", name.display(), std::process::id());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let fd = openat(&dir, beside, flags | OFlag::O_NOFOLLOW, Mode::S_IRUSR)
        .map_err(|error| failed(error.into()))?;
    let mut file = File::from(fd);
    let written = file
        .write_all(content)
        .and_then(|()| Ok(fchmod(&file, Mode::from_bits_truncate(mode))?))
        .and_then(|()| file.sync_all())
        // Unlike a rename, this fails if the name exists.
        .and_then(|()| Ok(linkat(&dir, beside, &dir, name, AtFlags::empty())?));
    let _ = unlinkat(&dir, beside, UnlinkatFlags::NoRemoveDir);
    written.map_err(failed)
}

/// Opens a directory by its absolute path, and creates the missing parts of the path.
fn directory(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let failed = |error: Errno| match error {
        Errno::ELOOP | Errno::ENOTDIR => {
            format!("{}: part of the path is a symbolic link or not a directory", path.display())
        }
        error => format!("{}: {}", path.display(), io::Error::from(error)),
    };
    let mut dir = open("/", flags, Mode::empty()).map_err(failed)?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let mode = Mode::from_bits_truncate(0o755);
        let made = mkdirat(&dir, name, mode);
        made.or_else(|error| if error == Errno::EEXIST { Ok(()) } else { Err(failed(error)) })?;
        dir = openat(&dir, name, flags, Mode::empty()).map_err(failed)?;
        if made.is_ok() {
            // Independent of the umask.
            fchmod(&dir, mode).map_err(failed)?;
        }
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_service_can_be_given_another_program() {
        assert_eq!(SERVICE.matches(PACKAGED).count(), 1);
        assert!(SERVICE.contains("\nExecStart=/usr/bin/canal daemon\n"));
        for script in [LSB, OPENRC] {
            assert_eq!(script.matches(PACKAGED).count(), 1);
        }
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
        let step = |text: &str| write(&path, text, 0o644);
        let written = Step::Write { path: path.clone(), content: "x".into(), mode: 0o644 };
        assert_eq!(step("x").unwrap(), written);
        fs::write(&path, "x").unwrap();
        assert_eq!(step("x").unwrap(), Step::Keep { path: path.clone(), is_same: true });
        assert_eq!(step("y").unwrap(), Step::Keep { path: path.clone(), is_same: false });
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        assert!(
            step("x")
                .unwrap_err()
                .message
                .ends_with("is a symbolic link, which setup does not follow")
        );
    }

    #[test]
    fn a_file_is_created_whole_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        create(&path, b"content", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        let error = create(&path, b"other", 0o644).unwrap_err();
        assert!(error.contains("File exists"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, dir.path().join("link")).unwrap();
        let error = create(&dir.path().join("link/file"), b"x", 0o644).unwrap_err();
        assert!(error.contains("symbolic link"), "{error}");
        symlink(elsewhere.join("made"), dir.path().join("file")).unwrap();
        create(&dir.path().join("file"), b"x", 0o644).unwrap_err();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}
