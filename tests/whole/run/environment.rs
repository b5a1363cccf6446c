//! The arguments, the environment and canal's own variables, as the command gets them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Stdio;

use crate::backend::{self, over_engines};
use crate::whole::run::transparency::WAYS;
use crate::world::World;
use crate::world::process::Cmd;

over_engines! {
    "a command also finds the deadline of its hold":
        canal_sets_or_unsets_each_of_its_variables;
}

#[test]
fn arguments_are_passed_on_as_bytes() {
    let world = World::with_daemon();
    let odd: [&[u8]; 6] = [b"\xff\xfe", b"", b" a  b ", b"-n", b"line\nbreak", b"--"];
    let run = |way: &[&str]| {
        let probe = ["sh", "-c", "cat /proc/$$/cmdline"];
        let mut cmd = match way {
            [] => world.program(probe[0], &probe[1..]),
            way => world.canal(way.iter().chain(&probe)),
        };
        for bytes in odd {
            cmd = cmd.arg(OsString::from_vec(bytes.to_vec()));
        }
        output_bytes(cmd)
    };
    let plain = run(&[]);
    assert!(plain.windows(4).any(|w| w == b"\0\xff\xfe\0"));
    for way in WAYS {
        assert_eq!(run(way), plain, "{way:?}");
    }
}

/// Standard output as bytes.
fn output_bytes(mut cmd: Cmd<'_>) -> Vec<u8> {
    let out = cmd.command.stderr(Stdio::inherit()).stdout(Stdio::piped()).output().unwrap();
    assert!(out.status.success());
    out.stdout
}

#[test]
fn the_environment_is_passed_on_byte_for_byte_and_in_order() {
    let world = World::with_daemon();
    let run = |way: &[&str]| {
        // A name twice, a name without a value, and a name that is not text. `env` cannot pass a
        // name twice, so the test compares the order and the bytes.
        let mut args = vec!["-i", "Z=1", "A=", "PATH_LIKE=/a:/b", "M=\n", "canal"];
        let socket = format!("CANAL_SOCKET={}", world.socket().display());
        args.insert(1, &socket);
        let path = format!("PATH={}", crate::world::canal().parent().unwrap().display());
        args.insert(3, &path);
        if way.is_empty() {
            args.pop();
        }
        args.extend(way);
        args.extend(["/bin/cat", "/proc/self/environ"]);
        let mut cmd = world.program("/usr/bin/env", args);
        cmd = cmd.env("IGNORED", "1");
        let bytes = output_bytes(cmd);
        let kept = bytes.split(|b| *b == 0).filter(|e| !e.starts_with(b"CANAL_"));
        kept.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let plain = run(&[]);
    assert_eq!(plain.len(), 6, "{plain:?}");
    for way in WAYS {
        assert_eq!(run(way), plain, "{way:?}");
    }
}

#[test]
fn canal_sets_or_unsets_each_of_its_variables() {
    let world = World::with_daemon();
    let own = "env | grep ^CANAL_ | grep -v -e ^CANAL_SOCKET= -e ^CANAL_SEPARATE= | sort";
    let stale = ["KEY", "TOKEN", "SLOTS", "SLOT", "BUCKET", "SESSION", "FRAME"]
        .map(|n| format!("CANAL_{n}"));
    let run = |lock: &[&str]| {
        let mut args = vec!["run"];
        args.extend(lock);
        args.extend(["-c", own]);
        let mut cmd = world.canal(args);
        for name in &stale {
            cmd = cmd.env(name, "stale");
        }
        cmd.end().code(0).stdout
    };
    let names = |text: &str| -> Vec<String> {
        text.lines()
            .filter_map(|l| Some(l.split_once('=')?.0["CANAL_".len()..].to_owned()))
            .collect()
    };
    let one = run(&["-k", "gpu=2x2"]);
    assert!(one.contains("CANAL_KEY=gpu\n") && one.contains("CANAL_SLOTS=0\n"), "{one}");
    assert!(one.contains("CANAL_SLOT=0\n") && one.contains("CANAL_BUCKET=0\n"), "{one}");
    assert!(!one.contains("stale"), "{one}");
    // Over an engine there is one more variable, by which the daemon finds what a command left
    // behind.
    let set = |shown: &str| -> Vec<String> {
        let (hold, names) = names(shown).into_iter().partition::<Vec<_>, _>(|name| name == "HOLD");
        assert_eq!(hold.len(), usize::from(backend::is_engine()), "{shown}");
        names
    };
    let common = ["FRAME", "KEY", "SESSION", "SLOTS", "TOKEN"];
    let sorted = |more: &[&str]| {
        let mut all: Vec<_> = common.iter().chain(more).map(|name| (*name).to_owned()).collect();
        all.sort_unstable();
        all
    };
    let of_one = ["BUCKET", "BUCKET_GPU", "SLOT", "SLOTS_GPU", "SLOT_GPU"];
    assert_eq!(set(&one), sorted(&of_one));
    // Slots without buckets; then more than one slot.
    assert_eq!(set(&run(&["-k", "n=4"])), sorted(&["SLOT", "SLOTS_N", "SLOT_N"]));
    assert_eq!(set(&run(&["-k", "m=4x1:2"])), sorted(&["SLOTS_M"]));
}

#[test]
fn each_key_has_variables_of_its_own() {
    let world = World::with_daemon();
    let show = "echo $CANAL_SLOT $CANAL_SLOTS, $CANAL_SLOT_GPU, $CANAL_SLOTS_CPU";
    let two = world.canal(["run", "-k", "gpu=2", "-k", "cpu=8:3", "-c", show]).end().code(0);
    assert_eq!(two.stdout, "0 0,0,1,2, 0, 0,1,2\n");
    let inner = "canal run -k cpu -c 'echo $CANAL_SLOT_GPU $CANAL_SLOT_CPU'";
    let nested = world.canal(["run", "-k", "gpu", "-c", inner]).end().code(0);
    assert_eq!(nested.stdout, "0 0\n", "what is held outside stays known");
    let clash = world.canal(["run", "-k", "a-b", "-k", "a_b", "true"]).end().code(125).stderr;
    let message = "canal: `a-b` and `a_b` would both set CANAL_SLOT_A_B for the command\nhint: ";
    assert!(clash.starts_with(message), "{clash}");
}

#[test]
fn the_socket_is_passed_on_only_if_it_was_given() {
    let world = World::with_daemon().on_one_host();
    let socket = world.socket().display().to_string();
    let show = "echo \"[${CANAL_SOCKET-unset}]\"";
    let by_env = world.canal(["run", "-k", "x", "-c", show]).end().code(0);
    assert_eq!(by_env.stdout, format!("[{socket}]\n"));
    let by_option = ["run", "--socket", socket.as_str(), "-k", "x", "-c", show];
    let by_option = world.canal(by_option).env_remove("CANAL_SOCKET").end().code(0);
    assert_eq!(by_option.stdout, format!("[{socket}]\n"));
}
