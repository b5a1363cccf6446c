//! Checks whether cron and the commands of ssh(1), which lack the PATH of a login, find `canal`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::finding::Finding;

/// The PATH of a crontab that sets none. Users' crontabs do not inherit the PATH of `/etc/crontab`.
const PATH_OF_CRON: &str = "/usr/bin:/bin";

/// The PATH of a command that sshd runs without a login, unless configured otherwise. Builds of
/// sshd differ, but all of them include these directories.
const PATH_OF_SSH: &str = "/usr/bin:/bin";

const CRONTAB: &str = "/etc/crontab";
const ENVIRONMENT: &str = "/etc/environment";

/// At least one of these exists if cron is installed.
const CRON_IS_THERE: [&str; 4] = [CRONTAB, "/etc/cron.d", "/usr/sbin/cron", "/usr/sbin/crond"];

/// At least one of these exists if sshd is installed.
const SSHD_IS_THERE: [&str; 2] = ["/etc/ssh/sshd_config", "/usr/sbin/sshd"];

pub(super) fn look() -> Vec<Finding> {
    let Ok(own) = std::env::current_exe() else { return Vec::new() };
    let is_there = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
    let mut findings = Vec::new();
    if is_there(&CRON_IS_THERE) {
        findings.push(of_crontab("a crontab", PATH_OF_CRON, &own));
        let stated = fs::read_to_string(CRONTAB).ok().and_then(|text| stated_path(&text));
        if let Some(path) = stated.filter(|path| path != PATH_OF_CRON) {
            findings.push(of_crontab(CRONTAB, &path, &own));
        }
    }
    if is_there(&SSHD_IS_THERE) {
        let stated = fs::read_to_string(ENVIRONMENT).ok().and_then(|text| stated_path(&text));
        findings.push(of_ssh(stated.as_deref(), &own));
    }
    findings
}

/// The program that a crontab with this PATH finds.
fn of_crontab(who: &str, path: &str, own: &Path) -> Finding {
    let message = format!("commands in {who} find no `canal`: its PATH is {}", folders(path));
    let shown = own.display();
    let hint = format!("use the full path {shown} in the crontab, or set PATH at its top");
    let nothing = Finding::advice("cron", message, hint);
    finding(nothing, &format!("commands in {who} find"), path, own)
}

/// The program that `ssh HOST canal …` finds. `stated` is the PATH in `/etc/environment`.
fn of_ssh(stated: Option<&str>, own: &Path) -> Finding {
    let (path, shown) = (stated.unwrap_or(PATH_OF_SSH), own.display());
    let message = format!(
        "`ssh HOST canal` may not find `canal`: without a login shell, PATH is {} unless the \
         user's shell adds to it",
        folders(path)
    );
    let hint = format!(
        "use the full path {shown} in such commands; to check, run `ssh HOST 'command -v canal'`"
    );
    finding(Finding::advice("ssh", message, hint), "`ssh HOST canal` finds", path, own)
}

/// The program that a PATH finds; `nothing` if it finds none.
fn finding(nothing: Finding, finds: &str, path: &str, own: &Path) -> Finding {
    let Some((file, is_own)) = find(path, own) else { return nothing };
    let message = format!("{finds} {}", file.display());
    if is_own {
        return Finding::fine(nothing.about, message);
    }
    let message = format!("{message}, which is not this program ({})", own.display());
    let hint = "remove one of the two, or write the full path of the right one";
    Finding::advice(nothing.about, message, hint)
}

/// The directories of a PATH, as text that can be folded to any width.
fn folders(path: &str) -> String {
    path.replace(':', ", ")
}

/// The first executable `canal` in a PATH, and whether it is this program.
fn find(path: &str, own: &Path) -> Option<(PathBuf, bool)> {
    let folders = path.split(':').filter(|dir| !dir.is_empty());
    let mut files = folders.map(|dir| Path::new(dir).join("canal"));
    let identity = |file: &Path| fs::metadata(file).ok().map(|it| (it.dev(), it.ino()));
    let can_run = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    };
    let file = files.find(can_run)?;
    let is_own = identity(&file) == identity(own);
    Some((file, is_own))
}

/// The PATH in a file of assignments. The last one counts.
fn stated_path(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "PATH").then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    });
    lines.next_back().filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    #[test]
    fn the_first_program_of_the_path_counts() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let [one, two, three, none] = ["one", "two", "three", "none"].map(folder);
        for (folder, mode) in [(&one, 0o755), (&two, 0o755), (&three, 0o644)] {
            let file = folder.join("canal");
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let link = folder("link");
        symlink(one.join("canal"), link.join("canal")).unwrap();
        let own = one.join("canal");
        let in_path = |folders: &[&PathBuf]| {
            let path: Vec<_> = folders.iter().map(|it| it.display().to_string()).collect();
            find(&path.join(":"), &own)
        };
        assert_eq!(in_path(&[&none, &three]), None, "it cannot be executed");
        assert_eq!(in_path(&[&none, &one, &two]), Some((own.clone(), true)));
        assert_eq!(in_path(&[&two, &one]), Some((two.join("canal"), false)));
        assert_eq!(in_path(&[&link, &two]), Some((link.join("canal"), true)), "a link to it");
        let nothing = of_crontab("a crontab", &none.display().to_string(), &own);
        assert_eq!(nothing.level, Level::Note);
        let hint = nothing.hint.unwrap();
        assert!(hint.starts_with(&format!("use the full path {}", own.display())), "{hint}");
        assert_eq!(of_ssh(Some(&one.display().to_string()), &own).level, Level::Fine);
    }

    #[test]
    fn the_last_path_of_a_file_counts() {
        let text = "# PATH=/no\nSHELL=/bin/sh\nPATH=/a:/b\n17 * * * * root cd / && PATH=/c x\n";
        assert_eq!(stated_path(text).as_deref(), Some("/a:/b"));
        assert_eq!(stated_path("PATH = '/a'\nPATH=\"/usr/bin\"\n").as_deref(), Some("/usr/bin"));
        for none in ["", "XPATH=/a\n", "PATH=\n"] {
            assert_eq!(stated_path(none), None, "{none}");
        }
    }
}
