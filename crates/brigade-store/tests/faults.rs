//! Objects that are read from a faulty server: every byte comes, or one message says why not, in time.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::io::Read;
use std::time::{Duration, Instant};

use brigade_store::{Error, Location, Object, Result, find, read_at};
use brigade_testing::{Fault, ObjectServer};

/// Longer than any test waits for a server that answers again.
const PATIENT: Duration = Duration::from_secs(60);

/// Three blocks and a bit.
fn content() -> Vec<u8> {
    (0..(3 << 20) + 12_345_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

fn server() -> ObjectServer {
    let server = ObjectServer::start().unwrap();
    server.put("data/a.bin", content());
    server
}

fn found(server: &ObjectServer, deadline: Duration) -> Result<Object> {
    let mut found = find(&Location::parse(&server.url("data/a.bin"))?, deadline)?;
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

fn read(object: &Object) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = object.reader(0, u64::MAX).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| error.to_string())
}

#[test]
fn every_byte_comes_through_refusals_cuts_and_slowness() {
    for fault in [
        Fault::Status(503),
        Fault::Status(500),
        Fault::Status(429),
        Fault::Cut(0),
        Fault::Cut(300_000),
        Fault::Slow(1),
    ] {
        let server = server();
        let object = found(&server, PATIENT).unwrap();
        server.plan(move |request| if request.number % 3 == 0 { Fault::None } else { fault });
        assert!(read(&object).unwrap() == content(), "{fault:?}");
        assert!(server.requests() > 4, "{fault:?}");
    }
}

#[test]
fn a_connection_that_falls_silent_is_given_up_and_made_again() {
    let server = server();
    let object = found(&server, Duration::from_secs(4)).unwrap();
    server.plan(|request| if request.number % 2 == 1 { Fault::Silent(100_000) } else { Fault::None });
    assert!(read(&object).unwrap() == content());
}

#[test]
fn a_server_that_stays_faulty_is_one_message_in_time() {
    for (fault, said) in [
        (Fault::Status(503), "503"),
        (Fault::Silent(0), "a.bin"),
        (Fault::Cut(0), "a.bin"),
        (Fault::Status(403), "403"),
    ] {
        let server = server();
        let object = found(&server, Duration::from_secs(2)).unwrap();
        server.plan(move |_| fault);
        let begin = Instant::now();
        let error = read(&object).unwrap_err();
        assert!(error.contains(said) && error.contains(&server.url("data/a.bin")), "{fault:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{fault:?} took {:?}", begin.elapsed());
        if fault == Fault::Status(403) {
            assert!(begin.elapsed() < Duration::from_secs(2), "what cannot help is not tried again");
        }
    }
}

#[test]
fn what_may_pass_is_told_from_what_the_user_must_change() {
    for (fault, may_pass) in [
        (Fault::Status(503), true),
        (Fault::Status(429), true),
        (Fault::Silent(0), true),
        (Fault::Cut(0), true),
        (Fault::Status(403), false),
        (Fault::Status(501), false),
    ] {
        let server = server();
        let object = found(&server, Duration::from_secs(2)).unwrap();
        server.plan(move |_| fault);
        let listed = find(&Location::parse(&server.url("data/a.bin")).unwrap(), Duration::from_secs(2));
        let read = read_at(&mut object.reader(0, u64::MAX), 0..1);
        // What is cut or silent after the head has been found.
        for error in listed.err().into_iter().chain([read.unwrap_err()]) {
            assert_eq!(error.may_pass(), may_pass, "{fault:?}: {error}");
        }
    }
}

#[test]
fn an_object_that_changes_is_noticed() {
    let server = server();
    let object = found(&server, PATIENT).unwrap();
    let mut reader = object.reader(0, 100);
    reader.read_exact(&mut [0; 100]).unwrap();
    let mut other = content();
    other[2 << 20] ^= 1;
    server.put("data/a.bin", other);
    let mut rest = Vec::new();
    let error = reader.read_to_end(&mut rest).unwrap_err().to_string();
    assert!(error.contains("a.bin changed while it was being read"), "{error}");
    server.remove("data/a.bin");
    assert!(read(&object).unwrap_err().contains("changed while it was being read"));
    assert!(find(&Location::parse(&server.url("data/a.bin")).unwrap(), PATIENT).unwrap().is_empty());
}

#[test]
fn servers_that_cannot_be_read_from_safely_are_refused() {
    let server = server();
    server.without_tags();
    let error = found(&server, PATIENT).unwrap_err().to_string();
    assert!(error.contains("gives neither ETag nor Last-Modified"), "{error}");
}

#[test]
fn what_is_read_in_order_is_asked_for_ahead_and_no_further_than_it_is_wanted() {
    let server = server();
    server.put("data/a.bin", vec![7; 40 << 20]);
    let object = found(&server, PATIENT).unwrap();
    // A few bytes: one block.
    object.reader(0, u64::MAX).read_exact(&mut [0; 100]).unwrap();
    assert_eq!(server.sent(), 1 << 20);
    // All up to a place in the middle.
    let mut reader = object.reader(0, 8 << 20);
    let mut bytes = vec![0; 8 << 20];
    reader.read_exact(&mut bytes).unwrap();
    drop(reader);
    assert!(server.sent() <= 9 << 20, "{}", server.sent());
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn ranges_come_from_anywhere() {
    let (server, content) = (server(), content());
    let object = found(&server, PATIENT).unwrap();
    let mut reader = object.reader(0, u64::MAX);
    for range in [0..1, 1_048_570..1_048_580, 0..content.len() as u64, 3 << 20..(3 << 20) + 1, 5..5] {
        let bytes = read_at(&mut reader, range.clone()).unwrap();
        assert!(bytes == content[range.start as usize..range.end as usize], "{range:?}");
    }
    let outside = read_at(&mut reader, 0..u64::MAX).unwrap_err();
    assert!(matches!(outside, Error::Failed { .. }), "{outside}");
}
