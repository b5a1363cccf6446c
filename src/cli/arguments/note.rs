//! The note of a request: information from the caller for other users, such as the address of a CI
//! run.

use std::ffi::{OsStr, OsString};

use clap::Args;

use crate::cli::{Failed, Result};
use crate::protocol::NOTE_BYTES_MAX;

/// The variable with the note for commands that are started without the option.
const VARIABLE: &str = "CANAL_NOTE";

/// The options for the note.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "How to run")]
pub(crate) struct NoteArgs {
    /// Show TEXT to everyone who sees the lock [default: $CANAL_NOTE]
    ///
    /// Without either, the note of a CI job is the URL of its run; --note '' turns that off. A note
    /// may be at most 512 bytes long, and other users can read it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<OsString>,
}

impl NoteArgs {
    /// The note of a new request: from the option, else from the environment, else the address of
    /// the CI run in which canal runs.
    ///
    /// # Errors
    /// The note is too long.
    pub(crate) fn of_request(&self) -> Result<Option<String>> {
        let note = self.of_renewal()?.or_else(|| of_ci(|name| std::env::var(name).ok()));
        Ok(note.filter(|note| !note.is_empty()))
    }

    /// The new note of a lease, empty for none; `None` leaves the note as it is. An empty variable
    /// does not count.
    ///
    /// # Errors
    /// The note is too long.
    pub(crate) fn of_renewal(&self) -> Result<Option<String>> {
        if let Some(note) = &self.note {
            return checked(note, "--note").map(Some);
        }
        let inherited = std::env::var_os(VARIABLE).filter(|note| !note.is_empty());
        inherited.map(|note| checked(&note, VARIABLE)).transpose()
    }
}

/// A variable of each CI service that has the address of a run in one variable, and that variable.
const URLS: [(&str, &str); 3] =
    [("GITLAB_CI", "CI_JOB_URL"), ("JENKINS_URL", "BUILD_URL"), ("CIRCLECI", "CIRCLE_BUILD_URL")];

/// The address of the CI run that these variables describe, if it fits into a note.
fn of_ci(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let text = |name: &str| variable(name).filter(|text| !text.is_empty());
    let of_actions = |run: &str| {
        let (server, repository) = (text("GITHUB_SERVER_URL")?, text("GITHUB_REPOSITORY")?);
        Some(format!("{server}/{repository}/actions/runs/{}", text(run)?))
    };
    // Gitea and Forgejo also set the variables of GitHub, but address runs by number.
    let url = if text("GITEA_ACTIONS").or_else(|| text("FORGEJO_ACTIONS")).is_some() {
        of_actions("GITHUB_RUN_NUMBER")
    } else if text("GITHUB_ACTIONS").is_some() {
        of_actions("GITHUB_RUN_ID")
    } else if text("BUILDKITE").is_some() {
        let job = text("BUILDKITE_JOB_ID").map_or_else(String::new, |job| format!("#{job}"));
        text("BUILDKITE_BUILD_URL").map(|url| url + &job)
    } else if text("TF_BUILD").is_some() {
        let (server, project) = (text("SYSTEM_COLLECTIONURI")?, text("SYSTEM_TEAMPROJECT")?);
        let (server, project) = (server.trim_end_matches('/'), project.replace(' ', "%20"));
        Some(format!("{server}/{project}/_build/results?buildId={}", text("BUILD_BUILDID")?))
    } else if text("CI").as_deref() == Some("woodpecker") {
        text("CI_PIPELINE_URL")
    } else {
        URLS.iter().find(|(marker, _)| text(marker).is_some()).and_then(|(_, url)| text(url))
    };
    url.filter(|url| url.len() <= NOTE_BYTES_MAX)
}

fn checked(note: &OsStr, source: &str) -> Result<String> {
    let note = note.to_string_lossy();
    let bytes = note.len();
    if bytes <= NOTE_BYTES_MAX {
        return Ok(note.into_owned());
    }
    let long = format!("{source} has {bytes} bytes; a note can have at most {NOTE_BYTES_MAX}");
    Err(Failed::new(long).hint("put the details elsewhere, and a link to them in the note"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(note: &str) -> NoteArgs {
        NoteArgs { note: Some(note.into()) }
    }

    #[test]
    fn a_note_is_taken_as_it_is_up_to_a_bound() {
        assert_eq!(given("run 7").of_request().unwrap().as_deref(), Some("run 7"));
        let longest = "é".repeat(NOTE_BYTES_MAX / 2);
        assert_eq!(given(&longest).of_request().unwrap(), Some(longest.clone()));
        let failed = given(&(longest + "x")).of_request().unwrap_err();
        assert_eq!(failed.message, "--note has 513 bytes; a note can have at most 512");
        assert!(failed.hint.is_some());
    }

    #[test]
    fn each_ci_service_is_known_by_its_variables() {
        let github = "GITHUB_SERVER_URL=https://g GITHUB_REPOSITORY=a/b GITHUB_RUN_ID=7 GITHUB_RUN_NUMBER=3 GITHUB_ACTIONS=true";
        for (variables, url) in [
            (github.to_owned(), "https://g/a/b/actions/runs/7"),
            (format!("{github} GITEA_ACTIONS=true"), "https://g/a/b/actions/runs/3"),
            (format!("{github} FORGEJO_ACTIONS=true"), "https://g/a/b/actions/runs/3"),
            ("GITLAB_CI=true CI_JOB_URL=https://l/1".into(), "https://l/1"),
            ("JENKINS_URL=https://j BUILD_URL=https://j/1/".into(), "https://j/1/"),
            (
                "BUILDKITE=true BUILDKITE_BUILD_URL=https://k/1 BUILDKITE_JOB_ID=x".into(),
                "https://k/1#x",
            ),
            ("CIRCLECI=true CIRCLE_BUILD_URL=https://c/1".into(), "https://c/1"),
            (
                "TF_BUILD=True SYSTEM_COLLECTIONURI=https://z/o/ SYSTEM_TEAMPROJECT=p BUILD_BUILDID=5"
                    .into(),
                "https://z/o/p/_build/results?buildId=5",
            ),
            ("CI=woodpecker CI_PIPELINE_URL=https://w/1".into(), "https://w/1"),
            ("CI=true BUILD_URL=https://x".into(), ""),
            ("GITHUB_ACTIONS=true GITHUB_RUN_ID=7".into(), ""),
            (format!("CIRCLECI=true CIRCLE_BUILD_URL={}", "x".repeat(600)), ""),
        ] {
            let variable = |name: &str| {
                let mut all = variables.split(' ').filter_map(|it| it.split_once('='));
                all.find(|(it, _)| *it == name).map(|(_, value)| value.to_owned())
            };
            assert_eq!(of_ci(variable).unwrap_or_default(), url, "{variables}");
        }
    }

    #[test]
    fn an_empty_note_is_none_for_a_request_and_removes_that_of_a_lease() {
        assert_eq!(given("").of_request().unwrap(), None);
        assert_eq!(given("").of_renewal().unwrap().as_deref(), Some(""));
    }
}
