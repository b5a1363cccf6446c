//! `canal man`: the man pages.
//!
//! Name, synopsis and options come from the definition of the command line, everything else from
//! the texts next to this file. The options replace the line `OPTIONS_HERE` of a text. Pages about
//! files and formats are written by hand.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;

use super::definition;
use super::output::sanitize::fold;
use crate::cli::{Failed, Result};

/// Pairs each name with the text in its file.
macro_rules! texts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!($name, ".roff")))),*]
    };
}

/// The line of a text that the options replace.
const OPTIONS_HERE: &str = ".\\\" OPTIONS\n";

/// The date of the last substantial change to the texts.
const DATE: &str = "2026-11-20";

/// The longest line in a generated text.
const LINE_MAX: usize = 79;

/// For each page about a command, the text that the definition does not contain.
const TEXTS: &[(&str, &str)] = texts! {
    "canal", "run", "submit", "log", "wait", "priority", "acquire", "release", "renew", "status",
    "top", "test", "history", "stats", "metrics", "trace", "leader", "kill", "resize", "daemon",
    "bridge", "config", "doctor", "setup", "completions", "man",
};

/// The pages that are not about a command.
const BY_HAND: &[(&str, &str)] = &[
    ("canal.toml.5", include_str!("../../../man/canal.toml.5")),
    ("canal-json.7", include_str!("../../../man/canal-json.7")),
];

pub(crate) fn run(dir: &Path) -> Result {
    for (name, text) in pages() {
        let path = dir.join(name);
        fs::write(&path, text)
            .map_err(|error| Failed::new(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(())
}

/// The pages that `canal man` writes: file name and text.
pub fn pages() -> Vec<(String, String)> {
    let canal = definition();
    let verbs = canal.get_subcommands().filter(|verb| !verb.is_hide_set());
    let commands = verbs.filter(|verb| verb.get_name() != "help").cloned();
    let mut pages: Vec<_> = std::iter::once(canal.clone()).chain(commands).map(page).collect();
    pages.extend(BY_HAND.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())));
    pages
}

fn page(command: Command) -> (String, String) {
    let name = command.get_display_name().unwrap_or("canal").to_owned();
    let file = name.trim_start_matches("canal-");
    let text = TEXTS.iter().find(|(of, _)| *of == file).map_or("", |(_, text)| text);
    // One paragraph with the summary and the details of an option. `clap_mangen` prints details
    // twice, and prints nothing for options that `-h` omits.
    let with_one_text = |arg: Arg| {
        let long = arg.get_long_help().or_else(|| arg.get_help()).cloned().unwrap_or_default();
        let text = long.to_string().replacen("\n\n", ". ", 1);
        arg.help(text).long_help(None::<&str>).hide_short_help(false)
    };
    let man = Man::new(command.mut_args(with_one_text))
        .title(name.to_uppercase())
        .date(DATE)
        .source(concat!("canal ", env!("CARGO_PKG_VERSION")))
        .manual("canal");
    let mut roff = Vec::new();
    // Writing to memory does not fail.
    let _ = render(&man, text, &mut roff);
    (man.get_filename(), String::from_utf8_lossy(&roff).into_owned())
}

/// Writes the title, the name, and the text with the options in it. The text contains the synopsis
/// too, because the options would hide the command in a generated one.
fn render(man: &Man, text: &str, roff: &mut Vec<u8>) -> io::Result<()> {
    let (above, below) = text.split_once(OPTIONS_HERE).unwrap_or((text, ""));
    man.render_title(roff)?;
    man.render_name_section(roff)?;
    roff.extend(above.as_bytes());
    let mut options = Vec::new();
    man.render_options_section(&mut options)?;
    roff.extend(tidy(&String::from_utf8_lossy(&options)).as_bytes());
    roff.extend(below.as_bytes());
    Ok(())
}

/// Removes the angle brackets of a usage line from value names, and folds lines to fit a terminal.
fn tidy(roff: &str) -> String {
    let mut tidy = String::new();
    // Empty lines would become paragraphs.
    for line in roff.lines().filter(|line| !line.is_empty()) {
        let line = line.replace("<\\fI", "\\fI").replace("\\fR>", "\\fR");
        let line = line.replace("\\fI<", "\\fI").replace(">\\fR", "\\fR");
        if line.starts_with(['.', '\\']) {
            tidy.push_str(&line);
        } else {
            // No word of an option's help begins with a character that would make its line a
            // request.
            tidy.push_str(&fold(&line, LINE_MAX).join("\n"));
        }
        tidy.push('\n');
    }
    tidy.replace(".br\n.br\n", ".br\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_text_of_its_own() {
        let names: Vec<_> = pages().into_iter().map(|(name, _)| name).collect();
        for (of, text) in TEXTS {
            let page = if *of == "canal" { "canal.1".to_owned() } else { format!("canal-{of}.1") };
            assert!(names.contains(&page), "{of}");
            assert!(text.contains(OPTIONS_HERE), "{of}");
        }
        assert_eq!(names.len(), TEXTS.len() + BY_HAND.len());
    }
}
