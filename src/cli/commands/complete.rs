//! `canal complete`: lists names for the completion scripts while a user types.
//!
//! It starts no daemon, prints nothing to stderr, and lists nothing if the daemon does not answer
//! within [`DEADLINE`].

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::cli::arguments::definition::{CompleteArgs, CompletionKind, Global};
use crate::cli::connect::Target;
use crate::cli::output::stdout;
use crate::client::{Client, Start};
use crate::protocol::StatusQuery;
use crate::protocol::place::Place;
use crate::run::SUCCESS;

/// The longest delay that a user who types should notice.
const DEADLINE: Duration = Duration::from_millis(100);

/// The most names to list; a longer list does not help a user.
const NAMES_MAX: u64 = 500;

pub(crate) fn run(args: &CompleteArgs, global: &Global) -> u8 {
    let CompletionKind::Keys = args.what;
    if let (Ok(target), prefix) = (Target::of(global), args.prefix.clone()) {
        let (sender, receiver) = mpsc::channel();
        // Connecting may block, so this is a thread, which ends with the process.
        thread::spawn(move || sender.send(keys(&target.place, prefix)));
        let keys = receiver.recv_timeout(DEADLINE).ok().flatten().unwrap_or_default();
        let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
        // A shell that does not read the names does not need an error either.
        let _ = stdout::print(&lines);
    }
    SUCCESS
}

fn keys(place: &Place, prefix: String) -> Option<Vec<String>> {
    let mut client = Client::connect(place, Start::Never).ok()?;
    let key = (!prefix.is_empty()).then(|| prefix.clone());
    let query = StatusQuery { key, names_max: Some(NAMES_MAX), ..StatusQuery::default() };
    let status = client.status(&query).ok()?;
    Some(
        status.keys.into_iter().map(|key| key.key).filter(|key| key.starts_with(&prefix)).collect(),
    )
}
