//! The state that must survive a reboot: the floors of the tokens and of the requests' numbers, the
//! stored sizes, the pauses, and what is out of service.
//! (The leases are in a [separate file](super::lease_file).)
//!
//! The file is replaced as a whole: at every moment, even during a power cut, it is either the old
//! one or the new one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::replace_file::{create_dir, named, replace, sweep};
use canal_core::{Key, RequestId, Setting, Settings, Token};
use canal_sys::private_dir::if_there;

/// The name of the file.
pub const NAME: &str = "state.json";
/// The version that this program writes.
const VERSION: u32 = 1;

/// The state that must survive a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// No grant has a token at or above this one.
    pub reserved_token: Token,
    /// No request has a number above this one.
    #[serde(default)]
    pub reserved_request: RequestId,
    /// The stored settings, by key. A view from the configuration is not stored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<Key, Settings>,
    /// The daemon's record of itself as a node.
    #[serde(default, skip_serializing_if = "NodeRecord::is_default")]
    pub node: NodeRecord,
}

impl Durable {
    /// Changes a setting of a key.
    pub fn set(&mut self, key: &Key, setting: &Setting) {
        let settings = self.settings.entry(key.clone()).or_default();
        settings.set(setting);
        if settings.is_default() {
            self.settings.remove(key);
        }
    }
}

/// A daemon's record of itself as one of several nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Whether the state had to be recreated, so that earlier leases over nodes may still live.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_anew: bool,
    /// The name that canal gave the machine, if the machine itself has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
}

impl NodeRecord {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// [`Durable`] as it is written.
#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    #[serde(flatten)]
    durable: &'a Durable,
}

/// The field that every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Reads the file in `dir`; `None` if there is none. Creates `dir` (0700) if it is missing.
///
/// Accepts unknown fields, which the next [`store`] removes.
///
/// # Errors
/// Names the file and the error (not canal's, not JSON, a later version).
pub fn read(dir: &Path) -> io::Result<Option<Durable>> {
    create_dir(dir).map_err(|error| named(dir, &error))?;
    let path = dir.join(NAME);
    let found = if_there(fs::read(&path)).and_then(|found| found.as_deref().map(parse).transpose());
    let durable = found.map_err(|error| named(&path, &error))?;
    sweep(dir, NAME);
    Ok(durable)
}

/// Replaces the file in `dir`: writes a temporary file, syncs it, renames it, and syncs the
/// directory.
///
/// # Errors
/// Names the file. It still has the old content, or perhaps the new content if only the directory
/// could not be synced.
pub fn store(dir: &Path, durable: &Durable) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(&Written { version: VERSION, durable })?;
    bytes.push(b'\n');
    replace(dir, NAME, &bytes).map(drop)
}

fn parse(bytes: &[u8]) -> io::Result<Durable> {
    let invalid = |what| io::Error::new(ErrorKind::InvalidData, what);
    let damaged = |error| invalid(format!("it is damaged: {error}"));
    // The version first: the rest may have another form in a later one.
    let Version { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if version > VERSION {
        let what =
            format!("a newer canal wrote it (version {version}, this one reads up to {VERSION})");
        return Err(invalid(what));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use canal_core::View;

    fn durable(token: u64) -> Durable {
        let node = NodeRecord { is_anew: true, machine: Some("m".to_owned()) };
        let (reserved_token, reserved_request) = (Token(token), RequestId(token));
        let settings = BTreeMap::new();
        let mut durable = Durable { reserved_token, reserved_request, settings, node };
        for (key, setting) in [
            ("db/\"ä\"", Setting::View(Some(View::Buckets { per: 3, buckets: u64::MAX }))),
            ("gpu", Setting::View(Some(View::Slots { slots: 1 }))),
            ("gpu", Setting::Paused(true)),
            ("gpu", Setting::Service { numbers: vec![0, 2], out: true }),
            ("a \"b\"", Setting::Paused(true)),
            ("forgotten", Setting::View(None)),
        ] {
            durable.set(&Key::new(key).unwrap(), &setting);
        }
        assert_eq!(durable.settings.len(), 3);
        durable
    }

    fn error(content: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        fs::write(&path, content).unwrap();
        let said = read(dir.path()).unwrap_err().to_string();
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "it was changed");
        said.strip_prefix(&format!("{}: ", path.display())).expect("it names the file").to_owned()
    }

    #[test]
    fn stored_values_are_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        for token in [1, u64::MAX, 7] {
            store(dir.path(), &durable(token)).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Some(durable(token)));
        }
        let files: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let mode = fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn missing_directories_are_made_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("of/canal");
        read(&path).unwrap();
        store(&path, &Durable::default()).unwrap();
        for made in [path.parent().unwrap(), &path] {
            let mode = fs::metadata(made).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700, "{made:?}");
        }
    }

    #[test]
    fn a_damaged_file_is_named_with_the_fault() {
        assert_eq!(error(""), "it is damaged: EOF while parsing a value at line 1 column 0");
        assert!(error("{\"version\":1,").starts_with("it is damaged: EOF"));
        assert!(error("{}").contains("missing field `version`"));
        assert!(error("{\"version\":1}").contains("missing field `reserved_token`"));
        let key = "{\"version\":1,\"reserved_token\":1,\"settings\":{\"/\":{\"paused\":true}}}";
        assert!(error(key).contains("begin with"));
    }

    #[test]
    fn a_file_cut_at_any_byte_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &durable(5)).unwrap();
        let whole = fs::read_to_string(dir.path().join(NAME)).unwrap();
        let body = whole.trim_end().len();
        for cut in (0..body).filter(|cut| whole.is_char_boundary(*cut)) {
            assert!(error(&whole[..cut]).starts_with("it is damaged"), "{cut}");
        }
    }

    #[test]
    fn a_later_version_is_refused_as_such() {
        let said = error("{\"version\":2,\"something\":\"else\"}");
        assert_eq!(said, "a newer canal wrote it (version 2, this one reads up to 1)");
    }

    #[test]
    fn fields_that_are_unknown_are_let_pass() {
        let dir = tempfile::tempdir().unwrap();
        let content = "{\"version\":1,\"reserved_token\":9,\"more\":[]}";
        fs::write(dir.path().join(NAME), content).unwrap();
        let found = read(dir.path()).unwrap();
        assert_eq!(found, Some(Durable { reserved_token: Token(9), ..Durable::default() }));
    }

    #[test]
    fn a_store_that_fails_names_the_file_and_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        // A directory in its place, which a file cannot replace.
        let path = dir.path().join(NAME);
        fs::create_dir(&path).unwrap();
        let said = store(dir.path(), &durable(1)).unwrap_err().to_string();
        assert!(said.starts_with(&path.display().to_string()), "{said}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    }

    #[test]
    fn files_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &durable(1)).unwrap();
        let left = dir.path().join(format!("{NAME}.new-{}", "0".repeat(16)));
        fs::write(&left, "half").unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(durable(1)));
        assert!(!left.exists());
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        let said = read(&path).unwrap_err().to_string();
        assert!(said.starts_with(&path.display().to_string()), "{said}");
    }
}
