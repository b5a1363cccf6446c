//! The leader-elected service of `contrib/leader`: its units run as systemd would run them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::namespace;
use crate::world::World;
use crate::world::process::installed_or_skip;

const CANDIDATE: &str = include_str!("../../../contrib/leader/scheduler.service");
const WATCHER: &str = include_str!("../../../contrib/leader/scheduler-address.service");
const FOLLOW: &str = include_str!("../../../contrib/leader/follow-leader");
const PAGE: &str = include_str!("../../../docs/leader.md");

/// The value of a setting of a unit.
#[track_caller]
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let prefix = format!("{name}=");
    unit.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("no {name}"))
}

/// Starts the commands of the units, kills one leader after another, and reads the watcher's file.
const STORY: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
ln -s /mnt/canal /usr/local/bin/canal
printf '#!/bin/sh\nexec sleep 600\n' >/usr/local/bin/scheduler
cat >/usr/local/bin/follow-leader <<'END OF SCRIPT'
FOLLOW_HERE
END OF SCRIPT
chmod +x /usr/local/bin/scheduler /usr/local/bin/follow-leader
mkdir /run/scheduler
PATH=/usr/local/bin:$PATH
address_is() { [ "$(cat /run/scheduler/address 2>/dev/null)" = "$1" ]; }
pid_of_leader() { canal leader --json scheduler | sed 's/.*"pid":\([0-9]*\).*/\1/'; }
candidate() { export ADDRESS=http://$1:8080; sh -c 'exec CANDIDATE_HERE' & }
printf '#!/bin/sh\necho "$(cat /run/scheduler/address)" >>/mnt/reloads\n' >/mnt/reload
chmod +x /mnt/reload
sh -c 'exec WATCHER_HERE /mnt/reload' &
until_true test -e /run/scheduler/address
candidate one
until_true address_is http://one:8080
candidate two
until_true sh -c 'canal status --json scheduler | grep -q "\"waiting\":1"'
kill -9 "$(pid_of_leader)"
until_true address_is http://two:8080
kill -9 "$(pid_of_leader)"
until_true sh -c 'test -e /run/scheduler/address && ! test -s /run/scheduler/address'
until_true sh -c 'test $(wc -l </mnt/reloads) = 4'
cat /mnt/reloads
"#;

#[test]
fn the_leader_elected_service_fails_over_and_its_watcher_follows() {
    if !installed_or_skip("jq", "the watcher of the leader-elected service")
        || !installed_or_skip("bash", "the watcher of the leader-elected service")
    {
        return;
    }
    let world = World::new();
    let script = STORY
        .replace("FOLLOW_HERE", FOLLOW.trim_end())
        .replace("CANDIDATE_HERE", setting(CANDIDATE, "ExecStart"))
        .replace("WATCHER_HERE", setting(WATCHER, "ExecStart"));
    let Some(ended) = namespace::privately(&world, &script) else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let reloads: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(reloads, ["", "http://one:8080", "http://two:8080", ""], "{ended:?}");
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if !installed_or_skip("systemd-analyze", "the units of the leader-elected service") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, unit) in [("scheduler.service", CANDIDATE), ("scheduler-address.service", WATCHER)] {
        // The programs need not be installed here.
        let unit = unit.replace("/usr/local/bin/canal ", "/bin/sh ");
        let unit = unit.replace("/usr/local/bin/follow-leader ", "/bin/sh ");
        fs::write(dir.path().join(name), unit).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.arg("verify").arg("--man=no").arg(dir.path().join(name));
        let ended = verify.env("SYSTEMD_LOG_LEVEL", "warning").output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let of_unit = stderr.lines().filter(|line| line.contains("scheduler"));
        let complaints = of_unit.fold(String::new(), |mut all, line| {
            let _ = writeln!(all, "{line}");
            all
        });
        assert_eq!(complaints, "", "{name}");
    }
}

#[test]
fn the_page_about_leaders_shows_the_units_as_they_are() {
    let shown = setting(PAGE, "ExecStart");
    assert_eq!(shown, setting(CANDIDATE, "ExecStart"));
    let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/leader");
    for name in ["scheduler.service", "scheduler-address.service", "follow-leader"] {
        assert!(at.join(name).is_file() && PAGE.contains(name), "{name}");
    }
}
