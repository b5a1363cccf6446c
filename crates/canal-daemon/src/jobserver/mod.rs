//! Jobservers: builds of `canal run --jobserver`, whose jobs each take a slot of the key.
//!
//! A build holds one slot like any other command: the job that make runs without a token. For each
//! further job it takes a *job token*, a byte that the daemon offers in a FIFO. Each job token has
//! its own hold in the table. Bytes return through a second FIFO, so that the daemon decides which
//! build or request gets the slot next. A build that finds its jobserver by name has a single FIFO;
//! the daemon reads returned bytes from it before the jobs do, if it can.
//!
//! Invariant: a byte is written only after the hold of its token is recorded. Such a hold ends only
//! after its byte was read back, or when the hold of the build ends. So there are never more jobs
//! than slots. The daemon cannot see which process read a byte: the token of a killed job returns
//! when the last process of the build has ended.

pub(super) mod builds;
pub(super) mod pipes;
pub(super) mod share;
