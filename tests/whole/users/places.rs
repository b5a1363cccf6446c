//! How a client finds the daemon, and which places it refuses.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};

use canal::sys::pidfd::Pidfd;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::namespace::privately;
use crate::world::World;
use crate::world::peer::Peer;
use crate::world::process::{installed_or_skip, root_or_skip, signal, wait_until};

/// The JSON values in a text, one after another.
fn values(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
}

#[test]
fn cron_a_login_shell_and_a_ci_job_of_one_user_meet_at_one_daemon() {
    let world = World::new();
    let script = r#"
        env -i PATH="$PATH" canal status --json
        env -i HOME=/home/somebody XDG_RUNTIME_DIR=/run/user/7 XDG_CONFIG_HOME=/x TMPDIR=/var/tmp \
            sh -lc '/mnt/canal status --json'
        cd /usr; setsid -w env CI=true HOME=/nonexistent TMPDIR=/mnt canal status --json
        stat -c '"%a %U %n"' /tmp/canal-0
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let ended = ended.code(0);
    let values = values(&ended.stdout);
    assert_eq!(values.len(), 4, "{ended:?}");
    for status in &values[..3] {
        assert_eq!(status["daemon"]["pid"], values[0]["daemon"]["pid"], "{ended:?}");
        assert_eq!(status["daemon"]["socket"], "/tmp/canal-0/canal.sock");
    }
    assert_eq!(values[3], "700 root /tmp/canal-0");
}

#[test]
fn a_shared_place_without_a_daemon_is_an_error_and_no_other_place_is_taken() {
    let world = World::new();
    let script = "mkdir -m 755 /run/canal
        setpriv --reuid 12345 --regid 12345 --clear-groups canal run -k x -- true; echo code $?
        canal run -k x --no-start -- true; echo code $?; ls -A /tmp";
    let Some(ended) = privately(&world, script) else { return };
    assert_eq!(ended.stdout, "code 125\ncode 125\n", "{ended:?}");
    assert!(ended.stderr.contains("/run/canal"), "{ended:?}");
}

#[test]
fn users_of_a_shared_daemon_cannot_release_each_others_holds() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        stranger="setpriv --reuid 12345 --regid 12345 --clear-groups"
        canal run -k x -- sh -c 'exec sleep 600' secret-word &
        until_true sh -c 'canal status --json | grep -q "\"held\": *1"'
        token=$(canal status --json | tr ',' '\n' | sed -n 's/.*"token": *\([0-9]*\).*/\1/p' | head -1)
        echo "== no-wait"; $stranger canal run -n -k x -- true; echo "code $?"
        echo "== release"; $stranger canal release x --pid $!; echo "code $?"
        echo "== force"; $stranger canal release --force --token "$token"; echo "code $?"
        echo "== acquire"; $stranger canal acquire -k y --pid $!; echo "code $?"
        echo "== stop"; $stranger canal daemon --stop; echo "code $?"
        echo "== status"; $stranger canal status; echo "code $?"
        echo "== status json"; $stranger canal status --json | grep -c secret-word
        echo "== own"; $stranger canal run -n -k own -- true; echo "code $?"
        echo "== root"; canal run -n -q -k x -- true; echo "code $?"
        canal release x --pid $!; echo "code $?"
    "#;
    let Some(ended) = privately(&world, &script.replace("; echo \"code", " 2>&1; echo \"code"))
    else {
        return;
    };
    let part = |name: &str| {
        let (_, rest) =
            ended.stdout.split_once(&format!("== {name}\n")).unwrap_or_else(|| panic!("{ended:?}"));
        rest.split("== ").next().unwrap().to_owned()
    };
    assert!(part("no-wait").ends_with("code 75\n"), "{ended:?}");
    for refused in ["release", "force", "acquire", "stop"] {
        let said = part(refused);
        assert!(said.ends_with("code 125\n"), "{refused}: {ended:?}");
        assert!(said.starts_with("canal: "), "{refused}: {ended:?}");
    }
    assert!(part("status").ends_with("code 0\n"), "{ended:?}");
    assert!(!ended.stdout.contains("secret-word"), "{ended:?}");
    assert_eq!(part("status json"), "0\n");
    assert!(part("own").ends_with("code 0\n"), "{ended:?}");
    assert!(part("root").ends_with("code 75\ncode 0\n"), "{ended:?}");
}

#[test]
fn another_user_gets_a_clear_error_at_a_private_daemon() {
    let world = World::new();
    let script = r#"
        canal run -k x -- sleep 600 &
        until_true sh -c 'canal status --json | grep -q "\"held\": *1"'
        stranger="setpriv --reuid 12345 --regid 12345 --clear-groups"
        $stranger canal --socket /tmp/canal-0/canal.sock release x --pid $! 2>&1; echo "code $?"
        canal run -n -q -k x -- true; echo "code $?"
    "#;
    let Some(ended) = privately(&world, script) else { return };
    assert!(ended.stdout.starts_with("canal: "), "{ended:?}");
    assert!(ended.stdout.contains("/tmp/canal-0"), "{ended:?}");
    assert!(ended.stdout.ends_with("code 125\ncode 75\n"), "{ended:?}");
}

#[test]
fn a_daemon_with_a_private_tmp_reports_that() {
    let world = World::new();
    let script = r#"
        canal status -v
        echo ==
        unshare -m sh -c 'mount -t tmpfs -o mode=1777 tmpfs /tmp; canal status -v'
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let (usual, other) = ended.stdout.split_once("==\n").unwrap_or_else(|| panic!("{ended:?}"));
    let note = "note: its /tmp is not the one that process 1 uses";
    assert!(usual.contains("daemon ") && !usual.contains(note), "{ended:?}");
    assert!(other.contains(note), "{ended:?}");
}

#[test]
fn a_place_that_another_user_created_is_refused() {
    let world = World::new();
    let script = "
        mkdir -m 700 /tmp/canal-0; chown 12345 /tmp/canal-0; canal run -k x -- true; echo code $?
        rmdir /tmp/canal-0; mkdir /tmp/else; ln -s /tmp/else /tmp/canal-0; canal run -k x -- true; echo code $?
        ls -A /tmp/else; stat -c %a /tmp/else";
    let Some(ended) = privately(&world, script) else { return };
    assert_eq!(ended.stdout, "code 125\ncode 125\n755\n", "{ended:?}");
    let lines: Vec<&str> = ended.stderr.lines().filter(|l| l.starts_with("canal: ")).collect();
    assert_eq!(lines.len(), 2, "{ended:?}");
    assert!(lines[0].contains("/tmp/canal-0 belongs to uid 12345"), "{ended:?}");
    assert!(lines[1].contains("/tmp/canal-0 is a symbolic link"), "{ended:?}");
}

#[test]
fn the_users_own_place_is_made_private_unless_others_left_something_in_it() {
    let world = World::new();
    let script = r#"
        own() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
        for mode in 777 755 500 000; do
            own sh -c "mkdir -p /tmp/canal-12345 && chmod $mode /tmp/canal-12345"
            own canal run -k x -- true; echo "code $? $(stat -c %a /tmp/canal-12345)"
            own canal daemon --stop
        done
        own chmod 777 /tmp/canal-12345
        setpriv --reuid 54321 --regid 54321 --clear-groups touch /tmp/canal-12345/journal.2
        for n in 1 2; do
            own canal run -k x -- true; echo "code $? $(stat -c %a /tmp/canal-12345)"
        done
        rm /tmp/canal-12345/journal.2
        own canal run -k x -- true; echo "code $? $(stat -c %a /tmp/canal-12345)"
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let made = "code 0 700\n".repeat(4);
    assert_eq!(
        ended.stdout,
        format!("{made}code 125 500\ncode 125 500\ncode 0 700\n"),
        "{ended:?}"
    );
    let refused = "canal: /tmp/canal-12345/journal.2 belongs to uid 54321 and is in a directory \
                   that other users could write to: remove it\n";
    assert_eq!(ended.stderr.matches(refused).count(), 2, "{ended:?}");
}

#[test]
fn process_1_of_a_container_may_own_a_lock() {
    let world = World::new();
    // The second shell is process 1 of a namespace below the daemon's. The first shell has its own
    // namespace.
    let script = r#"
        canal acquire -k own --pid 1; echo "code $?"
        canal status --json own | grep -o '"pid": *1,' | tr -d ' '
        canal release own --pid 1; echo "code $?"
        unshare -pf --mount-proc sh -c 'canal acquire -k x --pid $$ 2>&1; echo "code $? of $$"
            canal acquire -k y; echo "code $?"; read line' </mnt/go >/tmp/said 2>&1 &
        below=$!
        exec 7>/mnt/go
        until_true grep -q 'code 0$' /tmp/said
        cat /tmp/said
        canal run -n -q -k x -- true; echo "code $?"
        exec 7>&-
        wait $below
        canal run -n -q -k x -k y -- true; echo "code $?"
    "#;
    let Some(ended) = privately(&world, &format!("mkfifo /mnt/go; {script}")) else { return };
    let own = "code 0\n\"pid\":1,\ncode 0\n";
    let below = "code 0 of 1\ncanal: held for pid 1 (sh)\ncode 0\n";
    assert_eq!(ended.stdout, format!("{own}{below}code 75\ncode 0\n"), "{ended:?}");
}

#[test]
fn the_init_of_the_machine_owns_no_lock() {
    if !is_first() {
        return;
    }
    let world = World::with_daemon();
    for args in [&["acquire", "-k", "x", "--pid", "1"][..], &["release", "x", "--pid", "1"]] {
        let ended = world.canal(args).end().code(125);
        let message = "canal: process 1 never ends, so its lock would never end either\nhint: ";
        assert!(ended.stderr.starts_with(message), "{ended:?}");
    }
    // The daemon also refuses a client that does not check.
    let (mut peer, init) = (Peer::connect(&world), Pidfd::open(1).unwrap());
    peer.ask(1, &json!([{ "key": "x" }]), false, Some(&init));
    let reply = peer.reply().unwrap();
    assert_eq!(reply["error"], "io.canal.Lock.Denied", "{reply}");
}

#[test]
fn a_given_folder_of_another_user_is_refused() {
    let world = World::new();
    let socket = |folder: &str| world.path(folder).join("canal.sock").display().to_string();
    let refused = |folder: &str, why: &str| {
        for command in [&["status"][..], &["run", "-k", "x", "--", "true"], &["daemon"]] {
            let socket = socket(folder);
            let mut args = vec!["--socket", socket.as_str()];
            args.extend(command);
            let ended = world.canal(args).end().code(125);
            assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
            assert!(ended.stderr.contains(why), "{ended:?}");
        }
    };
    symlink(world.runtime(), world.path("link")).unwrap();
    refused("link", "symbolic link");
    fs::DirBuilder::new().mode(0o700).create(world.path("open")).unwrap();
    fs::set_permissions(world.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    refused("open", "is writable by other users");
    fs::write(world.path("file"), "").unwrap();
    refused("file", "not a directory");
    if root_or_skip("a folder of another user") {
        fs::DirBuilder::new().mode(0o700).create(world.path("foreign")).unwrap();
        chown(world.path("foreign"), Some(12345), Some(12345)).unwrap();
        refused("foreign", "belongs to uid 12345");
    }
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_with_both_numbers() {
    let world = World::new();
    let long = world.path(&"x".repeat(120)).display().to_string();
    for command in [&["status"][..], &["run", "-k", "x", "--", "true"], &["daemon"]] {
        let mut args = vec!["--socket", long.as_str()];
        args.extend(command);
        let ended = world.canal(args).end().code(125);
        assert!(ended.stderr.starts_with("canal: "), "{ended:?}");
        assert!(ended.stderr.contains(&long.len().to_string()), "{ended:?}");
    }
}

#[test]
fn a_relative_socket_is_relative_to_the_folder_of_the_caller() {
    let world = World::new();
    let ended = world.canal(["--socket", "../run/canal.sock", "status", "--json"]).end().code(0);
    let told = ended.json()["daemon"]["pid"].as_u64();
    assert_eq!(told, Some(u64::from(world.status().daemon.pid)));
}

/// Whether this is the first pid namespace. Only there can the daemon see that all processes of
/// another namespace are gone.
fn is_first() -> bool {
    let link = fs::read_link("/proc/self/ns/pid").unwrap();
    link.as_os_str() == "pid:[4026531836]"
}

#[test]
fn the_holders_of_a_pid_namespace_are_taken_up_outside_it() {
    let what = "a daemon in a pid namespace of its own";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) || !is_first() {
        return;
    }
    let world = World::new();
    // Kill the daemon in the namespace, so that the next one starts here while a holder lives.
    let script = format!(
        "canal run -k x -- sleep 1000 & until canal status x | grep -q sleep; do sleep 0.02; done; \
         kill -9 \"$(cat {})\"; echo held; wait",
        world.runtime().join("lock").display()
    );
    let args = ["-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", &script];
    let elsewhere = world.program("unshare", args).spawn();
    wait_until("it is held", || elsewhere.stdout().contains("held"));
    // The daemon here sees the processes of the other namespace, and adopts them under their pids
    // here.
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    world.canal(["run", "-n", "-k", "y", "--", "true"]).end().code(0);
    let key = world.key("x");
    let holder = &key.holders[0];
    assert_eq!(name_of(holder.pid), "sleep");
    assert_eq!(holder.state.as_deref(), Some("running"));
    signal(holder.pid.cast_signed(), Signal::SIGKILL);
    wait_until("its lock is free", || {
        world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code == Some(0)
    });
    elsewhere.kill();
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

#[test]
fn holders_that_a_daemon_cannot_see_keep_their_locks_and_bar_no_others() {
    let what = "a daemon in a pid namespace of its own";
    if !root_or_skip(what) || !installed_or_skip("unshare", what) || !is_first() {
        return;
    }
    let world = World::with_daemon();
    let holder = world.holder(&["-k", "x"]);
    let waiter = world.waiter("x", &[], &["echo", "on"]);
    // Otherwise it could start the next daemon here.
    waiter.stop();
    world.kill_daemon();
    // Two daemons in a row in other namespaces: the second one reads the journal of the first one.
    let script = r#"
        canal run -n -k x -- true; echo "x $?"
        canal run -n -k y -- true; echo "y $?"
        canal status x --json | grep -o '"state":"unverified"'
        canal status -v | grep -c 'the daemon cannot see from this pid namespace .*: x (cat'
        kill -9 "$(cat "$0")"
    "#;
    let lock = world.runtime().join("lock").display().to_string();
    let inside = || {
        let args = ["-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", script, &lock];
        world.program("unshare", args).end().stdout
    };
    let said = "x 75\ny 0\n\"state\":\"unverified\"\n";
    assert_eq!(inside(), format!("{said}1\n"));
    // The kernel may reuse the number of the first namespace for the second one.
    assert!(inside().starts_with(said));
    waiter.signal(Signal::SIGCONT);
    // A daemon here can see it again, and its end.
    world.canal(["run", "-n", "-k", "x", "--", "true"]).end().code(75);
    assert_eq!(world.key("x").holders[0].state.as_deref(), Some("running"));
    holder.finish();
    assert_eq!(waiter.end().code(0).stdout, "on\n");
    world.until_idle();
}

#[test]
fn root_of_a_user_namespace_meets_the_daemon_of_its_user() {
    let world = World::new();
    let script = r#"
        as() { setpriv --reuid=1 --regid=1 --clear-groups "$@"; }
        as unshare -Ur true || exit 77
        as unshare -Ur canal run -k x -- sleep 1000 &
        until_true as sh -c 'canal status x | grep -q sleep'
        as canal run -n -k x -- true; echo "outside: $?"
        as unshare -Ur canal run -n -k x -- true; echo "inside: $?"
        canal run -n -k x -- true; echo "root: $?"
        ls -d /tmp/canal-*
    "#;
    let Some(ended) = privately(&world, script) else { return };
    if ended.code == Some(77) {
        return crate::world::process::skipped("user namespaces are not permitted here");
    }
    let said = "outside: 75\ninside: 75\nroot: 0\n/tmp/canal-0\n/tmp/canal-1\n";
    assert_eq!(ended.stdout, said, "{}", ended.stderr);
}

/// A home may be shared by daemons in several /tmp, and by machines. Each of them must keep its own
/// history, jobs and leases.
#[test]
fn two_daemons_of_a_user_never_share_files_of_state() {
    let world = World::new();
    let script = r#"
        canal run -k first -- true
        cat >/mnt/recorded <<'END'
#!/bin/sh
            for n in $(seq 6000); do [ $(canal history | grep -c "$2") -ge $1 ] && exit; sleep .02; done
            echo "never recorded: $2"
END
        chmod 755 /mnt/recorded
        recorded 1 first
        cat >/tmp/other <<'END'
            mount -t tmpfs -o mode=1777 tmpfs /tmp
            for at in 1 2 3; do canal run -k inner -- true; done
            n=$(canal submit -k inner-job -- echo of the other | cut -d' ' -f1)
            canal wait "$n" && canal log "$n"
            recorded 4 inner
            canal history | grep -c first
            canal status -v | grep -c 'state is in /tmp/canal-0'
            canal daemon --stop
END
        unshare -m sh /tmp/other
        echo ==
        for at in 1 2 3; do canal run -k second -- true; done
        recorded 3 second
        canal history | grep -c inner
        canal doctor | grep -c damaged
        canal log inner-job 2>&1 | head -1
        canal daemon --replace
        canal history | grep -c second
        echo == the home is cleared
        rm -r ~root/.local/state/canal
        until_true test -e ~root/.local/state/canal/daemon.lock
        canal run -k third -- unshare -m sh -c '
            mount -t tmpfs -o mode=1777 tmpfs /tmp
            canal run -k inner -- canal status -v | grep -c "state is in /tmp/canal-0"
            canal daemon --stop
        '
    "#;
    let Some(ended) = privately(&world, script) else { return };
    assert_eq!(
        ended.stdout,
        "of the other\n0\n1\n==\n0\n0\ncanal: you have no job for `inner-job` here\n3\n\
         == the home is cleared\n1\n",
        "{ended:?}"
    );
}
