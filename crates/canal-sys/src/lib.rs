//! The few system calls that nix lacks, and the kernel's knowledge of processes and peers.
//!
//! All `unsafe` code of the project is here. Every call names the kernel version that it needs, and
//! has its fallback here for older kernels (from 5.10). Tests run the fallbacks: [`kernel`] can
//! pretend that the kernel is older.
#![expect(unsafe_code, reason = "system calls without a safe wrapper live here and nowhere else")]

/// Lets the simulated kernel of this thread answer for the rest of a function, if there is one.
macro_rules! simulated {
    (|$kernel:pat_param| $answer:expr) => {
        #[cfg(any(test, feature = "sim"))]
        if let Some($kernel) = $crate::kernel::simulated::current() {
            return $answer;
        }
    };
}

pub mod abstract_socket;
pub mod allocator;
pub mod clock;
pub mod deadline_page;
pub mod fds;
pub mod kernel;
pub mod peer;
pub mod pidfd;
pub mod private_dir;
pub mod process;
pub mod signals;
pub mod terminal;

#[cfg(any(test, feature = "sim"))]
pub mod rerun;

/// Keeps the tests apart from the user's environment and processes.
#[cfg(test)]
#[path = "../../../tests/fixtures/isolation.rs"]
mod isolation;
