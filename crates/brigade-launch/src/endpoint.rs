//! A host and a port.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use crate::parse::port;

/// Default port of `--master-port` and `MASTER_PORT`, as torchrun's.
pub const DEFAULT_MASTER_PORT: u16 = 29500;
/// Default port of `--rdzv-endpoint`, as torchrun's.
pub const DEFAULT_RDZV_PORT: u16 = 29400;

/// Where rank 0 waits for the others. Written `host:port`, with an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A host name or an address (IPv6 without brackets).
    pub host: String,
    /// A port, never 0.
    pub port: u16,
}

impl Endpoint {
    /// Checks a host name and joins it with a port.
    pub fn new(host: &str, port: u16) -> Result<Self, String> {
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let v6 = bare.parse::<Ipv6Addr>().is_ok();
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !v6 && (bare.is_empty() || bare.len() > 253 || !bare.chars().all(name)) {
            return Err("a host is a name or address of at most 253 letters, digits, '.', '-' and '_'".into());
        }
        if port == 0 {
            return Err("a port is a number from 1 to 65535".into());
        }
        Ok(Self { host: bare.into(), port })
    }

    /// Reads `host:port`, or `host` alone with the given port.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, String> {
        let bracketed_end = text.starts_with('[').then(|| text.find(']')).flatten();
        let (host, digits) = match bracketed_end {
            Some(end) => match &text[end + 1..] {
                "" => (&text[..=end], None),
                rest => (&text[..=end], Some(rest.strip_prefix(':').ok_or("use [address]:port")?)),
            },
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = digits.map_or(Ok(default_port), port)?;
        Self::new(host, port)
    }

    /// True for the machine itself: `localhost`, `127.*` and `::1`.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// Reads `host:port`; the port defaults to [`DEFAULT_RDZV_PORT`].
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, DEFAULT_RDZV_PORT)
    }
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_all_forms() {
        for (text, shown) in [
            ("node1:2222", "node1:2222"),
            ("node1", "node1:29400"),
            ("[::1]:80", "[::1]:80"),
            ("[fe80::2]", "[fe80::2]:29400"),
            ("fe80::2", "[fe80::2]:29400"),
            ("10.0.0.1:65535", "10.0.0.1:65535"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in
            ["", ":80", "a:", "a:0", "a:65536", "a:+80", "a:b", "a b:1", "[::1", "[::1]80", "a/b", "[x]:1:2"]
        {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        assert!(Endpoint::new(&"x".repeat(254), 1).is_err());
    }
}
