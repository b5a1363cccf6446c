//! The user that runs the program of a hook.

use std::ffi::CString;
use std::path::PathBuf;

use canal_sys::process::user::{found, geteuid};
use nix::unistd::{Uid, User, getgrouplist};

use canal_sys::process::child::UserIds;

/// The user that runs the program of a hook.
#[derive(Debug)]
pub(crate) struct Account {
    pub uid: u32,
    pub name: String,
    pub home: PathBuf,
    /// The ids to change to; `None` if this process already has them.
    pub ids: Option<UserIds>,
}

impl Account {
    /// Looks up a user by name or number; without one, the user of this process. The lookup may
    /// wait for a directory service.
    ///
    /// # Errors
    /// Nothing can run as that user. The reason is text for people.
    pub(crate) fn find(user: Option<&str>) -> Result<Self, String> {
        let own = geteuid();
        let Some(wanted) = user else {
            // A container may run the daemon under a number that no password database contains.
            let known = User::from_uid(own).ok().flatten();
            let (name, home) = known.map_or_else(
                || (own.to_string(), PathBuf::from("/")),
                |user| (user.name, user.dir),
            );
            return Ok(Self { uid: own.as_raw(), name, home, ids: None });
        };
        let found = known(wanted)?;
        let ids = if found.uid == own {
            None
        } else if own.is_root() {
            let name = CString::new(found.name.as_str()).map_err(|error| error.to_string())?;
            let groups = getgrouplist(&name, found.gid)
                .map_err(|error| format!("cannot look up the groups of `{wanted}`: {error}"))?;
            Some(UserIds { uid: found.uid, gid: found.gid, groups })
        } else {
            return Err(format!("only root's daemon can run it as another user (`{wanted}`)"));
        };
        Ok(Self { uid: found.uid.as_raw(), name: found.name, home: found.dir, ids })
    }

    /// The number of a user.
    ///
    /// # Errors
    /// The same as for [`Self::find`].
    pub(crate) fn uid_of(user: &str) -> Result<u32, String> {
        known(user).map(|user| user.uid.as_raw())
    }
}

/// Looks up a user by name or number.
fn known(user: &str) -> Result<User, String> {
    let failed = |error| format!("cannot look up the user `{user}`: {error}");
    let mut account = found(User::from_name(user)).map_err(failed)?;
    if account.is_none()
        && let Ok(number) = user.parse::<u32>()
    {
        account = found(User::from_uid(Uid::from_raw(number))).map_err(failed)?;
    }
    account.ok_or_else(|| format!("there is no user `{user}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_number() {
        let root = Account::find(Some("root"));
        let by_number = Account::find(Some("0"));
        if geteuid().is_root() {
            let (root, by_number) = (root.unwrap(), by_number.unwrap());
            assert_eq!((root.uid, root.name.as_str(), root.ids.is_none()), (0, "root", true));
            assert_eq!((by_number.uid, by_number.home), (0, root.home));
        } else {
            assert!(root.unwrap_err().starts_with("only root's daemon can run it"));
        }
        let own = Account::find(None).unwrap();
        assert_eq!((own.uid, own.ids.is_none()), (geteuid().as_raw(), true));
        let nobody = Account::find(Some("no such user")).unwrap_err();
        assert_eq!(nobody, "there is no user `no such user`");
    }
}
