//! How a daemon starts, what it takes over, and which input it refuses.

mod bad_input;
mod disturbed;
mod doctor;
mod older_kernel;
mod on_demand;
mod stop;
mod unable;
