//! libpq's password file: `host:port:database:user:password`, one per line.
//!
//! Invariant: a file that others can read is not used.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use canal_sys::process::user::{getuid, stat};
use nix::unistd::{Uid, User};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// Takes the password from the file unless `config` has one. A file that the user named must be
/// usable; `.pgpass` in the home directory may be missing. Returns the error of a file that could
/// not be used.
pub(crate) fn fill(config: &mut Config, asked: Option<PathBuf>) -> anyhow::Result<Option<String>> {
    if config.get_password().is_some() {
        return Ok(None);
    }
    let must = asked.is_some();
    let by_environment = || std::env::var_os("PGPASSFILE").map(PathBuf::from);
    // The home directory from the user database, as everywhere in canal: under sudo, HOME can be
    // another user's.
    match asked.or_else(by_environment).or_else(|| Some(home()?.join(".pgpass"))) {
        Some(path) => fill_from(config, &path, must),
        None => Ok(None),
    }
}

fn fill_from(config: &mut Config, path: &Path, must: bool) -> anyhow::Result<Option<String>> {
    let read = || -> io::Result<Option<String>> {
        let is_public = stat(path)?.st_mode & 0o077 != 0;
        if is_public { Ok(None) } else { fs::read_to_string(path).map(Some) }
    };
    let error = match read() {
        Ok(Some(text)) => {
            if let Some(password) = find(&text, config) {
                config.password(password);
            }
            return Ok(None);
        }
        Ok(None) => {
            format!("other users can read password file {}; `chmod 600` it", path.display())
        }
        Err(why) if !must && why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => format!("cannot read password file {}: {why}", path.display()),
    };
    ensure!(!must, error);
    tracing::warn!("{error}");
    Ok(Some(error))
}

/// The home directory of this process's user, from the user database.
pub(crate) fn home() -> Option<PathBuf> {
    Some(own_user()?.dir)
}

fn own_user() -> Option<User> {
    User::from_uid(Uid::from_raw(getuid().as_raw())).ok()?
}

/// The password of the first line that matches.
fn find(text: &str, config: &Config) -> Option<String> {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        // libpq uses this name for every socket of this machine.
        Some(Host::Unix(_)) => "localhost".to_owned(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config
        .get_user()
        .map_or_else(|| own_user().map(|user| user.name), |user| Some(user.to_owned()))?;
    let database = config.get_dbname().unwrap_or(&user);
    let wanted = [host.as_str(), &port, database, &user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [wants @ .., password] = fields.as_slice() else { return None };
        let fits = wants.len() == wanted.len()
            && wants.iter().zip(wanted).all(|(want, have)| want == "*" || want == have);
        fits.then(|| password.clone())
    })
}

/// The five fields of a line; `\` escapes `:` and `\`.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        let text = match c {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => rest.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(last) = fields.last_mut() {
            last.push(text);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn found(text: &str) -> Option<String> {
        find(text, &"postgres://me@db:6000/locks".parse().unwrap())
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# db:6000:locks:me:no\nother:*:*:*:no\ndb:*:*:you:no\ndb:6000:*:me:a\\:b:c\n*:*:*:*:late";
        assert_eq!(found(text).as_deref(), Some("a:b:c"));
        assert_eq!(found("*:*:*:*:late").as_deref(), Some("late"));
        assert_eq!(found("db:6000:locks\n"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        fs::write(&path, "*:*:*:*:secret\n").unwrap();
        let mut config: Config = "postgres://me@db/locks".parse().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let public = fill(&mut config, Some(path.clone())).unwrap_err().to_string();
        assert!(public.starts_with("other users can read"), "{public}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(fill(&mut config, Some(path)).unwrap().is_none());
        assert_eq!(config.get_password(), Some("secret".as_bytes()));
        let absent = fill(&mut Config::new(), Some(dir.path().join("absent")));
        assert!(absent.unwrap_err().to_string().starts_with("cannot read password file"));
    }

    #[test]
    fn a_file_that_need_not_be_there_is_named_where_it_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        let mut config: Config = "postgres://me@db/locks".parse().unwrap();
        assert!(fill_from(&mut config, &path, false).unwrap().is_none(), "not there");
        fs::write(&path, "*:*:*:*:secret\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let unusable = fill_from(&mut config, &path, false).unwrap().unwrap().to_string();
        assert!(unusable.contains("other users can read"), "{unusable}");
        assert!(unusable.contains(&path.display().to_string()), "{unusable}");
        assert_eq!(config.get_password(), None);
    }
}
