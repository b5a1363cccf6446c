//! Pipelines, standard input, and closed streams.

use std::fs;

use crate::whole::run::transparency::{WAYS, through};
use crate::world::World;

#[test]
fn standard_input_and_a_pipeline_work() {
    let world = World::with_daemon();
    for way in WAYS {
        let canal = through(way, &[]).join(" ");
        let script = format!("printf 'a\\nb\\n' | {canal} cat | {canal} tr ab xy");
        // Two commands run at once, so the second one needs its own lock.
        let script = script.replacen("-k x", "-k y", 1);
        assert_eq!(world.sh(&script).end().code(0).stdout, "x\ny\n", "{way:?}");
    }
}

#[test]
fn a_pipe_that_closes_ends_the_command_as_it_does_without_canal() {
    let world = World::with_daemon();
    if !crate::world::process::installed_or_skip("bash", "PIPESTATUS") {
        return;
    }
    let run = |canal: &str, before: &str| {
        let script = format!("{before} {canal} yes 2>err | head -1; echo ${{PIPESTATUS[0]}}");
        world.program("bash", ["-c", &script]).end().code(0).stdout + &world.read("err")
    };
    for before in ["env --default-signal=PIPE", "env --ignore-signal=PIPE"] {
        let plain = run("", before);
        for way in WAYS {
            assert_eq!(run(&through(way, &[]).join(" "), before), plain, "{before} {way:?}");
        }
    }
}

#[test]
fn a_closed_standard_output_reaches_the_command_as_it_is() {
    let world = World::with_daemon();
    let run = |canal: &str, redirection: &str| {
        let script = format!("{canal} sh -c 'echo x' {redirection}; echo \"code $?\"");
        let ended = world.sh(&script).end().code(0);
        (ended.stdout, ended.stderr)
    };
    for redirection in [">&-", ">/dev/full", "2>&- >&-", "<&- >&-"] {
        let plain = run("", redirection);
        for way in WAYS {
            let canal = run(&through(way, &[]).join(" "), redirection);
            assert_eq!(canal, plain, "{redirection} {way:?}");
        }
    }
}

#[test]
fn a_caller_with_closed_descriptors_can_start_the_daemon() {
    let world = World::new();
    world.sh("canal run -k x -- true <&- >&- 2>&-").end().code(0);
    let daemon = world.daemon_pid();
    for fd in 0..3 {
        assert!(fs::read_link(format!("/proc/{daemon}/fd/{fd}")).is_ok(), "descriptor {fd}");
    }
}
