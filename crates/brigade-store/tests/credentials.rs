//! Where nothing in the environment has credentials. The only test of its process, as it changes the environment.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_store::{Client, Location, Scheme, are_credentials_set, find_below};
use brigade_testing::{Fault, ObjectServer};

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

    let aws = home.path().join(".aws");
    std::fs::create_dir(&aws).unwrap();
    let keys =
        "[team]\naws_access_key_id = TEAMKEY\naws_secret_access_key = hidden\naws_session_token = hidden\n";
    std::fs::write(aws.join("credentials"), keys).unwrap();
    std::fs::write(aws.join("config"), "[default]\nregion = eu-west-1\n[profile team]\nregion = eu-west-3\n")
        .unwrap();
    assert!(!are_credentials_set(Scheme::S3), "the default profile has none");
    let error = open("s3://bucket/a").unwrap_err().to_string();
    assert!(error.contains("no aws_access_key_id of the profile default (AWS_PROFILE)"), "{error}");
    set("AWS_PROFILE", "team");
    assert!(are_credentials_set(Scheme::S3));
    open("s3://bucket/a").unwrap();
    set("AWS_PROFILE", "other");
    let other = home.path().join("keys");
    std::fs::write(&other, keys.replace("team", "other")).unwrap();
    assert!(!are_credentials_set(Scheme::S3));
    set("AWS_SHARED_CREDENTIALS_FILE", other.to_str().unwrap());
    assert!(are_credentials_set(Scheme::S3));

    set("AWS_PROFILE", "team");
    set("AWS_SHARED_CREDENTIALS_FILE", "");
    let server = ObjectServer::start().unwrap();
    let signed = Arc::new(Mutex::new(String::new()));
    let seen = signed.clone();
    server.plan(move |request| {
        *seen.lock().unwrap() = request.header("authorization").unwrap_or_default().to_owned();
        Fault::None
    });
    set("AWS_ENDPOINT", server.url("").trim_end_matches('/'));
    set("AWS_ALLOW_HTTP", "true");
    find_below(&Location::parse("s3://bucket/a").unwrap(), 1, DEADLINE).unwrap();
    let by_file = signed.lock().unwrap().clone();
    assert!(by_file.contains("Credential=TEAMKEY/") && by_file.contains("/eu-west-3/s3/"), "{by_file}");
    // The environment comes first.
    for (name, value) in
        [("AWS_ACCESS_KEY_ID", "OWN"), ("AWS_SECRET_ACCESS_KEY", "hidden"), ("AWS_REGION", "us-west-2")]
    {
        set(name, value);
    }
    find_below(&Location::parse("s3://bucket/a").unwrap(), 1, DEADLINE).unwrap();
    let by_variables = signed.lock().unwrap().clone();
    assert!(
        by_variables.contains("Credential=OWN/") && by_variables.contains("/us-west-2/s3/"),
        "{by_variables}"
    );

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
