//! Switches for tests: a daemon that kills itself between two records of its journal, and one on a
//! system where the lookup of group names hangs.

/// Ends this process, as `kill -9` would, right after a given number of records was written and
/// before any client learns of them. Only in debug builds, with `CANAL_FAULT=journal:N`.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    records_left: Option<usize>,
}

impl Fault {
    pub(crate) fn from_environment() -> Self {
        let wanted = std::env::var("CANAL_FAULT").ok().filter(|_| cfg!(debug_assertions));
        let number = wanted.as_deref().and_then(|wanted| wanted.strip_prefix("journal:"));
        Self { records_left: number.and_then(|number| number.parse().ok()) }
    }

    /// How many of `records` to write before this process ends; `None` if it does not end yet.
    pub(crate) fn strikes_after(&mut self, records: usize) -> Option<usize> {
        let left = self.records_left.as_mut()?;
        if records < *left {
            *left -= records;
            return None;
        }
        Some(*left)
    }

    /// Ends this process with SIGKILL.
    pub(crate) fn strike() -> ! {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
        std::process::abort()
    }
}

/// Whether looking up the name of a group takes an hour, with `CANAL_FAULT=groups`. Only in debug
/// builds.
pub(crate) fn group_names_hang() -> bool {
    cfg!(debug_assertions) && std::env::var_os("CANAL_FAULT").is_some_and(|it| it == "groups")
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn the_fault_strikes_after_its_number_of_records_however_they_are_batched() {
        let mut fault = Fault { records_left: Some(5) };
        assert_eq!(fault.strikes_after(2), None);
        assert_eq!(fault.strikes_after(2), None);
        assert_eq!(fault.strikes_after(3), Some(1));
        assert_eq!(Fault::default().strikes_after(1000), None);
    }
}
