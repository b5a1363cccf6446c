//! Replays other lock programs through the command line.

mod canal_lock;
mod locks;
mod sharplock;
mod sleeplocks;
