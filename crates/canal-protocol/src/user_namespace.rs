//! The number of a user outside its user namespace.

use std::sync::OnceLock;

use canal_sys::process::user::geteuid;

/// The machine's number for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineUid(OnceLock<u32>);

impl MachineUid {
    /// The number of this process's user, looked up on first use: most clients of a daemon shared
    /// by users never need it.
    #[must_use]
    pub fn own() -> Self {
        Self(OnceLock::new())
    }

    /// The number.
    pub fn get(&self) -> u32 {
        *self.0.get_or_init(|| uid_of_machine(geteuid().as_raw()))
    }
}

impl From<u32> for MachineUid {
    fn from(uid: u32) -> Self {
        Self(uid.into())
    }
}

/// The machine's number for `uid` if a user namespace made its user root (`unshare -r`, a
/// container): the files of the machine's root do not belong to that user. For all other users,
/// `uid` itself.
#[must_use]
pub fn uid_of_machine(uid: u32) -> u32 {
    // Most users are not root, and need no lookup.
    if uid != 0 {
        return uid;
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(&map, uid).unwrap_or(uid)
}

/// The number outside the namespace, from the lines `INSIDE OUTSIDE COUNT` of user_namespaces(7).
fn outside(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let beyond = uid.checked_sub(inside).filter(|beyond| *beyond < count)?;
        outside.checked_add(beyond)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_looked_up_in_the_map() {
        assert_eq!(outside("         0          0 4294967295\n", 0), Some(0));
        assert_eq!(outside("         0       1000          1\n", 0), Some(1000));
        let podman = "0 1000 1\n1 100000 65536\n";
        assert_eq!(outside(podman, 0), Some(1000));
        assert_eq!(outside(podman, 5), Some(100_004));
        assert_eq!(outside(podman, 70_000), None);
        assert_eq!(outside("junk\n", 0), None);
        assert_eq!(uid_of_machine(1000), 1000);
    }
}
