//! What no `canal run` looks after: it ends in time, too.

use nix::sys::signal::Signal;

use crate::over_each_engine;
use crate::process::{alive, signal, wait_until};
use crate::scene::{Host, Log, mortal_hosts, until_idle};

over_each_engine!(
    rule_07_descendants_end_in_time_whose_canal_run_was_killed,
    rule_07_descendants_of_a_command_that_has_ended_end_in_time,
);

/// What a command starts that leaves it, and holds the file `hand` as long as it lives.
const DAEMON: &str = "exec 9>>hand; flock 9; echo >daemonised; while :; do sleep 0.05 9>&-; done";

/// Starts `canal run` with a command that starts that, and kills `canal run` alone.
#[track_caller]
fn leave_behind(host: &Host, options: &[&str], how: &str, then: &str) {
    let body = format!("(setsid {how} sh -c '{DAEMON}' </dev/null >/dev/null 2>&1 &); {then}");
    let mut args = vec!["run", "-k", "x"];
    args.extend(options);
    args.extend(["--", "sh", "-c", &body]);
    let run = host.world.canal(args).spawn();
    wait_until("it has left", || host.world.path("work").join("daemonised").exists());
    signal(run.child.id().cast_signed(), Signal::SIGKILL);
    assert_eq!(run.end().signal, Some(9));
}

/// Nothing is left of it once the other host has the lock.
#[track_caller]
fn nothing_is_left(host: &Host) {
    host.world.canal(["run", "-k", "x", "--", "flock", "-n", "hand", "true"]).end().code(0);
}

const FOR_EVER: &str = "while :; do sleep 0.02; done";

fn rule_07_descendants_end_in_time_whose_canal_run_was_killed(log: &Log) {
    let [a, b] = mortal_hosts(log);
    leave_behind(&a, &[], "", FOR_EVER);
    b.world.until_held("x", 1);
    a.proxy.cut();
    nothing_is_left(&b);
    a.proxy.mend();
    a.until("member");
    until_idle(&[a, b]);
}

fn rule_07_descendants_of_a_command_that_has_ended_end_in_time(log: &Log) {
    let [a, b] = mortal_hosts(log);
    // It is known by what it inherited to keep the lock, whatever its environment.
    leave_behind(&a, &["--with-children"], "env -i PATH=\"$PATH\"", "exit 0");
    wait_until("only the descendant keeps it", || {
        let holders = a.world.key("x").holders;
        holders.len() == 1 && !alive(holders[0].pid.cast_signed())
    });
    b.world.until_held("x", 1);
    a.proxy.cut();
    nothing_is_left(&b);
    a.proxy.mend();
    a.until("member");
    until_idle(&[a, b]);
}
