//! Builds the command line of ssh.
//!
//! Keys, jump hosts, names and known hosts come from the user's configuration. The options here
//! disable everything that would prompt the user, open another channel or outlive the connection.

use std::ffi::OsString;

use canal_protocol::node_address::SshHost;
use canal_text::shell_word;

/// How long ssh may take to connect, in seconds.
const CONNECT_S: u32 = 10;

/// The arguments of ssh for a bridge at a host. `canal` is the program on that host. After
/// `alive_s` seconds without a byte, ssh asks the other side for one, and gives up if none comes
/// within the same time.
#[must_use]
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
}
