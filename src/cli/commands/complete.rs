//! `canal complete`: what the completion scripts ask for while somebody types.
//!
//! It is quick or gives nothing: no daemon is started, nothing is said on stderr, and a daemon that
//! does not answer within [`DEADLINE`] is not waited for.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::cli::arguments::definition::{CompleteArgs, Global, What};
use crate::cli::connect::Target;
use crate::cli::output::stdout;
use crate::client::{Client, Start};
use crate::protocol::StatusQuery;
use crate::protocol::place::Place;
use crate::run::SUCCESS;

/// As long as typing may hang.
const DEADLINE: Duration = Duration::from_millis(100);

/// More names than this help nobody.
const NAMES_MAX: u64 = 500;

pub(crate) fn run(args: &CompleteArgs, global: &Global) -> u8 {
    let What::Keys = args.what;
    if let (Ok(target), prefix) = (Target::of(global), args.prefix.clone()) {
        let (sender, receiver) = mpsc::channel();
        // A thread because connecting may block; it ends with the process.
        thread::spawn(move || sender.send(keys(&target.place, prefix)));
        let keys = receiver.recv_timeout(DEADLINE).ok().flatten().unwrap_or_default();
        let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
        // A shell that does not read has no use for an error either.
        let _ = stdout::print(&lines);
    }
    SUCCESS
}

fn keys(place: &Place, prefix: String) -> Option<Vec<String>> {
    let mut client = Client::connect(place, Start::Never).ok()?;
    let key = (!prefix.is_empty()).then(|| prefix.clone());
    let status = client.status(&StatusQuery { key, names_max: Some(NAMES_MAX) }).ok()?;
    Some(
        status.keys.into_iter().map(|key| key.key).filter(|key| key.starts_with(&prefix)).collect(),
    )
}
