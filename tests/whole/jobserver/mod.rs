//! `canal run --jobserver` with real builds, whose jobs take slots of a key.

mod builds;
mod cargo;
mod fifo;
mod make;
mod ninja;
mod refusals;
