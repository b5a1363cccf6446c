//! Tests what `canal status --watch` draws on screens of 80x24 and 40x12, with 0, 1 and 200 keys.
//! The expected screens are next to this file; `UPDATE=1` rewrites them.

use std::fs;
use std::path::Path;

use super::scope::Scope;
use super::*;
use crate::cli::output::sanitize::width;
use crate::cli::wording::time::tests::at;
use crate::protocol::Status;

/// A holder or waiter in the form in which the daemon sends it.
fn row(n: u64, waits: bool) -> serde_json::Value {
    let mut row = serde_json::json!({
        "pid": 4000 + n, "uid": 0, "command": format!("./build --target module-{n} --release"),
        "since": format!("2026-11-20T14:0{}:11Z", n % 5), "session": format!("s{n}"), "host": null,
        "mode": "counted",
    });
    let more = if waits {
        serde_json::json!({
            "position": 1, "priority": 0, "count": 1, "view": null, "reason": "1 of 1 slots held",
        })
    } else {
        serde_json::json!({ "token": n, "slots": [0], "state": "running" })
    };
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    row
}

/// Keys of which every seventh has a waiter.
fn status(keys: u64) -> Status {
    let key = |n: u64| {
        let waiters: Vec<_> = (n % 7 == 3).then(|| row(1000 + n, true)).into_iter().collect();
        serde_json::json!({
            "key": format!("team-{}/a-project-with-a-long-name/job-{n}", n % 9), "kind": "slots",
            "held": 1, "capacity": 1, "view": "1", "stored": false, "waiting": waiters.len(),
            "holders": [row(n, false)], "waiters": waiters,
        })
    };
    let keys: Vec<_> = (0..keys).map(|n| key(n + 3)).collect();
    let status = serde_json::json!({
        "daemon": { "pid": 77, "version": "0", "socket": "/s", "since": "", "uid": 0, "notes": [] },
        "keys": keys,
    });
    serde_json::from_value(status).unwrap()
}

/// The screen as a user sees it.
fn screen(keys: u64, columns: usize, lines: usize) -> String {
    let now = at("2026-11-20T14:05:23Z");
    let page = render::page(&status(keys), Scope::Overview, false, false, &now);
    let text = on_screen(&page, Screen { columns, lines: Some(lines) });
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn screens_are_as_they_were_agreed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/commands/status/screens");
    for (columns, lines) in [(80, 24), (40, 12)] {
        for keys in [0, 1, 200] {
            let shown = screen(keys, columns, lines);
            let name = format!("{columns}x{lines}-{keys}.txt");
            if std::env::var_os("UPDATE").is_some() {
                fs::write(dir.join(&name), &shown).unwrap();
            }
            let agreed = fs::read_to_string(dir.join(&name)).unwrap_or_default();
            assert_eq!(shown, agreed, "{name}; UPDATE=1 accepts it");
            // The cursor is in the last line.
            assert!(shown.lines().count() < lines, "{name}");
            assert!(shown.lines().all(|line| width(line) <= columns), "{name}: {shown}");
        }
    }
}

#[test]
fn whatever_the_size_a_screen_is_never_overfull() {
    for columns in [1, 10, 30, 50, 200] {
        for lines in [1, 2, 3, 7, 100, 5000] {
            let shown = screen(40, columns, lines);
            assert!(shown.lines().count() <= lines.saturating_sub(1).max(2), "{columns}x{lines}");
            assert!(shown.lines().all(|line| width(line) <= columns), "{columns}x{lines}: {shown}");
        }
    }
}

#[test]
fn a_screen_is_drawn_over_the_one_before() {
    assert_eq!(redrawn("a\nb\n"), format!("{HOME}a{CLEAR_LINE}b{CLEAR_LINE}{CLEAR_BELOW}"));
}
