//! Faults of the disk and of the journal. These tests do not run over an engine.

mod disk;
mod faults;
