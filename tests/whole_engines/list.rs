//! Lists which tests of `tests/whole` run over an engine and which do not, with the reasons.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::expected_text::matches;

/// Folders whose tests do not depend on an engine.
const LEFT_OUT: &[(&str, &str)] = &[
    ("jobserver", "a daemon over an engine has no jobserver"),
    ("journal", "faults of the disk and of the journal of one daemon"),
    ("users", "the daemon runs in a mount namespace of its own, which has no engine"),
];

fn whole() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole")
}

/// The names in a folder, sorted.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The tests of a module, each with the reason why it does not run over an engine, if there is one.
fn tests_of(file: &Path) -> Vec<(String, Option<String>)> {
    let text = fs::read_to_string(file).unwrap();
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
    let list = fs::read_to_string(whole().join("modules.rs")).unwrap();
    let (mut left_out, mut run, mut not_run) = (String::new(), 0, 0);
    for folder in names_in(&whole()) {
        let dir = whole().join(&folder);
        if !dir.is_dir() {
            assert!(matches!(&*folder, "main.rs" | "backend.rs" | "modules.rs"), "{folder}");
            continue;
        }
        let why = LEFT_OUT.iter().find(|(name, _)| *name == folder).map(|(_, why)| why);
        let included = list.contains(&format!("\nmod {folder};\n"));
        assert_ne!(included, why.is_some(), "{folder} is neither run nor left out, or both");
        let declared = fs::read_to_string(dir.join("mod.rs")).unwrap();
        for file in names_in(&dir) {
            let module = file.strip_suffix(".rs").unwrap();
            if module == "mod" {
                continue;
            }
            assert!(declared.contains(&format!("mod {module};\n")), "{folder}/{file} is not run");
            let tests = tests_of(&dir.join(&file));
            if let Some(why) = why {
                writeln!(left_out, "{folder}::{module}: {} tests: {why}", tests.len()).unwrap();
                not_run += tests.len();
                continue;
            }
            for (test, why) in tests {
                match why {
                    Some(why) => {
                        writeln!(left_out, "{folder}::{module}::{test}: {why}").unwrap();
                        not_run += 1;
                    }
                    None => run += 1,
                }
            }
        }
    }
    let head =
        format!("Of the tests in tests/whole, {run} run over each engine and {not_run} do not:\n");
    matches("over_engines.txt", &format!("{head}{left_out}"));
}
