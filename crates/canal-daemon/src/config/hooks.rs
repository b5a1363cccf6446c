//! The hooks of the configuration (`[[hooks]]`), with their defaults and bounds.

use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::config::values::{duration, optional_key};
use canal_core::{Key, Request};

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

    /// Whether this event of a request starts the hook.
    pub(crate) fn is_for(&self, on: On, asked: &Request) -> bool {
        let covers = |prefix: &Key| asked.items.iter().any(|item| prefix.covers(&item.key));
        self.on.get_ref().contains(&on) && self.keys.as_ref().is_none_or(covers)
    }

    /// Whether the end of a request can start the hook.
    pub(crate) fn is_told_of_ends(&self) -> bool {
        self.on.get_ref().iter().any(|on| !on.has_time())
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
        let (on, at) = (self.on.get_ref(), self.on.span().start);
        if on.is_empty() {
            return Err((at, "`on` names no event".to_owned()));
        }
        let has_time = on.iter().any(|on| on.has_time());
        let long = "`after` is the time after which a wait or a hold counts as long";
        match &self.after {
            None if has_time => Err((at, format!("{long}, such as \"10m\"; add it"))),
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use canal_core::{Ask, Item};

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
        let is_for = |on, keys: &[&str]| {
            let keys = keys.iter().map(|key| Key::new(key).unwrap());
            let items = keys.map(|key| Item { key, ask: Ask::Read }).collect();
            hook.is_for(on, &Request { items, ..Request::default() })
        };
        assert!(is_for(On::LongWait, &["ci"]) && is_for(On::Deadlock, &["ci"]));
        assert!(!is_for(On::LongHold, &["ci"]) && hook.is_told_of_ends());
        assert_eq!(hook.after(), Some(Duration::from_secs(600)));
        assert_eq!((hook.program(), hook.run.len()), ("/usr/bin/tell", 2));
        assert_eq!((hook.timeout.as_secs(), hook.user.as_deref()), (120, Some("ann")));
        assert!(is_for(On::Deadlock, &["x", "ci/db"]) && !is_for(On::Deadlock, &["x", "cix"]));
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
}
