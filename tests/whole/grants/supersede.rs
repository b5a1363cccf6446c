//! A newer request supersedes older ones of the same user (`--supersede`, `--group`).

use crate::backend::over_engines;
use crate::world::World;
use crate::world::process::{alive, wait_until};

over_engines! {
    "the request that is superseded belongs to another host":
        only_the_newest_waiter_runs_and_the_others_say_what_superseded_them,
        waiters_of_a_killed_daemon_supersede_nobody_a_second_time,
        a_running_command_is_ended_with_all_that_it_started_before_the_new_one_starts,
        a_holder_that_cannot_be_ended_refuses_the_request_and_leaves_the_waiters;
}

const NEWEST: [&str; 2] = ["--supersede", "waiting"];
const RUNNING: [&str; 2] = ["--supersede", "running"];

#[test]
fn only_the_newest_waiter_runs_and_the_others_say_what_superseded_them() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "d"]);
    let old = world.waiter("d", &NEWEST, &["echo", "old"]);
    let skips = ["run", "-k", "d", "--supersede", "waiting", "-E", "0", "--", "echo", "skipped"];
    let skips = world.canal(skips).spawn();
    let refused = old.end().code(75);
    let by = format!("canal: superseded by pid {} `echo skipped`\n", skips.pid());
    assert_eq!((refused.stdout.as_str(), refused.stderr), ("", by));
    let lease = ["acquire", "d", "--ttl", "1m", "--json", "--supersede", "waiting"];
    let lease = world.canal(lease).spawn();
    assert_eq!(skips.end().code(0).stderr, "");
    let new =
        world.canal(["run", "-k", "d", "--supersede", "waiting", "--", "echo", "new"]).spawn();
    let refused = lease.end().code(75);
    assert!(refused.stdout.contains("\"refused\":\"superseded\""), "{refused:?}");
    let by = format!("superseded by pid {} `echo new`", new.pid());
    assert!(refused.stdout.contains(&by), "{refused:?}");
    holder.finish();
    assert_eq!(new.end().code(0).stdout, "new\n");
    world.until_idle();
}

#[test]
fn history_and_metrics_say_what_was_superseded() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "d"]);
    let old = world.waiter("d", &[], &["echo", "old"]);
    let new = world.canal(["run", "-k", "d", "--supersede", "waiting", "--", "true"]).spawn();
    old.end().code(75);
    holder.finish();
    new.end().code(0);
    wait_until("the history has it", || {
        let history = world.canal(["history", "--json"]).end().code(0).stdout;
        history.contains("\"how\":\"superseded\"")
    });
    let metrics = world.canal(["metrics"]).end().code(0).stdout;
    let counted = "canal_refusals_total{key=\"d\",reason=\"superseded\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn a_group_separates_requests_for_one_key_and_ties_those_for_several() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "d"]);
    let other = world.waiter("d", &["--group", "main"], &["echo", "main"]);
    let plain = world.waiter("d", &[], &["echo", "plain"]);
    let old = world.waiter("d", &["--group", "pr-7"], &["echo", "old"]);
    let of_group = ["--group", "pr-7", "--supersede", "waiting"];
    let run = [&["run", "-k", "e"], &of_group[..], &["--", "echo", "new"]].concat();
    assert_eq!(world.canal(run).end().code(0).stdout, "new\n");
    old.end().code(75);
    holder.finish();
    assert_eq!(other.end().code(0).stdout, "main\n");
    assert_eq!(plain.end().code(0).stdout, "plain\n");
}

#[test]
fn waiters_of_a_killed_daemon_supersede_nobody_a_second_time() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "d"]);
    let newest = world.waiter("d", &NEWEST, &["echo", "newest"]);
    let later = world.waiter("d", &[], &["echo", "later"]);
    world.kill_daemon();
    world.status();
    wait_until("both are back", || world.key("d").waiting == 2);
    holder.finish();
    assert_eq!(newest.end().code(0).stdout, "newest\n");
    assert_eq!(later.end().code(0).stdout, "later\n");
}

#[test]
fn a_running_command_is_ended_with_all_that_it_started_before_the_new_one_starts() {
    let world = World::with_daemon().on_one_host();
    // Its shell and the shell's child ignore SIGTERM, so they end by SIGKILL.
    let deaf = "trap '' TERM; sh -c 'echo $$ >child; while :; do sleep 1; done' & wait; wait";
    let holder = world.canal(["run", "-k", "d", "-j", "2", "-c", deaf]).spawn();
    wait_until("the command has a child", || !world.read("child").is_empty());
    let child: i32 = world.read("child").trim().parse().unwrap();
    let waiter = [&["run", "-k", "d", "-j", "2"], &RUNNING[..]].concat();
    // A slot is free, and still the new command starts last.
    let script = format!("grep -qs 'State:.[RSD]' /proc/{child}/status && echo alive; echo new");
    let new = world.canal([&waiter[..], &["-c", &script]].concat()).end();
    assert_eq!(new.code(0).stdout, "new\n");
    assert!(!alive(child));
    assert_eq!(holder.end().signal, Some(9));
    world.until_idle();
}

#[test]
fn superseding_a_running_command_says_so_and_withdraws_the_waiters_too() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "d"]);
    let old = world.waiter("d", &[], &["echo", "old"]);
    let new = world.canal(["run", "-k", "d", "--supersede", "running", "--", "echo", "new"]);
    let new = new.end().code(0);
    assert_eq!(new.stdout, "new\n");
    let said = format!("canal: sent TERM to pid {} `cat` (", holder.pid());
    assert!(new.stderr.contains(&said) && new.stderr.contains("): superseded"), "{new:?}");
    assert_eq!(holder.end().signal, Some(15));
    old.end().code(75);
}

#[test]
fn a_holder_that_cannot_be_ended_refuses_the_request_and_leaves_the_waiters() {
    let world = World::with_daemon().on_one_host();
    world.canal(["acquire", "d", "--ttl", "1m", "--json"]).end().code(0);
    let waiter = world.waiter("d", &["-w", "1h"], &["true"]);
    let refused = world.canal(["run", "-k", "d", "--supersede", "running", "--", "true"]).end();
    let refused = refused.code(125);
    assert!(refused.stderr.starts_with("canal: a lease has no process to end"), "{refused:?}");
    assert!(refused.stderr.contains("hint: break it with `canal release --force"), "{refused:?}");
    assert_eq!(world.key("d").waiting, 1);
    waiter.signal(nix::sys::signal::Signal::SIGTERM);
    waiter.end();
}

#[test]
fn options_that_contradict_supersede_are_usage_errors() {
    let world = World::new();
    for (args, said) in [
        (&["--supersede", "running", "-n"][..], "--supersede running waits until the command"),
        (&["--supersede", "running", "-w", "0"], "--supersede running waits until the command"),
        (
            &["--supersede", "waiting", "--on", "a,b"],
            "--supersede and --group cannot be used with --on",
        ),
        (&["--group", "g", "--on", "a,b"], "--supersede and --group cannot be used with --on"),
        (&["--supersede", "all"], "`all` is not one of waiting, running"),
        (&["--group", ""], "a group name cannot be empty"),
    ] {
        let args = [&["run", "-k", "d"], args, &["--", "true"]].concat();
        let refused = world.canal(args).end().code(125);
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
}
