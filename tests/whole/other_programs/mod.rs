//! What other lock programs do, through the command line.

mod flaws;
mod sharplock;
