//! The daemon's log: one line per thing that an operator may want to know.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::limits::LOG_BYTES_MAX;

/// Begins to log to stderr; in a daemon that was started on demand, to `file`.
///
/// # Errors
/// If what `CANAL_LOG` or the configuration says makes no sense.
pub(super) fn begin(verbose: u8, config: Option<&str>, file: Option<&Path>) -> anyhow::Result<()> {
    let filter = filter(verbose, config)?;
    match file {
        Some(path) => install(filter, Mutex::new(LogFile::open(path)?)),
        None => install(filter, io::stderr),
    }
    Ok(())
}

fn install<W>(filter: EnvFilter, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false)
        .with_writer(writer);
    // The system's journal has a clock of its own. A log that is there already stays.
    let _ = if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().try_init()
    } else {
        log.with_timer(Utc).try_init()
    };
}

fn filter(verbose: u8, config: Option<&str>) -> anyhow::Result<EnvFilter> {
    let variable = std::env::var("CANAL_LOG").ok().filter(|text| !text.is_empty());
    let (text, whose) = match (verbose, &variable, config) {
        (0, Some(text), _) => (text.as_str(), "CANAL_LOG"),
        (0, None, Some(text)) => (text, "`log` of the configuration"),
        (0, None, None) => ("info", "the default"),
        (1, ..) => ("debug", "-v"),
        _ => ("trace", "-vv"),
    };
    // A bare level is about canal: what it is built of says too much below that.
    let bare = matches!(text, "debug" | "trace").then(|| format!("info,canal={text}"));
    let text = bare.as_deref().unwrap_or(text);
    EnvFilter::try_new(text).with_context(|| format!("{whose} cannot be used (`{text}`)"))
}

struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let now = jiff::Timestamp::now();
        write!(writer, "{now:.3}")
    }
}

/// A log file that does not grow for ever: one of the same size before it is kept.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl LogFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = append(path).with_context(|| path.display().to_string())?;
        let bytes = file.metadata().map_or(0, |found| found.len());
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    fn rotate(&mut self) {
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        if std::fs::rename(&self.path, before).is_err() {
            // Nothing to rotate, such as a file that somebody removed.
            self.bytes = 0;
        }
        if let Ok(file) = append(&self.path) {
            // What the runtime itself says goes along.
            let _ = nix::unistd::dup2_stderr(&file);
            self.bytes = file.metadata().map_or(0, |found| found.len());
            self.file = file;
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes + bytes.len() as u64 > LOG_BYTES_MAX {
            self.rotate();
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_filter_names_where_it_stands() {
        let error = filter(0, Some("info=loud=x")).unwrap_err();
        assert!(format!("{error:#}").contains("`log` of the configuration"), "{error:#}");
        assert!(filter(2, Some("info=loud=x")).is_ok());
    }
}
