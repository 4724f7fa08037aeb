//! Where nothing in the environment has credentials. The only test of its process, as it changes the environment.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::time::{Duration, Instant};

use brigade_store::{Client, Location, Scheme, are_credentials_set};
use brigade_testing::ObjectServer;

const DEADLINE: Duration = Duration::from_secs(300);

#[test]
fn their_absence_is_one_message_long_before_the_deadline() {
    let home = tempfile::tempdir().unwrap();
    let set = |name: &str, value: &str| {
        // SAFETY: no other thread of this process reads or changes the environment now.
        unsafe { std::env::set_var(name, value) };
    };
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["AWS_", "GOOGLE_", "GCE_"].iter().any(|beginning| name.starts_with(beginning)) {
            // SAFETY: as above.
            unsafe { std::env::remove_var(name) };
        }
    }
    set("HOME", home.path().to_str().unwrap());
    // Nobody listens there.
    for name in ["GCE_METADATA_HOST", "GCE_METADATA_IP"] {
        set(name, "127.0.0.1:1");
    }
    set("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    let open = |url: &str| Client::open(&Location::parse(url).unwrap(), DEADLINE);
    assert!(!are_credentials_set(Scheme::Gs) && !are_credentials_set(Scheme::S3));
    for (url, said) in [
        ("gs://bucket/a", "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT in the environment"),
        ("s3://bucket/a", "AWS_ACCESS_KEY_ID"),
    ] {
        let begin = Instant::now();
        let error = open(url).unwrap_err().to_string();
        assert!(begin.elapsed() < DEADLINE / 10, "{url}: {:?}", begin.elapsed());
        let begins = format!("cannot find credentials for {}: there is no ", url.trim_end_matches("/a"));
        assert!(error.starts_with(&begins) && error.contains(said), "{error}");
    }

    let server = ObjectServer::start().unwrap();
    let token = r#"{ "access_token": "hidden", "expires_in": 3600, "token_type": "Bearer" }"#;
    server.put("computeMetadata/v1/instance/service-accounts/default/token", token);
    let address = server.url("").trim_end_matches('/').replace("http://", "");
    set("GCE_METADATA_HOST", &address);
    open("gs://bucket/a").unwrap();
    assert_eq!(server.requests(), 1);
    // It has answered already.
    open("gs://bucket/a").unwrap();
    assert_eq!(server.requests(), 1);
    set("GOOGLE_APPLICATION_CREDENTIALS", "/a/file");
    assert!(are_credentials_set(Scheme::Gs));
}
