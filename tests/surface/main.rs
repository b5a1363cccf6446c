//! The surface of the program: man pages and completion scripts match the definition of the command
//! line, and the sources follow the house rules.
#![expect(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "../fixtures/bound.rs"]
mod bound;
mod completions;
#[path = "../fixtures/executable.rs"]
mod executable;
#[path = "../fixtures/isolation.rs"]
mod isolation;
mod prose;
mod rooms;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Arg;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every visible option of every command, as a user types it.
fn options() -> BTreeSet<String> {
    let canal = canal::cli::definition();
    let verbs = canal.get_subcommands().filter(|verb| !verb.is_hide_set());
    std::iter::once(&canal)
        .chain(verbs)
        .flat_map(clap::Command::get_arguments)
        .filter(|arg| !arg.is_hide_set())
        .flat_map(spellings)
        .collect()
}

fn spellings(arg: &Arg) -> Vec<String> {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    short.into_iter().chain(long).collect()
}

fn verbs() -> Vec<String> {
    let canal = canal::cli::definition();
    let shown = canal.get_subcommands().filter(|verb| !verb.is_hide_set());
    shown.map(|verb| verb.get_name().to_owned()).collect()
}

fn script(name: &str) -> String {
    fs::read_to_string(root().join("completions").join(name)).unwrap()
}

/// The options that a script for bash or zsh names.
fn named(script: &str) -> BTreeSet<String> {
    let code = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = code.flat_map(|line| {
        line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).map(str::to_owned)
    });
    let option = |word: &String| {
        let long = word.strip_prefix("--").is_some_and(|name| !name.is_empty());
        let short = word.len() == 2 && word.starts_with('-') && !word.ends_with('-');
        long || short
    };
    words.filter(option).collect()
}

/// The options that the script for fish names: `-s x` and `-l word` of `complete`.
fn named_by_fish(script: &str) -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    for line in script.lines().filter(|line| line.trim_start().starts_with("complete -c canal")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            match pair[0] {
                "-s" => options.insert(format!("-{}", pair[1])),
                "-l" => options.insert(format!("--{}", pair[1])),
                _ => false,
            };
        }
    }
    options
}

#[test]
fn bash_and_zsh_complete_exactly_the_options_that_exist() {
    let known = options();
    // Options in the scripts that belong not to canal but to bash, zsh and the programs they call.
    let foreign: &[(&str, &[&str])] = &[
        ("canal.bash", &["-r", "-s", "-W", "-t", "-d", "-F", "-n", "-u"]),
        ("_canal", &["-A", "-C", "-F", "-S", "-a", "-e", "-i", "-s", "-t"]),
    ];
    for (name, foreign) in foreign {
        let named = named(&script(name));
        let missing: Vec<_> = known.difference(&named).collect();
        assert!(missing.is_empty(), "{name} does not know {missing:?}");
        let invented: Vec<_> =
            named.difference(&known).filter(|word| !foreign.contains(&word.as_str())).collect();
        assert!(invented.is_empty(), "{name} invents {invented:?}");
    }
}

#[test]
fn fish_completes_exactly_the_options_that_exist() {
    assert_eq!(named_by_fish(&script("canal.fish")), options());
}

#[test]
fn each_script_knows_every_command() {
    for name in ["canal.bash", "_canal", "canal.fish"] {
        let script = script(name);
        for verb in verbs() {
            let word = script.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == verb);
            assert!(word, "{name} does not know {verb}");
        }
    }
}

/// `UPDATE=1 cargo test --test surface` rewrites the pages.
#[test]
fn the_man_pages_are_those_that_the_program_writes() {
    let dir = root().join("man");
    let pages = canal::cli::man_pages();
    if std::env::var_os("UPDATE").is_some() {
        for (name, text) in &pages {
            fs::write(dir.join(name), text).unwrap();
        }
    }
    let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.clone()).collect();
    let there = fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), names);
    for (name, text) in &pages {
        let found = fs::read_to_string(dir.join(name)).unwrap();
        assert!(found == *text, "man/{name} is out of date: UPDATE=1 cargo test --test surface");
    }
}

/// The order of man-pages(7). Options have their own headings between the description and the exit
/// status.
#[test]
fn man_pages_have_the_sections_that_readers_expect() {
    let expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"];
    for (name, text) in canal::cli::man_pages().iter().filter(|(name, _)| name.ends_with(".1")) {
        let headings = text.lines().filter_map(|line| line.strip_prefix(".SH "));
        let found: Vec<_> = headings.map(|it| it.trim_matches('"')).collect();
        let found: Vec<_> = found.into_iter().filter(|it| expected.contains(it)).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn the_synopsis_of_canal_names_every_command() {
    let page = canal::cli::man_pages().into_iter().find(|(name, _)| name == "canal.1").unwrap().1;
    let synopsis = page.split(".SH ").find(|it| it.starts_with("SYNOPSIS")).unwrap();
    for verb in verbs().iter().filter(|verb| *verb != "help") {
        let line = format!("\\fBcanal {verb}");
        assert!(synopsis.lines().any(|it| it.starts_with(&line)), "canal(1) lacks canal {verb}");
    }
}

#[test]
fn man_pages_have_no_errors() {
    if Command::new("mandoc").arg("-T").arg("lint").arg("/dev/null").output().is_err() {
        return isolation::skipped("mandoc is not installed: errors in the man pages");
    }
    for (name, _) in canal::cli::man_pages() {
        let page = root().join("man").join(&name);
        let mut lint = Command::new("mandoc");
        let lint = lint.args(["-T", "lint", "-W", "warning"]).arg(&page).output().unwrap();
        let said = String::from_utf8_lossy(&lint.stdout).into_owned();
        assert!(said.is_empty(), "{said}");
    }
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// All sources of canal.
fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("crates"), &mut files);
    files
}

/// The reason: a preloaded library, such as that of fakeroot, can replace the C library's answers
/// about users.
#[test]
fn the_kernel_alone_says_who_the_user_is_and_who_owns_a_file() {
    for path in all_sources() {
        let text = fs::read_to_string(&path).unwrap();
        // Here the kernel reports it about a peer.
        let is_about_peers = path.starts_with(root().join("crates/canal-sys/src/peer"))
            || path.ends_with("canal-sys/src/peer.rs");
        for line in text.lines().filter(|_| !is_about_peers) {
            let asks = ["geteuid", "getuid", "getegid", "getgid", "getgroups"];
            let is_wrong = line.contains(".uid()")
                || asks.iter().any(|it| line.contains(&format!("libc::{it}")))
                || line.contains("nix::unistd") && asks.iter().any(|it| line.contains(it));
            assert!(!is_wrong, "{}: {line}: sys::process::user says that", path.display());
        }
    }
}

#[test]
fn sources_are_short_and_have_module_docs() {
    for file in all_sources() {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 1000, "{} has {lines} lines", file.display());
        let tests = file.file_stem().is_some_and(|stem| stem == "tests");
        let parent_is_tests = file.parent().is_some_and(|dir| dir.ends_with("tests"));
        if !tests && !parent_is_tests {
            assert!(text.starts_with("//!"), "{} has no module doc", file.display());
        }
    }
}

#[test]
fn a_package_is_built_for_this_machine_alone_unless_others_are_named() {
    let folder = tempfile::tempdir().unwrap();
    // No target is installed, so nothing is built.
    let rustc = folder.path().join("rustc");
    executable::executable(&rustc, "#!/bin/sh\necho /nonexistent\n");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let missing = |words: &[&str]| {
        let mut build = Command::new(root().join("packaging/build"));
        let output = build.args(words).env("PATH", &path).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let targets = |text: &str| text.matches("rustup target add").count();
    let here = missing(&["tar"]);
    assert!(here.contains(&format!("add {}-unknown-linux-musl", std::env::consts::ARCH)), "{here}");
    assert_eq!(targets(&here), 1, "{here}");
    assert_eq!(targets(&missing(&["tar", "x86_64", "aarch64"])), 2);
}
