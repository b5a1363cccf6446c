//! A full file system under the journal: no free space or no free inodes.

use crate::namespace::privately;
use crate::world::World;

#[test]
fn a_full_disk_refuses_new_requests_and_loses_no_hold() {
    let world = World::new();
    // Requests of many long keys fill the allocated part of the journal; the rest of the disk is
    // full.
    let script = r#"
        mkdir /tmp/disk && mount -t tmpfs -o size=8m,mode=700 tmpfs /tmp/disk
        export CANAL_SOCKET=/tmp/disk/canal.sock
        mkfifo /tmp/end; exec 8<>/tmp/end
        canal run -k x -- sh -c 'read line </tmp/end' & holder=$!
        until_true sh -c 'canal status --json x | grep -q "\"held\": *1"'
        canal run -k x -- sh -c 'echo waiter ran' & waiter=$!
        until_true sh -c 'canal status --json x | grep -q "\"waiting\": *1"'
        dd if=/dev/zero of=/tmp/disk/filler bs=4096 2>/dev/null
        sleep 600 & owner=$!
        long=$(printf '%01000d' 0)
        n=0
        while [ $n -lt 2000 ]; do
            keys=; for i in 0 1 2 3 4 5 6 7 8 9; do keys="$keys -k $n/$i/$long"; done
            canal acquire --pid $owner $keys 2>/tmp/said || { echo "refused with $?"; break; }
            n=$((n + 1))
        done
        cat /tmp/said
        [ $n -gt 0 ] && echo "some were accepted"
        echo "== others go on"
        canal status --json x | grep -c '"held": *1'
        echo >&8; wait $holder; wait $waiter; echo "code $?"
        kill $owner; wait $owner 2>/dev/null
        until_true sh -c '! canal status --json | grep -q 0000000000'
        echo "== a restart on a full disk"
        kill -9 $(canal status --json | tr ',' '\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
        canal status; echo "code $?"
        echo "== with room again"
        rm /tmp/disk/filler
        canal run -w 10 -k x -- echo fine
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let out = &ended.stdout;
    assert!(out.starts_with("refused with 125\ncanal: "), "{ended:?}");
    let said = out.lines().nth(1).unwrap();
    assert!(said.contains("no room") || said.contains("full"), "{said}");
    let rest = out.split_once("some were accepted\n").unwrap_or_else(|| panic!("{ended:?}")).1;
    assert!(rest.starts_with("== others go on\n1\nwaiter ran\ncode 0\n"), "{ended:?}");
    assert!(rest.ends_with("code 0\n== with room again\nfine\n"), "{ended:?}");
}

#[test]
fn without_a_free_inode_a_next_daemon_starts_and_a_first_daemon_names_the_file() {
    let world = World::new();
    let script = r#"
        mkdir /tmp/disk && mount -t tmpfs -o size=8m,nr_inodes=20,mode=700 tmpfs /tmp/disk
        export CANAL_SOCKET=/tmp/disk/canal.sock
        fill() { while touch /tmp/disk/fill$i 2>/dev/null; do i=$((i + 1)); done; }
        end() { pid=$(cat /tmp/disk/lock); kill -9 $pid; until_true sh -c "! kill -0 $pid 2>/dev/null"; }
        i=0
        canal run -k x -- echo first
        end; fill
        canal run -k x -- echo next
        end; rm -r /tmp/disk/[!f]* /tmp/disk/.canal* 2>/dev/null; fill
        while :; do
            canal run -k x -- echo last 2>/tmp/said && break
            sed /^hint/d /tmp/said
            grep -q "^hint: " /tmp/said || echo "no hint: $(cat /tmp/said)"
            i=$((i - 1)); rm /tmp/disk/fill$i
        done
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let mut lines = ended.stdout.lines();
    assert_eq!((lines.next(), lines.next()), (Some("first"), Some("next")), "{ended:?}");
    let said: Vec<&str> = lines.by_ref().take_while(|line| *line != "last").collect();
    for file in ["start.lock", "lock", "journal.0", "journal.1", "state.json"] {
        let named = format!("/tmp/disk/{file}: No space left on device");
        assert!(said.iter().any(|line| line.contains(&named)), "{file}: {ended:?}");
    }
    assert!(!said.iter().any(|line| line.starts_with("no hint")), "{said:?}");
}
