//! A cargo build that starts several rustc.

use std::fs;

use super::builds::{check_end, go, until_started, without_jobserver};
use crate::world::World;
use crate::world::executable::executable;

const CRATES: usize = 6;

/// Compiles a crate of the build, and records its start and end. cargo also queries the compiler;
/// that is no job.
const WRAPPER: &str = "#!/bin/sh
case \" $* \" in *' --crate-name job'*) ;; *) exec \"$@\" ;; esac
echo \"+ $5\" >>\"$EVENTS/events\"
while ! [ -e \"$EVENTS/go\" ]; do sleep 0.02; done
\"$@\"; code=$?
echo \"- $5\" >>\"$EVENTS/events\"
exit $code
";

/// A workspace of crates that do not depend on each other.
fn write_project(world: &World) {
    let work = world.path("work");
    let names: Vec<String> = (0..CRATES).map(|n| format!("job{n}")).collect();
    let members: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let workspace = format!("[workspace]\nresolver = \"2\"\nmembers = [{}]\n", members.join(", "));
    fs::write(work.join("Cargo.toml"), workspace).unwrap();
    for name in names {
        fs::create_dir_all(work.join(&name).join("src")).unwrap();
        let package =
            format!("[package]\nname = {name:?}\nversion = \"0.1.0\"\nedition = \"2021\"\n");
        fs::write(work.join(&name).join("Cargo.toml"), package).unwrap();
        fs::write(work.join(&name).join("src/lib.rs"), "pub fn f() {}\n").unwrap();
    }
    executable(work.join("wrapper"), WRAPPER);
}

#[test]
fn a_build_of_cargo_compiles_at_most_as_many_crates_at_once_as_there_are_slots() {
    let world = World::with_daemon();
    write_project(&world);
    let work = world.path("work");
    let lock = ["run", "--jobserver", "-k", "cpu=3", "--"];
    let cargo = ["cargo", "build", "--quiet", "--offline"];
    let build = world
        .canal([&lock[..], &cargo].concat())
        .env("EVENTS", &work)
        .env("RUSTC_WRAPPER", work.join("wrapper"))
        .env("CARGO_TARGET_DIR", work.join("target"))
        .env_remove("CARGO_BUILD_JOBS")
        .env_remove("RUSTFLAGS");
    let build = without_jobserver(build).spawn();
    until_started(&world, 3);
    go(&world);
    build.end().code(0);
    check_end(&world, CRATES);
}
