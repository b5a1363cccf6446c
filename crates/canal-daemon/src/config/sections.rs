//! The tables of the configuration file, with their defaults and bounds.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::config::permissions::Group;
use crate::config::values::{NumberOrText, duration, optional_key, optional_ms, size};
use canal_core::Key;
use canal_text::duration::milliseconds;

/// The engine settings of a configuration, as the table `[engine]` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EngineSettings {
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub host: Option<String>,
    #[serde(rename = "ttl", deserialize_with = "optional_ms")]
    pub ttl_ms: Option<u64>,
    #[serde(rename = "renewal", deserialize_with = "optional_ms")]
    pub renewal_ms: Option<u64>,
    #[serde(rename = "grace", deserialize_with = "optional_ms")]
    pub grace_ms: Option<u64>,
    #[serde(rename = "margin", deserialize_with = "optional_ms")]
    pub margin_ms: Option<u64>,
}

/// `engine = "URL"`, or `[engine]`.
pub(super) fn either<'de, D: Deserializer<'de>>(from: D) -> Result<EngineSettings, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = EngineSettings;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the address of an engine, or a table `[engine]`")
        }

        fn visit_str<E>(self, url: &str) -> Result<EngineSettings, E> {
            Ok(EngineSettings { url: Some(url.to_owned()), ..EngineSettings::default() })
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EngineSettings, A::Error> {
            EngineSettings::deserialize(MapAccessDeserializer::new(map))
        }
    }
    from.deserialize_any(Either)
}

/// The address of an engine for messages: without user, password and parameters.
pub(crate) fn shown_address(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // The text is no address, but it may contain a secret.
        return "the engine".to_owned();
    };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    format!("{scheme}://{}", &rest[..end])
}

/// The default for how long a record is kept.
const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);

/// The default for the total size of the files.
const HISTORY_BYTES: u64 = 64 << 20;

/// A smaller limit would keep hardly anything.
const HISTORY_BYTES_MIN: u64 = 64 << 10;

/// The history settings of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HistorySettings {
    #[serde(deserialize_with = "duration")]
    pub keep: Duration,
    /// 0 turns the history off.
    #[serde(rename = "max", deserialize_with = "max_bytes")]
    pub max_bytes: u64,
}

impl Default for HistorySettings {
    fn default() -> Self {
        Self { keep: KEEP, max_bytes: HISTORY_BYTES }
    }
}

impl HistorySettings {
    /// The limits on the history; `None` if the history is off.
    pub(crate) fn limits(&self) -> Option<canal_history::Limits> {
        let (keep_ms, max_bytes) = (milliseconds(self.keep), self.max_bytes);
        let limits = canal_history::Limits { keep_ms, max_bytes };
        (self.max_bytes > 0).then_some(limits)
    }
}

fn max_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match size(from)? {
        1..HISTORY_BYTES_MIN => {
            Err(D::Error::custom("a history needs at least 64KiB; 0 turns it off"))
        }
        max => Ok(max),
    }
}

/// The default for the total size of a user's logs.
const JOBS_BYTES: u64 = 256 << 20;

/// The settings of background jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JobSettings {
    /// How many bytes the records and logs of a user's jobs may have in total.
    #[serde(rename = "max", deserialize_with = "size")]
    pub max_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self { max_bytes: JOBS_BYTES }
    }
}

/// The most hooks in one configuration. Each has a thread.
pub(crate) const HOOKS_MAX: usize = 32;

/// The default for how long the program of a hook may run.
const TIMEOUT: Duration = Duration::from_secs(30);

const TIMEOUT_MIN: Duration = Duration::from_secs(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// The shortest time after which a wait or a hold can count as long.
const AFTER_MIN: Duration = Duration::from_secs(1);

/// The events that start a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum On {
    /// A request has waited for the configured time.
    LongWait,
    /// Something has been held for the configured time.
    LongHold,
    /// A request was refused because it was part of a deadlock.
    Deadlock,
    /// A lease was not renewed in time, or this host lost its membership in the engine's table.
    LostLease,
    /// A client released what another client held.
    ForcedRelease,
}

impl On {
    /// Whether the event happens when a configured time has passed.
    fn has_time(self) -> bool {
        matches!(self, Self::LongWait | Self::LongHold)
    }
}

/// A hook of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HookSettings {
    on: Spanned<Vec<On>>,
    /// Program and arguments. The program is an absolute path.
    #[serde(deserialize_with = "run")]
    pub run: Vec<String>,
    /// When a wait or a hold counts as long. Set if `on` names a long wait or hold.
    #[serde(default, deserialize_with = "after")]
    after: Option<Spanned<Duration>>,
    /// This key and the keys below it; `None` means all keys.
    #[serde(default, deserialize_with = "optional_key")]
    keys: Option<Key>,
    #[serde(default = "usual_timeout", deserialize_with = "timeout")]
    pub timeout: Duration,
    /// The name or number of the user that runs the program. `None` is the user of the daemon.
    #[serde(default, deserialize_with = "user")]
    pub user: Option<String>,
}

impl HookSettings {
    /// When a wait or a hold counts as long, if the hook is for one of them.
    pub(crate) fn after(&self) -> Option<Duration> {
        self.after.as_ref().map(|after| *after.get_ref())
    }

    /// Whether this event starts the hook.
    pub(crate) fn is_told_of(&self, on: On) -> bool {
        self.on.get_ref().contains(&on)
    }

    /// Whether the end of a request can start the hook.
    pub(crate) fn is_told_of_ends(&self) -> bool {
        self.on.get_ref().iter().any(|on| !on.has_time())
    }

    /// Whether the hook applies to one of these keys.
    pub(crate) fn is_about<'a>(&self, mut keys: impl Iterator<Item = &'a Key>) -> bool {
        self.keys.as_ref().is_none_or(|prefix| keys.any(|key| prefix.covers(key)))
    }

    /// The path of the program.
    pub(crate) fn program(&self) -> &str {
        self.run.first().map_or("", String::as_str)
    }

    /// Checks that the events and the time fit together.
    ///
    /// # Errors
    /// The offset of the mistake, and its description.
    pub(super) fn check(&self) -> Result<(), (usize, String)> {
        let on = self.on.get_ref();
        if on.is_empty() {
            return Err((self.on.span().start, "`on` names no event".to_owned()));
        }
        let has_time = on.iter().any(|on| on.has_time());
        let long = "`after` is the time after which a wait or a hold counts as long";
        match &self.after {
            None if has_time => {
                Err((self.on.span().start, format!("{long}, such as \"10m\"; add it")))
            }
            Some(after) if !has_time => {
                let what = format!("{long}, and `on` names neither `long-wait` nor `long-hold`");
                Err((after.span().start, what))
            }
            _ => Ok(()),
        }
    }
}

fn after<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Spanned<Duration>>, D::Error> {
    let text = Spanned::<String>::deserialize(from)?;
    let after = canal_text::duration::read(text.get_ref()).map_err(D::Error::custom)?;
    if after < AFTER_MIN {
        return Err(D::Error::custom("`after` must be at least 1s"));
    }
    Ok(Some(Spanned::new(text.span(), after)))
}

fn usual_timeout() -> Duration {
    TIMEOUT
}

fn timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    match duration(from)? {
        timeout if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) => Ok(timeout),
        _ => Err(D::Error::custom("`timeout` must be between 1s and 1h")),
    }
}

fn user<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(from)?;
    if name.is_empty() || name.contains(char::is_control) {
        return Err(D::Error::custom("`user` must be a user's name or number"));
    }
    Ok(Some(name))
}

fn run<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let run: Vec<String> = Vec::deserialize(from)?;
    let program = run.first().ok_or_else(|| D::Error::custom("`run` names no program"))?;
    if !program.starts_with('/') {
        return Err(D::Error::custom(format!(
            "`run` must begin with the path of a program, as in [\"/usr/bin/logger\", \"-t\", \
             \"canal\"]; `{program}` is not an absolute path, and no shell reads it"
        )));
    }
    if run.iter().any(|word| word.contains('\0')) {
        return Err(D::Error::custom("an argument in `run` contains a NUL"));
    }
    Ok(run)
}

/// The maximum length of the path of a Unix socket.
const SOCKET_BYTES_MAX: usize = 107;

/// The table `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsSection {
    /// The address at which the daemon serves metrics, if it does.
    pub listen: Option<Listen>,
}

/// The address at which the daemon serves metrics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Listen {
    /// A loopback address.
    Tcp(SocketAddr),
    /// The absolute path of a socket.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.starts_with('/') {
            if text.len() > SOCKET_BYTES_MAX || text.contains('\0') {
                return Err(format!(
                    "the path of a socket can have at most {SOCKET_BYTES_MAX} bytes, and no NUL"
                ));
            }
            return Ok(Self::Unix(text.into()));
        }
        let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = local.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = local.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!(
                "`{text}` is neither a loopback address with a port, such as `127.0.0.1:9632`, nor \
                 the absolute path of a socket"
            )
        })?;
        let ip = address.ip();
        if !ip.is_loopback() {
            return Err(format!(
                "metrics need a loopback address, and {ip} is not one: other machines could read \
                 them"
            ));
        }
        if address.port() == 0 {
            return Err("metrics need a port, such as `127.0.0.1:9632`".to_owned());
        }
        Ok(Self::Tcp(address))
    }
}

/// The table `[socket]`: the group and the mode of the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SocketAccess {
    /// `None` keeps the group of the daemon.
    pub group: Option<Group>,
    /// `None` means 0666 at a shared place, and 0600 elsewhere.
    #[serde(deserialize_with = "mode")]
    pub mode: Option<u32>,
}

/// A mode, as text in octal (`"0660"`) or as an octal number of TOML (`0o660`).
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    from.deserialize_any(NumberOrText {
        expected: "a mode in octal, such as \"0660\"",
        number: |number| permitted(u32::try_from(number).ok()),
        text: |text| {
            let is_octal = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
            permitted(u32::from_str_radix(text, 8).ok().filter(|_| is_octal))
        },
    })
}

/// Checks that these are permission bits and include those that the daemon's own user needs.
fn permitted(bits: Option<u32>) -> Result<Option<u32>, String> {
    if bits.is_some_and(|bits| bits <= 0o777 && bits & 0o600 == 0o600) {
        return Ok(bits);
    }
    let what = "`mode` is octal, at most \"0777\", and must let the daemon itself read and write, \
                such as \"0660\"";
    Err(what.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The hooks of a configuration, or the mistake in it with its line.
    pub(crate) fn hooks(text: &str) -> Result<Vec<HookSettings>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("canal.toml");
        std::fs::write(&path, text).unwrap();
        let config = crate::config::file::Config::read(&[path]);
        let config = config.map_err(|error| {
            let error = error.to_string();
            error.split_once("canal.toml, ").map_or(error.clone(), |(_, what)| what.to_owned())
        })?;
        Ok(config.hooks)
    }

    fn one(text: &str) -> Result<HookSettings, String> {
        hooks(&format!("[[hooks]]\n{text}\n")).map(|mut hooks| hooks.remove(0))
    }

    #[test]
    fn a_hook_has_events_a_program_and_limits() {
        let hook = one("on = [\"long-wait\", \"deadlock\"]\nafter = \"10m\"\nkeys = \"ci\"\n\
             run = [\"/usr/bin/tell\", \"a b\"]\ntimeout = \"2m\"\nuser = \"ann\"")
        .unwrap();
        assert!(hook.is_told_of(On::LongWait) && hook.is_told_of(On::Deadlock));
        assert!(!hook.is_told_of(On::LongHold) && hook.is_told_of_ends());
        assert_eq!(hook.after(), Some(Duration::from_secs(600)));
        assert_eq!((hook.program(), hook.run.len()), ("/usr/bin/tell", 2));
        assert_eq!((hook.timeout.as_secs(), hook.user.as_deref()), (120, Some("ann")));
        let is_about = |keys: &[&str]| {
            let keys: Vec<Key> = keys.iter().map(|key| Key::new(key).unwrap()).collect();
            hook.is_about(keys.iter())
        };
        assert!(is_about(&["x", "ci/db"]) && is_about(&["ci"]) && !is_about(&["x", "cix"]));
        let least = one("on = [\"deadlock\"]\nrun = [\"/x\"]").unwrap();
        assert_eq!((least.after(), least.timeout, least.user), (None, TIMEOUT, None));
        assert_eq!(hooks("").unwrap(), []);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, what) in [
            ("run = [\"/x\"]", 1, "missing field `on`"),
            ("on = [\"deadlock\"]", 1, "missing field `run`"),
            ("on = []\nrun = [\"/x\"]", 2, "`on` names no event"),
            (
                "on = [\"deadlok\"]\nrun = [\"/x\"]",
                2,
                "unknown word `deadlok`; did you mean `deadlock`?",
            ),
            ("on = [\"long-wait\"]\nrun = [\"/x\"]", 2, "such as \"10m\"; add it"),
            ("on = [\"deadlock\"]\nafter = \"1m\"\nrun = [\"/x\"]", 3, "neither `long-wait` nor"),
            ("on = [\"long-hold\"]\nafter = \"10ms\"\nrun = [\"/x\"]", 3, "must be at least 1s"),
            (
                "on = [\"long-hold\"]\nafter = \"soon\"\nrun = [\"/x\"]",
                3,
                "`soon` is not a duration",
            ),
            ("on = [\"deadlock\"]\nrun = []", 3, "`run` names no program"),
            ("on = [\"deadlock\"]\nrun = [\"tell\"]", 3, "`tell` is not an absolute path"),
            ("on = [\"deadlock\"]\nrun = [\"/x\", \"\\u0000\"]", 3, "contains a NUL"),
            ("on = [\"deadlock\"]\nrun = [\"/x\"]\ntimeout = \"2h\"", 4, "between 1s and 1h"),
            ("on = [\"deadlock\"]\nrun = [\"/x\"]\nuser = \"\"", 4, "a user's name or number"),
            ("on = [\"deadlock\"]\nrun = [\"/x\"]\nkeys = \"/a\"", 4, "cannot begin with `/`"),
            ("on = [\"deadlock\"]\nrun = [\"/x\"]\ntimout = \"1m\"", 4, "did you mean `timeout`?"),
        ] {
            let error = one(text).unwrap_err();
            assert!(error.starts_with(&format!("line {line}: ")), "{text}: {error}");
            assert!(error.contains(what), "{text}: {error}");
        }
        let many = "[[hooks]]\non = [\"deadlock\"]\nrun = [\"/x\"]\n".repeat(HOOKS_MAX + 1);
        assert!(hooks(&many).unwrap_err().contains("more than 32 hooks"));
    }

    #[test]
    fn loopback_addresses_and_absolute_paths_are_accepted() {
        for (text, shown) in [
            ("127.0.0.1:9632", "127.0.0.1:9632"),
            ("127.7.7.7:1", "127.7.7.7:1"),
            ("[::1]:9632", "[::1]:9632"),
            ("localhost:9632", "127.0.0.1:9632"),
            ("/run/canal/metrics.sock", "/run/canal/metrics.sock"),
        ] {
            assert_eq!(
                Listen::try_from(text.to_owned()).map(|it| it.to_string()).as_deref(),
                Ok(shown)
            );
        }
    }

    #[test]
    fn everything_else_is_refused_in_words() {
        let long = format!("/{}", "x".repeat(SOCKET_BYTES_MAX));
        for (text, what) in [
            ("0.0.0.0:9632", "0.0.0.0 is not one"),
            ("[::]:9632", ":: is not one"),
            ("192.168.0.7:9632", "loopback address"),
            ("[::ffff:127.0.0.1]:9632", "loopback address"),
            ("127.0.0.1:0", "need a port"),
            ("127.0.0.1", "neither a loopback address with a port"),
            ("9632", "neither"),
            ("localhost:http", "neither"),
            ("example.org:9632", "neither"),
            ("metrics.sock", "absolute path"),
            ("", "neither"),
            ("/a\0b", "at most 107 bytes"),
            (&long, "at most 107 bytes"),
        ] {
            let error = Listen::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
