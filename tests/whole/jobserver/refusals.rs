//! Requests that `--jobserver` refuses.

use crate::world::World;

#[test]
fn what_a_jobserver_does_not_go_with_is_a_usage_error() {
    let world = World::new();
    let one_key = "takes one slot of one --key";
    for (options, why) in [
        (&["-k", "a", "--count", "2", "-j", "4"][..], one_key),
        (&["-k", "a=4:2"], one_key),
        (&["-k", "a", "-k", "b"], one_key),
        (&["--read", "a"], one_key),
        (&["--write", "a"], one_key),
        (&["-k", "a", "--on", "local"], "cannot be combined with --on"),
    ] {
        let args = [&["run", "--jobserver"][..], options, &["--", "true"]].concat();
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.contains(why), "{options:?}: {}", ended.stderr);
    }
}
