//! The note that this place shares its locks with other hosts: a file in the state directory.
//!
//! Invariant: a place that was a member of an engine's table works without that engine only after an
//! operator said so. Else the same lock would be granted here and on another host, without a word.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::daemon::cluster::engine::Chosen;
use crate::daemon::config::Config;
use crate::daemon::options::{Options, Unusable};
use crate::protocol::place::{Place, Rule};

/// The name of the file.
const NAME: &str = "engine";
/// The name of the file before this host is a member.
const PREPARED: &str = "engine.new";

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    /// The engine's address, without user, password and parameters.
    engine: String,
    /// Whether the configuration named it: then the next daemon that a client starts takes the engine
    /// that the configuration names by then.
    configured: bool,
}

/// The file, ready to be put in its place.
#[derive(Debug)]
pub(crate) struct EngineMark {
    dir: PathBuf,
    /// Whether the file still has its first name.
    prepared: bool,
}

impl EngineMark {
    /// Writes the file under another name, so that nothing but a rename is left to do when this host
    /// becomes a member.
    ///
    /// # Errors
    /// Neither the state directory nor, for a user's own daemon, the socket's can be written.
    pub(crate) fn prepare(place: &Place, chosen: &Chosen) -> anyhow::Result<Self> {
        let noted = Noted { engine: chosen.name.clone(), configured: chosen.configured };
        let [state_dir, beside] = directories(place);
        let unusable = match prepare_in(&state_dir, &noted) {
            Ok(mark) => return Ok(mark),
            Err(error) => error,
        };
        let failed = |error| Err(error).with_context(|| state_dir.display().to_string());
        if place.rule != Rule::PerUser {
            return failed(unusable);
        }
        prepare_in(&beside, &noted).or_else(|_| failed(unusable))
    }

    /// This host is a member.
    ///
    /// # Errors
    /// The file cannot be put in its place.
    pub(crate) fn set(&mut self) -> io::Result<()> {
        if self.prepared {
            fs::rename(self.dir.join(PREPARED), self.dir.join(NAME))?;
            File::open(&self.dir)?.sync_all()?;
            self.prepared = false;
        }
        Ok(())
    }
}

/// Refuses to work without the engine, or with another one, that this place worked with before.
/// `--no-engine` is the operator's word that it may.
///
/// # Errors
/// An [`Unusable`]; or a file that cannot be read or removed.
pub(crate) fn check(
    options: &Options,
    config: &Config,
    chosen: Option<&Chosen>,
) -> anyhow::Result<()> {
    let place = &options.place;
    for path in directories(place).map(|dir| dir.join(NAME)) {
        let Some(noted) = read(&path).with_context(|| path.display().to_string())? else {
            continue;
        };
        match chosen {
            None if options.without_engine => {
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
                tracing::warn!(engine = noted.engine, "given up: locks are of this machine alone");
            }
            None => return Err(vanished(&noted, place, config)),
            Some(chosen) if options.on_demand && !noted.configured => {
                if chosen.name != noted.engine {
                    return Err(another(&noted, chosen, place, config));
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn vanished(noted: &Noted, place: &Place, config: &Config) -> anyhow::Error {
    let what = format!(
        "this place shares its locks with other hosts over {}, but no engine is named now",
        noted.engine
    );
    let hint = format!(
        "name it as `url` in [engine] of {}; `canal daemon --no-engine` goes on without the other \
         hosts",
        configuration(place, config).display()
    );
    Unusable { what, hint: hint.into() }.into()
}

fn another(noted: &Noted, chosen: &Chosen, place: &Place, config: &Config) -> anyhow::Error {
    let file = configuration(place, config).display().to_string();
    let what = format!(
        "this place shares its locks with other hosts over {}, but {file} names {}",
        noted.engine, chosen.name
    );
    let hint =
        format!("name the right one in {file}; `canal daemon` changes to the one named there");
    Unusable { what, hint: hint.into() }.into()
}

/// The configuration that is read, or the one to write.
fn configuration(place: &Place, config: &Config) -> PathBuf {
    let last = || place.stores().config.last().cloned();
    config.path.clone().or_else(last).unwrap_or_default()
}

/// Where the file may lie: the state directory, and the socket's where that one cannot be used.
fn directories(place: &Place) -> [PathBuf; 2] {
    [place.stores().state_dir.clone(), place.dir.clone()]
}

fn read(path: &Path) -> io::Result<Option<Noted>> {
    let unnamed = || Noted { engine: "an engine".to_owned(), configured: true };
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| unnamed()))),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

fn prepare_in(dir: &Path, noted: &Noted) -> io::Result<EngineMark> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = dir.join(PREPARED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut bytes = serde_json::to_vec(noted)?;
    bytes.push(b'\n');
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    Ok(EngineMark { dir: dir.to_owned(), prepared: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(place: &Place, without_engine: bool) -> Options {
        Options {
            watcher: None,
            place: place.clone(),
            on_demand: true,
            discard_journal: false,
            verbose: 0,
            idle_exit_s: None,
            engine: None,
            engine_ttl_ms: None,
            host: None,
            without_engine,
            replaces: None,
        }
    }

    fn chosen(options: &Options, url: &str, configured: bool) -> Chosen {
        let engine = (!configured).then(|| url.to_owned());
        let mut config = Config::default();
        config.engine.url = configured.then(|| url.to_owned());
        config.engine.host = Some("a".to_owned());
        Chosen::of(&Options { engine, ..options.clone() }, &config).unwrap().unwrap()
    }

    fn refused(options: &Options, chosen: Option<&Chosen>) -> Option<(String, String)> {
        let error = check(options, &Config::default(), chosen).err()?;
        let unusable = error.downcast::<Unusable>().unwrap();
        Some((unusable.what, unusable.hint.into_owned()))
    }

    #[test]
    fn only_a_place_that_was_a_member_is_refused_without_its_engine() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let plain = options(&place, false);
        let with = chosen(&plain, "etcd://me:secret@one/x", true);
        let mut mark = EngineMark::prepare(&place, &with).unwrap();
        assert_eq!(refused(&plain, None), None, "it never joined");
        mark.set().unwrap();
        mark.set().unwrap();
        let (what, hint) = refused(&plain, None).unwrap();
        assert!(what.contains("over etcd://one/x, but no engine is named now"), "{what}");
        assert!(hint.contains("canal.toml") && hint.contains("--no-engine"), "{hint}");
        assert_eq!(refused(&plain, Some(&with)), None);
        assert_eq!(refused(&plain, Some(&chosen(&plain, "etcd://two/x", true))), None);
        // The next member notes its own.
        EngineMark::prepare(&place, &with).unwrap().set().unwrap();
        assert_eq!(refused(&options(&place, true), None), None);
        assert_eq!(refused(&plain, None), None, "it was given up");
    }

    #[test]
    fn a_client_does_not_change_the_engine_that_a_command_line_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let plain = options(&place, false);
        let named = chosen(&plain, "etcd://one/x", false);
        EngineMark::prepare(&place, &named).unwrap().set().unwrap();
        assert_eq!(refused(&plain, Some(&chosen(&plain, "etcd://one/x", true))), None);
        let other = chosen(&plain, "etcd://two/x", true);
        let (what, hint) = refused(&plain, Some(&other)).unwrap();
        assert!(
            what.contains("over etcd://one/x") && what.contains("names etcd://two/x"),
            "{what}"
        );
        assert!(hint.contains("`canal daemon` changes"), "{hint}");
        let operator = Options { on_demand: false, ..plain };
        assert_eq!(refused(&operator, Some(&other)), None);
    }

    #[test]
    fn a_file_that_says_nothing_counts_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        fs::write(dir.path().join(NAME), "").unwrap();
        let (what, _) = refused(&options(&place, false), None).unwrap();
        assert!(what.contains("over an engine, but"), "{what}");
    }
}
