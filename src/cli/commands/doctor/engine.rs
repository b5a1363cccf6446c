//! Checks whether a daemon here could use an engine.
//!
//! Invariant: the check changes nothing at the engine, not even temporarily.

use std::time::Duration;

use super::finding::{Finding, Level};
use crate::cli::{Failed, short};
use crate::daemon::{self, Identity, Inspection, Outage, SeenEngine, TableSize, Transport};
use crate::protocol::paths::Place;

/// Clocks that differ by less count as equal. A wrong clock of the engine is only a note, because
/// no lock depends on it.
const CLOCK_MS: i64 = 2_000;

const MIB: u64 = 1024 * 1024;

/// How many hosts the finding names.
const HOSTS_NAMED: usize = 8;

/// Checks the engine at this address, or else the one that `CANAL_ENGINE` or the configuration
/// names. `found` is the result of the check of the whole configuration.
pub(super) fn look(place: &Place, url: Option<&str>, found: &[Finding]) -> Vec<Finding> {
    match daemon::look_at_engine(place, url) {
        Ok(None) => Vec::new(),
        Ok(Some(engine)) => about(&engine),
        Err(error) => {
            let Failed { message, hint, .. } = Failed::from(error);
            if found.iter().any(|it| it.level == Level::Problem && it.message.contains(&message)) {
                return Vec::new();
            }
            let hint = hint.unwrap_or_else(|| "fix it; no daemon can start with it".to_owned());
            vec![Finding::problem("engine", message, hint)]
        }
    }
}

fn about(engine: &SeenEngine) -> Vec<Finding> {
    let SeenEngine { name, seen, .. } = engine;
    let reached = |(server, version): &(String, Result<String, Outage>)| match version {
        Ok(version) => Finding::fine("engine", format!("{name}: {server} answers, {version}")),
        Err(why) => outage("engine", format!("cannot use {name}: {}", why.why), why),
    };
    let mut findings: Vec<Finding> = seen.servers.iter().map(reached).collect();
    if seen.servers.iter().all(|(_, version)| version.is_err()) {
        return findings;
    }
    let about = "engine tls";
    findings.push(match seen.transport {
        Transport::Encrypted => Finding::fine(about, "the connection is encrypted"),
        Transport::Local => Finding::fine(about, "the connection does not leave this machine"),
        Transport::Plain => Finding::advice(
            about,
            "the connection is not encrypted: anyone who can listen on the network can read the \
             password",
            "use `sslmode=verify-full` for PostgreSQL, `etcds://` for etcd; see \
             many-hosts-setup.md",
        ),
    });
    let login = seen.user.as_ref().map(|user| format!("logged in as {user}"));
    let login = login.unwrap_or_else(|| "the engine requires no user".to_owned());
    findings.push(Finding::fine("engine login", login));
    if seen.obstacles.is_empty() {
        let fine = "the user has all the rights that a daemon needs";
        findings.push(Finding::fine("engine rights", fine));
        findings.push(Finding::fine("engine size", size(seen)));
    }
    findings.extend(seen.obstacles.iter().map(|it| outage("engine rights", it.why.clone(), it)));
    let remarks = seen.remarks.iter();
    findings.extend(remarks.map(|(what, hint)| Finding::advice("engine", what, *hint)));
    if seen.obstacles.is_empty() {
        findings.push(hosts(engine));
    }
    findings.extend(seen.clock.map(|it| clock(it.ahead_ms, it.error_ms)));
    findings
}

fn outage(about: &'static str, message: String, outage: &Outage) -> Finding {
    let hint = outage.hint.clone().unwrap_or_else(|| {
        "check that the server is running, and that no firewall blocks this machine".to_owned()
    });
    Finding::problem(about, message, hint)
}

fn size(seen: &Inspection) -> String {
    match seen.table {
        None => "there is no table yet; the first daemon creates it".to_owned(),
        Some(TableSize { batches, bytes, of_server }) => {
            let of = if of_server { "all data in this etcd takes up" } else { "the table takes" };
            let mib = bytes.div_ceil(MIB);
            format!("{of} {mib} MiB; {batches} batches of changes since the last snapshot")
        }
    }
}

/// Reports which other hosts use the engine.
fn hosts(engine: &SeenEngine) -> Finding {
    let (about, SeenEngine { label, seen, .. }) = ("engine hosts", engine);
    if let Some(other) = &engine.label_taken_by {
        let other = host(other);
        let message = format!("another daemon already has this host's name `{label}`: {other}");
        let hint = "give this host another name: `canal daemon --host NAME`, or `host` in [engine]";
        return Finding::problem(about, message, hint);
    }
    let mut names: Vec<String> = seen.hosts.iter().take(HOSTS_NAMED).map(host).collect();
    let more = seen.hosts.len().checked_sub(HOSTS_NAMED).filter(|more| *more > 0);
    names.extend(more.map(|more| format!("{more} more")));
    let used = format!("used by {}", names.join(", "));
    Finding::fine(about, if names.is_empty() { "no daemon is using it".to_owned() } else { used })
}

/// `alpha (uid 0, /run/canal)`.
fn host(host: &Identity) -> String {
    format!("{} (uid {}, {})", host.label, host.uid, host.dir)
}

fn clock(ahead_ms: i64, error_ms: i64) -> Finding {
    let about = "engine clock";
    let by = ahead_ms.unsigned_abs();
    if ahead_ms.abs() <= CLOCK_MS.saturating_add(error_ms) {
        let by = by.max(error_ms.unsigned_abs());
        let fine = format!("its clock and this machine's agree within {by} ms");
        return Finding::fine(about, fine);
    }
    let way = if ahead_ms > 0 { "ahead of" } else { "behind" };
    let by = short(Duration::from_millis(by));
    let off = "so the ages of other hosts' locks are off by that much";
    let message = format!("its clock is {by} {way} this machine's, {off}");
    Finding::advice(about, message, "set both with NTP (`timedatectl`); no lock depends on it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::commands::doctor::finding::Level;

    fn identity(label: &str) -> Identity {
        Identity {
            label: label.to_owned(),
            machine: String::new(),
            boot: String::new(),
            pid_namespace: 1,
            uid: 7,
            dir: "/run/canal".to_owned(),
            dir_number: 1,
        }
    }

    fn engine(seen: Inspection) -> SeenEngine {
        let (name, label) = ("etcd://a".to_owned(), "web".to_owned());
        SeenEngine { name, label, seen, label_taken_by: None }
    }

    fn lines(engine: &SeenEngine) -> Vec<(Level, &'static str, String)> {
        about(engine).into_iter().map(|it| (it.level, it.about, it.message)).collect()
    }

    #[test]
    fn an_engine_that_cannot_be_reached_is_one_problem_for_each_server() {
        let away = Outage::unreachable("connection refused");
        let servers = vec![("a:1".to_owned(), Err(away.clone())), ("b:1".to_owned(), Err(away))];
        let found = lines(&engine(Inspection { servers, ..Inspection::default() }));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].0, Level::Problem);
        assert_eq!(found[0].2, "cannot use etcd://a: connection refused");
    }

    #[test]
    fn an_engine_that_can_be_used_is_described() {
        let seen = Inspection {
            servers: vec![("a:1".to_owned(), Ok("etcd 3.5.1".to_owned()))],
            transport: Transport::Encrypted,
            table: Some(TableSize { batches: 3, bytes: 1, of_server: true }),
            hosts: (0..10).map(|n| identity(&format!("h{n}"))).collect(),
            ..Inspection::default()
        };
        let found = lines(&engine(seen.clone()));
        assert!(found.iter().all(|it| it.0 == Level::Fine), "{found:?}");
        assert_eq!(found[0].2, "etcd://a: a:1 answers, etcd 3.5.1");
        assert!(found[4].2.contains("1 MiB; 3 batches"), "{found:?}");
        assert!(found[5].2.starts_with("used by h0 (uid 7, /run/canal), h1 "), "{found:?}");
        assert!(found[5].2.ends_with(", 2 more"), "{found:?}");
        let taken = SeenEngine { label_taken_by: Some(identity("web")), ..engine(seen.clone()) };
        assert_eq!(lines(&taken)[5].0, Level::Problem);
        let refused = Outage::refused("no right", Some("GRANT"));
        let seen = Inspection { obstacles: vec![refused], transport: Transport::Plain, ..seen };
        let found = about(&engine(seen));
        let levels: Vec<_> = found.iter().map(|it| (it.about, it.level)).collect();
        assert!(levels.contains(&("engine rights", Level::Problem)), "{levels:?}");
        assert!(levels.contains(&("engine tls", Level::Note)), "{levels:?}");
        assert!(!levels.iter().any(|it| it.0 == "engine size"), "{levels:?}");
    }

    #[test]
    fn clocks_that_differ_are_compared_beyond_the_error_of_the_comparison() {
        assert_eq!(clock(2_000, 5).level, Level::Fine);
        assert_eq!(clock(-2_006, 5).level, Level::Note);
        assert_eq!(clock(4_000, 3_000).level, Level::Fine);
        assert!(clock(47_000, 5).message.contains("47s ahead of this machine's"));
        assert!(clock(-47_000, 5).message.contains("47s behind this machine's"));
    }
}
