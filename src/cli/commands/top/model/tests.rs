use super::*;
use crate::cli::Failed;
use crate::protocol::Waits;

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

/// A key with this many holders and waiters, whose numbers begin at `first`.
fn key(name: &str, first: u64, holders: u64, waiters: u64) -> serde_json::Value {
    let holders: Vec<_> = (first..first + holders).map(|n| row(n, false)).collect();
    let waiters: Vec<_> = (first + 100..first + 100 + waiters).map(|n| row(n, true)).collect();
    serde_json::json!({
        "key": name, "kind": "slots", "held": holders.len(), "capacity": 1, "view": "1",
        "stored": false, "waiting": waiters.len(), "holders": holders, "waiters": waiters,
    })
}

/// A report of these keys.
pub(crate) fn status(keys: &[serde_json::Value]) -> Status {
    let status = serde_json::json!({
        "daemon": { "pid": 77, "version": "0", "socket": "/s", "since": "", "uid": 0, "notes": [] },
        "keys": keys,
    });
    serde_json::from_value(status).unwrap()
}

/// Three keys: `a` is held, `b` has two waiters, and `c` has one.
pub(crate) fn three() -> Status {
    status(&[key("a", 1, 1, 0), key("b", 2, 1, 2), key("c", 4, 1, 1)])
}

pub(crate) fn model(status: Status) -> Model {
    let mut model = Model::default();
    assert_eq!(model.report(status), None);
    model
}

/// Presses keys, and returns what the last one asks.
pub(crate) fn press(model: &mut Model, keys: &str) -> Option<Ask> {
    let mut asked = None;
    for c in keys.chars() {
        let key = match c {
            '\n' => Key::Enter,
            '\x1b' => Key::Escape,
            '\x08' => Key::Backspace,
            '↓' => Key::Down,
            '↑' => Key::Up,
            '⤓' => Key::End,
            c => Key::Char(c),
        };
        asked = model.press(key).continue_value().expect("canal does not quit");
    }
    asked
}

fn listed(model: &Model) -> String {
    model.rows().iter().map(|key| key.key.as_str()).collect::<Vec<_>>().join(" ")
}

fn said(model: &Model) -> &str {
    match &model.bottom {
        Bottom::Said(text) | Bottom::Question(text, _) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_are_sorted_by_what_the_user_wants_to_see_first() {
    let mut model = model(three());
    assert_eq!(listed(&model), "b c a", "most waiters first");
    // The oldest waiters are those of 14:02 (102) and 14:04 (104); the holders are those of 14:01,
    // 14:02 and 14:04.
    for (order, expected) in [
        ("longest wait first", "b c a"),
        ("longest hold first", "a b c"),
        ("by name", "a b c"),
        ("most waiters first", "b c a"),
    ] {
        press(&mut model, "s");
        assert_eq!((ORDERS[model.order].0, listed(&model).as_str()), (order, expected));
    }
}

#[test]
fn a_filter_looks_at_names_users_and_commands_while_it_is_typed() {
    let mut model = model(three());
    press(&mut model, "/");
    for (typed, expected) in [
        ("MODULE-1", "b c a"),
        ("04", "c"),
        ("x", ""),
        ("\x08", "c"),
        ("\n", "c"),
        ("\x1b", "b c a"),
    ] {
        press(&mut model, typed);
        assert_eq!(listed(&model), expected, "{typed}");
    }
    press(&mut model, "/root\n");
    assert_eq!(listed(&model), "b c a");
    press(&mut model, "/q\x1b");
    assert_eq!((listed(&model).as_str(), &model.bottom), ("b c a", &Bottom::Help));
}

#[test]
fn the_mark_stays_on_its_key_and_goes_to_its_neighbour_when_that_is_gone() {
    let mut model = model(three());
    assert_eq!((model.marked.as_deref(), model.mark()), (Some("b"), Some(0)));
    press(&mut model, "↓");
    assert_eq!((model.marked.as_deref(), model.mark()), (Some("c"), Some(1)));
    press(&mut model, "↑↑⤓");
    assert_eq!(model.marked.as_deref(), Some("a"));
    model.report(status(&[key("a", 1, 1, 9), key("b", 2, 1, 2)]));
    assert_eq!((model.marked.as_deref(), model.mark()), (Some("a"), Some(0)));
    model.report(status(&[key("b", 2, 1, 2)]));
    assert_eq!(model.marked.as_deref(), Some("b"));
    model.report(status(&[]));
    assert_eq!((model.marked.as_deref(), model.mark()), (None, None));
    assert_eq!(press(&mut model, "↓\n"), None);
}

#[test]
fn the_mark_on_a_page_stays_on_its_holder() {
    let mut model = model(three());
    press(&mut model, "\n↓");
    let open = model.open.clone().unwrap();
    assert_eq!(open.key, "b");
    let marked = open.marked.unwrap();
    assert_eq!((marked.token, marked.pid), (None, 4102));
    // The holder ends, and the first waiter is granted.
    model.report(status(&[key("b", 102, 1, 1)]));
    assert_eq!(
        model.open.clone().unwrap().marked,
        Some(Who {
            token: None,
            session: "s202".to_owned(),
            pid: 4202,
            since: "2026-11-20T14:02:11Z".to_owned(),
        })
    );
    model.report(status(&[]));
    assert_eq!((model.opened(), model.mark()), (None, None));
    for what in ["w", "r", "x"] {
        assert_eq!(press(&mut model, what), None);
        assert_eq!(said(&model), "no one holds or waits for it");
    }
}

#[test]
fn the_chain_is_asked_anew_with_each_report_and_only_while_it_is_shown() {
    let mut model = model(three());
    let target = WhyQuery { session: Some("s2".to_owned()), pid: None };
    assert_eq!(press(&mut model, "\nw"), Some(Ask::Chain(target.clone())));
    // The answer is on its way.
    assert_eq!(model.report(three()), None);
    model.answer(&Ask::Chain(target.clone()), Answer::Chain(Waits::default()));
    assert_eq!(model.report(three()), Some(Ask::Chain(target.clone())));
    press(&mut model, "\x1b");
    assert_eq!((model.report(three()), &model.above), (None, &None));
    // An answer that comes too late.
    model.answer(&Ask::Chain(target.clone()), Answer::Chain(Waits::default()));
    model.answer(&Ask::Chain(target), Answer::Failed(Failed::new("no")));
    assert_eq!((&model.above, &model.bottom), (&None, &Bottom::Help));
}

#[test]
fn nothing_is_done_without_a_yes_to_the_question_about_it() {
    let question = || Answer::Question("break it?".to_owned(), Ask::Release { token: 2 });
    for (answer, expected) in [
        ("y", Some(Ask::Release { token: 2 })),
        ("n", None),
        ("\n", None),
        ("\x1b", None),
        ("q", None),
    ] {
        let mut model = model(three());
        let ask = Ask::WouldRelease { token: 2 };
        assert_eq!(press(&mut model, "\nr"), Some(ask.clone()));
        model.answer(&ask, question());
        assert_eq!(said(&model), "break it?");
        assert_eq!(press(&mut model, answer), expected, "{answer:?}");
        if expected.is_none() {
            assert_eq!(said(&model), "nothing was done");
        }
    }
}

#[test]
fn a_yes_that_was_typed_before_the_question_is_none() {
    let mut model = model(three());
    let ask = Ask::WouldRelease { token: 2 };
    press(&mut model, "\nry");
    model.answer(&ask, Answer::Question("break it?".to_owned(), Ask::Release { token: 2 }));
    assert_eq!(model.bottom, Bottom::Help);
    assert_eq!(press(&mut model, "y"), None);
}

#[test]
fn what_waits_is_ended_and_not_released() {
    let mut model = model(three());
    assert_eq!(press(&mut model, "\n↓r"), None);
    assert!(said(&model).contains("press x to end its process"), "{:?}", model.bottom);
    let Some(Ask::WouldKill { key, who }) = press(&mut model, "x") else {
        panic!("{:?}", model.bottom)
    };
    assert_eq!((key.as_str(), who.token, who.pid), ("b", None, 4102));
    let failed = Failed::new("not yours").hint("ask root");
    let ask = Ask::WouldRelease { token: 1 };
    model.answer(&ask, Answer::Failed(failed));
    assert_eq!(said(&model), "not yours; ask root");
}

#[test]
fn a_size_is_typed_read_and_confirmed() {
    let stored = |typed: &str| {
        let mut model = model(three());
        assert_eq!(press(&mut model, &format!("z{typed}\n")), None);
        let text = said(&model).to_owned();
        (text, press(&mut model, "y"))
    };
    let resize = Resize { key: "b".to_owned(), ..Resize::default() };
    let order = |resize| Some(Ask::Resize(resize));
    let (text, effect) = stored("34\x08x2");
    assert_eq!(text, "store 3x2 as the size of b for everyone?");
    assert_eq!(effect, order(Resize { per: Some(3), buckets: Some(2), ..resize.clone() }));
    let (text, effect) = stored("");
    assert_eq!(text, "forget the stored size of b?");
    assert_eq!(effect, order(Resize { forget: true, ..resize }));
    for wrong in ["0", "x", "3x", "-1", "999999999999999999999"] {
        let (text, effect) = stored(wrong);
        assert!(text.contains("a size is"), "{text}");
        assert_eq!(effect, None);
    }
    let mut model = model(three());
    press(&mut model, "z4\x1b");
    assert_eq!(model.bottom, Bottom::Help);
}

#[test]
fn a_key_is_paused_and_a_paused_one_resumed() {
    for is_paused in [false, true] {
        let mut b = key("b", 2, 1, 2);
        b["paused"] = is_paused.into();
        let mut model = model(status(&[b]));
        assert_eq!(press(&mut model, "p"), None);
        assert_eq!(said(&model).starts_with("resume b"), is_paused);
        let Some(Ask::Resize(resize)) = press(&mut model, "y") else { panic!() };
        assert_eq!((resize.key.as_str(), resize.pause), ("b", Some(!is_paused)));
    }
}

#[test]
fn a_page_above_is_left_before_anything_else_happens() {
    let mut model = model(three());
    let asked = press(&mut model, "\nh");
    assert_eq!(asked, Some(Ask::History { key: "b".to_owned() }));
    assert_eq!(press(&mut model, "x"), None, "it is about what is not seen");
    assert_eq!((&model.above, &model.bottom), (&None, &Bottom::Help));
    press(&mut model, "?\x1b\x1b");
    assert_eq!(model.open, None);
    assert!(model.press(Key::Char('q')).is_break());
}

#[test]
fn j_and_k_move_the_mark_but_are_text_in_a_filter() {
    let mut model = model(three());
    let marked = |model: &Model| model.marked.clone();
    press(&mut model, "↓");
    let second = marked(&model);
    press(&mut model, "k");
    assert_ne!(marked(&model), second);
    press(&mut model, "j");
    assert_eq!(marked(&model), second);
    press(&mut model, "/jk");
    assert_eq!(model.filter, "jk");
}
