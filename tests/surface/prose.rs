//! Keeps the text of comments, documentation, man pages and help plain: no banned words, no
//! statement that opens with a question word, no long lines.

use std::fs;
use std::path::Path;

use super::{root, sources};

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

/// Phrases that contain a banned one and are fine.
const FINE: &[&str] = &["no more than", "no more bytes than", "`anew`", "is_anew"];

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

#[test]
fn prose_has_no_banned_words() {
    let mut found = Vec::new();
    for line in prose() {
        let mut text = format!(" {} ", line.text.to_lowercase());
        for fine in FINE {
            text = text.replace(fine, "");
        }
        let is_letter = |c: char| c.is_alphanumeric();
        for (banned, instead) in BANNED {
            let is_word = text.match_indices(banned).any(|(at, _)| {
                let (before, after) = (&text[..at], &text[at + banned.len()..]);
                !before.ends_with(is_letter) && !after.starts_with(is_letter)
            });
            if is_word {
                found.push(format!("{}: `{banned}`: {instead}", line.place));
            }
        }
    }
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
    for folder in ["src", "tests", "benches"] {
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
