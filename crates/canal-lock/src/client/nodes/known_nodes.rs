//! The identities of the nodes that this user has met, in a file in the state directory.
//!
//! A daemon identifies a node by machine, place and user. If an address later leads to another
//! identity, that is an error: otherwise a reinstalled machine would silently be another lock.
//!
//! Invariant: the file is replaced as a whole and under a lock, so two concurrent commands lose
//! nothing.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use canal_protocol::node_address::NodeAddress;
use canal_protocol::paths::{Place, Rule};
use canal_protocol::{KnownNode, Node, NodeFailure, NodeId};
use canal_sys::private_dir::{IfMissing, if_there, open_lock, open_private};
use canal_sys::process::user::geteuid;

/// The name of the file.
const NAME: &str = "nodes.json";

/// The name of the file that is locked while the other one is replaced.
const LOCK: &str = "nodes.lock";

/// The file with the identities that a user has met.
#[derive(Clone, Debug)]
pub struct KnownNodes {
    dir: PathBuf,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    version: u32,
    nodes: BTreeMap<String, KnownNode>,
}

impl KnownNodes {
    /// The identities for the user of this place. The file is next to a socket that was given
    /// explicitly, and otherwise in the user's own state directory: the state directory of the
    /// machine's daemon belongs to another user.
    pub fn of(place: &Place) -> Self {
        let own = Place::of_user(place.uid.get());
        let place = if place.rule == Rule::Given { place } else { &own };
        Self { dir: place.stores().state_dir.clone() }
    }

    /// The identity that the address led to before; `None` if it was never met. The daemon of this
    /// machine is trusted without a record.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn known(&self, address: &NodeAddress) -> Result<Option<KnownNode>, NodeFailure> {
        match address {
            NodeAddress::Local => Ok(None),
            _ => Ok(self.read()?.nodes.remove(&address.to_string())),
        }
    }

    /// An address that led to a node before.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn address_of(&self, node: NodeId) -> Result<Option<NodeAddress>, NodeFailure> {
        let met = self.read()?.nodes.into_iter().find(|(_, seen)| seen.node == node);
        Ok(met.and_then(|(address, _)| address.parse().ok()))
    }

    /// Saves the identity of a node, if its address was not met before. The daemon of this machine
    /// gets no record.
    pub fn meet(&self, node: &Node, seen: &KnownNode) -> Result<(), NodeFailure> {
        if node.address == NodeAddress::Local {
            return Ok(());
        }
        let address = node.address.to_string();
        // Whether it is known; an error if another one is.
        let is_known = |content: &Content| {
            let Some(before) = content.nodes.get(&address) else { return Ok(false) };
            if before.node == seen.node {
                return Ok(true);
            }
            let (name, now, before) = (&node.name, seen.shown(), before.shown());
            let hint = format!(
                "if that is intended and no command is using the node, remove \"{address}\" from {}",
                self.path().display()
            );
            let what = format!("{name} is now a different daemon: {now} (previously {before})");
            Err(NodeFailure::permanent(what).hint(hint))
        };
        // Nearly always the identity is already known, and nothing need be written.
        if is_known(&self.read()?)? {
            return Ok(());
        }
        if let Some(above) = self.dir.parent() {
            fs::create_dir_all(above).map_err(|error| unusable(&self.dir, error))?;
        }
        open_private(&self.dir, geteuid().as_raw(), IfMissing::Create)
            .map_err(NodeFailure::permanent)?;
        let path = self.dir.join(LOCK);
        let locked = open_lock(&path)
            .and_then(|file| Ok(flock(&file, FlockOperation::LockExclusive).map(|()| file)?));
        let _locked = locked.map_err(|error| unusable(&path, error))?;
        let mut content = self.read()?;
        is_known(&content)?;
        content.nodes.insert(address, seen.clone());
        content.version = 1;
        self.write(&content).map_err(|error| unusable(&self.path(), error))
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    fn read(&self) -> Result<Content, NodeFailure> {
        let path = self.path();
        let text = if_there(fs::read(&path)).map_err(|error| unusable(&path, error))?;
        let Some(text) = text else { return Ok(Content::default()) };
        serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            let hint = format!(
                "if no command is using these nodes, remove {path} to accept all of them again"
            );
            NodeFailure::permanent(format!("{path} is not a list of nodes: {error}")).hint(hint)
        })
    }

    /// Syncs a new file to disk before it gives it the name of the present one.
    fn write(&self, content: &Content) -> io::Result<()> {
        let beside = self.dir.join(format!("{NAME}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&beside)?;
        file.write_all((serde_json::to_string_pretty(content)? + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, self.path())
    }
}

/// The failure if a file cannot be read or saved.
fn unusable(path: &Path, error: io::Error) -> NodeFailure {
    NodeFailure::permanent(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    fn known_nodes(dir: &Path) -> KnownNodes {
        let place = Place {
            socket: dir.join("s"),
            dir: dir.to_owned(),
            rule: Rule::Given,
            uid: geteuid().as_raw().into(),
            stores: OnceLock::new(),
        };
        KnownNodes::of(&place)
    }

    fn seen(node: u128) -> KnownNode {
        let user = Some("deploy".to_owned());
        let (machine, place) = ("web1".to_owned(), "/tmp/canal-1001".to_owned());
        KnownNode { node: NodeId(node), machine, place, uid: 1001, user }
    }

    fn node(host: &str) -> Node {
        let address = format!("ssh:{host}").parse().unwrap();
        Node { name: host.to_owned(), address, canal: None }
    }

    #[test]
    fn the_first_meeting_is_kept_and_another_daemon_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let known_nodes = known_nodes(dir.path());
        let web1 = node("web1");
        assert_eq!(known_nodes.known(&web1.address).unwrap(), None);
        known_nodes.meet(&web1, &seen(7)).unwrap();
        known_nodes.meet(&web1, &seen(7)).unwrap();
        assert_eq!(known_nodes.known(&web1.address).unwrap(), Some(seen(7)));
        let error =
            known_nodes.meet(&web1, &KnownNode { uid: 9, user: None, ..seen(8) }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "web1 is now a different daemon: the daemon of user 9 at /tmp/canal-1001 on web1 \
             (previously the daemon of deploy (user 1001) at /tmp/canal-1001 on web1)"
        );
        assert!(error.hint.as_ref().unwrap().contains("remove \"ssh:web1\" from /"), "{error:?}");
        assert_eq!(known_nodes.known(&web1.address).unwrap(), Some(seen(7)), "the first one stays");
    }

    #[test]
    fn meetings_at_the_same_time_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let known_nodes = known_nodes(dir.path());
        std::thread::scope(|scope| {
            for n in 0..16_u128 {
                let known_nodes = &known_nodes;
                scope.spawn(move || {
                    known_nodes.meet(&node(&format!("web{n}")), &seen(n)).unwrap();
                });
            }
        });
        for n in 0..16 {
            assert_eq!(
                known_nodes.known(&node(&format!("web{n}")).address).unwrap(),
                Some(seen(n))
            );
        }
        assert!(!dir.path().join("nodes.json.new").exists());
    }

    #[test]
    fn a_file_that_something_else_wrote_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let known_nodes = known_nodes(dir.path());
        fs::write(known_nodes.path(), "{}").unwrap();
        let error = known_nodes.meet(&node("web1"), &seen(7)).unwrap_err();
        assert!(error.to_string().contains("nodes.json is not a list of nodes: "), "{error}");
        assert_eq!(fs::read_to_string(known_nodes.path()).unwrap(), "{}");
    }
}
