//! Jobservers: builds of `canal run --jobserver`, whose jobs each take a slot of the key.
//!
//! A build holds one slot as any other command; that is the job that make runs without a token. For
//! each further job it takes a *job token*, a byte that the daemon offers in a FIFO. Each token is a
//! hold of its own in the table. Bytes come back through a second FIFO, so that the daemon decides
//! which build or request has the slot next.
//!
//! Invariant: a byte is written only after the hold of its token is recorded, and such a hold ends
//! only after its byte was read back, or when the hold of the build ends. So no more jobs run than
//! there are slots. Nobody can see who read a byte: what a killed job took comes back when the last
//! process of the build has ended.

pub(super) mod build;
pub(super) mod builds;
pub(super) mod pipes;
pub(super) mod share;
