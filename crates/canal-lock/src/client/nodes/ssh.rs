//! Reaches a daemon over the user's own ssh: builds the command line, and explains a failure.
//!
//! Keys, jump hosts, names and known hosts come from the user's configuration. The options here
//! disable everything that would prompt the user, open another channel or outlive the connection.
//!
//! ssh has one exit code (255) for all its own errors, so this module distinguishes them by the
//! error output. canal runs ssh in the C locale.

use std::ffi::OsString;

use canal_protocol::NodeFailure;
use canal_protocol::node_address::{NodeAddress, SshHost};
use canal_text::{beginning, shell_word};

/// How long ssh may take to connect, in seconds.
const CONNECT_S: u32 = 10;

/// The arguments of ssh for a bridge at a host. `canal` is the program on that host. After
/// `alive_s` seconds without a byte, ssh asks the other side for one, and gives up if none comes
/// within the same time.
pub fn arguments(host: &SshHost, canal: Option<&str>, alive_s: u64) -> Vec<OsString> {
    let options = [
        // No user is present to type.
        "BatchMode=yes".to_owned(),
        format!("ConnectTimeout={CONNECT_S}"),
        format!("ServerAliveInterval={alive_s}"),
        // TCP repeats a lost packet, so a second question has no better prospects.
        "ServerAliveCountMax=1".to_owned(),
        // ssh may use a connection that the user shares, but must not create one that outlives this
        // one.
        "ControlMaster=no".to_owned(),
        "ControlPersist=no".to_owned(),
        "ClearAllForwardings=yes".to_owned(),
        "PermitLocalCommand=no".to_owned(),
        "RemoteCommand=none".to_owned(),
        "EscapeChar=none".to_owned(),
        // canal derives the failure from the error output of ssh.
        "LogLevel=ERROR".to_owned(),
    ];
    // No terminal, no agent and no X11.
    let mut arguments: Vec<OsString> = ["-T", "-a", "-x"].map(OsString::from).into();
    for option in options {
        arguments.extend(["-o".into(), option.into()]);
    }
    if let Some(port) = host.port {
        arguments.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(user) = &host.user {
        arguments.extend(["-l".into(), user.into()]);
    }
    arguments.extend(["--".into(), host.host.clone().into()]);
    arguments.push(format!("{} bridge", shell_word::quoted(canal.unwrap_or("canal"))).into());
    arguments
}

/// The exit code of ssh for its own errors.
const SSH_ITSELF: i32 = 255;

/// The exit codes of a shell that cannot run or find the command.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// The most bytes of foreign text that a message quotes.
const QUOTED_BYTES: usize = 200;

/// Why an ssh process ended. `canal` is the program on the host, `code` the exit code (`None` if a
/// signal killed ssh), and `said` its error output.
pub fn explain(host: &SshHost, canal: Option<&str>, code: Option<i32>, said: &str) -> NodeFailure {
    let program = canal.unwrap_or("canal");
    match code {
        Some(SSH_ITSELF) => of_ssh(host, said),
        Some(NOT_FOUND) => {
            let address = NodeAddress::Ssh(host.clone());
            NodeFailure::permanent(format!("there is no `{program}` on that machine")).hint(
                format!(
                    "install canal there, or name its path in [nodes]: {{ address = \
                     \"{address}\", canal = \"/usr/local/bin/canal\" }}"
                ),
            )
        }
        Some(NOT_EXECUTABLE) => NodeFailure::permanent(format!("cannot execute `{program}` there")),
        Some(code) => of_bridge(code, said),
        None => NodeFailure::passing("ssh was killed"),
    }
}

/// An error of ssh itself.
fn of_ssh(host: &SshHost, said: &str) -> NodeFailure {
    let port = host.port.map(|port| format!("-p {port} ")).unwrap_or_default();
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    // The command that a user would type to try the connection.
    let by_hand = format!("ssh {port}{user}{}", host.host);
    let has = |words: &str| said.contains(words);
    let passing = [
        ("timed out", "ssh: connection timed out"),
        ("Connection refused", "ssh: connection refused"),
        ("No route to host", "ssh: no route to host"),
        ("Network is unreachable", "ssh: network is unreachable"),
        ("not responding", "ssh: no answer"),
    ];
    if has("Temporary failure in name resolution") {
        NodeFailure::passing("cannot look up the host name at the moment")
    } else if has("Could not resolve hostname") {
        NodeFailure::permanent("no such host").hint(format!(
            "make `{by_hand}` work: names come from DNS, /etc/hosts and ~/.ssh/config"
        ))
    } else if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        // The name of the host in `known_hosts`, quoted for a shell.
        let with_port = |port| format!("'[{}]:{port}'", host.host);
        let known_as = host.port.map_or_else(|| host.host.clone(), with_port);
        NodeFailure::permanent("its host key has changed").hint(format!(
            "if the machine was reinstalled, run `ssh-keygen -R {known_as}`, then `{by_hand}`; \
             otherwise someone may be intercepting the connection"
        ))
    } else if has("Host key verification failed") || has("host key is known") {
        NodeFailure::permanent("its host key is not known yet")
            .hint(format!("run `{by_hand}` once, and compare the key that it shows"))
    } else if has("Permission denied") {
        let asks = has("password") || has("keyboard-interactive");
        let what = match asks {
            true => "permission denied; it asks for a password, which canal cannot enter",
            false => "permission denied",
        };
        NodeFailure::permanent(what).hint(format!(
            "make `{by_hand}` work without a prompt: `ssh-copy-id` installs your key there, and \
             ssh-agent keeps its passphrase"
        ))
    } else if has("Too many authentication failures") {
        NodeFailure::permanent("permission denied: ssh offered too many keys")
            .hint("name the right key with IdentitiesOnly=yes and IdentityFile in ~/.ssh/config")
    } else if has("Bad configuration option")
        || has("Bad owner or permissions")
        || has("terminating, ")
    {
        NodeFailure::permanent(format!("ssh cannot use its configuration: {}", last(said)))
    } else if let Some((_, what)) = passing.into_iter().find(|(words, _)| has(words)) {
        NodeFailure::passing(what)
    } else {
        let last = beginning(last(said).trim_start_matches("ssh: "), QUOTED_BYTES);
        let what = if last.is_empty() { "the connection was closed" } else { last };
        NodeFailure::passing(format!("ssh: {what}"))
    }
}

/// An error of the bridge on the host.
fn of_bridge(code: i32, said: &str) -> NodeFailure {
    // A canal without nodes does not know the subcommand.
    if said.contains("unknown command `bridge`") || said.contains("unrecognized subcommand") {
        return older();
    }
    let line = said.lines().rev().find_map(|line| line.trim().strip_prefix("canal: "));
    let hint = said.lines().rev().find_map(|line| line.trim().strip_prefix("hint: "));
    let what = match (line, last(said)) {
        (Some(line), _) => beginning(line, QUOTED_BYTES).to_owned(),
        (None, "") => format!("the bridge there ended with code {code}"),
        (None, last) => format!("the other side reports: {}", beginning(last, QUOTED_BYTES)),
    };
    NodeFailure { hint: hint.map(str::to_owned), ..NodeFailure::passing(what) }
}

/// The failure of a canal that does not support nodes.
pub fn older() -> NodeFailure {
    NodeFailure::permanent("the canal there is older and does not support nodes")
        .hint("install the same version on all nodes, and run `canal daemon --replace` there")
}

/// The last line that is not empty.
fn last(said: &str) -> &str {
    said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use canal_protocol::node_address::NodeAddress;

    fn words(address: &str, canal: Option<&str>) -> Vec<String> {
        let Ok(NodeAddress::Ssh(host)) = address.parse() else { panic!("{address}") };
        arguments(&host, canal, 15).into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn the_host_stands_behind_two_dashes_and_the_program_behind_the_host() {
        let words = words("ssh:deploy@web1:2222", None);
        let at = words.iter().position(|word| word == "--").unwrap();
        assert_eq!(words[at + 1..], ["web1", "canal bridge"]);
        assert_eq!(words[at - 4..at], ["-p", "2222", "-l", "deploy"]);
        assert!(words.windows(2).any(|pair| pair == ["-o", "BatchMode=yes"]));
        assert!(words.windows(2).any(|pair| pair == ["-o", "ControlMaster=no"]));
        assert!(words.windows(2).any(|pair| pair == ["-o", "ServerAliveInterval=15"]));
    }

    #[test]
    fn the_program_is_one_word_for_the_shell_over_there() {
        for (canal, command) in [
            ("/usr/local/bin/canal", "/usr/local/bin/canal bridge"),
            ("/opt/my tools/canal", "'/opt/my tools/canal' bridge"),
            ("/a'b/canal", "'/a'\\''b/canal' bridge"),
            ("-x", "'-x' bridge"),
        ] {
            assert_eq!(words("ssh:web1", Some(canal)).last().unwrap(), command);
        }
        assert_eq!(words("ssh:[::1]", None)[words("ssh:[::1]", None).len() - 2], "::1");
    }

    fn explained(code: Option<i32>, said: &str) -> (bool, String, String) {
        let Ok(NodeAddress::Ssh(host)) = "ssh:deploy@web1:2222".parse() else { panic!() };
        let failure = explain(&host, None, code, said);
        (failure.permanent, failure.what, failure.hint.unwrap_or_default())
    }

    #[test]
    fn each_error_of_ssh_says_what_to_do_and_whether_waiting_helps() {
        for (said, permanent, what, hint) in [
            (
                "ssh: Could not resolve hostname web1: Name or service not known\r\n",
                true,
                "no such host",
                "make `ssh -p 2222 deploy@web1` work",
            ),
            (
                "ssh: Could not resolve hostname web1: Temporary failure in name resolution",
                false,
                "cannot look up the host name at the moment",
                "",
            ),
            (
                "deploy@web1: Permission denied (publickey).\r\n",
                true,
                "permission denied",
                "`ssh-copy-id` installs your key there",
            ),
            (
                "deploy@web1: Permission denied (publickey,password,keyboard-interactive).",
                true,
                "permission denied; it asks for a password, which canal cannot enter",
                "without a prompt",
            ),
            (
                "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n…\nHost key \
                 verification failed.\r\n",
                true,
                "its host key has changed",
                "`ssh-keygen -R '[web1]:2222'`",
            ),
            ("Host key verification failed.", true, "its host key is not known yet", "once"),
            (
                "ssh: connect to host web1 port 22: Connection timed out",
                false,
                "ssh: connection timed out",
                "",
            ),
            (
                "ssh: connect to host web1 port 22: Connection refused",
                false,
                "ssh: connection refused",
                "",
            ),
            ("Timeout, server web1 not responding.", false, "ssh: no answer", ""),
            (
                "kex_exchange_identification: read: Connection reset by peer",
                false,
                "ssh: kex_exchange_identification: read",
                "",
            ),
            ("", false, "ssh: the connection was closed", ""),
            (
                "/home/u/.ssh/config: line 3: Bad configuration option: nonsense\n/home/u/.ssh/config: \
                 terminating, 1 bad configuration options",
                true,
                "ssh cannot use its configuration: ",
                "",
            ),
        ] {
            let (found_permanent, found, found_hint) = explained(Some(255), said);
            assert_eq!(found_permanent, permanent, "{said}");
            assert!(found.starts_with(what), "{said}: {found}");
            assert!(found_hint.contains(hint), "{said}: {found_hint}");
        }
    }

    #[test]
    fn a_missing_or_older_canal_is_told_from_an_error_of_the_daemon() {
        let (permanent, what, hint) = explained(Some(127), "bash: canal: command not found");
        assert!(permanent && what == "there is no `canal` on that machine", "{what}");
        assert!(hint.contains("canal = \"/usr/local/bin/canal\""), "{hint}");
        let (permanent, what, _) =
            explained(Some(125), "canal: unknown command `bridge`\nhint: see `canal help`");
        assert!(
            permanent && what == "the canal there is older and does not support nodes",
            "{what}"
        );
        let said = "canal: no daemon is running at /run/canal/canal.sock\nhint: start it\n";
        let (permanent, what, hint) = explained(Some(125), said);
        assert!(!permanent);
        assert_eq!(
            (what.as_str(), hint.as_str()),
            ("no daemon is running at /run/canal/canal.sock", "start it")
        );
        let (_, what, _) = explained(Some(1), "This account is not available.");
        assert_eq!(what, "the other side reports: This account is not available.");
        assert_eq!(explained(None, "").1, "ssh was killed");
    }
}
