//! The way from users' own daemons to one daemon for the machine.

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::{Ended, installed_or_skip};

/// Makes `/run/canal` and starts its daemon, as the installation of a package does. `own` runs
/// canal at a user's own daemon, `held` waits until it holds a key, and `try` runs a command and
/// prints its exit code.
pub(super) const INSTALLED: &str = r#"
    alice() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
    own() { canal --socket /tmp/canal-0/canal.sock "$@"; }
    held() { until_true sh -c "canal $1 status $2 | grep -q '^ *holds '"; }
    install_it() {
        mkdir -m 755 /run/canal
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
    }
    try() { echo "== $*"; "$@" 2>&1; echo "code $?"; }
"#;

/// Each command that `try` ran, with its exit code and its messages.
pub(super) fn tried(ended: &Ended) -> Vec<(&str, &str, &str)> {
    let parts = ended.stdout.split("== ").skip(1);
    let tried = parts.map(|part| {
        let (command, rest) = part.split_once('\n').unwrap();
        let (said, code) = rest.split_once("code ").unwrap_or_else(|| panic!("{ended:?}"));
        (command, code.trim(), said)
    });
    tried.collect()
}

#[test]
fn hints_name_what_starts_services_on_this_machine() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        try alice canal run -n -k x -- true
        try canal status --no-start
        try canal doctor
        chmod 711 /run/canal
        mkdir -p /run/systemd/system
        try canal status --no-start
        try canal doctor
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    let said = |at: usize| tried[at].2;
    for without in 0..3 {
        let said = said(without);
        let hint = "start it as root, with any canal command or with `canal setup`";
        assert!(said.contains(hint) && !said.contains("systemctl"), "{ended:?}");
    }
    for with in 3..5 {
        assert!(said(with).contains("`systemctl enable --now canal.socket`"), "{ended:?}");
    }
}

#[test]
fn what_is_left_of_a_users_own_daemon_is_no_reason_for_another_table() {
    let world = World::new();
    let script = r#"
        alice canal run -k q -- true
        install_it
        try canal doctor
        try env CANAL_SOCKET=/tmp/other/canal.sock canal doctor
        alice canal --socket /tmp/canal-12345/canal.sock daemon --stop
        try canal doctor
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    let others = |at: usize| {
        let lines = tried[at].2.lines().skip_while(|line| !line.contains("  others  "));
        lines.take(2).collect::<String>()
    };
    let left = " still has a separate daemon at /tmp/canal-12345/canal.sock: 12345's next command \
                ends that daemon";
    assert!(others(0).starts_with("note ") && others(0).contains(left), "{ended:?}");
    assert!(others(1).contains("leave out --socket and CANAL_SOCKET to share it"), "{ended:?}");
    assert_eq!(others(2), "", "{ended:?}");
    assert!(!ended.stdout.contains("canal setup"), "{ended:?}");
}

#[test]
fn a_user_whose_own_daemon_holds_locks_is_refused_by_the_daemon_of_the_machine() {
    let world = World::new();
    let script = r#"
        canal run -k nightly -- sleep 600 & holder=$!
        held '' nightly
        canal run -k nightly -- sleep 601 & waiter=$!
        until_true sh -c "canal status nightly | grep -q '#1'"
        install_it
        try canal run -n -k other -- true
        try canal acquire --pid $holder -n -k other
        try alice canal run -n -k other -- true
        kill -9 $(cat /tmp/canal-0/lock)
        try canal run -n -k other -- true
        kill $holder
        until_true sh -c '! canal --socket /tmp/canal-0/canal.sock status nightly | grep -q " #1 "'
        try canal run -n -k other -- true
        kill $waiter
        until_true sh -c '! canal --socket /tmp/canal-0/canal.sock status | grep -q nightly'
        try canal run -n -k other -- true
        try test -e /tmp/canal-0/canal.sock
        try canal run -n -k other -- true
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    // The user without a daemon continues. canal starts a killed daemon again and asks it. It ends
    // the last daemon once that has nothing left.
    assert_eq!(codes, ["125", "125", "0", "125", "125", "0", "1", "0"], "{ended:?}");
    for (at, more) in [(0, ", 1 more"), (1, ", 1 more"), (3, ", 1 more"), (4, "")] {
        let mut lines = tried[at].2.lines();
        let said = lines.next().unwrap();
        let begin = "canal: your own daemon still holds locks that the machine's daemon does not \
                     know about: nightly (pid ";
        assert!(said.starts_with(begin) && said.ends_with(&format!("){more}")), "{ended:?}");
        assert_eq!(
            lines.next(),
            Some(
                "hint: wait until they end (`canal status --socket /tmp/canal-0/canal.sock`), or \
                 give them up with `canal daemon --stop --socket /tmp/canal-0/canal.sock`"
            ),
            "{ended:?}"
        );
    }
}

#[test]
fn telling_ones_own_daemon_to_end_gives_its_locks_up() {
    let world = World::new();
    let script = r#"
        canal run -k nightly -- sleep 600 &
        held '' nightly
        install_it
        try canal run -n -k nightly -- true
        try canal daemon --stop --socket /tmp/canal-0/canal.sock
        try canal run -n -k nightly -- true
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, ["125", "0", "0"], "{ended:?}");
}

#[test]
fn the_state_of_ones_own_daemon_is_there_when_its_socket_is_named() {
    let world = World::new();
    let script = r#"
        canal resize kept --slots 7
        canal acquire --ttl 1h -k lease >/dev/null
        canal daemon --stop
        install_it
        try canal --socket /tmp/canal-0/canal.sock status kept
        try sh -c 'canal --socket /tmp/canal-0/canal.sock status lease | grep -c "^ *holds "'
        ls -A /tmp/canal-0 | grep -c -e state -e lease
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    assert!(tried[0].2.contains("of 7"), "{ended:?}");
    assert_eq!(tried[1].2, "1\n", "{ended:?}");
    assert!(ended.stdout.ends_with("code 0\n0\n"), "no other state was begun: {ended:?}");
}

#[test]
fn the_mode_of_the_socket_says_who_may_connect() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        mount -t tmpfs -o mode=755 tmpfs /etc
        printf 'root:x:0:0::/root:/bin/sh\n' >/etc/passwd
        printf 'root:x:0:\nops:x:7001:\n' >/etc/group
        mkdir /etc/canal
        printf '[socket]\ngroup = "ops"\nmode = "0660"\n' >/etc/canal/canal.toml
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        ops() { setpriv --reuid 20001 --regid 7001 --clear-groups "$@"; }
        try() { echo "== $*"; "$@" 2>&1; echo "code $?"; }
        try stat -c '%a %G' /run/canal/canal.sock
        try ops canal run -n -k x -- true
        try alice canal run -n -k x -- true
    "#;
    let Some(ended) = privately(&world, &format!("{INSTALLED}{script}")) else { return };
    let tried = tried(&ended);
    assert_eq!((tried[0].2, tried[1].1, tried[2].1), ("660 ops\n", "0", "125"), "{ended:?}");
    assert!(tried[2].2.contains("/run/canal/canal.sock: Permission denied"), "{ended:?}");
}

#[test]
fn the_packaged_configuration_reserves_root_for_root_and_lets_its_group_resize_and_force() {
    let world = World::new();
    let config = include_str!("../../../packaging/canal.toml");
    let script = r#"
        mkdir -m 755 /run/canal
        mount -t tmpfs -o mode=755 tmpfs /etc
        printf 'root:x:0:0::/root:/bin/sh\n' >/etc/passwd
        printf 'root:x:0:\ncanal:x:7001:\n' >/etc/group
        mkdir /etc/canal
        printf '%s' "$CONFIG" >/etc/canal/canal.toml
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        admin() { setpriv --reuid 20001 --regid 7001 --clear-groups "$@"; }
        canal run -k x -- sh -c 'exec sleep 600' secret-word &
        held '' x
        token=$(canal status --json x | tr ',' '\n' | sed -n 's/.*"token": *\([0-9]*\).*/\1/p' | head -1)
        try alice canal run -n -k mine -- true
        try alice canal run -n -k root/backup -- true
        try alice canal run -n --write root -- true
        try canal run -n -k root/backup -- true
        try admin canal run -n -k root/backup -- true
        try alice canal resize x --slots 2
        try admin canal resize root/x --slots 2
        try alice canal release --force --token $token
        try alice canal status x
        try admin canal resize x --slots 2
        try admin canal release --force --token $token
    "#;
    let quoted = config.replace('\'', r"'\''");
    let script = format!("CONFIG='{quoted}'\n{INSTALLED}{script}");
    let Some(ended) = privately(&world, &script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    let expected = ["0", "125", "125", "0", "125", "125", "125", "125", "0", "0", "0"];
    assert_eq!(codes, expected, "{ended:?}");
    assert!(tried[1].2.contains("may not hold `root/backup`; only root may do so"), "{ended:?}");
    assert!(tried[8].2.contains("holds  ") && !tried[8].2.contains("secret-word"), "{ended:?}");
}

/// A machine with systemd, whose `systemctl` only starts the socket, and with nothing relevant in
/// /etc and /usr/local.
const WITH_SYSTEMD: &str = r#"
    mount -t tmpfs -o mode=755 tmpfs /usr/local
    mount -t tmpfs -o mode=755 tmpfs /etc
    printf 'root:x:0:0::/root:/bin/sh\n' >/etc/passwd
    printf 'root:x:0:\n' >/etc/group
    mkdir -p /run/systemd/system
    cat >/mnt/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >>/mnt/calls
case $1 in enable)
    install -d -o canal -g canal -m 700 /var/lib/canal
    program=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/canal.service)
    setpriv --reuid canal --regid canal --clear-groups \
        systemd-socket-activate -l /run/canal/canal.sock $program 2>/tmp/log &
    while ! [ -S /run/canal/canal.sock ]; do sleep 0.02; done
    chmod 666 /run/canal/canal.sock
esac
END
    chmod 755 /mnt/systemctl
    install -m 700 /mnt/canal /mnt/own
    umount /mnt/canal
    mv /mnt/own /mnt/canal
    mkdir /etc/systemd 2>/dev/null
    export LC_ALL=C
"#;

fn on_a_machine_with_systemd(world: &World, script: &str) -> Option<Ended> {
    let what = "setup of a machine that systemd runs";
    let needed = ["systemd-sysusers", "systemd-tmpfiles", "systemd-socket-activate"];
    if !needed.iter().all(|program| installed_or_skip(program, what)) {
        return None;
    }
    privately(world, &format!("{INSTALLED}{WITH_SYSTEMD}{script}"))
}

#[test]
fn setup_makes_one_daemon_for_all_users() {
    let world = World::new();
    // canal copies a program in /mnt that only root may execute.
    let script = r#"
        try canal setup --dry-run
        try ls -A /usr/local /run/canal
        try sh -c 'canal setup </dev/null'
        try ls -A /usr/local /run/canal
        try canal setup --yes
        try stat -c '%a %U %n' /usr/local/bin/canal /etc/canal/canal.toml /run/canal
        try cat /mnt/calls
        PATH=/usr/local/bin:/usr/bin:/bin
        canal run -k x -- sleep 600 &
        held '' x
        try alice canal run -n -k x -- true
        try alice canal run -n -k root/x -- true
        try env CANAL_SOCKET=/run/canal/canal.sock canal run -n -k x -- true
        try canal setup --yes
        try sh -c 'pgrep -x canal | xargs ps -o user= -p'
    "#;
    let Some(ended) = on_a_machine_with_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes[..5], ["0", "2", "125", "2", "0"], "{ended:?}");
    assert!(tried[0].2.contains("  copy   this program to /usr/local/bin/canal\n"), "{ended:?}");
    assert!(
        tried[2].2.contains("canal cannot ask: changed nothing\nhint: answer with --yes"),
        "{ended:?}"
    );
    assert!(
        tried[4].2.contains("\ndone: the daemon is listening at /run/canal/canal.sock, pid "),
        "{ended:?}"
    );
    let modes =
        "755 root /usr/local/bin/canal\n644 root /etc/canal/canal.toml\n755 canal /run/canal\n";
    assert_eq!(tried[5].2, modes, "{ended:?}");
    let calls = "systemctl daemon-reload\nsystemctl enable --now canal.socket\n";
    assert_eq!(tried[6].2, calls, "{ended:?}");
    // The place of the machine belongs to the user of its daemon, even when a command names its
    // socket.
    assert_eq!(codes[7..10], ["75", "125", "75"], "{ended:?}");
    // canal keeps existing files.
    assert_eq!(tried[10].2.matches("(unchanged)").count(), 5, "{ended:?}");
    assert!(tried[11].2.contains("canal"), "{ended:?}");
}

#[test]
fn setup_overwrites_nothing_and_follows_no_link() {
    let world = World::new();
    let script = r#"
        mkdir -p /etc/canal /etc/systemd/system /etc/elsewhere
        echo '# mine' >/etc/canal/canal.toml
        try canal setup --dry-run
        ln -s /dev/null /etc/systemd/system/canal.socket
        try canal setup --yes
        rm /etc/systemd/system/canal.socket
        rmdir /etc/systemd/system && ln -s /etc/elsewhere /etc/systemd/system
        try canal setup --yes
        try ls -A /etc/elsewhere /run/canal
        rm /etc/systemd/system
        mkdir -p /usr/local/bin && echo other >/usr/local/bin/canal
        try canal setup --yes
        rm /usr/local/bin/canal
        try canal setup --yes
        try cat /etc/canal/canal.toml
        try alice canal setup --yes
    "#;
    let Some(ended) = on_a_machine_with_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let codes: Vec<&str> = tried.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes[..7], ["0", "125", "125", "2", "125", "0", "0"], "{ended:?}");
    let kept = "  keep   /etc/canal/canal.toml (differs from what setup would write)\n";
    assert!(tried[0].2.contains(kept), "{ended:?}");
    let link = "canal: /etc/systemd/system/canal.socket: is a symbolic link, which setup does not follow\n";
    assert!(tried[1].2.ends_with(link), "{ended:?}");
    assert!(tried[2].2.contains("is a symbolic link or not a directory"), "{ended:?}");
    assert!(
        tried[3].2.starts_with("/etc/elsewhere:\n") || tried[3].2.starts_with("ls: "),
        "{ended:?}"
    );
    assert!(!tried[3].2.contains("canal.socket"), "{ended:?}");
    assert!(tried[4].2.contains("/usr/local/bin/canal is another program or version"), "{ended:?}");
    assert_eq!(tried[6].2, "# mine\n", "{ended:?}");
}
