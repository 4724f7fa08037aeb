//! Text in an object store: here a server on the loopback device that speaks the protocol of S3.

use std::process::Command;

use brigade_testing::{Fault, ObjectServer};

use crate::place::Place;
use crate::runs::{files, same_end};

/// The place, and a server with its text in the bucket `data`.
fn place() -> (Place, ObjectServer) {
    let (place, server) = (Place::new(), ObjectServer::start().unwrap());
    for (name, content) in files(&place.path("text")) {
        server.put(&format!("data/text/{name}"), content);
    }
    server.put("data/text/.hidden.rs", "no");
    server.put("data/text-of-others/a.rs", "no");
    (place, server)
}

fn train(place: &Place, server: &ObjectServer, line: &str) -> Command {
    let mut command = place.brigade(&format!("train --config tiny.toml --nproc-per-node 2 {line}"));
    command.envs(server.s3_environment());
    command
}

#[test]
fn a_run_on_streamed_text_has_the_weights_of_one_on_files_and_no_secret_in_its_folder() {
    let (place, server) = place();
    place.succeed(&mut place.train("--nproc-per-node 2 --out local"));
    // Every fourth request is refused once.
    server.plan(|request| if request.number % 4 == 3 { Fault::Status(503) } else { Fault::None });
    let line = "--data s3://data/text --checkpoint-every 4 --set checkpoint.dir=s3://data/run --out streamed";
    let done = place.succeed(&mut train(&place, &server, line));
    assert!(done.err.contains("s3://data/text: 24 files"), "{}", done.err);
    same_end(&place, "streamed", "local");
    place.succeed(&mut train(&place, &server, "--data s3://data/te*/*.rs --out matched"));
    let url = "--set data.source=[{path='s3://data/text',validation='s3://data/text/01.rs'}] --out validated";
    place.succeed(&mut train(&place, &server, url));
    place.succeed(&mut place.brigade("evaluate --model local --data text"));

    let secret = "a-secret-that-is-shown-nowhere";
    let shown = |text: &[u8]| {
        String::from_utf8_lossy(text).contains(secret)
            || String::from_utf8_lossy(text).contains("AKIDTESTING")
    };
    assert!(!shown(done.err.as_bytes()) && !shown(done.out.as_bytes()));
    for folder in ["streamed", "cache"] {
        for (name, content) in files(&place.path(folder)) {
            assert!(!shown(&content), "{folder}/{name}");
        }
    }
    for name in server.names() {
        assert!(!shown(&server.get(&name).unwrap()), "{name}");
    }
}

#[test]
fn urls_that_cannot_be_read_are_one_message() {
    let (place, server) = place();
    let refused = |line: &str| {
        let done = place.run(&mut train(&place, &server, line));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(!done.err.contains("hunter2"), "{line}: {}", done.err);
        done.err
    };
    for (line, said) in [
        (
            "--data https://me:hunter2@host/a.txt",
            "data.sources (--data) https://host/a.txt is not possible: it has a user or a password",
        ),
        (
            "--data s3://data/a.txt?X-Amz-Signature=hunter2",
            "data.sources (--data) s3://data/a.txt?… is not possible: it has a query",
        ),
        (
            "--data ftp://host/a.txt",
            "data.sources (--data) ftp://host/a.txt is not possible: the scheme \"ftp\" is unknown",
        ),
        ("--data s3://data/none", "data: s3://data/none does not exist"),
        ("--data s3://data/text/0[", "is not a valid glob"),
        (
            "--data text --set data.timeout_seconds=0",
            "data.timeout_seconds = 0 is not possible: it must be above 0",
        ),
    ] {
        let err = refused(line);
        assert!(err.contains(said), "{line}: {err}");
    }
    assert!(!place.path("runs").exists(), "no run has begun");
    server.plan(|_| Fault::Status(503));
    let done = place.run(&mut train(&place, &server, "--data s3://data/text --set data.timeout_seconds=2"));
    assert!(done.code != Some(0) && done.err.lines().count() == 1, "{}", done.err);
    for said in ["s3://data/text", "503", "data.timeout_seconds"] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
}
