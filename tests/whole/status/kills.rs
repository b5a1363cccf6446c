//! `canal kill` ends the processes that it has shown, and nothing else.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::lease::Lease;
use crate::namespace::privately;
use crate::terminal::Terminal;
use crate::world::peer::Peer;
use crate::world::process::{alive, wait_until};
use crate::world::{World, journal_only};

#[test]
fn a_holder_is_shown_and_then_ended_and_the_next_waiter_has_its_turn() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db"]);
    let waiter = world.waiter("db", &[], &["echo", "on"]);
    // Without a terminal it kills nothing.
    let refused = world.canal(["kill", "db"]).end().code(125);
    let shown = format!("canal: about to send TERM to pid {} `cat` (", holder.pid());
    assert!(refused.stderr.starts_with(&shown), "{refused:?}");
    assert!(refused.stderr.contains(", which has held db since "), "{refused:?}");
    assert!(
        refused.stderr.ends_with(
            "canal: signalled no process: there is no terminal to ask on\n\
             hint: run `canal kill --yes db` to skip the question\n"
        ),
        "{refused:?}"
    );
    let work = world.path("work").canonicalize().unwrap();
    assert!(refused.stderr.contains(&format!(", in {}\n", work.display())), "{refused:?}");
    assert_eq!(world.held("db"), 1);
    let unseen = world.canal(["kill", "-q", "db"]).end().code(125).stderr;
    assert!(unseen.starts_with("canal: -q hides the question"), "{unseen}");
    let done = world.canal(["kill", "--yes", "db"]).end().code(0);
    assert!(done.stderr.starts_with(&shown), "{done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert_eq!(holder.end().signal, Some(15));
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}

#[test]
fn a_terminal_is_asked_and_a_no_ends_nothing() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db"]);
    for (answer, code) in [("n\n", 125), ("\n", 125), ("y\n", 0)] {
        assert!(alive(holder.pid()));
        let mut terminal = Terminal::start(&world, &["canal", "kill", "--signal", "INT", "db"]);
        terminal.until("about to send INT to pid");
        terminal.until("end 1 process? [y/N] ");
        terminal.keys(answer);
        let (ended, seen) = terminal.end();
        assert_eq!(ended.code, Some(code), "{answer:?}: {seen}");
    }
    assert_eq!(holder.end().signal, Some(2));
}

#[test]
fn waiters_are_ended_by_their_number_or_with_their_key() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db"]);
    let first = world.waiter("db", &[], &["true"]);
    let second = world.waiter("db", &[], &["true"]);
    world.canal(["kill", "--yes", "--pid", &first.pid_text()]).end().code(0);
    assert_eq!(first.end().signal, Some(15));
    world.until_waiting("db", 1);
    // Over an engine the pid of a command is known only while the command lives.
    let pids = (second.pid().into(), holder.pid().into());
    let told = world.canal(["kill", "--yes", "--json", "--waiters", "db"]).end().code(0).json();
    assert_eq!(told["signal"], "TERM");
    let pid = |at: usize| told["signalled"][at]["party"]["pid"].clone();
    assert_eq!((pid(0), pid(1)), pids, "{told}");
    assert!(told["signalled"][0]["request"].is_u64() && told["signalled"][1]["token"].is_u64());
    assert_eq!(holder.end().signal, Some(15));
    assert_eq!(second.end().signal, Some(15));
    world.until_idle();
    let nobody = world.canal(["kill", "--yes", "db"]).end().code(125);
    assert!(nobody.stderr.starts_with("canal: no one holds `db`\nhint: "), "{nobody:?}");
    let nothing = world.canal(["kill", "--yes", "--pid", "4194304"]).end().code(125);
    assert!(nothing.stderr.contains("neither holds nor waits for a lock here"), "{nothing:?}");
}

/// Waits until a script under `world` has written the pid of a process into its folder.
fn written_pid(world: &World, name: &str) -> i32 {
    wait_until(&format!("{name} is written"), || world.read(name).ends_with('\n'));
    world.read(name).trim().parse().unwrap()
}

#[test]
fn a_holder_that_ignores_the_signal_is_named_and_ends_by_kill_after() {
    let world = World::with_daemon().on_one_host();
    let script = "trap '' TERM; echo $$ >deaf; while :; do sleep 0.05; done";
    let holder = world.canal(["run", "-k", "db", "--note", "release 4.1", "-c", script]).spawn();
    let deaf = written_pid(&world, "deaf");
    let left = world.canal(["kill", "--yes", "--json", "db"]).end().code(125);
    assert!(left.stderr.contains(", note: release 4.1"), "{left:?}");
    let line = format!("canal: pid {deaf} `sh -c trap '' TERM; ");
    let named: Vec<&str> = left.stderr.lines().filter(|it| it.starts_with(&line)).collect();
    assert!(
        named.len() == 1 && named[0].ends_with(" is still running, 10s after TERM"),
        "{left:?}"
    );
    assert!(left.stderr.contains("\nhint: kill the remaining processes with"), "{left:?}");
    let told: serde_json::Value = serde_json::from_str(&left.stdout).unwrap();
    assert_eq!(told["signalled"][0]["note"], "release 4.1");
    assert_eq!(told["left"][0]["pid"], deaf);
    assert!(alive(deaf) && world.held("db") == 1);
    let killed = world.canal(["kill", "--yes", "--kill-after", "0.1", "db"]).end().code(0);
    assert!(killed.stderr.contains(&format!("canal: killed pid {deaf} `")), "{killed:?}");
    assert!(!alive(deaf));
    assert_eq!(holder.end().signal, Some(9));
    let wrong =
        world.canal(["kill", "--kill-after", "1", "--signal", "USR1", "db"]).end().code(125);
    assert!(
        wrong.stderr.contains("--kill-after needs a signal that ends processes, and USR1 does not"),
        "{wrong:?}"
    );
}

#[test]
fn what_a_holder_has_started_ends_with_it_also_an_orphan_of_its_group() {
    let world = World::with_daemon().on_one_host();
    // A child, a child in its own session that ignores TERM, and an orphan in the group.
    let script = "sleep 600 & echo $! >child
        (trap '' TERM; exec setsid -f sh -c 'echo $$ >left; exec sleep 600')
        (trap '' TERM; setsid sleep 600 & echo $! >deaf; wait) &
        sh -c 'sleep 600 & echo $! >orphan'
        echo $$ >top; cat";
    let session = world.program("setsid", ["-w", "canal", "run", "-k", "db", "-c", script]);
    let holder = session.stdin(std::process::Stdio::piped()).spawn();
    let [top, child, deaf, orphan, left] =
        ["top", "child", "deaf", "orphan", "left"].map(|name| written_pid(&world, name));
    let done = world.canal(["kill", "--yes", "--kill-after", "0.1", "db"]).end().code(0);
    assert!(done.stderr.contains(" processes that it started\n"), "{done:?}");
    for pid in [top, child, deaf, orphan] {
        assert!(!alive(pid), "{pid}: {done:?}");
    }
    // It has left its parent and its group, so nothing leads to it.
    assert!(alive(left));
    crate::world::process::signal(left, Signal::SIGKILL);
    holder.end();
    world.until_idle();
}

#[test]
fn a_signal_for_one_process_reaches_only_that_process() {
    let world = World::with_daemon().on_one_host();
    let script = "trap 'echo got >got' USR1; sleep 600 & echo $! >child; echo ready >ready
        while ! wait; do :; done";
    let holder = world.canal(["run", "-k", "db", "-c", script]).spawn();
    let child = written_pid(&world, "child");
    wait_until("it is ready", || world.read("ready") == "ready\n");
    world.canal(["kill", "--yes", "--signal", "USR1", "db"]).end().code(0);
    wait_until("the holder got it", || world.read("got") == "got\n");
    assert!(alive(child) && alive(holder.pid()));
    world.canal(["kill", "--yes", "db"]).end().code(0);
    assert!(!alive(child));
    holder.end();
}

#[test]
fn what_has_changed_since_it_was_shown_is_not_signalled() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db"]);
    let waiter = world.canal(["run", "-k", "db", "--", "cat"]).stdin(std::process::Stdio::piped());
    let waiter = waiter.spawn();
    world.until_waiting("db", 1);
    let mut peer = Peer::connect(&world);
    let targets = |peer: &mut Peer| {
        let reply = peer.call("WouldKill", &json!({ "key": "db", "waiters": true })).unwrap();
        reply["parameters"]["targets"].as_array().unwrap().clone()
    };
    let shown = targets(&mut peer);
    assert_eq!(shown.len(), 2);
    let (token, request) = (&shown[0]["token"], &shown[1]["request"]);
    let kill = |peer: &mut Peer, what: serde_json::Value| {
        let reply = peer.call("Kill", &what).unwrap();
        let message = reply["parameters"]["message"].as_str().unwrap_or_default().to_owned();
        (reply["error"].as_str().unwrap_or_default().to_owned(), message)
    };
    holder.finish();
    wait_until("the waiter holds", || world.key("db").waiting == 0);
    let (error, message) = kill(&mut peer, json!({ "token": token, "signal": 9 }));
    assert_eq!(error, "io.canal.Lock.NotHeld");
    assert!(message.contains(", so canal signalled no process"), "{message}");
    let (error, message) = kill(&mut peer, json!({ "request": request, "signal": 9 }));
    assert_eq!(error, "io.canal.Lock.NotHeld");
    assert_eq!(message, "the request has been granted, so canal signalled no process");
    assert!(alive(waiter.pid()));
    for wrong in [json!({ "signal": 9 }), json!({ "token": 1, "request": 1, "signal": 9 })] {
        assert_eq!(kill(&mut peer, wrong).0, "io.canal.Lock.BadRequest");
    }
    let now = targets(&mut peer)[0]["token"].clone();
    for signal in [0, -9, 99] {
        let (error, _) = kill(&mut peer, json!({ "token": now, "signal": signal }));
        assert_eq!(error, "io.canal.Lock.BadRequest", "{signal}");
    }
    assert!(alive(waiter.pid()));
    assert_eq!(kill(&mut peer, json!({ "token": now, "signal": 9 })).0, "");
    assert_eq!(waiter.end().signal, Some(9));
}

#[test]
fn a_lease_and_what_an_ended_process_left_are_refused_each_with_its_reason() {
    let world = World::with_daemon().on_one_host();
    let lease = Lease::take(&world, "10m", &["-k", "leased"]);
    let refused = world.canal(["kill", "--yes", "leased"]).end().code(125);
    assert!(refused.stderr.contains("canal: a lease has no process to end\n"), "{refused:?}");
    let hint = format!("hint: break it with `canal release --force --token {}`\n", lease.token);
    assert!(refused.stderr.ends_with(&hint), "{refused:?}");
    lease.release(&world).code(0);

    let leave = "setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >pid";
    let run = world.canal(["run", "--with-children", "-k", "left", "-c", leave]).spawn();
    wait_until("only the process that was started is left", || {
        world.key("left").holders.first().is_some_and(|h| h.state.as_deref() == Some("children"))
    });
    let left = world.read("pid").trim().to_owned();
    let refused = world.canal(["kill", "--yes", "left"]).end().code(125);
    assert!(refused.stderr.contains("has ended, but processes that it started keep the lock"));
    let shown = world.canal(["status", "left"]).end().code(0).stdout;
    let kept = shown.lines().find(|line| line.contains("kept by pid ")).unwrap();
    assert!(kept.contains(&format!("pid {left}")), "{shown}");
    let told = world.canal(["status", "--json", "left"]).end().code(0).json();
    let pids = &told["keys"][0]["holders"][0]["children"]["pids"];
    assert!(pids.as_array().unwrap().contains(&left.parse::<u32>().unwrap().into()), "{told}");
    crate::world::process::signal(left.parse().unwrap(), Signal::SIGKILL);
    run.end();
    world.until_idle();
}

#[test]
fn only_the_user_of_a_process_and_root_may_end_it() {
    if journal_only("the daemon runs in a mount namespace of its own, which has no engine") {
        return;
    }
    let world = World::new();
    let script = r#"
        cp /etc/passwd /mnt/passwd
        mount -t tmpfs -o mode=755 tmpfs /etc
        cp /mnt/passwd /etc/passwd
        printf 'root:x:0:\nops:x:7001:\n' >/etc/group
        mkdir -m 755 /etc/canal /run/canal
        printf '[[permission]]\ngroups = ["ops"]\nmay = ["force"]\n' >/etc/canal/canal.toml
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        ops() { setpriv --reuid 20001 --regid 7001 --clear-groups "$@"; }
        other() { setpriv --reuid 20002 --regid 20002 --clear-groups "$@"; }
        held() { until_true sh -c "canal status --json $1 | grep -q '\"held\": *1'"; }
        other canal run -k x -- sleep 600 &
        held x
        ops canal kill --yes x; echo "ops $?"
        ops canal status x | grep -c sleep; other canal status x | grep -c 'in /'
        canal status --user 20002 | grep -c '^x '; other canal status --mine | grep -c '^x '
        ops canal status --mine
        other canal kill --yes x; echo "other $?"
        until_true sh -c "! canal status --json x | grep -q '\"held\": *1'"
        other canal run -k x -- sleep 600 &
        held x
        canal kill -y -s KILL x; echo "root $?"
        cp "$(command -v setpriv)" /etc/become; chmod 4755 /etc/become
        other canal run -k y -- sh -c '/etc/become --reuid 0 --regid 0 --clear-groups sleep 700; :' &
        until_true sh -c "pgrep -x -f 'sleep 700' >/mnt/sleep"
        other canal kill --yes --kill-after 0.1 y; echo "other's root $?"
        kill -0 "$(cat /mnt/sleep)"; echo "lives $?"; kill "$(cat /mnt/sleep)"
        until_true sh -c "! canal status --json x | grep -q '\"held\": *1'"
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let said = "ops 125\n0\n1\n1\n1\nno lock matches; run `canal status` to see \
                all locks\nother 0\nroot 0\n\
         other's root 125\nlives 0\n";
    assert_eq!(ended.stdout, said, "{ended:?}");
    let denied = "belongs to uid 20002\nhint: end it as that user or as root\n";
    assert!(ended.stderr.contains(denied), "{ended:?}");
    let pid = ended.stderr.split("canal: cannot signal pid ").nth(1).unwrap_or_default();
    assert!(pid.contains(" `sleep 700`: it runs as root\n"), "{ended:?}");
    assert!(ended.stderr.contains(" `sleep 700` is still running\n"), "{ended:?}");
    assert_eq!(ended.stderr.matches("cannot signal pid ").count(), 1, "{ended:?}");
    assert!(!ended.stderr.contains("canal: killed pid "), "{ended:?}");
}

#[test]
fn a_forced_release_says_before_what_it_is_about_to_break() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "db"]);
    let token = world.key("db").holders[0].token.to_string();
    let broken = world.canal(["release", "--force", "--token", &token]).end().code(0);
    let lines: Vec<_> = broken.stderr.lines().collect();
    let who = format!("the hold on db by pid {} `cat` (", holder.pid());
    assert!(lines[0].starts_with(&format!("canal: about to break {who}")), "{broken:?}");
    assert!(lines[1].starts_with(&format!("canal: broke {who}")), "{broken:?}");
    assert!(alive(holder.pid()));
    holder.finish();
}

#[test]
fn a_key_is_enough_to_break_the_hold_of_its_only_holder() {
    let world = World::with_daemon().on_one_host();
    let lease = Lease::take(&world, "10m", &["-k", "db"]);
    // A hold below the key is a separate hold.
    let below = world.holder(&["-k", "db/x"]);
    let asks = world.canal(["release", "--force", "db"]).end().code(125);
    assert!(asks.stderr.contains("canal: about to break the hold on db by a lease"), "{asks:?}");
    let end = "canal: released nothing: there is no terminal to ask on\n\
               hint: run `canal release --force --yes db` to skip the question\n";
    assert!(asks.stderr.ends_with(end), "{asks:?}");
    assert_eq!(world.held("db"), 1);
    let mut terminal = Terminal::start(&world, &["canal", "release", "--force", "db"]);
    terminal.until("break the hold? [y/N] ");
    terminal.keys("y\n");
    assert_eq!(terminal.end().0.code, Some(0));
    lease.until_lost(&world);
    let nobody = world.canal(["release", "--force", "--yes", "db"]).end().code(125);
    assert!(nobody.stderr.starts_with("canal: no one holds `db`\n"), "{nobody:?}");
    below.finish();
    let holders = [world.holder(&["-k", "db", "-j", "2"]), world.holder(&["-k", "db", "-j", "2"])];
    let several = world.canal(["release", "--force", "--yes", "db"]).end().code(125);
    let message = "canal: `db` has 2 holders; choose one with --force --token\n";
    assert!(several.stderr.starts_with(message), "{several:?}");
    assert_eq!(world.held("db"), 2);
    for holder in holders {
        holder.finish();
    }
}

#[test]
fn the_key_of_a_lease_is_not_enough_and_the_handle_is_named() {
    let world = World::with_daemon();
    let lease = Lease::take(&world, "10m", &["-k", "db"]);
    let hint = "hint: a lease holds `db`: release it with --handle or CANAL_HANDLE, or break it \
                with `canal release --force db`\n";
    let refused = world.canal(["release", "db"]).end().code(125);
    assert!(refused.stderr.ends_with(hint), "{refused:?}");
    // The same when the process holds another key.
    let script = "canal release db; echo $?; canal release other";
    let other = world.canal(["run", "-k", "other", "-c", script]).end().code(0);
    assert!(other.stdout.starts_with("125\n") && other.stderr.contains(hint), "{other:?}");
    lease.release(&world).code(0);
    let refused = world.canal(["release", "db"]).end().code(125);
    assert!(
        refused
            .stderr
            .contains("hint: name another process with --pid; without it, canal releases for"),
        "{refused:?}"
    );
}
