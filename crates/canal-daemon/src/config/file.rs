//! The configuration file: stored sizes, limits, policy.
//!
//! The configuration grants permissions, so a user who can write it could grant himself everything.
//! The daemon does not use a file that other users may have written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::mem::take;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::hooks::{HOOKS_MAX, HookSettings};
use crate::config::nodes::ConfiguredNodes;
use crate::config::permissions::Permissions;
use crate::config::sections_and_defaults::{
    DaemonSection, EngineSettings, HistorySection, JobSettings, MetricsSection, PolicySection,
    SocketAccess,
};
use crate::config::settings_in_file::{Written, line_of, name_of_key};
use crate::config::typo_suggestions::with_suggestion;
use crate::config::{nodes, permissions, sections_and_defaults, settings_in_file, user_limits};
use crate::processes::identify_owner::NOBODY;
use canal_core::{Ask, Item, Key, NUMBER_MAX, View};
use canal_history::Limits;
use canal_protocol::paths::{MACHINE_CONFIG, uid_of_machine};
use canal_sys::private_dir::is_missing;
use canal_sys::process::user::{self, Stat};
use canal_text::shell_word;

/// The packaged configuration of the machine's daemon. It is in force where there is no file.
/// Otherwise, deleting the file would let every user keep root's backup waiting. An empty file
/// permits that on purpose.
pub const PACKAGED: &str = include_str!("../../../../packaging/canal.toml");

/// The group that the packaged configuration names.
const PACKAGED_GROUP: &str = "canal";

/// A configuration. It has the tables of the file, and what canal derives from them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The file that was read.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    keys: BTreeMap<String, KeySection>,
    #[serde(skip)]
    pub views: BTreeMap<Key, View>,
    /// The keys whose slots are chosen as with `--spread`.
    #[serde(skip)]
    pub spread: BTreeSet<Key>,
    pub limits: user_limits::Limits,
    pub policy: PolicySection,
    pub daemon: DaemonSection,
    #[serde(rename = "permission")]
    pub permissions: Permissions,
    /// Access to the socket, if the daemon creates it.
    pub socket: SocketAccess,
    #[serde(deserialize_with = "sections_and_defaults::either")]
    pub engine: EngineSettings,
    #[serde(with = "HistorySection")]
    pub history: Limits,
    pub jobs: JobSettings,
    pub hooks: Vec<HookSettings>,
    pub metrics: MetricsSection,
    #[serde(rename = "nodes")]
    node_entries: nodes::Nodes,
    node_groups: nodes::Groups,
    /// Names for daemons, which only clients use.
    #[serde(skip)]
    pub nodes: ConfiguredNodes,
    /// All settings as the file contains them.
    #[serde(skip)]
    pub written: Vec<Written>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    /// The file must not be used, or a line of it is wrong. Names the file.
    #[error("{0}")]
    Unusable(String),
}

fn wrong(path: &Path, line: u64, what: impl fmt::Display) -> ConfigError {
    ConfigError::Unusable(format!("{}, line {line}: {what}", path.display()))
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeySection {
    per: Option<u64>,
    buckets: Option<u64>,
    slots: Option<u64>,
    spread: Option<bool>,
}

impl Config {
    /// Reads the first of the files that exists. Without a file, the configuration is empty, or for
    /// the daemon of the machine the packaged one.
    ///
    /// # Errors
    /// The error names the file and the line. For an unknown word it suggests the nearest known
    /// word.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, ConfigError> {
        match first_text(paths)? {
            Some((path, text)) => Self::parse(path, &text),
            None if is_machines(paths) => Self::packaged(),
            None => Ok(Self::default()),
        }
    }

    /// The packaged configuration, without permissions for groups that do not exist here.
    fn packaged() -> Result<Self, ConfigError> {
        let mut text = PACKAGED.to_owned();
        if matches!(permissions::look_up(PACKAGED_GROUP), Ok(None)) {
            // An entry for nobody permits as much as no entry.
            text = text.replace(&format!("[\"{PACKAGED_GROUP}\"]"), "[]");
        }
        let config = Self::parse(Path::new(MACHINE_CONFIG), &text)?;
        let written = settings_in_file::written(PACKAGED);
        Ok(Self { path: None, written, nodes: ConfiguredNodes::default(), ..config })
    }

    /// Like [`Self::read`], for a daemon of this process's user.
    ///
    /// # Errors
    /// The same as for [`Self::read`]; or the file contains something that a daemon of this user
    /// must not do.
    pub(crate) fn read_for_daemon(paths: &[PathBuf]) -> Result<Self, ConfigError> {
        let config = Self::read(paths)?;
        config.check_hooks(user::geteuid().is_root())?;
        Ok(config)
    }

    /// Checks that each hook names a user if the daemon runs as root.
    fn check_hooks(&self, is_root: bool) -> Result<(), ConfigError> {
        let without = self.hooks.iter().position(|hook| hook.user.is_none());
        let Some(number) = without.filter(|_| is_root) else { return Ok(()) };
        let what = "a hook of root's daemon must name a user: `user = \"NAME\"`";
        Err(self.wrong_setting(&format!("hooks[{number}]"), what))
    }

    fn wrong_setting(&self, name: &str, what: impl fmt::Display) -> ConfigError {
        let path = self.path.as_deref().unwrap_or(Path::new(""));
        wrong(path, self.line(name).unwrap_or(1), what)
    }

    /// The line of a setting, if the file contains it.
    pub(crate) fn line(&self, name: &str) -> Option<u64> {
        self.written.iter().find(|one| one.name == name).map(|one| one.line)
    }

    /// Whether [`Self::read`] would look up groups by their names, which can take long.
    pub(crate) fn looks_up_groups(paths: &[PathBuf]) -> bool {
        // An unreadable file counts as one without groups. The daemon soon finds out why it is
        // unreadable.
        let text = match first_text(paths) {
            Ok(Some((_, text))) => text,
            Ok(None) if is_machines(paths) => PACKAGED.to_owned(),
            Ok(None) | Err(_) => return false,
        };
        let Ok(file) = text.parse::<toml::Table>() else { return false };
        let of_socket = file.get("socket").and_then(|socket| socket.get("group"));
        let entries = file.get("permission").and_then(|it| it.as_array()).into_iter().flatten();
        let of_entries = entries.filter_map(|entry| entry.get("groups")?.as_array()).flatten();
        of_entries.chain(of_socket).any(toml::Value::is_str)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let at = |(at, what): (usize, String)| wrong(path, line_of(text, at), what);
        let read: Result<Self, toml::de::Error> = toml::from_str(text);
        let mut config = read.map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            at((start, with_suggestion(error.message())))
        })?;
        (config.path, config.written) = (Some(path.to_owned()), settings_in_file::written(text));
        for (name, section) in take(&mut config.keys) {
            let setting = format!("keys.{}", name_of_key(&name));
            let wrong = |what: String| config.wrong_setting(&setting, what);
            let key = Key::new(&name).map_err(|error| wrong(format!("`{name}`: {error}")))?;
            let view = section.view(&key).map_err(wrong)?;
            if section.spread == Some(true) {
                config.spread.insert(key.clone());
            }
            config.views.extend(view.map(|view| (key, view)));
        }
        let (entries, groups) = (take(&mut config.node_entries), take(&mut config.node_groups));
        let (nodes, longest_ttl) = nodes::configured(&entries, &groups).map_err(at)?;
        config.nodes = ConfiguredNodes { file: Some(path.to_owned()), ..nodes };
        if let Some(longest_ttl) = longest_ttl {
            config.limits.nodes_longest_ttl = longest_ttl;
        }
        if config.hooks.len() > HOOKS_MAX {
            let what = format!("more than {HOOKS_MAX} hooks");
            return Err(config.wrong_setting(&format!("hooks[{HOOKS_MAX}]"), what));
        }
        config.hooks.iter().try_for_each(|hook| hook.check().map_err(at))?;
        if config.engine.url.is_some() && config.engine.url_file.is_some() {
            let what = "`url` and `url_file` both name the engine; use one of them";
            return Err(config.wrong_setting("engine.url_file", what));
        }
        Ok(config)
    }

    /// Makes the requests for slots of some keys choose the bucket with the fewest holders, as with
    /// `--spread`. A request for several slots at once takes the lowest.
    pub(crate) fn spread(&self, items: &mut [Item]) {
        for item in items.iter_mut().filter(|item| self.spread.contains(&item.key)) {
            if matches!(item.ask, Ask::Counted { count: 1, .. }) {
                item.ask = item.ask.clone().spread();
            }
        }
    }
}

impl KeySection {
    fn view(&self, key: &Key) -> Result<Option<View>, String> {
        let view = match (self.per, self.buckets, self.slots) {
            (None, None, None) if self.spread.is_some() => return Ok(None),
            (_, _, Some(_)) if self.spread == Some(true) => {
                return Err(format!("`spread` of `{key}` needs `per` and `buckets`"));
            }
            (Some(0), Some(_), None) => return Err(format!("`per` of `{key}` must be at least 1")),
            (Some(per), Some(buckets), None) => View::Buckets { per, buckets },
            (None, None, Some(0)) => {
                return Err(format!(
                    "`slots` of `{key}` must be at least 1; to pause it, run `canal resize {key} \
                     --pause`"
                ));
            }
            (None, None, Some(slots)) => View::Slots { slots },
            _ => return Err(format!("`{key}` needs either `per` and `buckets`, or `slots`")),
        };
        if view.capacity() > NUMBER_MAX {
            return Err(format!("the size of `{key}` ({view}) is more than {NUMBER_MAX}"));
        }
        Ok(Some(view))
    }
}

/// Whether a daemon that looks for its configuration at these paths is that of the machine.
fn is_machines(paths: &[PathBuf]) -> bool {
    matches!(paths, [only] if only.as_os_str() == MACHINE_CONFIG)
}

/// The first of the files that exists, and its text. A path that leads through a file that is not a
/// directory does not exist; a path that the daemon must not read is an error.
fn first_text(paths: &[PathBuf]) -> Result<Option<(&Path, String)>, ConfigError> {
    for path in paths {
        match read_text(path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(ConfigError::Io { error, .. }) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The text of a configuration file. Links are followed; the checks apply to their target.
///
/// # Errors
/// The file cannot be read, is not a regular file, belongs to a user other than root and the
/// daemon's, or is writable by others.
pub(crate) fn read_text(path: &Path) -> Result<String, ConfigError> {
    let failed = |error: io::Error| ConfigError::Io { path: path.to_owned(), error };
    let refused = |what: String| ConfigError::Unusable(format!("{} {what}", path.display()));
    // Opening a FIFO without a writer must not block the daemon.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = opened.map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(refused("is not a regular file".to_owned()));
    }
    let found = user::fstat(&file).map_err(|error| failed(error.into()))?;
    check_writers(path, &found, &[user::geteuid().as_raw()]).map_err(refused)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Checks that only root and these users can have written a file.
///
/// # Errors
/// The reason, as the rest of a sentence about the file.
pub(crate) fn check_writers(path: &Path, found: &Stat, users: &[u32]) -> Result<(), String> {
    let (owner, mode) = (found.st_uid, found.st_mode & 0o7777);
    // A user namespace that does not map the machine's root shows it as the overflow user, like all
    // other users that it does not map.
    let is_root = owner == 0 || owner == NOBODY && uid_of_machine(0) != 0;
    if !users.contains(&owner) && !is_root {
        let mut may = vec!["root".to_owned()];
        may.extend(users.iter().filter(|uid| **uid != 0).map(|uid| format!("uid {uid}")));
        may.dedup();
        return Err(format!("belongs to uid {owner} and must belong to {}", may.join(" or ")));
    }
    // Others can write.
    if mode & 0o022 != 0 {
        let path = shell_word::of_path(path);
        return Err(format!(
            "is writable by other users (mode {mode:04o}): run `chmod go-w {path}`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::num::NonZeroUsize;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::time::Duration;

    use super::*;
    use crate::config::nodes::LONGEST_TTL_DEFAULT;
    use crate::config::user_limits::WAITERS_PER_USER;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("canal.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_setting_is_read() {
        let config = parse(
            "[keys.\"ci/db\"]\nper = 3\nbuckets = 2\n[keys.gpu]\nslots = 4\n\
             [limits]\nconnections = 100\nwaiters_per_user = 7\n\
             connections_per_user = 9\nconnection_idle = \"2m\"\n\
             leases_per_user = 5\nkey_bytes_per_user = 1000\n\
             [policy]\nbypass_max = 9\n[daemon]\nidle_exit = \"10m\"\nlog = \"debug\"\n",
        )
        .unwrap();
        let view = |key: &str| config.views.get(&Key::new(key).unwrap()).copied();
        assert_eq!(view("ci/db"), Some(View::Buckets { per: 3, buckets: 2 }));
        assert_eq!(view("gpu"), Some(View::Slots { slots: 4 }));
        assert_eq!(config.policy.bypass_max, Some(9));
        assert_eq!(config.daemon.log.as_deref(), Some("debug"));
        assert_eq!(config.daemon.idle_exit, Some(Duration::from_secs(600)));
        let limits = config.limits;
        assert_eq!((limits.connections(1 << 20, 0), limits.waiters_per_user), (100, 7));
        assert_eq!((limits.leases_per_user, limits.key_bytes_per_user), (5, 1000));
        assert_eq!(limits.connections_per_user, NonZeroUsize::new(9));
        assert_eq!(limits.connection_idle, Duration::from_secs(120));
        assert!(limits.connections(64, 0) < 100);
    }

    #[test]
    fn nodes_and_groups_are_read() {
        let config = parse(
            "[nodes]\nweb1 = \"ssh:web1\"\n\
             web2 = { address = \"ssh:deploy@web2:2222\", canal = \"/opt/canal\" }\n\
             here = \"unix:/d/canal.sock\"\n\
             [node_groups]\nweb = [\"web1\", \"web2\"]\nmixed = [\"local\", \"ssh:x\"]\n",
        )
        .unwrap();
        let shown: Vec<String> = config
            .nodes
            .nodes
            .iter()
            .map(|(name, node)| format!("{name} {} {:?}", node.address, node.canal))
            .collect();
        assert_eq!(
            shown,
            [
                "here unix:/d/canal.sock None",
                "web1 ssh:web1 None",
                "web2 ssh:deploy@web2:2222 Some(\"/opt/canal\")",
            ]
        );
        assert_eq!(config.nodes.groups["web"], ["web1", "web2"]);
        assert_eq!(config.nodes.file.as_deref(), Some(Path::new("canal.toml")));
        for (text, line, what) in [
            ("[nodes]\nweb1 = \"web1\"\n", 2, "node `web1`: an address is local, unix:/path"),
            ("[nodes]\n\nweb1 = \"ssh:-x\"\n", 3, "cannot begin with `-`"),
            ("[nodes]\nlocal = \"ssh:x\"\n", 2, "needs another name"),
            ("[nodes]\n\"a,b\" = \"ssh:x\"\n", 2, "the node `a,b` needs a name of letters"),
            ("[nodes]\na = { address = \"local\", canal = \"x\" }\n", 2, "needs an ssh address"),
            ("[nodes]\na = { adress = \"local\" }\n", 2, "did you mean `address`?"),
            ("[nodes]\na = 7\n", 2, "a node must be an address, or a table with"),
            ("[node_groups]\nweb = []\n", 2, "group `web` has no nodes"),
            ("[node_groups]\nweb = [\"web1\"]\n", 2, "`web1` is not a node in [nodes]"),
            ("[node_groups]\nweb = [\"@x\"]\n", 2, "a group can contain only nodes"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("canal.toml, line {line}: ")), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn an_unknown_word_names_line_and_the_nearest_known_one() {
        assert_eq!(
            parse("[keys.db]\nper = 1\nbucket = 2\n").unwrap_err(),
            "canal.toml, line 3: unknown field `bucket`; did you mean `buckets`?"
        );
        assert_eq!(
            parse("\n[limit]\n").unwrap_err(),
            "canal.toml, line 2: unknown field `limit`; did you mean `limits`?"
        );
        let far = parse("zzz = 1\n").unwrap_err();
        assert!(
            far.starts_with("canal.toml, line 1: unknown field `zzz`, expected one of"),
            "{far}"
        );
    }

    #[test]
    fn wrong_values_name_their_line() {
        let line = |text: &str, line: usize, what: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("canal.toml, line {line}: ")), "{error}");
            assert!(error.contains(what), "{error}");
        };
        line("[keys.\"/db\"]\nslots = 1\n", 1, "`/db`: a key cannot begin with `/`; use `db`");
        line("\n[keys.db]\nper = 1\n", 2, "`db` needs either");
        line("[keys.db]\nslots = 2\nspread = true\n", 1, "`spread` of `db` needs `per`");
        line("[keys.db]\nper = 0\nbuckets = 1\n", 1, "at least 1");
        line("[keys.db]\nslots = 0\n", 1, "to pause it, run `canal resize db --pause`");
        line("[keys.db]\nslots = -1\n", 2, "integer `-1`, expected a whole number of at least 0");
        line("[keys.db]\nslots = 9007199254740992\n", 1, "is more than");
        line("[limits]\nconnections = 0\n", 2, "expected a whole number of at least 1");
        let per_user = "[limits]\nconnections_per_user = 0\n";
        line(per_user, 2, "expected a whole number of at least 1");
        line("[limits]\nconnection_idle = \"soon\"\n", 2, "`soon` is not a duration");
        line("[daemon]\nidle_exit = \"soon\"\n", 2, "`soon` is not a duration");
        line("[daemon]\n\nlog = \"debug,x=loud\"\n", 3, "`debug,x=loud` is not a log filter");
        line("[daemon\n", 1, "");
    }

    #[test]
    fn an_engine_is_an_address_or_a_table_of_details() {
        let engine = |text: &str| parse(text).unwrap().engine;
        assert_eq!(engine("engine = \"etcd://a\"\n").url.as_deref(), Some("etcd://a"));
        let found = engine(
            "[engine]\nurl_file = \"secret\"\nttl = \"30s\"\ngrace = \"500ms\"\nhost = \"alpha\"\n",
        );
        assert_eq!(
            (found.ttl_ms, found.grace_ms, found.renewal_ms),
            (Some(30_000), Some(500), None)
        );
        assert_eq!((found.url_file, found.host.as_deref()), (Some("secret".into()), Some("alpha")));
        for (text, line, what) in [
            ("\n[engine]\nurll = \"x\"\n", 3, "unknown field `urll`; did you mean `url`?"),
            ("[engine]\nuri = \"x\"\n", 2, "unknown field `uri`; did you mean `url`?"),
            ("[engine]\nttl = \"soon\"\n", 2, "`soon` is not a duration"),
            ("[engine]\nurl = \"x\"\nurl_file = \"y\"\n", 3, "use one of them"),
            ("engine = 3\n", 1, "the address of an engine, or a table"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("canal.toml, line {line}: ")), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn metrics_are_offered_where_the_file_says_and_nowhere_else() {
        assert_eq!(parse("").unwrap().metrics.listen, None);
        let found = parse("[metrics]\nlisten = \"[::1]:9632\"\n").unwrap().metrics.listen;
        assert_eq!(found.map(|it| it.to_string()).as_deref(), Some("[::1]:9632"));
        assert!(
            parse("\n[metrics]\nlisten = \"0.0.0.0:9632\"\n")
                .unwrap_err()
                .starts_with("canal.toml, line 3: metrics need a loopback address")
        );
        assert_eq!(
            parse("[metrics]\nlisen = \"/x\"\n").unwrap_err(),
            "canal.toml, line 2: unknown field `lisen`; did you mean `listen`?"
        );
    }

    #[test]
    fn a_history_has_a_time_and_a_size_and_is_off_with_0() {
        let history = |text: &str| parse(&format!("[history]\n{text}\n")).map(|it| it.history);
        let usual = parse("").unwrap().history;
        assert_eq!((usual.keep_ms, usual.max_bytes), (30 * 86_400_000, 64 << 20));
        let stated = history("keep = \"90d\"\nmax = \"1GiB\"").unwrap();
        assert_eq!((stated.keep_ms, stated.max_bytes), (90 * 86_400_000, 1 << 30));
        assert_eq!(history("max = 0").unwrap().max_bytes, 0);
        for (text, what) in [
            ("max = \"lots\"", "`lots` is not a size"),
            ("max = -1", "`-1` is not a size"),
            ("max = \"1KiB\"", "at least 64KiB"),
            ("max = true", "expected a size like"),
            ("keep = \"soon\"", "`soon` is not a duration"),
            ("kept = \"1d\"", "did you mean `keep`?"),
        ] {
            let error = history(text).unwrap_err();
            assert!(error.starts_with("canal.toml, line 2: ") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn jobs_have_a_size() {
        let jobs = |text: &str| parse(&format!("[jobs]\n{text}\n")).map(|it| it.jobs.max_bytes);
        assert_eq!(jobs(""), Ok(256 << 20));
        assert_eq!(jobs("max = \"1GiB\""), Ok(1 << 30));
        assert!(jobs("max = \"much\"").unwrap_err().contains("`much` is not a size"));
    }

    #[test]
    fn a_daemon_of_root_needs_a_user_for_each_hook() {
        let hook = "[[hooks]]\non = [\"deadlock\"]\nrun = [\"/x\"]\n";
        let config = parse(&format!("{hook}user = \"ann\"\n\n{hook}")).unwrap();
        assert!(config.check_hooks(false).is_ok());
        let error = config.check_hooks(true).unwrap_err().to_string();
        assert!(
            error.starts_with("canal.toml, line 6: a hook of root's daemon must name a user"),
            "{error}"
        );
        assert!(parse(&format!("{hook}user = \"ann\"")).unwrap().check_hooks(true).is_ok());
    }

    #[test]
    fn permissions_are_read_with_groups_by_name_and_number() {
        let config = parse(
            "[[permission]]\nkeys = \"a/b\"\ngroups = [\"root\", 1001]\n\
             may = [\"hold\", \"resize\", \"force\", \"priority\"]\n\
             [[permission]]\ngroups = []\nmay = [\"hold\"]\n",
        )
        .unwrap();
        let read = format!("{:?}", config.permissions.0);
        assert_eq!(
            read,
            "[Permission { keys: Some(\"a/b\"), groups: [Group { gid: 0, called: \"root\" }, \
             Group { gid: 1001, called: \"1001\" }], may: [Hold, Resize, Force, Priority] }, \
             Permission { keys: None, groups: [], may: [Hold] }]"
        );
    }

    #[test]
    fn a_socket_has_a_group_and_a_mode() {
        let socket = |text: &str| parse(&format!("[socket]\n{text}\n")).map(|it| it.socket);
        let found = socket("group = \"root\"\nmode = \"0660\"").unwrap();
        assert_eq!((found.group.unwrap().gid, found.mode), (0, Some(0o660)));
        assert_eq!(socket("mode = \"660\"").unwrap().mode, Some(0o660));
        assert_eq!(socket("mode = 0o666").unwrap().mode, Some(0o666));
        assert_eq!(socket("group = 1001").unwrap().mode, None);
        assert_eq!(parse("").unwrap().socket, SocketAccess::default());
        // Decimal numbers that were meant to be octal are refused, too.
        for mode in
            ["660", "666", "600", "\"0o660\"", "\"+660\"", "\"\"", "\"rw\"", "\"0060\"", "-1"]
        {
            let error = socket(&format!("\nmode = {mode}")).unwrap_err();
            assert!(error.starts_with("canal.toml, line 3: `mode` is octal"), "{mode}: {error}");
        }
        let error = socket("mode = 6.5").unwrap_err();
        assert!(error.contains("a mode in octal"), "{error}");
        assert_eq!(
            socket("group = \"no such group\"").unwrap_err(),
            "canal.toml, line 2: there is no group `no such group`"
        );
        assert_eq!(
            socket("grup = 0").unwrap_err(),
            "canal.toml, line 2: unknown field `grup`; did you mean `group`?"
        );
    }

    #[test]
    fn nodes_have_names_for_clients_and_a_longest_ttl_here() {
        let longest = |text: &str| {
            let config = parse(&format!("[nodes]\n{text}\n"))?;
            Ok::<_, String>(config.limits.nodes_longest_ttl)
        };
        let names =
            "web1 = \"ssh:web1\"\nweb2 = { address = \"ssh:web2\", canal = \"/opt/canal\" }";
        assert_eq!(longest(names).unwrap(), LONGEST_TTL_DEFAULT);
        assert_eq!(
            longest(&format!("{names}\nlongest_ttl = \"1m\"")).unwrap(),
            Duration::from_secs(60)
        );
        for (text, what) in [
            ("longest_ttl = \"9s\"", "line 2: `longest_ttl` must be at least 10s"),
            ("longest_ttl = \"lots\"", "line 2: `lots` is not a duration"),
            ("longest_ttl = 600", "line 2: `longest_ttl` must be a duration"),
            ("\nlongest_tll = \"1m\"", "line 3: unknown field `longest_tll`; did you mean"),
        ] {
            let error = longest(text).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn wrong_permissions_name_their_line() {
        let entry = |key: &str, value: &str| {
            let mut lines = [("keys", "\"a\""), ("groups", "[0]"), ("may", "[\"hold\"]")];
            lines.iter_mut().filter(|line| line.0 == key).for_each(|line| line.1 = value);
            let lines = lines.map(|(key, value)| format!("{key} = {value}\n")).concat();
            parse(&format!("[[permission]]\n{lines}")).unwrap_err()
        };
        assert_eq!(
            entry("may", "[\"hold\", \"forse\"]"),
            "canal.toml, line 4: unknown word `forse`; did you mean `force`?"
        );
        assert_eq!(
            entry("groups", "[0, \"no such group\"]"),
            "canal.toml, line 3: there is no group `no such group`"
        );
        assert_eq!(entry("groups", "[-1]"), "canal.toml, line 3: a group must be a name or number");
        assert!(entry("groups", "[65534]").contains("line 3: group 65534 stands for many groups"));
        assert!(entry("may", "[]").contains("line 4: `may` permits nothing"));
        assert!(entry("may", "[\"zzz\"]").contains("line 4: unknown word `zzz`, expected one of"));
        assert_eq!(
            entry("keys", "\"a/\""),
            "canal.toml, line 2: `a/`: a key cannot end with `/`; use `a`"
        );
        assert_eq!(
            parse("[[permission]]\ngroup = [0]\nmay = [\"hold\"]\n").unwrap_err(),
            "canal.toml, line 2: unknown field `group`; did you mean `groups`?"
        );
        assert_eq!(
            parse("\n[[permission]]\ngroups = [0]\n").unwrap_err(),
            "canal.toml, line 2: missing field `may`"
        );
    }

    #[test]
    fn without_a_file_everything_is_at_its_default() {
        let config = Config::read(&["/nowhere/canal.toml".into()]).unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.limits.waiters_per_user, WAITERS_PER_USER);
    }

    fn refusal(path: &Path) -> String {
        match read_text(path).unwrap_err() {
            error @ ConfigError::Unusable(_) => error.to_string(),
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
            assert_eq!(read_text(&path).unwrap(), "x", "{mode:o}");
        }
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read_text(&link).unwrap(), "x");
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
