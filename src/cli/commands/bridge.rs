//! `canal bridge`, and the process that looks for deadlocks: canal itself starts both.

use std::io;
use std::os::fd::AsFd;

use crate::cli::arguments::definition::BridgeArgs;
use crate::cli::nodes::{around, near};
use crate::cli::{Failed, Global, Result, Target, connect};
use crate::client::bridge::{self, BridgeError};
use crate::client::environment;
use crate::run::nodes::watch_for_deadlocks;

/// `canal bridge`, which ssh runs at a node.
pub(crate) fn run(args: &BridgeArgs, global: &Global) -> Result {
    let target = Target::of(global)?;
    let keys: Vec<String> = args.keys.iter().map(|key| key.as_str().to_owned()).collect();
    let keys = args.leases.then_some(keys.as_slice());
    let (input, output) = (io::stdin(), io::stdout());
    match bridge::bridge(&target.place, &target.options(), keys, input.as_fd(), output.as_fd()) {
        Ok(()) => Ok(()),
        Err(BridgeError::Client(error)) => Err(connect::no_client(error, &target.place)),
        Err(error @ BridgeError::OlderDaemon) => Err(Failed::new(error.to_string())
            .hint("start the newer one with `canal daemon --replace`")),
        Err(error) => Err(Failed::new(error.to_string())),
    }
}

/// `canal deadlock-watcher`, which looks for deadlocks on behalf of a program that uses the
/// library.
pub(crate) fn deadlock_watcher(global: &Global) -> Result {
    let target = Target::of(global)?;
    let failed = |error| Failed::new(format!("cannot search for deadlocks: {error}"));
    if let Some(run) = environment::run() {
        watch_for_deadlocks(&around(&target, near(&target)?), run).map_err(failed)?;
    }
    Ok(())
}
