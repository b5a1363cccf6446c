//! Parses the command line.
//!
//! `definition` has all commands and options, and the other files parse one kind of value each.
//! `fast_path` reads the common `canal run` without clap.
//!
//! Invariant: nothing here talks to a daemon.

pub(super) mod definition;
pub(super) mod fast_path;
pub(super) mod keys_and_sizes;
pub(super) mod nodes;
pub(super) mod note;
pub(super) mod parse_value;
pub(super) mod request;
