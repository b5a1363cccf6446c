//! One HTTP request, and its answer. Only `GET /metrics` is served.

use std::net::IpAddr;

use crate::metrics::open_metrics::CONTENT_TYPE;

/// The maximum length of a request in bytes: its first line and its headers.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;

/// The status of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    HeadTooLarge,
    Unavailable,
    VersionNotSupported,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }

    /// The explanation for a person who sent a wrong request.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::BadRequest => "this is not an HTTP 1.1 request\n",
            Self::Forbidden => "the Host of the request is not a loopback address\n",
            Self::NotFound => "the metrics are at /metrics\n",
            Self::MethodNotAllowed => "read the metrics with GET\n",
            Self::HeadTooLarge => "the request is longer than 8 KiB\n",
            Self::Unavailable => "the daemon is busy\n",
            Self::VersionNotSupported => "this is HTTP 1.1\n",
        }
    }
}

/// The kind of socket on which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// A page in a browser can make the browser connect to a loopback port under a name that the
    /// page controls, so the name is checked.
    Tcp,
    Unix,
}

/// Parses the part of a request that has arrived; `None` if more has to arrive.
pub(crate) fn read(bytes: &[u8], via: Via) -> Option<Status> {
    let end = head_end(bytes);
    if end.unwrap_or(bytes.len()) > HEAD_BYTES_MAX {
        return Some(Status::HeadTooLarge);
    }
    let head = bytes.get(..end?)?;
    let Ok(head) = std::str::from_utf8(head) else { return Some(Status::BadRequest) };
    let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    Some(first_line(first).and_then(|()| headers(lines, via)).err().unwrap_or(Status::Ok))
}

/// The length of the first line and the headers, without the empty line after them.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut begin = 0;
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        if matches!(&bytes[begin..at], b"" | b"\r") && begin > 0 {
            return Some(begin - 1);
        }
        begin = at + 1;
    }
    None
}

fn first_line(line: &str) -> Result<(), Status> {
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Err(Status::BadRequest) };
    match version {
        "HTTP/1.1" | "HTTP/1.0" => {}
        other if other.starts_with("HTTP/") => return Err(Status::VersionNotSupported),
        _ => return Err(Status::BadRequest),
    }
    if method != "GET" {
        return Err(Status::MethodNotAllowed);
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if path == "/metrics" { Ok(()) } else { Err(Status::NotFound) }
}

fn headers<'a>(lines: impl Iterator<Item = &'a str>, via: Via) -> Result<(), Status> {
    let mut host = None;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Status::BadRequest)?;
        if name.is_empty() || name.contains(|c: char| c.is_ascii_whitespace()) {
            return Err(Status::BadRequest);
        }
        if name.eq_ignore_ascii_case("host") && host.replace(value.trim()).is_some() {
            return Err(Status::BadRequest);
        }
    }
    match (via, host) {
        (Via::Unix, _) => Ok(()),
        (Via::Tcp, None) => Err(Status::BadRequest),
        (Via::Tcp, Some(host)) if is_loopback(host) => Ok(()),
        (Via::Tcp, Some(_)) => Err(Status::Forbidden),
    }
}

/// Whether a `Host` names this machine, with any port: a tunnel may have another port.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, rest)) => (name, rest),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    let is_local = name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    has_port && is_local
}

/// The part of an answer before its body.
pub(crate) fn answer_head(status: Status, body_bytes: usize) -> String {
    let kind = match status {
        Status::Ok => CONTENT_TYPE,
        _ => "text/plain; charset=utf-8",
    };
    let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {body_bytes}\r\n{allow}\
         Connection: close\r\n\r\n",
        status.line()
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(text: &str) -> Option<Status> {
        read(text.as_bytes(), Via::Tcp)
    }

    #[test]
    fn a_whole_request_is_served_and_a_part_of_it_is_not() {
        let whole = "GET /metrics HTTP/1.1\r\nHost: localhost:9632\r\nAccept: */*\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(tcp(&whole[..end]), None, "{end}");
        }
        assert_eq!(tcp(whole), Some(Status::Ok));
        assert_eq!(tcp(&whole.replace("\r\n", "\n")), Some(Status::Ok));
        assert_eq!(tcp(&format!("{whole}GET /metrics")), Some(Status::Ok), "one per connection");
        let query = "GET /metrics?name=x HTTP/1.0\r\nhost:[::1]\r\n\r\n";
        assert_eq!(tcp(query), Some(Status::Ok));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (first, status) in [
            ("POST /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("get /metrics HTTP/1.1", Status::MethodNotAllowed),
            ("GET / HTTP/1.1", Status::NotFound),
            ("GET /metrics/ HTTP/1.1", Status::NotFound),
            ("GET /metrics/../metrics HTTP/1.1", Status::NotFound),
            ("GET http://localhost/metrics HTTP/1.1", Status::NotFound),
            ("GET /metrics HTTP/2", Status::VersionNotSupported),
            ("GET /metrics", Status::BadRequest),
            ("GET  /metrics HTTP/1.1", Status::BadRequest),
            ("", Status::BadRequest),
            ("\u{16}\u{3}\u{1}", Status::BadRequest),
        ] {
            let request = format!("{first}\r\nHost: localhost\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{first:?}");
        }
        for (header, status) in [
            ("Host: evil.example", Status::Forbidden),
            ("Host: localhost.evil.example", Status::Forbidden),
            ("Host: 127.0.0.1.evil.example", Status::Forbidden),
            ("Host: 192.168.0.1", Status::Forbidden),
            ("Host: ", Status::Forbidden),
            ("Host: localhost:x", Status::Forbidden),
            ("Host: localhost:", Status::Forbidden),
            ("Accept: */*", Status::BadRequest),
            ("Host: localhost\r\nHost: localhost", Status::BadRequest),
            ("Host: localhost\r\n folded", Status::BadRequest),
            ("Host : localhost", Status::BadRequest),
            ("localhost", Status::BadRequest),
            ("Host: 127.0.0.1", Status::Ok),
            ("Host: 127.1.2.3:80", Status::Ok),
            ("HOST:\tLocalhost", Status::Ok),
            ("Host: [::1]:9632", Status::Ok),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(tcp(&request), Some(status), "{header:?}");
        }
        assert_eq!(
            read(b"GET /metrics HTTP/1.1\r\nA: \xff\r\n\r\n", Via::Tcp),
            Some(Status::BadRequest)
        );
        let nameless = b"GET /metrics HTTP/1.0\r\n\r\n";
        assert_eq!(read(nameless, Via::Unix), Some(Status::Ok));
    }

    #[test]
    fn a_request_is_bounded() {
        let line = format!("A: {}\r\n", "x".repeat(1_000));
        let request = format!("GET /metrics HTTP/1.1\r\n{}", line.repeat(20));
        assert_eq!(tcp(&request[..HEAD_BYTES_MAX]), None);
        assert_eq!(tcp(&request), Some(Status::HeadTooLarge));
        assert_eq!(tcp(&"x".repeat(HEAD_BYTES_MAX + 1)), Some(Status::HeadTooLarge));
    }

    proptest! {
        /// Any complete input gets an answer, however it was split.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let whole = [&bytes[..], b"\r\n\r\n"].concat();
            prop_assert!(read(&whole, Via::Tcp).is_some_and(|status| status != Status::Ok));
            for end in 0..bytes.len() {
                let _ = read(&bytes[..end], Via::Unix);
            }
        }
    }
}
