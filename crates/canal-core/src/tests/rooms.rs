//! Checks the modules of the core: each uses only those listed before it.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules in order, with the names that each may import from others.
const ROOMS: [(&str, &[&str]); 6] = [
    ("model", &[]),
    ("index", &["model"]),
    ("state", &["model", "index"]),
    ("admission", &["model", "index", "state"]),
    ("deadlock", &["model", "index", "state", "admission"]),
    ("transition", &["model", "index", "state", "admission", "deadlock"]),
];

/// The files of a module, including those in its subfolders.
fn files(room: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(room).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn each_room_uses_only_those_before_it() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (room, may) in ROOMS {
        for path in files(&core.join(room)) {
            let text = fs::read_to_string(&path).unwrap();
            for (other, _) in ROOMS.iter().filter(|(other, _)| *other != room) {
                let used = text.contains(&format!("use crate::{other}::"));
                assert!(!used || may.contains(other), "{} uses {other}", path.display());
            }
        }
    }
}

#[test]
fn neither_model_nor_index_knows_the_table() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for room in ["model", "index"] {
        for path in files(&core.join(room)) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let mut words =
                code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
            assert!(!words.any(|word| word == "Table"), "{}", path.display());
        }
    }
}
