//! Waiting for a free lock causes no deadlock: a session overtakes the waiters that it blocks
//! itself.

use std::fs;

use crate::script::{Script, until_nothing, waiter};
use crate::world::World;
use crate::world::record::Events;

/// A script holds the first lock, which makes another session wait for the second, and the script
/// asks for the third. The core has more examples (`search/states.rs`).
const PASSED: [[&str; 3]; 2] =
    [["-k a", "-k a -k b", "-k b"], ["-k d/x -j 4", "--write d", "-k d/y --per 1 --buckets 2"]];

/// canal grants the third lock at once and refuses no request.
#[test]
fn a_holder_passes_its_own_waiter_also_after_a_restart_and_without_waiting() {
    let world = World::with_daemon();
    for [outer, wanted, inner] in PASSED {
        for (restarted, inner) in [(false, inner.to_owned()), (true, format!("-n {inner}"))] {
            let mut script = Script::start(&world, "script", outer, &inner);
            // A client that waits for a long time would print progress.
            let wanted_quietly = format!("--progress none {wanted}");
            let other = waiter(&world, &wanted_quietly, &["sh", "-c", "echo '+ other' >>events"]);
            if restarted {
                world.kill_daemon();
                world.status();
            }
            script.go();
            script.succeeds();
            assert_eq!(other.end().code(0).stderr, "", "{outer} / {wanted} / {inner}");
            assert_eq!(Events::of(&world).started(), ["script", "other"]);
            until_nothing(&world);
            fs::remove_file(world.path("work/events")).unwrap();
        }
    }
}
