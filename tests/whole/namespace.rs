//! A private corner of the machine: mounts, processes and abstract sockets of its own, so that the
//! default places can be used without meeting anybody's.

use crate::process::{Cmd, Ended, installed_or_skip, root_or_skip, skipped};
use crate::world::{World, canal};

/// Runs before each script: `canal` lies in `/mnt`, and the places where canal keeps its files are
/// empty.
const PRELUDE: &str = r#"set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
cp "$CANAL_PROGRAM" /mnt/canal
home=$(getent passwd "$(id -u)" | cut -d: -f6)
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=700 tmpfs "$home"
unset CANAL_SOCKET CANAL_PROGRAM
export PATH="/mnt:$PATH"
cd /
set +e
until_true() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 1500 ] || { echo "in vain: $*" >&2; exit 99; }; sleep 0.02; done; }
"#;

/// Runs a script in a private corner, in which it is root. When it ends, so does everything that it
/// started. `None` if that is not permitted here.
pub(crate) fn privately(world: &World, script: &str) -> Option<Ended> {
    let what = "a test in namespaces of its own";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) {
        return None;
    }
    let unshare = |script: &str| -> Ended {
        let args = ["-m", "-p", "-n", "-f", "--mount-proc", "--kill-child", "sh", "-c", script];
        let cmd: Cmd<'_> = world.program("unshare", args);
        cmd.env("CANAL_PROGRAM", canal()).end()
    };
    let tried = unshare("mount -t tmpfs tmpfs /mnt");
    if tried.code != Some(0) {
        skipped(&format!("namespaces are not permitted here: {what}: {}", tried.stderr.trim()));
        return None;
    }
    Some(unshare(&format!("{PRELUDE}{script}")))
}
