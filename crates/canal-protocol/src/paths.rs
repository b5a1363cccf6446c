//! The locations of a daemon's files. They never depend on HOME, XDG_* or TMPDIR: a cron job, a
//! login shell and a CI runner of one user use the same daemon.
//!
//! Finding a place touches no file: the code that opens the directory checks that it exists and is
//! private.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::unistd::{Uid, User};

use canal_sys::process::user::{geteuid, stat};

/// The longest path of a socket, in bytes: `sun_path` has 108, including the final NUL.
pub const SOCKET_PATH_MAX: usize = 107;

/// The directory of a daemon shared by users. While it exists, all clients use that daemon.
pub const SHARED_DIR: &str = "/run/canal";
/// The directory of a user's own daemon, without the uid at its end.
const USER_DIR: &str = "/tmp/canal-";
/// The name of the socket in both directories.
pub const USUAL_SOCKET: &str = "canal.sock";
/// The file with which a user's own daemon notes that its state is next to its socket. It contains
/// the reason.
pub const BESIDE_SOCKET: &str = "state-is-here";

/// The durable state of a daemon shared by users.
const SHARED_STATE_DIR: &str = "/var/lib/canal";
/// The configuration of the machine.
pub const MACHINE_CONFIG: &str = "/etc/canal/canal.toml";

/// The files of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The socket. `lock`, `journal.0`, `journal.1`, `daemon.log` and `children/` are in the same
    /// directory.
    pub socket: PathBuf,
    /// The directory of the socket.
    pub dir: PathBuf,
    /// The rule that selected the place.
    pub rule: Rule,
    /// The user that looked for the place.
    pub uid: MachineUid,
    /// The result of [`Self::stores`], once it was called.
    pub stores: OnceLock<Stores>,
}

/// The files of one daemon that may be elsewhere than its socket. A client does not need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    /// The usual directory of the state that must survive a reboot; see [`Place::state_dir`].
    pub state_dir: PathBuf,
    /// The possible configuration files; the first that exists counts.
    pub config: Vec<PathBuf>,
}

/// The rule that selected a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `--socket` or `CANAL_SOCKET`: all files are next to the socket.
    Given,
    /// The directory `/run/canal` exists: a daemon shared by users, which only root may start.
    Shared,
    /// `/tmp/canal-UID`.
    PerUser,
}

impl Place {
    /// Finds the place: `given` (the option, else `CANAL_SOCKET`), else the shared one if
    /// `/run/canal` exists, else that of the user.
    ///
    /// | rule | directory | state | configuration, the first that exists |
    /// |---|---|---|---|
    /// | given | that of the socket | the same | `canal.toml` there |
    /// | shared | `/run/canal` | `/var/lib/canal` | `/etc/canal/canal.toml` |
    /// | user | `/tmp/canal-UID` | `.local/state/canal` | shared, then `.config/canal/canal.toml` |
    ///
    /// The relative paths are in the home from passwd; a user without a home keeps the state next
    /// to the socket. The shared place keeps its state and configuration even if its socket is
    /// given, and so does the place of the user's own daemon. An empty path counts as not given.
    ///
    /// # Errors
    /// A path that is too long for a socket ([`SOCKET_PATH_MAX`]), that names no file, or that is
    /// not absolute even with the current directory in front of it.
    pub fn find(given: Option<&Path>, uid: impl Into<MachineUid>) -> Result<Self, String> {
        let uid = uid.into();
        match given.filter(|path| !path.as_os_str().is_empty()) {
            Some(socket) => {
                let (given, shared) = (Self::given(socket, uid.clone())?, Self::shared(uid));
                Ok(if given.is_at(&shared) { shared } else { given })
            }
            None if Path::new(SHARED_DIR).is_dir() => Ok(Self::shared(uid)),
            None => Ok(Self::of_user(uid.get())),
        }
    }

    /// The place of a user's own daemon.
    pub fn of_user(uid: u32) -> Self {
        Self::with_usual_socket(format!("{USER_DIR}{uid}").into(), Rule::PerUser, uid.into())
    }

    /// The locations of the state and the configuration, if this process is the daemon.
    pub fn stores(&self) -> &Stores {
        self.stores.get_or_init(|| match self.rule {
            Rule::Given if !self.is_users_own() => {
                Stores { state_dir: self.dir.clone(), config: vec![self.dir.join("canal.toml")] }
            }
            Rule::Shared => {
                Stores { state_dir: SHARED_STATE_DIR.into(), config: vec![MACHINE_CONFIG.into()] }
            }
            Rule::Given | Rule::PerUser => self.stores_of_user(own_home().as_deref()),
        })
    }

    /// The directory of the state that must survive a reboot. It is the directory of the socket if
    /// another daemon of the user uses the usual one. The daemon of this place notes that in
    /// [`BESIDE_SOCKET`].
    pub fn state_dir(&self) -> &Path {
        let is_beside = self.is_users_own() && self.dir.join(BESIDE_SOCKET).exists();
        if is_beside { &self.dir } else { &self.stores().state_dir }
    }

    /// The directory of this user's background jobs. For a daemon of other users, it is a separate
    /// directory in this user's home, because each table numbers its jobs.
    pub fn jobs_dir(&self) -> PathBuf {
        let is_own = |dir: &Path| stat(dir).is_ok_and(|found| found.st_uid == geteuid().as_raw());
        if self.is_users_own() || self.rule == Rule::Given && is_own(&self.dir) {
            return self.state_dir().join("jobs");
        }
        let name = format!("jobs{}", self.dir.display()).replace('/', "-");
        self.stores_of_user(own_home().as_deref()).state_dir.join(name)
    }

    /// Whether this is the place of the user's own daemon, whichever rule selected it.
    pub fn is_users_own(&self) -> bool {
        self.rule == Rule::PerUser
            || self.rule == Rule::Given
                && self.dir.as_os_str().as_bytes().starts_with(USER_DIR.as_bytes())
                && self.is_at(&Self::of_user(self.uid.get()))
    }

    /// Whether both have the same socket. The paths are absolute and have no superfluous `/` or
    /// `.`.
    fn is_at(&self, other: &Self) -> bool {
        self.socket.as_os_str() == other.socket.as_os_str()
    }

    fn stores_of_user(&self, home: Option<&Path>) -> Stores {
        let state_dir =
            home.map_or_else(|| self.dir.clone(), |home| home.join(".local/state/canal"));
        let own = home.map(|home| home.join(".config/canal/canal.toml"));
        let config = [Some(MACHINE_CONFIG.into()), own].into_iter().flatten().collect();
        Stores { state_dir, config }
    }

    fn given(socket: &Path, uid: MachineUid) -> Result<Self, String> {
        let socket = std::path::absolute(socket)
            .map_err(|error| format!("the socket {}: {error}", socket.display()))?;
        let length = socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            return Err(format!(
                "the path of the socket has {length} bytes; the limit is {SOCKET_PATH_MAX}: {}",
                socket.display()
            ));
        }
        let names_a_file =
            socket.file_name().is_some() && !socket.as_os_str().as_bytes().ends_with(b"/");
        let unnamed =
            || format!("the path of the socket does not name a file: {}", socket.display());
        let dir = socket.parent().filter(|_| names_a_file).ok_or_else(unnamed)?.to_owned();
        Ok(Self { socket, dir, rule: Rule::Given, uid, stores: OnceLock::new() })
    }

    /// The place of the machine's daemon, whether or not its directory exists.
    pub fn shared(uid: MachineUid) -> Self {
        Self::with_usual_socket(SHARED_DIR.into(), Rule::Shared, uid)
    }

    fn with_usual_socket(dir: PathBuf, rule: Rule, uid: MachineUid) -> Self {
        Self { socket: dir.join(USUAL_SOCKET), dir, rule, uid, stores: OnceLock::new() }
    }
}

/// The home of this process's user. In a user namespace, the home must belong to that user.
/// Otherwise, root of a user namespace would use the home of the machine's root.
fn own_home() -> Option<PathBuf> {
    let uid = Uid::from_raw(geteuid().as_raw());
    let outside = Uid::from_raw(uid_of_machine(uid.as_raw()));
    if outside == uid {
        return passwd_home(uid);
    }
    let is_ours = |home: &PathBuf| stat(home).is_ok_and(|found| found.st_uid == uid.as_raw());
    [uid, outside].into_iter().filter_map(passwd_home).find(is_ours)
}

/// The user's home from passwd, if that directory exists: `nobody` and the users of containers
/// often have none.
fn passwd_home(uid: Uid) -> Option<PathBuf> {
    let user = User::from_uid(uid).ok().flatten()?;
    Some(user.dir).filter(|home| home.is_absolute() && home.is_dir())
}

/// The machine's number for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineUid(OnceLock<u32>);

impl MachineUid {
    /// The number of this process's user, looked up on first use: most clients of a daemon shared
    /// by users never need it.
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
    fn everything_of_a_given_socket_lies_beside_it() {
        let place = Place::find(Some(Path::new("/some/where/x.sock")), 1000).unwrap();
        assert_eq!(place.socket, Path::new("/some/where/x.sock"));
        assert_eq!(place.dir, Path::new("/some/where"));
        assert_eq!(place.stores().state_dir, place.dir);
        assert_eq!(place.stores().config, [Path::new("/some/where/canal.toml")]);
        assert_eq!(place.rule, Rule::Given);
    }

    #[test]
    fn a_relative_socket_is_taken_from_the_current_directory() {
        let place = Place::find(Some(Path::new("./x.sock")), 1000).unwrap();
        assert_eq!(place.socket, std::env::current_dir().unwrap().join("x.sock"));
    }

    #[test]
    fn a_socket_may_have_107_bytes_and_not_108() {
        let path = |length: usize| PathBuf::from(format!("/{}", "x".repeat(length - 1)));
        assert!(Place::find(Some(&path(107)), 0).is_ok());
        let error = Place::find(Some(&path(108)), 0).unwrap_err();
        assert!(error.contains("108 bytes") && error.contains("107"), "{error}");
    }

    #[test]
    fn a_path_that_names_no_file_is_refused() {
        for path in ["/", "/tmp/", "/tmp/.."] {
            let error = Place::find(Some(Path::new(path)), 0).unwrap_err();
            assert!(error.contains("does not name a file"), "{path}: {error}");
        }
    }

    #[test]
    fn an_empty_path_is_not_given() {
        assert_ne!(Place::find(Some(Path::new("")), 1000).unwrap().rule, Rule::Given);
    }

    #[test]
    fn the_users_place_depends_on_passwd_only() {
        let place = Place::of_user(1000);
        assert_eq!(place.socket, Path::new("/tmp/canal-1000/canal.sock"));
        assert_eq!(place.rule, Rule::PerUser);
        let stores = place.stores_of_user(Some(Path::new("/home/ann")));
        assert_eq!(stores.state_dir, Path::new("/home/ann/.local/state/canal"));
        assert_eq!(
            stores.config,
            [MACHINE_CONFIG, "/home/ann/.config/canal/canal.toml"].map(PathBuf::from)
        );
    }

    #[test]
    fn the_socket_of_ones_own_daemon_brings_its_state_when_it_is_given() {
        let given = |path: &str| Place::find(Some(Path::new(path)), 4_000_000).unwrap();
        let own = given("/tmp/canal-4000000/canal.sock");
        assert_eq!(own, Place { rule: Rule::Given, ..Place::of_user(4_000_000) });
        assert_eq!(own.rule, Rule::Given, "it is passed on to commands");
        assert_eq!(own.stores(), Place::of_user(4_000_000).stores());
        for other in ["/tmp/canal-4000001/canal.sock", "/tmp/canal-4000000/other.sock"] {
            let other = given(other);
            assert!(!other.is_users_own(), "{other:?}");
            assert_eq!(other.stores().config, [other.dir.join("canal.toml")]);
        }
    }

    #[test]
    fn a_user_without_a_home_keeps_the_state_beside_the_socket() {
        let stores = Place::of_user(4_000_000).stores_of_user(None);
        assert_eq!(stores.state_dir, Path::new("/tmp/canal-4000000"));
        assert_eq!(stores.config, [Path::new(MACHINE_CONFIG)]);
        assert_eq!(passwd_home(4_000_000.into()), None);
    }

    #[test]
    fn the_shared_place_is_shared_also_when_its_socket_is_given() {
        let given = Place::find(Some(Path::new("/run/canal/canal.sock")), 1000).unwrap();
        assert_eq!(given, Place::shared(1000.into()));
        let other = Place::find(Some(Path::new("/run/canal/other.sock")), 1000).unwrap();
        assert_eq!(other.rule, Rule::Given);
    }

    #[test]
    fn only_a_place_that_may_be_the_users_own_asks_who_the_user_is() {
        for given in ["/some/where/x.sock", "/run/canal/canal.sock"] {
            let place = Place::find(Some(Path::new(given)), MachineUid::own()).unwrap();
            assert!(!place.is_users_own());
            assert_eq!(place.uid, MachineUid::own(), "not looked up: {given}");
        }
        let place = Place::find(Some(Path::new("/tmp/canal-x/y.sock")), MachineUid::own()).unwrap();
        assert!(!place.is_users_own());
        assert_eq!(place.uid, uid_of_machine(geteuid().as_raw()).into());
    }

    #[test]
    fn the_shared_place_is_the_machines() {
        let place = Place::shared(1000.into());
        assert_eq!(place.socket, Path::new("/run/canal/canal.sock"));
        assert_eq!(place.stores().state_dir, Path::new("/var/lib/canal"));
        assert_eq!(place.stores().config, [Path::new(MACHINE_CONFIG)]);
        assert_eq!(place.rule, Rule::Shared);
    }

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
