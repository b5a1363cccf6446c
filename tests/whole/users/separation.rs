//! canal warns without being asked when two sets of locks are separate.

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::Ended;

/// `alice` runs a command as another user, `try` prints its standard error, and `daemon_of` waits
/// for a user's own daemon.
const PRELUDE: &str = r#"
    unset CANAL_SEPARATE
    alice() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
    try() { echo "== $*"; "$@" 2>&1 >/dev/null; }
"#;

/// The messages of each `try`, without the note about the pid namespace of the test itself.
fn said(ended: &Ended) -> Vec<String> {
    let parts = ended.stdout.split("== ").skip(1);
    let said = parts.map(|part| {
        let lines = part.lines().skip(1).filter(|line| !line.contains("pid namespace"));
        lines.collect::<Vec<_>>().join("\n")
    });
    said.collect()
}

fn tried(world: &World, script: &str) -> Option<(Vec<String>, Ended)> {
    let ended = privately(world, &format!("{PRELUDE}{script}"))?;
    let said = said(&ended);
    Some((said, ended))
}

#[test]
fn the_first_client_of_a_daemon_is_told_of_other_users_daemons() {
    let world = World::new();
    let script = r"
        try alice canal run -k x -- true
        try canal run -k x -- true
        try canal run -k x -- true
        try canal -v run -k x -- true
        canal daemon --stop
        try canal -q run -k x -- true
        canal daemon --stop
        try env CANAL_SEPARATE=1 canal run -k x -- true
        try setpriv --reuid 54321 --regid 54321 --clear-groups canal status
    ";
    let Some((said, ended)) = tried(&world, script) else { return };
    let note = |who: &str| {
        format!(
            "canal: note: {who} on this machine, so their locks do not block yours, nor yours \
             theirs; run `canal setup` as root to create one table for all users"
        )
    };
    let theirs = note("12345 has their own daemon");
    assert_eq!(said[0], "", "{ended:?}");
    assert_eq!(said[1], theirs, "{ended:?}");
    assert_eq!(said[2], "", "once for a daemon: {ended:?}");
    assert!(said[3].contains(&theirs), "{ended:?}");
    assert_eq!(said[4..6], ["", ""], "{ended:?}");
    assert_eq!(said[6], note("root and 12345 have their own daemons"), "{ended:?}");
}

#[test]
fn the_users_of_a_daemon_that_runs_are_told_once_of_one_that_starts_later() {
    let world = World::new();
    let script = r"
        try canal run -k x -- true
        alice canal run -k x -- true 2>/dev/null
        try canal run -k x -- true
        touch -d '1 minute ago' /tmp/canal-0/told-users
        try canal -q run -k x -- true
        try canal run -k x -- true
        touch -d '1 minute ago' /tmp/canal-0/told-users
        try canal run -k x -- true
        setpriv --reuid 54321 --regid 54321 --clear-groups canal status >/dev/null 2>&1
        touch -d '1 minute ago' /tmp/canal-0/told-users
        try env CANAL_SEPARATE=1 canal run -k x -- true
        try sh -c 'for i in 1 2 3 4; do canal run -k x -- true & done; wait'
        touch -d '1 minute ago' /tmp/canal-0/told-users
        try canal run -k x -- true
        canal daemon --stop
        try canal run -k x -- true
    ";
    let Some((said, ended)) = tried(&world, script) else { return };
    let note = |who: &str| {
        format!(
            "canal: note: {who} on this machine, so their locks do not block yours, nor yours \
             theirs; run `canal setup` as root to create one table for all users"
        )
    };
    assert_eq!(said[0], "", "{ended:?}");
    assert_eq!(said[1], "", "a client looked just before: {ended:?}");
    assert_eq!(said[2], "", "-q: {ended:?}");
    assert_eq!(said[3], note("12345 has their own daemon"), "{ended:?}");
    assert_eq!(said[4], "", "once: {ended:?}");
    assert_eq!(said[5], "", "CANAL_SEPARATE: {ended:?}");
    assert_eq!(said[6], note("54321 has their own daemon"), "by one of four: {ended:?}");
    assert_eq!(said[7], "", "once: {ended:?}");
    let both = note("12345 and 54321 have their own daemons");
    assert_eq!(said[8], both, "of each daemon: {ended:?}");
}

#[test]
fn root_under_sudo_is_told_once_of_the_daemon_of_the_calling_user() {
    let world = World::new();
    let script = "
        try canal run -k x -- true
        try alice canal run -k x -- true
        try env SUDO_UID=12345 canal run -k x -- true
        try env SUDO_UID=12345 canal run -k x -- true
        try env SUDO_UID=12345 canal -v status
        try env SUDO_UID=54321 canal run -k x -- true
        try env SUDO_UID=12345 canal --socket /tmp/own/canal.sock run -k x -- true
        try env SUDO_UID=12345 setpriv --reuid 54321 canal run -k x -- true
        env PKEXEC_UID=12345 canal doctor >&2
    ";
    let Some((said, ended)) = tried(&world, script) else { return };
    let words = "canal: note: under sudo, canal uses root's locks, not those of 12345 \
                 (/tmp/canal-12345/canal.sock); run `canal setup` as root to create one table for \
                 all users";
    assert!(said[1].contains("root has their own daemon"), "{ended:?}");
    assert_eq!(said[2], words, "{ended:?}");
    assert_eq!(said[3], "", "{ended:?}");
    assert!(said[4].contains(words), "{ended:?}");
    assert!(!said[5..].iter().any(|said| said.contains("under sudo")), "{ended:?}");
    assert!(ended.stderr.contains("run canal without sudo"), "{ended:?}");
}

#[test]
fn a_socket_of_the_environment_beside_the_daemon_of_others_is_pointed_out() {
    let world = World::new();
    let script = "
        mkdir -m 700 /tmp/own /tmp/second /tmp/third
        try env CANAL_SOCKET=/tmp/own/canal.sock canal run -k x -- true
        try canal run -k x -- true
        try env CANAL_SOCKET=/tmp/second/canal.sock canal run -k x -- true
        try env CANAL_SOCKET=/tmp/second/canal.sock canal run -k x -- true
        try canal --socket /tmp/third/canal.sock run -k x -- true
        try env CANAL_SOCKET=/tmp/canal-0/canal.sock canal run -k x -- true
        canal daemon --stop
        mkdir -m 755 /run/canal
        try env CANAL_SOCKET=/tmp/third/canal.sock canal daemon --stop
        try env CANAL_SOCKET=/tmp/third/canal.sock canal run -k x -- true
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        try env CANAL_SOCKET=/tmp/third/canal.sock canal daemon --stop
        try env CANAL_SOCKET=/tmp/third/canal.sock canal run -k x -- true
    ";
    let Some((said, ended)) = tried(&world, script) else { return };
    let note = |usual: &str| {
        format!(
            "canal: note: CANAL_SOCKET names a daemon other than the usual one ({usual}); the two \
             do not share locks"
        )
    };
    assert_eq!(said[2], note("/tmp/canal-0/canal.sock"), "{ended:?}");
    assert_eq!(said[9], note("/run/canal/canal.sock"), "{ended:?}");
    for at in [0, 1, 3, 4, 5, 7] {
        assert_eq!(said[at], "", "{at}: {ended:?}");
    }
}

#[test]
fn another_tmp_is_pointed_out() {
    let world = World::new();
    let script = "
        other_tmp() { unshare -m sh -c 'mount -t tmpfs -o mode=1777 tmpfs /tmp; \"$@\"' sh \"$@\"; }
        try canal run -k x -- true
        try other_tmp canal run -k x -- true
        alice canal run -k x -- true 2>/dev/null
        alice_in() { unshare -m sh -c 'mount -t tmpfs -o mode=1777 tmpfs /tmp; exec setpriv --reuid 12345 --regid 12345 --clear-groups \"$@\"' sh \"$@\"; }
        try alice_in canal run -k x -- true
    ";
    let Some((said, ended)) = tried(&world, script) else { return };
    assert_eq!(said[0], "", "{ended:?}");
    let of_root = "canal: note: this process has a different /tmp from process 1, so it might not \
                   share locks with your other commands; run `canal setup`";
    assert!(said[1].starts_with(of_root), "{ended:?}");
    // For a user who may not examine process 1, the running daemons reveal the difference.
    let of_alice = "canal: note: you have another daemon in another /tmp; it does not share locks \
                    with this one; run `canal setup`";
    assert!(said[2].starts_with(of_alice), "{ended:?}");
}

#[test]
fn a_pid_namespace_is_pointed_out() {
    let world = World::new();
    let script = "try canal run -k x -- true; try canal run -k x -- true";
    let Some(ended) = privately(&world, &format!("{PRELUDE}{script}")) else { return };
    let note = "canal: note: this is a container or similar (it has its own pid namespace), so it \
                does not share locks with processes outside it; run `canal setup`";
    assert_eq!(ended.stdout.matches(note).count(), 1, "{ended:?}");
    assert!(ended.stdout.find(note) < ended.stdout.rfind("== "), "{ended:?}");
}

#[test]
fn a_second_socket_in_a_folder_is_refused_at_once_with_the_true_reason() {
    let world = World::with_daemon();
    let first = world.socket().display().to_string();
    let second = world.runtime().join("second.sock").display().to_string();
    let daemon = world.status().daemon.pid;
    for command in [&["status"][..], &["run", "-k", "x", "--", "true"], &["daemon"]] {
        let mut args = vec!["--socket", second.as_str()];
        args.extend(command);
        let ended = world.canal(args).end().code(125);
        let folder = world.runtime().display().to_string();
        let word = if first.contains(' ') { format!("'{first}'") } else { first.clone() };
        let said = format!(
            "canal: the daemon in {folder} is listening at {first} (pid {daemon}), and a \
             directory can have only one daemon\n\
             hint: reach it with `--socket {word}`; another socket needs its own directory\n"
        );
        assert_eq!(ended.stderr, said);
    }
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(0);
}
