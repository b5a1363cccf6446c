//! Commands that already run as a different user from canal when canal has to end them.

use std::time::Duration;

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::in_time;

/// A user's daemon, and `become_root`, a set-user-ID program that runs a command as root.
const USER: &str = r#"
    cp "$(command -v setpriv)" /mnt/setpriv && chmod 4755 /mnt/setpriv
    become_root="/mnt/setpriv --reuid 0 --regid 0 --clear-groups"
    mkdir /tmp/u && chown 12345 /tmp/u && cd /tmp/u
    user() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
    export CANAL_SOCKET=/tmp/u/canal.sock
"#;

/// canal's messages about the process whose pid the command wrote to the file `pid`.
const REFUSED: &str = "canal: cannot signal pid %s: it runs as root\n\
                       hint: run canal as the same user or as root so that it can end the \
                       command; for now, canal waits for the command to end\n";

/// Calls `attempt` with longer and longer times for `--max-run`, until the command has become root
/// within that time, as its file `pid` shows. The attempt returns the output of the script, if this
/// machine permits namespaces.
fn for_root(attempt: impl Fn(&World, u128) -> Option<String>, expected: &str) {
    in_time(Duration::from_millis(100), |time| {
        let world = World::new();
        let Some(printed) = attempt(&world, time.as_millis()) else { return Some(()) };
        if printed.ends_with("too slow\n") {
            return None;
        }
        assert_eq!(printed, expected);
        Some(())
    });
}

#[test]
fn max_run_says_what_it_cannot_signal_and_reports_its_end_as_it_was() {
    let attempt = |world: &World, ms| {
        let script = format!(
            r#"{USER}
            for options in "" "--signal KILL" --with-children; do
                rm -f pid err
                user canal run --max-run {ms}ms --kill-after 50ms $options -k x -- $become_root \
                    sh -c 'echo $$ >pid; until grep -q "^hint" err; do sleep 0.02; done; exit 3' 2>err
                code=$?
                [ -s pid ] || {{ echo "too slow"; exit; }}
                printf '{REFUSED}' "$(cat pid)" | diff - err && echo "code $code, as it was"
            done
            user canal history --json x | tr , '\n' | grep -c '"exit":3'
            "#
        );
        Some(privately(world, &script)?.stdout)
    };
    let each = "code 3, as it was\n";
    for_root(attempt, &format!("{each}{each}{each}3\n"));
}

#[test]
fn with_children_max_run_ends_what_it_may_and_names_what_it_may_not() {
    let attempt = |world: &World, ms| {
        let script = format!(
            r#"{USER}
            cat >both <<X
            $become_root sh -c 'echo \$\$ >pid; until grep -q "^hint" err; do sleep 0.02; done' &
            sleep 600 &
            while :; do sleep 0.01; [ ! -s pid ] || exit 0; done
X
            user canal run --max-run {ms}ms --kill-after 50ms --with-children -k x -- sh both 2>err
            code=$?
            [ -s pid ] || {{ echo "too slow"; exit; }}
            head -n 2 err >said; printf '{REFUSED}' "$(cat pid)" | diff - said && echo "code $code"
            tail -n 1 err | tr -d 0-9
            "#
        );
        Some(privately(world, &script)?.stdout)
    };
    let last = "canal: ended the command with SIGTERM after ms (--max-run)\n";
    for_root(attempt, &format!("code 124\n{last}"));
}
