//! `canal stats` counts waits and holds correctly.

use serde_json::json;

use crate::whole::history::until_recorded;
use crate::world::World;

#[test]
fn waits_and_holds_are_counted_by_user_and_command() {
    let world = World::with_daemon().on_one_host();
    let holder = world.holder(&["-k", "s"]);
    world.canal(["run", "-n", "-k", "s", "--", "true"]).end().code(75);
    let waiter = world.waiter("s", &[], &["true"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    holder.finish();
    waiter.end().code(0);
    world.canal(["run", "-k", "s/below", "--", "true"]).end().code(0);
    world.canal(["run", "-k", "other", "--", "true"]).end().code(0);
    until_recorded(&world, &[], 5);
    let found = world.canal(["stats", "s", "--json"]).end().code(0).json();
    let all = &found["all"];
    assert_eq!((&all["count"], &all["refused"]), (&json!(4), &json!(1)), "{found}");
    // One of the three waits was long, and so was the hold of another request.
    for (lengths, name) in [(&all["waits"], "waits"), (&all["holds"], "holds")] {
        let length = |of: &str| lengths[of].as_u64().unwrap();
        assert!(length("max_ms") >= 290, "{name}: {found}");
        assert!(length("median_ms") <= length("p90_ms"), "{name}: {found}");
        assert!(length("p99_ms") <= length("max_ms"), "{name}: {found}");
    }
    let commands = found["commands"].as_array().unwrap();
    let counted = |command: &str| {
        let of = commands.iter().find(|of| of["command"] == command);
        of.unwrap_or_else(|| panic!("{found}"))["count"].clone()
    };
    assert_eq!((counted("cat"), counted("true")), (json!(1), json!(3)));
    assert_eq!(found["users"].as_array().unwrap().len(), 1);
    let shown = world.canal(["stats", "s"]).end().code(0).stdout;
    assert!(shown.starts_with("s  3 grants, 1 never granted\n"), "{shown}");
    assert!(shown.lines().any(|line| line.ends_with("  everything")), "{shown}");
    let none = world.canal(["stats", "nowhere"]).end().code(0).stdout;
    assert_eq!(none, "nowhere  0 grants, 0 never granted\n");
}

#[test]
fn use_and_slots_are_those_of_the_key_that_was_asked_about() {
    let world = World::with_daemon().on_one_host();
    for _ in 0..3 {
        world.canal(["run", "-j", "2", "-k", "p", "--", "true"]).end().code(0);
    }
    world.canal(["run", "-k", "p/below", "--", "true"]).end().code(0);
    let holder = world.holder(&["-j", "2", "-k", "held"]);
    until_recorded(&world, &[], 4);
    let found = world.canal(["stats", "p", "--json"]).end().code(0).json();
    let keys = found["keys"].as_array().unwrap();
    let names: Vec<_> = keys.iter().map(|key| key["key"].as_str().unwrap()).collect();
    assert_eq!(names, ["p", "p/below"], "{found}");
    assert_eq!((&keys[0]["size"], &keys[0]["granted"]), (&json!(2), &json!(3)), "{found}");
    let sum = |bins: &str| {
        let bins = found[bins].as_array().unwrap();
        bins.iter().map(|bin| bin["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum("wait_bins"), sum("hold_bins")), (4, 4), "{found}");
    let slots = &found["slots"];
    assert_eq!((&slots["present"], &slots["requests"]), (&json!(2), &json!(3)), "{found}");
    let tried = slots["rows"].as_array().unwrap().iter();
    let tried: Vec<_> = tried.map(|row| row["slots"].as_u64().unwrap()).collect();
    assert_eq!(tried, [1, 2, 3, 4]);
    // The stored size is the one that applies now.
    world.canal(["resize", "p", "--slots", "5"]).end().code(0);
    let found = world.canal(["stats", "p", "--json"]).end().code(0).json();
    assert_eq!(found["slots"]["present"], 5, "{found}");
    assert_eq!(found["keys"][0]["size"], 5, "{found}");
    // A current hold counts as in use, although it has not ended.
    crate::world::process::wait_until("what is held is in use", || {
        let found = world.canal(["stats", "held", "--json"]).end().code(0).json();
        assert_eq!((&found["all"]["count"], &found["slots"]), (&json!(0), &json!(null)));
        found["keys"][0]["used_ms"].as_u64().unwrap() > 0
    });
    holder.finish();
}

#[test]
fn a_job_array_is_a_few_lines_after_the_answer_and_fits_a_terminal() {
    let world = World::with_daemon().on_one_host();
    for n in 1..=8 {
        let script =
            format!(": this is job number {n} of a long array of jobs with long arguments");
        world.canal(["run", "-k", "a", "-j", "4", "--", "sh", "-c", &script]).end().code(0);
    }
    until_recorded(&world, &["a"], 8);
    let found = world.canal(["stats", "a", "--json"]).end().code(0).json();
    let commands = found["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 1, "{found}");
    assert_eq!((&commands[0]["commands"], &commands[0]["count"]), (&json!(8), &json!(8)));
    let pattern = "sh -c : this is job number # of a long array of jobs with long arguments";
    assert_eq!(commands[0]["command"], pattern);
    let shown = world.canal(["stats", "a"]).end().code(0).stdout;
    assert!(
        shown.starts_with(
            "a  8 grants, 0 never granted\n\nsimulated waits by number of slots, for "
        ),
        "{shown}"
    );
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let lines = shown.lines().filter(|line| line.contains("8 like sh -c : this is job")).count();
    assert_eq!(lines, 2, "{shown}");
}

#[test]
fn a_size_of_before_counts_for_its_time() {
    let world = World::with_daemon().on_one_host();
    world.canal(["resize", "r", "--slots", "2"]).end().code(0);
    world.canal(["run", "-k", "r", "--", "sleep", "1.2"]).end().code(0);
    until_recorded(&world, &["r"], 1);
    world.canal(["resize", "r", "--slots", "8"]).end().code(0);
    let found = world.canal(["stats", "r", "--json"]).end().code(0).json();
    let sizes: Vec<u64> = serde_json::from_value(found["keys"][0]["sizes"].clone()).unwrap();
    let (last, before) = sizes.split_last().unwrap();
    assert!(*last == 8 && !before.is_empty() && before.iter().all(|it| *it == 2), "{found}");
    let shown = world.canal(["stats", "r"]).end().code(0).stdout;
    assert!(shown.contains("% of 2 to 8 slots on average"), "{shown}");
}

#[test]
fn plots_are_drawn_as_the_locale_allows() {
    let world = World::with_daemon().on_one_host();
    for _ in 0..2 {
        world.canal(["run", "-k", "p", "--", "true"]).end().code(0);
    }
    until_recorded(&world, &[], 2);
    let blocks = world.canal(["stats", "p"]).env("LC_ALL", "C.UTF-8").end().code(0).stdout;
    assert!(blocks.contains('█') && blocks.contains('└'), "{blocks}");
    let said = "simulated waits by number of slots, for all 2 requests at the same times\n";
    assert!(blocks.contains(said), "{blocks}");
    let plain = world.canal(["stats", "p"]).env("LC_ALL", "C").end().code(0).stdout;
    assert!(plain.is_ascii() && plain.contains('#') && plain.contains(said), "{plain}");
    let asked = ["stats", "p", "--ascii"];
    let asked = world.canal(asked).env("LC_ALL", "C.UTF-8").end().code(0).stdout;
    assert!(asked.is_ascii() && asked.contains('#'), "{asked}");
}

#[test]
fn a_report_is_written_whole_and_over_nothing() {
    let world = World::with_daemon().on_one_host();
    world.canal(["run", "-k", "<p>&\"", "--", "true"]).end().code(0);
    until_recorded(&world, &[], 1);
    let path = world.path("work").join("report.svg");
    let file = path.to_str().unwrap();
    let told = world.canal(["stats", "--svg", file]).end().code(0);
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("", ""));
    let svg = world.read("report.svg");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    let again = world.canal(["stats", "--svg", file]).end().code(125).stderr;
    let refused = format!("canal: {file} already exists\nhint: replace it with `--force`\n");
    assert_eq!(again, refused);
    world.canal(["stats", "--svg", file, "--force"]).end().code(0);
    let shown = world.canal(["stats", "<p>&\"", "--svg", "-"]).end().code(0).stdout;
    assert!(shown.contains("canal stats: &lt;p&gt;&amp;&quot;</text>"), "{shown}");
    let both = world.canal(["stats", "--svg", file, "--json"]).end().code(125).stderr;
    assert!(both.contains("cannot be given together"), "{both}");
}
