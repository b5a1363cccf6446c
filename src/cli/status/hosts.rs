//! The engine and the hosts that share a table, on the page of a status.

use std::time::Duration;

use anstyle::Style;

use super::page::Page;
use super::view::{NOTE, WARNING};
use crate::cli::clean::clean;
use crate::cli::duration::stated;
use crate::cli::when::Now;
use crate::cli::who::plural;
use crate::protocol::{EngineShown, HostShown};

/// One line on the engine, and what is wrong with it; with `verbose` the hosts, too.
pub(super) fn engine(
    page: &mut Page,
    engine: &EngineShown,
    hosts: &[HostShown],
    verbose: bool,
    now: &Now,
) {
    let (words, style) = standing(engine, hosts, now);
    page.title(format!("engine {}, {words}", clean(&engine.name)), String::new(), style);
    if let Some(hint) = &engine.hint {
        page.title(format!("hint: {}", clean(hint)), String::new(), WARNING);
    }
    if !verbose {
        return;
    }
    for host in hosts {
        page.title(format!("  {}", about(host, now)), String::new(), NOTE);
    }
    let ttl = stated(Duration::from_millis(engine.ttl_ms));
    page.title(format!("  a host that does not renew for {ttl} is gone"), String::new(), NOTE);
}

/// `host alpha, one of 3 hosts`, `away since 14:02:11 (for 12s): …`.
fn standing(engine: &EngineShown, hosts: &[HostShown], now: &Now) -> (String, Style) {
    let host = clean(&engine.host);
    let why = engine.why.as_deref().map(|why| format!(": {}", clean(why))).unwrap_or_default();
    let words = match (engine.state.as_str(), &engine.away_since) {
        ("member", _) => {
            let of = plural(hosts.len() as u64, "host", "hosts");
            return (format!("host {host}, one of {of}"), NOTE);
        }
        ("away", Some(since)) => {
            let stops = match &engine.stops {
                Some(stops) => format!("; commands here are stopped at {}", now.clock(stops)),
                None => String::new(),
            };
            let (clock, age) = (now.clock(since), now.age(since));
            format!("away since {clock} (for {age}){why}{stops}")
        }
        ("unable", _) => format!("host {host} cannot take part{why}"),
        _ => format!("host {host} is no member yet{why}"),
    };
    (words, WARNING)
}

/// `host 7 alpha (this one), since 14:02:11, renewed 2s ago`.
fn about(host: &HostShown, now: &Now) -> String {
    let here = if host.here { " (this one)" } else { "" };
    let renewed = match &host.renewed {
        Some(at) => format!("renewed {} ago", now.age(at)),
        None => "not seen yet".to_owned(),
    };
    let since = now.clock(&host.since);
    format!("host {} {}{here}, since {since}, {renewed}", host.id, clean(&host.host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::when::tests::at;

    fn engine_in(state: &str) -> EngineShown {
        EngineShown {
            name: "etcd://one".to_owned(),
            state: state.to_owned(),
            host: "alpha".to_owned(),
            id: Some(7),
            ttl_ms: 60_000,
            renewed: None,
            stops: Some("2026-11-20T14:06:00Z".to_owned()),
            away_since: Some("2026-11-20T14:05:11Z".to_owned()),
            why: Some("connection refused".to_owned()),
            hint: None,
        }
    }

    #[test]
    fn an_engine_is_told_with_how_this_host_stands_to_it() {
        let now = at("2026-11-20T14:05:23Z");
        let host = |id, here: bool| HostShown {
            host: "alpha".to_owned(),
            id,
            since: "2026-11-20T14:00:00Z".to_owned(),
            renewed: here.then(|| "2026-11-20T14:05:21Z".to_owned()),
            here,
        };
        let hosts = [host(7, true), host(9, false)];
        let text = |state, verbose| {
            let mut page = Page::default();
            engine(&mut page, &engine_in(state), &hosts, verbose, &now);
            anstream::adapter::strip_str(&page.render(None)).to_string()
        };
        assert_eq!(text("member", false), "engine etcd://one, host alpha, one of 2 hosts\n");
        assert_eq!(
            text("away", false),
            "engine etcd://one, away since 14:05:11 (for 12s): connection refused; commands here \
             are stopped at 14:06:00\n"
        );
        assert!(text("unable", false).contains("host alpha cannot take part: connection refused"));
        assert!(text("joining", false).contains("is no member yet: connection refused"));
        assert_eq!(
            text("member", true).lines().skip(1).collect::<Vec<_>>(),
            [
                "  host 7 alpha (this one), since 14:00:00, renewed 2s ago",
                "  host 9 alpha, since 14:00:00, not seen yet",
                "  a host that does not renew for 1m00s is gone",
            ]
        );
    }
}
