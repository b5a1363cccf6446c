//! Every user may read the figures of a shared daemon, and they reveal no user's commands.

use crate::namespace::privately;
use crate::world::World;
use crate::world::process::installed_or_skip;

#[test]
fn each_user_reads_the_figures_and_nothing_of_what_others_run() {
    if !installed_or_skip("perl", "reading metrics from a socket") {
        return;
    }
    let world = World::new();
    let script = r#"
        mkdir -m 755 /run/canal
        mount -t tmpfs -o mode=755 tmpfs /etc
        printf 'root:x:0:0::/root:/bin/sh\n' >/etc/passwd
        mkdir /etc/canal
        printf '[metrics]\nlisten = "/run/canal/metrics.sock"\n' >/etc/canal/canal.toml
        canal daemon 2>/tmp/log &
        until_true test -S /run/canal/metrics.sock
        until_true canal status --no-start >/dev/null 2>&1
        one() { setpriv --reuid 20001 --regid 20001 --clear-groups "$@"; }
        two() { setpriv --reuid 20002 --regid 20002 --clear-groups "$@"; }
        read_socket='my $s = IO::Socket::UNIX->new(Peer => "/run/canal/metrics.sock") or die $!;
            syswrite $s, "GET /metrics HTTP/1.0\r\n\r\n"; print while <$s>'
        one canal run -k of-one --note secret-note -- sh -c ': secret of one'
        two canal metrics
        echo ====
        two perl -MIO::Socket::UNIX -e "$read_socket"
    "#;
    let Some(ended) = privately(&world, script) else { return };
    let (printed, offered) = ended.stdout.split_once("====\n").unwrap();
    assert!(offered.starts_with("HTTP/1.1 200 OK\r\n"), "{ended:?}");
    for text in [printed, offered] {
        assert!(text.contains("canal_grants_total{key=\"of-one\"} 1\n"), "{ended:?}");
        assert!(text.ends_with("# EOF\n"), "{ended:?}");
        for private in ["secret", "uid", "sh -c"] {
            assert!(!text.contains(private), "{private}: {ended:?}");
        }
    }
}
