//! `canal::run::supervise` with real processes and without a daemon: the child grants itself its
//! lock.
//!
//! This program is both the tests and their subject. Started with `--scene` as its first argument
//! it is the supervisor (a *scene*); otherwise it runs the tests, each of which starts scenes.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "these are tests, though no test harness tells that to clippy"
)]

mod descendants;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod max_run;
mod scene;
mod signals;
mod status;
mod terminal;

#[path = "../fixtures/bound.rs"]
mod bound;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bound::BOUND;

type Test = (&'static str, fn());

/// Names the functions of a module as tests.
macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        const TESTS: &[Test] = &[
            $($((concat!(stringify!($module), "::", stringify!($name)), $module::$name),)+)+
        ];
    };
}

tests! {
    status:
        the_exit_code_is_passed_on,
        a_death_by_signal_is_passed_on_as_that_death,
        a_child_that_never_runs_its_command_passes_its_own_code,
        an_ignored_sigchld_hides_no_status,
        the_command_gets_its_signals_as_the_caller_set_them,
        descriptors_that_the_command_closes_are_closed;
    max_run:
        the_hook_learns_of_a_command_that_runs_too_long_once,
        a_command_that_ends_in_time_is_not_signalled,
        a_command_that_runs_too_long_is_ended,
        a_command_that_ends_with_0_after_its_time_is_124,
        a_command_that_ignores_sigterm_is_killed_after_the_grace,
        the_wait_for_the_lock_does_not_count,
        a_stopped_command_is_ended_too,
        processes_in_its_group_are_ended_with_it;
    signals:
        a_signal_to_the_parent_reaches_the_command,
        a_waiting_child_dies_by_the_signal_too,
        without_a_terminal_the_command_leads_a_group,
        a_waiting_child_ends_with_its_killed_parent,
        a_command_outlives_its_killed_parent;
    descendants:
        without_with_children_the_supervisor_does_not_wait_for_them,
        with_children_the_supervisor_waits_and_passes_on_the_commands_code,
        a_child_that_keeps_the_hold_is_distinguished_from_an_earlier_child,
        max_run_applies_to_descendants,
        the_supervisor_does_not_wait_for_a_daemon_started_on_demand,
        max_run_applies_to_a_process_that_only_calls_itself_a_daemon;
    terminal:
        ctrl_c_reaches_the_command_once,
        a_death_by_ctrl_c_is_passed_on,
        the_command_stays_in_the_callers_group_and_only_it_gets_a_signal,
        ctrl_z_stops_the_parent_too_and_fg_continues_both,
        a_command_stopped_past_its_deadline_does_no_more_work,
        continuing_the_parent_alone_continues_the_command;
}

fn main() -> ExitCode {
    play_or_test(std::env::args().skip(1).collect()).into()
}

fn play_or_test(arguments: Vec<String>) -> u8 {
    if arguments.first().is_some_and(|first| first == "--scene") {
        return scene::play(&arguments[1..]);
    }
    let filters = filters(&arguments);
    let is_chosen = |name: &str| filters.is_empty() || filters.iter().any(|it| name.contains(it));
    let chosen: Vec<Test> = TESTS.iter().copied().filter(|(name, _)| is_chosen(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let (ended, ends) = channel();
    for (name, test) in chosen.iter().copied() {
        let ended = ended.clone();
        std::thread::spawn(move || ended.send((name, catch_unwind(test).is_ok())));
    }
    // A test that hangs fails when its time is over. Its processes end with this program.
    let deadline = Instant::now() + 2 * BOUND;
    let mut waits_for: Vec<_> = chosen.iter().map(|(name, _)| *name).collect();
    let mut failed = 0;
    while !waits_for.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((name, passes)) = ends.recv_timeout(left) else { break };
        println!("test {name} ... {}", if passes { "ok" } else { "FAILED" });
        waits_for.retain(|it| *it != name);
        failed += usize::from(!passes);
    }
    waits_for.iter().for_each(|name| println!("test {name} ... FAILED: it does not end"));
    failed += waits_for.len();
    println!("\ntest result: {} passed; {failed} failed", chosen.len() - failed);
    u8::from(failed > 0)
}

/// The arguments that are parts of names, as the usual harness accepts them.
fn filters(arguments: &[String]) -> Vec<&str> {
    const TAKE_A_VALUE: [&str; 5] =
        ["--color", "--format", "--logfile", "--skip", "--test-threads"];
    let mut filters = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if TAKE_A_VALUE.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            filters.push(word.as_str());
        }
    }
    filters
}

/// Waits until `is_so`, for at most [`BOUND`].
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
