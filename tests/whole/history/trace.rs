//! `canal trace` prints ended requests in a format that other programs read.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::whole::history::until_recorded;
use crate::world::World;

#[test]
fn each_hold_is_in_the_row_of_its_slot_and_none_overlap() {
    let world = World::with_daemon().on_one_host();
    let commands: Vec<_> = (0..8)
        .map(|_| world.canal(["run", "-k", "gpu", "-j", "2", "--", "sleep", "0.02"]).spawn())
        .collect();
    for command in commands {
        command.end().code(0);
    }
    world.canal(["run", "--read", "doc", "--", "true"]).end().code(0);
    let holder = world.holder(&["-k", "gpu", "-j", "1"]);
    world.canal(["run", "-w", "0.05", "-k", "gpu", "-j", "1", "--", "true"]).end().code(75);
    holder.finish();
    until_recorded(&world, &[], 11);
    let trace = world.canal(["trace"]).end().code(0).json();
    let events = trace["traceEvents"].as_array().unwrap();
    let name = |event: &Value, what: &str| {
        let is_it = |it: &&Value| {
            let same = |field: &str| it[field] == event[field];
            it["name"] == what && same("pid") && (what == "process_name" || same("tid"))
        };
        events.iter().find(is_it).unwrap()["args"]["name"].as_str().unwrap().to_owned()
    };
    let mut rows: BTreeMap<(String, String), Vec<(u64, u64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let row = (name(event, "process_name"), name(event, "thread_name"));
        let number = |field: &str| event[field].as_u64().unwrap();
        rows.entry(row).or_default().push((number("ts"), number("ts") + number("dur")));
    }
    let names: Vec<(&str, &str)> = rows.keys().map(|(key, row)| (&**key, &**row)).collect();
    assert_eq!(names, [("doc", "reads"), ("gpu", "slot 0"), ("gpu", "slot 1")]);
    for (row, spans) in &mut rows {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{row:?}: {spans:?}");
    }
    assert_eq!(rows.values().map(Vec::len).sum::<usize>(), 10);
    // Each wait that began has ended, including the one that got no grant.
    let waits = |ph: &str| -> Vec<u64> {
        let of_kind = events.iter().filter(|it| it["cat"] == "wait" && it["ph"] == ph);
        of_kind.map(|it| it["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(waits("b"), waits("e"));
    let timed_out = events.iter().filter(|it| it["args"]["how"] == "timeout");
    assert_eq!(timed_out.map(|it| it["ph"].as_str().unwrap()).collect::<String>(), "be");
    let one = world.canal(["trace", "doc", "--since", "1h"]).end().code(0).json();
    let one = one["traceEvents"].as_array().unwrap();
    assert_eq!(one.iter().filter(|it| it["ph"] == "X").count(), 1, "{one:?}");
    assert_eq!(
        world.canal(["trace", "nowhere"]).end().code(0).json()["traceEvents"],
        serde_json::json!([])
    );
}
