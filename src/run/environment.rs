//! What the command's environment says of its hold.
//!
//! Every variable of canal's own is set or *unset*, so that nothing of an enclosing `canal run`
//! shines through.

use std::ffi::OsString;
use std::path::Path;

use crate::protocol::{Grant, HOLD_VARIABLE, RunId, SlotInfo, Tag};

const KEY: &str = "CANAL_KEY";
const TOKEN: &str = "CANAL_TOKEN";
const SLOTS: &str = "CANAL_SLOTS";
const SLOT: &str = "CANAL_SLOT";
const BUCKET: &str = "CANAL_BUCKET";
const NODE: &str = "CANAL_NODE";
const NODES: &str = "CANAL_NODES";
/// The variable that names the session of the enclosing `canal run`.
pub const SESSION: &str = "CANAL_SESSION";
/// The variable that names the frame of the enclosing `canal run`.
pub const FRAME: &str = "CANAL_FRAME";
/// The variable that names the enclosing run over nodes. A plain `canal run` leaves it as it is, unless it
/// begins a new session.
pub const RUN: &str = "CANAL_RUN";
/// The variable that lists the nodes of all enclosing runs over nodes.
pub const RUN_NODES: &str = "CANAL_RUN_NODES";
/// The variable that hands down the leases over nodes under which a process runs: their handles with blanks
/// between them, that of the outermost run first.
pub const UNDER: &str = "CANAL_UNDER";
/// The variable that names the socket of the daemon.
pub const SOCKET: &str = "CANAL_SOCKET";

/// The variable that names the holds, over an engine, that a process runs under: tags with blanks
/// between them, that of the outermost `canal run` first.
pub const HOLD: &str = HOLD_VARIABLE;

/// Variables to set, or with `None` to unset; everything else of the environment stays.
pub type Variables = Vec<(&'static str, Option<OsString>)>;

/// The run over nodes that the environment of this process names, if it names one.
#[must_use]
pub fn run() -> Option<RunId> {
    std::env::var(RUN).ok()?.parse().ok()
}

/// The variables of a grant. `socket` is the daemon's socket if the caller named one.
///
/// Several keys are separated by newlines; a key contains no control characters. `CANAL_SLOT` and
/// `CANAL_BUCKET` are set only where exactly one slot is held.
#[must_use]
pub fn variables(grant: &Grant, socket: Option<&Path>) -> Variables {
    let keys: Vec<&str> = grant.keys.iter().map(|key| key.key.as_str()).collect();
    let slots: Vec<SlotInfo> = grant.keys.iter().flat_map(|key| &key.slots).copied().collect();
    let numbers: Vec<String> = slots.iter().map(|slot| slot.slot.to_string()).collect();
    let single = if let [slot] = slots[..] { Some(slot) } else { None };
    let bucket = single.and_then(|slot| slot.bucket);
    vec![
        (KEY, Some(keys.join("\n").into())),
        (TOKEN, Some(grant.token.to_string().into())),
        (SLOTS, Some(numbers.join(",").into())),
        (SLOT, single.map(|slot| slot.slot.to_string().into())),
        (BUCKET, bucket.map(|bucket| bucket.to_string().into())),
        (SESSION, Some(grant.session.clone().into())),
        (FRAME, (!grant.frame.is_empty()).then(|| grant.frame.clone().into())),
        (SOCKET, socket.map(|path| path.as_os_str().to_owned())),
        (NODE, None),
        (NODES, None),
    ]
}

/// What hides the enclosing runs over nodes from what runs in a new session.
pub fn of_a_new_session() -> impl Iterator<Item = (&'static str, Option<OsString>)> {
    [RUN, RUN_NODES, UNDER].into_iter().map(|name| (name, None))
}

/// The variables of a grant over nodes. `keys` are those of the request, `nodes` the names of the nodes
/// that hold it, `token` is `None` where the requirement excludes nobody. `single` is what the only
/// node granted, where one is enough. No session and no frame is named: the command holds leases. `run` is
/// the name of the request, by which those who look for deadlocks know what is asked within it. `under` are
/// the leases that are handed down.
#[must_use]
pub fn variables_over_nodes(
    run: RunId,
    keys: &[&str],
    nodes: &[String],
    token: Option<u64>,
    single: Option<&Grant>,
    socket: Option<&Path>,
    under: &str,
) -> Variables {
    let slots: Vec<SlotInfo> =
        single.iter().flat_map(|grant| &grant.keys).flat_map(|key| &key.slots).copied().collect();
    let numbers: Vec<String> = slots.iter().map(|slot| slot.slot.to_string()).collect();
    let one = if let [slot] = slots[..] { Some(slot) } else { None };
    let node = single.and(nodes.first());
    vec![
        (KEY, Some(keys.join("\n").into())),
        (TOKEN, token.map(|token| token.to_string().into())),
        (SLOTS, single.map(|_| numbers.join(",").into())),
        (SLOT, one.map(|slot| slot.slot.to_string().into())),
        (BUCKET, one.and_then(|slot| slot.bucket).map(|bucket| bucket.to_string().into())),
        (SESSION, None),
        (FRAME, None),
        (SOCKET, socket.map(|path| path.as_os_str().to_owned())),
        (NODE, node.map(|node| node.as_str().into())),
        (NODES, Some(nodes.join(",").into())),
        (RUN, Some(run.to_string().into())),
        (UNDER, (!under.is_empty()).then(|| under.into())),
        (RUN_NODES, Some(run_nodes(std::env::var(RUN_NODES).ok().as_deref(), nodes).into())),
    ]
}

/// The nodes of the enclosing runs, and then those of this one, each once.
fn run_nodes(around: Option<&str>, nodes: &[String]) -> String {
    let mut all: Vec<&str> = around.unwrap_or_default().split(',').collect();
    all.retain(|node| !node.is_empty());
    for node in nodes {
        if !all.contains(&node.as_str()) {
            all.push(node);
        }
    }
    all.join(",")
}

/// The variable by which the daemon finds what was started under a hold that can be lost. What an
/// enclosing `canal run` put there stays: what it holds can be lost, too.
#[must_use]
pub fn hold_variable(tag: Tag) -> (&'static str, Option<OsString>) {
    let mut value = std::env::var_os(HOLD).unwrap_or_default();
    if !value.is_empty() {
        value.push(" ");
    }
    value.push(tag.to_string());
    (HOLD, Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{GrantedKey, Mode, OwnerInfo};

    type Slots<'a> = &'a [(u64, Option<u64>)];

    fn grant(keys: &[(&str, Slots<'_>)]) -> Grant {
        let keys = keys.iter().map(|(key, slots)| GrantedKey {
            key: (*key).to_owned(),
            acquired: 1,
            slots: slots.iter().map(|&(slot, bucket)| SlotInfo { slot, bucket }).collect(),
            mode: Mode::Counted,
        });
        Grant {
            keys: keys.collect(),
            token: 7,
            owner: OwnerInfo { pid: 1, command: "x".to_owned() },
            session: "s3".to_owned(),
            frame: "f4".to_owned(),
            children_fd: None,
            offers_fd: None,
            returns_fd: None,
            lease: None,
            handle: None,
            notes: Vec::new(),
            deadline_fd: None,
            liveness_fd: None,
        }
    }

    fn shown(grant: &Grant, socket: Option<&Path>) -> Vec<String> {
        let show = |(name, value): (&str, Option<OsString>)| match value {
            Some(value) => format!("{name}={}", value.to_string_lossy()),
            None => format!("-{name}"),
        };
        variables(grant, socket).into_iter().map(show).collect()
    }

    #[test]
    fn one_slot_is_named_with_its_bucket() {
        assert_eq!(
            shown(&grant(&[("db", &[(4, Some(1))])]), None),
            [
                "CANAL_KEY=db",
                "CANAL_TOKEN=7",
                "CANAL_SLOTS=4",
                "CANAL_SLOT=4",
                "CANAL_BUCKET=1",
                "CANAL_SESSION=s3",
                "CANAL_FRAME=f4",
                "-CANAL_SOCKET",
                "-CANAL_NODE",
                "-CANAL_NODES",
            ]
        );
    }

    #[test]
    fn a_slot_without_a_bucket_unsets_the_bucket() {
        let shown = shown(&grant(&[("db", &[(0, None)])]), None);
        assert_eq!(shown[3..5], ["CANAL_SLOT=0", "-CANAL_BUCKET"]);
    }

    #[test]
    fn several_slots_of_several_keys_are_listed_in_the_order_of_the_items() {
        let grant = grant(&[("b", &[(2, Some(0)), (5, Some(1))]), ("a x", &[(0, None)])]);
        let shown = shown(&grant, Some(Path::new("/d/s")));
        assert_eq!(shown[0], "CANAL_KEY=b\na x");
        assert_eq!(
            shown[2..],
            [
                "CANAL_SLOTS=2,5,0",
                "-CANAL_SLOT",
                "-CANAL_BUCKET",
                "CANAL_SESSION=s3",
                "CANAL_FRAME=f4",
                "CANAL_SOCKET=/d/s",
                "-CANAL_NODE",
                "-CANAL_NODES",
            ]
        );
    }

    #[test]
    fn over_nodes_slots_are_named_only_where_one_node_is_enough() {
        let show = |single: Option<&Grant>, nodes: &[&str], token| {
            let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
            let variables =
                variables_over_nodes(RunId(7), &["gpu"], &nodes, token, single, None, "n1");
            let named =
                |name: &str| variables.iter().find(|(it, _)| *it == name).unwrap().1.clone();
            assert_eq!(named(RUN), Some(format!("{:032x}", 7).into()));
            assert!(named(RUN_NODES).is_some());
            assert_eq!(named(UNDER), Some("n1".into()));
            let handed_down = |name: &str| name.starts_with(RUN) || name == UNDER;
            let set = variables.into_iter().filter(|(name, _)| !handed_down(name));
            let set = set.filter_map(|(name, value)| {
                value.map(|value| format!("{name}={}", value.to_string_lossy()))
            });
            set.collect::<Vec<_>>()
        };
        assert_eq!(
            show(None, &["web1", "web2"], Some(9)),
            ["CANAL_KEY=gpu", "CANAL_TOKEN=9", "CANAL_NODES=web1,web2"]
        );
        assert_eq!(
            show(Some(&grant(&[("gpu", &[(3, None)])])), &["gpu2"], None),
            [
                "CANAL_KEY=gpu",
                "CANAL_SLOTS=3",
                "CANAL_SLOT=3",
                "CANAL_NODE=gpu2",
                "CANAL_NODES=gpu2"
            ]
        );
    }

    #[test]
    fn the_nodes_of_all_enclosing_runs_are_listed_once() {
        let nodes = ["web2".to_owned(), "web1".to_owned()];
        assert_eq!(run_nodes(None, &nodes), "web2,web1");
        assert_eq!(run_nodes(Some("web3,web1"), &nodes), "web3,web1,web2");
        assert_eq!(run_nodes(Some(""), &nodes[..1]), "web2");
    }

    #[test]
    fn a_grant_without_slots_has_an_empty_list() {
        let shown = shown(&grant(&[("db", &[])]), None);
        assert_eq!(shown[2..4], ["CANAL_SLOTS=", "-CANAL_SLOT"]);
    }
}
