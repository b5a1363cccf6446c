//! Describes a lock at nodes.

use canal_nodes::{Change, Held, Outcome, Refusal, Require};
use canal_protocol::node_address::NodeAddress;
use canal_protocol::paths::SHARED_DIR;
use canal_protocol::{ErrorName, Failure, KnownNode, Node};
use canal_sys::clock::unix_of;
use canal_text::time::clock_here;

use super::nodes_request::{Ending, News, NotHeld, Purpose};

/// Advice for a lost lock.
pub const LOST_HINT: &str = "see LOSING THE LOCK in canal-run(1)";

impl News {
    /// The note for the user. `None` for news that only the display of a wait shows.
    pub fn note(self) -> Option<String> {
        match self {
            Self::Waits { .. } => None,
            Self::New { names, until } => {
                let what = match names.len() {
                    1 => "is new or has lost its state, and grants",
                    _ => "are new or have lost their state, and grant",
                };
                let (names, until) = (names.join(", "), clock_of(until));
                Some(format!("{names} {what} no node leases until {until}"))
            }
            Self::Away(text) | Self::Note(text) => Some(text),
        }
    }
}

/// A time of CLOCK_BOOTTIME in milliseconds.
fn clock_of(at: u64) -> String {
    clock_here(unix_of(at))
}

/// Names the users of the daemons of new nodes, because people who reach a machine as another user
/// may not share its locks.
pub(super) fn met(nodes: &[(Node, KnownNode)]) -> String {
    let one = |(node, recorded): &(Node, KnownNode)| match recorded.place == SHARED_DIR {
        true => format!("{} is the shared daemon of all users on {}", node.name, recorded.machine),
        false => format!("{} is {}", node.name, recorded.shown()),
    };
    let each: Vec<String> = nodes.iter().map(one).collect();
    let is_apart = |(node, recorded): &&(Node, KnownNode)| {
        matches!(node.address, NodeAddress::Ssh(_)) && recorded.place != SHARED_DIR
    };
    let whose = match nodes.iter().filter(is_apart).count() {
        0 => "",
        1 => "; it does not share locks with other users' daemons there",
        _ => "; they do not share locks with other users' daemons there",
    };
    each.join(", ") + whose
}

/// Which nodes a search for deadlocks could not read.
pub fn unread(nodes: &[String]) -> String {
    let of_it = if nodes.len() == 1 { "it" } else { "them" };
    format!(
        "cannot read {}: canal would not find a deadlock that involves {of_it}",
        nodes.join(", ")
    )
}

/// The news of a change at the nodes with these names, if it matters to users.
pub(super) fn news(change: &Change, names: &[&str], purpose: Purpose) -> Option<News> {
    let name = |node: &usize| names.get(*node).copied().unwrap_or("?");
    let on = |held: &Held| held_of(*held, names.len());
    Some(News::Note(match change {
        Change::Away { node, since, why, held, stops_at } => {
            let then = stops_at.map(|at| {
                let what = match purpose {
                    Purpose::Command(_) => "canal ends the command",
                    Purpose::Lease => "the lease will be lost",
                };
                format!("; {what} at {} unless the node answers", clock_of(at))
            });
            return Some(News::Away(format!(
                "{} has not answered since {} ({why}); the lock is {}{}",
                name(node),
                clock_of(*since),
                on(held),
                then.unwrap_or_default()
            )));
        }
        Change::Back(node, held) => {
            format!("{} is answering again; the lock is {}", name(node), on(held))
        }
        Change::Held(..) => return None,
        Change::NotYet(nodes, until) => {
            let names = nodes.iter().map(|node| name(node).to_owned()).collect();
            return Some(News::New { names, until: *until });
        }
        Change::TooFew(Held { held, need }) => format!(
            "too few nodes answer ({held} of {}, {need} needed); canal holds nothing until enough \
             of them answer",
            names.len()
        ),
        Change::AskedAnew(Some(node)) => format!(
            "released everything and is asking all nodes again, because {} did not answer or \
             confirm",
            name(node)
        ),
        Change::AskedAnew(None) => "gave way to another request".to_owned(),
        Change::OtherList(node, why) => format!(
            "{} does not take part in the lock, so a command on other nodes can run at the same \
             time: {why}",
            name(node)
        ),
        Change::Lost(node, held) => {
            format!("{} no longer holds the lock; it is {}", name(node), on(held))
        }
    }))
}

/// `held on 2 of 3 nodes`; `held on 3 of 3 nodes, and 2 are needed` if fewer than all are enough.
fn held_of(Held { held, need }: Held, all: usize) -> String {
    let are = if need == 1 { "is" } else { "are" };
    match need < all {
        true => format!("held on {held} of {all} nodes, and {need} {are} needed"),
        false => format!("held on {held} of {all} nodes"),
    }
}

/// The failure of a request that ended like this; `None` if its caller gave up.
pub(super) fn not_held(Ending { outcome, answers, cycle }: &Ending) -> Option<NotHeld> {
    let name = |node: usize| answers.get(node).map_or("?", |answer| answer.name.as_str());
    let hint = outcome.hint().map(Box::from);
    let failure = match outcome {
        Outcome::Refused { node, refusal, why, silent } => {
            let names = silent.iter().map(|node| name(*node)).collect::<Vec<_>>().join(", ");
            let silence = match silent.len() {
                0 => String::new(),
                1 => format!("; {names} does not answer"),
                _ => format!("; {names} do not answer"),
            };
            let message = match node {
                Some(node) => format!("{}: {why}{silence}", name(*node)),
                None => format!("{}{silence}", why.what),
            };
            let reason = match refusal {
                Refusal::Timeout => "timeout",
                Refusal::Deadlock => "deadlock",
                _ => "full",
            };
            let (reason, cycle) = (Some(reason.into()), cycle.clone().into());
            Failure { hint, reason, cycle, ..Failure::new(ErrorName::Refused, message) }
        }
        Outcome::Failed(nodes) => {
            let each = nodes.iter().map(|(node, why)| format!("{}: {why}", name(*node)));
            let message = each.collect::<Vec<_>>().join("; ");
            Failure { hint, ..Failure::new(ErrorName::Fault, message) }
        }
        Outcome::Lost(nodes) => {
            let nodes: Vec<&str> = nodes.iter().map(|node| name(*node)).collect();
            let message = format!("the lock was lost on {}", nodes.join(", "));
            Failure::new(ErrorName::LeaseLost, message).hint(LOST_HINT)
        }
        Outcome::GivenBack(_) => return None,
    };
    Some((failure.name, failure))
}

/// The phrase that replaces the engine in messages about a lost lock.
pub(super) fn engine(require: Require, nodes: usize) -> String {
    match require {
        Require::Any => "the node".to_owned(),
        _ if nodes == 1 => "the node".to_owned(),
        Require::All | Require::AllAlive => format!("each of the {nodes} nodes"),
        Require::Majority | Require::MajorityAlive => format!("a majority of the {nodes} nodes"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes_request::PartAnswer;
    use super::*;
    use canal_core::NodeId;
    use canal_protocol::{NodeFailure, OnLost};
    use canal_sys::clock;

    const NAMES: &[&str] = &["web1", "web2", "web3"];

    fn said(change: &Change) -> String {
        news(change, NAMES, Purpose::Command(OnLost::Kill)).and_then(News::note).unwrap()
    }

    #[test]
    fn a_node_that_is_away_is_named_with_the_reason_and_the_deadline() {
        let now = clock::boottime_ms();
        let why = "ssh: connection timed out".to_owned();
        let away = Change::Away {
            node: 2,
            since: now,
            why,
            held: Held { held: 2, need: 3 },
            stops_at: Some(now + 60_000),
        };
        let text = said(&away);
        assert!(text.starts_with("web3 has not answered since "), "{text}");
        assert!(
            text.contains(
                " (ssh: connection timed out); the lock is held on 2 of 3 nodes; canal ends the \
                 command at "
            ),
            "{text}"
        );
        assert!(text.ends_with(" unless the node answers"), "{text}");
        let of_lease = news(&away, NAMES, Purpose::Lease).and_then(News::note).unwrap();
        assert!(
            of_lease.contains("held on 2 of 3 nodes; the lease will be lost at "),
            "{of_lease}"
        );
        assert_eq!(
            said(&Change::Back(2, Held { held: 3, need: 3 })),
            "web3 is answering again; the lock is held on 3 of 3 nodes"
        );
    }

    #[test]
    fn nodes_that_are_met_or_new_are_named_in_one_line() {
        let node = |name: &str, address: &str| Node {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            canal: None,
        };
        let recorded = |place: &str| KnownNode {
            node: NodeId(1),
            machine: "m".to_owned(),
            place: place.to_owned(),
            uid: 7,
            user: None,
        };
        let (web1, web2, here) =
            (node("web1", "ssh:web1"), node("web2", "ssh:web2"), node("a", "unix:/a/canal.sock"));
        let all = [(web1, recorded(SHARED_DIR)), (web2, recorded("/w")), (here, recorded("/a"))];
        let shared = "web1 is the shared daemon of all users on m";
        let apart = "web2 is the daemon of user 7 at /w on m";
        let own = "a is the daemon of user 7 at /a on m";
        let alone = "it does not share locks with other users' daemons there";
        assert_eq!(met(&all), format!("{shared}, {apart}, {own}; {alone}"));
        assert_eq!(met(&all[2..]), own, "on this machine nobody else asks it");
        let until = clock::boottime_ms();
        let new = said(&Change::NotYet(vec![0, 2], until));
        let words = "web1, web3 are new or have lost their state, and grant no node leases until ";
        assert!(new.starts_with(words), "{new}");
    }

    #[test]
    fn how_many_nodes_hold_the_lock_is_said_of_all_of_them() {
        // A majority holds more than it needs while its spares hold the lock too.
        for (held, need, said_of_it) in [
            (3, 2, "web1 is answering again; the lock is held on 3 of 3 nodes, and 2 are needed"),
            (1, 2, "web1 is answering again; the lock is held on 1 of 3 nodes, and 2 are needed"),
            (1, 1, "web1 is answering again; the lock is held on 1 of 3 nodes, and 1 is needed"),
            (2, 3, "web1 is answering again; the lock is held on 2 of 3 nodes"),
        ] {
            assert_eq!(said(&Change::Back(0, Held { held, need })), said_of_it);
        }
        let lost = Change::Lost(1, Held { held: 2, need: 2 });
        assert_eq!(
            said(&lost),
            "web2 no longer holds the lock; it is held on 2 of 3 nodes, and 2 are needed"
        );
    }

    #[test]
    fn a_refusal_names_its_node() {
        let answer = |name: &str| PartAnswer { name: name.to_owned(), said: None, trouble: None };
        let ending = |outcome| Ending {
            outcome,
            answers: NAMES.iter().map(|name| answer(name)).collect(),
            cycle: Vec::new(),
        };
        let why = NodeFailure::passing("deploy is full");
        let (refusal, silent) = (Refusal::Full, Vec::new());
        let refused = Outcome::Refused { node: Some(0), refusal, why, silent };
        let (error, failure) = not_held(&ending(refused)).unwrap();
        assert_eq!(error, ErrorName::Refused);
        assert_eq!(failure.reason.as_deref(), Some("full"));
        assert_eq!(failure.message, "web1: deploy is full");
        let nodes = [(0, "no such host"), (2, "permission denied")];
        let nodes = nodes.map(|(node, why)| (node, NodeFailure::permanent(why))).into();
        let (error, failure) = not_held(&ending(Outcome::Failed(nodes))).unwrap();
        assert_eq!(error, ErrorName::Fault);
        assert_eq!(failure.message, "web1: no such host; web3: permission denied");
        let (refusal, why) = (Refusal::Timeout, NodeFailure::passing("the wait timed out"));
        for (silent, end) in
            [(vec![1], "; web2 does not answer"), (vec![0, 2], "; web1, web3 do not answer")]
        {
            let over = Outcome::Refused { node: None, refusal, why: why.clone(), silent };
            assert_eq!(not_held(&ending(over)).unwrap().1.message, why.what.clone() + end);
        }
    }
}
