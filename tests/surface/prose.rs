//! Keeps the text of comments, messages, documentation, man pages and help plain: no banned words,
//! one word for each concept, no statement that opens with a question word, no long lines.

use std::fs;
use std::path::Path;

use super::{all_sources, root, sources};

/// Words that read like a translation, and plainer ones.
const BANNED: &[(&str, &str)] = &[
    ("whoever", "name the process or person, or `any process that`"),
    ("anew", "again"),
    ("so many", "a number, or `that many`"),
    ("in vain", "without success"),
    ("is told", "gets, receives, or name who reports"),
    ("are told", "get, receive, or name who reports"),
    ("was told", "got, received, or name who reported"),
    ("of a moment", "short-lived, or out of date"),
    ("any more", "no longer"),
    ("no more", "no longer, or nothing else"),
];

/// More of them in messages, which users read without context.
const BANNED_IN_MESSAGES: &[(&str, &str)] = &[
    ("told", "name who sent or got it"),
    ("nobody", "no one, or no process"),
    ("everybody", "everyone"),
    ("stated", "given"),
    ("gave back", "released"),
    ("gives back", "releases"),
    ("goes with", "needs"),
    ("in the way", "blocks"),
    ("makes no sense", "is not valid"),
    ("it is not known", "cannot find"),
    ("mend", "fix"),
    ("over nodes", "on nodes, or node lease"),
    ("still runs", "is still running"),
    ("is away", "is unreachable"),
    ("exclude each other", "share no locks, or run at the same time"),
    ("go with", "be used with"),
    ("can never fit", "can never be granted"),
];

/// Phrases that contain a banned one and are fine.
const FINE: &[&str] = &["no more than", "no more bytes than", "on demand"];

/// Words to avoid for a concept of the glossary that have another meaning, too.
const OTHER_MEANINGS: &[(&str, &str)] = &[
    ("server", "engines, ssh and CI have servers"),
    ("permit", "a verb, as in `[[permission]]`"),
    ("promotion", "PostgreSQL promotes a standby"),
];

/// Where the words above may stand, and why.
const EXCEPTIONS: &[(&str, &str)] =
    &[("tests/surface/prose.rs", "names the words"), ("docs/glossary.md", "names words to avoid")];

/// The most columns of a line of prose. Tables and code are exempt.
const COLUMNS: usize = 100;

/// A line of prose, and where it is.
struct Line {
    place: String,
    text: String,
    /// Whether readers outside the project see it, such as a line of documentation.
    is_public: bool,
}

impl Line {
    /// Reports each of these words that the line contains outside of code, with its replacement.
    fn contains_any(&self, words: &[(&str, &str)]) -> Vec<String> {
        let mut text = format!(" {} ", self.text.to_lowercase());
        for fine in FINE {
            text = text.replace(fine, "");
        }
        // Code that continues on the next line counts as prose.
        if text.matches('`').count().is_multiple_of(2) {
            text = text.split('`').step_by(2).collect();
        }
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        let contains = |word: &str| {
            text.match_indices(word).any(|(at, _)| {
                let (before, after) = (&text[..at], &text[at + word.len()..]);
                !before.ends_with(is_letter) && !after.starts_with(is_letter)
            })
        };
        let found = words.iter().filter(|(word, _)| contains(word));
        found.map(|(word, instead)| format!("{}: `{word}`: {instead}", self.place)).collect()
    }
}

#[test]
fn prose_has_no_banned_words() {
    let messages = messages();
    let mut found = Vec::new();
    for line in prose().iter().chain(&messages) {
        found.extend(line.contains_any(BANNED));
    }
    found.extend(messages.iter().flat_map(|line| line.contains_any(BANNED_IN_MESSAGES)));
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn each_concept_of_the_glossary_has_one_word() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut words = Vec::new();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| term |");
    for row in glossary.lines().filter(is_row) {
        let [_, term, _, avoid, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let avoid = avoid.split(',').map(str::trim).filter(|word| !word.is_empty());
        let is_clear = |word: &&str| !OTHER_MEANINGS.iter().any(|(other, _)| other == word);
        words.extend(
            avoid
                .filter(is_clear)
                .flat_map(|word| [word.to_owned(), format!("{word}s")].map(|word| (word, term))),
        );
    }
    assert!(words.len() > 50, "{words:?}");
    let words: Vec<_> = words.iter().map(|(word, term)| (word.as_str(), *term)).collect();
    // CONTRIBUTING is about the code, and a macro of man pages names a field of JSON.
    let is_for_users = |line: &Line| {
        line.is_public && !line.place.starts_with("CONTRIBUTING") && !line.text.starts_with(".B")
    };
    let mut lines = messages();
    lines.extend(prose().into_iter().filter(is_for_users));
    let found: Vec<_> = lines.iter().flat_map(|line| line.contains_any(&words)).collect();
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_statement_opens_with_a_question_word() {
    let words = ["What ", "Who ", "Which ", "Whose "];
    let mut found = Vec::new();
    for line in prose().iter().filter(|line| line.is_public) {
        let text = line.text.trim_start_matches(['-', '*', '>', ' ', '|', '#']);
        let opens = words.iter().any(|word| text.starts_with(word));
        if opens && !line.text.contains('?') {
            found.push(format!("{}: {}", line.place, line.text));
        }
    }
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_line_of_prose_is_too_long() {
    let mut found = Vec::new();
    for line in prose() {
        let columns = line.text.chars().count();
        let is_table = line.text.trim_start_matches(['/', '!', ' ']).starts_with('|');
        let is_man = line.place.starts_with("man/") || line.place.starts_with("src/cli/man/");
        // A link cannot be folded, and mandoc folds lines itself.
        if columns > COLUMNS && !is_table && !is_man && line.text.trim().contains(' ') {
            found.push(format!("{}: {columns} columns", line.place));
        }
    }
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

/// All lines of comments, Markdown pages and man pages but those of exceptions.
fn prose() -> Vec<Line> {
    let mut lines = Vec::new();
    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    for file in files {
        of_comments(&file, &mut lines);
    }
    for folder in [".", "docs", "src/cli/man", "man"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let file = entry.unwrap().path();
            match file.extension().and_then(|it| it.to_str()) {
                Some("md") => of_markdown(&file, &mut lines),
                Some("roff" | "5" | "7") => of_man(&file, &mut lines),
                _ => {}
            }
        }
    }
    lines.retain(|line| !EXCEPTIONS.iter().any(|(place, _)| line.place.starts_with(place)));
    lines
}

/// The texts of `src` that a user may read: all with a space, apart from those of tests and SQL.
fn messages() -> Vec<Line> {
    let mut files = all_sources();
    let is_test = |file: &Path| {
        let parts = || file.strip_prefix(root()).unwrap().iter();
        parts().any(|part| part == "tests" || part == "tests.rs" || part == "sim")
    };
    files.retain(|file| !is_test(file));
    let mut lines = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        for (start, literal) in literals(code) {
            if literal.contains(' ') && !literal.contains("SELECT") {
                let place = place(&file, code[..start].matches('\n').count());
                lines.push(Line { place, text: without_fields(literal), is_public: true });
            }
        }
    }
    lines
}

/// The string literals in code, and where each begins.
fn literals(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = code.get(at..).filter(|rest| !rest.is_empty()) {
        let until = |end: &str| rest.find(end).map_or(rest.len(), |to| to + end.len());
        let hashes =
            rest.strip_prefix('r').map(|rest| rest.len() - rest.trim_start_matches('#').len());
        at += match hashes {
            _ if rest.starts_with("//") => until("\n"),
            Some(hashes) if rest[1 + hashes..].starts_with('"') => {
                let (begin, end) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
                let length = rest[begin..].find(&end).unwrap();
                found.push((at, &rest[begin..begin + length]));
                begin + length + end.len()
            }
            _ if rest.starts_with('"') => {
                let mut escaped = false;
                let length = rest[1..].find(|c: char| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let length = length.unwrap();
                found.push((at, &rest[1..=length]));
                length + 2
            }
            _ if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") => until("\"'"),
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    found
}

/// A format string without the names of its arguments.
fn without_fields(literal: &str) -> String {
    let mut parts = literal.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('}').map_or(part, |(_, rest)| rest))
}

fn place(file: &Path, number: usize) -> String {
    let name = file.strip_prefix(root()).unwrap_or(file).display().to_string();
    format!("{}:{}", name.trim_start_matches("./"), number + 1)
}

fn of_comments(file: &Path, lines: &mut Vec<Line>) {
    let text = fs::read_to_string(file).unwrap();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if !trimmed.starts_with("//") {
            is_code = false;
            continue;
        }
        if trimmed.trim_start_matches(['/', '!', ' ']).starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let text = line.to_owned();
            lines.push(Line { place: place(file, number), text, is_public: false });
        }
    }
}

fn of_markdown(file: &Path, lines: &mut Vec<Line>) {
    let text = fs::read_to_string(file).unwrap();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with("    ") {
            let text = line.to_owned();
            lines.push(Line { place: place(file, number), text, is_public: true });
        }
    }
}

fn of_man(file: &Path, lines: &mut Vec<Line>) {
    let text = fs::read_to_string(file).unwrap();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        match line {
            ".nf" => is_code = true,
            ".fi" => is_code = false,
            _ if is_code || line.starts_with(".\\\"") => {}
            _ => lines.push(Line {
                place: place(file, number),
                text: line.to_owned(),
                is_public: true,
            }),
        }
    }
}
