//! Background jobs: their directory, and the record and the log of each.
//!
//! A job is a `canal run` in a session of its own, with a supervisor that stays. Its number is that
//! of its session in the table. The supervisor locks the record as long as it lives, so a process
//! that waits for the job waits for the lock.
//!
//! Invariant: a record with a number belongs to a request that was queued or granted, and only
//! records and logs of jobs whose supervisor has ended are removed.

mod folder;
mod record;

pub use folder::{Folder, Pruned};
pub use record::{Attended, JobEnd, NewJob, OpenRecord, Record, Submitted};
