//! What `canal run` does to its command, and what it leaves as the caller set it.

mod abandoned;
mod children;
mod environment;
mod exit_codes;
mod process_1;
mod streams;
mod terminal;
mod transparency;
