//! A user of `moto`, and what it may do.

use super::{ABSENT, BUCKET, READ_ONLY, succeeded};
use crate::object_server::Upstream;

/// What identifies a user.
pub(super) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
}

/// Without it, a request is anonymous, which may do nothing with objects that are there.
pub(super) const UNCHECKED: (&str, &str) = (
    "authorization",
    "AWS4-HMAC-SHA256 Credential=none/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0",
);

/// Makes a user who may do everything in one bucket, and read another one, before the server checks anything.
pub(super) fn make_user(upstream: &Upstream) -> Keys {
    let buckets = |names: &[&str]| {
        let names = names.iter().map(|name| format!(r#""arn:aws:s3:::{name}","arn:aws:s3:::{name}/*""#));
        names.collect::<Vec<_>>().join(",")
    };
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":"s3:*","Resource":[{}]}},{{"Effect":"Allow","Action":["s3:GetObject","s3:ListBucket"],"Resource":[{}]}}]}}"#,
        buckets(&[BUCKET, ABSENT]),
        buckets(&[READ_ONLY])
    );
    call(upstream, &[("Action", "CreateUser"), ("UserName", "tests")]);
    let document = [("PolicyName", "tests"), ("PolicyDocument", policy.as_str())];
    call(upstream, &[&[("Action", "PutUserPolicy"), ("UserName", "tests")], &document[..]].concat());
    let made = call(upstream, &[("Action", "CreateAccessKey"), ("UserName", "tests")]);
    let field = |name: &str| {
        let rest = made.split_once(&format!("<{name}>")).map(|(_, rest)| rest);
        let value = rest.and_then(|rest| rest.split('<').next());
        value.unwrap_or_else(|| panic!("no {name}: {made}")).to_owned()
    };
    let keys = Keys { id: field("AccessKeyId"), secret: field("SecretAccessKey") };
    check(upstream, true);
    keys
}

/// Does something for which no signature is checked.
pub(super) fn unchecked<T>(upstream: &Upstream, work: impl FnOnce() -> T) -> T {
    check(upstream, false);
    let result = work();
    check(upstream, true);
    result
}

/// Whether signatures and rights are checked from now on: after how many requests.
fn check(upstream: &Upstream, is_on: bool) {
    let after: &[u8] = if is_on { b"0" } else { b"inf" };
    succeeded("the server's checks", upstream.ask("POST", "/moto-api/reset-auth", &[], after));
}

/// An action of the service for users, which is told by the name in the signature.
fn call(upstream: &Upstream, parameters: &[(&str, &str)]) -> String {
    let encoded = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    let parameters = parameters.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    let body = parameters.chain(["Version=2010-05-08".to_owned()]).collect::<Vec<_>>().join("&");
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=none/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0",
        ),
    ];
    let answer = succeeded("making a user", upstream.ask("POST", "/", &headers, body.as_bytes()));
    String::from_utf8_lossy(&answer.content).into_owned()
}
