//! `canal status --ended`: shows the leases that ended recently.

use crate::cli::output::columns::{KEY, NOTE, PLAIN, Page, print};
use crate::cli::{
    Now, Result, StatusArgs, Target, command_line, plural, sanitize, stated_ms, stdout, user_name,
};
use crate::protocol::{EndedLease, EndedLeases, EndedLeasesQuery};

pub(super) fn run(args: &StatusArgs, target: &Target) -> Result {
    let key = args.key.as_ref().or(args.only.under.as_ref()).map(ToString::to_string);
    let query = EndedLeasesQuery { key, mine: args.only.mine, uid: args.only.user };
    let ended = target.connect()?.ended_leases(&query)?;
    if args.json {
        return stdout::print_json(&ended).map(drop);
    }
    print(&page(&ended, &Now::here()))
}

fn page(ended: &EndedLeases, now: &Now) -> Page {
    let mut page = Page::default();
    if ended.ended.is_empty() {
        page.line("no lease has ended recently", PLAIN);
    }
    for lease in &ended.ended {
        page.title(keys(lease), end(lease, now), KEY);
        page.note(origin(lease), NOTE);
    }
    page
}

/// `db and 1 more key`.
fn keys(lease: &EndedLease) -> String {
    let key = sanitize(&lease.lost.key);
    match lease.lost.more_keys {
        0 => key,
        more => format!("{key} and {}", plural(more, "more key", "more keys")),
    }
}

/// `expired 3m12s ago, at 14:02:11: not renewed for 1m00s`.
fn end(lease: &EndedLease, now: &Now) -> String {
    let when = now.when(&lease.lost.at);
    match lease.reason.as_str() {
        "expired" => format!("expired {when}: not renewed for {}", stated_ms(lease.lost.ttl_ms)),
        "released" => format!("released {when}"),
        "forced" => format!("broken by force {when}"),
        "withdrawn" => format!("taken back {when}: never confirmed"),
        other => format!("{} {when}", sanitize(other)),
    }
}

/// `held by ann, token 77: bash ./step-1`.
fn origin(lease: &EndedLease) -> String {
    let user = user_name::name(lease.uid);
    let command = lease.command.as_ref().map(|command| format!(": {}", command_line(command)));
    format!("held by {user}, token {}{}", lease.lost.token, command.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wording::time::tests::at;
    use crate::protocol::LostLease;

    fn lease(reason: &str, more_keys: u64) -> EndedLease {
        EndedLease {
            lost: LostLease {
                at: "2026-11-20T14:02:11Z".to_owned(),
                token: 77,
                key: "db".to_owned(),
                more_keys,
                ttl_ms: 60_000,
            },
            reason: reason.to_owned(),
            uid: 0,
            command: Some("bash ./step-1".to_owned()),
        }
    }

    #[test]
    fn each_end_says_when_why_and_whose() {
        let ended = vec![lease("expired", 0), lease("forced", 2)];
        let now = at("2026-11-20T14:05:23Z");
        let text = page(&EndedLeases { ended }, &now).render(Some(80));
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "db  expired 3m12s ago, at 14:02:11: not renewed for 1m00s
    held by root, token 77: bash ./step-1
db and 2 more keys  broken by force 3m12s ago, at 14:02:11
    held by root, token 77: bash ./step-1
"
        );
        let none = page(&EndedLeases::default(), &now).render(None);
        assert_eq!(
            anstream::adapter::strip_str(&none).to_string(),
            "no lease has ended recently\n"
        );
    }

    #[test]
    fn what_is_not_the_callers_to_see_is_left_out() {
        let hidden = EndedLease { command: None, ..lease("released", 0) };
        assert_eq!(origin(&hidden), "held by root, token 77");
    }
}
