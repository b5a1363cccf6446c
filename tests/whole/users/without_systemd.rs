//! The daemon of a machine without systemd: root's commands, the script, `canal setup`.

use super::machine::{INSTALLED, tried};
use crate::namespace::privately;
use crate::world::World;
use crate::world::process::Ended;

/// A machine with the user `canal`, and with nothing of canal in /etc and /usr/local. `daemon`
/// prints the pid of the daemon, `killed` kills it.
const MACHINE: &str = r#"
    mkdir /mnt/etc
    cp -a /etc/. /mnt/etc
    mount --bind /mnt/etc /etc
    mount -t tmpfs -o mode=755 tmpfs /usr/local
    rm -rf /etc/canal /etc/init.d/canal
    sed -i '/^canal:/d' /etc/passwd /etc/group
    daemon() { cat /run/canal/lock; }
    killed() { old=$(daemon); kill -9 $old; until_true sh -c "! kill -0 $old 2>/dev/null"; }
    user() {
        echo 'canal:x:7001:' >>/etc/group
        echo 'canal:x:7001:7001::/var/lib/canal:/bin/sh' >>/etc/passwd
        install -d -m 755 -o canal -g canal /run/canal
    }
    export LC_ALL=C
"#;

fn without_systemd(world: &World, script: &str) -> Option<Ended> {
    privately(world, &format!("{INSTALLED}{MACHINE}{script}"))
}

fn codes<'a>(tried: &[(&'a str, &'a str, &'a str)]) -> Vec<&'a str> {
    tried.iter().map(|(_, code, _)| *code).collect()
}

#[test]
fn a_command_of_root_starts_the_daemon_as_the_owner_of_its_directory() {
    let world = World::new();
    let script = r#"
        user
        try canal run -k x -- true
        try stat -c %U /proc/$(daemon)
        try sed -n 's/^CapEff:\t*//p; s/^CapBnd:\t*//p; s/^NoNewPrivs:\t*//p' /proc/$(daemon)/status
        try find /run/canal /var/lib/canal ! -user canal
        try stat -c '%a %U' /var/lib/canal /run/canal/canal.sock
        alice canal run -k deploy -- sleep 600 &
        held '' deploy
        killed
        try alice canal run -n -k deploy -- true
        try canal run -n -k deploy -- true
        try find /run/canal ! -user canal
        before=$(daemon)
        try canal daemon --replace
        try test "$(daemon)" != "$before"
        try stat -c %U /proc/$(daemon)
        try alice canal run -n -k deploy -- true
        try find /run/canal ! -user canal
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let expected = ["0", "0", "0", "0", "0", "125", "75", "0", "0", "0", "0", "75", "0"];
    assert_eq!(codes(&tried), expected, "{ended:?}");
    assert_eq!(tried[1].2, "canal\n", "{ended:?}");
    assert_eq!(tried[2].2, "0000000000000020\n0000000000000020\n1\n", "{ended:?}");
    assert_eq!((tried[3].2, tried[7].2, tried[12].2), ("", "", ""), "{ended:?}");
    assert_eq!(tried[4].2, "700 canal\n666 canal\n", "{ended:?}");
    assert!(tried[5].2.contains("start it as root, with any canal command"), "{ended:?}");
    assert_eq!(tried[10].2, "canal\n", "{ended:?}");
}

#[test]
fn a_waiter_of_root_starts_the_daemon_that_was_killed() {
    let world = World::new();
    let script = r#"
        user
        canal run -k x -- sh -c 'until [ -e /tmp/go ]; do sleep 0.02; done' &
        held '' x
        canal run -k x -- echo next >/tmp/next &
        waiter=$!
        until_true sh -c "canal status x | grep -q '#1'"
        killed
        until_true canal status --no-start x >/dev/null 2>&1
        touch /tmp/go
        wait $waiter
        try cat /tmp/next
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    assert_eq!(tried(&ended)[0].2, "next\n", "{ended:?}");
}

#[test]
fn root_in_a_container_does_not_start_the_daemon_of_its_host() {
    let world = World::new();
    let script = r#"
        user
        canal run -k x -- sleep 600 &
        held '' x
        killed
        try unshare -p -f --mount-proc canal run -n -k x -- true
        try unshare -m sh -c 'mkdir /tmp/canal && mount --bind /tmp/canal /run/canal; canal status'
        try canal run -n -k x -- true
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    assert_eq!(codes(&tried), ["125", "125", "75"], "{ended:?}");
    assert!(tried[0].2.contains("ran outside this container"), "{ended:?}");
    assert!(
        tried[1].2.contains("start the daemon on the system that owns /run/canal"),
        "{ended:?}"
    );
}

#[test]
fn without_a_configuration_the_packaged_one_is_in_force() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        canal run -k x -- sleep 600 &
        held '' x
        try alice canal run -n -k root/x -- true
        try alice canal resize x --slots 2
        try canal config
        echo 'canal:x:12345:' >>/etc/group
        canal daemon --reload
        try alice canal resize x --slots 2
        try canal doctor
        mkdir /etc/canal
        echo >/etc/canal/canal.toml
        canal daemon --reload
        try alice canal run -n -k root/x -- true
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let codes = codes(&tried);
    assert_eq!([&codes[..4], &codes[5..]].concat(), ["125", "125", "0", "0", "0"], "{ended:?}");
    assert!(tried[2].2.contains("no configuration file"), "{ended:?}");
    let shown = tried[2].2.lines().find(|line| line.starts_with("permission")).unwrap();
    assert!(shown.contains("root") && shown.ends_with("default"), "{ended:?}");
    assert!(!tried[4].2.contains("not in force"), "{ended:?}");
}

#[test]
fn setup_installs_a_script_that_starts_replaces_and_stops_the_daemon() {
    let world = World::new();
    // canal copies a program in /mnt that only root may execute.
    let script = r#"
        install -m 700 /mnt/canal /mnt/own
        umount /mnt/canal
        mv /mnt/own /mnt/canal
        try canal setup --dry-run
        try canal setup --yes
        try stat -c '%a %U %n' /usr/local/bin/canal /etc/init.d/canal /run/canal
        export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        try /etc/init.d/canal start
        try /etc/init.d/canal status
        try stat -c %U /proc/$(daemon)
        alice canal run -k deploy -- sleep 600 &
        held '' deploy
        before=$(daemon)
        try /etc/init.d/canal restart
        try test "$(daemon)" != "$before"
        try alice canal run -n -k deploy -- true
        killed
        try alice canal run -n -k deploy -- true
        try /etc/init.d/canal status
        try /etc/init.d/canal start
        try alice canal run -n -k deploy -- true
        try /etc/init.d/canal stop
        try /etc/init.d/canal stop
        try /etc/init.d/canal status
        echo $$ >/run/canal/lock
        try /etc/init.d/canal status
        try /etc/init.d/canal start
        try /etc/init.d/canal status
        try alice canal run -n -k deploy -- true
        try /etc/init.d/canal try-restart
        try /etc/init.d/canal reload
        try /etc/init.d/canal other
        try canal setup --yes
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let expected = [
        "0", "0", "0", "0", "0", "0", "0", "0", "75", "125", "1", "0", "75", "0", "0", "3", "3",
        "0", "0", "75", "0", "0", "2", "0",
    ];
    assert_eq!(codes(&tried), expected, "{ended:?}");
    for line in ["  write  /etc/init.d/canal\n", "  @reboot /etc/init.d/canal start\n"] {
        assert!(tried[0].2.contains(line), "{ended:?}");
    }
    assert!(
        tried[1].2.contains("\ndone: the daemon is listening at /run/canal/canal.sock"),
        "{ended:?}"
    );
    let modes = "755 root /usr/local/bin/canal\n755 root /etc/init.d/canal\n755 canal /run/canal\n";
    assert_eq!(tried[2].2, modes, "{ended:?}");
    assert!(tried[3].2.contains("is already running"), "{ended:?}");
    assert_eq!(tried[5].2, "canal\n", "{ended:?}");
    assert!(tried[9].2.contains("or with `/etc/init.d/canal start`"), "{ended:?}");
    assert_eq!(tried[23].2.matches("(unchanged)").count(), 2, "{ended:?}");
}

#[test]
fn setup_states_the_first_start_of_a_node() {
    let world = World::new();
    let script = r#"
        # A node keeps its state on a disk.
        mkdir -p /mnt/lasting/state /var/lib/canal
        mount --bind /mnt/lasting/state /var/lib/canal
        try canal setup --dry-run --first-start
        try canal setup --yes --first-start
        try canal run --on local -n -k x -- true
        try find /run/canal -name first-start
        try canal setup --yes --first-start
        /etc/init.d/canal stop
        rm -rf /run/canal /var/lib/canal/*
        try canal setup --yes
        try canal run --on local -n -k x -- true
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    assert_eq!(codes(&tried), ["0", "0", "0", "0", "125", "0", "125"], "{ended:?}");
    assert!(tried[0].2.contains("  write  /run/canal/first-start\n"), "{ended:?}");
    assert_eq!(tried[3].2, "", "the statement counts for one start: {ended:?}");
    assert!(tried[4].2.contains("but one has: "), "{ended:?}");
    assert!(tried[6].2.contains("does not grant node leases yet"), "{ended:?}");
}

#[test]
fn setup_adds_the_script_to_what_starts_services_here() {
    let world = World::new();
    let script = r#"
        for program in update-rc.d insserv chkconfig rc-update rc-service; do
            printf '#!/bin/sh\n' >/mnt/$program
            chmod 755 /mnt/$program
        done
        hide() { chmod 644 /mnt/$1; }
        export PATH=/mnt:/usr/bin:/bin
        mount -t tmpfs -o mode=755 tmpfs /usr/sbin
        for program in groupadd useradd; do
            printf '#!/bin/sh\n' >/mnt/$program
            chmod 755 /mnt/$program
        done
        try canal setup --dry-run
        echo init >/proc/1/comm
        try canal setup --dry-run
        hide update-rc.d
        try canal setup --dry-run
        hide insserv
        try canal setup --dry-run
        hide chkconfig
        try canal setup --dry-run
        mkdir /run/openrc
        try canal setup --dry-run
        mkdir -p /run/systemd/system
        try canal setup --dry-run
    "#;
    let Some(ended) = without_systemd(&world, script) else { return };
    let tried = tried(&ended);
    let adds = [
        "  @reboot /etc/init.d/canal start\n",
        "  run    update-rc.d canal defaults\n",
        "  run    insserv canal\n",
        "  run    chkconfig --add canal\n",
        "  @reboot /etc/init.d/canal start\n",
        "  run    rc-update add canal default\n",
        "  run    systemctl enable --now canal.socket\n",
    ];
    for (at, line) in adds.iter().enumerate() {
        assert!(tried[at].2.contains(line), "{line}: {ended:?}");
        let others = adds.iter().filter(|other| *other != line);
        assert!(others.into_iter().all(|other| !tried[at].2.contains(other)), "{line}: {ended:?}");
    }
    assert!(tried[5].2.contains("  run    rc-service canal start\n"), "{ended:?}");
}
