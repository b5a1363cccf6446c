//! Checks whether the programs of the configured hooks can run.

use crate::sys::process::user::geteuid;

use super::finding::Finding;
use crate::daemon::{self, SeenHook};
use crate::protocol::DaemonInfo;
use crate::protocol::place::Place;

pub(super) fn look(place: &Place, daemon: Option<&DaemonInfo>) -> Vec<Finding> {
    let uid = daemon.map_or_else(|| geteuid().as_raw(), |daemon| daemon.uid);
    // Another check reports errors in the configuration as a whole.
    let seen = daemon::look_at_hooks(place, uid).unwrap_or_default();
    seen.iter().map(about).collect()
}

fn about(hook: &SeenHook) -> Finding {
    let SeenHook { name, program, problem } = hook;
    match problem {
        None => Finding::fine("hook", format!("{name}: {program} is executable")),
        Some(why) => Finding::problem(
            "hook",
            format!("{name}: {program}: {why}"),
            format!("fix {program}, or [[hooks]] in the configuration; see canal.toml(5)"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    #[test]
    fn a_hook_that_cannot_run_is_a_problem() {
        let hook = |problem: Option<&str>| SeenHook {
            name: "hooks[0]".to_owned(),
            program: "/x".to_owned(),
            problem: problem.map(str::to_owned),
        };
        assert_eq!(about(&hook(None)).level, Level::Fine);
        let found = about(&hook(Some("it is not a regular file")));
        assert_eq!(found.level, Level::Problem);
        assert_eq!(found.message, "hooks[0]: /x: it is not a regular file");
    }
}
