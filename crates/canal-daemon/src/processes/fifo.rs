//! The path of the FIFO of a hold that lasts while descendants live.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use canal_core::Tag;

/// The name of the directory in the daemon's directory.
pub(crate) const NAME: &str = "children";

/// The FIFO of a hold in that directory.
pub(crate) fn path_in(dir: &Path, tag: Tag) -> PathBuf {
    dir.join(tag.to_string())
}

/// Opens the FIFO of a hold without opening either end of it. `None` if there is no FIFO.
pub(crate) fn fifo_of(dir: &Path, tag: Tag) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    options.open(path_in(&dir.join(NAME), tag)).ok()
}
