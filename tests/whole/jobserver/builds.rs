//! Builds that the tests of jobservers start.

use std::fs;

use crate::world::World;
use crate::world::process::{Cmd, wait_until};
use crate::world::record::Events;

/// How many jobs a build of make has.
pub(super) const JOBS: usize = 24;

/// A makefile with [`JOBS`] jobs that record their start and end. Each waits until the file `go`
/// exists.
const MAKEFILE: &str = "
all: $(addprefix $(BUILD)-,$(shell seq 24))
$(BUILD)-%:
\t@echo '+ $@' >>events; while ! [ -e go ]; do sleep 0.02; done; echo '- $@' >>events
";

/// A world with a daemon and a makefile.
pub(super) fn world() -> World {
    let world = World::with_daemon();
    fs::write(world.path("work").join("Makefile"), MAKEFILE).unwrap();
    world
}

/// A build with three slots by the make of the system.
pub(super) fn build<'w>(world: &'w World, name: &str) -> Cmd<'w> {
    build_with(world, "make", name)
}

/// A build with three slots by the given make.
pub(super) fn build_with<'w>(world: &'w World, make: &str, name: &str) -> Cmd<'w> {
    let build = format!("BUILD={name}");
    let lock = ["run", "--jobserver", "-k", "cpu=3", "--"];
    without_jobserver(world.canal(lock.into_iter().chain([make, "-s", &build])))
}

/// Removes the variables that a make or cargo may have set when it runs the tests.
pub(super) fn without_jobserver(command: Cmd<'_>) -> Cmd<'_> {
    ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CARGO_MAKEFLAGS"]
        .into_iter()
        .fold(command, |command, name| command.env_remove(name))
}

/// Lets the started jobs end, and those that follow.
pub(super) fn go(world: &World) {
    fs::write(world.path("work").join("go"), "").unwrap();
}

pub(super) fn until_started(world: &World, jobs: usize) {
    wait_until("the jobs have started", || Events::of(world).started().len() >= jobs);
}

pub(super) fn until_at_once(world: &World, jobs: usize) {
    wait_until("the jobs are running", || Events::of(world).most_at_once() >= jobs);
}

/// Checks that all jobs have run, with three at once but never more, and that nothing is left.
#[track_caller]
pub(super) fn check_end(world: &World, jobs: usize) {
    let events = Events::of(world);
    assert_eq!(events.ended(), jobs);
    assert_eq!(events.most_at_once(), 3);
    world.until_held("cpu", 0);
    wait_until("the files of the jobserver are gone", || {
        fs::read_dir(world.runtime().join("jobservers")).map_or(0, Iterator::count) == 0
    });
}
