//! What other lock programs do, replayed through the command line.

mod canal_lock;
mod locks;
mod sharplock;
mod sleeplocks;
