//! What of `tests/whole` runs over an engine, what does not, and why.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::expected_text::matches;

/// Modules that say nothing about an engine.
const LEFT_OUT: &[(&str, &str)] = &[
    ("disk", "a full disk under the journal, or one without inodes"),
    ("journal_faults", "a daemon that dies between two records of its journal"),
    ("permissions", "at a daemon in a mount namespace of its own, which has no engine"),
    ("places", "where the daemon of one machine is found, in a mount namespace of its own"),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The tests of a module, each with why it is left out, if it is.
fn tests_of(module: &str) -> Vec<(String, Option<String>)> {
    let text = fs::read_to_string(folder("whole").join(format!("{module}.rs"))).unwrap();
    let tests = text.split("#[test]\n").skip(1).map(|test| {
        let (name, body) = test.trim_start().strip_prefix("fn ").unwrap().split_once('(').unwrap();
        let why =
            body.split_once("journal_only(\"").map(|(_, rest)| rest.split('"').next().unwrap());
        (name.to_owned(), why.map(str::to_owned))
    });
    tests.collect()
}

#[test]
fn what_does_not_run_over_an_engine_is_listed_with_its_reason() {
    let list = fs::read_to_string(folder("whole_engines").join("modules.rs")).unwrap();
    let (mut left_out, mut run, mut not_run) = (String::new(), 0, 0);
    let mut modules: Vec<String> = fs::read_dir(folder("whole"))
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().to_str()?.strip_suffix(".rs").map(str::to_owned)
        })
        .filter(|module| !matches!(&**module, "main" | "backend"))
        .collect();
    modules.sort();
    for module in &modules {
        let tests = tests_of(module);
        let why = LEFT_OUT.iter().find(|(name, _)| name == module).map(|(_, why)| why);
        let included = list.contains(&format!("\nmod {module};\n"));
        assert_ne!(included, why.is_some(), "{module} is neither run nor left out, or both");
        if let Some(why) = why {
            writeln!(left_out, "{module}: {} tests: {why}", tests.len()).unwrap();
            not_run += tests.len();
            continue;
        }
        for (test, why) in tests {
            match why {
                Some(why) => {
                    writeln!(left_out, "{module}::{test}: {why}").unwrap();
                    not_run += 1;
                }
                None => run += 1,
            }
        }
    }
    let head =
        format!("Of the tests in tests/whole, {run} run over each engine and {not_run} do not:\n");
    matches("over_engines.txt", &format!("{head}{left_out}"));
}
