//! `canal man`: the pages of `man/`.
//!
//! Name, synopsis and options come from the definition of the command line, everything else from
//! the texts beside this file: what stands above `OPTIONS_HERE` in them, then the options, then the
//! rest. Pages about files and formats are wholly by hand.

use std::fs;
use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;

use super::args::ManArgs;
use super::definition;
use super::failed::Failed;

/// The line of a text that stands for the options.
const OPTIONS_HERE: &str = ".\\\" OPTIONS\n";

/// Of each page about a command what its definition does not say.
const TEXTS: &[(&str, &str)] = &[
    ("canal", include_str!("canal.roff")),
    ("canal-run", include_str!("run.roff")),
    ("canal-acquire", include_str!("acquire.roff")),
    ("canal-release", include_str!("release.roff")),
    ("canal-status", include_str!("status.roff")),
    ("canal-resize", include_str!("resize.roff")),
    ("canal-daemon", include_str!("daemon.roff")),
    ("canal-completions", include_str!("completions.roff")),
    ("canal-man", include_str!("man.roff")),
];

/// The pages that are not about a command.
const BY_HAND: &[(&str, &str)] = &[
    ("canal.toml.5", include_str!("../../../man/canal.toml.5")),
    ("canal-json.7", include_str!("../../../man/canal-json.7")),
];

pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failed> {
    for (name, text) in pages() {
        let path = args.dir.join(name);
        fs::write(&path, text)
            .map_err(|error| Failed::new(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All pages: file name and text.
pub(crate) fn pages() -> Vec<(String, Vec<u8>)> {
    let canal = definition();
    let verbs = canal.get_subcommands().filter(|verb| !verb.is_hide_set());
    let commands = verbs.filter(|verb| verb.get_name() != "help").cloned();
    let mut pages: Vec<_> = std::iter::once(canal.clone()).chain(commands).map(page).collect();
    pages.extend(BY_HAND.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())));
    pages
}

fn page(command: Command) -> (String, Vec<u8>) {
    let name = command.get_display_name().unwrap_or("canal").to_owned();
    let text = TEXTS.iter().find(|(of, _)| *of == name).map_or("", |(_, text)| text);
    let man = Man::new(command.version(env!("CARGO_PKG_VERSION")))
        .title(name.to_uppercase())
        .source(concat!("canal ", env!("CARGO_PKG_VERSION")))
        .manual("canal");
    let mut roff = Vec::new();
    let (above, below) = text.split_once(OPTIONS_HERE).unwrap_or((text, ""));
    // Writing into memory does not fail.
    let _ = head(&man, &mut roff);
    roff.extend(above.as_bytes());
    let _ = man.render_options_section(&mut roff);
    roff.extend(below.as_bytes());
    (man.get_filename(), roff)
}

fn head(man: &Man, roff: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(roff)?;
    man.render_name_section(roff)?;
    man.render_synopsis_section(roff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_text_of_its_own() {
        let names: Vec<_> = pages().into_iter().map(|(name, _)| name).collect();
        for (of, text) in TEXTS {
            assert!(names.contains(&format!("{of}.1")), "{of}");
            assert!(text.contains(OPTIONS_HERE), "{of}");
        }
        assert_eq!(names.len(), TEXTS.len() + BY_HAND.len());
    }
}
