//! The rights of each user at a shared daemon.

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::Ended;

/// A shared daemon whose configuration is `$CONFIG`. `ops`, `web` and `none` run a command as a
/// user of the group ops (by its primary group), of web (by another group), and of neither.
const SHARED: &str = r#"
    cp /etc/passwd /mnt/passwd
    mount -t tmpfs -o mode=755 tmpfs /etc
    cp /mnt/passwd /etc/passwd
    printf 'root:x:0:\nops:x:7001:\nweb:x:7002:\n' >/etc/group
    mkdir -m 755 /etc/canal /run/canal
    printf '%s' "$CONFIG" >/etc/canal/canal.toml
    canal daemon 2>/tmp/log &
    until_true canal status --no-start >/dev/null 2>&1
    ops() { setpriv --reuid 20001 --regid 7001 --clear-groups "$@"; }
    web() { setpriv --reuid 20002 --regid 20002 --groups 8001,7002,8002 "$@"; }
    none() { setpriv --reuid 20003 --regid 20003 --clear-groups "$@"; }
    try() { echo "== $*"; "$@" 2>&1; echo "code $?"; }
"#;

/// The output of each `try`, after its exit code.
fn tried(ended: &Ended) -> Vec<(&str, &str, &str)> {
    let parts = ended.stdout.split("== ").skip(1);
    let tried = parts.map(|part| {
        let (command, rest) = part.split_once('\n').unwrap();
        let (said, code) = rest.split_once("code ").unwrap_or_else(|| panic!("{ended:?}"));
        (command, code.trim(), said)
    });
    tried.collect()
}

fn at_a_shared_daemon(world: &World, config: &str, script: &str) -> Option<Ended> {
    privately(world, &format!("CONFIG='{config}'\n{SHARED}{script}"))
}

#[test]
fn the_entry_with_the_longest_key_decides_about_holds() {
    let world = World::new();
    let config = r#"
[[permission]]
keys = "deploy"
groups = ["ops"]
may = ["hold"]
[[permission]]
keys = "deploy/web"
groups = ["web", 7003]
may = ["hold"]
"#;
    let script = "
        try ops canal run -n -k deploy -- true
        try ops canal run -n -k deploy/db -- true
        try ops canal run -n -k deploy/web/1 -- true
        try web canal run -n -k deploy/web/1 -- true
        try web canal run -n -k deploy -- true
        try none canal run -n -k deploy/db -- true
        try none canal run -n -k other -k deploy -- true
        try none canal run -n -k deployment -k other -- true
        try ops canal run -n --write deploy/db -- true
        try ops canal run -n --write deploy -- true
        try ops canal run -n --read deploy -- true
        try canal run -n -k deploy/web -k deploy -- true
    ";
    let Some(ended) = at_a_shared_daemon(&world, config, script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    let expected = ["0", "0", "125", "0", "125", "125", "125", "0", "0", "125", "125", "0"];
    assert_eq!(codes, expected, "{ended:?}");
    assert_eq!(
        tried[2].2,
        "canal: uid 20001 may not hold `deploy/web/1`; only the groups web and 7003 may do so\n\
         hint: see `[[permission]]` in /etc/canal/canal.toml and canal.toml(5)\n"
    );
    assert!(
        tried[6].2.contains("may not hold `deploy`; only the group ops may do so\n"),
        "{ended:?}"
    );
    let below = "may not hold `deploy/web`, which is below `deploy`; only the groups";
    assert!(tried[9].2.contains(below), "{ended:?}");
}

#[test]
fn resize_force_and_priority_are_permitted_by_group_only() {
    let world = World::new();
    let config = r#"
[[permission]]
groups = ["ops"]
may = ["resize", "force", "priority"]
[[permission]]
keys = "mine"
groups = ["web"]
may = ["force"]
"#;
    let script = r#"
        token_of() { canal status --json "$1" | tr ',' '\n' | sed -n 's/.*"token": *\([0-9]*\).*/\1/p' | head -1; }
        held() { until_true sh -c "canal status --json $1 | grep -q '\"held\": *1'"; token_of "$1"; }
        none canal run -k x -- sleep 600 & holder=$!
        token=$(held x)
        canal run -k mine -- sleep 600 &
        mine=$(held mine)
        web canal run -k x -k mine/1 -- sleep 600 &
        try web canal release --force --token $token
        try web canal resize x --slots 2
        try web canal run -n --priority 1 -k free -- true
        try web canal run -n --priority -1 -k free -- true
        try ops canal run -n --priority 1 -k free -- true
        try ops canal resize x --slots 2
        try ops canal release --force --token $mine
        try web canal release --force --token $mine
        try ops canal release --force --token $token
        none canal run -k y -- sleep 600 &
        token=$(held y)
        try none canal release --force --token $token
    "#;
    let Some(ended) = at_a_shared_daemon(&world, config, script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    let expected = ["125", "125", "125", "0", "0", "0", "125", "0", "0", "0"];
    assert_eq!(codes, expected, "{ended:?}");
    for (at, what) in [
        (0, "break other users' holds on `x`; only the group ops may do so\n"),
        (1, "resize `x`; only the group ops may do so\n"),
        (2, "ask for `free` with a priority above 0; only the group ops may do so\n"),
        (6, "break other users' holds on `mine`; only the group web may do so\n"),
    ] {
        assert!(tried[at].2.contains(what), "{}: {ended:?}", tried[at].0);
        assert_eq!(tried[at].2.lines().count(), 2, "{ended:?}");
    }
}

#[test]
fn owners_may_lower_a_priority_and_operators_may_raise_it() {
    let world = World::new();
    let script = r#"
        waiting() { canal status --json x | grep -q '"waiting": *1'; }
        canal run -k x -- sleep 600 & holder=$!
        until_true sh -c "canal status --json x | grep -q '\"held\": *1'"
        web canal run -k x -- true & waiter=$!
        until_true waiting
        session=$(canal status --json x | tr ',' '\n' | sed -n 's/.*"session": *"s\([0-9]*\)".*/\1/p' | tail -1)
        try none canal priority $session -1
        try web canal priority $session 1
        try web canal priority $session -1
        try canal priority $session 5
        kill $holder
        try wait $waiter
    "#;
    let Some(ended) = at_a_shared_daemon(&world, "", script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["125", "125", "0", "0", "0"], "{ended:?}");
    assert!(tried[0].2.contains("belongs to uid 20002"), "{ended:?}");
    assert!(tried[1].2.contains("with a priority above 0"), "{ended:?}");
}

#[test]
fn without_entries_other_users_may_only_hold() {
    let world = World::new();
    let script = "
        try ops canal run -n -k x -- true
        try ops canal run -n --priority 1 -k x -- true
        try ops canal resize x --slots 2
        try canal run -n --priority 1 -k x -- true
        try canal resize x --slots 2
    ";
    let Some(ended) = at_a_shared_daemon(&world, "", script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["0", "125", "125", "0", "0"], "{ended:?}");
    assert_eq!(
        tried[2].2,
        "canal: uid 20001 may not resize `x`; only root may do so\n\
         hint: see `[[permission]]` in /etc/canal/canal.toml and canal.toml(5)\n"
    );
}

#[test]
fn a_user_at_its_limit_of_connections_shuts_out_no_other_user() {
    let world = World::new();
    let config = "[limits]\nconnections_per_user = 2\n";
    let script = r#"
        shows() { until_true sh -c "canal status --json x | grep -q '\"$1\": *$2'"; }
        canal run -k x -- sleep 600 &
        shows held 1
        web canal run -k x -- true &
        web canal run -k x -- true &
        shows waiting 2
        try web canal run -n -k y -- true
        try ops canal run -n -k y -- true
        try canal run -n -k y -- true
    "#;
    let Some(ended) = at_a_shared_daemon(&world, config, script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["125", "0", "0"], "{ended:?}");
    assert_eq!(
        tried[0].2,
        "canal: uid 20002 has 2 connections to the daemon, the most that one user may have\n\
         hint: try again later, or raise `connections_per_user` or `connections` in the \
         configuration\n"
    );
}

#[test]
fn a_waiter_that_lost_its_permission_is_refused_when_its_turn_comes() {
    let world = World::new();
    let config =
        "[[permission]]\nkeys = \"deploy\"\ngroups = [\"ops\", \"web\"]\nmay = [\"hold\"]\n";
    let script = r#"
        shows() { until_true sh -c "canal status --json deploy | grep -q '\"$1\": *$2'"; }
        mkfifo /tmp/go
        canal run -k deploy -- cat /tmp/go &
        shows held 1
        web canal run -k deploy -- echo web ran >/tmp/web 2>&1 & web=$!
        shows waiting 1
        ops canal run -k deploy -- echo ops ran >/tmp/ops 2>&1 & ops=$!
        shows waiting 2
        try web canal daemon --reload
        sed -i 's/, "web"//' /etc/canal/canal.toml
        try canal daemon --reload
        shows waiting 2
        : >/tmp/go
        wait $web; echo "web $?"; cat /tmp/web
        wait $ops; echo "ops $?"; cat /tmp/ops
    "#;
    let Some(ended) = at_a_shared_daemon(&world, config, script) else { return };
    assert_eq!(
        ended.stdout,
        "== web canal daemon --reload\n\
         canal: uid 20002 may not change the configuration in force; only root may do so\n\
         code 125\n\
         == canal daemon --reload\n\
         canal: read /etc/canal/canal.toml: 1 setting changed\n\
         canal: permission[0]: groups = [\"ops\"], keys = \"deploy\", may = [\"hold\"] (was groups \
         = [\"ops\", \"web\"], keys = \"deploy\", may = [\"hold\"])\n\
         code 0\n\
         web 125\n\
         canal: uid 20002 may not hold `deploy`; only the group ops may do so since the \
         configuration changed\n\
         hint: see `[[permission]]` in /etc/canal/canal.toml and canal.toml(5)\n\
         ops 0\n\
         ops ran\n",
        "{ended:?}"
    );
}

#[test]
fn a_configuration_that_another_user_could_have_written_is_refused() {
    let world = World::new();
    let script = r#"
        chown 20001 /etc/canal/canal.toml; try canal daemon --reload
        chown 0 /etc/canal/canal.toml; chmod 664 /etc/canal/canal.toml; try canal daemon --reload
        canal daemon --stop; try canal daemon
        chmod 644 /etc/canal/canal.toml; try canal daemon --reload
    "#;
    let Some(ended) = at_a_shared_daemon(&world, "", script) else { return };
    let tried = tried(&ended);
    let refused =
        "is writable by other users (mode 0664): run `chmod go-w /etc/canal/canal.toml`\n";
    assert_eq!(
        tried[0].2,
        "canal: /etc/canal/canal.toml belongs to uid 20001 and must belong to root\n\
         hint: the previous configuration stays in force\n"
    );
    assert!(tried[1].2.contains(refused), "{ended:?}");
    assert!(tried[2].2.contains(refused) && tried[2].1 == "125", "{ended:?}");
    assert_eq!(
        (tried[3].1, tried[3].2),
        (
            "0",
            "canal: no daemon is running at /run/canal/canal.sock; the next one will read \
             /etc/canal/canal.toml\n"
        ),
        "{ended:?}"
    );
}

#[test]
fn top_shows_and_does_no_more_than_its_user_may() {
    let world = World::new();
    // `script` is the terminal, and the keystrokes come from a FIFO. The screen does not rewrite
    // words that were already there, so the test looks only for text written in one piece.
    let script = r#"
        canal run -k deploy -- sh -c ': of root; exec sleep 600' &
        until_true sh -c 'canal status --json | grep -q "\"held\":1"'
        mkfifo -m 666 /tmp/keys
        exec 7<>/tmp/keys
        touch /tmp/shown
        chmod 666 /tmp/shown
        none env TERM=xterm script -qefc 'stty rows 24 cols 120; canal top deploy' /tmp/shown \
            </tmp/keys >/dev/null &
        top=$!
        shows() { until_true grep -aq "$1" /tmp/shown; }
        shows '> holds'
        printf r >&7
        shows '`\[\[permission\]\]`'
        printf x >&7
        shows 'belongs to'
        printf q >&7
        wait $top
        echo "code $?"
        canal status --json | grep -c '"held":1'
        cat /tmp/shown
    "#;
    let Some(ended) = at_a_shared_daemon(&world, "", script) else { return };
    assert!(ended.stdout.starts_with("code 0\n1\n"), "{ended:?}");
    assert!(ended.stdout.contains("(hidden)"), "{ended:?}");
    assert!(!ended.stdout.contains("of root"), "{ended:?}");
    assert!(!ended.stdout.contains("[y/N]"), "nothing is asked that it may not do: {ended:?}");
}
