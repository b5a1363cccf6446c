//! Everything that `canal run` changes for its command, and everything that it leaves alone.

mod abandoned;
mod children;
mod environment;
mod exit_codes;
mod process_1;
mod refused;
mod streams;
mod terminal;
mod transparency;
