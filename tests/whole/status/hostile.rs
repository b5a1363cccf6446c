//! A daemon that tries to steer the terminal of its client with every text.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};

use crate::world::World;

/// Sets the title and colours, clears the screen, overrides the direction, and adds invisible
/// characters.
const EVIL: &str =
    "e\u{1b}]0;PWN\u{7}\u{1b}[31m\u{9b}2J\u{202e}\u{200b}\u{ad}\u{2028}\u{e0041}\r\n\u{7f}";

/// Whether a character of a report could steer a terminal. A newline is allowed.
fn steers(c: char) -> bool {
    c != '\n' && (c.is_control() || EVIL.contains(c) && !c.is_ascii())
}

fn holder() -> Value {
    json!({ "pid": 1, "uid": 0, "command": EVIL, "since": "2026-11-25T18:31:44.115Z", "token": 7,
        "slots": [0], "mode": "counted", "session": EVIL, "host": EVIL, "state": EVIL, "note": EVIL,
        "folder": EVIL })
}

fn reply(method: &str, fails: bool) -> Value {
    let info = json!({ "vendor": EVIL, "product": "canal", "version": EVIL, "url": EVIL,
        "interfaces": ["io.canal.Lock", "io.canal.Nodes"] });
    let parameters = match method.rsplit('.').next().unwrap() {
        "GetInfo" => info,
        _ if fails => {
            return json!({ "error": "io.canal.Lock.Denied",
                "parameters": { "message": EVIL, "hint": EVIL } });
        }
        "Status" => json!({
            "daemon": { "pid": 1, "version": EVIL, "socket": EVIL, "uid": 0, "notes": [EVIL],
                "since": "2026-11-25T18:31:44.115Z" },
            "keys": [{ "key": EVIL, "kind": "slots", "held": 1, "capacity": 1, "view": EVIL,
                "stored": false, "paused": false, "waiting": 1, "holders": [holder()],
                "waiters": [{ "pid": 1, "uid": 0, "command": EVIL, "position": 1, "priority": 0,
                    "since": "2026-11-25T18:31:44.115Z", "count": 1, "mode": "counted",
                    "view": null, "session": EVIL, "host": EVIL, "reason": EVIL, "note": EVIL }] }],
        }),
        "Configuration" => json!({
            "file": EVIL, "candidates": [EVIL], "read": "2026-11-25T18:31:44.115Z", "broken": EVIL,
            "settings": [{ "name": EVIL, "value": EVIL, "source": "file", "line": 3, "by": EVIL }],
        }),
        "Metrics" => json!({ "text": format!("a{EVIL}\nb\n# EOF\n") }),
        "Leader" => json!({ "leader": holder(), "candidates": 1, "key": EVIL }),
        "Release" | "WouldRelease" => {
            json!({ "released": [{ "token": 7, "keys": [EVIL], "holder": holder() }] })
        }
        "Acquire" => json!({
            "keys": [{ "key": EVIL, "acquired": 1, "slots": [], "mode": "counted" }], "token": 9,
            "owner": { "pid": 1, "command": EVIL }, "session": EVIL, "frame": EVIL,
            "notes": [{ "key": EVIL, "stated": EVIL, "stored": null, "followed": null,
                "message": EVIL, "first": true }],
        }),
        "Resize" => json!({ "key": EVIL, "before": EVIL, "now": EVIL, "paused": true, "held": 1,
            "waiting": 0 }),
        "Reload" => json!({ "file": EVIL, "notes": [EVIL], "changed": [
            { "name": EVIL, "before": EVIL, "now": EVIL, "restart": true }] }),
        _ => json!({ "message": EVIL }),
    };
    json!({ "parameters": parameters })
}

fn serve(mut stream: UnixStream, fails: bool) {
    let (mut buffer, mut bytes) = ([0; 4096], Vec::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        while let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            let call: Value = serde_json::from_slice(&bytes[..end]).unwrap();
            bytes.drain(..=end);
            let text = reply(call["method"].as_str().unwrap(), fails).to_string() + "\0";
            let _ = stream.write_all(text.as_bytes());
        }
    }
}

#[test]
fn no_text_of_a_daemon_steers_the_terminal() {
    for fails in [false, true] {
        let world = World::new().on_one_host();
        let listener = UnixListener::bind(world.socket()).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream, fails));
            }
        });
        let mut with_text = 0;
        for line in [
            "status",
            "status -v",
            "status -vv x",
            "status --json",
            "status --graph",
            "status --why 1",
            "status --ended",
            "history",
            "history --csv",
            "history --json",
            "stats",
            "stats --json",
            "stats --svg -",
            "trace",
            "metrics",
            "config",
            "config --json",
            "doctor",
            "doctor --json",
            "leader x",
            "leader x --json",
            "test x",
            "test x --json",
            "release --all --pid 1 --json",
            "release --force --token 7",
            "resize x --pause",
            "resize x --pause --json",
            "complete keys",
            "daemon --reload",
            "run -vv -n -k x -- true",
            "acquire -vv -n --pid 1 x",
            "kill --yes x",
        ] {
            // Use colours as on a terminal: a style of the daemon must not pass for one of canal's.
            let command = world.canal(line.split(' ')).env("CLICOLOR_FORCE", "1");
            let ended = command.end();
            let own = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[33m"];
            let text = own
                .iter()
                .fold(ended.stdout.clone() + &ended.stderr, |text, style| text.replace(style, ""));
            let text = text.replace("\r\n", "\n");
            let bad = text.chars().find(|c| steers(*c));
            assert_eq!(bad, None, "canal {line}: {text:?}");
            with_text += usize::from(text.contains("PWN"));
        }
        assert!(with_text >= 15, "only {with_text} reports had a text of the daemon");
    }
}
