//! The whole program, with real processes: canal's promises, checked from outside.
//!
//! Every test has its own `World`: a folder, a socket, and everything it starts. No test
//! sleeps and hopes; it waits for a condition with a bound. A test that lacks root, a namespace or
//! a program prints on stderr that it is skipped.

mod acquire;
mod cli;
mod crash;
mod daemon;
mod deadlock;
mod grants;
mod history;
mod hold_lost;
mod hooks;
mod jobs;
mod jobserver;
mod journal;
mod leader;
mod library;
mod metrics;
mod other_programs;
mod recipes;
mod run;
mod screens;
mod status;
mod users;
