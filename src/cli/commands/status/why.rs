//! `canal status --why`: shows a chain of waits to its end, and the waiters of its first process.
//!
//! Each wait appears once. If a ring closes, or two paths lead to the same waiter, a reference
//! replaces the repetition.

use std::collections::BTreeMap;

use crate::cli::arguments::value::WhyTarget;
use crate::cli::wording::participant::{held, party, wanted};
use crate::cli::{Global, Now, Result, connect, plural, sanitize, stdout};
use crate::protocol::{BlockerInfo, WaitInfo, Waits};

/// The depth beyond which a chain is not indented further.
const DEPTH_MAX: usize = 20;

pub(super) fn run(target: &WhyTarget, json: bool, global: &Global) -> Result {
    let waits = connect::client(global)?.why(&target.query())?;
    stdout::report(&waits, json, || text(target, &waits, &Now::here()))
}

/// The chain of the target's waits, and the waiters for the target.
pub(crate) fn text(target: &WhyTarget, waits: &Waits, now: &Now) -> String {
    story(target, waits, now) + &waiters(waits, now)
}

fn story(target: &WhyTarget, waits: &Waits, now: &Now) -> String {
    if waits.waits.is_empty() {
        return format!("{target} is not waiting for anything\n");
    }
    let mut story = Story { waits: &waits.waits, of: BTreeMap::new(), told: Vec::new(), now };
    for (at, wait) in story.waits.iter().enumerate() {
        story.of.entry(&wait.waiter.session).or_default().push(at);
    }
    story.told.resize(story.waits.len(), false);
    let mut text = story.tell();
    if waits.left_out > 0 {
        let more = plural(waits.left_out, "more wait is", "more waits are");
        text += &format!("{more} left out\n");
    }
    text
}

/// The waiters of the target: a line for each request.
fn waiters(waits: &Waits, now: &Now) -> String {
    let Waits { waiters, waiters_left_out, .. } = waits;
    let mut text = match waiters.len() {
        0 => String::new(),
        n => {
            format!("{} for it:\n", plural(n as u64, "request is waiting", "requests are waiting"))
        }
    };
    for wait in waiters {
        text += &format!("  {}\n", wait_line(wait, &party(&wait.waiter), now));
    }
    if *waiters_left_out > 0 {
        let more = plural(*waiters_left_out, "more wait was", "more waits were");
        text += &format!("{more} left out because there are too many\n");
    }
    text
}

/// `pid 900 `./deploy.sh` (bob, s21) has been waiting to write `db` since 14:05:03 (20s): why`.
fn wait_line(wait: &WaitInfo, who: &str, now: &Now) -> String {
    let WaitInfo { key, mode, since, reason, .. } = wait;
    let (what, since) = (wanted(*mode), now.since(since));
    format!("{who} has been waiting {what} `{}` {since}: {}", sanitize(key), sanitize(reason))
}

struct Story<'a> {
    waits: &'a [WaitInfo],
    /// The waits of each session.
    of: BTreeMap<&'a str, Vec<usize>>,
    told: Vec<bool>,
    now: &'a Now,
}

/// An entry that is still to be shown, and its depth.
enum Pending<'a> {
    /// A wait, under the process that was named above it, if any.
    Wait(usize, usize, Option<u32>),
    /// A blocker of the wait above.
    Blocker(&'a BlockerInfo, usize),
    /// The number of further blockers that the report does not name.
    More(u64, usize),
}

/// The wait of a blocker's own session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Its {
    /// Nothing: the chain ends here.
    None,
    /// The wait is shown next.
    Follow,
    /// The wait was shown earlier.
    Told,
}

impl<'a> Story<'a> {
    fn tell(&mut self) -> String {
        let mut text = String::new();
        for root in 0..self.waits.len() {
            // An explicit stack, because a chain can be as long as the number of sessions.
            let mut stack = vec![Pending::Wait(root, 0, None)];
            while let Some(next) = stack.pop() {
                let (depth, line) = match next {
                    Pending::Wait(at, ..) if self.told[at] => continue,
                    Pending::Wait(at, depth, named) => {
                        self.told[at] = true;
                        self.push_blockers(at, depth, &mut stack);
                        (depth, self.wait(&self.waits[at], named))
                    }
                    Pending::Blocker(blocker, depth) => {
                        let its = self.push_waits(blocker, depth, &mut stack);
                        (depth, self.blocker(blocker, its))
                    }
                    Pending::More(n, depth) => {
                        (depth, format!("and {}", plural(n, "other", "others")))
                    }
                };
                text += &format!("{}{line}\n", "  ".repeat(depth.min(DEPTH_MAX)));
            }
        }
        text
    }

    fn push_blockers(&self, at: usize, depth: usize, stack: &mut Vec<Pending<'a>>) {
        let WaitInfo { blockers, blockers_left_out, .. } = &self.waits[at];
        if *blockers_left_out > 0 {
            stack.push(Pending::More(*blockers_left_out, depth + 1));
        }
        stack.extend(blockers.iter().rev().map(|blocker| Pending::Blocker(blocker, depth + 1)));
    }

    fn push_waits(&self, blocker: &BlockerInfo, depth: usize, stack: &mut Vec<Pending<'a>>) -> Its {
        let Some(of) = self.of.get(blocker.party.session.as_str()) else { return Its::None };
        let before = stack.len();
        let untold = of.iter().rev().filter(|at| !self.told[**at]);
        stack.extend(untold.map(|at| Pending::Wait(*at, depth + 1, Some(blocker.party.pid))));
        if stack.len() > before { Its::Follow } else { Its::Told }
    }

    fn wait(&self, wait: &WaitInfo, named: Option<u32>) -> String {
        let waiter = &wait.waiter;
        let who = if named == Some(waiter.pid) { "it".to_owned() } else { party(waiter) };
        wait_line(wait, &who, self.now)
    }

    fn blocker(&self, blocker: &BlockerInfo, its: Its) -> String {
        let BlockerInfo { party: who, key, mode, holds, since } = blocker;
        let (who, key, since) = (party(who), sanitize(key), self.now.since(since));
        let told = if its == Its::Told { ", shown above" } else { "" };
        match (holds, its) {
            (true, _) => format!("{who} has held `{key}`{} {since}{told}", held(*mode)),
            (false, Its::Follow) => format!("{who} goes first"),
            (false, _) => {
                format!(
                    "{who} goes first: it has been waiting {} `{key}` {since}{told}",
                    wanted(*mode)
                )
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::wording::participant::tests::someone;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::{Mode, PartyInfo};

    const SINCE: &str = "2026-11-20T14:02:11Z";

    pub(crate) fn wait(
        waiter: PartyInfo,
        (key, mode): (&str, Mode),
        blockers: Vec<BlockerInfo>,
    ) -> WaitInfo {
        let (key, since, reason) = (key.to_owned(), SINCE.to_owned(), "why".to_owned());
        WaitInfo { waiter, key, mode, since, reason, blockers, blockers_left_out: 0 }
    }

    pub(crate) fn blocker(party: PartyInfo, (key, mode): (&str, Mode), holds: bool) -> BlockerInfo {
        BlockerInfo { party, key: key.to_owned(), mode, holds, since: SINCE.to_owned() }
    }

    fn told(waits: Vec<WaitInfo>) -> String {
        story(&WhyTarget::Pid(9), &Waits { waits, ..Waits::default() }, &at("2026-11-20T14:05:23Z"))
    }

    #[test]
    fn a_process_that_waits_for_nothing_gets_a_sentence() {
        assert_eq!(told(vec![]), "pid 9 is not waiting for anything\n");
    }

    #[test]
    fn the_chain_is_followed_to_its_end() {
        let (deploy, make) = (someone(9, "deploy", "s9"), someone(10, "make", "s10"));
        let (ld, old) = (someone(11, "ld", "s10"), someone(12, "old", "s12"));
        let first = blocker(someone(13, "dump", "s13"), ("db/x", Mode::Read), false);
        let holds = blocker(make.clone(), ("db/y", Mode::Counted), true);
        let story = told(vec![
            wait(deploy.clone(), ("db", Mode::Write), vec![holds, first]),
            wait(ld, ("link", Mode::Counted), vec![blocker(old, ("link", Mode::Counted), true)]),
            wait(
                someone(13, "dump", "s13"),
                ("db/x", Mode::Read),
                vec![blocker(deploy, ("a", Mode::Write), true)],
            ),
        ]);
        assert_eq!(
            story,
            "pid 9 `deploy` (root, s9) has been waiting to write `db` since 14:02:11 (3m12s): why
  pid 10 `make` (root, s10) has held `db/y` since 14:02:11 (3m12s)
    pid 11 `ld` (root, s10) has been waiting for `link` since 14:02:11 (3m12s): why
      pid 12 `old` (root, s12) has held `link` since 14:02:11 (3m12s)
  pid 13 `dump` (root, s13) goes first
    it has been waiting to read `db/x` since 14:02:11 (3m12s): why
      pid 9 `deploy` (root, s9) has held `a` for writing since 14:02:11 (3m12s), shown above
"
        );
    }

    #[test]
    fn what_waits_for_a_holder_is_listed() {
        let deploy = someone(9, "deploy", "s9");
        let waiters_of = |of: Vec<WaitInfo>| {
            let waits = Waits { waiters: of, ..Waits::default() };
            waiters(&waits, &at("2026-11-20T14:05:23Z"))
        };
        assert_eq!(waiters_of(vec![]), "");
        assert_eq!(
            waiters_of(vec![wait(deploy.clone(), ("db", Mode::Write), vec![])]),
            "1 request is waiting for it:\n  pid 9 `deploy` (root, s9) has been waiting to write `db` since \
             14:02:11 (3m12s): why\n"
        );
        let two = vec![wait(deploy, ("db", Mode::Write), vec![]); 2];
        assert!(waiters_of(two).starts_with("2 requests are waiting for it:\n  pid 9 "));
    }

    #[test]
    fn omitted_waits_are_counted() {
        let key = ("k", Mode::Write);
        let holder = blocker(someone(10, "x", "s10"), key, true);
        let mut wait = wait(someone(9, "x", "s9"), key, vec![holder]);
        wait.blockers_left_out = 1;
        let waits = Waits { waits: vec![wait], left_out: 2, ..Waits::default() };
        let story = story(&WhyTarget::Pid(9), &waits, &at("2026-11-20T14:05:23Z"));
        assert!(story.ends_with("\n  and 1 other\n2 more waits are left out\n"), "{story}");
    }

    #[test]
    fn a_long_chain_is_shown_without_endless_indentation() {
        let one = |n: u32| someone(n, "x", &format!("s{n}"));
        let key = ("k", Mode::Write);
        let chain: Vec<_> =
            (1..20_000).map(|n| wait(one(n), key, vec![blocker(one(n + 1), key, true)])).collect();
        let story = told(chain);
        assert_eq!(story.lines().count(), 2 * 19_999);
        assert!(story.lines().all(|line| line.len() < 200));
    }
}
