//! Objects in servers of others, with a faulty proxy before them: every byte comes, or one message says why not, in time.
//!
//! `cargo xtask test-stores` runs these.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::io::Read;
use std::time::{Duration, Instant};

use brigade_store::{Location, Object, Result, find, find_below, read_at};
use brigade_testing::{ABSENT, BUCKET, FORBIDDEN, Fault, Protocol, StoreServer};

/// Longer than any test waits for a server that answers again.
const PATIENT: Duration = Duration::from_secs(60);

/// Nine blocks and a bit.
fn content() -> Vec<u8> {
    (0..(9 << 20) + 12_345_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

fn servers() -> [StoreServer; 2] {
    let content = content();
    Protocol::ALL.map(|protocol| {
        let small: &[u8] = b"small";
        let objects =
            [(BUCKET, "data/a.bin", &*content), (BUCKET, "data/b.bin", small), (FORBIDDEN, "a.bin", small)];
        let server = StoreServer::start(protocol, &objects);
        // SAFETY: this test is the only one of its process, and no client is there yet.
        unsafe { server.enter() };
        server
    })
}

fn find_at(server: &StoreServer, bucket: &str, name: &str, deadline: Duration) -> Result<Vec<Object>> {
    find(&Location::parse(&server.url(bucket, name))?, deadline)
}

fn found(server: &StoreServer, deadline: Duration) -> Object {
    find_at(server, BUCKET, "data/a.bin", deadline).unwrap().remove(0)
}

fn read(object: &Object) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = object.reader(0, u64::MAX).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| error.to_string())
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn every_byte_of_a_real_store_comes_through_refusals_cuts_and_slowness() {
    for server in servers() {
        for fault in [
            Fault::None,
            Fault::Status(503),
            Fault::Status(429),
            Fault::Cut(0),
            Fault::Cut(300_000),
            Fault::Slow(1),
            Fault::LostRequest,
            Fault::LostAnswer,
        ] {
            let object = found(&server, PATIENT);
            server.proxy().plan(move |request| if request.number % 2 == 0 { Fault::None } else { fault });
            assert!(read(&object).unwrap() == content(), "{fault:?}");
            server.proxy().plan(|_| Fault::None);
        }
    }
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_real_store_that_falls_silent_is_asked_again() {
    for server in servers() {
        let object = found(&server, Duration::from_secs(4));
        server.proxy().plan(|request| match request.number % 2 {
            1 => Fault::Silent(100_000),
            _ => Fault::None,
        });
        assert!(read(&object).unwrap() == content());
    }
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_real_store_is_listed_and_read_in_ranges_that_are_asked_for_ahead() {
    for server in servers() {
        // Also a listing that is cut, or lost, is asked for again.
        for fault in [Fault::None, Fault::Status(503), Fault::Cut(100), Fault::LostAnswer] {
            server.proxy().plan(move |request| if request.number % 2 == 0 { fault } else { Fault::None });
            let all = find_at(&server, BUCKET, "data/", PATIENT).unwrap();
            let names: Vec<_> = all.iter().map(|object| object.path().to_string()).collect();
            assert_eq!(names, ["data/a.bin", "data/b.bin"], "{fault:?}");
            server.proxy().plan(|_| Fault::None);
            // What a list says of an object is what the object says.
            let mut bytes = Vec::new();
            all[1].reader(0, u64::MAX).read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"small");
            assert_eq!(all[0], found(&server, PATIENT));
        }
        let below =
            find_below(&Location::parse(&server.url(BUCKET, "data/*.bin")).unwrap(), 1, PATIENT).unwrap();
        assert_eq!(below.len(), 2);
        assert!(find_at(&server, BUCKET, "none", PATIENT).unwrap().is_empty());

        let content = content();
        let mut reader = below[0].reader(0, u64::MAX);
        for range in [0..1, 1_048_570..1_048_580, 0..content.len() as u64, 9 << 20..(9 << 20) + 1, 5..5] {
            let bytes = read_at(&mut reader, range.clone()).unwrap();
            assert!(bytes == content[range.start as usize..range.end as usize], "{range:?}");
        }
        let before = server.proxy().sent();
        below[0].reader(0, 4 << 20).read_exact(&mut vec![0; 4 << 20]).unwrap();
        let sent = server.proxy().sent() - before;
        assert!((4 << 20..=5 << 20).contains(&sent), "{sent}");
    }
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn an_object_of_a_real_store_that_changes_is_noticed() {
    for server in servers() {
        let object = found(&server, PATIENT);
        let mut reader = object.reader(0, 100);
        reader.read_exact(&mut [0; 100]).unwrap();
        let mut other = content();
        other[2 << 20] ^= 1;
        server.put(BUCKET, "data/a.bin", &other);
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("a.bin changed while it was being read"), "{error}");
    }
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_real_store_that_refuses_is_one_message_without_secrets() {
    let [s3, gcs] = servers();
    let check = |server: &StoreServer, bucket: &str, name: &str, wanted: &[&str]| {
        let begin = Instant::now();
        let error = find_at(server, bucket, name, PATIENT).unwrap_err().to_string();
        for said in wanted.iter().chain([&&*server.url(bucket, name.trim_end_matches('/'))]) {
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(!error.contains(['\n', '<']), "no page of the server's: {error}");
        assert!(server.secrets().iter().all(|secret| !error.contains(secret)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10), "what cannot help is not tried again");
    };
    check(&s3, FORBIDDEN, "a.bin", &["403", "do not allow this"]);
    check(&s3, FORBIDDEN, "a/", &["403", "AccessDenied", "do not allow this"]);
    check(&s3, ABSENT, "a.bin", &["NoSuchBucket", "the bucket does not exist"]);
    check(&s3, ABSENT, "a/", &["NoSuchBucket", "the bucket does not exist"]);
    gcs.proxy().plan(|_| Fault::Status(403));
    check(&gcs, BUCKET, "a.bin", &["403", "do not allow this"]);

    // A key that the store does not know, and one of another secret: the store repeats the first, and what was signed.
    let environment = s3.environment();
    let [id, secret] = s3.secrets();
    for (name, wrong) in
        [("AWS_SECRET_ACCESS_KEY", "a-wrong-secret"), ("AWS_ACCESS_KEY_ID", "AKIAWRONGWRONGWRONG1")]
    {
        // SAFETY: as above; the clients of this thread are gone.
        unsafe { std::env::set_var(name, wrong) };
        for bucket in [BUCKET, ABSENT] {
            let error = find_at(&s3, bucket, "data/", PATIENT).unwrap_err().to_string();
            assert!(error.contains("403") && !error.contains('<'), "{error}");
            assert!([id, secret, wrong].iter().all(|secret| !error.contains(secret)), "{error}");
        }
        let right = environment.iter().find(|(key, _)| *key == name).unwrap();
        // SAFETY: as above.
        unsafe { std::env::set_var(name, &right.1) };
    }

    // Without any, they are looked for on the machines of a cloud: here where nobody listens.
    // SAFETY: as above.
    unsafe {
        std::env::remove_var("AWS_ACCESS_KEY_ID");
        std::env::remove_var("AWS_SECRET_ACCESS_KEY");
        std::env::set_var("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    }
    let begin = Instant::now();
    let error = find_at(&s3, BUCKET, "data/", Duration::from_secs(2)).unwrap_err().to_string();
    assert!(error.contains("find credentials for"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}
