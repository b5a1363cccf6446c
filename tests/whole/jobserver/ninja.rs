//! Builds of ninja 1.13, and builds under sudo.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use super::builds::{JOBS, check_end, go, until_at_once, without_jobserver};
use crate::world::World;
use crate::world::executable::executable;
use crate::world::process::{Cmd, installed_or_skip};

/// The ninja that is a client of jobservers. `.ci/run` installs it.
const NINJA: &str = "ninja-1.13";

/// A job ends by itself after a few seconds: ninja looks for tokens only when it starts and when a
/// job ends, and at its start some may not have arrived.
const RULE: &str = "rule job\n  command = echo '+ '$out >>events; n=0; \
                    while ! [ -e go ] && [ $$n -lt 150 ]; do sleep 0.02; n=$$((n + 1)); done; \
                    echo '- '$out >>events\n";

/// A world with a ninja, and a build of [`JOBS`] jobs; `None` without such a ninja.
fn world() -> Option<World> {
    if !installed_or_skip(NINJA, "the jobs of ninja 1.13") {
        return None;
    }
    let world = World::with_daemon();
    let builds = (0..JOBS).fold(RULE.to_owned(), |mut text, n| {
        writeln!(text, "build a-{n}: job").unwrap();
        text
    });
    fs::write(world.path("work").join("build.ninja"), builds).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|dir| dir.join(NINJA)).find(|it| it.is_file());
    fs::create_dir(world.path("bin")).unwrap();
    let found = found.unwrap();
    for name in ["ninja", "ninja-build"] {
        symlink(&found, world.path("bin").join(name)).unwrap();
    }
    // An older make in the PATH does not matter to a command line with ninja.
    symlink("/bin/false", world.path("bin").join("make")).unwrap();
    Some(world)
}

/// Runs a command with the programs of the world first in its PATH.
fn run<'w>(world: &'w World, args: &[&str]) -> Cmd<'w> {
    let path = std::env::var_os("PATH").unwrap();
    let dirs = [world.path("bin")].into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(dirs).unwrap();
    let lock = ["run", "--jobserver", "-k", "cpu=3", "--"];
    without_jobserver(world.canal(lock.iter().chain(args))).env("PATH", path)
}

#[test]
fn the_jobs_of_ninja_take_slots_under_any_program_that_runs_it() {
    // Its packages have several names.
    let script = "import subprocess; subprocess.run(['ninja-1.13', '--quiet'], check=True)";
    let python = ["python3", "-c", script];
    for args in [&["ninja", "--quiet"][..], &["nice", "ninja-build", "--quiet"], &python] {
        let Some(world) = world() else { return };
        if args[0] == "python3" && !installed_or_skip("python3", "ninja under Python") {
            continue;
        }
        let running = run(&world, args).spawn();
        until_at_once(&world, 3);
        go(&world);
        let ended = running.end().code(0);
        assert!(!ended.stderr.contains("jobserver"), "{}", ended.stderr);
        check_end(&world, JOBS);
    }
}

#[test]
fn canal_says_that_sudo_hides_the_jobserver_and_how_it_does_not() {
    let Some(world) = world() else { return };
    go(&world);
    // As sudo does by default.
    let sudo = "#!/bin/sh\nkeep=-uMAKEFLAGS\n\
                case $1 in --preserve-env=MAKEFLAGS) shift; keep=-uCARGO_MAKEFLAGS ;; esac\n\
                exec env $keep \"$@\"\n";
    executable(world.path("bin").join("sudo"), sudo);
    let ended = run(&world, &["sudo", "ninja", "--quiet"]).end().code(0);
    let warning = "canal: sudo removes MAKEFLAGS, by which a build finds the jobserver: its jobs \
                   do not take slots of `cpu`\nhint: keep it with `sudo \
                   --preserve-env=MAKEFLAGS`\n";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
    for file in ["events", "go", ".ninja_log"] {
        let _ = fs::remove_file(world.path("work").join(file));
    }
    let kept = ["sudo", "--preserve-env=MAKEFLAGS", "ninja", "--quiet"];
    let running = run(&world, &kept).spawn();
    until_at_once(&world, 3);
    go(&world);
    let ended = running.end().code(0);
    assert!(!ended.stderr.contains("jobserver"), "{}", ended.stderr);
    check_end(&world, JOBS);
}
