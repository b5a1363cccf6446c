//! Tests the screen at 80x24 and 40x12. The expected screens are in `top/screens`; `UPDATE=1`
//! rewrites them.

use std::fs;
use std::path::Path;

use super::super::model::tests::{model, press, status, three};
use super::*;
use crate::cli::wording::time::tests::at;
use crate::protocol::{Status, Waits};

const SIZES: [(u16, u16); 2] = [(80, 24), (40, 12)];

fn text(model: &mut Model, (columns, lines): (u16, u16)) -> String {
    let (Buffer { area, content, .. }, _) =
        draw(model, Rect::new(0, 0, columns, lines), &at("2026-11-20T14:05:23Z"));
    let rows = content.chunks(usize::from(area.width.max(1)));
    let rows = rows.map(|row| {
        let mut text = String::new();
        let mut covered = 0;
        for cell in row {
            if covered == 0 {
                text.push_str(cell.symbol());
                covered = width(cell.symbol());
            }
            covered = covered.saturating_sub(1);
        }
        text.trim_end().to_owned() + "\n"
    });
    rows.collect()
}

/// The keys of a busy day.
fn busy() -> Status {
    let person = |n: u64, since: &str| {
        serde_json::json!({
            "pid": 4000 + n, "uid": 0, "command": format!("./build --target module-{n} --release"),
            "since": format!("2026-11-20T{since}Z"), "session": format!("s{n}"), "host": null,
            "mode": "counted",
        })
    };
    let with = |mut one: serde_json::Value, more: serde_json::Value| {
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    let holder = |n: u64, since: &str| {
        with(
            person(n, since),
            serde_json::json!({ "token": n, "slots": [n % 3], "state": "running" }),
        )
    };
    let waiter = |n: u64, since: &str, reason: &str| {
        let more = serde_json::json!({
            "position": n % 10, "priority": 0, "count": 1, "view": null, "reason": reason,
        });
        with(person(n, since), more)
    };
    let gpu = serde_json::json!({
        "key": "gpu", "kind": "slots", "held": 3, "capacity": 3, "view": "3", "stored": true,
        "waiting": 2,
        "holders": [holder(10, "13:05:11"), holder(11, "14:01:00"), with(holder(12, "14:05:01"),
            serde_json::json!({ "note": "https://ci.example/run/7\u{1b}[2J" }))],
        "waiters": [waiter(21, "14:03:23", "3 of 3 slots held"),
            waiter(22, "14:05:13", "3 of 3 slots held")],
    });
    let paused = serde_json::json!({
        "key": "nightly/漢字/backup", "kind": "slots", "held": 0, "capacity": 1, "view": "1",
        "stored": true, "paused": true, "waiting": 1, "holders": [],
        "waiters": [waiter(31, "12:00:00", "it is paused")],
    });
    let idle = serde_json::json!({
        "key": "stored", "kind": "buckets", "held": 0, "capacity": 3, "view": "3x2", "stored": true,
        "without": [1],
        "waiting": 0, "holders": [], "waiters": [],
    });
    let readers = serde_json::json!({
        "key": "db/team-1/a-project-with-a-long-name", "kind": null, "held": 0, "capacity": null,
        "view": null, "stored": false, "waiting": 0, "waiters": [],
        "holders": [with(holder(41, "14:05:20"), serde_json::json!({ "mode": "read", "slots": [] }))],
    });
    let mut keys = vec![readers, gpu, paused, idle];
    keys.extend((0..30).map(|n| {
        serde_json::json!({
            "key": format!("team-{n}/job"), "kind": "slots", "held": 1, "capacity": 1, "view": "1",
            "stored": false, "waiting": 0, "holders": [holder(50 + n, "14:00:00")], "waiters": [],
        })
    }));
    status(&keys)
}

/// The name of each screen, and the keys that lead to it.
const SCREENS: [(&str, &str); 6] = [
    ("list", ""),
    ("filter", "/team-1"),
    ("key", "\n↓↓↓"),
    ("help", "?"),
    ("size", "z3x2"),
    ("pause", "↓p"),
];

#[test]
fn screens_are_as_they_were_agreed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/commands/top/screens");
    for size in SIZES {
        for (name, keys) in SCREENS {
            let mut model = model(busy());
            press(&mut model, keys);
            let shown = text(&mut model, size);
            let name = format!("{}x{}-{name}.txt", size.0, size.1);
            if std::env::var_os("UPDATE").is_some() {
                fs::write(dir.join(&name), &shown).unwrap();
            }
            let agreed = fs::read_to_string(dir.join(&name)).unwrap_or_default();
            assert_eq!(shown, agreed, "{name}; UPDATE=1 accepts it");
            assert_eq!(shown.lines().count(), usize::from(size.1), "{name}");
            assert!(shown.lines().all(|line| width(line) <= usize::from(size.0)), "{shown}");
            assert!(!shown.contains('\x1b'), "{shown}");
        }
    }
}

#[test]
fn a_chain_and_a_question_fit_on_a_small_screen() {
    let mut model = model(three());
    let Some(ask) = press(&mut model, "\nw") else { panic!() };
    assert!(text(&mut model, (40, 12)).contains("waiting for the daemon"));
    model.answer(&ask, Answer::Chain(Waits::default()));
    let shown = text(&mut model, (40, 12));
    assert!(
        shown.starts_with("session s2  chain of waits\nsession s2 is not waiting for anything\n"),
        "{shown}"
    );
    press(&mut model, "\x1br");
    let question =
        "break the hold on b by pid 4002 `./build --target module-2 --release` (root, for 3m12s)?";
    let then = Ask::Release { token: 2 };
    model.answer(&Ask::WouldRelease { token: 2 }, Answer::Question(question.to_owned(), then));
    let shown = text(&mut model, (40, 12));
    assert!(shown.ends_with("(root, for\n3m12s)? [y/N]\n"), "{shown}");
    assert!(shown.contains(">"), "the mark is seen: {shown}");
}

#[test]
fn whatever_the_size_the_mark_is_seen_and_nothing_is_drawn_outside() {
    for columns in [1, 5, 20, 40, 73, 300] {
        for lines in [1, 2, 3, 5, 12, 100] {
            for (_, keys) in SCREENS {
                for end in ["", "⤓", "\x1b⤓\n⤓", "\n⤓"] {
                    let mut model = model(busy());
                    press(&mut model, keys);
                    press(&mut model, end);
                    let shown = text(&mut model, (columns, lines));
                    assert_eq!(shown.lines().count(), usize::from(lines));
                    let has_mark = model.above.is_none() && model.mark().is_some();
                    if has_mark && columns >= 20 && lines >= 12 {
                        assert!(
                            shown.contains('>'),
                            "{columns}x{lines} {keys:?} {end:?}:\n{shown}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_page_is_not_scrolled_beyond_its_end() {
    let mut model = model(busy());
    press(&mut model, "?⤓");
    let shown = text(&mut model, (40, 12));
    assert!(shown.contains("confirm r, x, z or p"), "{shown}");
    press(&mut model, "↑");
    assert_ne!(text(&mut model, (40, 12)), shown, "one line up is another page");
}

#[test]
fn a_daemon_that_went_away_is_said_above_what_was_known() {
    let mut model = model(three());
    model.is_lost = true;
    let shown = text(&mut model, (80, 24));
    assert!(shown.starts_with("the daemon has ended"), "{shown}");
    model.report(three());
    assert!(!text(&mut model, (80, 24)).contains("went away"));
}

#[test]
fn nothing_is_said_in_words() {
    let mut empty = model(status(&[]));
    assert!(text(&mut empty, (80, 24)).contains("no locks are held; no one is waiting"));
    empty.is_part = true;
    assert!(text(&mut empty, (80, 24)).contains("no lock matches"));
    let mut model = model(three());
    press(&mut model, "/zzz");
    let shown = text(&mut model, (80, 24));
    assert!(shown.contains("no key matches") && shown.ends_with("filter: zzz\n"), "{shown}");
}
