//! Kills any process with SIGKILL: no lock has more holders than its size or a dead holder, and
//! waiters continue without help.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::backend::{self, over_engines};
use crate::world::peer::Peer;
use crate::world::process::{
    Proc, alive, children, in_time, runs_another_program, signal, wait_until,
};
use crate::world::record::{Events, recorded};
use crate::world::{World, canal};

over_engines! {
    "the other host learns of a death from the log":
        a_killed_command_frees_its_lock_for_the_next_waiter,
        a_killed_waiter_is_never_granted,
        a_waiter_leaves_the_queue_with_its_killed_supervisor,
        a_supervisor_killed_while_the_lock_is_granted_leaves_a_command_with_the_lock_or_nothing,
        a_holder_and_waiters_killed_at_once_leave_no_hold;
    "the next daemon joins again and reads the log":
        a_killed_daemon_loses_no_hold_and_no_waiter,
        a_wait_keeps_its_time_limit_over_a_restart,
        waiters_start_the_next_daemon,
        a_holder_that_died_while_no_daemon_ran_holds_nothing_afterwards,
        a_waiter_that_died_while_no_daemon_ran_blocks_the_queue_only_briefly;
}

#[test]
fn a_killed_command_frees_its_lock_for_the_next_waiter() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    assert_eq!(holder.kill().signal, Some(9));
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    world.until_idle();
}

#[test]
fn a_killed_waiter_is_never_granted() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let body = recorded(":");
    let dead = world.waiter("x", &[], &["sh", "-c", &body, "sh", "dead"]);
    let next = world.waiter("x", &[], &["sh", "-c", &body, "sh", "next"]);
    dead.kill();
    holder.finish();
    next.end().code(0);
    assert_eq!(Events::of(&world).started(), ["next"]);
    world.until_idle();
}

/// The child of the supervisor `run`: it waits for the lock and becomes the command.
#[track_caller]
fn child_of(run: &Proc) -> i32 {
    let supervisor = run.child.id().cast_signed();
    wait_until("the supervisor has a child", || !children(supervisor).is_empty());
    children(supervisor)[0]
}

#[test]
fn a_waiter_leaves_the_queue_with_its_killed_supervisor() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    // Over an engine, every command has a supervisor, and there is no jobserver.
    let last = if backend::is_engine() { &[][..] } else { &["--max-run", "60", "--jobserver"] };
    for options in [&["--max-run", "60"][..], &["--max-run", "60", "--with-children"], last] {
        let waiter = world.waiter("x", options, &["echo", "ran"]);
        let supervisor = waiter.child.id().cast_signed();
        let children = children(supervisor);
        signal(supervisor, Signal::SIGKILL);
        let ended = waiter.end();
        assert_eq!((ended.signal, ended.stdout.as_str()), (Some(9), ""), "{options:?}");
        wait_until("its child has ended", || !children.iter().any(|pid| alive(*pid)));
        world.until_waiting("x", 0);
    }
    holder.finish().code(0);
    world.until_idle();
}

#[test]
fn a_supervisor_killed_while_the_lock_is_granted_leaves_a_command_with_the_lock_or_nothing() {
    let world = World::with_daemon();
    for round in 0..24u32 {
        let mut holder = world.holder(&["-k", "x"]);
        let waiter = world.waiter("x", &["--max-run", "60"], &["sleep", "60"]);
        let child = child_of(&waiter);
        drop(holder.child.stdin.take());
        // Vary the time of the kill, from before the release until after the command has started.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 500));
        signal(waiter.child.id().cast_signed(), Signal::SIGKILL);
        holder.end().code(0);
        waiter.end();
        // The `exe` link of a process that is about to end cannot be read.
        let runs = || {
            let program = fs::read_link(format!("/proc/{child}/exe"));
            program.is_ok_and(|program| program != canal())
        };
        wait_until("the child has ended or runs the command", || !alive(child) || runs());
        if runs() {
            let holders: Vec<u32> = world.key("x").holders.iter().map(|it| it.pid).collect();
            assert_eq!(holders, [child.cast_unsigned()], "round {round}");
            signal(child, Signal::SIGKILL);
        }
        world.until_idle();
    }
}

#[test]
fn a_holder_and_waiters_killed_at_once_leave_no_hold() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiters: Vec<Proc> = (0..10).map(|_| world.waiter("x", &[], &["sleep", "60"])).collect();
    for waiter in waiters.iter().skip(1) {
        waiter.signal(Signal::SIGKILL);
    }
    holder.signal(Signal::SIGKILL);
    let first = waiters[0].pid().cast_unsigned();
    wait_until("the one that was spared holds it", || {
        let key = world.key("x");
        key.waiting == 0 && key.holders.iter().map(|h| h.pid).eq([first])
    });
}

/// Starts a holder with four waiters and a holder of another lock, then kills the daemon. All of
/// them must continue.
pub(crate) fn the_daemon_is_killed(world: &World, times: u32) {
    let holder = world.holder(&["-k", "x"]);
    let token = world.key("x").holders[0].token;
    let other = world.holder(&["-k", "y=2x1"]);
    let body = recorded("sleep 0.05");
    let names = ["a", "b", "c", "d"];
    let waiters: Vec<Proc> =
        names.map(|name| world.waiter("x", &[], &["sh", "-c", &body, "sh", name])).into();
    for _ in 0..times {
        let pid = world.kill_daemon();
        assert_ne!(world.daemon_pid(), pid, "a new daemon answers");
    }
    world.until_waiting("x", 4);
    let key = world.key("x");
    assert_eq!((key.held, key.holders[0].token), (1, token), "the hold is the one it was");
    let taken = world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert!(taken.stderr.contains(&holder.pid_text()), "{taken:?}");
    assert_eq!(world.held("y"), 1);
    holder.finish().code(0);
    for waiter in waiters {
        waiter.end().code(0);
    }
    let events = Events::of(world);
    assert_eq!(events.started(), names, "the queue is the one it was");
    assert_eq!(events.most_at_once(), 1);
    other.finish().code(0);
    world.until_idle();
    let acquired = world.canal(["run", "-k", "x", "-c", "echo $CANAL_TOKEN"]).end().code(0);
    assert!(acquired.stdout.trim().parse::<u64>().unwrap() > token, "a token was used again");
}

#[test]
fn a_killed_daemon_loses_no_hold_and_no_waiter() {
    the_daemon_is_killed(&World::new(), 1);
}

#[test]
fn a_daemon_killed_three_times_in_a_row_loses_no_hold_and_no_waiter() {
    the_daemon_is_killed(&World::new(), 3);
}

#[test]
fn a_wait_keeps_its_time_limit_over_a_restart() {
    in_time(Duration::from_secs(2), |wait| {
        let world = World::with_daemon();
        let holder = world.holder(&["-k", "x"]);
        let begun = Instant::now();
        let seconds = wait.as_secs().to_string();
        let waiter = world.canal(["run", "-w", &seconds, "-k", "x", "--", "true"]).spawn();
        wait_until("it waits", || world.key("x").waiting == 1 || begun.elapsed() > wait);
        world.kill_daemon();
        waiter.end().code(75);
        let took = begun.elapsed();
        assert!(took >= wait, "{took:?}");
        holder.finish();
        (took < 3 * wait).then_some(())
    });
}

#[test]
fn waiters_start_the_next_daemon() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    let pid = world.kill_daemon_quietly();
    // From here on only the waiter calls the daemon; the test only watches the socket.
    wait_until("another daemon has the waiter again", || {
        world.look().is_some_and(|s| {
            i32::try_from(s.daemon.pid) != Ok(pid) && s.keys.iter().any(|k| k.waiting == 1)
        })
    });
    world.daemons_return();
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}

#[test]
fn a_holder_that_died_while_no_daemon_ran_holds_nothing_afterwards() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let living = world.holder(&["-k", "y"]);
    world.kill_daemon_quietly();
    holder.kill();
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(75);
    living.finish();
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);
}

#[test]
fn a_waiter_that_died_while_no_daemon_ran_blocks_the_queue_only_briefly() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let dead = world.waiter("x", &[], &["true"]);
    dead.stop();
    world.kill_daemon_quietly();
    dead.kill();
    world.daemons_return();
    holder.finish();
    world.canal(["run", "-w", "120", "-k", "x", "--", "true"]).end().code(0);
    world.until_idle();
}

#[test]
fn a_daemon_killed_with_full_sockets_loses_nothing() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    // Peers that keep calling and never read the answers.
    let mut mute: Vec<Peer> = (0..3).map(|_| Peer::connect(&world)).collect();
    for peer in &mut mute {
        for _ in 0..200 {
            if peer.send("Status", &Value::Null, false, None).is_none() {
                break;
            }
        }
    }
    let pid = world.kill_daemon_quietly();
    wait_until("another daemon answers", || {
        world.look().is_some_and(|s| i32::try_from(s.daemon.pid) != Ok(pid))
    });
    world.daemons_return();
    assert_eq!(world.held("x"), 1);
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}

#[test]
fn a_command_outlives_the_killed_parent_of_its_limited_run_and_keeps_its_lock() {
    let world = World::with_daemon();
    let parent = world.canal(["run", "-k", "x", "--max-run", "60", "--", "sleep", "600"]).spawn();
    world.until_held("x", 1);
    let command = world.key("x").holders[0].pid.cast_signed();
    // Over an engine a command that has not started ends with its parent.
    wait_until("its command runs", || runs_another_program(command));
    let stays = parent.child.id().cast_signed();
    assert_ne!(command, stays, "the owner is the command, not the parent");
    assert_eq!(children(stays), [command]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    signal(stays, Signal::SIGKILL);
    wait_until("the parent is dead", || !alive(stays));
    assert!(alive(command));
    let key = world.key("x");
    assert_eq!((key.held, key.waiting), (1, 1));
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    signal(command, Signal::SIGKILL);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    world.until_idle();
}

#[test]
fn a_command_outlives_its_killed_shell_and_keeps_its_lock() {
    let world = World::with_daemon();
    let shell = world.sh("canal run -k x -- cat; :").stdin(Stdio::piped()).spawn();
    world.until_held("x", 1);
    let command = world.key("x").holders[0].pid.cast_signed();
    assert_ne!(command, shell.pid());
    shell.signal(Signal::SIGKILL);
    wait_until("the shell is dead", || !alive(shell.pid()));
    assert!(alive(command));
    assert_eq!(world.held("x"), 1);
    // Its standard input ends with the pipe.
    drop(shell);
    world.until_idle();
}

#[test]
fn the_parent_of_a_limited_run_can_be_killed_while_its_child_waits() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let body = recorded(":");
    let limited = world.waiter("x", &["--max-run", "60"], &["sh", "-c", &body, "sh", "limited"]);
    let next = world.waiter("x", &[], &["sh", "-c", &body, "sh", "next"]);
    signal(limited.child.id().cast_signed(), Signal::SIGKILL);
    limited.end();
    holder.finish();
    next.end().code(0);
    let events = Events::of(&world);
    assert_eq!(events.most_at_once(), 1);
    assert_eq!(events.started().last(), Some(&"next"));
    world.until_idle();
}
