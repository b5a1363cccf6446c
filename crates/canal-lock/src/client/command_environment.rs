//! The variables that describe a hold to its command.
//!
//! Sets or *unsets* every variable of canal, so that the command sees none from an enclosing `canal
//! run`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use canal_protocol::{Acquire, Grant, GrantedKey, HOLD_VARIABLE, Mode, RunId, SlotInfo, Tag};

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
/// The variable that names the enclosing run over nodes. A plain `canal run` leaves it unchanged,
/// unless it begins a new session.
pub const RUN: &str = "CANAL_RUN";
/// The variable that lists the nodes of all enclosing runs over nodes.
pub const RUN_NODES: &str = "CANAL_RUN_NODES";
/// The variable that hands down the leases over nodes under which a process runs: their handles,
/// separated by blanks, that of the outermost run first. A file with them would outlive a killed
/// run.
pub const UNDER: &str = "CANAL_UNDER";
/// The variable that names the socket of the daemon.
pub const SOCKET: &str = "CANAL_SOCKET";

/// Variables to set, or to unset if the value is `None`. The rest of the environment stays.
pub type Variables = Vec<(Cow<'static, str>, Option<OsString>)>;

/// The run over nodes that this process's environment names, if any.
pub fn run() -> Option<RunId> {
    std::env::var(RUN).ok()?.parse().ok()
}

/// Makes a request part of the session, the frame and the run over nodes that this process's
/// environment names.
pub fn join(request: &mut Acquire) {
    let named = |variable| std::env::var(variable).ok();
    (request.session, request.frame) = (named(SESSION), named(FRAME));
    request.under_run = run();
}

/// The variables of a grant. `socket` is the daemon's socket if the caller named one.
///
/// Several keys are separated by newlines; a key contains no control characters.
pub fn variables(grant: &Grant, socket: Option<&Path>) -> Variables {
    let keys: Vec<&str> = grant.keys.iter().map(|key| key.key.as_str()).collect();
    let mut variables = named([
        (KEY, Some(keys.join("\n").into())),
        (TOKEN, Some(grant.token.to_string().into())),
        (SESSION, Some(grant.session.clone().into())),
        (FRAME, (!grant.frame.is_empty()).then(|| grant.frame.clone().into())),
        (SOCKET, socket.map(|path| path.as_os_str().to_owned())),
        (NODE, None),
        (NODES, None),
    ]);
    variables.extend(of_slots(&grant.keys));
    variables
}

fn named<const N: usize>(variables: [(&'static str, Option<OsString>); N]) -> Variables {
    variables.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// The slots of a grant: those of the first key under the plain names, and those of each key under
/// names with the key as suffix. `CANAL_SLOTS` lists the slots of all keys.
fn of_slots(keys: &[GrantedKey]) -> Variables {
    let all: Vec<SlotInfo> = keys.iter().flat_map(|key| &key.slots).copied().collect();
    let mut variables: Variables = vec![(SLOTS.into(), Some(list(&all)))];
    let counted: Vec<&GrantedKey> = keys.iter().filter(|key| key.mode == Mode::Counted).collect();
    variables.extend(of_one("", counted.first().map_or(&[][..], |key| &key.slots)));
    for key in counted {
        let suffix = format!("_{}", suffix(&key.key));
        variables.push((format!("{SLOTS}{suffix}").into(), Some(list(&key.slots))));
        variables.extend(of_one(&suffix, &key.slots));
    }
    variables
}

fn list(slots: &[SlotInfo]) -> OsString {
    slots.iter().map(|slot| slot.slot.to_string()).collect::<Vec<_>>().join(",").into()
}

/// The slot and the bucket, if the hold has exactly one slot.
fn of_one(suffix: &str, slots: &[SlotInfo]) -> Variables {
    let one = if let [one] = slots { Some(one) } else { None };
    let set = |name: &str, number: Option<u64>| {
        (format!("{name}{suffix}").into(), number.map(|number| number.to_string().into()))
    };
    vec![set(SLOT, one.map(|one| one.slot)), set(BUCKET, one.and_then(|one| one.bucket))]
}

/// A key as part of a variable's name: `gpu/0` becomes `GPU_0`.
fn suffix(key: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    key.chars().map(upper).collect()
}

/// Two of these keys whose variables would have the same name, and the suffix of that name.
pub fn clash<'a>(keys: impl IntoIterator<Item = &'a str>) -> Option<(&'a str, &'a str, String)> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    keys.into_iter().find_map(|key| {
        let suffix = suffix(key);
        let before = seen.insert(suffix.clone(), key)?;
        Some((before, key, suffix))
    })
}

/// The variables that hide the enclosing runs over nodes from a new session.
pub fn of_a_new_session() -> Variables {
    named([RUN, RUN_NODES, UNDER].map(|name| (name, None)))
}

/// The variables of a grant over nodes. `keys` are those of the request, `nodes` the names of the
/// nodes that hold it; `token` is `None` if the requirement does not exclude other holders.
/// `single` is the grant of the only node, if one is enough. Names no session and no frame: the
/// command holds leases. `run` is the name of the request, by which deadlock detection recognizes
/// requests made within it. `under` are the leases to hand down.
pub fn variables_over_nodes(
    run: RunId,
    keys: &[&str],
    nodes: &[String],
    token: Option<u64>,
    single: Option<&Grant>,
    socket: Option<&Path>,
    under: &str,
) -> Variables {
    let node = single.and(nodes.first());
    let mut variables = named([
        (KEY, Some(keys.join("\n").into())),
        (TOKEN, token.map(|token| token.to_string().into())),
        (SESSION, None),
        (FRAME, None),
        (SOCKET, socket.map(|path| path.as_os_str().to_owned())),
        (NODE, node.map(|node| node.as_str().into())),
        (NODES, Some(nodes.join(",").into())),
        (RUN, Some(run.to_string().into())),
        (UNDER, (!under.is_empty()).then(|| under.into())),
        (RUN_NODES, Some(run_nodes(std::env::var(RUN_NODES).ok().as_deref(), nodes).into())),
    ]);
    variables.extend(match single {
        Some(grant) => of_slots(&grant.keys),
        // Slots of different nodes are unrelated.
        None => named([SLOTS, SLOT, BUCKET].map(|name| (name, None))),
    });
    variables
}

/// The nodes of the enclosing runs, then those of this one, each once.
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

/// The variable by which the daemon finds the processes that were started under a hold that can be
/// lost. Keeps the tags of an enclosing `canal run`, whose holds can be lost too.
pub fn hold_variable(tag: Tag) -> (Cow<'static, str>, Option<OsString>) {
    let mut value = std::env::var_os(HOLD_VARIABLE).unwrap_or_default();
    if !value.is_empty() {
        value.push(" ");
    }
    value.push(tag.to_string());
    (HOLD_VARIABLE.into(), Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_protocol::{GrantedKey, Mode, OwnerInfo};

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
            ..Grant::default()
        }
    }

    fn shown(grant: &Grant, socket: Option<&Path>) -> Vec<String> {
        let show = |(name, value): (Cow<'_, str>, Option<OsString>)| match value {
            Some(value) => format!("{name}={}", value.to_string_lossy()),
            None => format!("-{name}"),
        };
        let mut shown: Vec<_> = variables(grant, socket).into_iter().map(show).collect();
        shown.sort_unstable();
        shown
    }

    /// The variables of slots that are set.
    fn slots(keys: &[(&str, Slots<'_>)]) -> Vec<String> {
        let mut shown = shown(&grant(keys), None);
        let is_of_slots = |it: &String| it.contains("SLOT") || it.contains("BUCKET");
        shown.retain(|it| !it.starts_with('-') && is_of_slots(it));
        shown
    }

    #[test]
    fn what_is_not_set_is_unset() {
        assert_eq!(
            shown(&grant(&[("db", &[(4, None)])]), Some(Path::new("/d/s"))),
            [
                "-CANAL_BUCKET",
                "-CANAL_BUCKET_DB",
                "-CANAL_NODE",
                "-CANAL_NODES",
                "CANAL_FRAME=f4",
                "CANAL_KEY=db",
                "CANAL_SESSION=s3",
                "CANAL_SLOT=4",
                "CANAL_SLOTS=4",
                "CANAL_SLOTS_DB=4",
                "CANAL_SLOT_DB=4",
                "CANAL_SOCKET=/d/s",
                "CANAL_TOKEN=7",
            ]
        );
        assert!(
            shown(&grant(&[("b", &[]), ("a x", &[])]), None).contains(&"CANAL_KEY=b\na x".into())
        );
    }

    #[test]
    fn each_key_has_its_own_slots_and_the_first_one_the_plain_names() {
        let keys: [(&str, Slots<'_>); 2] =
            [("gpu/0", &[(4, Some(1))]), ("a x", &[(2, None), (5, None)])];
        assert_eq!(
            slots(&keys),
            [
                "CANAL_BUCKET=1",
                "CANAL_BUCKET_GPU_0=1",
                "CANAL_SLOT=4",
                "CANAL_SLOTS=4,2,5",
                "CANAL_SLOTS_A_X=2,5",
                "CANAL_SLOTS_GPU_0=4",
                "CANAL_SLOT_GPU_0=4",
            ]
        );
        let [one, several] = keys;
        assert!(!slots(&[several, one]).contains(&"CANAL_SLOT=4".to_owned()));
        assert_eq!(slots(&[("db", &[])]), ["CANAL_SLOTS=", "CANAL_SLOTS_DB="]);
    }

    #[test]
    fn keys_whose_variables_have_one_name_are_found() {
        assert_eq!(clash(["a", "b-c", "b/c"]), Some(("b-c", "b/c", "B_C".to_owned())));
        assert_eq!(clash(["a", "b-c", "b/d"]), None);
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
                "CANAL_NODE=gpu2",
                "CANAL_NODES=gpu2",
                "CANAL_SLOTS=3",
                "CANAL_SLOT=3",
                "CANAL_SLOTS_GPU=3",
                "CANAL_SLOT_GPU=3"
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
}
