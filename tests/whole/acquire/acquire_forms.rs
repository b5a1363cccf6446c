//! `canal acquire` in each form that scripts use: the lock belongs to the process that the answer
//! names, or to no process.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use canal::sys::pidfd::Pidfd;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::backend::over_engines;
use crate::world::World;
use crate::world::peer::Peer;
use crate::world::process::{Proc, installed_or_skip, root_or_skip, wait_until};

over_engines! {
    "the request reaches the log before the answer reaches the client":
        an_acquire_blocked_on_its_output_survives_a_restart,
        a_grant_that_is_not_confirmed_is_released_with_the_connection;
    "the other host learns of a death from the log":
        a_killed_script_frees_its_locks;
}

/// Runs a script that acquires `x`, writes the answer to the file `answer` and then reads its
/// standard input. Checks that the answer names the script as the owner, and that the script holds
/// the lock until it ends.
fn held_by_the_script(world: &World, shell: &str, acquire: &str) {
    for earlier in ["answer", "gone-on"] {
        let _ = fs::remove_file(world.path("work").join(earlier));
    }
    let script = format!("{acquire}\n[ -s answer ] || exit 9\necho go >gone-on\nread line\n:");
    let script = world.program(shell, ["-c", &script]).stdin(Stdio::piped()).spawn();
    wait_until("the script goes on", || !world.read("gone-on").is_empty());
    let answer: Value = serde_json::from_str(&world.read("answer")).unwrap();
    assert_eq!(answer["owner"]["pid"], script.pid(), "{shell}: {acquire}");
    assert_eq!(answer["keys"][0]["key"], "x");
    let key = world.key("x");
    assert_eq!(key.held, 1, "{shell}: {acquire}");
    assert_eq!(key.holders[0].pid.cast_signed(), script.pid());
    assert_eq!(answer["token"], key.holders[0].token);
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    script.finish();
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
}

#[test]
fn with_a_pid_the_script_owns_it_in_every_form() {
    let world = World::with_daemon();
    for shell in ["sh", "bash", "zsh"] {
        if !installed_or_skip(shell, "the forms of canal acquire in this shell") {
            continue;
        }
        for acquire in [
            "canal acquire --json --pid $$ -k x >answer",
            "canal acquire --json --pid $$ -k x -n >answer || exit",
            "answer=$(canal acquire --json --pid $$ -k x); echo \"$answer\" >answer",
            "canal acquire --json --pid $$ -k x | cat >answer",
            "(canal acquire --json --pid $$ -k x >answer)",
            "timeout 20 canal acquire --json --pid $$ -k x >answer",
            "answer=`timeout 20 canal acquire --json --pid $$ -k x | cat`; echo $answer >answer",
            "canal acquire --json --pid $$ -k x >answer & wait",
        ] {
            held_by_the_script(&world, shell, acquire);
        }
    }
}

#[test]
fn under_sudo_the_script_owns_it() {
    if !root_or_skip("sudo without a password") || !installed_or_skip("sudo", "sudo") {
        return;
    }
    // sudo drops CANAL_SOCKET and may change PATH.
    let acquire = r#"sudo -n "$(command -v canal)" --socket "$CANAL_SOCKET" acquire --json --pid $$ -k x >answer"#;
    held_by_the_script(&World::with_daemon(), "sh", acquire);
}

#[test]
fn without_a_pid_the_lock_belongs_to_the_process_in_the_answer_or_to_none() {
    let world = World::with_daemon();
    for (n, acquire) in [
        "canal acquire -q --json -k K >answer",
        "answer=$(canal acquire -q --json -k K); echo \"$answer\" >answer",
        "answer=$(true; canal acquire -q --json -k K; true); echo \"$answer\" >answer",
        "canal acquire -q --json -k K | cat >answer",
        "timeout 20 canal acquire -q --json -k K >answer",
        "(canal acquire -q --json -k K; true) >answer",
    ]
    .iter()
    .enumerate()
    {
        let key = format!("x{n}");
        let script =
            format!("rm -f answer; {}; echo {n} >on; read line", acquire.replace('K', &key));
        let script = world.sh(&script).stdin(Stdio::piped()).spawn();
        wait_until("the script goes on", || world.read("on") == format!("{n}\n"));
        let answer: Value = serde_json::from_str(&world.read("answer")).unwrap();
        let owner = i32::try_from(answer["owner"]["pid"].as_i64().unwrap()).unwrap();
        if owner == script.pid() {
            assert_eq!(world.key(&key).holders[0].pid.cast_signed(), owner, "{acquire}");
        } else {
            // The owner that the answer named ended with its statement, so no process holds the
            // lock.
            world.until_held(&key, 0);
        }
        script.finish();
        world.until_held(&key, 0);
    }
}

#[test]
fn without_a_pid_canal_prints_the_owner() {
    let world = World::with_daemon();
    let ended = world.sh("canal acquire -k x; echo $$").end().code(0);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    assert!(ended.stderr.contains(ended.stdout.trim()), "{ended:?}");
    assert_eq!(world.sh("canal acquire -q -k x; :").end().code(0).stderr, "");
}

#[test]
fn a_refusal_is_printed_as_json() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let ended = world.sh("canal acquire --json -n -k x --pid $$").end().code(75);
    let refusal = ended.json();
    assert_eq!(refusal["refused"], "full");
    assert_eq!(refusal["holders"][0]["pid"], holder.pid());
    let late = world.sh("canal acquire --json -w 0.1 -k x --pid $$").end().code(75);
    assert_eq!(late.json()["refused"], "timeout");
}

#[test]
fn an_acquire_killed_before_it_printed_the_grant_holds_nothing() {
    let world = World::with_daemon();
    let owner = world.program("sleep", ["600"]).spawn();
    let (read, write) = full_pipe();
    let pid = owner.pid_text();
    let acquire = world.canal(["acquire", "--json", "-k", "x", "--pid", &pid]);
    let acquire = acquire.stdout(write).spawn();
    // It got the lock but cannot print the answer.
    world.until_held("x", 1);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    acquire.kill();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    drop(read);
}

#[test]
fn an_acquire_blocked_on_its_output_survives_a_restart() {
    let world = World::with_daemon();
    let owner = world.program("sleep", ["600"]).spawn();
    let (mut read, write) = full_pipe();
    let pid = owner.pid_text();
    let acquire = world.canal(["acquire", "--json", "-k", "x", "--pid", &pid]);
    let acquire = acquire.stdout(write).spawn();
    world.until_held("x", 1);
    let token = world.key("x").holders[0].token;
    world.kill_daemon();
    // Empty the pipe.
    let mut said = String::new();
    wait_until("the answer arrives", || {
        let mut piece = [0; 4096];
        if let Ok(n) = read.read(&mut piece) {
            said += &String::from_utf8_lossy(&piece[..n]);
        }
        said.contains("token")
    });
    acquire.end().code(0);
    let key = world.key("x");
    assert_eq!((key.held, key.holders[0].token), (1, token));
    assert_eq!(key.holders[0].pid.cast_signed(), owner.pid());
}

/// A full pipe whose reading end does not block.
fn full_pipe() -> (fs::File, fs::File) {
    let (read, write) = std::io::pipe().unwrap();
    let reopen = |fd: &dyn std::os::fd::AsRawFd, options: &mut OpenOptions| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        options.custom_flags(libc::O_NONBLOCK).open(path).unwrap()
    };
    let mut filling = reopen(&write, OpenOptions::new().write(true));
    while filling.write(&[b' '; 4096]).is_ok() {}
    while filling.write(b" ").is_ok() {}
    let read_on = reopen(&read, OpenOptions::new().read(true));
    drop(read);
    (read_on, std::os::fd::OwnedFd::from(write).into())
}

#[test]
fn an_answer_that_cannot_be_printed_acquires_nothing() {
    let world = World::with_daemon();
    let owner = world.program("sleep", ["600"]).spawn();
    for redirection in [">/dev/full", ">&-"] {
        let script = format!("canal acquire --json -k x --pid {} {redirection}", owner.pid());
        let ended = world.sh(&script).end().code(125);
        assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
        world.until_held("x", 0);
    }
}

#[test]
fn a_grant_that_is_not_confirmed_is_released_with_the_connection() {
    let world = World::with_daemon();
    let owner = world.program("sleep", ["600"]).spawn();
    let pidfd = Pidfd::open(owner.child.id()).unwrap();
    let items = json!([{ "key": "x", "slots": 1 }]);
    let mut peer = Peer::connect(&world);
    peer.ask(1, &items, false, Some(&pidfd));
    let grant = peer.reply().unwrap();
    assert_eq!(grant["parameters"]["owner"]["pid"], owner.pid(), "{grant}");
    assert_eq!(world.held("x"), 1);
    drop(peer);
    world.until_held("x", 0);

    let mut peer = Peer::connect(&world);
    peer.ask(2, &items, false, Some(&pidfd));
    peer.reply().unwrap();
    let confirmed = peer.call("Confirm", &json!({ "tag": format!("{:032x}", 2) })).unwrap();
    assert!(confirmed.get("error").is_none(), "{confirmed}");
    drop(peer);
    let again = world.canal(["run", "-n", "-k", "x", "--", "true"]).end();
    assert_eq!(again.code, Some(75), "a confirmed grant stays");
    owner.kill();
    world.until_held("x", 0);
}

#[test]
fn a_waiter_whose_owner_dies_leaves_the_queue() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["600"]).spawn();
    let pid = owner.pid_text();
    let acquire = world.canal(["acquire", "-k", "x", "--pid", &pid]).spawn();
    world.until_waiting("x", 1);
    owner.kill();
    let ended = acquire.end().code(125);
    assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
    assert_eq!(world.key("x").waiting, 0);
    holder.finish();
    world.until_idle();
}

#[test]
fn a_killed_waiting_acquire_leaves_the_queue() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let owner = world.program("sleep", ["600"]).spawn();
    let pid = owner.pid_text();
    let acquire = world.canal(["acquire", "-k", "x", "--pid", &pid]).spawn();
    world.until_waiting("x", 1);
    acquire.kill();
    world.until_waiting("x", 0);
    holder.finish();
    world.until_idle();
}

#[test]
fn release_releases_a_lock() {
    let world = World::with_daemon();
    let script = "canal acquire -q --pid $$ -k x && canal acquire -q --pid $$ -k y=2x1 &&
        canal acquire -q --pid $$ -k y=2x1 && canal release --pid $$ x &&
        canal run -n -k x -- true && canal release --pid $$ y && canal status --json";
    let script = world.sh(script).end().code(0);
    let held = &script.json()["keys"];
    assert_eq!(held[0]["key"], "y");
    assert_eq!(held[0]["held"], 1, "release gives back the latest hold, not all of them");
    let all = "canal acquire -q -k a --pid $$; canal acquire -q -k b --pid $$; canal release --all --pid $$
        canal run -n -k a -k b -- true";
    world.sh(all).end().code(0);
    world.until_idle();
}

#[test]
fn a_release_by_force_needs_the_token_and_prints_the_broken_hold() {
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let token = world.key("x").holders[0].token.to_string();
    world.canal(["release", "--force", "--token", "1"]).end().code(125);
    assert_eq!(world.held("x"), 1);
    let forced = world.canal(["release", "--force", "--token", &token]).end().code(0);
    let said = forced.stdout + &forced.stderr;
    assert!(said.contains(&holder.pid_text()), "{said}");
    assert_eq!(world.held("x"), 0);
}

#[test]
fn the_log_says_what_was_released_by_force_and_of_which_process() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "x", "-k", "y/1"]);
    let token = world.key("x").holders[0].token.to_string();
    world.canal(["release", "--force", "--token", &token]).end().code(0);
    let log = fs::read_to_string(world.runtime().join("daemon.log")).unwrap();
    let line = log.lines().find(|line| line.contains("released by force")).expect("a line");
    let pid = format!("holder=pid {} ", holder.pid());
    let token = format!("token={token} ");
    for part in ["keys=x, y/1 ", &token, &pid, "holder_uid=", "command=\"cat\" ", "by_uid="] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_killed_script_frees_its_locks() {
    let world = World::with_daemon();
    let script = world.sh("canal acquire -q --pid $$ -k x; read line").stdin(Stdio::piped());
    let script: Proc = script.spawn();
    world.until_held("x", 1);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    script.signal(Signal::SIGKILL);
    assert_eq!(waiter.end().code(0).stdout, "on\n");
}
