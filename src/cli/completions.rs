//! `canal completions`, which prints the scripts of `completions/`, and `canal complete`, which
//! lists names for them while a user types.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use itertools::Itertools as _;

use crate::cli::{CompletionKind, Global, Result, Shell, Target, stdout};
use crate::client::{Client, Start};
use crate::protocol::StatusQuery;
use crate::protocol::paths::Place;

/// The longest delay that a user who types should notice.
const DEADLINE: Duration = Duration::from_millis(100);

/// The most names to list; a longer list does not help a user.
const NAMES_MAX: u64 = 500;

/// Prints a script.
pub(crate) fn run(shell: Shell) -> Result {
    let script = match shell {
        Shell::Bash => include_str!("../../completions/canal.bash"),
        Shell::Zsh => include_str!("../../completions/_canal"),
        Shell::Fish => include_str!("../../completions/canal.fish"),
    };
    stdout::print(script).map(drop)
}

/// Lists names. It starts no daemon, prints nothing to stderr, and lists nothing if the daemon does
/// not answer within [`DEADLINE`].
pub(crate) fn complete(what: CompletionKind, prefix: String, global: &Global) {
    if let Ok(target) = Target::of(global) {
        let (sender, receiver) = mpsc::channel();
        // Connecting may block, so this is a thread, which ends with the process.
        thread::spawn(move || sender.send(names(what, &target.place, prefix)));
        let words = receiver.recv_timeout(DEADLINE).ok().flatten().unwrap_or_default();
        let lines: String = words.iter().map(|word| format!("{word}\n")).collect();
        // A shell that does not read the names does not need an error either.
        let _ = stdout::print(&lines);
    }
}

fn names(what: CompletionKind, place: &Place, prefix: String) -> Option<Vec<String>> {
    let mut client = Client::connect(place, Start::Never).ok()?;
    let mut query = StatusQuery::default();
    if what == CompletionKind::Keys {
        query.key = (!prefix.is_empty()).then(|| prefix.clone());
        query.names_max = Some(NAMES_MAX);
    }
    let keys = client.status(&query).ok()?.keys;
    let mut names: Vec<String> = match what {
        CompletionKind::Keys => keys.into_iter().map(|key| key.key).collect(),
        CompletionKind::Pids => {
            let holders = keys.iter().flat_map(|key| &key.holders).map(|it| it.pid);
            let waiters = keys.iter().flat_map(|key| &key.waiters).map(|it| it.pid);
            // A lease has no process.
            let pids = holders.chain(waiters).filter(|pid| *pid != 0);
            pids.sorted().dedup().map(|pid| pid.to_string()).collect()
        }
    };
    names.retain(|name| name.starts_with(&prefix));
    Some(names)
}
