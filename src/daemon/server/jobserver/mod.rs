//! The server's part of jobservers: takes up builds, gives them slots of the table, and takes back
//! the slots that their jobs released. [`Jobservers`](crate::daemon::jobserver::builds::Jobservers)
//! owns the state.

mod asked;
mod serve;
mod take_up;
