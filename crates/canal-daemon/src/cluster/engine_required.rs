//! Marks this place as one that shares its locks with other hosts, in a file in the state
//! directory.
//!
//! Invariant: a place that was a member of an engine's table runs without that engine only after an
//! operator has allowed it. Otherwise this host and another host could silently grant the same
//! lock.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

use crate::cluster::choose_engine::Chosen;
use crate::config::file::Config;
use crate::options::Options;
use crate::wording::StartError;
use canal_log::replace_file::{replace, sweep};
use canal_protocol::paths::Place;

/// The file's name.
const NAME: &str = "engine";
/// The file's name before this host becomes a member.
const PREPARED: &str = "engine.new";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Noted {
    /// The engine's address, without user, password and parameters.
    engine: String,
    /// Whether the address came from the configuration. If so, a daemon that a client starts later
    /// accepts the engine that the configuration then names.
    configured: bool,
    /// The boots of this machine in which daemons of this place have been members, oldest first.
    #[serde(default)]
    boots: Vec<String>,
}

/// How many boots the file remembers.
const BOOTS_MAX: usize = 8;

/// The file, written and ready to be renamed.
#[derive(Debug)]
pub(crate) struct SharedMarker {
    dir: PathBuf,
    /// Whether the file still has the name `PREPARED`.
    prepared: bool,
}

impl SharedMarker {
    /// Writes the file under another name, so that only a rename remains when this host becomes a
    /// member in this boot. Also returns the earlier boots in which daemons of this place were
    /// members.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn prepare(
        place: &Place,
        chosen: &Chosen,
        boot: &str,
    ) -> Result<(Self, Vec<String>)> {
        let noted = directories(place).into_iter().filter_map(|dir| read(&dir.join(NAME)).ok()?);
        let mut earlier = Vec::new();
        for known in noted.flat_map(|noted| noted.boots) {
            if known != boot && !earlier.contains(&known) {
                earlier.push(known);
            }
        }
        let mut boots = earlier.clone();
        boots.push(boot.to_owned());
        boots.drain(..boots.len().saturating_sub(BOOTS_MAX));
        let noted = Noted { engine: chosen.name.clone(), configured: chosen.configured, boots };
        let dir = place.state_dir().to_owned();
        sweep(&dir, PREPARED);
        let line = serde_json::to_string(&noted)? + "\n";
        replace(&dir, PREPARED, line.as_bytes())?;
        Ok((Self { dir, prepared: true }, earlier))
    }

    /// Puts the file in place, because this host is now a member.
    ///
    /// # Errors
    /// The file cannot be renamed.
    pub(crate) fn set(&mut self) -> io::Result<()> {
        if self.prepared {
            fs::rename(self.dir.join(PREPARED), self.dir.join(NAME))?;
            File::open(&self.dir)?.sync_all()?;
            self.prepared = false;
        }
        Ok(())
    }
}

/// Refuses to run without the engine that this place used before. A daemon that a client started is
/// also refused if it would use another engine and the earlier one did not come from the
/// configuration. With `--no-engine` the operator allows the change, and the mark is removed.
///
/// # Errors
/// A [`StartError`], or the file cannot be read or removed.
pub(crate) fn check(options: &Options, config: &Config, chosen: Option<&Chosen>) -> Result<()> {
    let place = &options.place;
    // The file in use, or else the one in which the user should name the engine.
    let file = config.path.as_ref().or(place.stores().config.last());
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    // A home that became read-only may still name the engine.
    let usual = &place.stores().state_dir;
    let read_only = access(usual, AccessFlags::W_OK).is_err().then_some(&**usual);
    for path in directories(place).into_iter().chain(read_only).map(|dir| dir.join(NAME)) {
        let noted = read(&path).with_context(|| path.display().to_string())?;
        let Some(Noted { engine, configured, .. }) = noted else { continue };
        let (but, hint) = match chosen {
            None if options.without_engine => {
                fs::remove_file(&path).with_context(|| path.display().to_string())?;
                tracing::warn!(engine, "left the engine: locks now belong to this machine only");
                continue;
            }
            None => (
                "no engine is given now".to_owned(),
                format!(
                    "name it as `url` in [engine] of {file}, or continue without the other hosts \
                     with `canal daemon --no-engine`"
                ),
            ),
            Some(Chosen { name, .. })
                if options.is_on_demand() && !configured && *name != engine =>
            {
                let hint = "then run `canal daemon` to change to it";
                (format!("{file} names {name}"), format!("name the right one in {file}, {hint}"))
            }
            Some(_) => continue,
        };
        let what = "this daemon shared its locks with other hosts over";
        let what = format!("{what} {engine}, but {but}");
        return Err(StartError { what, hint: hint.into() }.into());
    }
    Ok(())
}

/// The directories that may contain the file. The previous daemon used the socket's directory if
/// the state directory was unavailable. The usual state directory does not count while another
/// daemon has it: that daemon's boots may be those of another machine that lives.
fn directories(place: &Place) -> [&Path; 2] {
    [place.state_dir(), &place.dir]
}

fn read(path: &Path) -> io::Result<Option<Noted>> {
    let unnamed = || Noted { engine: "an engine".to_owned(), configured: true, boots: Vec::new() };
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| unnamed()))),
        Err(it) if matches!(it.kind(), NotFound | NotADirectory | PermissionDenied) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use canal_protocol::paths::{BESIDE_SOCKET, Rule, Stores};

    use super::*;

    fn options(place: &Place, without_engine: bool) -> Options {
        Options { on_demand: true, without_engine, ..Options::at(place.clone()) }
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
        let unusable = error.downcast::<StartError>().unwrap();
        Some((unusable.what, unusable.hint.into_owned()))
    }

    #[test]
    fn only_a_directory_whose_daemon_was_a_member_is_refused_without_its_engine() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let plain = options(&place, false);
        let with = chosen(&plain, "etcd://me:secret@one/x", true);
        let (mut mark, _) = SharedMarker::prepare(&place, &with, "boot").unwrap();
        assert_eq!(refused(&plain, None), None, "it never joined");
        mark.set().unwrap();
        mark.set().unwrap();
        let (what, hint) = refused(&plain, None).unwrap();
        assert!(what.contains("over etcd://one/x, but no engine is given now"), "{what}");
        assert!(hint.contains("canal.toml") && hint.contains("--no-engine"), "{hint}");
        assert_eq!(refused(&plain, Some(&with)), None);
        assert_eq!(refused(&plain, Some(&chosen(&plain, "etcd://two/x", true))), None);
        // The next member writes its own mark.
        SharedMarker::prepare(&place, &with, "boot").unwrap().0.set().unwrap();
        assert_eq!(refused(&options(&place, true), None), None);
        assert_eq!(refused(&plain, None), None, "it was given up");
    }

    #[test]
    fn a_client_does_not_change_the_engine_that_a_command_line_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let plain = options(&place, false);
        let named = chosen(&plain, "etcd://one/x", false);
        SharedMarker::prepare(&place, &named, "boot").unwrap().0.set().unwrap();
        assert_eq!(refused(&plain, Some(&chosen(&plain, "etcd://one/x", true))), None);
        let other = chosen(&plain, "etcd://two/x", true);
        let (what, hint) = refused(&plain, Some(&other)).unwrap();
        assert!(
            what.contains("over etcd://one/x") && what.contains("names etcd://two/x"),
            "{what}"
        );
        assert!(hint.contains("run `canal daemon` to change"), "{hint}");
        let operator = Options { on_demand: false, ..plain };
        assert_eq!(refused(&operator, Some(&other)), None);
    }

    #[test]
    fn the_boots_in_which_a_daemon_was_a_member_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        let with = chosen(&options(&place, false), "etcd://one/x", true);
        let prepare = |boot: &str| SharedMarker::prepare(&place, &with, boot).unwrap();
        assert!(prepare("never a member").1.is_empty());
        for number in 0..BOOTS_MAX + 2 {
            prepare(&format!("boot {number}")).0.set().unwrap();
        }
        let last = format!("boot {}", BOOTS_MAX + 1);
        let (_, earlier) = prepare("now");
        assert_eq!((earlier.len(), earlier.last()), (BOOTS_MAX, Some(&last)));
        assert!(!prepare(&last).1.contains(&last), "the present boot is no earlier one");
    }

    #[test]
    fn the_boots_of_a_daemon_with_the_same_home_are_not_those_of_this_place() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let place = |name: &str, has_home: bool| {
            let own = dir.path().join(name);
            fs::create_dir(&own).unwrap();
            if !has_home {
                fs::write(own.join(BESIDE_SOCKET), "another daemon has it").unwrap();
            }
            let stores = Stores { state_dir: home.clone(), config: Vec::new() };
            let socket = own.join("canal.sock");
            Place { socket, dir: own, rule: Rule::PerUser, uid: 0.into(), stores: stores.into() }
        };
        let (first, second) = (place("first", true), place("second", false));
        let with = chosen(&options(&first, false), "etcd://one/x", true);
        SharedMarker::prepare(&first, &with, "boot of the first").unwrap().0.set().unwrap();
        let (mut mark, earlier) = SharedMarker::prepare(&second, &with, "another boot").unwrap();
        assert!(earlier.is_empty(), "{earlier:?}");
        mark.set().unwrap();
        let (_, earlier) = SharedMarker::prepare(&first, &with, "next boot").unwrap();
        assert_eq!(earlier, ["boot of the first"]);
        assert_eq!(refused(&options(&second, true), None), None);
        assert!(refused(&options(&first, false), None).is_some(), "it still has its mark");
    }

    #[test]
    fn an_empty_mark_counts_as_a_mark() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(Some(&dir.path().join("canal.sock")), 0).unwrap();
        fs::write(dir.path().join(NAME), "").unwrap();
        let (what, _) = refused(&options(&place, false), None).unwrap();
        assert!(what.contains("over an engine, but"), "{what}");
    }
}
