//! Checks the daemon, its configuration, its engine and its hooks.

use crate::cli::commands::config::changed;
use crate::cli::{Failed, connect};
use crate::client::{Client, ClientError, Start, last_line_of_log};
use crate::daemon::{self, SeenHook, Separation};
use crate::protocol::place::{Place, Rule};
use crate::protocol::{
    Configuration, ConfigurationQuery, DaemonInfo, EngineInfo, Status, StatusQuery,
};
use crate::sys::process::user::geteuid;

use super::finding::Finding;

/// Returns the findings, and the daemon's description of itself if one answers.
pub(super) fn look(place: &Place) -> (Vec<Finding>, Option<DaemonInfo>) {
    let query = StatusQuery { names_max: Some(0), ..StatusQuery::default() };
    let asked = Client::connect(place, Start::Never).and_then(|mut client| {
        let status = client.status(&query)?;
        let configuration = client.configuration(&ConfigurationQuery {})?;
        Ok((status, configuration))
    });
    match asked {
        Ok((status, configuration)) => {
            let mut findings = about(&status, place);
            findings.extend(in_force(&configuration));
            findings.extend(status.engine.as_ref().map(engine));
            (findings, Some(status.daemon))
        }
        Err(ClientError::NoDaemon(_)) => (vec![none(place), file(place)], None),
        Err(error) => {
            let failed = Failed::from(error);
            let hint = failed.hint.unwrap_or_else(|| "run `canal daemon --replace`".to_owned());
            (vec![Finding::problem("daemon", failed.message, hint), file(place)], None)
        }
    }
}

fn none(place: &Place) -> Finding {
    match place.rule {
        Rule::Shared => {
            Finding::problem("daemon", "no daemon is running", connect::not_on_demand(place))
        }
        Rule::Given | Rule::PerUser => match last_line_of_log(place) {
            Some(line) if !line.ends_with(daemon::LAST_LINE) => {
                let message =
                    format!("no daemon is running, and the last one did not end cleanly: {line}");
                let hint = "run any canal command to start one, or `canal daemon -v` to run it in \
                            the foreground";
                Finding::advice("daemon", message, hint)
            }
            _ => Finding::note("daemon", "no daemon is running; the next command starts one"),
        },
    }
}

/// Checks the configuration that the next daemon would read.
pub(super) fn file(place: &Place) -> Finding {
    match daemon::check_configuration(place) {
        Ok(Some(file)) => Finding::fine("configuration", format!("{} is valid", file.display())),
        Ok(None) => unconfigured(),
        Err(error) => {
            let hint = "fix it; no daemon can start with it";
            Finding::problem("configuration", format!("{error:#}"), hint)
        }
    }
}

fn unconfigured() -> Finding {
    Finding::fine("configuration", "no configuration file; all settings have their default values")
}

fn about(status: &Status, place: &Place) -> Vec<Finding> {
    let daemon = &status.daemon;
    let (pid, version, ours) = (daemon.pid, &daemon.version, env!("CARGO_PKG_VERSION"));
    let first = if version == ours {
        Finding::fine("daemon", format!("pid {pid}, version {version}"))
    } else {
        Finding::problem(
            "daemon",
            format!("pid {pid} is version {version}, but this program is {ours}"),
            "replace it with `canal daemon --replace`; all locks stay held",
        )
    };
    // A separate check covers whatever separates the locks of this machine.
    let is_told_elsewhere = |note: &str| place.is_users_own() && Separation::is_told_by(note);
    let notes = daemon.notes.iter().filter(|note| !is_told_elsewhere(note));
    let notes = notes.map(|note| Finding::note("daemon", note));
    std::iter::once(first).chain(notes).collect()
}

fn in_force(found: &Configuration) -> Vec<Finding> {
    let mut findings = vec![match &found.file {
        Some(file) => Finding::fine("configuration", format!("{file}, read at {}", found.read)),
        None => unconfigured(),
    }];
    if let Some(broken) = &found.broken {
        let message = format!("not in force, because it has an error: {broken}");
        let hint = "fix it, then run `canal daemon --reload`; no daemon can start with it";
        findings.push(Finding::problem("configuration", message, hint));
    }
    let (restart, now): (Vec<_>, Vec<_>) = found.pending.iter().partition(|it| it.restart);
    for (changes, hint) in
        [(now, "run `canal daemon --reload`"), (restart, "run `canal daemon --replace`")]
    {
        if !changes.is_empty() {
            let changes: Vec<_> = changes.into_iter().map(changed).collect();
            let message = format!("not in force yet: {}", changes.join("; "));
            findings.push(Finding::problem("configuration", message, hint));
        }
    }
    findings
}

fn engine(engine: &EngineInfo) -> Finding {
    let EngineInfo { name, state, host, why, hint, .. } = engine;
    let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let message = match state.as_str() {
        "member" => {
            return Finding::fine("engine", format!("{host} is a member of {name}"));
        }
        "away" => format!("{name} is unreachable{why}"),
        "unable" => format!("host {host} cannot join {name}{why}"),
        _ => format!("host {host} is not a member of {name} yet{why}"),
    };
    Finding::problem("engine", message, hint.as_deref().unwrap_or("see `canal status`"))
}

/// Checks whether the programs of the configured hooks can run.
pub(super) fn hooks(place: &Place, daemon: Option<&DaemonInfo>) -> Vec<Finding> {
    let uid = daemon.map_or_else(|| geteuid().as_raw(), |daemon| daemon.uid);
    // Another check reports errors in the configuration as a whole.
    let seen = daemon::look_at_hooks(place, uid).unwrap_or_default();
    seen.iter().map(hook).collect()
}

fn hook(hook: &SeenHook) -> Finding {
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
        let seen = |problem: Option<&str>| SeenHook {
            name: "hooks[0]".to_owned(),
            program: "/x".to_owned(),
            problem: problem.map(str::to_owned),
        };
        assert_eq!(hook(&seen(None)).level, Level::Fine);
        let found = hook(&seen(Some("it is not a regular file")));
        assert_eq!(found.level, Level::Problem);
        assert_eq!(found.message, "hooks[0]: /x: it is not a regular file");
    }
}
