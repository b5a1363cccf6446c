//! Commands for `x`, of which there is one, that record their starts and ends.

use std::fs;

use crate::process::{Ended, Proc, wait_until};
use crate::record::Events;
use crate::scene::{Host, recorded};

fn run(host: &Host, name: &str, body: &str) -> Proc {
    let body = recorded(body);
    host.world.canal(["run", "-k", "x", "--", "sh", "-c", &body, "sh", name]).spawn()
}

/// Starts one that runs until it is told to end, and then says so.
#[track_caller]
pub(crate) fn start(host: &Host, name: &str) -> Proc {
    let holder = run(host, name, "while :; do sleep 0.02; done");
    wait_until("it runs", || Events::of(&host.world).started().contains(&name));
    holder
}

/// Starts one that runs until [`finish`].
#[track_caller]
pub(crate) fn start_for_now(host: &Host, name: &str) -> Proc {
    let holder = run(host, name, "while [ ! -e \"finish.$1\" ]; do sleep 0.02; done");
    wait_until("it runs", || Events::of(&host.world).started().contains(&name));
    holder
}

/// Lets one of [`start_for_now`] end.
#[track_caller]
pub(crate) fn finish(host: &Host, name: &str) {
    fs::write(host.world.path("work").join(format!("finish.{name}")), "").unwrap();
}

/// Starts one that ends at once when its turn has come.
pub(crate) fn next(host: &Host, name: &str) -> Proc {
    run(host, name, ":")
}

/// The same, when all of `knowing` know that it waits, as number `place`.
#[track_caller]
pub(crate) fn queue(host: &Host, knowing: &[&Host], name: &str, place: u64) -> Proc {
    let waiter = next(host, name);
    knowing.iter().for_each(|host| host.world.until_waiting("x", place));
    waiter
}

/// These ran, one after the other.
#[track_caller]
pub(crate) fn never_both(host: &Host, names: &[&str]) {
    let events = Events::of(&host.world);
    assert_eq!(events.started(), names);
    let log = fs::read_to_string(host.world.runtime().join("daemon.log")).unwrap_or_default();
    assert_eq!(events.most_at_once(), 1, "{events:?}\n{log}");
}

/// It ended with 122 and said what was lost, when, and why, which has the words `why`.
#[track_caller]
pub(crate) fn lost(command: Proc, why: &str) -> Ended {
    let ended = command.end().code(122);
    let mut lines = ended.stderr.lines().skip_while(|line| !line.starts_with("canal: lost "));
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let rest = first.strip_prefix("canal: lost `x` (token ").unwrap_or_default();
    let (token, rest) = rest.split_once(") at ").unwrap_or_default();
    let (time, rest) = rest.split_once(": ").unwrap_or_default();
    assert!(token.parse::<u64>().is_ok() && time.matches(':').count() == 2, "{ended:?}");
    assert!(rest.contains(why) && rest.ends_with("; the command is ended"), "{ended:?}");
    assert!(second.starts_with("hint: "), "{ended:?}");
    ended
}

/// The same with the kernel as witness: one that is killed cannot record its end, but then the
/// kernel drops its lock of the file `hand`, and not before. Whom it meets there it records.
pub(crate) fn witnessed(body: &str) -> String {
    format!("exec 9>>hand; flock -n 9 || echo \"$1\" >>overlaps; {body}")
}
