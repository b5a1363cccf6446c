//! Checks whether the hooks of a configuration could run, for `canal doctor`.

use std::path::Path;

use crate::config::{Config, ConfigError};
use crate::hooks::account::Account;
use crate::hooks::program;
use canal_protocol::place::Place;

/// A hook of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenHook {
    /// Its name in `canal config`: `hooks[0]`.
    pub name: String,
    /// The program.
    pub program: String,
    /// Why it could not run, as text for people; `None` if it could.
    pub problem: Option<String>,
}

/// Checks the hooks that a daemon of this user would have at a place, without running them.
///
/// # Errors
/// The configuration cannot be used. The error names the file and the line.
pub(crate) fn look_at(place: &Place, daemon: u32) -> Result<Vec<SeenHook>, ConfigError> {
    let config = Config::read(&place.stores().config)?;
    let seen = config.hooks.iter().enumerate().map(|(number, hook)| {
        let problem = match &hook.user {
            None if daemon == 0 => Some("root's daemon needs `user` for it".to_owned()),
            user => problem(hook.program(), user.as_deref(), daemon).err(),
        };
        SeenHook { name: format!("hooks[{number}]"), program: hook.program().to_owned(), problem }
    });
    Ok(seen.collect())
}

fn problem(path: &str, user: Option<&str>, daemon: u32) -> Result<(), String> {
    let user = match user {
        Some(user) => {
            let uid = Account::uid_of(user)?;
            if uid != daemon && daemon != 0 {
                return Err(format!("only root's daemon can run it as another user (`{user}`)"));
            }
            uid
        }
        None => daemon,
    };
    program::check(Path::new(path), daemon, user)
}
