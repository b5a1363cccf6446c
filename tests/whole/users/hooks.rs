//! Hooks of a daemon that users share.

use serde_json::Value;

use crate::namespace::privately;
use crate::world::World;

/// A shared daemon of root with one hook. Its program runs as the user `teller` and keeps its
/// events in /mnt/told; `$HOOK` is the rest of the hook.
const SHARED: &str = r#"
    mount -t tmpfs -o mode=755 tmpfs /etc
    printf 'root:x:0:0::/root:/bin/sh\nteller:x:20009:20009::/mnt/home:/bin/sh\n' >/etc/passwd
    printf 'root:x:0:\nteller:x:20009:\nmail:x:20010:teller\n' >/etc/group
    mkdir -m 755 /etc/canal /run/canal
    mkdir /mnt/home /mnt/out
    chown 20009 /mnt/out
    cat >/mnt/tell <<'END'
#!/bin/sh
{ id -u; id -G; echo "$USER $HOME"; } >/mnt/out/ids
cat >>/mnt/out/told
END
    chmod 755 /mnt /mnt/tell
    printf '[[hooks]]\non = ["lost-lease", "deadlock"]\nuser = "teller"\nrun = ["/mnt/tell"]\n' \
        >/etc/canal/canal.toml
    canal daemon 2>/mnt/log &
    until_true canal status --no-start >/dev/null 2>&1
    one() { setpriv --reuid 20001 --regid 20001 --clear-groups "$@"; }
    two() { setpriv --reuid 20002 --regid 20002 --clear-groups "$@"; }
    told() { cat /mnt/out/told 2>/dev/null; }
"#;

#[test]
fn a_daemon_of_root_runs_a_program_as_its_user_who_sees_no_commands_of_others() {
    let world = World::new();
    let script = r#"
        one canal acquire --ttl 1 secret-of-one >/dev/null
        until_true sh -c 'grep -q lost-lease /mnt/out/told'
        told
        cat /mnt/out/ids
        chmod 777 /mnt/tell
        canal doctor | grep '^PROBLEM  hook '
    "#;
    let Some(ended) = privately(&world, &format!("{SHARED}{script}")) else { return };
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let facts: Value = serde_json::from_str(lines[0]).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!((&facts["uid"], &facts["command"]), (&20001.into(), &Value::Null));
    assert_eq!(facts["items"][0]["key"], "secret-of-one");
    assert_eq!(lines[1..4], ["20009", "20009 20010", "teller /mnt/home"], "{ended:?}");
    assert!(lines[4].contains("is writable by other users (mode 0777)"), "{ended:?}");
}

#[test]
fn a_user_with_many_events_does_not_keep_another_one_from_being_heard() {
    let world = World::new();
    let script = r#"
        one sh -c 'for n in $(seq 60); do canal acquire --ttl 1 one$n >/dev/null || exit 1; done'
        until_true sh -c '[ $(wc -l </mnt/out/told) -ge 10 ]'
        two canal acquire --ttl 1 two >/dev/null
        until_true sh -c 'grep -q 20002 /mnt/out/told'
        told
    "#;
    let Some(ended) = privately(&world, &format!("{SHARED}{script}")) else { return };
    let facts: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(facts.iter().any(|one| one["items"][0]["key"] == "two"), "{facts:?}");
    // The daemon keeps 32 events of the first user and drops the rest. At the rate at which it runs
    // the hook, 32 events take more than a minute.
    assert!(facts.len() < 30, "{}", facts.len());
}

/// Some users may be unable to read the file, because hooks have tokens in their arguments.
#[test]
fn users_see_of_the_configuration_only_what_binds_them() {
    let world = World::new();
    let script = r#"
        printf '%s\n' '[limits]' 'waiters_per_user = 77' '[keys.db]' 'slots = 5' '[[permission]]' \
            'keys = "deploy"' 'groups = ["mail"]' 'may = ["hold"]' '[[hooks]]' 'on = ["lost-lease"]' 'user = "teller"' \
            'run = ["/mnt/SECRET-tell", "https://hook.example/SECRET"]' >/etc/canal/canal.toml
        chmod 600 /etc/canal/canal.toml
        printf '#!/bin/sh\nexit 3\n' >/mnt/SECRET-tell
        chmod 755 /mnt/SECRET-tell
        canal daemon --reload >/dev/null 2>&1
        canal acquire --ttl 1 x >/dev/null
        until_true sh -c 'canal status -v | grep -q SECRET-tell'
        one canal config
        for args in 'config --json' 'status -v' 'status --json' doctor metrics 'daemon --reload' 'history --json' \
            'status --ended' 'run -k deploy true' 'status -vv --graph'; do
            echo "== $args"
            one canal $args 2>&1 | grep SECRET
        done
        echo == log
        grep example /mnt/log
        canal config | grep -c hook.example
        printf 'run = [SECRET' >>/etc/canal/canal.toml
        one canal config 2>&1 | grep SECRET
        one canal daemon --reload 2>&1 | grep SECRET
        one canal doctor 2>&1 | grep SECRET
        true
    "#;
    let Some(ended) = privately(&world, &format!("{SHARED}{script}")) else { return };
    let out = &ended.stdout;
    for shown in ["limits.waiters_per_user  ", "77", "keys.db", "permission[0]", "see all settings"]
    {
        assert!(out.contains(shown), "{shown}: {ended:?}");
    }
    assert!(!out.contains("SECRET") && !out.contains("hooks"), "{ended:?}");
    assert!(out.ends_with("== log\n1\n"), "{ended:?}");
}
