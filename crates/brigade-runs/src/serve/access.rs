//! Who may see the pages.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Who may see the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Programs on this machine, which ask for it by a name of the loopback device. Pages of other sites that a browser shows cannot read
    /// it, even where their names lead here.
    Loopback,
    /// Whoever gives this token, as `?token=…` or `Authorization: Bearer …`.
    Token(String),
}

impl Access {
    fn allows(&self, request: &Request) -> bool {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        match self {
            Self::Loopback => header(header::HOST).is_some_and(is_loopback),
            Self::Token(token) => {
                let query = request.uri().query().unwrap_or_default();
                let in_query = query.split('&').find_map(|part| part.strip_prefix("token="));
                let in_header = header(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
                let given = in_query.map(decoded).or_else(|| Some(in_header?.as_bytes().to_vec()));
                given.is_some_and(|given| is_same(&given, token.as_bytes()))
            }
        }
    }
}

/// Whether a host, with or without a port, is this machine by a name that no other site can have.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The bytes of a part of a query, in which `%` and two hexadecimal digits stand for one.
fn decoded(part: &str) -> Vec<u8> {
    let bytes = part.as_bytes();
    let (mut all, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let code = part.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        all.push(code.unwrap_or(*byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    all
}

/// Compares in a time that does not tell where two texts differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

pub async fn check(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    if access.allows(&request) {
        let mut response = next.run(request).await;
        let no_store = header::HeaderValue::from_static("no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, no_store);
        return response;
    }
    let what = match *access {
        Access::Loopback => "this page is only for this machine",
        Access::Token(_) => "give the token: ?token=…",
    };
    (StatusCode::FORBIDDEN, what).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(address: &str, header: (&str, &str)) -> Request {
        Request::builder().uri(address).header(header.0, header.1).body(Body::empty()).unwrap()
    }

    #[test]
    fn only_this_machine_or_a_token_is_let_in() {
        for host in ["localhost:6060", "127.0.0.1", "127.0.0.1:80", "[::1]:6060"] {
            assert!(Access::Loopback.allows(&request("/", ("host", host))), "{host}");
        }
        for host in ["localhost.evil.example", "evil.example:6060", "10.0.0.1", "127.0.0.1.evil.example:80"] {
            assert!(!Access::Loopback.allows(&request("/", ("host", host))), "{host}");
        }
        let token = Access::Token("secret".into());
        assert!(token.allows(&request("/?a=b&token=secret", ("host", "x"))));
        assert!(token.allows(&request("/", ("authorization", "Bearer secret"))));
        let signs = Access::Token("a&b%+".into());
        assert!(signs.allows(&request("/?token=a%26b%25+", ("host", "x"))));
        assert!(signs.allows(&request("/", ("authorization", "Bearer a&b%+"))));
        for (address, header) in [
            ("/", ("host", "localhost")),
            ("/?token=secre", ("host", "x")),
            ("/", ("authorization", "secret")),
        ] {
            assert!(!token.allows(&request(address, header)), "{address} {header:?}");
        }
    }
}
