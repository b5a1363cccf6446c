//! Nested commands: everything that `canal run` starts belongs to its session, and nothing else
//! does.

use std::process::Stdio;

use crate::backend::{self, over_engines};
use crate::script::{Script, holds, is_free, send_line, until_holds, until_nothing};
use crate::world::World;
use crate::world::process::{installed_or_skip, wait_until};
use crate::world::record::{Events, recorded};

over_engines! {
    "`canal run` stays as a parent, so its command is another process":
        a_process_stays_in_its_session_and_another_session_is_told_its_blockers;
}

/// Runs five children at once, each under `canal run LOCK`; each records its start and end.
fn five_children(lock: &str) -> String {
    let child = recorded("sleep 0.02");
    format!(
        "for i in 1 2 3 4 5; do
            canal run {lock} -- sh -c '{child}' sh $i || echo bad >>bad &
        done; wait"
    )
}

#[test]
fn parallel_children_exclude_each_other_and_never_wait_for_enclosing_commands() {
    let world = World::with_daemon();
    for (outer, inner, most) in [
        ("--write build", "--slots 1 -k build/link", 1),
        ("-k build", "--write build", 1),
        ("--write build", "-k link=3", 3),
        ("-k build=1x1", "--read build", 5),
    ] {
        let body = five_children(inner);
        let args = ["run"].into_iter().chain(outer.split(' ')).chain(["--", "sh", "-c", &*body]);
        world.canal(args).end().code(0);
        assert_eq!(world.read("bad"), "", "{outer} / {inner}");
        let events = Events::of(&world);
        assert_eq!(events.ended(), 5, "{outer} / {inner}");
        assert!(events.most_at_once() <= most, "{outer} / {inner}: {events:?}");
        until_nothing(&world);
        std::fs::remove_file(world.path("work/events")).unwrap();
    }
}

#[test]
fn in_a_parallel_make_one_recipe_links_at_a_time() {
    if !installed_or_skip("make", "recipes of a parallel make") {
        return;
    }
    let world = World::with_daemon();
    let link = recorded("sleep 0.02").replace("$1", "$@");
    let recipes = format!(
        "all: 1 2 3 4 5 6 7 8\n1 2 3 4 5 6 7 8:\n\t@canal run --slots 1 -k link -- sh -c '{link}'\n"
    );
    std::fs::write(world.path("work/Makefile"), recipes).unwrap();
    world.canal(["run", "-k", "build", "--", "make", "-s", "-j8"]).end().code(0);
    let events = Events::of(&world);
    assert_eq!((events.ended(), events.most_at_once()), (8, 1));
    until_nothing(&world);
}

#[test]
fn children_that_read_what_their_parent_writes_run_at_the_same_time() {
    let world = World::with_daemon();
    let child = "echo up >>up; while [ ! -e go ]; do sleep 0.01; done";
    let body = format!("for i in 1 2 3; do canal run --read db/x -- sh -c '{child}' & done; wait");
    let outer = world.canal(["run", "--write", "db", "--", "sh", "-c", &body]).spawn();
    wait_until("three read at once", || world.read("up").lines().count() == 3);
    assert_eq!(world.key("db/x").holders.len(), 3);
    assert!(!is_free(&world, "--read db/x"), "strangers are kept out");
    std::fs::write(world.path("work/go"), "").unwrap();
    outer.end().code(0);
    until_nothing(&world);
}

#[test]
fn a_lock_of_an_enclosing_command_is_granted_at_once() {
    let world = World::with_daemon();
    for chain in [
        "canal run -k build -- canal run -k build -- echo in",
        "canal run -k build -- canal run -n -k build -- echo in",
        "canal run -k build -- sh -c 'canal run -n -k build -- echo in; exit $?'",
        "canal run -k b -j 2 --count 2 -- sh -c 'canal run -n -k b -- sh -c \"canal run -n -k b -- echo in; exit 0\"; exit $?'",
        "canal run --write db -- sh -c 'canal run -n --write db -- echo in; exit $?'",
        "canal run --write db -- sh -c 'canal run -n --read db/x --write db/y -k db -- echo in; exit $?'",
        "canal run --read db -- sh -c 'canal run -n --write db -- echo in; exit $?'",
        "canal run -k db -- sh -c 'canal run -n --write db -- echo in; exit $?'",
        "canal run --write db --max-run 60 -- sh -c 'canal run -n --read db --max-run 60 -- echo in; exit $?'",
        "canal run --write db --with-children -- sh -c 'canal run -n --read db --with-children -- echo in; exit $?'",
        "canal run -k o -- sh -c 'canal acquire --pid $$ --write db; canal run -n --read db -- echo in; exit $?'",
        "canal run -k o -- sh -c 'sh -c \"canal acquire --pid \\$\\$ --write db; canal run -n --read db -- echo in; exit 0\"; exit $?'",
        "canal run --write db/x -- sh -c 'canal run -n --write db -- echo in; exit $?'",
    ] {
        let ended = world.sh(chain).end().code(0);
        assert_eq!((&*ended.stdout, &*ended.stderr), ("in\n", ""), "{chain}");
        until_nothing(&world);
    }
    // Locks of the buckets kind are not re-entrant: each request counts separately.
    world
        .canal(["run", "-k", "c=1x2", "--", "canal", "run", "-n", "-k", "c=1x2", "true"])
        .end()
        .code(0);
    let chain = "canal run -k c=1x1 -- sh -c 'canal run -k c=1x1 -- echo in; exit $?'";
    let ended = world.sh(chain).end().code(75);
    assert!(
        ended.stderr.contains(
            "deadlock: this session already holds `c`, so waiting for it would never end"
        ),
        "{ended:?}"
    );
}

/// The reason is that `canal acquire` cannot change the environment of its script.
#[test]
fn locks_that_a_script_acquired_block_its_commands_unless_it_runs_under_canal() {
    let world = World::with_daemon();
    let script = "canal acquire --pid $$ --write db; canal run -n -q --read db/x -- true; exit $?";
    world.sh(script).end().code(75);
    world.canal(["run", "-k", "o", "--", "sh", "-c", script]).end().code(0);
    until_nothing(&world);
}

#[test]
fn an_older_kernel_tells_nested_commands_from_other_sessions() {
    let world = World::of_linux_5_10();
    world.status();
    let (outer, [session, frame]) = holder_with_frame(&world, "build");
    let cmd = world.canal(["run", "-n", "-k", "build", "--", "true"]);
    cmd.env("CANAL_SESSION", session).env("CANAL_FRAME", frame).end().code(75);
    outer.finish().code(0);
    let mut elder = Script::start(&world, "elder", "--write a -k build", "--write b -k build");
    let mut younger = Script::start(&world, "younger", "--write b", "--write a");
    elder.go_and_wait(&world);
    world.kill_daemon();
    younger.go();
    younger.refused();
    elder.succeeds();
    until_nothing(&world);
}

#[test]
fn a_nested_lock_ends_with_its_command_and_the_outer_lock_stays() {
    let world = World::with_daemon();
    let body = "read go; canal run --write b -k c -- cat; echo inner ended $?; read go";
    let args = ["run", "--write", "a", "--", "sh", "-c", body];
    let mut outer = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, outer.pid(), "a");
    send_line(&mut outer, "go");
    wait_until("the inner one holds", || world.key("b").holders.len() == 1);
    let (a, b) = (world.key("a").holders[0].clone(), world.key("b").holders[0].clone());
    assert_eq!(a.session, b.session, "one session");
    assert_ne!(a.pid, b.pid);
    assert!(!is_free(&world, "--read b") && !is_free(&world, "-k c"));
    crate::world::process::signal(b.pid.cast_signed(), nix::sys::signal::Signal::SIGTERM);
    wait_until("the inner one has ended", || outer.stdout().contains("inner ended 143"));
    // Over an engine, the daemon of another host learns of the end from the log.
    wait_until("the inner lock is free", || is_free(&world, "--write b -k c"));
    assert!(!is_free(&world, "--read a"));
    assert!(holds(&world, outer.pid(), "a"));
    outer.finish();
    until_nothing(&world);
}

#[test]
fn an_inner_command_that_is_left_behind_keeps_only_its_own_lock() {
    let world = World::with_daemon();
    let mut script = Script::doing(&world, "--write a", "--write b", "cat");
    script.go();
    wait_until("the inner one holds", || world.key("b").holders.len() == 1);
    let inner = script.inner_pid();
    script.proc.signal(nix::sys::signal::Signal::SIGKILL);
    wait_until("the outer lock is free", || is_free(&world, "--write a"));
    assert!(!is_free(&world, "--read b"), "its command runs");
    crate::world::process::signal(inner, nix::sys::signal::Signal::SIGKILL);
    until_nothing(&world);
}

#[test]
fn a_new_session_is_blocked_by_the_command_that_encloses_it() {
    let world = World::with_daemon();
    for (outer, inner) in
        [("-k build", "-k build"), ("--write db", "--read db/x"), ("-k db/x", "--write db")]
    {
        for (option, code) in [("", 0), ("--new-session", 75)] {
            let inner = format!("canal run {option} -n {inner} -- true; exit $?");
            let args =
                ["run"].into_iter().chain(outer.split(' ')).chain(["--", "sh", "-c", &*inner]);
            world.canal(args).end().code(code);
        }
    }
}

#[test]
fn a_new_session_is_begun_on_purpose_and_outlives_the_command() {
    let world = World::with_daemon();
    world.program("mkfifo", ["go"]).end().code(0);
    let body = "canal run -v --new-session --write b -- sh -c 'echo $CANAL_SESSION >inner; read go <go' 2>said &
        echo $CANAL_SESSION >outer; while [ ! -s inner ]; do sleep 0.01; done";
    world.canal(["run", "--write", "a", "--", "sh", "-c", body]).end().code(0);
    assert_ne!(world.read("outer"), world.read("inner"));
    assert!(!world.read("said").contains("began session"), "it was asked for");
    wait_until("the outer lock is free", || is_free(&world, "--write a"));
    assert!(!is_free(&world, "--read b"));
    std::fs::write(world.path("work/go"), "go\n").unwrap();
    until_nothing(&world);
}

/// Starts a holder. Returns it with the session and frame that `canal run` passes to its command.
fn holder_with_frame(world: &World, key: &str) -> (crate::world::process::Proc, [String; 2]) {
    let body = "echo $CANAL_SESSION $CANAL_FRAME; exec cat";
    let args = ["run", "-k", key, "--", "sh", "-c", body];
    let outer = world.canal(args).stdin(Stdio::piped()).spawn();
    wait_until("its session is printed", || outer.stdout().ends_with('\n'));
    let words = outer.stdout();
    let mut words = words.split_whitespace().map(str::to_owned);
    let told = [words.next().unwrap(), words.next().unwrap()];
    (outer, told)
}

#[test]
fn a_copied_environment_does_not_join_a_session() {
    let world = World::with_daemon();
    let (outer, [session, frame]) = holder_with_frame(&world, "build");
    let stranger = |args: &[&str]| {
        let cmd = world.canal(args).env("CANAL_SESSION", &session).env("CANAL_FRAME", &frame);
        cmd.end()
    };
    stranger(&["run", "-n", "-k", "build", "--", "true"]).code(75);
    let new = stranger(&["run", "-v", "-k", "other", "--", "sh", "-c", "echo $CANAL_SESSION"]);
    let new = new.code(0);
    assert_ne!(new.stdout.trim(), session);
    let words = format!("began session {} instead of {session}", new.stdout.trim());
    assert!(new.stderr.contains(&words), "{new:?}");
    let quiet = stranger(&["run", "-k", "other", "--", "true"]).code(0);
    assert_eq!(quiet.stderr, "", "only -v says so");
    // A request for another process belongs to the session of that process.
    let acquired = stranger(&["acquire", "--json", "--pid", &outer.pid_text(), "-k", "third"]);
    assert_eq!(acquired.code(0).json()["session"], *session, "the owner is the session's");
    outer.finish().code(0);
    until_nothing(&world);
}

#[test]
fn a_server_started_within_a_session_does_not_join_later_clients_to_it() {
    let world = World::with_daemon();
    world.program("mkfifo", ["jobs"]).end().code(0);
    // A daemon as a build tool starts it: no parent of the session is left, but the environment is.
    let server = "while read job; do sh -c \"$job\"; echo \"$? $job\" >>done; done <jobs";
    let body =
        format!("(setsid sh -c '{server}' >/dev/null 2>&1 &); echo $CANAL_SESSION; exec cat");
    let args = ["run", "-k", "build", "--", "sh", "-c", &body];
    let outer = world.canal(args).stdin(Stdio::piped()).spawn();
    until_holds(&world, outer.pid(), "build");
    wait_until("the server has no parent in the session", || {
        outer.stdout().ends_with('\n') && crate::world::process::children(outer.pid()).is_empty()
    });
    let ask = |job: &str| {
        let before = world.read("done").lines().count();
        std::fs::write(world.path("work/jobs"), format!("{job}\n")).unwrap();
        wait_until(job, || world.read("done").lines().count() > before);
        world.read("done").lines().last().unwrap().to_owned()
    };
    let _keep =
        std::fs::OpenOptions::new().read(true).write(true).open(world.path("work/jobs")).unwrap();
    assert!(ask("canal run -n -q -k build -- true").starts_with("75 "));
    outer.finish().code(0);
    wait_until("build is free", || is_free(&world, "-k build"));
    assert!(ask("canal run -v -n -k build -- true 2>said").starts_with("0 "));
    assert!(world.read("said").contains("began session "), "{}", world.read("said"));
    until_nothing(&world);
}

#[test]
fn a_process_stays_in_its_session_and_another_session_is_told_its_blockers() {
    let world = World::with_daemon();
    let inner = ["run", "--new-session", "-n", "--write", "x", "--", "true"];
    let outer = ["run", "--write", "x", "--", "canal"];
    // Over an engine canal stays as the parent of its command, so the command is another process.
    let (code, said) = if backend::is_engine() { (75, false) } else { (0, true) };
    let ended = world.canal(outer.into_iter().chain(inner)).end().code(code);
    assert_eq!(ended.stderr.contains("--new-session has no effect"), said, "{ended:?}");
    let script = "canal run --new-session -w 0.1 --write x -- true; test $? = 75";
    let ended = world.canal(["run", "--write", "x", "--", "sh", "-c", script]).end().code(0);
    assert!(ended.stderr.contains("leave out `--new-session`"), "{ended:?}");
    until_nothing(&world);
}
