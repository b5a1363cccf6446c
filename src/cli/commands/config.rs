//! `canal config`: shows the configuration in force, and the source of each value.

use crate::cli::output::sanitize::{padded, width};
use crate::cli::{Now, Result, Target, cut, sanitize, stdout};
use crate::protocol::{Configuration, NoParameters, SettingChange, SettingInfo, SettingSource};

/// The most columns to which names and values are aligned.
const COLUMNS_MAX: usize = 40;

pub(crate) fn run(json: bool, target: &Target) -> Result {
    let found = target.connect()?.configuration(&NoParameters {})?;
    stdout::report(&found, json, || page(&found, &Now::here()))
}

fn page(found: &Configuration, now: &Now) -> String {
    let mut lines = vec![match &found.file {
        Some(file) => format!("configuration {file}, read at {}", now.clock(&found.read)),
        None => format!("no configuration file; looked for {}", found.candidates.join(", ")),
    }];
    let widest = |of: fn(&SettingInfo) -> &String| {
        let widths = found.settings.iter().map(|it| width(of(it)));
        widths.filter(|width| *width <= COLUMNS_MAX).max().unwrap_or(0)
    };
    let (names, values) = (widest(|it| &it.name), widest(|it| &it.value));
    let row = |it: &SettingInfo| {
        format!("{}  {}  {}", padded(&it.name, names), padded(&it.value, values), source(it))
    };
    lines.extend(found.settings.iter().map(row));
    if found.withheld {
        lines.push("only root and the daemon's user can see all settings".to_owned());
    }
    if let Some(broken) = &found.broken {
        lines.push(format!("not in force, because the file has an error: {broken}"));
    }
    if !found.pending.is_empty() {
        lines.push("not in force yet (`canal daemon --reload`):".to_owned());
        lines.extend(found.pending.iter().map(|change| format!("  {}", changed_setting(change))));
    }
    lines.iter().map(|line| sanitize(line) + "\n").collect()
}

/// The source of a value: `default`, `line 12`, `--idle-exit`.
fn source(setting: &SettingInfo) -> String {
    let by = setting.by.as_deref();
    match (setting.source, setting.line, by) {
        (SettingSource::File, Some(line), _) => format!("line {line}"),
        (SettingSource::File, None, _) => "file".to_owned(),
        (_, _, Some(by)) => by.to_owned(),
        (SettingSource::Default, ..) => "default".to_owned(),
        (SettingSource::CommandLine, ..) => "command line".to_owned(),
        (SettingSource::Environment, ..) => "environment".to_owned(),
        (SettingSource::Stored, ..) => "not used".to_owned(),
    }
}

/// `limits.waiters_per_user: 100 (was not given)`.
pub(crate) fn changed_setting(change: &SettingChange) -> String {
    let shown =
        |value: &Option<String>| cut(value.as_deref().unwrap_or("not given"), 2 * COLUMNS_MAX);
    let SettingChange { name, before, now, restart } = change;
    let after = if *restart { ", after a restart: `canal daemon --replace`" } else { "" };
    format!("{name}: {} (was {}){after}", shown(now), shown(before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;

    #[test]
    fn what_is_withheld_is_said() {
        let found = serde_json::from_value(serde_json::json!({
            "file": null, "candidates": ["/a"], "read": "2026-11-20T14:02:11Z", "settings": [],
            "withheld": true,
        }));
        let page = page(&found.unwrap(), &at("2026-11-20T14:05:23Z"));
        assert!(page.ends_with("\nonly root and the daemon's user can see all settings\n"));
    }

    #[test]
    fn a_page_has_a_line_for_each_setting_and_says_what_is_not_in_force() {
        let found: Configuration = serde_json::from_value(serde_json::json!({
            "file": "/etc/canal/canal.toml",
            "candidates": ["/etc/canal/canal.toml"],
            "read": "2026-11-20T14:02:11Z",
            "settings": [
                { "name": "limits.waiters_per_user", "value": "100", "source": "file", "line": 3 },
                { "name": "policy.bypass_max", "value": "64", "source": "default" },
                { "name": "daemon.log", "value": "debug", "source": "environment", "by": "CANAL_LOG" },
                { "name": "keys.db", "value": "4x2", "source": "stored", "by": "canal resize" },
            ],
            "pending": [
                { "name": "engine.url", "before": null, "now": "etcd://a", "restart": true },
                { "name": "limits.waiters_per_user", "before": "100", "now": null, "restart": false },
            ],
        }))
        .unwrap();
        assert_eq!(
            page(&found, &at("2026-11-20T14:05:23Z")),
            "configuration /etc/canal/canal.toml, read at 14:02:11\n\
             limits.waiters_per_user  100    line 3\n\
             policy.bypass_max        64     default\n\
             daemon.log               debug  CANAL_LOG\n\
             keys.db                  4x2    canal resize\n\
             not in force yet (`canal daemon --reload`):\n  \
             engine.url: etcd://a (was not given), after a restart: `canal daemon --replace`\n  \
             limits.waiters_per_user: not given (was 100)\n"
        );
    }
}
