//! `canal bridge`: the program that ssh runs at a node.

use std::io;
use std::os::fd::AsFd;

use crate::cli::arguments::definition::{BridgeArgs, Global};
use crate::cli::connect::{self, Target};
use crate::cli::failed::Failed;
use crate::client::bridge::{BridgeError, bridge};
use crate::run::SUCCESS;

pub(crate) fn run(args: &BridgeArgs, global: &Global) -> Result<u8, Failed> {
    let target = Target::of(global)?;
    let keys: Vec<String> = args.keys.iter().map(|key| key.as_str().to_owned()).collect();
    let keys = args.leases.then_some(keys.as_slice());
    let (input, output) = (io::stdin(), io::stdout());
    match bridge(&target.place, &target.options(), keys, input.as_fd(), output.as_fd()) {
        Ok(()) => Ok(SUCCESS),
        Err(BridgeError::Client(error)) => Err(connect::no_client(error, &target.place)),
        Err(error @ BridgeError::OlderDaemon) => Err(Failed::new(error.to_string())
            .hint("start the newer one with `canal daemon --replace`")),
        Err(error) => Err(Failed::new(error.to_string())),
    }
}
