//! `canal daemon`: run it, stop it, replace it.

use super::args::{DaemonArgs, Global};
use super::connect::{self, Target};
use super::duration::Length;
use super::failed::Failed;
use super::say::Voice;
use crate::client::{Client, ClientError, Start};
use crate::daemon::{self, Options};
use crate::protocol::Stop;
use crate::protocol::place::Place;
use crate::run::SUCCESS;

pub(crate) fn run(args: &DaemonArgs, global: &Global, voice: Voice) -> Result<u8, Failed> {
    let place = Target::of(global)?.place;
    if args.stop || args.replace {
        match stop(&place)? {
            Some(pid) => voice.detail(&format!("stopped the daemon, pid {pid}")),
            None if args.stop => {
                voice.say(&format!("no daemon runs at {}", place.socket.display()));
            }
            None => {}
        }
    }
    if !args.stop {
        daemon::run(&Options {
            place,
            on_demand: args.on_demand,
            discard_journal: args.discard_journal,
            verbose: global.verbose,
            idle_exit_s: args.idle_exit.map(idle_seconds),
            engine: args.engine.clone(),
            engine_ttl_ms: args.engine_ttl.map(milliseconds),
            host: args.host.clone(),
            without_engine: args.no_engine,
        })?;
    }
    Ok(SUCCESS)
}

/// Ends the daemon that runs, and gives its pid if one did.
fn stop(place: &Place) -> Result<Option<u32>, Failed> {
    match Client::connect(place, Start::Never).and_then(|mut client| client.stop(&Stop {})) {
        Ok(stopping) => Ok(Some(stopping.pid)),
        Err(ClientError::NoDaemon(_)) => Ok(None),
        Err(error) => Err(connect::failed(error)),
    }
}

fn milliseconds(length: Length) -> u64 {
    match length {
        Length::Finite(length) => u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
        Length::Infinite => u64::MAX,
    }
}

/// Whole seconds, rounded up; 0 is never.
fn idle_seconds(length: Length) -> u64 {
    match length {
        Length::Finite(length) => {
            length.as_secs().saturating_add((length.subsec_nanos() > 0).into())
        }
        Length::Infinite => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn idle_seconds_never_round_down_to_never() {
        let seconds = |ms| idle_seconds(Length::Finite(Duration::from_millis(ms)));
        assert_eq!((seconds(1), seconds(1000), seconds(1001)), (1, 1, 2));
        assert_eq!(idle_seconds(Length::Infinite), 0);
    }
}
