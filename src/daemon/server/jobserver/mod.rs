//! What the daemon does with jobservers: it takes up builds, gives them slots of the table, and takes back
//! what their jobs gave back. [`Jobservers`](crate::daemon::jobserver::builds::Jobservers) owns the state.

mod asked;
mod serve;
mod take_up;
