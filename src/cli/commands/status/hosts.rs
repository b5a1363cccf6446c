//! Shows the engine, and the hosts that share a table, on the page of a status.

use std::time::Duration;

use anstyle::Style;
use itertools::Itertools as _;

use super::scope::Scope;
use crate::cli::output::columns::{NOTE, Page, WARNING};
use crate::cli::wording::holders_and_waiters::clause;
use crate::cli::{Now, plural, sanitize, stated, stated_ms};
use crate::protocol::{EngineInfo, HostInfo, RecoveryInfo};

/// How many hosts an overview names.
const HOSTS_IN_OVERVIEW: usize = 10;

/// Adds a line about the engine, with its error if it has one.
pub(super) fn engine(page: &mut Page, engine: &EngineInfo, hosts: &[HostInfo], now: &Now) {
    let (words, style) = checkpoint(engine, hosts, now);
    page.line(format!("engine {}, {words}", sanitize(&engine.name)), style);
    if let Some(recovery) = &engine.recovery {
        page.line(recovering(recovery, now), WARNING);
    }
    if let Some(hint) = &engine.hint {
        page.line(format!("hint: {}", sanitize(hint)), WARNING);
    }
}

/// Adds a line for each host, in an overview only for the first ones. With `verbose`, adds all of
/// them and the TTL.
pub(super) fn list(
    page: &mut Page,
    engine: &EngineInfo,
    hosts: &[HostInfo],
    scope: Scope<'_>,
    verbose: bool,
    now: &Now,
) {
    let room = match scope {
        _ if verbose => usize::MAX,
        Scope::Overview => HOSTS_IN_OVERVIEW,
        Scope::Everything => usize::MAX,
        Scope::Key(_) => return,
    };
    // `host 7 alpha (this one), since 14:02:11, renewed 2s ago`.
    for HostInfo { id, here, host, since, renewed, .. } in hosts.iter().take(room) {
        let here = if *here { " (this one)" } else { "" };
        let renewed = renewed.as_ref().map(|at| format!("renewed {}", now.ago(at)));
        let renewed = renewed.unwrap_or_else(|| "not seen yet".to_owned());
        let (host, since) = (sanitize(host), now.clock(since));
        page.line(format!("  host {id} {host}{here}, since {since}, {renewed}"), NOTE);
    }
    if let Some(more @ 1..) = hosts.len().checked_sub(room) {
        let more = plural(more as u64, "more host", "more hosts");
        page.line(format!("  {more}; `canal status -v` shows all"), NOTE);
    }
    if verbose {
        let ttl = stated_ms(engine.ttl_ms);
        page.line(format!("  a host that does not renew for {ttl} counts as gone"), NOTE);
    }
}

/// Whether the report shows the locks that all hosts see.
pub(super) fn is_member(engine: &EngineInfo) -> bool {
    engine.state == "member"
}

/// The title for locks that may have changed since: `what was known at 14:05:11:`.
pub(super) fn last_known(engine: &EngineInfo, now: &Now) -> String {
    match engine.renewed.as_ref().or(engine.away_since.as_ref()) {
        Some(at) => format!("as of {}; it may have changed since:", now.clock(at)),
        None => "last known state; it may have changed since:".to_owned(),
    }
}

/// `host alpha, one of 3 hosts`, `unreachable since 14:02:11 (for 12s): …`.
fn checkpoint(engine: &EngineInfo, hosts: &[HostInfo], now: &Now) -> (String, Style) {
    let host = sanitize(&engine.host);
    let why = clause(": ", engine.why.as_deref());
    let at = engine.stops.as_ref().map(|at| now.clock(at));
    let stops = clause("; canal will end commands here at ", at.as_deref());
    let words = match (engine.state.as_str(), &engine.away_since) {
        ("member", _) => {
            let of = plural(hosts.len() as u64, "host", "hosts");
            let words = format!("host {host}, one of {of}");
            match silence(engine, now) {
                None if engine.why.is_none() => return (words, NOTE),
                None => format!("{words}{why}"),
                Some(silence) => format!("{words}, no answer for {silence}{stops}"),
            }
        }
        ("away", Some(since)) => {
            let (clock, age) = (now.clock(since), now.age(since));
            format!("unreachable since {clock} (for {age}){why}{stops}")
        }
        ("unable", since) => {
            let since = since.as_ref().map(|since| now.clock(since));
            let since = clause(" since ", since.as_deref());
            format!("host {host} has been unable to join{since}{why}")
        }
        _ => format!("host {host} is not a member yet{why}"),
    };
    (words, WARNING)
}

/// `the table has been recovering since 14:02:11: no locks are granted yet; waiting for host beta
/// to report or be declared gone, and for 52s more`.
fn recovering(recovery: &RecoveryInfo, now: &Now) -> String {
    let RecoveryInfo { since, hosts, left_ms } = recovery;
    let names = hosts.iter().map(|host| sanitize(host)).join(", ");
    let noun = if hosts.len() == 1 { "host" } else { "hosts" };
    let hosts = format!("for {noun} {names} to report or be declared gone");
    let hosts = Some(hosts).filter(|_| !names.is_empty());
    let left = left_ms.map(|ms| Duration::from_secs(ms.div_ceil(1000)));
    let left = left.map(|left| format!("for {} more", stated(left)));
    let waits = hosts.into_iter().chain(left).join(", and ");
    let waiting = if waits.is_empty() { "" } else { "; waiting " };
    let since = now.clock(since);
    format!("the table has been recovering since {since}: no locks are granted yet{waiting}{waits}")
}

/// How long the engine has been silent, if it should have answered two renewals in that time. It
/// may or may not be out of reach.
fn silence(engine: &EngineInfo, now: &Now) -> Option<String> {
    let since = engine.renewed.as_ref()?;
    let usual = Duration::from_millis(engine.ttl_ms / 3);
    let passed = now.passed(since)?;
    if passed <= usual {
        now.changes_in(usual - passed + Duration::from_millis(1));
        return None;
    }
    Some(now.age(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;

    fn engine_in(state: &str) -> EngineInfo {
        EngineInfo {
            name: "etcd://one".to_owned(),
            state: state.to_owned(),
            host: "alpha".to_owned(),
            id: Some(7),
            ttl_ms: 60_000,
            renewed: None,
            stops: Some("2026-11-20T14:06:00Z".to_owned()),
            away_since: Some("2026-11-20T14:05:11Z".to_owned()),
            why: (state != "member").then(|| "connection refused".to_owned()),
            hint: None,
            recovery: None,
        }
    }

    #[test]
    fn an_engine_that_takes_nothing_in_is_shown_with_the_reason() {
        let now = at("2026-11-20T14:05:23Z");
        let why = Some("etcd is out of space and refuses writes".to_owned());
        let (words, style) = checkpoint(&EngineInfo { why, ..engine_in("member") }, &[], &now);
        assert_eq!(words, "host alpha, one of 0 hosts: etcd is out of space and refuses writes");
        assert_eq!(style, WARNING);
    }

    #[test]
    fn a_recovery_shows_what_it_waits_for() {
        let now = at("2026-11-20T14:05:23Z");
        let words = |hosts: &[&str], left_ms| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            let since = "2026-11-20T14:05:11Z".to_owned();
            recovering(&RecoveryInfo { since, hosts, left_ms }, &now)
        };
        assert_eq!(
            words(&["beta"], Some(51_200)),
            "the table has been recovering since 14:05:11: no locks are granted yet; waiting for \
             host beta to report or be declared gone, and for 52s more"
        );
        assert!(
            words(&["b", "c"], None)
                .ends_with("waiting for hosts b, c to report or be declared gone")
        );
        assert!(words(&[], Some(900)).ends_with("no locks are granted yet; waiting for 1s more"));
    }

    #[test]
    fn an_engine_is_shown_with_the_state_of_this_host() {
        let now = at("2026-11-20T14:05:23Z");
        let host = |id, here: bool| HostInfo {
            host: "alpha".to_owned(),
            id,
            since: "2026-11-20T14:00:00Z".to_owned(),
            renewed: here.then(|| "2026-11-20T14:05:21Z".to_owned()),
            here,
        };
        let hosts = [host(7, true), host(9, false)];
        let text_of = |state, scope, verbose| {
            let mut page = Page::default();
            let shown = engine_in(state);
            engine(&mut page, &shown, &hosts, &now);
            list(&mut page, &shown, &hosts, scope, verbose, &now);
            anstream::adapter::strip_str(&page.render(None)).to_string()
        };
        let text = |state, verbose| text_of(state, Scope::Key("db"), verbose);
        assert_eq!(text("member", false), "engine etcd://one, host alpha, one of 2 hosts\n");
        assert_eq!(
            text("away", false),
            "engine etcd://one, unreachable since 14:05:11 (for 12s): connection refused; canal \
             will end commands here at 14:06:00\n"
        );
        assert_eq!(text_of("member", Scope::Overview, false).lines().count(), 3);
        assert!(
            text("unable", false)
                .contains("host alpha has been unable to join since 14:05:11: connection refused")
        );
        assert!(text("joining", false).contains("is not a member yet: connection refused"));
        assert_eq!(
            text("member", true).lines().skip(1).collect::<Vec<_>>(),
            [
                "  host 7 alpha (this one), since 14:00:00, renewed 2s ago",
                "  host 9 alpha, since 14:00:00, not seen yet",
                "  a host that does not renew for 1m00s counts as gone",
            ]
        );
    }

    #[test]
    fn a_silent_engine_is_shown_before_it_is_known_to_be_away() {
        let checkpoint = |renewed: &str, now: &str| {
            let renewed = Some(renewed.to_owned());
            checkpoint(&EngineInfo { renewed, ..engine_in("member") }, &[], &at(now)).0
        };
        let renewed = "2026-11-20T14:05:20Z";
        assert_eq!(checkpoint(renewed, "2026-11-20T14:05:40Z"), "host alpha, one of 0 hosts");
        assert_eq!(
            checkpoint(renewed, "2026-11-20T14:05:41Z"),
            "host alpha, one of 0 hosts, no answer for 21s; canal will end commands here at \
             14:06:00"
        );
    }

    #[test]
    fn an_overview_names_the_first_of_many_hosts() {
        let host = |id| HostInfo {
            host: format!("h{id}"),
            id,
            since: "2026-11-20T14:00:00Z".to_owned(),
            renewed: None,
            here: false,
        };
        let hosts: Vec<_> = (1..=12).map(host).collect();
        let lines = |scope| {
            let mut page = Page::default();
            let now = at("2026-11-20T14:05:23Z");
            list(&mut page, &engine_in("member"), &hosts, scope, false, &now);
            let text = anstream::adapter::strip_str(&page.render(None)).to_string();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let overview = lines(Scope::Overview);
        assert_eq!(overview.len(), 11);
        assert_eq!(overview[10], "  2 more hosts; `canal status -v` shows all");
        assert_eq!(lines(Scope::Everything).len(), 12);
    }
}
