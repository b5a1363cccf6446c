//! A lease over nodes in the hands of its holder: its handle, the secret in it, and the leases
//! under which a process runs.
//!
//! The handle has everything that is needed to renew and release the lease, in one word. No file
//! keeps any of it, so a later step on another machine can use the handle. It names no program: the
//! configuration of the handle's user decides what runs at a node.
//!
//! Invariant: a text that was cut or changed is never accepted as a handle.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use hmac_sha256::{HMAC, Hash};
use serde::{Deserialize, Serialize};

use canal_core::{LEASE_OVER_NODES_MS_MIN, NODES_MAX};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::{Handle, Node, NodeId, RunId, Tag};

use crate::client::command_environment;
use crate::client::error::Result;

/// The beginning of the text. No handle of a single daemon begins with it.
const PREFIX: &str = "n";

/// The layout of its bytes.
const VERSION: u8 = 1;

/// The most bytes; the text has two characters for each, after [`PREFIX`].
const BYTES_MAX: usize = 8 * 1024;

/// The longest text.
pub const LEASE_HANDLE_CHARS_MAX: usize = PREFIX.len() + 2 * BYTES_MAX;

const CHECKSUM_BYTES: usize = 4;

/// A lease over nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    /// The source of the names and secrets of its parts.
    pub secret: Secret,
    /// The fencing token; `None` if the requirement excludes no other command.
    pub token: Option<u64>,
    /// How long each node keeps its part without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// How many nodes must hold it.
    pub need: usize,
    /// The parts, ascending by the id of their node.
    pub parts: Vec<LeasePart>,
}

/// The part of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasePart {
    /// The address of the node.
    pub address: NodeAddress,
    /// Its id.
    pub id: NodeId,
    /// The number of the lease in the last request to it; 0, never in a handle, if it was not
    /// asked.
    pub lease: u32,
    /// Whether the node has confirmed it; in a handle, before the handle was made.
    pub held: bool,
}

/// The fields of a handle and of its parts, in the order of its bytes.
type Content = (u128, Option<u64>, u64, usize, Vec<(String, u128, u32, bool)>);

/// A text that is not a handle. The error does not repeat it: it may be a handle with an extra
/// letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseHandleError {
    /// It was cut or changed.
    #[error("the handle is incomplete or has been altered")]
    Damaged,
    /// A later version of canal made it.
    #[error("a later version of canal made this handle")]
    Later,
}

impl LeaseHandle {
    /// Whether the handle of a lease over these nodes is short enough. Callers check this before
    /// they take anything.
    ///
    /// # Errors
    /// It would be too long, in words for the user.
    pub fn fits(nodes: &[Node]) -> Result<(), String> {
        let (id, lease, held) = (NodeId(u128::MAX), u32::MAX, true);
        let part = |node: &Node| LeasePart { address: node.address.clone(), id, lease, held };
        let (secret, token, ttl_ms) = (Secret(u128::MAX), Some(u64::MAX), u64::MAX);
        let parts = nodes.iter().map(part).collect();
        let longest = Self { secret, token, ttl_ms, need: nodes.len(), parts };
        match longest.reveal().len() {
            chars if chars > LEASE_HANDLE_CHARS_MAX => Err(format!(
                "the handle of a lease on these {} nodes would have {chars} characters, more than \
                 {LEASE_HANDLE_CHARS_MAX}",
                nodes.len()
            )),
            _ => Ok(()),
        }
    }

    /// The handle of a held lease, from the known state of each node.
    pub fn new(
        secret: Secret,
        token: Option<u64>,
        ttl_ms: u64,
        need: usize,
        known: &[LeasePart],
    ) -> Self {
        let parts = known.iter().filter(|part| part.lease > 0).cloned().collect();
        Self { secret, token, ttl_ms, need, parts }
    }

    /// The secret as text: letters and digits only.
    pub fn reveal(&self) -> String {
        let digits = self.bytes().into_iter().map(|byte| format!("{byte:02x}"));
        [PREFIX.to_owned()].into_iter().chain(digits).collect()
    }

    /// Whether a text is meant as the handle of a lease over nodes.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// The secret of a node's part. A node that the handle does not name may have joined later; if
    /// so, it was asked only once.
    pub fn of_node(&self, id: NodeId) -> Handle {
        let part = self.parts.iter().find(|part| part.id == id);
        self.secret.handle(id, part.map_or(1, |part| part.lease))
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { secret: Secret(secret), token, ttl_ms, need, parts } = self;
        let part = |part: &LeasePart| (part.address.to_string(), part.id.0, part.lease, part.held);
        let content: Content = (*secret, *token, *ttl_ms, *need, parts.iter().map(part).collect());
        let mut bytes = vec![VERSION];
        // It fails for no value of this type.
        bytes.extend(serde_json::to_vec(&content).unwrap_or_default());
        bytes.extend(checksum(&bytes));
        bytes
    }

    fn of_content(bytes: &[u8]) -> Option<Self> {
        let content: Content = serde_json::from_slice(bytes).ok()?;
        let (secret, token, ttl_ms, need, parts) = content;
        let mut handle = Self { secret: Secret(secret), token, ttl_ms, need, parts: Vec::new() };
        for (address, id, lease, held) in parts {
            let (address, id) = (address.parse().ok()?, NodeId(id));
            handle.parts.push(LeasePart { address, id, lease, held });
        }
        let Self { parts, need, ttl_ms, .. } = &handle;
        // A coordinator relies on these properties.
        let is_sound = parts.len() <= NODES_MAX
            && (1..=parts.len()).contains(need)
            && parts.is_sorted_by(|one, next| one.id < next.id)
            && parts.iter().all(|part| part.lease > 0)
            && (LEASE_OVER_NODES_MS_MIN..=u64::from(u32::MAX)).contains(ttl_ms);
        is_sound.then_some(handle)
    }
}

impl FromStr for LeaseHandle {
    type Err = LeaseHandleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(PREFIX).ok_or(LeaseHandleError::Damaged)?;
        if digits.len() > 2 * BYTES_MAX || digits.len() % 2 != 0 {
            return Err(LeaseHandleError::Damaged);
        }
        let byte = |pair: &[u8]| {
            let is_hex = pair.iter().all(u8::is_ascii_hexdigit);
            let pair = str::from_utf8(pair).ok().filter(|_| is_hex)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.ok_or(LeaseHandleError::Damaged)?;
        let parts = bytes.split_last_chunk::<CHECKSUM_BYTES>();
        let summed = parts.filter(|(content, sum)| checksum(content) == **sum);
        match summed.and_then(|(content, _)| content.split_first()) {
            Some((&VERSION, content)) => Self::of_content(content).ok_or(LeaseHandleError::Damaged),
            Some(_) => Err(LeaseHandleError::Later),
            None => Err(LeaseHandleError::Damaged),
        }
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = Hash::hash(content);
    [hash[0], hash[1], hash[2], hash[3]]
}

/// The source of the names and secrets of all leases of one request. Each node learns only those of
/// its own leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(u128);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// The system cannot provide randomness.
    pub fn new() -> Result<Self> {
        crate::client::tag().map(|Tag(bits)| Self(bits))
    }

    /// The public name of the request.
    pub fn run(self) -> RunId {
        RunId(self.derived("run", NodeId(0), 0))
    }

    /// The secret of a lease of a node.
    pub fn handle(self, node: NodeId, lease: u32) -> Handle {
        Handle::new(self.derived("handle", node, lease))
    }

    /// The name of the request for a lease of a node.
    pub fn tag(self, node: NodeId, lease: u32) -> Tag {
        Tag(self.derived("tag", node, lease))
    }

    fn derived(self, what: &str, node: NodeId, lease: u32) -> u128 {
        let mut hash = HMAC::new(self.0.to_be_bytes());
        hash.update(node.0.to_be_bytes());
        hash.update(lease.to_be_bytes());
        hash.update(what);
        let mut first = [0; 16];
        first.copy_from_slice(&hash.finalize()[..16]);
        u128::from_be_bytes(first)
    }
}

/// The most leases that are passed on: the innermost ones.
const LEASES_MAX: usize = 4;

/// The leases over nodes under which a process runs, the outermost first. Its environment passes
/// them on.
///
/// With them a request proves that it is made under these leases, so that their holds do not block
/// it. Each node sees only its own part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnclosingLeases(Vec<LeaseHandle>);

impl EnclosingLeases {
    /// The leases that the environment of this process names, without words that are not handles.
    pub fn of_environment() -> Self {
        Self::of_text(&std::env::var(command_environment::UNDER).unwrap_or_default())
    }

    fn of_text(text: &str) -> Self {
        let words = text.split(' ').filter(|word| word.len() <= LEASE_HANDLE_CHARS_MAX);
        Self(words.filter_map(|word| word.parse().ok()).collect())
    }

    /// Adds a lease inside these leases. `socket` is that of the daemon of this machine, which a
    /// list of nodes calls `local`. A lease whose handle is too long is left out.
    #[must_use]
    pub fn with(mut self, mut lease: LeaseHandle, socket: &Path) -> Self {
        for part in lease.parts.iter_mut().filter(|part| part.address == NodeAddress::Local) {
            part.address = NodeAddress::Unix(socket.to_owned());
        }
        if lease.reveal().len() <= LEASE_HANDLE_CHARS_MAX {
            self.0.push(lease);
        }
        let outer = self.0.len().saturating_sub(LEASES_MAX);
        self.0.drain(..outer);
        self
    }

    /// The text for the environment.
    pub fn reveal(&self) -> String {
        let leases: Vec<String> = self.0.iter().map(LeaseHandle::reveal).collect();
        leases.join(" ")
    }

    /// The handle of the innermost lease at a node. A lease with this handle need not exist.
    pub fn handle(&self, node: NodeId) -> Option<Handle> {
        let names = |lease: &&LeaseHandle| lease.parts.iter().any(|part| part.id == node);
        let named = self.0.iter().rev().find(names);
        named.or(self.0.last()).map(|lease| lease.of_node(node))
    }

    /// The handle of the innermost lease at the daemon of a socket of this machine.
    pub fn at_socket(&self, socket: &Path) -> Option<Handle> {
        let is_there =
            |part: &&LeasePart| matches!(&part.address, NodeAddress::Unix(it) if it == socket);
        self.0.iter().rev().find_map(|lease| {
            let part = lease.parts.iter().find(is_there)?;
            Some(lease.secret.handle(part.id, part.lease))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<Node> {
        let node = |name: &str, address: &str| Node {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            canal: Some("/opt/canal".to_owned()),
        };
        vec![node("web1", "ssh:deploy@web1:2222"), node("here", "local"), node("x", "unix:/x y/s")]
    }

    fn part(at: usize, id: u128, lease: u32, held: bool) -> LeasePart {
        LeasePart { address: nodes()[at].address.clone(), id: NodeId(id), lease, held }
    }

    fn handle() -> LeaseHandle {
        let held = [part(2, 5, 1, true), part(0, 7, 3, true), part(1, 9, 2, false)];
        LeaseHandle::new(Secret(77), Some(4711), 60_000, 2, &held)
    }

    #[test]
    fn a_handle_is_one_word_from_which_the_lease_is_found_again() {
        let handle = handle();
        let text = handle.reveal();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
        assert!(text.len() <= LEASE_HANDLE_CHARS_MAX);
        assert_eq!(text.parse(), Ok(handle.clone()));
        assert_eq!(text[1..].to_uppercase().parse::<Handle>().ok(), None);
        assert_eq!(handle.token, Some(4711));
        assert_eq!(handle.need, 2);
        assert_eq!((handle.parts[1].id, handle.parts[1].lease), (NodeId(7), 3));
        let addresses: Vec<String> =
            handle.parts.iter().map(|part| part.address.to_string()).collect();
        assert_eq!(addresses, ["unix:/x y/s", "ssh:deploy@web1:2222", "local"]);
        assert!(!format!("{handle:?}").contains("77"), "{handle:?}");
    }

    #[test]
    fn a_node_that_was_never_asked_is_not_in_it() {
        let part = |at, id, lease| part(at, id, lease, lease > 0);
        let held = [part(2, 5, 1), part(0, 7, 0), part(1, 9, 2)];
        let secret = Secret(1);
        let handle = LeaseHandle::new(secret, None, 60_000, 2, &held);
        assert_eq!(handle.parts.len(), 2);
        assert_eq!(handle.reveal().parse::<LeaseHandle>().unwrap().token, None);
    }

    #[test]
    fn a_text_that_was_cut_or_changed_is_refused() {
        let text = handle().reveal();
        for end in 0..text.len() {
            assert_eq!(text[..end].parse::<LeaseHandle>(), Err(LeaseHandleError::Damaged), "{end}");
        }
        for at in 1..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(changed.parse::<LeaseHandle>().is_err(), "{at}");
        }
        for wrong in ["n", "nzz", "n€€", "nnnn", "0123"] {
            assert_eq!(wrong.parse::<LeaseHandle>(), Err(LeaseHandleError::Damaged), "{wrong}");
        }
    }

    #[test]
    fn what_no_coordinator_could_use_is_refused_though_it_is_whole() {
        let sound = handle();
        let wrong = |change: fn(&mut LeaseHandle)| {
            let mut handle = sound.clone();
            change(&mut handle);
            assert_eq!(handle.reveal().parse::<LeaseHandle>(), Err(LeaseHandleError::Damaged));
        };
        wrong(|handle| handle.need = 0);
        wrong(|handle| handle.need = 4);
        wrong(|handle| handle.parts.swap(0, 1));
        wrong(|handle| handle.parts[0].lease = 0);
        wrong(|handle| handle.ttl_ms = 9_999);
        wrong(|handle| handle.ttl_ms = u64::MAX);
        wrong(|handle| {
            handle.parts[0].address = NodeAddress::Unix("/x\ny".into());
        });
        let mut later = sound.bytes();
        later.truncate(later.len() - CHECKSUM_BYTES);
        later[0] = VERSION + 1;
        later.extend(checksum(&later));
        let digits = later.into_iter().map(|byte| format!("{byte:02x}"));
        let later: String = [PREFIX.to_owned()].into_iter().chain(digits).collect();
        assert_eq!(later.parse::<LeaseHandle>(), Err(LeaseHandleError::Later));
    }

    #[test]
    fn a_list_whose_handle_would_be_too_long_is_refused_before() {
        assert_eq!(LeaseHandle::fits(&nodes()), Ok(()));
        let long: NodeAddress = format!("ssh:{}", "x".repeat(200)).parse().unwrap();
        let node = |n| Node { name: format!("{n}"), address: long.clone(), canal: None };
        let many: Vec<Node> = (0..NODES_MAX).map(node).collect();
        let error = LeaseHandle::fits(&many).unwrap_err();
        assert!(error.contains(" on these 64 nodes would have "), "{error}");
    }

    #[test]
    fn each_lease_has_a_name_and_a_secret_of_its_own() {
        let secret = Secret(7);
        let mut all = vec![secret.run().0, 7, Secret(8).run().0];
        for node in [NodeId(1), NodeId(2)] {
            for lease in [1, 2] {
                all.extend([secret.handle(node, lease).bits(), secret.tag(node, lease).0]);
            }
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    fn with(around: EnclosingLeases, bits: u128, nodes: &[(&str, u128)]) -> EnclosingLeases {
        let part = |(address, id): &(&str, u128)| LeasePart {
            address: address.parse().unwrap(),
            id: NodeId(*id),
            lease: 2,
            held: true,
        };
        let (secret, parts) = (Secret(bits), nodes.iter().map(part).collect());
        let lease = LeaseHandle { secret, token: Some(3), ttl_ms: 60_000, need: 1, parts };
        around.with(lease, Path::new("/here/s"))
    }

    fn handle_of(bits: u128, node: u128, lease: u32) -> Option<Handle> {
        Some(Secret(bits).handle(NodeId(node), lease))
    }

    #[test]
    fn each_node_is_shown_the_innermost_lease_that_it_has() {
        let leases = with(EnclosingLeases::default(), 7, &[("local", 1), ("ssh:web", 2)]);
        let leases = with(leases, 8, &[("ssh:web", 2)]);
        let leases = EnclosingLeases::of_text(&leases.reveal());
        assert_eq!(leases.0.len(), 2);
        assert_eq!(leases.handle(NodeId(1)), handle_of(7, 1, 2));
        assert_eq!(leases.handle(NodeId(2)), handle_of(8, 2, 2));
        assert_eq!(leases.handle(NodeId(3)), handle_of(8, 3, 1), "it may have joined later");
        assert_eq!(leases.at_socket(Path::new("/here/s")), handle_of(7, 1, 2));
        assert_eq!(leases.at_socket(Path::new("/other/s")), None);
        assert_eq!(EnclosingLeases::default().handle(NodeId(1)), None);
    }

    #[test]
    fn what_is_no_handle_is_left_out_and_the_outermost_go_first() {
        let mut leases = EnclosingLeases::of_text("x n0123  nn");
        assert_eq!(leases, EnclosingLeases::default());
        for bits in 1..=6 {
            leases = with(leases, bits, &[("local", 1)]);
        }
        assert_eq!(leases.0.len(), LEASES_MAX);
        assert_eq!(leases.handle(NodeId(1)), handle_of(6, 1, 2));
    }
}
