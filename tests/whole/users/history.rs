//! The ended requests of a shared daemon that each user sees.

use serde_json::Value;

use crate::namespace::privately;
use crate::world::World;

#[test]
fn each_user_sees_every_end_and_only_the_commands_of_its_own() {
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        canal daemon 2>/tmp/log &
        until_true canal status --no-start >/dev/null 2>&1
        one() { setpriv --reuid 20001 --regid 20001 --clear-groups "$@"; }
        two() { setpriv --reuid 20002 --regid 20002 --clear-groups "$@"; }
        one canal run -k x -- sh -c ': secret of one'
        two canal run -k x -- sh -c ': secret of two'
        until_true sh -c 'canal history --json | grep -o "\"number\"" | wc -l | grep -q 2'
        one canal history --json
        two canal history --json
        canal history --json
        two canal history --json --user 20001
        two canal stats --json
        one cat /var/lib/canal/history/* 2>&1 | grep -c 'Permission denied'
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 6, "{ended:?}");
    let commands = |line: &str| -> Vec<Option<String>> {
        let found: Value = serde_json::from_str(line).unwrap();
        let records = found["records"].as_array().unwrap();
        records.iter().map(|record| record["command"].as_str().map(str::to_owned)).collect()
    };
    let one = Some("sh -c : secret of one".to_owned());
    let two = Some("sh -c : secret of two".to_owned());
    assert_eq!(commands(lines[0]), [one.clone(), None]);
    assert_eq!(commands(lines[1]), [None, two.clone()]);
    assert_eq!(commands(lines[2]), [one, two]);
    assert_eq!(commands(lines[3]), [None], "a filter shows no more");
    let stats: Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!(stats["all"]["count"], 2);
    assert_eq!(stats["users"].as_array().unwrap().len(), 2);
    assert_eq!(stats["commands"].as_array().unwrap().len(), 1, "{stats}");
    assert!(!lines[4].contains("secret of one"), "{stats}");
    assert_eq!(lines[5], "1", "the files are the daemon's");
}
