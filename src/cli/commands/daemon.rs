//! The commands about the daemon itself. `canal daemon` runs, stops, replaces or reloads it, and
//! `canal metrics` prints its metrics. canal itself starts `canal bridge`, which connects to it
//! from another machine, and the process that looks for deadlocks.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::commands::config::changed_setting;
use crate::cli::connect::execute;
use crate::cli::node_list::{around, near};
use crate::cli::{
    BridgeArgs, DaemonArgs, Failed, Global, Length, Result, Target, Verbosity, millis, plural,
    stderr, stdout,
};
use crate::client::bridge::{self, BridgeError};
use crate::client::{
    self, Client, ClientError, OWN, ServiceManager, Start, command_environment, own_program,
};
use crate::daemon::{self, Options};
use crate::protocol::paths::{Place, Rule};
use crate::protocol::{NoParameters, Reloaded, StatusQuery};
use crate::run::nodes::watch_for_deadlocks;

pub(crate) fn run(args: &DaemonArgs, global: &Global) -> Result {
    if args.hook_guard {
        return Ok(daemon::guard_hook()?);
    }
    let target = Target::of(global)?;
    let place = target.place.clone();
    if args.stop {
        match stop(&place)? {
            Some(pid) => stderr::detail(&format!("stopped the daemon, pid {pid}")),
            None => stderr::note(&format!("no daemon is running at {}", place.socket.display())),
        }
        return Ok(());
    }
    if args.reload {
        return reload(&place);
    }
    if args.replace && !args.foreground && is_systemds(&place) {
        return restart_unit(args);
    }
    if args.replace && !args.foreground && !args.on_demand {
        let verbose = vec![OsString::from("-v"); global.verbose.into()];
        let arguments = [passed_on(args), verbose].concat();
        let pid = client::replace_daemon(&place, OWN.as_ref(), arguments)
            .and_then(|()| Client::connect(&place, Start::Never)?.status(&StatusQuery::default()))?
            .daemon
            .pid;
        stderr::detail(&format!("the new daemon is running, pid {pid}"));
        return Ok(());
    }
    let mut options = Options {
        on_demand: args.on_demand,
        discard_journal: args.discard_journal,
        first_start: args.first_start,
        verbose: global.verbose,
        idle_exit_s: args.idle_exit.map(idle_seconds),
        engine: args.engine.clone(),
        engine_ttl_ms: args.engine_ttl.map(|ttl| ttl.map_or(u64::MAX, millis)),
        host: args.host.clone(),
        without_engine: args.no_engine,
        watcher: Some(own_program()),
        ..Options::at(place)
    };
    if args.watcher {
        // The next client that needs the daemon reports the error.
        Verbosity::Quiet.apply();
        return Ok(daemon::watch(&options, move || drop(target.connect()))?);
    }
    let mut prepare = || -> Result {
        // systemd has the socket of the machine's daemon, and starts that as another user.
        if ServiceManager::of_machine() != ServiceManager::Systemd {
            daemon::become_owner(&options.place)?;
        }
        if args.replace { replace(&mut options) } else { Ok(()) }
    };
    prepare().inspect_err(|failed| {
        if args.on_demand {
            daemon::report_failure(&failed.message, failed.hint.as_deref());
        }
    })?;
    Ok(daemon::run(&options)?)
}

/// Whether systemd runs the daemon of a place.
fn is_systemds(place: &Place) -> bool {
    let mut ask = Command::new("systemctl");
    ask.args(["--quiet", "is-active", "canal.socket"]).stderr(Stdio::null());
    place.rule == Rule::Shared
        && ServiceManager::of_machine() == ServiceManager::Systemd
        && ask.status().is_ok_and(|status| status.success())
}

/// Makes systemd replace the daemon of the machine, which loses no lock.
fn restart_unit(args: &DaemonArgs) -> Result {
    let command = "systemctl restart canal.service";
    if !passed_on(args).is_empty() {
        let what = "systemd runs this machine's daemon, so set its options in its unit file";
        return Err(
            Failed::new(what).hint(format!("run `systemctl edit canal.service`, then `{command}`"))
        );
    }
    execute(command)
}

/// The options of this command that the daemon in the background gets.
fn passed_on(args: &DaemonArgs) -> Vec<OsString> {
    let duration = |length: Length| match length {
        Some(length) => format!("{}ms", millis(length)),
        None => "infinity".to_owned(),
    };
    let values = [
        ("--idle-exit", args.idle_exit.map(duration)),
        ("--engine", args.engine.clone()),
        ("--engine-ttl", args.engine_ttl.map(duration)),
        ("--host", args.host.clone()),
    ];
    let values =
        values.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?).into()));
    let flags = [("--no-engine", args.no_engine), ("--discard-journal", args.discard_journal)];
    values.chain(flags.iter().filter(|(_, given)| *given).map(|(name, _)| name.into())).collect()
}

/// Ends the running daemon, if one with these options could take its place.
fn replace(options: &mut Options) -> Result {
    let (place, uid) = (&options.place, crate::sys::process::user::geteuid().as_raw());
    let replacing = daemon::replace(place)?;
    if daemon::runs(place, uid) {
        daemon::check(options)?;
    }
    let (until, mut again) = (Instant::now() + REPLACE_MAX, Instant::now());
    // If no daemon runs, a client that wants to stop one would wait until one starts.
    while !replacing.is_free(place) && Instant::now() < until {
        // A daemon that a client was just starting may come up after the first one ends, and must
        // end too.
        if again <= Instant::now() {
            if let Some(pid) = stop(place)? {
                stderr::detail(&format!("stopped the daemon, pid {pid}"));
            }
            again = Instant::now() + STOP_AGAIN;
        }
        thread::sleep(REPLACE_PAUSE);
    }
    options.replaces = Some(replacing);
    Ok(())
}

/// How long a daemon may take to end when it is stopped or replaced, how often canal asks it to,
/// and how often canal checks whether it has ended.
const REPLACE_MAX: Duration = Duration::from_secs(10);
const STOP_AGAIN: Duration = Duration::from_millis(500);
const REPLACE_PAUSE: Duration = Duration::from_millis(5);

/// Ends the running daemon, and returns its pid if there was one.
fn stop(place: &Place) -> Result<Option<u32>> {
    let until = Instant::now() + REPLACE_MAX;
    loop {
        match Client::connect(place, Start::Never).and_then(|mut it| it.stop(&NoParameters {})) {
            Ok(stopping) => return Ok(Some(stopping.pid)),
            Err(ClientError::NoDaemon(_)) => return Ok(None),
            // The daemon ended before it answered, for example because it was killed. A client may
            // have started another one since.
            Err(ClientError::Gone(_)) if Instant::now() < until => thread::sleep(REPLACE_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes the running daemon read its configuration again, and prints the result.
fn reload(place: &Place) -> Result {
    match Client::connect(place, Start::Never).and_then(|mut it| it.reload(&NoParameters {})) {
        Ok(Reloaded { file, changed, notes, .. }) => {
            let what = match changed.len() {
                0 => "nothing changed".to_owned(),
                count => plural(count as u64, "setting changed", "settings changed"),
            };
            let read = file.map(|file| format!("read {file}"));
            let read = read.unwrap_or_else(|| "there is no configuration file".to_owned());
            stderr::message(&format!("{read}: {what}"));
            changed.iter().for_each(|it| stderr::message(&changed_setting(it)));
            notes.iter().for_each(|note| stderr::message(note));
        }
        Err(ClientError::NoDaemon(_)) => {
            let next = match daemon::check_configuration(place)? {
                Some(file) => format!("the next one will read {}", file.display()),
                None => "the next one will find no configuration".to_owned(),
            };
            stderr::message(&format!("no daemon is running at {}; {next}", place.socket.display()));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Whole seconds, rounded up; 0 means never.
fn idle_seconds(length: Length) -> u64 {
    length.map_or(0, |length| millis(length).div_ceil(1000))
}

/// Prints the metrics for a monitoring system. Fails if the reader goes away, because a collector
/// that reads files would take half of the metrics for all of them.
pub(crate) fn metrics(target: &Target) -> Result {
    let found = target.connect()?.metrics(&NoParameters {})?;
    stdout::print_or_fail(&found.text)
}

/// `canal bridge`, which ssh runs at a node.
pub(crate) fn bridge(args: &BridgeArgs, target: &Target) -> Result {
    let keys: Vec<String> = args.keys.iter().map(|key| key.as_str().to_owned()).collect();
    let keys = args.leases.then_some(keys.as_slice());
    let (input, output) = (io::stdin(), io::stdout());
    let ended = bridge::bridge(&target.place, &target.options, keys, input.as_fd(), output.as_fd());
    ended.map_err(|error| match error {
        BridgeError::Client(error) => error.into(),
        BridgeError::OlderDaemon => {
            Failed::new(error.to_string()).hint("start the newer one with `canal daemon --replace`")
        }
        error => Failed::new(error.to_string()),
    })
}

/// `canal deadlock-watcher`, which looks for deadlocks on behalf of a request that waits at the
/// daemon of this machine.
pub(crate) fn deadlock_watcher(target: &Target) -> Result {
    let failed = |error| Failed::new(format!("cannot search for deadlocks: {error}"));
    if let Some(run) = command_environment::run() {
        watch_for_deadlocks(&around(target, near(target)?), run).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_seconds_never_round_down_to_never() {
        let seconds = |ms| idle_seconds(Some(Duration::from_millis(ms)));
        assert_eq!((seconds(1), seconds(1000), seconds(1001)), (1, 1, 2));
        assert_eq!(idle_seconds(None), 0);
    }
}
